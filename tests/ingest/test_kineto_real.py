"""Real traces: every file reads, against a slow reader that keeps exact decimals."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from memory_sink import MemorySink

from soaks import soak
from tracekit.ingest import IngestOptions, files, recognise
from tracekit.ingest.kineto import reader

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FILES = sorted([*DATA.glob("kineto/*/*.json*"), *DATA.glob("lab/*/rank*.json.gz")])
ORACLE_LIMIT_BYTES = 800_000
"""Stored size up to which a file is compared event by event."""

needs_data = pytest.mark.skipif(not FILES, reason=f"{DATA} is absent: real samples are not shipped")


def by_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


ONE_JOB = [p.parent for p in FILES if p.parent.parent.name == "lab" or "megatron" in p.parent.name]
"""Folders whose files are the ranks of one job, and so of one kind."""
ONE_OF_A_KIND = [
    p for p in FILES if p.parent not in ONE_JOB or p == min(p.parent.glob("*.json.gz"))
]
Document = tuple[list[dict[str, Any]], int]


@pytest.fixture(
    scope="module",
    params=soak(FILES, fast=ONE_OF_A_KIND) or [pytest.param(DATA, marks=needs_data)],
    ids=by_name,
)
def path(request: pytest.FixtureRequest) -> Path:
    """Each file, with all of its tests one after the other."""
    found: Path = request.param
    return found


def read(path: Path, **given: Any) -> MemorySink:
    sink = MemorySink()
    reader.read(files.source_file(path), sink, IngestOptions(stacks=True), **given)
    return sink


@pytest.fixture(scope="module")
def document(path: Path) -> Document:
    """Events and base time, as a slow reader has them; those of one file at a time are kept."""
    if path.stat().st_size > ORACLE_LIMIT_BYTES:
        pytest.skip("too large for the slow reader")
    raw = path.read_bytes()
    loaded = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw, parse_float=Decimal)
    if isinstance(loaded, list):
        return loaded, 0
    return loaded["traceEvents"], loaded.get("baseTimeNanoseconds", 0)


def complete(
    events: list[dict[str, Any]], *categories: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    for place, event in enumerate(events):
        if event.get("ph") == "X" and event.get("cat") in categories:
            yield place, event


def test_every_file_reads_without_a_complaint(path: Path) -> None:
    found = recognise(files.source_file(path))
    assert (found.kind, found.status) == ("kineto", "ok")
    sink = read(path)
    assert sink.facts["status"] == "ok"
    assert set(sink.counters) <= {"skipped_category"}
    assert sink.facts["window_start_ns"] < sink.facts["window_end_ns"]
    assert sink.facts["time_basis"] == "epoch"
    for table in ("host_op", "gpu_op", "annotation", "collective"):
        places = sink.rows(table, "place")
        assert len(set(places)) == len(places)


@pytest.mark.slow
def test_rows_are_those_of_a_slow_exact_reader(path: Path, document: Document) -> None:
    events, base = document
    sink = read(path, chunk_bytes=300_000)
    host = ("cpu_op", "cuda_runtime", "cuda_driver", "overhead")
    device = ("kernel", "gpu_memcpy", "gpu_memset")
    for table, categories in (
        ("host_op", host),
        ("gpu_op", device),
        ("python_frame", ("python_function",)),
    ):
        expected = [
            (p, base + int(Decimal(e["ts"]) * 1000), int(Decimal(e["dur"]) * 1000), e["name"])
            for p, e in complete(events, *categories)
        ]
        assert sink.rows(table, "place", "start_ns", "dur_ns", "name") == expected
    args = {p: e["args"] for p, e in complete(events, *host, *device)}
    for row in sink.rows("host_op"):
        assert row["external_id"] == args[row["place"]].get("External id")
        assert row["correlation"] == args[row["place"]].get("correlation")
        dims = args[row["place"]].get("Input Dims")
        assert row["input_dims"] == (
            None if dims is None else json.dumps(dims, separators=(",", ":"))
        )
    for row in sink.rows("gpu_op"):
        mine = args[row["place"]]
        assert (row["device"], row["stream"], row["grid"]) == (
            mine["device"],
            mine["stream"],
            mine.get("grid"),
        )


@pytest.mark.slow
def test_launches_are_those_of_a_slow_reader(path: Path, document: Document) -> None:
    events, base = document
    calls = {
        e["args"]["correlation"]: base + int(Decimal(e["ts"]) * 1000)
        for _, e in complete(events, "cuda_runtime", "cuda_driver")
        if "correlation" in e["args"]
    }
    steps = [
        (
            int(e["name"].split("#")[1]),
            base + int(Decimal(e["ts"]) * 1000),
            int(Decimal(e["dur"]) * 1000),
        )
        for _, e in complete(events, "user_annotation")
        if e["name"].startswith("ProfilerStep#")
    ]
    for row in read(path).rows("gpu_op"):
        assert row["launch_start_ns"] == calls.get(row["correlation"])
        moment = row["start_ns"] if row["launch_start_ns"] is None else row["launch_start_ns"]
        inside = [n for n, start, dur in steps if start <= moment < start + dur]
        assert row["step"] == (inside[-1] if inside else None)


@needs_data
@pytest.mark.parametrize("rank", range(8))
def test_megatron(rank: int) -> None:
    sink = read(DATA / f"kineto/megatron-tp8/megatron_kineto_{rank}.json.gz")
    assert Counter(sink.rows("gpu_op", "category"))["kernel"] == 690
    collectives = sink.rows("collective", "op", "class_source", "library", "step", "step_source")
    assert Counter(collectives) == {("all_reduce", "annotation", "nccl", 3, "launch"): 84}
    assert sink.facts["file_rank"] == sink.facts["name_rank"] == rank
    assert sink.facts["world_size"] == 8


@needs_data
def test_megatron_waiting_for_the_last() -> None:
    """The published sums of the sample, from the rows alone."""
    starts, shortest = [], 0
    ranks = [read(DATA / f"kineto/megatron-tp8/megatron_kineto_{r}.json.gz") for r in range(8)]
    rows = [r.table("collective").sort_by("start_ns").to_pylist() for r in ranks]
    for together in zip(*rows, strict=True):
        starts.append(max(r["start_ns"] for r in together) - min(r["start_ns"] for r in together))
        shortest += min(r["dur_ns"] for r in together)
    assert sum(starts) == 446708 * 1000
    assert max(starts) == 41730 * 1000
    assert shortest == 50099 * 1000


@needs_data
def test_nccl_data_has_full_metadata() -> None:
    sink = read(DATA / "kineto/hta/nccl_parser_config_nccl_data.json.gz")
    assert Counter(sink.rows("collective", "op", "class_source")) == {
        ("all_reduce", "args"): 15,
        ("broadcast", "args"): 6,
    }
    (group,) = sink.rows("process_group")
    assert (group["ranks"], group["is_ranks_complete"], group["description"]) == (
        [0, 1],
        True,
        "default_pg",
    )
    assert set(sink.rows("collective", "group_id")) == {group["group_id"]}
    assert Counter(sink.rows("gpu_op", "class")) == {
        "compute": 2679,
        "memory": 1074,
        "communication": 21,
    }


@needs_data
def test_lab_is_gloo_on_the_host() -> None:
    sink = read(DATA / "lab/pp2dp2tp2-healthy/rank0_trace.json.gz")
    ops = Counter(sink.rows("collective", "op", "timeline"))
    assert ops == {
        ("all_to_all", "host"): 32,
        ("all_reduce", "host"): 80,
        ("send", "host"): 16,
        ("recv", "host"): 16,
    }
    assert set(sink.rows("collective", "group_id")) == {None}
    described = {g["description"]: g["ranks"] for g in sink.rows("process_group")}
    assert described == {
        "default_pg": list(range(8)),
        "mesh_pp": [0, 4],
        "mesh_dp": [0, 2],
        "mesh_tp": [0, 1],
    }
    assert sink.facts["host_name"] == "vm"


@needs_data
def test_missing_rank_and_missing_distributed_info() -> None:
    rank = read(DATA / "kineto/hta/rank_unavailable_rank_not_found.json.gz").facts
    assert (rank["file_rank"], rank["backend"]) == (None, "nccl")
    info = read(
        DATA / "kineto/hta/distributed_info_unavailable_distributed_info_not_found.json.gz"
    ).facts
    assert (info["file_rank"], info["backend"], info["world_size"]) == (None, None, None)


@needs_data
def test_2021_and_rocm_and_cuda_graphs() -> None:
    old = read(DATA / "kineto/samples/resnet50_nw0_worker0.pt.trace.json.gz")
    assert Counter(old.rows("gpu_op", "category")) == {"kernel": 9538, "memset": 377, "memcpy": 12}
    assert Counter(old.rows("annotation", "domain"))["profiler_step"] == 6
    rocm = read(DATA / "kineto/tracelens/mi300_ddp_resnet18_no_pool_train_resnet18.json.gz")
    assert set(rocm.rows("gpu_op", "class")) == {"compute", "memory"}
    assert rocm.rows("gpu_op", "step", "step_source") == [(None, None)] * 2375
    graphs = read(DATA / "kineto/tracelens/inference_vllm_decode_full_graph_execution.json.gz")
    shared = Counter(graphs.rows("gpu_op", "launch_start_ns"))
    assert shared.most_common(1)[0][1] > 300, "one launch of a graph, many kernels"
    sync = read(DATA / "kineto/samples/after_fix_trace.json")
    assert sync.table("sync_op").num_rows == 2
    assert sync.table("gpu_op").num_rows == 1


@needs_data
def test_truncating_a_real_trace_invents_nothing(tmp_path: Path) -> None:
    path = DATA / "kineto/hta/timeline_analysis_sampled_rank-0.json.gz"
    packed, raw = path.read_bytes(), gzip.decompress(path.read_bytes())
    whole = set(read(path).rows("host_op", "place", "start_ns", "dur_ns", "name"))
    for number, cut in enumerate((10_000, 400_000, 900_001, len(raw) - 10)):
        for data in (raw[:cut], packed[: len(packed) * cut // len(raw)]):
            part = tmp_path / f"{number}{len(data)}.json.tmp"
            part.write_bytes(data)
            sink = read(part)
            assert set(sink.rows("host_op", "place", "start_ns", "dur_ns", "name")) <= whole
            assert sink.facts["status"] == "partial"
            assert sink.facts["is_truncated_end"] is True
