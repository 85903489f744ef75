"""One length of the step in all that a report says, and no cost beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.findings import Finding, Impact, Scope, Severity, When, confidence_from
from tracekit.report.build import _possible
from tracekit.rules.steps import StepKey, Steps

MS = 1_000_000


def breakdown(rank: int, step: int, start: int | None, dur: int) -> dict[str, Any]:
    """A rank's step that computes throughout, in ms."""
    return {
        "rank": rank, "step": step, "dur_ns": dur * MS, "compute_ns": dur * MS,
        "exposed_comm_ns": 0, "memory_ns": 0, "idle_ns": 0, "comm_ns": 0,
        "start_ns": None if start is None else start * MS,
    }  # fmt: skip


def test_steps_of_the_job_lie_end_to_end() -> None:
    # Both ranks pass 220 ms; each is the slower one in one step.
    rows = [breakdown(0, 1, 0, 120), breakdown(0, 2, 120, 100),
            breakdown(1, 1, 10, 100), breakdown(1, 2, 110, 120)]  # fmt: skip
    steps = Steps.from_rows(rows, [])
    assert steps.job_durs_ns == [110 * MS, 110 * MS]
    assert steps.step_ns == 110 * MS


def test_without_a_clock_a_step_takes_as_long_as_on_its_slowest_rank() -> None:
    steps = Steps.from_rows([breakdown(0, 1, None, 120), breakdown(1, 1, 0, 100)], [])
    assert steps.job_dur_ns(StepKey(1, 0, 1)) == 120 * MS


def test_the_parts_are_those_of_a_rank_that_takes_as_long_and_add_up() -> None:
    # Rank 1 alone takes as long as the job: ranks 0 and 2 are done early.
    rows = [breakdown(0, 1, 0, 50), breakdown(1, 1, 0, 100), breakdown(2, 1, 0, 60)]
    steps = Steps.from_rows(rows, [])
    assert steps.median_rank == 1
    assert steps.median_parts is not None
    assert steps.median_parts.dur == steps.step_ns == 100 * MS
    assert sum(steps.median_parts[1:]) == steps.step_ns


@pytest.mark.parametrize(("cost_s", "is_possible"), [(0.1, True), (0.1001, False)])
def test_a_cost_beyond_the_step_is_our_error(cost_s: float, is_possible: bool) -> None:
    made = Finding(
        id="late-rank/1", rule="late-rank", severity=Severity.CRITICAL, summary="It is late.",
        confidence=confidence_from(["peers"], "peers"), owner="platform", scope=Scope(),
        when=When(), evidence=(), impact=Impact(s_per_step=cost_s, step_ratio=cost_s / 0.1),
    )  # fmt: skip
    (kept,), errors = _possible([made], 0.1)
    assert (kept.impact.s_per_step == cost_s) is is_possible
    assert [e.rule for e in errors] == ([] if is_possible else ["late-rank"])
