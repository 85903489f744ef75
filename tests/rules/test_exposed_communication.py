"""exposed-communication: a share of the step, nobody's fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracekit.findings import Severity
from tracekit.rules import rule
from tracekit.rules.base import RuleOutcome

MakeJob = Callable[..., Any]
RULE = rule("exposed-communication")


def test_a_tenth_of_the_step_is_said_and_just_less_is_not(make_job: MakeJob) -> None:
    (finding,) = RULE.run(make_job(comm_ms=10).facts()).findings
    assert finding.impact.step_ratio == pytest.approx(0.10)
    assert RULE.run(make_job(comm_ms=9).facts()) == RuleOutcome()


def test_it_is_minor_however_much_it_is(make_job: MakeJob) -> None:
    (finding,) = RULE.run(make_job(comm_ms=70).facts()).findings
    assert finding.severity is Severity.MINOR
    assert finding.confidence.level == "possible"


def test_one_rank_that_waits_is_not_the_job(make_job: MakeJob) -> None:
    job = make_job()
    for step in job.steps:
        job.add(3, step, "exposed_comm", 60)
        job.add(3, step, "compute", -60)
    assert RULE.run(job.facts()) == RuleOutcome()


def test_it_names_the_operations_that_expose_most(make_job: MakeJob) -> None:
    job = make_job(comm_ms=30)
    job.rows["exposed_comm_by_op"] = [
        {"rank": 0, "op": "all_reduce", "exposed_comm_ns": 75},
        {"rank": 0, "op": "all_gather", "exposed_comm_ns": 25},
    ]
    (finding,) = RULE.run(job.facts()).findings
    assert "all_reduce 75 %, all_gather 25 %" in finding.summary


def test_ranks_without_a_trace_are_candidates(make_job: MakeJob) -> None:
    (finding,) = RULE.run(make_job(comm_ms=30).facts(world_size=6)).findings
    assert finding.candidates.ranks == (4, 5)
    assert finding.next_capture == ("profile ranks 4-5 in the same steps",)


def test_a_single_process_has_nobody_to_talk_to(make_job: MakeJob) -> None:
    assert RULE.run(make_job(ranks_count=1, comm_ms=0).facts()) == RuleOutcome()


def test_a_trace_of_a_larger_job_without_communication_cannot_tell(make_job: MakeJob) -> None:
    outcome = RULE.run(make_job(comm_ms=0).facts())
    assert "communication" in outcome.not_checked[0].needs


def test_without_steady_steps_it_cannot_tell(make_job: MakeJob) -> None:
    job = make_job(steps_count=1, comm_ms=50)
    job.marks = {1: "is_warmup"}
    assert "steady step" in RULE.run(job.facts()).not_checked[0].needs


def test_a_window_without_steps_is_judged_as_one(make_window: MakeJob) -> None:
    (finding,) = RULE.run(make_window(comm_ms=20).facts()).findings
    assert finding.summary.startswith("40.0 ms of the window (20 %) is communication")
    assert RULE.run(make_window(comm_ms=9).facts()) == RuleOutcome()
