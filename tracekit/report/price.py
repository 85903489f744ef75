"""What a finding's lost time costs in energy and money, where power and prices are known.

All by the day, as GPU-hours are: lost GPU-hours x the GPUs' median power draw while the job ran
(a GPU that waits in a collective draws much of it), x the price of a GPU-hour, and the energy x
the price of a kilowatt-hour. A price of a GPU-hour that includes the energy comes without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tracekit.findings import Cost, Finding
from tracekit.rules import Facts
from tracekit.rules.gpus import COUNTERS

if TYPE_CHECKING:
    from tracekit.job import Prices

WATTS = "W"
SECONDS_PER_HOUR = 3600
JOULES_PER_KILOWATT_HOUR = 3.6e6


def power_watts(counters: Iterable[Mapping[str, Any]]) -> float | None:
    """Median over GPUs of their typical draw, by rows of ``gpu_counters``; None where none was
    sampled with its time."""
    drawn = [
        float(row["p50_value"])
        for row in counters
        if row["counter"] == "power" and row["unit"] == WATTS and row["p50_value"]
    ]
    return median(drawn) if drawn else None


def energy_joules(gpu_hours: float, watts: float | None) -> float | None:
    """What GPUs draw in so many hours; None where their power is unknown."""
    return None if watts is None else gpu_hours * SECONDS_PER_HOUR * watts


def amount(gpu_hours: float, joules: float | None, prices: Prices | None) -> float | None:
    """Hours and energy in money; None where neither has a price."""
    price: float | None = None
    if prices is not None and prices.gpu_hour is not None:
        price = gpu_hours * prices.gpu_hour
    if prices is not None and prices.kilowatt_hour is not None and joules is not None:
        price = (price or 0.0) + joules / JOULES_PER_KILOWATT_HOUR * prices.kilowatt_hour
    return price


def priced(finding: Finding, facts: Facts) -> Finding:
    """The finding with energy and money a day."""
    hours = finding.impact.gpu_hours_per_day
    if hours is None:
        return finding
    prices = facts.job.prices
    joules = energy_joules(hours, power_watts(facts.of(COUNTERS)))
    lost = amount(hours, joules, prices)
    currency = prices.currency if prices is not None and lost is not None else None
    cost = Cost(amount=lost, currency=currency)
    return replace(finding, impact=replace(finding.impact, energy_joules=joules, cost=cost))
