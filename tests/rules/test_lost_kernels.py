"""Kernels that the profiler lost, and files that break off: what is not known accuses nobody.

The same on whole jobs, with files that were cut, is in tests/test_cut_traces.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tracekit.catalog import queries
from tracekit.report.build import build_report
from tracekit.rules import Facts, rule
from tracekit.rules.base import RuleOutcome
from tracekit.rules.outcome import LOST

MakeJob = Callable[..., Any]
DEVICE_QUERIES = {q.name for q in queries() if q.is_of_device}
SYNC, LATE, STALL = rule("sync-stall"), rule("late-rank"), rule("checkpoint-stall")


def lost(facts: Facts, *ranks: int, ratio: float = 1.0) -> Facts:
    """The facts where the profiler lost that much of the kernels of some ranks."""
    rows = [{"attempt": 1, "rank": r, "lost_ratio": ratio} for r in ranks]
    return replace(facts, rows={**facts.rows, "lost_kernels": rows}).without_lost(DEVICE_QUERIES)


def test_a_rank_without_its_kernels_does_not_stall(make_job: MakeJob) -> None:
    """Its host synchronises as all do; with its kernels gone, its device seems to idle."""
    facts = make_job().stall("sync_stall", [1], range(1, 11), 30).facts()
    assert [f.scope.ranks for f in SYNC.run(facts).findings] == [(1,)]
    assert not SYNC.run(lost(facts, 1)).findings
    assert [f.scope.ranks for f in SYNC.run(lost(facts, 2)).findings] == [(1,)]


def test_a_hundredth_of_the_launches_is_no_loss(make_job: MakeJob) -> None:
    facts = make_job().facts()
    assert lost(facts, 1, ratio=0.01) is not facts
    assert lost(facts, 1, ratio=0.01).job.lost_ranks == frozenset()
    assert lost(facts, 1, ratio=0.011).job.lost_ranks == {1}


def test_with_too_few_sound_ranks_nobody_is_compared(make_job: MakeJob) -> None:
    """Two sound ranks of three, three of four."""
    needs = {}
    for ranks_count in (3, 4):
        job = make_job(ranks_count=ranks_count)
        job.rows["match_coverage"] = [{"is_trusted": True, "calls_count": 120}]
        outcome = LATE.run(lost(job.facts(), 1))
        needs[ranks_count] = [said.needs for said in outcome.not_checked]
    assert needs[3] == [LOST]
    assert LOST not in needs[4]


def test_what_is_lacking_whatever_the_profiler_lost_is_said_first(make_job: MakeJob) -> None:
    facts = lost(make_job(ranks_count=2).facts(), 0, 1)
    (said,) = rule("gpu-memory-fault").run(facts).not_checked
    assert "GPU counters" in said.needs


def test_who_has_no_kernels_may_be_what_the_others_wait_for(make_job: MakeJob) -> None:
    job = make_job(comm_ms=40)
    facts = lost(job.facts(), 1)
    assert tuple(facts.missing_ranks) == (1,)
    report = build_report(facts)
    assert report.verdict.kind == "not_enough_data"
    assert "1 rank that it may be waiting for lost kernels in the trace" in report.verdict.sentence
    assert any("kernels of rank 1 were lost" in line for line in report.notes.data_lines)


def test_all_ranks_whose_files_are_whole_are_all_ranks(make_job: MakeJob) -> None:
    """That the one whose file breaks off saved no checkpoint is not known."""
    facts = make_job().stall("checkpoint_stall", [1, 2, 3], range(1, 11), 30).facts()
    assert [f.scope.ranks for f in STALL.run(facts).findings] == [(1, 2, 3)]
    cut = replace(facts, job=replace(facts.job, broken_ranks=frozenset({0})))
    (finding,) = STALL.run(cut).findings
    assert finding.scope.ranks == (0, 1, 2, 3)
    assert finding.id == "checkpoint-stall/all"
    assert "all 4 ranks" in finding.summary
    two = make_job().stall("checkpoint_stall", [1, 2], range(1, 11), 30).facts()
    two = replace(two, job=replace(two.job, broken_ranks=frozenset({0})))
    assert [f.scope.ranks for f in STALL.run(two).findings] == [(1, 2)]


def test_nothing_is_said_of_a_job_whose_kernels_are_all_lost(make_job: MakeJob) -> None:
    facts = lost(make_job().stall("sync_stall", [1], range(1, 11), 30).facts(), 0, 1, 2, 3)
    assert SYNC.run(facts) != RuleOutcome()
    assert not build_report(facts).findings
