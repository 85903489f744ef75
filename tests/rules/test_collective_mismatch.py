"""collective-mismatch: when it fires, when just not, and what exempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from late_jobs import MakeJob
from late_jobs import coverage as late_coverage

from lateness_rules import MISMATCH
from nccl_rules import DONE, STUCK, Build, coverage, findings, flight, text, timeout, with_traces
from tracekit.findings import Severity
from tracekit.rules.base import RuleOutcome


@pytest.mark.parametrize("change", [{"op": "_ALLGATHER_BASE"}, {"numel": 11}])
def test_members_that_do_different_things_mismatch(change: dict[str, Any], build: Build) -> None:
    facts = build(text(timeout(0), timeout(1, **change)))
    (finding,) = findings("collective-mismatch", facts)
    assert finding.scope.ranks == (0, 1)


def test_the_member_that_does_otherwise_than_most_is_named(build: Build) -> None:
    facts = build(text([timeout(r, numel=11 if r == 2 else 10) for r in range(4)]))
    (finding,) = findings("collective-mismatch", facts)
    assert finding.scope.ranks == (2,)
    assert finding.severity is Severity.CRITICAL  # the job stands still
    assert not findings("collective-hang", facts)
    even = build(text([timeout(r, numel=10 + r // 2) for r in range(4)]))
    assert findings("collective-mismatch", even)[0].scope.ranks == (0, 1, 2, 3)


def test_an_all_to_all_may_have_different_sizes(build: Build) -> None:
    lines = [timeout(r, op="ALLTOALL_BASE", numel=10 + r) for r in range(2)]
    assert not findings("collective-mismatch", build(text(lines)))


def test_flight_recorder_sees_a_mismatch(build: Build) -> None:
    facts = build(flight(0, DONE, STUCK), flight(1, DONE, (8, "all_gather", "started")),
                  flight(2, DONE, STUCK))  # fmt: skip
    (finding,) = findings("collective-mismatch", facts)
    assert "operations differ" in finding.summary
    assert not findings("collective-hang", facts)


@pytest.mark.parametrize(
    ("ranks", "reason", "count"),
    [
        ([0, 1, 2], "operations differ", 1),
        ([0, 1, 2], "sizes differ", 2),
        ([0, 1, 3], "operations differ", 2),
    ],
)
def test_a_mismatch_of_the_same_kind_and_group_is_one_finding(
    ranks: list[int], reason: str, count: int, build: Build
) -> None:
    dumps = build(flight(0, DONE, STUCK), flight(1, DONE, (8, "all_gather", "started")),
                  flight(2, DONE, STUCK))  # fmt: skip
    facts = with_traces(dumps, match_coverage=coverage(ranks, reason))
    found = findings("collective-mismatch", facts)
    assert len(found) == count
    assert "are at call 8" in found[0].summary
    assert (found[0].confidence.level == "likely") == (count == 1)


def test_members_that_call_different_sizes_are_a_mismatch(make_job: MakeJob) -> None:
    job = make_job()
    job.rows["match_coverage"] = [
        late_coverage(method="sequence"),
        late_coverage(method="sequence", is_trusted=False, reason="sizes differ", calls_count=4),
    ]
    (finding,) = MISMATCH.run(job.facts()).findings
    assert finding.severity is Severity.MINOR
    job.rows["match_coverage"].pop()
    assert MISMATCH.run(job.facts()) == RuleOutcome()


def test_by_order_most_calls_must_agree(make_job: MakeJob) -> None:
    job = make_job()
    job.rows["match_coverage"] = [
        late_coverage(),
        late_coverage(is_trusted=False, reason="sizes differ", calls_count=13),
    ]
    assert len(MISMATCH.run(job.facts()).findings) == 1
    job.rows["match_coverage"][1]["calls_count"] = 14
    assert MISMATCH.run(job.facts()) == RuleOutcome()


LOGS = Path(__file__).parents[2] / "fixtures" / "logs"


@pytest.mark.parametrize(
    ("name", "differs"),
    [("differing-calls", "operations differ (all_reduce, broadcast)"),
     ("differing-sizes", "sizes differ")],
)  # fmt: skip
def test_pytorchs_own_comparison_of_calls_names_who_does_otherwise(
    name: str, differs: str, build: Build
) -> None:
    """Real logs of PyTorch 2.13 with TORCH_DISTRIBUTED_DEBUG=DETAIL: all members raise."""
    facts = build((LOGS / f"{name}.log").read_text(encoding="utf-8"))
    (finding,) = findings("collective-mismatch", facts)
    assert finding.scope.ranks == (2,)
    assert f"are at call 4 and their {differs}" in finding.summary
    assert finding.severity is Severity.CRITICAL
    assert not findings("collective-hang", facts)


def compared(world: int, rank: int, shape: int, other: int, other_shape: int) -> str:
    call = "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[{}], Tensor)"
    return (
        f"[rank{world}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} "
        f"is running collective: {call.format(shape)}, but Rank {other} is running collective: "
        f"{call.format(other_shape)}."
    )


def test_of_two_members_that_differ_neither_is_the_odd_one(build: Build) -> None:
    (finding,) = findings("collective-mismatch", build(text(compared(1, 1, 10, 0, 11))))
    assert finding.scope.ranks == (0, 1)
    # Ranks of a group that are not the job's are told, and none of the job's is named.
    (finding,) = findings("collective-mismatch", build(text(compared(5, 1, 10, 0, 11))))
    assert finding.scope.ranks == ()
    assert "Ranks 0-1 are at call 7" in finding.summary
    # What does not differ after all, and a call that breaks off, tell nothing.
    assert not findings("collective-mismatch", build(text(compared(1, 1, 10, 0, 10))))
    cut = compared(1, 1, 10, 0, 11).partition(", but")[0]
    assert not findings("collective-mismatch", build(text(cut)))
