"""Shards written by the workers of a cluster, and handed over through the store.

A worker reads the sources where they are, by the same paths as here, and writes its shard into the
run's folder; where the run goes into an object store, it writes beside itself and the store carries
the shard. What comes back through the scheduler is the list of a shard's files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from tracekit.cluster import (
    Cluster,
    FailedTaskError,
    NotSeenError,
    SharedFolder,
    arrived,
    check_seen,
)
from tracekit.errors import ClusterError, StoreError
from tracekit.objects import Objects
from tracekit.runs.execute import finished, task_bytes, work_folder, write_shard
from tracekit.runs.keys import whole
from tracekit.runs.plan import Shard, ShardTask

SAME_TIME_NS = 2_000_000_000
"""File systems keep times with this precision at least."""


class _There(Struct, frozen=True):
    """A task for a worker elsewhere."""

    task: ShardTask
    work: str
    """A new folder of the run, which proves that its folder is the same; none with ``via``."""
    folder: str
    """What relative paths of sources begin from; empty where there are none."""
    seen: tuple[tuple[str, int, int], ...]
    """Files of the sources, with size and time (ns) as they are seen here."""
    via: str | None
    """URI below which the shard is handed over."""


def written_elsewhere(
    cluster: Cluster, run: Path, tasks: Sequence[ShardTask], via: str | None = None
) -> Iterator[tuple[ShardTask, Shard]]:
    """Each task with its shard, in the order in which they end; each shard is in ``run`` by then.

    ClusterError where a worker does not see the same files, StoreError where a shard is not
    written.
    """
    # Whoever is killed leaves its work below this one folder, which ends with this process.
    work = work_folder(run)
    try:
        asked = {task.shard: task for task in tasks}
        largest_first = sorted(tasks, key=task_bytes, reverse=True)
        for there, told in cluster.map(_write_there, [_there(t, work, via) for t in largest_first]):
            task = asked[there.task.shard]
            if isinstance(told, NotSeenError) and _seen(task) != there.seen:
                # It has changed since, or is gone: as it is now, it is read here.
                yield task, write_shard(task)
            elif isinstance(told, FailedTaskError):
                raise ClusterError(
                    f"a worker failed ({told})", hint="its log says more; what is finished is kept"
                )
            elif isinstance(told, Exception):
                raise told
            else:
                yield task, _arrived(run, task, told, via)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _there(task: ShardTask, work: Path, via: str | None) -> _There:
    folder = next((entry.folder for entry, _ in task.sources if entry.folder), "")
    there = replace(task, run=os.path.abspath(task.run))  # noqa: PTH100  # resolves no link
    return _There(there, "" if via else os.path.abspath(work), folder, _seen(task), via)  # noqa: PTH100


def _seen(task: ShardTask) -> tuple[tuple[str, int, int], ...]:
    """The files of a task's sources that are seen on this machine."""
    files: dict[str, tuple[int, int]] = {}
    for entry, source in task.sources:
        path = source.stored or entry.path
        path = whole(path, entry.folder)
        while path and path not in files and not os.path.lexists(path):
            path = path.rpartition("!")[0]
        if path and path not in files:
            with contextlib.suppress(OSError):
                files[path] = _looks(path)
    return tuple((path, *looks) for path, looks in files.items())


def _looks(path: str) -> tuple[int, int]:
    """Size and time of a file; zeros of what is none, of which only the name is compared."""
    said = Path(path).stat()
    return (said.st_size, said.st_mtime_ns) if stat.S_ISREG(said.st_mode) else (0, 0)


_FOLDER = SharedFolder()


def _write_there(there: _There) -> Shard:
    """In a worker: its shard, where it is to be."""
    if there.work:
        check_seen(there.work, Path(there.work).is_dir())
    for path, size, time_ns in there.seen:
        looks = None
        with contextlib.suppress(OSError):
            looks = _looks(path)
        check_seen(
            path,
            looks is not None and looks[0] == size and abs(looks[1] - time_ns) < SAME_TIME_NS,
        )
    with contextlib.ExitStack() as stack:
        if there.folder:
            try:
                stack.enter_context(_FOLDER.entered(there.folder))
            except OSError:
                check_seen(there.folder, False)
        if there.via is None:
            return write_shard(there.task, within=Path(there.work))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tracekit-shard-")))
        shard = write_shard(replace(there.task, run=str(scratch)))
        folder = scratch / "data" / there.task.shard
        names = [p.relative_to(scratch).as_posix() for p in folder.iterdir()]
        Objects(there.via).upload(scratch, names)
        return shard


def _arrived(run: Path, task: ShardTask, shard: Shard, via: str | None) -> Shard:
    """The shard, once its files are seen here."""
    if via is not None:
        return _fetched(run, task, shard, via)
    arrived([run / f.path for f in shard.files], [f.file_bytes for f in shard.files])
    return shard


def _fetched(run: Path, task: ShardTask, shard: Shard, via: str) -> Shard:
    """The shard out of the store, into the run; checked by its checksums."""
    at = Objects(via)
    target = run / "data" / task.shard
    sizes = at.sizes(f"data/{task.shard}")
    at.download(sizes, run)
    made = finished(target)
    if made is None or made.files != shard.files:
        raise StoreError(f"{via}/data/{task.shard}: is not as it was written", hint="try again")
    at.remove(sizes)
    return made
