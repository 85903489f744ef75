"""Workers that read shards: the same rows as one process, and fair shares."""

from __future__ import annotations

import os
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from memory_sink import source_of

from run_folders import rows, rows_of_both_at_once
from tracekit import runs, store
from tracekit.errors import StoreError
from tracekit.runs import execute, plan
from traces import write_job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with the traces of two ranks."""
    write_job(tmp_path / "job", steps_count=2)
    return tmp_path / "job"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_two_workers_write_the_same_rows_as_one(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(plan, "SMALL_INPUT_BYTES", 0)
    monkeypatch.setattr(plan, "MIN_SHARD_BYTES", 1)
    manifest = runs.ingest(
        [job], run, workers=2, progress=lambda done, total, _: seen.append((done, total))
    )
    shards = {Path(f.path).parts[1] for f in manifest.files if f.path.startswith("data/")}
    assert len(shards) == 2
    assert rows(run) == rows_of_both_at_once(job, run)
    total = sum(p.stat().st_size for p in job.iterdir())
    assert seen[-1] == (total, total)


def test_a_worker_that_is_killed_is_named_with_a_hint(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SMALL_INPUT_BYTES", 0)
    monkeypatch.setattr(plan, "MIN_SHARD_BYTES", 1)
    monkeypatch.setattr(execute, "_pool", _Killed)
    with pytest.raises(StoreError, match="worker process was killed") as caught:
        runs.ingest([job], run, workers=2)
    assert caught.value.hint
    assert not store.is_run(run)


def test_tasks_go_to_whoever_is_free_the_largest_first() -> None:
    """A worker that is slow to start takes none away from the others."""
    tasks = [
        runs.ShardTask("", f"{size}", ((_entry(size), source_of(b"")),), stacks=False)
        for size in (3, 9, 5, 7)
    ]
    executor = _ByHand()
    handed = execute._Handed(executor, tasks)
    handed.give()
    assert [t.shard for t in executor.tasks] == ["9"]
    first = handed.take()
    assert first is not None
    assert first.shard == "7"
    executor.futures[0].set_result([])
    assert [t.shard for t in executor.tasks] == ["9", "5"]
    last = handed.take()
    assert last is not None
    assert last.shard == "3"
    assert handed.take() is None
    executor.futures[1].set_result([])
    assert [t.shard for t in handed.futures.values()] == ["9", "5"]


def test_after_a_worker_failed_nothing_more_is_begun() -> None:
    tasks = [
        runs.ShardTask("", f"{size}", ((_entry(size), source_of(b"")),), stacks=False)
        for size in (3, 9, 5)
    ]
    executor = _ByHand()
    handed = execute._Handed(executor, tasks)
    handed.give()
    executor.futures[0].set_exception(BrokenProcessPool("a worker died"))
    assert handed.take() is None
    assert len(executor.tasks) == 1


def _entry(size: int) -> store.SourceEntry:
    return store.SourceEntry(size, "a.json", "ff", size, 2, "k")


class _ByHand(Executor):
    """Its tasks end when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[runs.ShardTask] = []
        self.futures: list[Future[Any]] = []

    def submit(self, _: object, task: Any, /) -> Any:  # type: ignore[override]
        self.tasks.append(task)
        self.futures.append(Future())
        return self.futures[-1]


class _Killed(ThreadPoolExecutor):
    """Its workers die at once."""

    def __init__(self, *_: object) -> None:
        super().__init__(1)

    def submit(self, *_: object, **__: object) -> Any:
        future: Future[Any] = Future()
        future.set_exception(BrokenProcessPool("a worker died"))
        return future


@pytest.mark.parametrize(
    ("memory_mb", "workers", "expected"), [(255, 8, 1), (512, 8, 2), (4096, 2, 2), (600, None, 1)]
)
def test_memory_is_shared_out_among_workers(
    memory_mb: int, workers: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "available_cpus", lambda: 1)
    assert plan.workers_within(memory_mb << 20, workers) == expected


def test_small_inputs_stay_in_this_process(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "_pool", None)  # calling it would fail
    assert len(runs.ingest([job], run, workers=8).sources) == 2


def test_workers_follow_affinity_and_the_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = {"text": "max 100000"}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: quota["text"])
    assert runs.available_cpus() == 8
    for text, cpus in (
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 8),
        ("nonsense", 8),
    ):
        quota["text"] = text
        assert runs.available_cpus() == cpus, text
