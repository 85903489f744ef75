"""Metrics of nights, read back by prometheus_client's parser of OpenMetrics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fleet_nights import GPU_HOUR_EUR, GPU_WATTS, UPGRADE_DAY, Fleet, day_of
from tracekit.fleet import metrics
from tracekit.fleet.night import Night, judged
from tracekit.fleet.nights import Price
from tracekit.fleet.rollup import Rolled


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet(1)


@pytest.fixture(scope="module")
def night(fleet: Fleet) -> Night:
    return judged(fleet, day_of(30), Rolled(failed=(("x", "y"),)))  # type: ignore[arg-type]  # as the store


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float, float | None]]]:
    return {
        family.name: [
            (s.labels, s.value, float(s.timestamp) if s.timestamp is not None else None)
            for s in family.samples
        ]
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    }


def test_history_has_one_sample_a_series_and_date(fleet: Fleet) -> None:
    found = samples(metrics.history(fleet, day_of(24), day_of(26)))  # type: ignore[arg-type]
    midnights = [
        datetime.fromisoformat(day_of(d)).replace(tzinfo=UTC).timestamp() for d in (24, 25, 26)
    ]
    assert [(v, t) for _, v, t in found["tracekit_runs"]] == [(40, t) for t in midnights]
    assert {v for _, v, _ in found["tracekit_gpu_hours_per_day"]} == {40 * 192}
    one = [
        (v, t) for labels, v, t in found["tracekit_step_seconds"] if labels["family"] == "sig05a"
    ]
    assert [t for _, t in one] == midnights
    assert one[UPGRADE_DAY - 24][0] / one[0][0] == pytest.approx(1.04, abs=0.01)


def test_losses_are_told_in_energy_and_money_too(fleet: Fleet) -> None:
    day = day_of(30)
    told = (metrics.history(fleet, day, day), metrics.current(judged(fleet, day, Rolled())))  # type: ignore[arg-type]  # as the store
    for found in map(samples, told):

        def of(metric: str, found: dict[str, Any] = found) -> float:
            (value,) = [v for labels, v, _ in found[metric] if labels["cause"] == "slow-host"]
            return float(value)

        hours = of("tracekit_lost_gpu_hours_per_day")
        joules = of("tracekit_lost_energy_joules_per_day")
        assert joules == pytest.approx(hours * 3600 * GPU_WATTS)
        assert of("tracekit_lost_amount_per_day") == pytest.approx(hours * GPU_HOUR_EUR)
        assert {labels["currency"] for labels, _, _ in found["tracekit_lost_amount_per_day"]} == {
            "EUR"
        }
    own = samples(metrics.history(fleet, day, day, Price(3.0, "CHF")))  # type: ignore[arg-type]  # as the store
    assert {labels["currency"] for labels, _, _ in own["tracekit_lost_amount_per_day"]} == {"CHF"}


def test_the_last_night_stands_without_timestamps(night: Night) -> None:
    text = metrics.current(night)
    found = samples(text)
    assert set(found) == set(metrics.HELP) - {"tracekit_step_seconds"}
    assert not any(t for rows in found.values() for _, _, t in rows)
    assert found["tracekit_runs_failed"] == [({}, 1, None)]
    names = {labels["name"] for labels, _, _ in found["tracekit_offender_bad_runs"]}
    assert names == {o.name for o in night.offenders}
    assert all(v > 0 for _, v, _ in found["tracekit_regression_slower_ratio"])


def test_names_from_files_stay_in_their_quotes(night: Night) -> None:
    evil = 'a"} 1\n# EOF\n\\'
    one = replace(night, offenders=(replace(night.offenders[0], name=evil),))
    ((labels, _, _),) = samples(metrics.current(one))["tracekit_offender_bad_runs"]
    assert labels["name"].startswith('a"} 1\\x0a# EOF')
