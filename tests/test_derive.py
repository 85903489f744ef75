"""The derive step on hand-written source tables; times in the tests are in milliseconds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_tables import database

from soaks import examples
from tracekit.derive.infer import group_dimension, infer_job
from tracekit.derive.placement.hosts import canonical
from tracekit.derive.placement.sources import natural
from tracekit.derive.run import derive
from tracekit.derive.steps import warmup_count
from tracekit.errors import AmbiguousInputError
from tracekit.job import JobDescription, parse_job
from tracekit.schema import TABLES, table

MS = 1_000_000
DAY = 86_400_000
Rows = list[dict[str, Any]]
DERIVED = {t.name for t in TABLES if t.kind == "derived"}


def trace(
    source_id: int, path: str, window: tuple[int, int] | None = (0, 100), **facts: Any
) -> dict[str, Any]:
    """A usable trace of one rank that covers ``window``, in ms."""
    return {
        "source_id": source_id,
        "path": path,
        "kind": "kineto",
        "status": "ok",
        "time_basis": "epoch",
        "window_start_ns": window[0] * MS if window else None,
        "window_end_ns": window[1] * MS if window else None,
        **facts,
    }


def process(source_id: int, pid: int, **facts: Any) -> dict[str, Any]:
    return {"source_id": source_id, "pid": pid, **facts}


def marker(source_id: int, step: int, start: float, dur: float, **facts: Any) -> dict[str, Any]:
    return {
        "source_id": source_id,
        "place": step,
        "domain": "profiler_step",
        "step": step,
        "start_ns": int(start * MS),
        "dur_ns": int(dur * MS),
        "is_gpu_twin": False,
        **facts,
    }


def kernel(source_id: int, step: int | None, start: float, dur: float) -> dict[str, Any]:
    return {
        "source_id": source_id,
        "place": int(start * 1000),
        "start_ns": int(start * MS),
        "dur_ns": int(dur * MS),
        "step": step,
    }


def job(text: str) -> JobDescription:
    return parse_job(text.encode(), "/data/job.toml")


def run(
    sources: Rows, description: JobDescription | None = None, /, **tables: Rows
) -> dict[str, pa.Table]:
    return derive(database({"source": sources, **tables}), description)


def placed(result: Mapping[str, pa.Table], *columns: str) -> list[tuple[Any, ...]]:
    """Columns of source_context, in order of source_id."""
    rows = result["source_context"].sort_by("source_id").to_pylist()
    return [tuple(row[c] for c in columns) for row in rows]


WHERE = ("rank", "attempt", "capture_id")


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


def test_natural_order_of_paths() -> None:
    assert sorted(["r10", "r9", "a/r1", "r", "10"], key=natural) == ["10", "a/r1", "r", "r9", "r10"]


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


# --- captures -----------------------------------------------------------------------------------


def test_a_rank_that_misses_a_window_does_not_shift_the_others() -> None:
    result = run(
        [
            trace(0, "r0.a", (0, 10), file_rank=0),
            trace(1, "r0.b", (100, 110), file_rank=0),
            trace(2, "r0.c", (200, 210), file_rank=0),
            trace(3, "r1.a", (1, 11), file_rank=1),
            trace(4, "r1.c", (201, 212), file_rank=1),
        ]
    )
    assert placed(result, "rank", "capture_id") == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)]
    assert result["rank"]["captures_count"].to_pylist() == [3, 2]


def test_clocks_of_hosts_may_differ_by_seconds() -> None:
    """Windows of 1 s every minute; the clock of h1 is 3 s ahead."""
    rows = []
    for k in range(3):
        start = 60_000 * k
        rows.append(trace(k, f"h0_{k}", (start, start + 1000), file_rank=0, host_name="h0"))
        start += 3000
        rows.append(trace(3 + k, f"h1_{k}", (start, start + 1000), file_rank=1, host_name="h1"))
    assert placed(run(rows), "capture_id") == [(0,), (1,), (2,), (0,), (1,), (2,)]


def test_windows_of_one_host_are_never_joined() -> None:
    rows = [
        trace(0, "a", (0, 10), file_rank=0, host_name="h"),
        trace(1, "b", (20, 30), file_rank=1, host_name="h"),
    ]
    assert placed(run(rows), "capture_id") == [(0,), (1,)]


def test_a_skewed_clock_may_bridge_two_windows() -> None:
    """Rank 1 is 6 ms ahead: its first window overlaps both of rank 0's neighbours."""
    rows = [
        trace(0, "r0.a", (0, 10), file_rank=0),
        trace(1, "r0.b", (12, 22), file_rank=0),
        trace(2, "r1.a", (6, 16), file_rank=1),
        trace(3, "r1.b", (18, 28), file_rank=1),
        trace(4, "r2.b", (13, 23), file_rank=2),
    ]
    assert placed(run(rows), "capture_id") == [(0,), (1,), (0,), (1,), (1,)]


def test_times_on_an_unknown_zero_are_matched_by_order() -> None:
    rows = [
        trace(0, "r0.a", (0, 10), file_rank=0, time_basis="relative"),
        trace(1, "r0.b", (20, 30), file_rank=0, time_basis="relative"),
        trace(2, "r1.a", (5000, 5010), file_rank=1, time_basis="relative"),
        trace(3, "r1.b", (5020, 5030), file_rank=1, time_basis="relative"),
    ]
    result = run(rows)
    assert placed(result, "capture_id") == [(0,), (1,), (0,), (1,)]
    assert len(set(placed(result, "clock_id"))) == 4
    assert result["clock"]["kind"].to_pylist() == ["monotonic"] * 4
    assert result["run"]["start_ns"].to_pylist() == [None]


def test_files_without_times_are_one_capture() -> None:
    rows = [
        trace(0, "a", None, file_rank=0, time_basis="none"),
        trace(1, "b", None, file_rank=1, time_basis="none"),
        trace(2, "c", (5, 10), file_rank=2),
    ]
    assert placed(run(rows), *WHERE) == [(0, 1, 0), (1, 1, 0), (2, 1, 0)]


# --- attempts -----------------------------------------------------------------------------------


def test_another_process_in_a_later_window_is_the_next_attempt() -> None:
    """Rank 1 has no file in the first attempt: it belongs to the one that it ran in."""
    result = run(
        [
            trace(0, "r0.a", (0, 10), file_rank=0),
            trace(1, "r0.b", (100, 110), file_rank=0),
            trace(2, "r0.c", (500, 510), file_rank=0),
            trace(3, "r1.c", (501, 511), file_rank=1),
        ],
        process=[process(0, 70), process(1, 70), process(2, 71), process(3, 72)],
    )
    assert placed(result, *WHERE) == [(0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 2, 0)]
    rows = result["run"].to_pylist()
    assert [(r["attempt"], r["ranks_count"], r["start_ns"] // MS) for r in rows] == [
        (1, 1, 0),
        (2, 2, 500),
    ]


def test_another_host_in_a_later_window_is_the_next_attempt() -> None:
    rows = [
        trace(0, "a", (0, 10), file_rank=0, host_name="pod-1"),
        trace(1, "b", (50, 60), file_rank=0, host_name="pod-2"),
    ]
    assert placed(run(rows, process=[process(0, 1), process(1, 1)]), "attempt") == [(1,), (2,)]


def test_another_gpu_model_in_a_later_window_is_the_next_attempt() -> None:
    rows = [trace(0, "a", (0, 10), file_rank=0), trace(1, "b", (50, 60), file_rank=0)]
    devices = [
        {"source_id": i, "ordinal": 0, "model": m, "is_used": True}
        for i, m in enumerate(("H100", "MI300X"))
    ]
    assert placed(run(rows, device=devices), "attempt") == [(1,), (2,)]


@pytest.mark.parametrize("evidence", ["markers", "named", "ranges"])
def test_the_process_is_that_of_the_markers_else_a_named_one_else_any(evidence: str) -> None:
    """Kineto names a process for each device ordinal too: 0 to 7 here."""
    rows = [trace(0, "a", (0, 10), file_rank=0), trace(1, "b", (50, 60), file_rank=0)]
    named = [process(i, p) for i in (0, 1) for p in (*range(8), 5000)]
    tables: dict[str, Rows] = {}
    if evidence == "markers":
        tables = {"process": named}
        tables["annotation"] = [marker(i, 1, 50 * i, 10, pid=900 + i) for i in (0, 1)]
        tables["annotation"].append(marker(1, 1, 50, 10, pid=900, place=7, is_gpu_twin=True))
    elif evidence == "named":
        tables = {"process": [*named[:8], process(0, 900), *named[9:17], process(1, 901)]}
    else:
        tables["annotation"] = [
            marker(i, 1, 50 * i, 10, pid=900 + i, domain="user") for i in (0, 1)
        ]
    result = run(rows, **tables)
    assert placed(result, "attempt") == [(1,), (2,)]
    assert result["rank"]["pid"].to_pylist() == [900, 901]


def test_without_known_processes_windows_stay_in_one_attempt() -> None:
    rows = [trace(0, "a", (0, 10), file_rank=0), trace(1, "b", (9000, 9010), file_rank=0)]
    assert placed(run(rows), "attempt", "capture_id") == [(1, 0), (1, 1)]


def test_a_folder_of_many_single_runs_is_as_many_attempts() -> None:
    """What TensorBoard's handler leaves: {host}_{pid}.{time}.pt.trace.json, and no ranks."""
    rows = [
        trace(i, f"log/h_{pid}.{i}.pt.trace.json", (DAY * i, DAY * i + 5), host_name="h")
        for i, pid in enumerate((300, 200, 100))
    ]
    notes: list[str] = []
    processes = [process(0, 300), process(1, 200), process(2, 100)]
    result = derive(database({"source": rows, "process": processes}), notes=notes)
    assert placed(result, *WHERE) == [(0, 1, 0), (0, 2, 0), (0, 3, 0)]
    assert notes[0].startswith("3 files state no rank; numbers were assigned")
    assert notes[1].startswith("3 attempts: between captures ranks became other processes")


def test_the_job_may_number_attempts() -> None:
    rows = [
        trace(0, "/data/a/r0", (0, 10), file_rank=0, world_size=4),
        trace(1, "/data/b/r0", (5, 15), file_rank=0, world_size=8),
        trace(2, "/data/c/r0", (50, 60), file_rank=0, world_size=8),
    ]
    description = job(
        "[[source]]\npath = 'a/*'\nattempt = 1\n[[source]]\npath = 'b/*'\nattempt = 3"
    )
    assert placed(run(rows, description), "attempt") == [(1,), (3,), (2,)]


# --- files that cannot be one attempt -----------------------------------------------------------


def two_worlds() -> Rows:
    return [
        trace(0, "x/a.json", (0, 10), file_rank=0, world_size=2),
        trace(1, "x/b.json", (DAY, DAY + 10), file_rank=0, world_size=128),
        trace(2, "x/c.json", (DAY, DAY + 10), file_rank=1, world_size=128),
    ]


def test_different_world_sizes_name_the_candidates() -> None:
    with pytest.raises(AmbiguousInputError) as error:
        run(two_worlds())
    assert error.value.message == (
        "these files cannot be one attempt of one job: they state different world sizes (2, 128)."
        " Candidates:\n"
        "  --attempt 1: world size 2, ranks 0, 1 file: x/a.json\n"
        "  --attempt 2: world size 128, ranks 0-1, 2 files, in x: x/b.json, x/c.json"
    )
    assert "--window" in (error.value.hint or "")


def test_a_candidate_is_chosen_by_number_or_by_window() -> None:
    for choice in ({"attempt": 2}, {"window_ns": (DAY * MS, None)}):
        result = derive(database({"source": two_worlds()}), **choice)
        assert placed(result, "source_id", "rank") == [(1, 0), (2, 1)]
        assert result["run"]["world_size"].to_pylist() == [128]
    with pytest.raises(AmbiguousInputError, match="different world sizes"):
        derive(database({"source": two_worlds()}), attempt=3)


def test_concurrent_jobs_are_told_apart_by_folder() -> None:
    rows = [
        trace(4 * j + r, f"{folder}/rank{r}.json", (0, 10), file_rank=r, world_size=4)
        for j, folder in enumerate(("jobB", "jobA"))
        for r in range(4)
    ]
    with pytest.raises(AmbiguousInputError) as error:
        run(rows)
    assert "rank 0 has two overlapping windows" in error.value.message
    assert "--attempt 1: world size 4, ranks 0-3, 4 files, in jobA: " in error.value.message
    assert "--attempt 2: world size 4, ranks 0-3, 4 files, in jobB: " in error.value.message
    chosen = derive(database({"source": rows}), attempt=2)
    assert chosen["rank"]["source_id"].to_pylist() == [0, 1, 2, 3]


Y2022, Y2024 = 1_650_000_000_000, 1_715_000_000_000
"""Moments of two years, in ms since the epoch."""


def test_traces_of_different_years_are_never_one_job() -> None:
    rows = [
        trace(0, "x/a.json", (Y2022, Y2022 + 10), file_rank=0),
        trace(1, "x/b.json", (Y2024, Y2024 + 10), file_rank=0),
        trace(2, "x/c.json", (Y2024 + DAY, Y2024 + DAY + 10), file_rank=1),
    ]
    with pytest.raises(AmbiguousInputError) as error:
        run(rows)
    assert error.value.message == (
        "these files cannot be one attempt of one job: 752 days lie between them. Candidates:\n"
        "  --attempt 1: world size unknown, ranks 0, 1 file: x/a.json\n"
        "  --attempt 2: world size unknown, ranks 0-1, 2 files, in x: x/b.json, x/c.json"
    )
    chosen = derive(database({"source": rows}), attempt=2)
    assert chosen["rank"]["source_id"].to_pylist() == [1, 2]
    given = parse_job(b'[[source]]\npath = "**"\nattempt = 1\n', "x/job.toml")
    assert {a for _, a in placed(run(rows, given), "source_id", "attempt")} == {1}


def test_what_may_be_one_job_stays_one() -> None:
    months = 5 * 30 * DAY
    rows = [
        trace(0, "x/a.json", (Y2024, Y2024 + 10), file_rank=0),
        # Another capture months later, a clock that nobody had set, one without the epoch.
        trace(1, "x/b.json", (Y2024 + months, Y2024 + months + 10), file_rank=0),
        trace(2, "x/c.json", (DAY, DAY + 10), file_rank=1),
        trace(3, "x/d.json", (0, 10), file_rank=2, time_basis="relative"),
        # Counters and logs of years before and after belong to nobody's attempt.
        {**trace(4, "x/smi.csv", (Y2022, Y2024 + 10 * months)), "kind": "nvidia_smi"},
    ]
    assert dict(placed(run(rows), "source_id", "attempt")) == {0: 1, 1: 1, 2: 1, 3: 1, 4: None}


def test_a_second_file_of_one_rank_is_a_candidate_of_its_own() -> None:
    rows = [
        trace(0, "n0/rank0.json", file_rank=0),
        trace(1, "n0/rank1.json", file_rank=1),
        trace(2, "n1/rank2.json", file_rank=2),
        trace(3, "n1/rank2_again.json", (1, 101), file_rank=2),
    ]
    with pytest.raises(AmbiguousInputError) as error:
        run(rows)
    assert "--attempt 1: world size unknown, ranks 0-2, 3 files: " in error.value.message
    assert "--attempt 2: world size unknown, ranks 2, 1 file: n1/rank2_again" in error.value.message


def test_a_hidden_overlap_is_found() -> None:
    """The long window covers the third although the second lies between their starts."""
    rows = [
        trace(0, "a", (0, 100), file_rank=0),
        trace(1, "b", (99, 100), file_rank=1),
        trace(2, "c", (50, 60), file_rank=0),
    ]
    with pytest.raises(AmbiguousInputError, match=r"rank 0 has two overlapping windows \(a, c\)"):
        run(rows)


def test_one_rank_twice_without_times_cannot_be_ordered() -> None:
    rows = [
        trace(0, "a", None, file_rank=0, time_basis="none"),
        trace(1, "b", (5, 10), file_rank=0),
    ]
    with pytest.raises(AmbiguousInputError, match="rank 0 has two files without comparable times"):
        run(rows)


def test_a_rank_outside_the_world() -> None:
    rows = [trace(0, "a", file_rank=0, world_size=2), trace(1, "b", file_rank=2)]
    with pytest.raises(AmbiguousInputError, match="b is rank 2 of a job of 2 ranks"):
        run(rows)


def test_gpu_work_that_outlives_its_window_is_no_overlap() -> None:
    rows = [
        trace(0, "a", (0, 1000), file_rank=0),
        trace(1, "b", (995, 2000), file_rank=0),
    ]
    assert placed(run(rows), "capture_id") == [(0,), (1,)]


def test_attempts_given_by_the_job_are_checked_too() -> None:
    description = job("[[source]]\npath = '*'\nattempt = 4")
    rows = [trace(0, "/data/a", file_rank=0), trace(1, "/data/b", file_rank=0)]
    with pytest.raises(AmbiguousInputError, match="--attempt 4: "):
        run(rows, description)


def test_windows_and_worlds_that_cannot_be_meant_are_forgotten() -> None:
    rows = [
        trace(0, "a", (10, 0), file_rank=0, world_size=0),
        trace(1, "b", (5, 10), file_rank=1, world_size=2),
        trace(2, "c", (0, 5), file_rank=-1, time_basis="none"),
    ]
    result = run(rows[:2])
    assert placed(result, *WHERE) == [(0, 1, 0), (1, 1, 0)]
    assert result["run"]["start_ns"].to_pylist() == [5 * MS]
    assert placed(run(rows[2:]), "rank", "rank_source") == [(0, "assigned")]


def test_files_that_nothing_tells_apart_are_named_but_not_mixed() -> None:
    """Forty traces of one rank at one time: 31 candidates, and one that holds the rest."""
    rows = [trace(i, f"{i}.json", file_rank=0) for i in range(40)]
    with pytest.raises(AmbiguousInputError, match=r"overlapping windows \(0\.json, 1\.json\)"):
        run(rows)
    con = database({"source": rows})
    assert derive(con, attempt=3)["rank"]["source_id"].to_pylist() == [2]
    with pytest.raises(AmbiguousInputError, match=r"overlapping windows \(31\.json, 32\.json\)"):
        derive(con, attempt=32)


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(0, 3),
            st.none() | st.tuples(st.integers(0, 300), st.integers(0, 60)),
            st.sampled_from(["epoch", "relative"]),
            st.none() | st.sampled_from(["h0", "h1"]),
            st.none() | st.integers(1, 3),
        ),
        max_size=8,
    ),
)
@settings(max_examples=examples(15, 150), deadline=None)
def test_every_used_file_has_a_place_of_its_own(files: list[tuple[Any, ...]]) -> None:
    rows, processes = [], []
    for i, (rank, window, basis, host, pid) in enumerate(files):
        span = (window[0], window[0] + window[1]) if window else None
        rows.append(trace(i, f"f{i}", span, file_rank=rank, time_basis=basis, host_name=host))
        if pid is not None:
            processes.append(process(i, pid))
    try:
        result = run(rows, process=processes)
    except AmbiguousInputError as error:
        assert "Candidates:" in error.message
        return
    places = placed(result, *WHERE)
    assert len(set(places)) == len(files)
    assert not any(None in place for place in places)
    for attempt in {a for _, a, _ in places}:
        numbers = {c for _, a, c in places if a == attempt}
        assert numbers == set(range(len(numbers)))


def test_many_candidates_are_counted() -> None:
    rows = [trace(i, f"{i}/rank0.json", file_rank=0, world_size=i + 1) for i in range(20)]
    with pytest.raises(AmbiguousInputError, match="and 12 more"):
        run(rows)


# --- hosts and clocks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Gpu-11.Cluster.local", "gpu-11"),
        ("gpu-11", "gpu-11"),
        ("10.0.0.7", "10.0.0.7"),
        ("fe80::1", "fe80::1"),
        (" h. ", "h"),
    ],
)
def test_canonical_host(name: str, short: str) -> None:
    assert canonical(name) == short


def test_hosts_are_short_names_and_the_rest_are_aliases() -> None:
    result = run(
        [
            trace(0, "a", file_rank=0, host_name="GPU-1.cluster"),
            trace(1, "b", file_rank=1, host_name="gpu-1"),
            trace(2, "c", file_rank=2, host_name="10.0.0.7"),
            trace(3, "d", file_rank=3, host_name="localhost"),
            trace(4, "e", file_rank=4),
        ]
    )
    assert placed(result, "host", "host_source") == [
        ("gpu-1", "file"),
        ("gpu-1", "file"),
        ("10.0.0.7", "file"),
        (None, None),
        (None, None),
    ]
    assert result["host"].to_pylist() == [
        {"host": "10.0.0.7", "host_source": "file", "ranks_count": 1},
        {"host": "gpu-1", "host_source": "file", "ranks_count": 2},
    ]
    assert result["host_alias"].to_pylist() == [
        {"host": "gpu-1", "alias": "GPU-1.cluster", "kind": "fqdn", "alias_source": "file"}
    ]
    # One clock a host, and one for each file whose host is unknown.
    assert [c[0] for c in placed(result, "clock_id")] == [1, 1, 0, 2, 3]


def test_full_names_that_share_their_short_form_stay_whole() -> None:
    rows = [
        trace(0, "a", file_rank=0, host_name="gpu-1.rack-a"),
        trace(1, "b", file_rank=1, host_name="gpu-1.rack-b"),
    ]
    assert placed(run(rows), "host") == [("gpu-1.rack-a",), ("gpu-1.rack-b",)]


def test_the_jobs_host_replaces_the_traces() -> None:
    """As in the lab: four network namespaces of one machine, one clock."""
    description = job(
        "[clocks]\nshared = true\n[[rank]]\nrank = 0\nhost = 'host0'\n"
        "[[rank]]\nrank = 1\nhost = 'host1'\n"
    )
    notes: list[str] = []
    rows = [
        trace(0, "a", file_rank=0, host_name="vm", time_resolution_ns=1),
        trace(1, "b", file_rank=1, host_name="vm", time_resolution_ns=1000),
        trace(2, "s", kind="switch", time_basis="epoch"),
    ]
    result = derive(database({"source": rows}), description, notes=notes)
    assert placed(result, "host", "host_source", "clock_id") == [
        ("host0", "job_toml", 0),
        ("host1", "job_toml", 0),
        (None, None, 0),
    ]
    assert [(a["host"], a["alias"]) for a in result["host_alias"].to_pylist()] == [
        ("host0", "vm"),
        ("host1", "vm"),
    ]
    assert result["clock"].to_pylist() == [
        {
            "clock_id": 0,
            "kind": "realtime",
            "host": None,
            "resolution_ns": 1000,
            "basis": "epoch",
            "is_shared": True,
        }
    ]
    assert notes == ["hosts of the job description replace the traces' own (vm)"]


def test_an_assigned_rank_gets_its_host_from_the_job() -> None:
    result = run([trace(0, "a")], job("[[rank]]\nrank = 0\nhost = 'host0'"))
    assert placed(result, "host") == [("host0",)]


def test_no_offset_is_applied() -> None:
    result = run([trace(0, "a", file_rank=0)])
    assert placed(result, "offset_ns", "drift_ratio") == [(0, 0.0)]
    assert result["clock_offset"].num_rows == 0


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


# --- steps --------------------------------------------------------------------------------------


def steps(annotation: Rows, gpu_op: Rows = (), **facts: Any) -> Rows:  # type: ignore[assignment]
    source = trace(0, "a", facts.pop("window", (0, 10_000)), file_rank=0, **facts)
    rows: Rows = run([source], annotation=annotation, gpu_op=list(gpu_op))["step"].to_pylist()
    return rows


def test_a_step_is_its_marker_and_the_gpu_work_that_it_launched() -> None:
    (row,) = steps(
        [
            marker(0, 5, 10, 20),
            marker(0, 5, 12, 30, is_gpu_twin=True),
            marker(0, 5, 10, 20, place=99),
            marker(0, 6, 10, 20, domain="user"),
        ],
        [kernel(0, 5, 12, 3), kernel(0, 5, 40, 5), kernel(0, None, 90, 5)],
    )
    assert row == {
        "attempt": 1,
        "rank": 0,
        "capture_id": 0,
        "step": 5,
        "file_step": 5,
        "source_id": 0,
        "start_ns": 10 * MS,
        "end_ns": 30 * MS,
        "dur_ns": 20 * MS,
        "gpu_start_ns": 12 * MS,
        "gpu_end_ns": 45 * MS,
        "is_warmup": False,
        "is_partial": False,
        "step_source": "annotation",
    }


def partial(rows: Rows) -> list[int]:
    return [r["step"] for r in rows if r["is_partial"]]


def test_steps_that_reach_beyond_the_window_are_partial() -> None:
    rows = [marker(0, 1, 0, 10), marker(0, 2, 10, 10), marker(0, 3, 20, 10)]
    assert partial(steps(rows, window=(0, 30))) == []
    assert partial(steps(rows, window=(2, 25))) == [1, 3]
    assert partial(steps(rows, window=(0, 29.95))) == []


def test_the_first_step_of_a_file_without_its_start_is_partial() -> None:
    rows = [marker(0, 1, 0, 10), marker(0, 2, 10, 10)]
    assert partial(steps(rows, window=(0, 20), is_truncated_start=True)) == [1]


def test_a_step_that_the_profiler_stopped_in_is_partial() -> None:
    """As in a real trace of two markers: 9288 us and 49 us."""
    assert partial(steps([marker(0, 1, 0, 9.288), marker(0, 2, 9.3, 0.049)])) == [2]
    assert partial(steps([marker(0, 1, 0, 10), marker(0, 2, 10, 1.1)])) == []


def test_steps_of_a_file_that_breaks_off_are_partial_where_gpu_work_is_missing() -> None:
    markers = [marker(0, n, 10 * n, 10) for n in range(5)]
    work = [kernel(0, n, 10 * n + k, 1) for n in range(5) for k in range(10)]
    lost = [k for k in work if k["step"] != 2 or k["place"] % 10_000 < 8000]
    assert partial(steps(markers, lost)) == []
    assert partial(steps(markers, lost, is_truncated_end=True, status="partial")) == [2, 4]


def test_a_file_that_breaks_off_may_have_lost_the_work_of_most_steps() -> None:
    """Its median step is then an empty one: the fullest tell what a step holds."""
    markers = [marker(0, n, 10 * n, 10) for n in range(5)]
    work = [kernel(0, n, 10 * n + k, 1) for n in range(5) for k in range(10)]
    first = [k for k in work if k["step"] == 0]
    assert partial(steps(markers, first)) == []
    assert partial(steps(markers, first, is_truncated_end=True, status="partial")) == [1, 2, 3, 4]


def test_captures_may_claim_the_same_number() -> None:
    result = run(
        [trace(0, "a", (0, 10), file_rank=0), trace(1, "b", (50, 60), file_rank=0)],
        annotation=[marker(0, 3, 0, 10), marker(1, 3, 50, 10)],
    )
    keys = [(r["capture_id"], r["step"]) for r in result["step"].to_pylist()]
    assert keys == [(0, 3), (1, 3)]


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([], 0),
        ([9, 1], 0),  # which of two is the usual one cannot be known
        ([1.11, 1, 1], 1),
        ([1.10, 1, 1], 0),  # not over the limit
        ([3, 3, 1, 1, 1], 0),  # only the first of few, and it must stand out
        ([1.2, 1, 1.3, 1, 1], 0),
        ([9, 1, 1, 1, 1, 1], 1),
        ([9, 5, 1, 1, 1, 1], 2),
        ([9, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1], 3),
        ([9] * 5 + [1] * 7, 0),  # more than a third: a change, not a warm-up
        ([1, 1, 1, 1, 1, 1, 9, 1], 0),
        ([1] * 6 + [2] * 6, 0),  # slower later is no warm-up
        ([4, 1, 1.5, 1, 1.5, 1, 1.5, 1, 1.5], 1),
        ([1.4, 1, 1.5, 1, 1.5, 1, 1.5, 1, 1.5], 0),  # steps scatter: the first is nothing special
        ([5] * 12, 0),
        ([0] * 12, 0),
        ([5, 1, 1, 1, 1, 5, 1, 1, 1, 1], 0),  # what strikes every fifth step struck the first too
        ([5, 1, 1, 1, 1, 3.9, 1, 1, 1, 1], 1),  # no later step comes near it
        ([5.6, 5.6, 0.8, 0.8, 0.8, 5.1, 5.1, 0.8, 0.8, 0.8, 4, 4, 0.8, 0.8], 0),  # saves differ
        ([9, 5, 1, 1, 1, 1, 5, 1, 1, 1], 1),
        ([5, 1, 1, 5], 0),
    ],
)
def test_warmup_count(durations: Sequence[float], expected: int) -> None:
    assert warmup_count(durations) == expected


@given(st.lists(st.floats(0.1, 10), max_size=40), st.sampled_from([0.25, 2.0, 1024.0]))
def test_warmup_does_not_depend_on_the_unit(durations: list[float], factor: float) -> None:
    count = warmup_count(durations)
    assert count == warmup_count([d * factor for d in durations])
    assert count <= max(1, len(durations) // 3)


def test_ranks_agree_on_warmup() -> None:
    """Only rank 1 is slow in step 0, and step 0 of both is warm-up; the cut step counts not."""
    rows = [trace(0, "a", file_rank=0), trace(1, "b", file_rank=1)]
    annotation = [
        marker(r, n, 10 * n, 9 + 11 * (r == 1 and n == 0)) for r in (0, 1) for n in range(8)
    ]
    result = run(rows, annotation=annotation)["step"].to_pylist()
    assert [(r["rank"], r["step"]) for r in result if r["is_warmup"]] == [(0, 0), (1, 0)]


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
@settings(max_examples=examples(3, 40), deadline=None)
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
@settings(max_examples=examples(3, 40), deadline=None)
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


# --- the inferred job description ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "dimension"),
    [
        (("mesh_tp", "5"), "tp"),
        (("mesh_dp_shard",), "dp_shard"),
        (("mesh_fsdp",), "dp"),
        (("TENSOR_MODEL_PARALLEL_GROUP",), "tp"),
        (("_PIPELINE_MODEL_PARALLEL_GROUP", None), "pp"),
        ((None, "mesh_cp"), "cp"),
        (("default_pg", "0"), None),
        (("undefined",), None),
        (("mesh_xy",), None),
        ((None, None), None),
    ],
)
def test_group_dimension(names: tuple[str | None, ...], dimension: str | None) -> None:
    assert group_dimension(*names) == dimension


def group(source_id: int, description: str, size: int) -> dict[str, Any]:
    return {
        "source_id": source_id,
        "group_id": f"{description}{source_id}",
        "name": str(source_id),
        "description": description,
        "group_size": size,
    }


def inferred(
    groups: Rows, world: int = 8, description: JobDescription | None = None, **facts: Any
) -> tuple[JobDescription, dict[str, str]]:
    source = trace(
        0, "a", file_rank=0, world_size=world, backend="nccl", host_name="gpu-1", **facts
    )
    device = [{"source_id": 0, "ordinal": 0, "model": "H100", "is_used": True}]
    con = database({"source": [source], "process_group": groups, "device": device})
    return infer_job(con, derive(con, description), description)


def test_sizes_come_from_named_groups() -> None:
    found, said = inferred([group(0, "mesh_tp", 2), group(0, "mesh_pp", 2), group(0, "mesh_dp", 2)])
    sizes = found.parallelism
    assert (sizes.tp, sizes.pp, sizes.dp, sizes.ep, sizes.cp) == (2, 2, 2, None, None)
    assert said["parallelism.tp"] == "inferred from process group mesh_tp"
    assert (found.world_size, found.backend, found.hardware.gpu) == (8, "nccl", "H100")
    assert found.hardware.gpus_per_node is None  # one of eight ranks was seen
    assert [(r.rank, r.host) for r in found.rank] == [(0, "gpu-1")]
    assert said["rank.0.rank"] == "inferred from the file itself"


def test_shards_and_replicas_multiply() -> None:
    found, said = inferred([group(0, "mesh_dp_shard", 4), group(0, "mesh_dp_replicate", 2)])
    assert found.parallelism.dp == 8
    assert said["parallelism.dp"] == "inferred from process group mesh_dp_replicate x mesh_dp_shard"


def test_ambiguous_sizes_stay_unknown_and_say_why() -> None:
    found, said = inferred([group(0, "mesh_tp", 2), {**group(0, "mesh_tp", 4), "group_id": "x"}])
    assert found.parallelism.tp is None
    assert said["parallelism.tp"] == "groups named mesh_tp have 2 and 4 ranks"


def test_sizes_that_do_not_fit_the_world_stay_unknown() -> None:
    found, said = inferred([group(0, "mesh_tp", 3)])
    assert found.parallelism.tp is None
    assert said["parallelism.tp"] == "tp3 does not divide the world of 8 ranks"


def test_the_users_word_wins_and_a_contradiction_is_noted() -> None:
    given = job("[parallelism]\ntp = 4\ncp = 2\n[[rank]]\nrank = 0\nhost = 'Host0'")
    found, said = inferred([group(0, "mesh_tp", 2), group(0, "mesh_pp", 2)], 8, given)
    assert (found.parallelism.tp, found.parallelism.pp, found.parallelism.cp) == (4, 2, 2)
    assert [n.split(" (")[0] for n in found.notes] == ["parallelism.tp: 2 against 4"]
    assert said["parallelism.tp"] == "given in /data/job.toml"
    assert said["parallelism.pp"] == "inferred from process group mesh_pp"
    assert found.rank[0].host == "Host0"


def test_gpus_a_node_where_all_ranks_were_seen() -> None:
    found, said = inferred([], world=1)
    assert found.hardware.gpus_per_node == 1
    assert said["hardware.gpus_per_node"] == "inferred from the ranks of each host"


def test_nothing_to_infer_from() -> None:
    con = database({})
    assert infer_job(con, derive(con)) == (JobDescription(), {})
