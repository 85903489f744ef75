"""thermal-throttle: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest
from logged_rules import SECOND, SUMMARY, episode

from gpu_rules import HOT, MHZ, SLOW, active, gauge, only, reason, run
from tracekit.findings import Severity
from tracekit.report.fold import fold
from tracekit.rules import Facts, JobFacts, rule


@pytest.mark.parametrize(
    ("row", "fires"),
    [
        (reason(3, "hw_thermal", 5), True),
        (reason(3, "hw_thermal", 4), False),
        (reason(3, "hw_thermal", 90, held=0.009), False),  # the counter beats the samples
        (reason(3, "hw_thermal", 0, held=0.01), True),
        (reason(3, "sw_thermal", 50), True),
        (reason(3, "thermal", 0, held=0.5), True),
        (reason(3, "sw_power_cap", 100), False),  # normal at full load
        (reason(3, "gpu_idle", 100), False),
        (reason(3, "sync_boost", 100), False),
        (reason(3, "hw_slowdown", 100), False),  # no word of heat: a brake, or a change of state
    ],
)
def test_heat_is_what_the_hardware_says(row: dict[str, Any], fires: bool) -> None:
    outcome = run("thermal-throttle", gpu_throttle=[row], gpu_counters=HOT)
    assert bool(outcome.findings) is fires
    assert not outcome.not_checked


def test_a_throttled_gpu_is_told_with_its_clock_and_its_heat() -> None:
    finding = only(
        run("thermal-throttle", gpu_throttle=[reason(3, "hw_thermal", 100)], gpu_counters=HOT)
    )
    assert finding.summary == (
        "GPU 3 of h0 is hot and its clock is held down: hardware thermal slowdown 100 % of the "
        "samples, 1170 MHz against 1980, up to 91 C."
    )
    assert finding.scope.devices == ("h0 GPU 3",)
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == (0, 1)  # nobody is named whom no file names
    assert finding.severity is Severity.MINOR


def once(count: int = 1, active: int | None = None) -> dict[str, Any]:
    """One scrape, or one ``nvidia-smi -q``."""
    few = {"samples_count": count, "active_count": count if active is None else active}
    return reason(3, "hw_thermal", 100) | few


@pytest.mark.parametrize(("count", "words"), [(1, "in its only reading"), (2, "in both of its")])
def test_one_reading_counts_where_the_clock_is_lost_as_well(count: int, words: str) -> None:
    finding = only(run("thermal-throttle", gpu_throttle=[once(count)], gpu_counters=HOT))
    assert f"hardware thermal slowdown {words}" in finding.summary
    assert "1170 MHz against 1980" in finding.summary


def test_one_reading_alone_may_be_a_change_of_state() -> None:
    fine = [gauge(3, "sm_clock", 1900 * MHZ, 1980 * MHZ)]
    assert not run("thermal-throttle", gpu_throttle=[once()], gpu_counters=fine).findings
    assert not run("thermal-throttle", gpu_throttle=[once()], gpu_counters=[]).findings
    assert not run("thermal-throttle", gpu_throttle=[once(2, 1)], gpu_counters=HOT).findings


def test_throttling_that_costs_no_clock_is_a_note() -> None:
    rows = [gauge(3, "sm_clock", 1900 * MHZ, 1980 * MHZ)]
    found = only(
        run("thermal-throttle", gpu_throttle=[reason(3, "sw_thermal", 50)], gpu_counters=rows)
    )
    assert found.severity is Severity.NOTE


@pytest.mark.parametrize(("most", "fires"), [(86.0, True), (85.9, False)])
def test_a_hardware_slowdown_near_the_slowdown_temperature_is_heat(
    most: float, fires: bool
) -> None:
    rows = [
        gauge(3, "gpu_temperature", most, None),
        gauge(3, "gpu_slowdown_temperature", 89, None),
    ]
    outcome = run(
        "thermal-throttle", gpu_throttle=[reason(3, "hw_slowdown", 50)], gpu_counters=rows
    )
    assert bool(outcome.findings) is fires


def held(first_s: float, last_s: float, active: int = 40) -> dict[str, Any]:
    """Held down by heat from one moment to another, in so many of a hundred samples."""
    times = {"first_ns": round(first_s * SECOND), "last_ns": round(last_s * SECOND)}
    return reason(3, "sw_thermal", active) | times


FINE = [gauge(3, "sm_clock", 1980 * MHZ, 1980 * MHZ)]  # in the median of a day
STRETCH = episode(
    "slow", 1730, first_step=1000, last_step=2000, start_ns=1000 * SECOND, end_ns=2000 * SECOND,
    dur_ns=1.2 * SECOND,
)  # fmt: skip


@pytest.mark.parametrize(
    ("first_s", "last_s", "is_told"),
    [(1000, 2000, True), (1100, 1900, True), (1100, 1899, False), (0, 86_400, False)],
)
def test_heat_while_the_log_is_slow_costs_the_job_what_the_log_lost(
    first_s: float, last_s: float, is_told: bool
) -> None:
    log = {"job_step_summary": [SUMMARY], "slow_episode": [STRETCH]}
    rows = [held(first_s, last_s)]
    found = only(run("thermal-throttle", gpu_throttle=rows, gpu_counters=FINE, **log))
    told = (
        " Just then steps 1,000 to 2,000 of the training log took 20 % longer than usual (1.20 s "
        "against 1.00 s)."
    )
    assert found.summary.endswith(told) == is_told
    assert found.impact.s_per_step == (1730 if is_told else None)
    assert found.severity is (Severity.MINOR if is_told else Severity.NOTE)
    assert found.confidence.level == ("likely" if is_told else "possible")


def test_beside_traces_and_beside_a_steady_log_heat_costs_what_it_did() -> None:
    given = {"gpu_throttle": [held(1000, 2000)], "gpu_counters": FINE}
    log = {"job_step_summary": [SUMMARY], "slow_episode": [STRETCH]}
    of_traces = Facts(rows={**given, **log}, job=JobFacts(hosts={0: "h0", 1: "h0"}))
    for outcome in (
        rule("thermal-throttle").run(of_traces),
        run("thermal-throttle", **given, job_step_summary=[SUMMARY], slow_episode=[]),
        run("thermal-throttle", **given),
    ):
        assert only(outcome).impact.s_per_step is None


def test_heat_that_the_gpu_reports_is_one_finding_under_its_own_name() -> None:
    hot = {"gpu_counters": [*active(), SLOW], "gpu_throttle": [reason(3, "hw_thermal", 60)]}
    findings = [only(run(name, **hot)) for name in ("thermal-throttle", "slow-gpu")]
    (one,) = fold(findings)
    assert one.rule == "thermal-throttle"
    assert one.confidence.level == "possible"  # counters alone, twice
    assert one.confidence.basis.endswith("its peers wait and it does not")
    assert "activity over its peers'" in [e.name for e in one.evidence]
    other = [f for f in findings if f.rule == "slow-gpu"] + [
        only(run("thermal-throttle", **{**hot, "gpu_throttle": [reason(2, "hw_thermal", 60)]}))
    ]
    assert len(fold(other)) == 2
