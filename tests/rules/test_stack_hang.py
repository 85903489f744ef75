"""collective-hang by stacks: who is named, who is a candidate, and when nothing is said."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tracekit
from nccl_rules import BEHIND, Build, findings, progress, text, timeout, with_traces
from tracekit.findings import Finding, Severity
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome

STACKS = Path(__file__).parents[2] / "fixtures" / "stacks"
ALL_REDUCE = "all_reduce (torch/distributed/distributed_c10d.py:9)"
LOADER = "read_shard (data.py:7)"
Rows = list[dict[str, Any]]


def stood(
    rank: int | None,
    stands_in: str | None = "collective",
    frame: str = ALL_REDUCE,
    *,
    dumps: int = 2,
    times: int | None = None,
    pid: int | None = None,
) -> dict[str, Any]:
    return {
        "rank": rank, "local_rank": None, "host": None, "pid": pid, "stands_in": stands_in,
        "op": "all_reduce" if stands_in == "collective" else None, "frame": frame,
        "frames": [frame], "group_number": 1, "processes_count": 1,
        "times_count": dumps if times is None else times, "dumps_count": dumps,
        "source_id": rank or 0, "place": 4, "attempt": None,
    }  # fmt: skip


def others(*ranks: int, dumps: int = 2) -> Rows:
    return [stood(r, dumps=dumps) for r in ranks]


def outcome(rows: Rows) -> RuleOutcome:
    return rule("collective-hang").run(Facts(rows={"rank_stacks": rows}))


def only(rows: Rows) -> Finding:
    (finding,) = findings("collective-hang", Facts(rows={"rank_stacks": rows}))
    return finding


def test_the_one_outside_of_the_collective_is_named_where_two_dumps_agree() -> None:
    finding = only([*others(0, 1, 3), stood(2, "input", LOADER)])
    assert finding.severity is Severity.CRITICAL
    assert finding.scope.ranks == (2,)
    assert finding.confidence.level == "possible"
    assert "Rank 2 stood in its data loader, at read_shard (data.py:7)," in finding.summary
    assert "ranks 0-1,3 waited in all_reduce" in finding.summary


def test_one_dump_names_a_candidate_and_no_hang() -> None:
    finding = only([*others(0, 1, 3, dumps=1), stood(2, "input", LOADER, dumps=1)])
    assert finding.severity is Severity.MINOR
    assert (finding.scope.ranks, finding.candidates.ranks) == ((), (2,))


def test_where_one_process_was_dumped_once_all_were() -> None:
    rows = [*others(0, 1), stood(3, dumps=1), stood(2, "input", LOADER)]
    assert only(rows).severity is Severity.MINOR


@pytest.mark.parametrize("stands_in", ["checkpoint", "compile", "collection", None])
def test_wherever_it_stands_outside(stands_in: str | None) -> None:
    assert only([*others(0, 1), stood(2, stands_in, "f (x.py:1)")]).scope.ranks == (2,)


def test_two_outside_are_candidates() -> None:
    finding = only([*others(0, 1), stood(2, "input", LOADER), stood(3, None, "f (x.py:1)")])
    assert finding.severity is Severity.CRITICAL
    assert (finding.scope.ranks, finding.candidates.ranks) == ((), (2, 3))


def test_where_it_is_not_shown_whether_some_wait_the_odd_one_is_a_candidate() -> None:
    finding = only([*others(0, 1), stood(3, "device"), stood(2, "input", LOADER)])
    assert (finding.scope.ranks, finding.candidates.ranks) == ((), (2,))


@pytest.mark.parametrize(
    "rows",
    [
        others(0, 1, 2, 3),  # all wait: stacks do not tell for whom
        [*others(0), stood(1, None), stood(2, "input", LOADER)],  # most stand elsewhere
        # Once in the collective, once not: the job moves.
        [
            *others(0, 1),
            stood(2, times=1),
            stood(2, "input", LOADER, times=1),
            stood(3, "input", LOADER),
        ],
        # Two collectives, one behind the other.
        [
            stood(0, times=1),
            stood(0, frame="barrier (torch/distributed/distributed_c10d.py:7)", times=1),
            stood(1),
            stood(2, "input", LOADER),
        ],
        [stood(0, "input", LOADER), stood(1, None)],
    ],
)
def test_nothing_is_said(rows: Rows) -> None:
    assert not outcome(rows).findings


def test_native_frames_that_show_the_collective_are_no_motion() -> None:
    native = stood(0, frame="c10d::Work::wait (libtorch_cpu.so)", times=1)
    finding = only([stood(0, times=1), native, stood(1), stood(2, "input", LOADER)])
    assert finding.scope.ranks == (2,)


def test_without_a_collective_in_sight_native_frames_are_asked_for() -> None:
    rows = [stood(0, "backward"), stood(1, "device"), stood(2, "input", LOADER)]
    (lack,) = outcome(rows).not_checked
    assert "--native" in (lack.capture or "")


def test_processes_without_a_rank_are_named_by_their_number() -> None:
    rows = [stood(None, pid=7), stood(None, pid=8), stood(None, "input", LOADER, pid=9)]
    finding = only(rows)
    assert finding.scope.ranks == ()
    assert finding.summary.startswith("Process 9 stood in its data loader")


def test_the_rank_that_logs_blame_is_shown_where_it_stands(build: Build) -> None:
    facts = with_traces(
        build(text(BEHIND)), rank_stacks=[*others(0, 2, 3), stood(1, "input", LOADER)]
    )
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == (1,)
    assert finding.confidence.level == "likely"
    assert "in its data loader" in finding.summary


def test_stacks_against_what_logs_say_are_told(build: Build) -> None:
    facts = with_traces(build(text(BEHIND)), rank_stacks=others(0, 1, 2, 3))
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == (1,)
    assert finding.confidence.level == "possible"
    assert len(finding.counter_evidence) == 1


def test_of_two_that_logs_blame_one_that_waits_is_no_agreement(build: Build) -> None:
    lines = [*(timeout(r) for r in (0, 3)), progress(0, 9, 8), progress(1, 8, 7), progress(2, 8, 7)]
    rows = [*others(0, 2, 3), stood(1, "input", LOADER)]
    (finding,) = findings("collective-hang", with_traces(build(text(lines)), rank_stacks=rows))
    assert finding.scope.ranks == (1, 2)
    assert finding.confidence.level == "possible"


@pytest.mark.parametrize(("dumped", "named"), [(range(4), (2,)), ((0, 1, 3), ())])
def test_a_silent_candidate_is_named_where_its_stack_is_there(
    dumped: Any, named: tuple[int, ...], build: Build
) -> None:
    rows = [stood(2, "input", LOADER) if r == 2 else stood(r) for r in dumped]
    facts = with_traces(build(text([timeout(r) for r in (0, 1, 3)])), rank_stacks=rows)
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == named
    assert finding.candidates.ranks == (() if named else (2,))


@pytest.mark.parametrize(
    ("pattern", "kind", "ranks"),
    [
        ("pyspy-?-rank*.txt", "hang", (2,)),
        ("pyspy-1-rank*.txt", "not_enough_data", ()),
        ("healthy-?-rank*.txt", None, ()),
    ],
)
def test_recorded_stacks(
    pattern: str,
    kind: str | None,
    ranks: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for path in STACKS.glob(pattern):
        shutil.copy(path, dumps)
    with tracekit.open(dumps) as run:
        document = run.diagnose(select=["collective-hang"]).document
    assert [f.scope.ranks for f in document.findings] == ([] if kind is None else [ranks])
    if kind is None:
        assert "only stacks of processes" in document.verdict.sentence
    else:
        assert document.verdict.kind == kind
        assert "planted" not in document.findings[0].summary
