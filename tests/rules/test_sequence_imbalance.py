"""sequence-imbalance: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pipeline_rules import SEQUENCE, MakeJob, Replayed, bubble_rows, lengths
from tracekit.findings import Severity
from tracekit.rules.base import RuleOutcome


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


def test_a_pipeline_s_price_is_the_replay_s(make_job: MakeJob) -> None:
    """Where what was seen is more than a quarter off, it stands against and widens the bounds."""
    facts = replace(lengths(make_job()), replay=Replayed(lengths_ms=7.0))
    (finding,) = SEQUENCE.run(facts).findings
    assert finding.impact.s_per_step == pytest.approx(0.007)
    assert finding.impact.method == "replay"
    assert not finding.counter_evidence
    facts = replace(lengths(make_job()), replay=Replayed(lengths_ms=12.0))
    (finding,) = SEQUENCE.run(facts).findings
    assert finding.impact.s_per_step == pytest.approx(0.012)
    error_s = 0.02 * facts.step_ns / 1e9
    assert finding.impact.low_s_per_step == pytest.approx(0.006 - error_s)
    assert "seen to wait" in finding.counter_evidence[0].name
    assert "wait 12.0 ms a step" in finding.summary


def test_what_a_pipeline_hides_costs_nothing(make_job: MakeJob) -> None:
    facts = replace(lengths(make_job()), replay=Replayed(lengths_ms=0.9))
    assert SEQUENCE.run(facts) == RuleOutcome()
    facts = replace(lengths(make_job()), replay=Replayed())
    (finding,) = SEQUENCE.run(facts).findings
    assert finding.impact.method == "twin ranks", "no replay: what was seen"


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
