"""The recorded fixture jobs: whole, small, without machine paths, and with the fault in the trace.

Standard library only: these tests judge the recordings, not tracekit's reading of them.
"""

from __future__ import annotations

import ast
import functools
import gzip
import json
import re
import statistics
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from soaks import soak

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
RECORDED = FIXTURES / "recorded"
CASES = sorted(p.name for p in RECORDED.iterdir() if p.is_dir())
HEALTHY = [
    "ddp-healthy",
    "ddp-repeated-schedule",
    "pp-healthy",
    "pp-1f1b-healthy",
    "pp-interleaved-healthy",
    "fsdp-healthy",
    "tp-healthy",
    "ep-healthy",
]
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LIMIT_BYTES = 4_400_000
PACED = {"PacedLinear", "PacedLinearBackward", "Pace", "PaceBackward"}

Event = dict[str, Any]


@functools.cache
def truth(case: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RECORDED / case / "truth.json").read_text())
    return loaded


def files(case: str) -> list[Path]:
    return sorted((RECORDED / case).glob("*.pt.trace.json.gz"))


@functools.cache
def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return loaded


@functools.cache
def ranks(case: str) -> dict[int, list[list[Event]]]:
    """The complete events of each capture of each rank."""
    by_rank: dict[int, list[list[Event]]] = defaultdict(list)
    for path in files(case):
        loaded = document(path)
        spans = [e for e in loaded["traceEvents"] if e["ph"] == "X"]
        by_rank[loaded["distributedInfo"]["rank"]].append(spans)
    return dict(by_rank)


def steps(spans: list[Event]) -> dict[int, Event]:
    return {
        int(e["name"].removeprefix("ProfilerStep#")): e
        for e in spans
        if e["cat"] == "user_annotation" and e["name"].startswith("ProfilerStep#")
    }


def seconds_by_step(spans: list[Event], names: set[str]) -> dict[int, float]:
    """The time of the events of these names, by the step that they start in."""
    found = dict.fromkeys(steps(spans), 0.0)
    for number, step in steps(spans).items():
        for e in spans:
            if e["name"] in names and step["ts"] <= e["ts"] < step["ts"] + step["dur"]:
                found[number] += e["dur"] / 1e6
    return found


def mean_step_s(case: str) -> float:
    return statistics.fmean(
        step["dur"] / 1e6
        for captures in ranks(case).values()
        for spans in captures
        for step in steps(spans).values()
    )


def paced_ratio(case: str, rank: int) -> float:
    """The layers' time on one rank over the median of its peers'."""
    totals = {
        r: sum(e["dur"] for spans in captures for e in spans if e["name"] in PACED)
        for r, captures in ranks(case).items()
    }
    mine = totals.pop(rank)
    return float(mine / statistics.median(totals.values()))


def one_fault(case: str) -> dict[str, Any]:
    (fault,) = truth(case)["faults"]
    found: dict[str, Any] = fault
    return found


def outside(fault: dict[str, Any], per_rank: dict[int, dict[int, float]]) -> list[float]:
    """The values of all other ranks and steps."""
    return [
        value
        for rank, by_step in per_rank.items()
        for step, value in by_step.items()
        if rank not in fault["where"]["ranks"] or step not in fault["steps"]
    ]


def inside(fault: dict[str, Any], per_rank: dict[int, dict[int, float]]) -> list[float]:
    return [per_rank[rank][step] for rank in fault["where"]["ranks"] for step in fault["steps"]]


# ---------------------------------------------------------------- every recording


def test_total_size() -> None:
    total = sum(p.stat().st_size for p in RECORDED.rglob("*") if p.is_file())
    assert total < LIMIT_BYTES


def test_recorders_need_nothing_of_ours() -> None:
    """They run in an environment of their own, which has PyTorch or what else they record."""
    ours = {"tracekit", "msgspec", "polars", "duckdb", "pyarrow", "typer"}
    for path in sorted(FIXTURES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert not ours & {name.split(".")[0] for name in names}, path


def test_every_case_is_listed() -> None:
    listing = (FIXTURES / "README.md").read_text()
    assert [case for case in CASES if f"`{case}`" not in listing] == []
    assert set(HEALTHY) <= set(CASES)


@pytest.mark.parametrize("case", soak(CASES, fast=3))
def test_truth_has_the_schema(case: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((FIXTURES / "truth.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(truth(case))


@pytest.mark.parametrize("case", CASES)
def test_truth_has_the_keys(case: str) -> None:
    schema = json.loads((FIXTURES / "truth.schema.json").read_text())
    facts = truth(case)
    assert set(schema["required"]) <= set(facts)
    assert facts["name"] == case
    assert facts["origin"] == "recorded"
    assert (facts["faults"] == []) == (case in HEALTHY)
    layout = facts["layout"]
    assert layout["tp"] * layout["pp"] * layout["dp"] == facts["world_size"]
    assert layout["dp"] % layout["ep"] == 0, "experts are spread over the data parallel ranks"
    for fault in facts["faults"]:
        assert set(schema["$defs"]["fault"]["required"]) <= set(fault)
        assert set(fault["where"]["ranks"]) <= set(range(facts["world_size"]))
        assert facts["steps"]["first"] <= fault["first_step"] <= fault["last_step"]
        assert fault["last_step"] <= facts["steps"]["last"]
        assert fault["steps"][0] == fault["first_step"]
        assert fault["steps"][-1] == fault["last_step"]
        assert fault["expected_rules"]


@pytest.mark.parametrize("case", CASES)
def test_files_beside_the_traces(case: str) -> None:
    job = tomllib.loads((RECORDED / case / "job.toml").read_text())
    facts = truth(case)
    assert job["name"] == case
    assert job["clocks"]["shared"] is True
    assert facts["layout"].items() <= job["parallelism"].items()
    assert [r["rank"] for r in job["rank"]] == list(range(facts["world_size"]))
    readme = (RECORDED / case / "README.md").read_text()
    for words in ("Apache-2.0", f"--case {case}", facts["producer"]["torch"]):
        assert words in readme


@pytest.mark.parametrize("case", soak(CASES, fast=3))
def test_traces_are_whole(case: str) -> None:
    facts = truth(case)
    assert sorted(ranks(case)) == list(range(facts["world_size"]))
    expected = [set(range(c["first"], c["last"] + 1)) for c in facts["captures"]]
    for captures in ranks(case).values():
        assert [set(steps(spans)) for spans in captures] == expected
    for path in files(case):
        info = document(path)["distributedInfo"]
        assert info["world_size"] == facts["world_size"]
        assert info["backend"] == "gloo"
        assert document(path)["host_name"] == "host0"


@pytest.mark.parametrize("case", soak(CASES, fast=3))
def test_traces_name_no_machine(case: str) -> None:
    absolute = re.compile(rb'"/|[( ,:]/(?:work|tmp|home|root|usr|opt|mnt|Users)\b')
    for path in (RECORDED / case).iterdir():
        data = path.read_bytes()
        if path.suffix == ".gz":
            assert data[4:8] == b"\0\0\0\0", "the gzip header carries a time stamp"
            data = gzip.decompress(data)
        assert absolute.findall(data) == [], path.name


# ---------------------------------------------------------------- nothing wrong


@pytest.mark.parametrize("case", HEALTHY)
def test_healthy_is_steady(case: str) -> None:
    for captures in ranks(case).values():
        durations = [s["dur"] for spans in captures for s in steps(spans).values()]
        assert statistics.pstdev(durations) / statistics.fmean(durations) < 0.05
    for rank in ranks(case):
        assert paced_ratio(case, rank) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("ddp-")])
def test_every_ddp_job_reads_a_dataloader(case: str) -> None:
    per_rank = {
        rank: seconds_by_step(captures[0], {LOADER}) for rank, captures in ranks(case).items()
    }
    assert all(value > 0 for by_step in per_rank.values() for value in by_step.values())
    if case != "ddp-dataloader-stall":
        assert all(value < 0.01 for by_step in per_rank.values() for value in by_step.values())


@pytest.mark.parametrize("case", ["pp-healthy", "pp-uneven-stages", "pp-1f1b-healthy"])
def test_pipeline_has_ranges_and_messages(case: str) -> None:
    pattern = r"PP:(\d)([FB])(\d)$" if "1f1b" in case else r"()(Forward|Backward) (\d)$"
    last = truth(case)["world_size"] - 1
    for rank, captures in ranks(case).items():
        (spans,) = captures
        found = [m for e in spans if (m := re.match(pattern, e["name"]))]
        assert len(found) == len(steps(spans)) * 16
        neighbours = 1 if rank in (0, last) else 2
        for name in ("gloo:send", "gloo:recv"):
            rows = [e for e in spans if e["name"] == name]
            assert len(rows) == len(steps(spans)) * 8 * neighbours
            assert {e["tid"] for e in rows} == {steps(spans)[truth(case)["steps"]["first"]]["tid"]}


def rows_per_step(case: str, name: str) -> set[float]:
    """How often a range appears in a step, over all ranks."""
    return {sum(e["name"] == name for e in c[0]) / len(steps(c[0])) for c in ranks(case).values()}


def test_interleaved_pipeline_has_two_stages_a_rank() -> None:
    for rank, captures in ranks("pp-interleaved-healthy").items():
        (spans,) = captures
        found = [m for e in spans if (m := re.match(r"PP:(\d)([FB])(\d)$", e["name"]))]
        assert {int(m[1]) for m in found} == {rank, rank + 4}
        assert len(found) == len(steps(spans)) * 2 * 16


@pytest.mark.parametrize(
    ("case", "name", "count"),
    [
        ("fsdp-healthy", "gloo:all_gather", 6),  # a layer forward and again backward
        ("fsdp-healthy", "c10d::_reduce_scatter_base_", 3),  # gloo makes it of an all-reduce
        ("tp-healthy", "gloo:all_reduce", 7),  # the first block's input needs no gradient
        ("ep-healthy", "gloo:all_to_all", 10),
        ("ep-hot-expert", "gloo:all_to_all", 10),
    ],
)
def test_sharded_jobs_have_their_collectives(case: str, name: str, count: int) -> None:
    assert rows_per_step(case, name) == {count}


# ---------------------------------------------------------------- the faults, in the traces


def test_slow_rank_under_fsdp() -> None:
    fault = one_fault("fsdp-slow-rank")
    (rank,) = fault["where"]["ranks"]
    assert paced_ratio("fsdp-slow-rank", rank) == pytest.approx(2.0, abs=0.1)
    assert mean_step_s("fsdp-slow-rank") > 1.5 * mean_step_s("fsdp-healthy")


def test_hot_expert() -> None:
    """Dense layers take as long everywhere; the hot expert's doubles, the others' shrinks."""
    fault = one_fault("ep-hot-expert")
    (rank,) = fault["where"]["ranks"]
    dense, hot, cold = 1.0, 2.0 * 2.0, 2.0 * 2 / 3
    expected = (dense + hot) / (dense + cold)
    assert paced_ratio("ep-hot-expert", rank) == pytest.approx(expected, rel=0.05)
    assert fault["measured"]["value"] == pytest.approx(expected, rel=0.05)
    assert mean_step_s("ep-hot-expert") > 1.4 * mean_step_s("ep-healthy")


def test_slow_rank() -> None:
    fault = one_fault("ddp-slow-rank")
    (rank,) = fault["where"]["ranks"]
    assert paced_ratio("ddp-slow-rank", rank) == pytest.approx(2.0, abs=0.1)
    assert fault["measured"]["value"] == pytest.approx(2.0, abs=0.1)
    assert mean_step_s("ddp-slow-rank") > 1.7 * mean_step_s("ddp-healthy")
    counts = {r: sum(e["name"] in PACED for e in c[0]) for r, c in ranks("ddp-slow-rank").items()}
    assert len(set(counts.values())) == 1, "the same work on every rank"


def test_dataloader_stall() -> None:
    case = "ddp-dataloader-stall"
    fault = one_fault(case)
    per_rank = {r: seconds_by_step(c[0], {LOADER}) for r, c in ranks(case).items()}
    assert min(inside(fault, per_rank)) > 0.12
    assert max(outside(fault, per_rank)) < 0.01
    per_step = {n: s["dur"] / 1e6 for n, s in steps(ranks(case)[0][0]).items()}
    slow = statistics.fmean(per_step[n] for n in fault["steps"])
    fast = statistics.fmean(v for n, v in per_step.items() if n not in fault["steps"])
    assert slow - fast == pytest.approx(0.12, rel=0.15)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("ddp-gc-pause", "Python GC"),
        ("ddp-gc-pause", "<built-in function collect>"),
        ("ddp-gc-pause-stacks", "<built-in function collect>"),
    ],
)
def test_gc_pause_has_a_name(case: str, name: str) -> None:
    fault = one_fault(case)
    rows = {r: [e for e in c[0] if e["name"] == name] for r, c in ranks(case).items()}
    assert {e["cat"] for found in rows.values() for e in found} == {"python_function"}
    per_rank = {r: seconds_by_step(c[0], {name}) for r, c in ranks(case).items()}
    assert min(inside(fault, per_rank)) > 0.1
    assert max(outside(fault, per_rank)) == 0.0


@pytest.mark.parametrize("case", ["ddp-gc-pause-stacks", "ddp-gc-pause-bare"])
def test_gc_events_need_the_option(case: str) -> None:
    assert all(e["name"] != "Python GC" for c in ranks(case).values() for e in c[0])


def test_gc_pause_without_frames_is_a_silence() -> None:
    case = "ddp-gc-pause-bare"
    fault = one_fault(case)
    (rank,) = fault["where"]["ranks"]
    assert all(e["cat"] != "python_function" for c in ranks(case).values() for e in c[0])
    spans = ranks(case)[rank][0]
    silences = {}
    for number, step in steps(spans).items():
        (forward,) = (
            e
            for e in spans
            if e["name"] == "forward" and step["ts"] <= e["ts"] < step["ts"] + step["dur"]
        )
        first = min(
            e["ts"] for e in spans if e["cat"] == "cpu_op" and e["ts"] > forward["ts"] + 1.0
        )
        silences[number] = (first - forward["ts"]) / 1e6
    for number, silence in silences.items():
        assert (silence > 0.1) == (number in fault["steps"])


def test_checkpoint() -> None:
    case = "ddp-checkpoint"
    fault = one_fault(case)
    assert fault["where"]["ranks"] == list(range(truth(case)["world_size"]))
    per_rank = {r: seconds_by_step(c[0], {"save_checkpoint"}) for r, c in ranks(case).items()}
    assert min(inside(fault, per_rank)) > 0.05
    assert max(outside(fault, per_rank)) == 0.0
    for captures in ranks(case).values():
        barriers = [e for e in captures[0] if e["name"] == "gloo:barrier"]
        assert len(barriers) == len(fault["steps"])


def test_uneven_stages() -> None:
    fault = one_fault("pp-uneven-stages")
    (stage,) = fault["where"]["stages"]
    assert paced_ratio("pp-uneven-stages", stage) == pytest.approx(2.0, abs=0.1)
    assert mean_step_s("pp-uneven-stages") > 1.4 * mean_step_s("pp-healthy")


def test_repeated_schedule_has_two_captures() -> None:
    case = "ddp-repeated-schedule"
    assert len(truth(case)["captures"]) == 2
    assert [len(captures) for captures in ranks(case).values()] == [2, 2]
    for path in files(case):
        assert re.fullmatch(r"rank\d\.\d{19}\.pt\.trace\.json\.gz", path.name)
