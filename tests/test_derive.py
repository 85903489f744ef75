"""From source tables to ranks and the run: what each trap of real files must come to."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_tables import database

from derived_runs import MS, WHERE, Rows, job, kernel, marker, placed, process, run, trace
from soaks import examples
from tracekit.derive.run import derive
from tracekit.errors import AmbiguousInputError
from tracekit.schema import TABLES, table

DERIVED = {t.name for t in TABLES if t.kind == "derived"}


# --- shape --------------------------------------------------------------------------------------


def test_nothing_gives_empty_tables_with_the_registrys_columns() -> None:
    result = run([])
    assert set(result) == DERIVED
    for name, content in result.items():
        assert content.schema.equals(table(name).arrow_schema()), name
        assert content.num_rows == 0


def test_types_hold_with_rows() -> None:
    result = run([trace(0, "rank0.json", file_rank=0)], annotation=[marker(0, 1, 0, 10)])
    for name, content in result.items():
        assert content.schema.equals(table(name).arrow_schema()), name
    assert result["step"].num_rows == 1


# --- ranks --------------------------------------------------------------------------------------


def test_rank_from_job_before_file_before_name_before_assigned() -> None:
    description = job("[[source]]\npath = 'a.json'\nrank = 7\n[[rank]]\nrank = 6\npath = 'b.json'")
    result = run(
        [
            trace(0, "/data/a.json", file_rank=1, name_rank=2),
            trace(1, "/data/b.json", file_rank=1),
            trace(2, "/data/c_rank3.json", file_rank=1, name_rank=3),
            trace(3, "/data/rank4.json", name_rank=4),
            trace(4, "/data/host_77.json"),
            trace(5, "/data/host_8.json"),
        ],
        description,
    )
    assert placed(result, "rank", "rank_source") == [
        (7, "job_toml"),
        (6, "job_toml"),
        (1, "file"),
        (4, "name"),
        (2, "assigned"),  # host_77 comes after host_8
        (0, "assigned"),
    ]


def test_only_traces_of_ranks_have_ranks() -> None:
    result = run(
        [
            trace(0, "rank0.json", file_rank=0),
            trace(1, "rank1.json", kind="execution_trace", name_rank=1),
            trace(2, "switch.jsonl", kind="switch_counters"),
            trace(3, "rank2.json", status="unreadable", name_rank=2),
        ]
    )
    assert placed(result, *WHERE) == [
        (0, 1, 0),
        (None, None, None),
        (None, None, None),
        (2, None, None),  # known by its name, but with nothing to place
    ]
    assert result["rank"]["rank"].to_pylist() == [0]


def test_a_job_may_give_the_rank_of_any_source() -> None:
    result = run(
        [trace(0, "/data/nccl.log", kind="nccl_log")],
        job("[[source]]\npath = 'nccl.log'\nrank = 3\nattempt = 2\nhost = 'gpu-1'"),
    )
    assert placed(result, "rank", "rank_source", "attempt", "host") == [(3, "job_toml", 2, "gpu-1")]
    assert result["rank"].num_rows == 0


def test_windows_of_one_process_share_an_assigned_rank() -> None:
    result = run(
        [
            trace(0, "h_10.1.json", (0, 10), host_name="h"),
            trace(1, "h_11.1.json", (0, 10), host_name="h"),
            trace(2, "h_11.2.json", (50, 60), host_name="h"),
        ],
        process=[process(0, 10), process(1, 11), process(2, 11)],
    )
    assert placed(result, *WHERE) == [(0, 1, 0), (1, 1, 0), (1, 1, 1)]


def test_more_files_than_ranks() -> None:
    with pytest.raises(AmbiguousInputError, match=r"b\.json states no rank") as error:
        run([trace(0, "a.json", file_rank=0, world_size=1), trace(1, "b.json")])
    assert "job.toml" in (error.value.hint or "")


def test_the_same_bytes_count_once() -> None:
    notes: list[str] = []
    con = database(
        {
            "source": [
                trace(0, "copy/rank0.json", file_rank=0, sha256="aa"),
                trace(1, "a/rank0.json", file_rank=0, sha256="aa"),
            ],
            "annotation": [marker(0, 1, 0, 10), marker(1, 1, 0, 10)],
        }
    )
    result = derive(con, notes=notes)
    assert placed(result, "source_id", *WHERE) == [(1, 0, 1, 0)]  # no view shows source 0's rows
    assert result["step"]["source_id"].to_pylist() == [1]
    assert notes == ["copy/rank0.json holds the same bytes as a/rank0.json: counted once"]


# --- ranks and runs -----------------------------------------------------------------------------


def test_rank_rows() -> None:
    result = run(
        [trace(0, "a", (0, 1), file_rank=0, host_name="h"), trace(1, "b", (5, 6), file_rank=0)],
        job("[[rank]]\nrank = 0\ndevice = 'GPU-7'"),
        process=[process(0, 10, local_rank=0), process(1, 10, local_rank=0)],
        device=[
            {"source_id": 0, "ordinal": 0, "model": "H100", "uuid": "GPU-1", "is_used": True},
            {"source_id": 0, "ordinal": 1, "model": "H100", "uuid": "GPU-2", "is_used": False},
        ],
    )
    (row,) = result["rank"].to_pylist()
    assert row["pid"] == 10
    assert row["local_rank"] == 0
    assert (row["device_id"], row["device_model"]) == ("GPU-7", "H100")
    assert (row["source_id"], row["captures_count"], row["host"]) == (0, 2, "h")
    assert row["tp_rank"] is None


def test_a_device_is_named_only_where_it_is_the_only_one_used() -> None:
    result = run(
        [trace(0, "a", file_rank=0), trace(1, "b", file_rank=1), trace(2, "c", file_rank=2)],
        process=[process(0, 1), process(0, 2)],
        device=[
            {"source_id": 0, "ordinal": 0, "model": "H100", "uuid": "GPU-1", "is_used": True},
            {"source_id": 0, "ordinal": 1, "model": "H100", "uuid": "GPU-2", "is_used": True},
            {"source_id": 1, "ordinal": 0, "model": "H100", "uuid": "GPU-3", "is_used": True},
            {"source_id": 2, "ordinal": 0, "model": "H100", "pci": "0000:9a"},
        ],
    )
    rows = result["rank"].to_pylist()
    assert [r["device_id"] for r in rows] == [None, "GPU-3", "0000:9a"]
    assert [r["pid"] for r in rows] == [None, None, None]
    assert result["run"]["gpu_model"].to_pylist() == ["H100"]


def test_run_row() -> None:
    notes: list[str] = []
    rows = [
        trace(
            0,
            "a",
            (0, 10),
            file_rank=0,
            world_size=2,
            versions=["torch=2.9.0", "cuda_runtime_version=12080", "nccl=2.27.5", "driver=570"],
        ),
        trace(1, "b", (5, 20), file_rank=1, versions=["torch=2.9.1", "cuda=12.8", "nccl=unknown"]),
    ]
    (row,) = derive(database({"source": rows}), notes=notes)["run"].to_pylist()
    assert (row["start_ns"], row["end_ns"]) == (0, 20 * MS)
    assert (row["world_size"], row["world_size_source"], row["ranks_count"]) == (2, "file", 2)
    assert row["torch_version"] is None
    assert (row["cuda_version"], row["nccl_version"], row["driver_version"]) == (
        "12.8",
        "2.27.5",
        "570",
    )
    assert notes == ["the traces disagree on torch_version: 2.9.0, 2.9.1"]


def test_runtime_versions_that_are_one_number_are_decoded() -> None:
    for stated, expected in (
        ("cuda_runtime_version=12040", "12.4"),
        ("hip_runtime_version=70051831", "7.0"),
        ("hip_runtime_version=60241134", "6.2"),
        ("rocm=6.4.1", "6.4.1"),
    ):
        result = run([trace(0, "a", file_rank=0, versions=[stated])])
        assert result["run"]["cuda_version"].to_pylist() == [expected]


def test_the_job_names_the_run_and_changes_its_signature() -> None:
    rows = [trace(0, "a", file_rank=0, world_size=2)]
    (plain,) = run(rows)["run"].to_pylist()
    described = job("name = 'y'\nid = '9'\nworld_size = 4\nframework = 'megatron'")
    (named,) = run(rows, described)["run"].to_pylist()
    assert (named["job_name"], named["job_id"], named["framework"]) == ("y", "9", "megatron")
    assert (named["world_size"], named["world_size_source"]) == (4, "job_toml")
    assert named["signature"] != plain["signature"]
    (again,) = run(rows)["run"].to_pylist()
    assert again["signature"] == plain["signature"]


# --- properties ---------------------------------------------------------------------------------


def case() -> dict[str, Rows]:
    """Two attempts, two captures, three ranks, one of them without a rank of its own."""
    sources: Rows = []
    annotation: Rows = []
    processes: Rows = []
    gpu_op: Rows = []
    for capture, begin in enumerate((1000, 3000, 900_000)):
        for r in range(3):
            i = len(sources)
            rank = {"file_rank": r} if r < 2 else {}
            window = (begin + r, begin + 800 + r)
            host = f"h{r}.x"
            sources.append(
                trace(i, f"d/h{r}_{capture}.json", window, host_name=host, world_size=3, **rank)
            )
            processes.append(process(i, 100 + r + 10 * (capture == 2)))
            for n in range(6):
                dur = 100 + 60 * (n == 0 and capture == 0) + r
                start = begin + r + 130 * n
                annotation.append(marker(i, n, start, dur))
                gpu_op.append(kernel(i, n, start + 2, dur + 7))
    return {
        "source": sources,
        "annotation": annotation,
        "process": processes,
        "gpu_op": gpu_op,
    }


def shifted(tables: dict[str, Rows], by: int) -> dict[str, Rows]:
    times = ("start_ns", "window_start_ns", "window_end_ns")
    return {
        name: [{k: v + by if k in times else v for k, v in row.items()} for row in rows]
        for name, rows in tables.items()
    }


def without_times(result: Mapping[str, pa.Table]) -> dict[str, Rows]:
    times = {c.name for t in TABLES for c in t.columns if c.is_time}
    return {
        name: [{k: v for k, v in row.items() if k not in times} for row in content.to_pylist()]
        for name, content in result.items()
    }


@pytest.fixture(scope="module")
def expected() -> Iterator[dict[str, pa.Table]]:
    yield derive(database(case()))


def test_the_case_is_what_it_says(expected: dict[str, pa.Table]) -> None:
    assert placed(expected, *WHERE) == [
        (r, attempt, capture) for attempt, capture in ((1, 0), (1, 1), (2, 0)) for r in range(3)
    ]
    assert sum(expected["step"]["is_warmup"].to_pylist()) == 3


@given(st.integers(-(2**60), 2**60))
@settings(max_examples=examples(3, 40))
def test_adding_a_constant_to_all_times_changes_nothing_else(
    expected: dict[str, pa.Table], by: int
) -> None:
    moved = derive(database(shifted(case(), by)))
    assert without_times(moved) == without_times(expected)
    gpu = [
        [s["gpu_end_ns"] - s["start_ns"] for s in t["step"].to_pylist()] for t in (expected, moved)
    ]
    assert gpu[0] == gpu[1]


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(3, 40))
def test_the_order_of_sources_changes_nothing(
    expected: dict[str, pa.Table], seed: int, is_renumbered: bool
) -> None:
    """Neither the order of rows nor, apart from the ids themselves, of source ids counts."""
    tables = case()
    generator = random.Random(seed)  # noqa: S311 - a test's shuffle
    ids = list(range(len(tables["source"])))
    new = generator.sample(ids, len(ids)) if is_renumbered else ids
    for rows in tables.values():
        for row in rows:
            row["source_id"] = new[row["source_id"]]
        generator.shuffle(rows)
    result = derive(database(tables))
    back = {n: i for i, n in enumerate(new)}
    for name in DERIVED:
        rows = result[name].to_pylist()
        for row in rows:
            if "source_id" in row:
                row["source_id"] = back[row["source_id"]]
        if name == "source_context":
            rows.sort(key=lambda r: r["source_id"])
        assert rows == expected[name].to_pylist(), name
