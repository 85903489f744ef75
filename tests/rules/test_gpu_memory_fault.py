"""gpu-memory-fault: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest
from logged_rules import SECOND, SUMMARY

from gpu_rules import gauge, growth, only, run, xid
from tracekit.rules import RuleOutcome


@pytest.mark.parametrize(
    ("number", "severity"),
    [(79, "critical"), (95, "critical"), (94, "minor"), (63, "minor"), (31, None), (43, None),
     (45, None), (74, None)],
)  # fmt: skip
def test_an_xid_of_hardware_counts_and_a_program_s_does_not(
    number: int, severity: str | None
) -> None:
    outcome = run("gpu-memory-fault", gpu_events=[xid(3, number)])
    assert [f.severity.value for f in outcome.findings] == ([severity] if severity else [])


def test_the_first_xid_of_a_gpu_names_the_fault() -> None:
    finding = only(
        run("gpu-memory-fault", gpu_events=[xid(3, 95, time_ns=9), xid(3, 48, time_ns=5)])
    )
    assert finding.summary == "GPU 3 of h0: XID 48 (uncorrectable memory error), then 95."


def test_xids_outside_the_job_or_of_unknown_time_accuse_nobody() -> None:
    steps = [{"rank": 0, "attempt": 1, "capture_id": 0, "step": 1, "dur_ns": 5, "compute_ns": 5,
              "exposed_comm_ns": 0, "memory_ns": 0, "idle_ns": 0, "comm_ns": 0}]  # fmt: skip
    for known in (False, None):
        outcome = run(
            "gpu-memory-fault", gpu_events=[xid(3, 79, is_in_window=known)], step_breakdown=steps
        )
        assert not outcome.findings
    # With no trace at all they are all that there is.
    assert run("gpu-memory-fault", gpu_events=[xid(3, 79, is_in_window=None)]).findings


@pytest.mark.parametrize(("grown", "fires"), [(1.0, True), (0.0, False), (None, False)])
def test_uncorrectable_errors_count_when_they_grow(grown: float | None, fires: bool) -> None:
    outcome = run("gpu-memory-fault", gpu_growth=[growth(3, "ecc_dbe_volatile", grown)])
    assert bool(outcome.findings) is fires
    healthy = run("gpu-memory-fault", gpu_growth=[growth(3, "ecc_sbe_volatile", 500.0)])
    assert healthy == RuleOutcome()


def test_errors_since_the_driver_was_loaded_are_a_note_where_there_is_one_reading() -> None:
    once = growth(3, "ecc_dbe_volatile", None) | {"samples_count": 1, "last_value": 4.0}
    finding = only(run("gpu-memory-fault", gpu_growth=[once]))
    assert finding.summary == (
        "GPU 3 of h0: 4 uncorrectable memory errors since its driver was loaded."
    )
    assert finding.severity.value == "note"
    for other in (
        once | {"last_value": 0.0},
        once | {"growth": 0.0, "samples_count": 2},  # before the job
        once | {"counter": "ecc_dbe_aggregate"},  # in the board's whole life
        once | {"counter": "ecc_sbe_volatile"},
    ):
        assert not run("gpu-memory-fault", gpu_growth=[other]).findings


@pytest.mark.parametrize(
    ("flag", "severity"), [("row_remap_failure", "critical"), ("row_remap_pending", "note")]
)
def test_a_row_that_cannot_be_replaced_is_critical_one_that_waits_is_a_note(
    flag: str, severity: str
) -> None:
    finding = only(run("gpu-memory-fault", gpu_counters=[gauge(3, flag, 1, None)]))
    assert finding.severity.value == severity
    assert run("gpu-memory-fault", gpu_counters=[gauge(3, flag, 0, None)]) == RuleOutcome()


@pytest.mark.parametrize(
    ("time_s", "is_told"),
    [(50, True), (-86_399, True), (-86_400, False), (2 * 86_400 - 1, True), (2 * 86_400, False)],
)
def test_an_xid_a_day_before_or_behind_the_training_log_is_another_job_s(
    time_s: int, is_told: bool
) -> None:
    row = xid(3, 79, is_in_window=None, time_ns=time_s * SECOND)
    for log, expected in (([SUMMARY], is_told), ([SUMMARY | {"start_ns": None}], True), ([], True)):
        outcome = run("gpu-memory-fault", gpu_events=[row], job_step_summary=log)
        assert bool(outcome.findings) == expected
