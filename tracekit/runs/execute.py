"""Shards written: here, or by worker processes (runs/elsewhere.py: by a cluster).

Whatever is wrong with a source becomes its status.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins
from msgspec.structs import replace

from tracekit import store
from tracekit.errors import (
    DamagedRunError,
    InputError,
    RunWriteError,
    StoreError,
    where_raised,
)
from tracekit.runs import plan
from tracekit.runs.keys import hash_of, reader_of
from tracekit.runs.plan import Carried, Shard, ShardTask, available_cpus
from tracekit.store.manifest import ShardFile, SourceEntry, is_dead, this_host, work_path

if TYPE_CHECKING:
    from tracekit.ingest.base import IngestOptions, SourceFile


Progress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in all, what was finished)."""


Elsewhere = Callable[[Sequence[ShardTask]], Iterable[tuple[ShardTask, Shard]]]
"""Has tasks done by a cluster: each with its shard, in any order."""


def run_tasks(
    tasks: Sequence[ShardTask],
    workers: int | None,
    progress: Progress | None,
    elsewhere: Elsewhere | None = None,
) -> list[Shard]:
    """Run the tasks here, in processes, or ``elsewhere``; shards in the order of the tasks."""
    total = sum(task_bytes(t) for t in tasks)
    count = min(workers or available_cpus(), len(tasks))
    if elsewhere is None and (count <= 1 or total < plan.SMALL_INPUT_BYTES):
        # One worker that was asked for is one core; left to us, it may use what there is.
        here = [replace(task, threads_count=workers or available_cpus()) for task in tasks]
        return _run_here(here, total, progress)
    results: dict[str, Shard] = {}
    done = 0
    for task, shard in (elsewhere or partial(_in_processes, count=count))(tasks):
        results[task.shard] = shard
        done += task_bytes(task)
        if progress:
            progress(done, total, task.sources[-1][0].path)
    return [results[task.shard] for task in tasks]


def _in_processes(tasks: Sequence[ShardTask], count: int) -> Iterator[tuple[ShardTask, Shard]]:
    # This process is one of the workers: it is at work while the others still start.
    others = max(1, count - 1)
    with _pool(others) as pool:
        handed = _Handed(pool, tasks)
        for _ in range(others):
            handed.give()
        while others < count and (mine := handed.take()):
            yield mine, write_shard(mine)
        for future in as_completed(handed.futures):
            yield handed.futures[future], _result(future)


class _Handed:
    """Hands out tasks one at a time, the largest first, so that all workers end together.

    What waits in an executor's own queue is promised to its workers, and cannot be taken back when
    this process has nothing left to do.
    """

    def __init__(self, executor: Executor, tasks: Sequence[ShardTask]) -> None:
        self.futures: dict[Future[Shard], ShardTask] = {}
        """Complete once ``take`` found nothing."""
        self._executor = executor
        self._todo = deque(sorted(tasks, key=task_bytes, reverse=True))
        self._lock = threading.Lock()

    def take(self) -> ShardTask | None:
        """The next task, for this process; None once there is none, or a worker failed."""
        with self._lock:
            return self._todo.popleft() if self._todo else None

    def give(self, done: Future[Shard] | None = None) -> None:
        """The next task to a worker: at first, and whenever one is ``done``."""
        with self._lock:
            if done is not None and (done.cancelled() or done.exception() is not None):
                self._todo.clear()  # whoever waits for it says why
            if not self._todo:
                return
            task = self._todo.popleft()
            try:
                future = self._executor.submit(write_shard, task)
            except BrokenExecutor as error:
                future = Future()
                future.set_exception(error)
            self.futures[future] = task
        future.add_done_callback(self.give)


def _result(future: Future[Shard]) -> Shard:
    try:
        return future.result()
    except BrokenExecutor:
        raise StoreError(
            "a worker process was killed; the usual reason is that memory ran out",
            hint="try again with fewer --workers; what is finished is kept. A script of "
            "your own must call tracekit below 'if __name__ == \"__main__\":', because workers "
            "import it",
        ) from None


def task_bytes(task: ShardTask) -> int:
    """What is to be read for it, as stored."""
    return sum(entry.file_bytes for entry, _ in task.sources)


def _run_here(tasks: Sequence[ShardTask], total: int, progress: Progress | None) -> list[Shard]:
    done = 0

    def step(entry: SourceEntry) -> None:
        nonlocal done
        done += entry.file_bytes
        if progress:
            progress(done, total, entry.path)

    return [write_shard(task, step) for task in tasks]


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[Executor]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # spawn: a fork would copy the threads of Arrow and DuckDB half alive.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        max_workers=workers, mp_context=context, initializer=_follow_parent
    ) as pool:
        with ended_by_interrupts(pool):
            yield pool
        pool.shutdown(wait=False)  # they end by themselves, while this process derives


@contextlib.contextmanager
def ended_by_interrupts(pool: Executor) -> Iterator[None]:
    """An interrupt ends the workers of a pool of processes: leaving it waits for all that was
    asked, a large file takes minutes, and whoever sent SIGTERM kills soon."""
    try:
        yield
    except KeyboardInterrupt:
        for worker in [*(getattr(pool, "_processes", None) or {}).values()]:
            worker.terminate()
        raise


def _follow_parent() -> None:
    """In a worker: end when the process that started it has ended, however it did.

    Nobody would take what it still reads. An interrupt from the terminal comes to every process;
    the parent sees to it.
    """
    import multiprocessing
    import signal
    from multiprocessing.connection import wait

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def write_shard(
    task: ShardTask,
    step: Callable[[SourceEntry], None] | None = None,
    within: Path | None = None,
) -> Shard:
    """Ingest the task's sources into their shard, made ``within`` a folder. Runs in a worker."""
    from tracekit.ingest.base import IngestOptions

    options = IngestOptions(stacks=task.stacks, threads_count=task.threads_count)

    def fill(writer: store.ShardWriter) -> dict[int, str]:
        readers: dict[int, str] = {}
        for entry, source in task.sources:
            with _without_collection():
                readers[entry.source_id] = _ingest_source(entry, source, writer, options)
            if step:
                step(entry)
        if step:
            store.warm()  # here, not in a worker: to derive, once all is parsed
        return readers

    return _made(Path(task.run), task.shard, fill, may_thread=task.threads_count > 1, within=within)


def carry_shard(run: Path, carried: Carried) -> Shard:
    """The rows of those sources of a shard that stand, as a shard of their own."""
    name = hash_of("carried", carried.shard, *map(str, carried.source_ids))[:24]

    def fill(writer: store.ShardWriter) -> dict[int, str]:
        store.carry(run, carried.files, carried.source_ids, writer)
        return {}

    return _made(run, name, fill)


def _made(
    run: Path,
    name: str,
    fill: Callable[[store.ShardWriter], Mapping[int, str]],
    *,
    may_thread: bool = False,
    within: Path | None = None,
) -> Shard:
    """The shard that ``fill`` writes and says the readers of.

    Its folder appears whole, by rename, with its list of files; a folder that is already there is
    the same shard, finished earlier.
    """
    target = run / "data" / name
    if (earlier := finished(target)) is not None:
        return earlier
    if target.exists():  # damaged, or with somebody's files in it: left as it is
        target = target.with_name(secrets.token_hex(12))
    work = work_folder(run) if within is None else _made_folder(within / work_path(run).name)
    writer = store.ShardWriter(work, background=may_thread)
    try:
        readers = fill(writer)
        files = writer.close()
        text = json.dumps({"files": [to_builtins(f) for f in files], "readers": readers})
        (work / "shard.json").write_text(text, encoding="utf-8")
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # another writer finished the same shard: use that
            work.rename(target)
    finally:
        writer.stop()
        shutil.rmtree(work, ignore_errors=True)
        release_memory()
    made = finished(target)
    if made is None:
        raise RunWriteError(f"{target}: cannot be written", hint="ingest into a new folder")
    return made


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """No collection of cycles: ingestors make many objects and no cycles, and each collection
    would walk all that every imported module holds."""
    import gc

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def release_memory() -> None:
    """Give freed memory back to the system: parsing and querying must not add up to one peak."""
    import ctypes

    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # glibc has it; others need no telling
        ctypes.CDLL(None).malloc_trim(0)


def finished(target: Path) -> Shard | None:
    """The shard in this folder; None where there is none, or one that is damaged."""
    try:
        listed = json.loads((target / "shard.json").read_text(encoding="utf-8"))
        files = tuple(
            ShardFile(**{**entry, "path": f"data/{target.name}/{entry['path']}"})
            for entry in listed["files"]
        )
        store.verify(target.parent.parent, files)
        return Shard(files, {int(i): str(reader) for i, reader in listed["readers"].items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, DamagedRunError):
        return None


def _ingest_source(
    entry: SourceEntry, source: SourceFile, writer: store.ShardWriter, options: IngestOptions
) -> str:
    """One source into the shard, and who read it. Whatever is wrong with it becomes its status."""
    from tracekit.ingest import ingestor, recognise

    reader = ""
    sink = writer.sink(entry.source_id)
    sink.fact(path=entry.path, sha256=entry.sha256, file_bytes=entry.file_bytes)
    try:
        recognition = recognise(source)
        sink.fact(
            kind=recognition.kind,
            status=recognition.status,
            reason=recognition.reason,
            **recognition.facts,
        )
        if recognition.ingestor is not None:
            reader = reader_of(ingestor(recognition.ingestor))
            ingestor(recognition.ingestor).read(source, sink, options)
    except RunWriteError:
        raise
    except InputError as error:
        sink.fact(status="unreadable", reason=error.message)
    except OSError as error:
        sink.fact(status="unreadable", reason=error.strerror or type(error).__name__)
    except Exception as error:  # a bug of ours must not cost the user the other files
        if os.environ.get("TRACEKIT_DEBUG"):
            raise
        sink.fact(status="partial", reason=f"internal error ({type(error).__name__})")
        sink.count(
            "ingestor_failed",
            severity="error",
            doc="The ingestor failed on this file: a bug of tracekit, please report it.",
            shape=where_raised(error),
        )
    sink.close()
    return reader


def work_folder(run: Path) -> Path:
    """A new folder for work in progress."""
    return _made_folder(work_path(run))


def _made_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


_WORK = re.compile(r"(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}")
"""Names that ``work_path`` gives."""


def sweep_dead_work(run: Path) -> None:
    """Remove what killed processes of this host left behind. Other names are somebody's own."""
    host = this_host()
    folder = run / "tmp"
    if folder.is_symlink():
        return
    # What is no folder, the work that is to begin there will name.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in folder.iterdir():
            name = _WORK.fullmatch(entry.name)
            if name is None or name["host"] != host or not is_dead(int(name["pid"])):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
