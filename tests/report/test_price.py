"""Energy and money of a finding's lost time."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.findings import Confidence, Finding, Impact, Scope, Severity, When, impact_of
from tracekit.job import Prices
from tracekit.report.price import power_watts, priced
from tracekit.rules import Facts, JobFacts


def facts(prices: Prices | None, watts: tuple[float | None, ...] = ()) -> Facts:
    rows: list[dict[str, Any]] = [
        {"counter": "power", "unit": "W", "p50_value": value} for value in watts
    ]
    rows.append({"counter": "power_limit", "unit": "W", "p50_value": 900.0})
    return Facts(job=JobFacts(prices=prices), rows={"gpu_counters": rows})


def lost(hours: float | None) -> Finding:
    return Finding(
        id="r/1",
        rule="r",
        severity=Severity.MINOR,
        confidence=Confidence(level="possible", basis="a test"),
        summary="s",
        owner="hardware",
        scope=Scope(),
        when=When(),
        impact=Impact(gpu_hours_per_day=hours),
        evidence=(),
    )


def test_the_power_is_the_median_of_the_gpus() -> None:
    assert power_watts(facts(None, (400.0, 600.0, 500.0, None)).of("gpu_counters")) == 500.0
    assert power_watts(facts(None).of("gpu_counters")) is None


@pytest.mark.parametrize(
    ("prices", "watts", "joules", "amount", "currency"),
    [
        (None, (), None, None, None),
        (None, (500.0,), 1.8e8, None, None),
        (Prices(gpu_hour=2.5, currency="EUR"), (), None, 250.0, "EUR"),
        (Prices(gpu_hour=2.5), (500.0,), 1.8e8, 250.0, None),
        (Prices(kilowatt_hour=0.2, currency="EUR"), (500.0,), 1.8e8, 10.0, "EUR"),
        (Prices(kilowatt_hour=0.2, currency="EUR"), (), None, None, None),
        (Prices(gpu_hour=2.5, kilowatt_hour=0.2), (500.0,), 1.8e8, 260.0, None),
    ],
)
def test_hours_have_a_price(
    prices: Prices | None,
    watts: tuple[float, ...],
    joules: float | None,
    amount: float | None,
    currency: str | None,
) -> None:
    """100 GPU-hours at 500 W are 50 kWh."""
    impact = priced(lost(100.0), facts(prices, watts)).impact
    assert impact.energy_joules == (None if joules is None else pytest.approx(joules))
    assert impact.cost.amount == (None if amount is None else pytest.approx(amount))
    assert impact.cost.currency == currency


def test_what_has_no_hours_has_no_price() -> None:
    assert priced(lost(None), facts(Prices(gpu_hour=2.5), (500.0,))) == lost(None)
    assert impact_of(0.1, 1.0, 8).gpu_hours_per_day == pytest.approx(19.2)
