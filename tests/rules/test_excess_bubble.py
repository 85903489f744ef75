"""excess-bubble: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pipeline_rules import BUBBLE, MakeJob, Replayed, bubble_rows, facts, stage_rows
from tracekit.findings import Severity
from tracekit.rules.base import RuleOutcome


def test_idle_time_beyond_the_schedule_is_said_without_a_culprit(make_job: MakeJob) -> None:
    rows = facts(make_job(), stage_rows(10, 10, 10, 10), bubble_rows(0.6, 0.6, 0.6, 0.6))
    (finding,) = BUBBLE.run(replace(rows, replay=Replayed(20))).findings
    assert finding.id == "excess-bubble/all"
    # 80 ms: 32 busy, of which the schedule adds 24; 24 are left.
    assert finding.impact.s_per_step == pytest.approx(0.024)
    assert finding.severity is Severity.MAJOR
    assert "(20.0 ms beyond" in finding.summary
    assert not BUBBLE.names_culprit


@pytest.mark.parametrize(
    ("beyond_ms", "severity"),
    [(5.0, Severity.MAJOR), (4.99, Severity.MINOR), (0.0, Severity.MINOR), (None, Severity.MINOR)],
)
def test_what_handing_over_takes_at_its_fastest_is_never_major(
    make_job: MakeJob, beyond_ms: float | None, severity: Severity
) -> None:
    """A twentieth of the 100 ms step; unknown where the messages were not recorded."""
    rows = facts(make_job(), stage_rows(10, 10, 10, 10), bubble_rows(0.6, 0.6, 0.6, 0.6))
    (finding,) = BUBBLE.run(replace(rows, replay=Replayed(beyond_ms))).findings
    assert finding.severity is severity
    assert ("is not known" in finding.summary) is (beyond_ms is None)


def test_without_a_replay_an_excess_bubble_is_minor(make_job: MakeJob) -> None:
    rows = facts(make_job(), stage_rows(10, 10, 10, 10), bubble_rows(0.6, 0.6, 0.6, 0.6))
    (finding,) = BUBBLE.run(rows).findings
    assert finding.severity is Severity.MINOR


@pytest.mark.parametrize(("factor", "is_said"), [(1.15, True), (1.149, False), (1.0, False)])
def test_15_percent_over_theory(make_job: MakeJob, factor: float, is_said: bool) -> None:
    idle = 3 / 7 * factor + 1e-9
    rows = facts(make_job(), stage_rows(10, 10, 10, 10), bubble_rows(*[idle] * 4))
    assert bool(BUBBLE.run(rows).findings) is is_said


def test_uneven_stages_explain_a_bubble(make_job: MakeJob) -> None:
    rows = facts(make_job(), stage_rows(10, 10, 10, 11), bubble_rows(0.6, 0.6, 0.6, 0.6))
    assert BUBBLE.run(rows) == RuleOutcome()


def test_a_small_pipeline_in_a_long_step_is_not_said(make_job: MakeJob) -> None:
    rows = facts(make_job(), stage_rows(10, 10, 10, 10), bubble_rows(*[0.6] * 4, window_ms=3.0))
    assert BUBBLE.run(rows) == RuleOutcome()


def test_warm_up_does_not_count(make_job: MakeJob) -> None:
    bubbles = [{**r, "is_warmup": True} for r in bubble_rows(0.9, 0.9, 0.9, 0.9)]
    bubbles += bubble_rows(0.43, 0.43, 0.43, 0.43)
    assert BUBBLE.run(facts(make_job(), stage_rows(10, 10, 10, 10), bubbles)) == RuleOutcome()


def test_the_host_alone_cannot_tell_a_gap_from_python(make_job: MakeJob) -> None:
    rows = facts(
        make_job(measured_on="host"), stage_rows(10, 10, 10, 10), bubble_rows(0.6, 0.6, 0.6, 0.6)
    )
    assert "GPU timeline" in BUBBLE.run(rows).not_checked[0].needs
