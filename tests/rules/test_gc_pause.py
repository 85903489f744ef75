"""gc-pause: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from stall_rules import MakeJob, look
from tracekit.rules.base import RuleOutcome


def test_a_collector_that_strikes_another_rank_each_step_is_one_finding(make_job: MakeJob) -> None:
    job = make_job(ranks_count=4, steps_count=12)
    for step in range(1, 13):
        job.stall("gc_pause", [step % 4], [step], 20)
    (finding,) = look("gc-pause", job).findings
    assert finding.id == "gc-pause/all"
    assert finding.impact.s_per_step == pytest.approx(0.020)


def test_unequal_sequences_are_not_taken_for_collections(make_job: MakeJob) -> None:
    job = make_job(ranks_count=4, steps_count=12)
    for step in range(1, 13):
        # Another rank computes longer each step; its collections are short and hidden.
        job.add(step % 4, step, "compute", 40)
        for rank in range(4):
            if rank != step % 4:
                job.add(rank, step, "exposed_comm", 40)
        job.stall("gc_pause", [step % 4], [step], 2, exposed_ms=0, is_waited_for=False)
    assert look("gc-pause", job) == RuleOutcome()
