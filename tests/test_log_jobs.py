"""Logs and counters of several jobs in one folder: told apart where the files themselves say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from source_tables import database

import nccl_logs
from tracekit import api
from tracekit.derive.placement import log_jobs
from tracekit.derive.run import derive
from tracekit.errors import AmbiguousInputError
from tracekit.job import JobDescription, parse_job
from tracekit.store import Selection

S = 10**9
DAY = 86400 * S
BASE = 1_760_000_000 * S
Rows = list[dict[str, Any]]


def source(source_id: int, path: str, start_ns: int | None = None, **facts: Any) -> dict[str, Any]:
    return {
        "source_id": source_id,
        "path": path,
        "kind": "nccl",
        "status": "ok",
        "sha256": path,
        "time_basis": "none" if start_ns is None else "epoch",
        "window_start_ns": start_ns,
        "window_end_ns": None if start_ns is None else start_ns + 60 * S,
        **facts,
    }


def comm(source_id: int, comm: str | None, rank: int, size: int, **facts: Any) -> dict[str, Any]:
    place = {"source_id": source_id, "place": rank, "comm_hash": comm}
    return {**place, "group_rank": rank, "group_size": size, **facts}


def whole(source_id: int, name: str | None, size: int = 2, **facts: Any) -> Rows:
    return [comm(source_id, name, rank, size, **facts) for rank in range(size)]


def sample(source_id: int, node: str | None, **facts: Any) -> dict[str, Any]:
    place = {"source_id": source_id, "place": 1, "node": node, "counter": "sm_clock"}
    return {**place, "kind": "gauge", "value": 1.0, "time_source": "content", **facts}


def kept(
    sources: Rows, job: JobDescription | None = None, attempt: int | None = None, **tables: Rows
) -> tuple[list[int], list[str]]:
    """The sources that count, and what is said beside."""
    notes: list[str] = []
    with database({"source": sources, **tables}) as con:
        found = derive(con, job, attempt=attempt, notes=notes)
    return sorted(found["source_context"]["source_id"].to_pylist()), notes


TWO = [source(0, "a.log"), source(1, "b.log")]


def test_two_whole_jobs_are_named_and_one_can_be_chosen() -> None:
    logs = [*whole(0, "0x1"), *whole(1, "0x2")]
    with pytest.raises(AmbiguousInputError, match="share no communicator") as error:
        kept(TWO, nccl_comm=logs)
    assert "--attempt 1" in str(error.value)
    assert "b.log" in str(error.value)
    chosen, notes = kept(TWO, attempt=2, nccl_comm=logs)
    assert chosen == [1]
    assert "a.log is of another job" in notes[-1]
    with pytest.raises(AmbiguousInputError):
        kept(TWO, attempt=3, nccl_comm=logs)


def test_job_toml_may_say_that_they_are_one() -> None:
    text = b"[[source]]\npath = '*.log'\nattempt = 1\n"
    logs = [*whole(0, "0x1"), *whole(1, "0x2")]
    rooted = [{**s, "path": f"/data/{s['path']}"} for s in TWO]
    assert kept(rooted, parse_job(text, "/data/job.toml"), nccl_comm=logs)[0] == [0, 1]


@pytest.mark.parametrize(
    "logs",
    [
        pytest.param([comm(0, "0x1", 0, 2), comm(1, "0x1", 1, 2)], id="a file a rank"),
        pytest.param(
            [comm(0, "0x1", 0, 2), comm(1, "0x2", 0, 2)], id="two groups of a job, partly seen"
        ),
        pytest.param([*whole(0, "0x1"), comm(1, "0x2", 0, 2)], id="one is not whole"),
        pytest.param([*whole(0, "0x1"), comm(1, "0x2", 0, 1)], id="a process that talks to itself"),
        pytest.param(
            [*whole(0, "0x1"), *whole(1, "0x2"), comm(0, "0x3", 0, 2), comm(1, "0x3", 1, 2)],
            id="groups of nodes with one between them",
        ),
        pytest.param([comm(0, None, 0, 2), comm(1, None, 1, 2)], id="old releases log no id"),
        pytest.param(
            [comm(0, "0x1", 0, 2, nccl_version="2.27.7"), comm(1, "0x2", 0, 2)],
            id="one names a release",
        ),
    ],
)
def test_what_may_be_one_job_stays_one(logs: Rows) -> None:
    assert kept(TWO, nccl_comm=logs) == ([0, 1], [])


def test_whole_jobs_of_old_releases_are_told_apart() -> None:
    with pytest.raises(AmbiguousInputError, match="share no communicator"):
        kept(TWO, nccl_comm=[*whole(0, None), *whole(1, None)])


def test_other_releases_are_other_jobs() -> None:
    logs = [comm(0, "0x1", 0, 9, nccl_version="2.27.7"), comm(1, "0x2", 0, 9, nccl_version="2.9.9")]
    with pytest.raises(AmbiguousInputError, match="other releases"):
        kept(TWO, nccl_comm=logs)


def test_tables_of_nccl_tests_are_compared_and_not_told_apart() -> None:
    logs = [*whole(0, "0x1"), *whole(1, "0x2")]
    # One broke off before its first row.
    runs = [{"source_id": i, "place": 1, "code": "bench", "fields": ["rows=0"]} for i in (0, 1)]
    assert kept(TWO, nccl_comm=logs, nccl_event=runs)[0] == [0, 1]


def counters(*given: tuple[int, str | None], source_of_time: str = "content") -> tuple[Rows, Rows]:
    """Files of one host each, by when they begin."""
    sources = [source(i, f"{i}.csv", when, kind="dcgm") for i, (when, _) in enumerate(given)]
    return sources, [
        sample(i, host, time_source=source_of_time) for i, (_, host) in enumerate(given)
    ]


@pytest.mark.parametrize(
    ("given", "is_apart"),
    [
        pytest.param([(BASE, "a"), (BASE + 3 * DAY, "b")], True, id="other hosts, days apart"),
        pytest.param([(BASE, "a"), (BASE + 3 * DAY, "a")], False, id="the same host"),
        pytest.param([(BASE, "a"), (BASE + DAY // 2, "b")], False, id="half a day"),
        pytest.param([(BASE, "a"), (BASE + 3 * DAY, None)], False, id="nobody knows the host"),
        pytest.param(
            [(BASE, "a"), (BASE + 3 * DAY, "b"), (BASE + 3 * DAY, "a")], False, id="a host in both"
        ),
        pytest.param([(BASE, "a"), (BASE + 200 * DAY, "a")], True, id="half a year"),
        pytest.param([(BASE, None), (BASE + 200 * DAY, None)], True, id="half a year, no host"),
    ],
)
def test_counters_are_told_apart_by_time_and_host(
    given: list[tuple[int, str | None]], is_apart: bool
) -> None:
    sources, samples = counters(*given)
    if is_apart:
        with pytest.raises(AmbiguousInputError, match=r"days? lies? between"):
            kept(sources, gpu_sample=samples)
    else:
        assert len(kept(sources, gpu_sample=samples)[0]) == len(given)


def test_the_date_of_a_copied_file_says_nothing() -> None:
    sources, samples = counters((BASE, "a"), (BASE + 200 * DAY, "b"), source_of_time="mtime")
    assert kept(sources, gpu_sample=samples)[0] == [0, 1]


def test_messages_of_the_kernel_are_of_any_time() -> None:
    sources = [source(0, "dmesg", BASE, kind="xid"), source(1, "b", BASE + 200 * DAY, kind="dcgm")]
    events = [{"source_id": 0, "place": 1, "time_ns": BASE, "code": "xid-79"}]
    assert kept(sources, log_event=events, gpu_sample=[sample(1, "a")])[0] == [0, 1]


def test_counters_go_with_the_job_on_their_host() -> None:
    sources = [
        source(0, "x/a.log"),
        source(1, "y/b.log"),
        source(2, "x/of-b.csv", BASE, kind="dcgm"),
        source(3, "y/nobodys.csv", BASE, kind="dcgm"),
        source(4, "of-neither.csv", BASE, kind="dcgm"),
    ]
    logs = [*whole(0, "0x1", node="host-a"), *whole(1, "0x2", node="host-b")]
    samples = [sample(2, "host-b"), sample(3, None), sample(4, None)]
    assert kept(sources, attempt=1, nccl_comm=logs, gpu_sample=samples)[0] == [0, 4]
    assert kept(sources, attempt=2, nccl_comm=logs, gpu_sample=samples)[0] == [1, 2, 3, 4]


def traced(world: int = 2) -> Rows:
    return [
        source(
            r,
            f"rank{r}.json",
            BASE,
            kind="kineto",
            file_rank=r,
            world_size=world,
            host_name="host-a",
        )
        for r in range(2)
    ]


def test_beside_traces_a_log_of_a_larger_world_is_left_out() -> None:
    sources = [*traced(), source(2, "other.log"), source(3, "own.log")]
    logs = [*whole(2, "0x1", 16), comm(3, "0x2", 0, 2)]
    found, notes = kept(sources, nccl_comm=logs)
    assert found == [0, 1, 3]
    assert "other.log is left out as another job's: a communicator of 16 ranks" in notes[-1]


def test_beside_traces_counters_of_another_year_are_left_out() -> None:
    sources = [
        *traced(),
        source(2, "old.csv", BASE - 300 * DAY, kind="dcgm"),
        source(3, "now.csv", BASE - 5 * DAY, kind="dcgm"),
    ]
    found, notes = kept(sources, gpu_sample=[sample(2, "host-a"), sample(3, "host-a")])
    assert found == [0, 1, 3]
    assert "old.csv" in notes[-1]


def test_of_two_jobs_beside_traces_the_one_of_their_process_counts() -> None:
    sources = [*traced(), source(2, "a.log"), source(3, "b.log")]
    logs = [*whole(2, "0x1", node="host-a", pid=7), *whole(3, "0x2", node="host-a", pid=100)]
    processes = [{"source_id": r, "pid": 100 + r} for r in range(2)]
    found, notes = kept(sources, nccl_comm=logs, process=processes)
    assert found == [0, 1, 3]
    assert "a.log" in notes[-1]
    # Nothing says which: neither is merged with the traces.
    assert kept(sources, nccl_comm=logs)[0] == [0, 1]


def test_more_jobs_than_can_be_told_are_named_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_jobs, "MAX_JOBS", 2)
    sources = [source(i, f"{i}.log") for i in range(4)]
    logs = [row for i in range(4) for row in whole(i, f"0x{i}")]
    for attempt in (None, 1):
        with pytest.raises(AmbiguousInputError, match="share no communicator"):
            kept(sources, attempt=attempt, nccl_comm=logs)


def test_logs_of_two_jobs_are_refused_and_read_one_at_a_time(tmp_path: Path) -> None:
    first = nccl_logs.job("2.27.7")
    (tmp_path / "first.log").write_text(first, encoding="utf-8")
    (tmp_path / "again.log").write_text(first + "\n", encoding="utf-8")
    with api.open(tmp_path) as run:
        run.diagnose()
    (tmp_path / "second.log").write_text(first.replace("0xabc", "0xdef"), encoding="utf-8")
    with pytest.raises(AmbiguousInputError, match="share no communicator"):
        api.open(tmp_path)
    with api.open(tmp_path, selection=Selection(attempt=2)) as run:
        found = run.sql("SELECT DISTINCT comm_hash FROM nccl_comm").rows()
        assert [int(comm, 16) for (comm,) in found] == [0xDEF]
        assert "left out" in run.diagnose().to_text(width=400)  # a long path leaves no room


def step_line(source_id: int) -> dict[str, Any]:
    return {"source_id": source_id, "place": 1, "format": "tensorboard", "step": 1}


@pytest.mark.parametrize(("days", "names"), [(100, [0, 1]), (200, [0])])
def test_a_training_log_of_half_a_year_before_is_not_the_traces_job_s(
    days: int, names: list[int]
) -> None:
    traces = source(0, "trace", BASE, kind="kineto", file_rank=0)
    log = source(1, "train.log", BASE - days * DAY, kind="job_log")
    used, notes = kept([traces, log], job_step=[step_line(1)])
    assert used == names
    assert [("train.log is left out as another job's" in note) for note in notes] == [True] * (
        2 - len(names)
    )


def test_training_logs_of_two_years_are_two_jobs() -> None:
    logs = [source(i, f"{i}.log", BASE + i * 400 * DAY, kind="job_log") for i in range(2)]
    steps = [step_line(0), step_line(1)]
    with pytest.raises(AmbiguousInputError):
        kept(logs, job_step=steps)
    assert kept(logs, attempt=2, job_step=steps)[0] == [1]
