"""What a finding's lost time costs in energy and money, where power and prices are known.

All by the day, as GPU-hours are: lost GPU-hours x the GPUs' median power draw while the job ran
(a GPU that waits in a collective draws much of it), x the price of a GPU-hour, and the energy x
the price of a kilowatt-hour. A price of a GPU-hour that includes the energy comes without one.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from tracekit.findings import Cost, Finding
from tracekit.rules import Facts
from tracekit.rules.gpus import COUNTERS

JOULES_PER_KILOWATT_HOUR = 3.6e6


def power_watts(facts: Facts) -> float | None:
    """Median over GPUs of their typical draw; None where none was sampled with its time."""
    drawn = [
        float(row["p50_value"])
        for row in facts.of(COUNTERS)
        if row["counter"] == "power" and row["unit"] == "watts" and row["p50_value"]
    ]
    return median(drawn) if drawn else None


def priced(finding: Finding, facts: Facts) -> Finding:
    """The finding with energy and money a day."""
    hours = finding.impact.gpu_hours_per_day
    if hours is None:
        return finding
    watts, prices = power_watts(facts), facts.job.prices
    joules = None if watts is None else hours * 3600 * watts
    amount: float | None = None
    if prices is not None and prices.gpu_hour is not None:
        amount = hours * prices.gpu_hour
    if prices is not None and prices.kilowatt_hour is not None and joules is not None:
        amount = (amount or 0.0) + joules / JOULES_PER_KILOWATT_HOUR * prices.kilowatt_hour
    currency = prices.currency if prices is not None and amount is not None else None
    cost = Cost(amount=amount, currency=currency)
    return replace(finding, impact=replace(finding.impact, energy_joules=joules, cost=cost))
