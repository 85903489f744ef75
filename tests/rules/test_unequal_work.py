"""unequal-work: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest
from late_jobs import MakeJob
from msgspec.structs import replace

from excess_rules import HOST, LARGER, MORE, PAUSED, SLOWER, WORK, facts_of
from tracekit.rules.base import RuleOutcome


def test_a_rank_with_more_calls_has_more_work(make_job: MakeJob) -> None:
    (found,) = WORK.run(facts_of(make_job, MORE)).findings
    assert found.scope.ranks == (2,)
    assert "more calls of aten::mm (6 a step, its peers 3)" in found.summary
    assert found.owner == "model"


def test_many_calls_are_counted_in_full(make_job: MakeJob) -> None:
    row = MORE | {"calls_count": 2586.25, "peer_calls_count": 99.5}
    (found,) = WORK.run(facts_of(make_job, row)).findings
    assert "(2,586 a step, its peers 99.5)" in found.summary


def test_a_rank_with_larger_inputs_has_more_work_and_no_slow_host(make_job: MakeJob) -> None:
    """25 ms more in as many calls: of twice the elements they are what these take."""
    facts = facts_of(make_job, LARGER)
    (found,) = WORK.run(facts).findings
    assert "larger inputs of aten::mm (2x those of its peers)" in found.summary
    assert HOST.run(facts) == RuleOutcome()
    # Of a tenth more elements 2.5 ms are: the rest is slower.
    slower = facts_of(make_job, SLOWER | {"input_ratio": 1.1})
    assert WORK.run(slower) == RuleOutcome()
    assert [f.scope.ranks for f in HOST.run(slower).findings] == [(2,)]


@pytest.mark.parametrize(
    "row",
    [
        MORE | {"calls_count": 4.4},  # 11.7 ms of the 25 are in calls that its peers do not make
        MORE | {"path": "validation"},
        SLOWER,
        PAUSED,
        MORE | {"kind": "call", "name": "cudaMalloc", "peer_calls_count": 0.0, "peer_ns": 0.0},
    ],
    ids=["half", "evaluation", "slower", "pause", "memory"],
)
def test_what_is_not_more_work(make_job: MakeJob, row: dict[str, Any]) -> None:
    assert WORK.run(facts_of(make_job, row)) == RuleOutcome()


@pytest.mark.parametrize(
    ("calls", "kind", "is_said"),
    [
        (20.0, "operator", False),  # as many more as its peers make, at a pace of 0.1 ms: 1 of 25
        (20.5, "operator", True),
        (20.5, "kernel", True),
        (20.5, "call", False),  # a host that waits asks more often whether it may go on
    ],
)
def test_calls_that_outnumber_its_peers_are_other_work(
    make_job: MakeJob, calls: float, kind: str, is_said: bool
) -> None:
    """Such as the average of its weights that one rank keeps: of larger tensors than peers add."""
    row = MORE | {"kind": kind, "calls_count": calls, "peer_calls_count": 10.0}
    row |= {"own_ns": 26e6, "peer_ns": 1e6, "affected_ns": 26e6, "affected_peer_ns": 1e6}
    assert bool(WORK.run(facts_of(make_job, row)).findings) is is_said


def test_launches_that_its_peers_do_not_make_are_work(make_job: MakeJob) -> None:
    row = MORE | {"kind": "call", "name": "cudaLaunchKernel", "peer_calls_count": 1.0}
    assert [f.scope.ranks for f in WORK.run(facts_of(make_job, row)).findings] == [(2,)]


def test_experts_get_unequal_shares_by_nature(make_job: MakeJob) -> None:
    facts = facts_of(make_job, MORE)
    facts = replace(facts, rows={**facts.rows, "comm_summary": [{"op": "all_to_all"}]})
    outcome = WORK.run(facts)
    assert not outcome.findings
    assert "tokens" in outcome.not_checked[0].needs
