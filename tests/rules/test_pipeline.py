"""stage-imbalance, excess-bubble and sequence-imbalance, on made-up rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from late_jobs import part

from tracekit.findings import Severity
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome

MakeJob = Callable[..., Any]
STAGES, BUBBLE, SEQUENCE = (
    rule(n) for n in ("stage-imbalance", "excess-bubble", "sequence-imbalance")
)
MS = 1_000_000


def stage_rows(*compute_ms: float, **changed: Any) -> list[dict[str, Any]]:
    """Stages by their compute of a microbatch; the median is taken as 10 ms."""
    return [
        {
            "stage": stage,
            "attempt": 1,
            "ranks": [stage],
            "compute_ns": ms * MS,
            "compute_ratio": ms / 10,
            "forward_ratio": ms / 10,
            "backward_ratio": ms / 10,
            "steps_count": 10,
            "slow_steps_count": 10 if ms >= 11 else 0,
            "microbatches_count": 4.0,
            "replicas_count": 1,
            **changed,
        }
        for stage, ms in enumerate(compute_ms)
    ]


def bubble_rows(*idle_ratio: float, window_ms: float = 80.0) -> list[dict[str, Any]]:
    """Stages by their idle share, where the schedule makes 3/7."""
    return [
        {
            "stage": stage,
            "replica": 0,
            "step": 1,
            "attempt": 1,
            "window_ns": int(window_ms * MS),
            "busy_ns": int(window_ms * MS * (1 - idle)),
            "bubble_ratio": idle,
            "expected_bubble_ratio": 3 / 7,
            "expected_bubble_overhead_ratio": 0.75,
            "stages_count": 4,
            "microbatches_count": 4,
            "chunks_count": 1,
            "is_warmup": False,
        }
        for stage, idle in enumerate(idle_ratio)
    ]


def facts(job: Any, stages: list[Any], bubbles: list[Any]) -> Facts:
    job.rows |= {"stage_balance": stages, "bubble": bubbles}
    found: Facts = job.facts()
    return found


def test_a_heavy_last_stage_is_named_with_what_it_costs(make_job: MakeJob) -> None:
    rows = stage_rows(10, 10, 10, 20)
    (finding,) = STAGES.run(facts(make_job(), rows, bubble_rows(0.6, 0.6, 0.6, 0.2))).findings
    assert finding.id == "stage-imbalance/3"
    assert finding.scope.ranks == (3,)
    # 4 x 20 + 30 against (4 + 3) x 12.5: 22.5 ms of 100.
    assert finding.impact.s_per_step == pytest.approx(0.0225)
    assert finding.severity is Severity.CRITICAL
    assert "the last; rank 3) computes 2.00x" in finding.summary
    assert finding.confidence.level == "possible"
    assert any("another GPU" in c for c in finding.confirm)


def test_a_heavy_stage_says_what_it_does_more_than_the_others(make_job: MakeJob) -> None:
    job = make_job()
    more: dict[str, Any] = {"calls_count": 12.0, "peer_calls_count": 8.0}
    job.rows["excess"] = [
        part("operator", "aten::mm", ms=60, peer_ms=40, rank=3, peers="job", **more),
        part("operator", "aten::add", ms=60, peer_ms=40, rank=3, peers="stage", **more),
        part("wait", "c10d::recv_", ms=90, rank=0, peers="job"),
    ]
    given = facts(job, stage_rows(10, 10, 10, 20), bubble_rows(0.6, 0.6, 0.6, 0.2))
    (finding,) = STAGES.run(given).findings
    assert ": more calls of aten::mm (12 a step, its peers 8): 60.0 ms" in finding.summary


def test_with_replicas_it_is_likely_and_no_machine_is_doubted(make_job: MakeJob) -> None:
    rows = stage_rows(20, 10, 10, 10, replicas_count=2)
    (finding,) = STAGES.run(facts(make_job(), rows, bubble_rows(0.2, 0.6, 0.6, 0.6))).findings
    assert finding.confidence.level == "likely"
    assert "the first" in finding.summary
    assert not any("another GPU" in c for c in finding.confirm)


def test_just_below_a_tenth_is_nothing(make_job: MakeJob) -> None:
    at = facts(make_job(), stage_rows(10, 10, 10, 11), bubble_rows(0.5, 0.5, 0.5, 0.4))
    assert STAGES.run(at).findings
    below = facts(make_job(), stage_rows(10, 10, 10, 10.9), bubble_rows(0.5, 0.5, 0.5, 0.4))
    assert STAGES.run(below) == RuleOutcome()


def test_a_stage_that_is_slow_in_few_steps_is_not_heavy(make_job: MakeJob) -> None:
    rows = stage_rows(10, 10, 10, 20, slow_steps_count=7)
    assert STAGES.run(facts(make_job(), rows, bubble_rows(0.6, 0.6, 0.6, 0.2))) == RuleOutcome()


def test_a_heavy_stage_that_stands_idle_holds_nobody_up(make_job: MakeJob) -> None:
    rows = stage_rows(10, 10, 10, 20)
    assert STAGES.run(facts(make_job(), rows, bubble_rows(0.2, 0.6, 0.6, 0.3))) == RuleOutcome()


def test_less_than_a_hundredth_of_the_step_is_not_said(make_job: MakeJob) -> None:
    rows = stage_rows(10, 10, 10, 20)
    for row in rows:
        row["compute_ns"] /= 100
    assert STAGES.run(facts(make_job(), rows, bubble_rows(0.6, 0.6, 0.6, 0.2))) == RuleOutcome()


def test_equal_stages_are_healthy(make_job: MakeJob) -> None:
    rows = stage_rows(10, 10, 10, 10)
    assert STAGES.run(facts(make_job(), rows, bubble_rows(0.43, 0.43, 0.43, 0.43))) == RuleOutcome()


def test_timers_without_steps_are_enough() -> None:
    rows = {
        "stage_balance": stage_rows(10, 10, 10, 20),
        "bubble": bubble_rows(0.6, 0.6, 0.6, 0.2),
        "step_time_summary": [{"rank": None, "mean_ns": 80e6}],
    }
    (finding,) = STAGES.run(Facts(rows=rows)).findings
    assert finding.impact.step_ratio == pytest.approx(22.5 / 80)


def test_one_stage_alone_cannot_be_compared(make_job: MakeJob) -> None:
    outcome = STAGES.run(facts(make_job(), stage_rows(10), bubble_rows(0.4)))
    assert "more than one pipeline stage" in outcome.not_checked[0].needs


def test_without_microbatches_nothing_is_checked(make_job: MakeJob) -> None:
    for each in (STAGES, BUBBLE, SEQUENCE):
        outcome = each.run(make_job().facts())
        assert not outcome.findings
        assert outcome.not_checked[0].rule == each.name
        assert "pipeline" in outcome.not_checked[0].needs


# --- excess-bubble ----------------------------------------------------------------------------


class Replayed:
    """A replay that knows how much a pipeline idles beyond fast hand-overs, and nothing else."""

    is_by_streams = False
    error_ratio = 0.0

    def __init__(self, beyond_ms: float | None) -> None:
        self.beyond_ms = beyond_ms

    def idle_beyond_hand_overs_ns(self) -> float | None:
        return None if self.beyond_ms is None else self.beyond_ms * MS

    def saved_evenly_ns(self) -> float | None:
        return None

    def saved_ns(self, ranks: Sequence[int]) -> float | None:
        return None

    def saved_by_operations_ns(self, rank: int) -> float | None:
        return None

    def slowdown(self, rank: int) -> float | None:
        return None


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


# --- sequence-imbalance -----------------------------------------------------------------------


def lengths(
    job: Any,
    *,
    correlation: float | None = 0.99,
    cv: float = 0.3,
    ranks: int = 4,
    longest: tuple[int, ...] = (0, 1, 2, 3),
    lost_ms: float = 6.0,
    replicas: int = 4,
    microbatches: int = 40,
) -> Facts:
    job.rows["microbatch_correlation"] = [
        {"rank": r, "attempt": 1, "correlation_ratio": correlation if r < ranks else 0.1,
         "forward_cv_ratio": cv, "microbatches_count": microbatches}
        for r in range(4)
    ]  # fmt: skip
    job.rows["replica_balance"] = [
        {"step": s, "attempt": 1, "replicas_count": replicas, "longest_replica": one,
         "longest_ns": (50 + lost_ms) * MS, "mean_ns": 50.0 * MS}
        for s, one in enumerate(longest)
    ]  # fmt: skip
    found: Facts = job.facts()
    return found


def test_lengths_that_differ_are_the_data_s(make_job: MakeJob) -> None:
    (finding,) = SEQUENCE.run(lengths(make_job())).findings
    assert finding.owner == "data"
    assert finding.scope.ranks == (0, 1, 2, 3)
    assert finding.impact.s_per_step == pytest.approx(0.006)
    assert finding.severity is Severity.MAJOR
    assert "correlation 0.99" in finding.summary


@pytest.mark.parametrize(
    "changed",
    [
        {"correlation": 0.949},
        {"correlation": None},
        {"cv": 0.099},
        {"ranks": 1},
        {"longest": (2, 2, 2, 2, 2, 1)},
        {"lost_ms": 0.9},
    ],
    ids=lambda c: next(iter(c)),
)
def test_each_condition_is_needed(make_job: MakeJob, changed: dict[str, Any]) -> None:
    assert SEQUENCE.run(lengths(make_job(), **changed)) == RuleOutcome()


def test_the_smallest_case_that_fires(make_job: MakeJob) -> None:
    at = lengths(
        make_job(), correlation=0.95, cv=0.1, ranks=2, longest=(2, 2, 2, 2, 1), lost_ms=1.0
    )
    assert SEQUENCE.run(at).findings


def test_one_replica_has_nobody_to_wait_for(make_job: MakeJob) -> None:
    outcome = SEQUENCE.run(lengths(make_job(), replicas=1))
    assert "two replicas" in outcome.not_checked[0].needs


def test_few_microbatches_prove_nothing(make_job: MakeJob) -> None:
    outcome = SEQUENCE.run(lengths(make_job(), microbatches=7))
    assert outcome.not_checked


def test_stages_that_wait_for_a_long_microbatch_are_part_of_the_price(make_job: MakeJob) -> None:
    job = make_job()
    job.rows["bubble"] = bubble_rows(0.6, 0.6, 0.6, 0.6)
    (finding,) = SEQUENCE.run(lengths(job)).findings
    # 80 ms: 32 busy and 48 idle, of which 1.15 x 24 are the schedule's.
    assert finding.impact.s_per_step == pytest.approx(0.006 + 0.0204)
    assert "replicas and stages wait" in finding.summary
    job.rows["bubble"] = bubble_rows(3 / 7, 3 / 7, 3 / 7, 3 / 7)
    (finding,) = SEQUENCE.run(lengths(job)).findings
    assert finding.impact.s_per_step == pytest.approx(0.006)
