"""Which files are one capture and one attempt: restarts, windows, clocks that are apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_tables import database

from derived_runs import MS, WHERE, Rows, job, marker, placed, process, run, trace
from soaks import examples
from tracekit.derive.run import derive
from tracekit.errors import AmbiguousInputError
from tracekit.job import parse_job

DAY = 86_400_000


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
    assert "--attempt" in (error.value.hint or "")


def test_a_candidate_is_chosen_by_number() -> None:
    result = derive(database({"source": two_worlds()}), attempt=2)
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
@settings(max_examples=examples(15, 150))
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
