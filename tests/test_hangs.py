"""Jobs that stand still, from raw traces to the verdict: no trace has the kernel that hangs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tracekit
from soaks import soak
from tracekit.findings import Finding
from tracekit.report.model import Report
from tracekit.simulate import Request, write
from traces import BASE_NS, Document, write_trace

CALL_US = 1000
FINISHED_COUNT = 20
Asked = Sequence[tuple[str, Sequence[int], int]]
"""Groups of a rank: name, members, calls that it asked for and that did not finish."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def call_args(number: int | None, group: str, ranks: Sequence[int]) -> Document:
    args: Document = {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024,
        "Out msg nelems": 1024, "Group size": len(ranks), "Process Group Name": group,
        "Process Group Ranks": str(list(ranks)),
    }  # fmt: skip
    return args if number is None else args | {"Seq": number}


def bare(
    scenario: str, seed: int, layout: str, steps: int, style: str = "kineto", *, nccl: str = "none"
) -> Request:
    """Four ranks, of which only traces are written, and logs where they are asked for."""
    return Request(scenario, 4, seed, layout, steps, style, decoys=(), nccl=nccl, counters="none")


def stopped(
    rank: int,
    asked: Asked,
    *,
    world: int = 4,
    still_s: float = 60,
    is_numbered: bool = True,
    op: str = "allreduce",
    busy_until_s: float = 0,
) -> Document:
    """A trace with 20 finished calls on each group, then so many asked for and not finished."""
    events: list[Document] = []

    def add(category: str, name: str, at: float, dur: float, tid: int, args: Document) -> None:
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": at, "dur": dur,
             "args": args}
        )  # fmt: skip

    at = correlation = 0
    for index, (group, ranks, open_count) in enumerate(asked):
        for number in range(FINISHED_COUNT + open_count):
            at += CALL_US
            correlation += 1
            args = call_args(number if is_numbered else None, group, ranks)
            args["Collective name"] = op if number >= FINISHED_COUNT else "allreduce"
            add("cpu_op", "record_param_comms", at, 50, 1, args | {"External id": correlation})
            launched = {"correlation": correlation}
            add("cuda_runtime", "cudaLaunchKernelExC", at + 10, 5, 1, launched)
            if number < FINISHED_COUNT:
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                where = {
                    "device": 0,
                    "stream": 20 + index,
                    "context": 1,
                    "correlation": correlation,
                }
                add("kernel", name, at + 100, 500, 20, where | args)
    if busy_until_s:
        where = {"device": 0, "stream": 7, "context": 1, "correlation": 0}
        add("kernel", "gemm", busy_until_s * 1e6 - 100, 100, 7, where)
    add("Trace", "PyTorch Profiler (0)", 0, at + still_s * 1e6, 0, {})
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events,
    }


def told(folder: Path) -> tuple[Report, list[Finding]]:
    """What the rule says of a job, asked alone: the others take most of a diagnosis."""
    with tracekit.open(folder, workers=1) as run:
        report = run.diagnose(select=["collective-hang"])
    return report, [f for f in report.document.findings if f.rule == "collective-hang"]


def found(folder: Path, traces: Mapping[int, Document]) -> tuple[Finding, ...]:
    for rank, document in traces.items():
        write_trace(folder / f"rank{rank}.json", document)
    report, findings = told(folder)
    assert (report.document.verdict.kind == "hang") == bool(findings)
    return tuple(findings)


WORLD = (0, 1, 2, 3)


def world(open_counts: Sequence[int], **options: Any) -> dict[int, Document]:
    return {
        rank: stopped(rank, [("0", WORLD, count)], **options)
        for rank, count in enumerate(open_counts)
    }


@pytest.mark.parametrize("is_numbered", [True, False])
def test_the_rank_whose_host_never_asked_is_named(tmp_path: Path, is_numbered: bool) -> None:
    (finding,) = found(tmp_path, world([3, 3, 0, 2], is_numbered=is_numbered))
    assert finding.scope.ranks == (2,)
    assert "never asked for the all_reduce (call 20 of group 0) that ranks 0-1,3" in finding.summary
    assert finding.evidence[0].query == "open_calls"
    assert finding.evidence[0].value == pytest.approx(60, abs=0.1)
    assert len(finding.evidence[0].rows) == 4


def test_where_all_asked_no_rank_is_named(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, world([1, 1, 3, 1]))
    assert finding.summary.startswith("All 4 members asked for the all_reduce (call 20")
    assert finding.scope.ranks == ()
    assert finding.owner == "network"


def test_a_member_without_a_trace_is_a_candidate(tmp_path: Path) -> None:
    traces = world([1, 1, 1, 1])
    del traces[3]
    (finding,) = found(tmp_path, traces)
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == (3,)


ONE_AWAY, ALL_ASKED = [3, 3, 0, 2], [1, 1, 1, 1]
NO_HANG: list[dict[str, Any]] = [
    {"still_s": 0},  # the profiler was stopped in the middle of a collective
    {"still_s": 29},
    {"busy_until_s": 40},  # devices work on: an evaluation, or graphs without metadata
    {"op": "wait"},  # no communication
]


@pytest.mark.parametrize(
    ("counts", "options"),
    soak(
        [(counts, options) for counts in (ONE_AWAY, ALL_ASKED) for options in NO_HANG],
        fast=[
            (ONE_AWAY, {"still_s": 29}),
            (ONE_AWAY, {"op": "wait"}),
            (ALL_ASKED, {"still_s": 29}),
        ],
    ),
)
def test_open_calls_alone_are_no_hang(
    tmp_path: Path, counts: list[int], options: dict[str, Any]
) -> None:
    assert not found(tmp_path, world(counts, **options))


def test_a_truncated_trace_accuses_nobody(tmp_path: Path) -> None:
    traces = world([3, 3, 0, 3])
    for rank, document in traces.items():
        write_trace(tmp_path / f"rank{rank}.json", document)
    cut = tmp_path / "rank2.json"
    cut.write_bytes(cut.read_bytes()[:-3])
    assert not told(tmp_path)[1]


def test_who_waits_elsewhere_is_held_up_not_holding_up(tmp_path: Path) -> None:
    """Rank 3 sleeps: rank 1 waits for it, and so never comes to the call where rank 0 waits."""
    asked: dict[int, Asked] = {
        0: [("a", (0, 1), 1), ("b", (0, 2), 0)],
        1: [("a", (0, 1), 0), ("c", (1, 3), 1)],
        2: [("b", (0, 2), 0), ("d", (2, 3), 0)],
        3: [("c", (1, 3), 0), ("d", (2, 3), 0)],
    }
    (finding,) = found(tmp_path, {rank: stopped(rank, calls) for rank, calls in asked.items()})
    assert finding.scope.ranks == (3,)


def test_ranks_that_wait_for_each_other_are_not_named(tmp_path: Path) -> None:
    asked: dict[int, Asked] = {
        0: [("a", (0, 1), 1), ("b", (0, 1, 2), 0)],
        1: [("a", (0, 1), 0), ("b", (0, 1, 2), 1)],
        2: [("b", (0, 1, 2), 1)],
    }
    traces = {r: stopped(r, calls, world=3) for r, calls in asked.items()}
    (finding,) = found(tmp_path, traces)
    assert finding.scope.ranks == ()
    assert "who holds up whom cannot be told" in finding.summary


@pytest.mark.parametrize("nccl", soak(["none", "info"], fast=["info"]))
def test_a_simulated_hang_is_found_with_and_without_logs(tmp_path: Path, nccl: str) -> None:
    write(
        bare("collective-hang", 5, "", 6, nccl=nccl),
        tmp_path / "job",
    )
    (truth,) = json.loads((tmp_path / "job" / "truth.json").read_text())["faults"]
    with tracekit.open(tmp_path / "job") as run:
        document = run.diagnose().document
    assert document.verdict.kind == "hang"
    (finding,) = [f for f in document.findings if f.rule == "collective-hang"]
    assert list(finding.scope.ranks) == truth["where"]["ranks"]
    assert finding.confidence.level == ("possible" if nccl == "none" else "likely")


def without_payloads(folder: Path) -> None:
    """As nsys exports them unless it is asked for blobs."""
    for path in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as con:
            con.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")
            con.commit()


@pytest.mark.slow
@pytest.mark.parametrize("style", ["nsys", "mixed"])
def test_a_hang_is_the_same_through_every_door(tmp_path: Path, style: str) -> None:
    """A rank of an export asked for its calls as well: its own ranges tell."""
    write(bare("collective-hang", 11, "", 4, style), tmp_path / "job")
    (truth,) = json.loads((tmp_path / "job" / "truth.json").read_text())["faults"]
    _, (finding,) = told(tmp_path / "job")
    assert list(finding.scope.ranks) == truth["where"]["ranks"]


def without_ranges(folder: Path) -> None:
    """As nsys exports them where NVTX was not traced, or NCCL was built without it."""
    for path in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as con:
            ids = "SELECT id FROM StringIds WHERE value LIKE 'nccl%'"
            con.execute(f"DELETE FROM NVTX_EVENTS WHERE textId IN ({ids})")
            con.commit()


def hung(folder: Path, style: str, layout: str = "") -> int:
    """Writes a job whose exports have no payloads; the rank that stays away."""
    write(bare("collective-hang", 11, layout, 4, style), folder)
    (truth,) = json.loads((folder / "truth.json").read_text())["faults"]
    without_payloads(folder)
    (rank,) = truth["where"]["ranks"]
    return int(rank)


@pytest.mark.slow  # another job through the same lines
def test_calls_without_payloads_are_of_the_one_communicator(tmp_path: Path) -> None:
    rank = hung(tmp_path / "job", "nsys", "ddp")
    report, (finding,) = told(tmp_path / "job")
    assert finding.scope.ranks == (rank,)
    assert "never asked for the all_reduce" in finding.summary
    assert "no rank communicates in the last 6" in " ".join(report.to_text().split())


@pytest.mark.parametrize("layout", soak(["tp2", "fsdp", "pp2-m4"], fast=["tp2"]))
@pytest.mark.slow  # another job through the same lines
def test_of_several_communicators_without_payloads_no_rank_is_accused(
    tmp_path: Path, layout: str
) -> None:
    rank = hung(tmp_path / "job", "nsys", layout)
    report, (finding,) = told(tmp_path / "job")
    assert report.document.verdict.kind == "hang"
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == (rank,)
    assert "asked for an all_" in finding.summary
    assert "--include-blobs=true" in finding.next_capture[0]


def test_launches_alone_show_that_devices_stand_still(tmp_path: Path) -> None:
    rank = hung(tmp_path / "job", "nsys", "ddp")
    without_ranges(tmp_path / "job")
    _, (finding,) = told(tmp_path / "job")
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == (rank,)
    assert "asked for work on the device that has not ended" in finding.summary


@pytest.mark.slow  # another job through the same lines
def test_beside_traces_that_list_the_group_an_exports_ranges_tell_who_asked(tmp_path: Path) -> None:
    """All ranks' one group stands under two names, which do not compete for its calls."""
    rank = hung(tmp_path / "job", "mixed")
    _, (finding,) = told(tmp_path / "job")
    assert finding.scope.ranks == (rank,)
    assert "never asked for the all_reduce" in finding.summary


def test_a_rank_whose_trace_cannot_tell_is_not_accused(tmp_path: Path) -> None:
    hung(tmp_path / "job", "mixed")
    without_ranges(tmp_path / "job")
    _, (finding,) = told(tmp_path / "job")
    assert finding.scope.ranks == ()
    assert "whose traces do not show it may not have joined" in finding.summary


@pytest.mark.parametrize(
    ("layout", "has_ranges"),
    soak(
        [(layout, has) for layout in ("ddp", "tp2") for has in (True, False)],
        fast=[("tp2", True)],
    ),
)
def test_a_healthy_export_with_launches_in_flight_is_no_hang(
    tmp_path: Path, layout: str, has_ranges: bool
) -> None:
    """The capture was stopped: what had been launched is not there, on every rank another part."""
    folder = tmp_path / "job"
    write(bare("none", 11, layout, 4, "nsys"), folder)
    without_payloads(folder)
    if not has_ranges:
        without_ranges(folder)
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    for rank in range(4):
        with closing(sqlite3.connect(folder / f"rank{rank}.sqlite")) as con:
            starts = f"SELECT start FROM {kernels} ORDER BY start DESC LIMIT 1 OFFSET {5 * rank}"
            con.execute(f"DELETE FROM {kernels} WHERE start >= ({starts})")
            con.commit()
    report, found = told(folder)
    assert not found
    assert report.document.verdict.kind != "hang"


def test_a_capture_that_goes_on_after_the_job_has_ended_is_no_hang(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    write(bare("none", 11, "tp2", 4, "nsys"), folder)
    without_payloads(folder)
    for path in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as con:
            con.execute("UPDATE ANALYSIS_DETAILS SET duration = duration + 90000000000")
            con.commit()
    report, found = told(folder)
    assert not found
    assert "no rank communicates in the last 9" in " ".join(report.to_text().split())
