"""slow-gpu: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_rules import MHZ, SLOW, active, gauge, growth, only, reason, run, xid
from tracekit.findings import Severity


def test_the_busiest_beside_a_lost_clock_is_a_suspect() -> None:
    found = only(run("slow-gpu", gpu_counters=[*active(), SLOW]))
    assert found.severity is Severity.MINOR
    assert found.confidence.level == "possible"
    assert found.impact.s_per_step is None
    assert found.scope.devices == ("h0 GPU 3",) and not found.scope.ranks
    assert found.candidates.ranks == (0, 1)
    assert found.summary == (
        "GPU 3 of h0 does not wait for its peers (1.40x as active as they are), and its clock is "
        "1500 MHz against 1980."
    )


@pytest.mark.parametrize(
    "evidence",
    [
        {"gpu_counters": [gauge(3, "power", 540, 600)]},
        {"gpu_throttle": [reason(3, "hw_power_brake", 50)]},
        {"gpu_throttle": [reason(3, "sw_thermal", 0, held=0.05)]},
        {"gpu_growth": [growth(3, "remapped_rows_uncorrectable", 1.0)]},
        {"gpu_events": [xid(3, 63)]},
    ],
)
def test_power_heat_and_memory_are_reasons_too(evidence: dict[str, Any]) -> None:
    given = {**evidence, "gpu_counters": [*active(), *evidence.get("gpu_counters", ())]}
    assert only(run("slow-gpu", **given)).scope.devices == ("h0 GPU 3",)


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"gpu_counters": [gauge(3, "sm_clock", 1900 * MHZ, 1980 * MHZ)]},
        {"gpu_counters": [gauge(3, "power", 560, 600)]},
        {"gpu_counters": [gauge(2, "sm_clock", 1500 * MHZ, 1980 * MHZ)]},  # another's reason
        {"gpu_throttle": [reason(3, "sw_power_cap", 100)]},  # normal at full load
        {"gpu_throttle": [reason(3, "hw_thermal", 4)]},
        {"gpu_growth": [growth(3, "ecc_sbe_volatile", 500.0)]},  # corrected: normal
        {"gpu_events": [xid(3, 13)]},  # the program's
        {"gpu_events": [xid(3, 63, is_in_window=False)]},
    ],
)
def test_the_busiest_without_a_reason_is_nobody_s_fault(evidence: dict[str, Any]) -> None:
    given = {**evidence, "gpu_counters": [*active(), *evidence.get("gpu_counters", ())]}
    outcome = run("slow-gpu", **given)
    assert not outcome.findings and not outcome.not_checked


@pytest.mark.parametrize(
    "compared",
    [
        active(ratio=1.09),
        active(below=0.21),
        active(moments_count=9),
        active(peers_count=2),
        active(total_ratio=None),
        [gauge(i, "sm_active", 0.6, 0.6) for i in range(4)],  # healthy twin
    ],
)
def test_just_below_the_busiest_is_silent(compared: list[dict[str, Any]]) -> None:
    assert not run("slow-gpu", gpu_counters=[*compared, SLOW]).findings


def test_utilisation_proves_nothing() -> None:
    (lack,) = run("slow-gpu", gpu_counters=[gauge(3, "gpu_utilisation", 1, 0.5), SLOW]).not_checked
    assert lack.needs == "a GPU timeline, or the SM activity of GPUs (DCGM 1002)"


def test_without_counters_it_needs_a_timeline() -> None:
    (lack,) = run("slow-gpu").not_checked
    assert lack.needs == "a GPU timeline (these ranks show none)"
