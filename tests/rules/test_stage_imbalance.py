"""stage-imbalance: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest
from late_jobs import part
from msgspec.structs import replace

from pipeline_rules import STAGES, MakeJob, Replayed, bubble_rows, facts, stage_rows
from tracekit.findings import Severity
from tracekit.rules.base import Facts, RuleOutcome


def test_a_heavy_last_stage_is_named_with_what_it_costs(make_job: MakeJob) -> None:
    rows = stage_rows(10, 10, 10, 20)
    (finding,) = STAGES.run(facts(make_job(), rows, bubble_rows(0.6, 0.6, 0.6, 0.2))).findings
    assert finding.id == "stage-imbalance/3"
    assert finding.scope.ranks == (3,)
    # 4 x 20 + 30 against (4 + 3) x 12.5: 22.5 ms of 140.
    assert finding.impact.s_per_step == pytest.approx(0.0225)
    assert finding.severity is Severity.MAJOR
    assert "the last; rank 3) computes 2.00x as long as the median other stage" in finding.summary
    assert finding.confidence.level == "possible"
    assert any("another GPU" in c for c in finding.confirm)


def test_its_price_is_what_a_step_takes_less_if_it_computes_as_the_others(
    make_job: MakeJob,
) -> None:
    given = facts(make_job(), stage_rows(10, 10, 10, 20), bubble_rows(0.6, 0.6, 0.6, 0.2))
    replay = Replayed(stage_ms=30.0, evenly_ms=12.0)
    (finding,) = STAGES.run(replace(given, replay=replay)).findings
    assert finding.impact.method == "replay"
    assert finding.impact.s_per_step == pytest.approx(0.030)
    assert "the others wait 30.0 ms a step" in finding.summary
    # Bounds: what is gained if the others get the work, less the replay's error; and its error.
    error_s = 0.02 * given.step_ns / 1e9
    assert finding.impact.low_s_per_step == pytest.approx(0.012 - error_s)
    assert finding.impact.high_s_per_step == pytest.approx(0.030 + error_s)
    (against,) = finding.counter_evidence
    assert (against.value, against.unit) == (0.012, "s")
    # Within a quarter nothing stands against it, and what costs nothing by replay is no finding.
    alike = replace(given, replay=Replayed(stage_ms=30.0, evenly_ms=23.0))
    assert STAGES.run(alike).findings[0].counter_evidence == ()
    free = replace(given, replay=Replayed(stage_ms=0.0, evenly_ms=0.0))
    assert STAGES.run(free) == RuleOutcome()


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


def test_of_two_stages_one_is_held_against_the_other(make_job: MakeJob) -> None:
    at = facts(make_job(), stage_rows(10, 11), bubble_rows(0.4, 0.3))
    (finding,) = STAGES.run(at).findings
    assert "computes 1.10x as long as the other stage: it waits 1.50 ms a step" in finding.summary
    assert finding.evidence[0].name == "compute of stage 1 over the other stage"
    below = facts(make_job(), stage_rows(10, 10.9), bubble_rows(0.4, 0.3))
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


@pytest.mark.parametrize(
    ("kernels_ms", "ranks_count", "measured_on", "is_named"),
    [
        (20, 4, "gpu", True),  # half of the 40 ms that 4 microbatches take longer
        (19, 4, "gpu", False),
        (0, 4, "gpu", False),  # a host that launches late
        (0, 4, "host", True),  # no kernels to be seen
        (0, 3, "gpu", True),  # nor any of the heavy stage
    ],
)
def test_on_gpus_a_heavy_stage_is_heavy_in_its_kernels(
    make_job: MakeJob, kernels_ms: int, ranks_count: int, measured_on: str, is_named: bool
) -> None:
    job = make_job(ranks_count=ranks_count, measured_on=measured_on)
    stages, bubbles = stage_rows(10, 10, 10, 20), bubble_rows(0.6, 0.6, 0.6, 0.2)
    found = STAGES.run(facts(job, stages, bubbles, kernels_ms)).findings
    assert [f.id for f in found] == (["stage-imbalance/3"] if is_named else [])
    if kernels_ms == 20:
        values = {e.name: e.value for e in found[0].evidence}
        assert values["of the time that its operations take longer, in kernels"] == 0.5


def test_one_stage_alone_cannot_be_compared(make_job: MakeJob) -> None:
    outcome = STAGES.run(facts(make_job(), stage_rows(10), bubble_rows(0.4)))
    assert "more than one pipeline stage" in outcome.not_checked[0].needs
