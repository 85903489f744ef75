"""What is read again, what stands, in which order, and how sources are grouped into shards."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from tracekit.errors import InputError, StoreError
from tracekit.runs.keys import (
    columns_text,
    content_hash,
    entry_key,
    hash_of,
    ingestor_versions,
    readers,
    whole,
)
from tracekit.runs.sources import Columns, explain
from tracekit.schema import REGISTRY_VERSION
from tracekit.store.manifest import Manifest, ShardFile, SourceEntry

if TYPE_CHECKING:
    from tracekit.ingest.base import IngestOptions, SourceFile


SMALL_INPUT_BYTES = 24 << 20
"""Below this total (as stored) one process is faster than starting workers."""


WORKER_BYTES = 256 << 20
"""What reading one file takes at most, whatever its size: --memory decides how many are read at
a time."""


SHARD_BYTES = 1 << 30
"""Sources are grouped into shards of about this size as stored: few files at 10,000 ranks."""


MIN_SHARD_BYTES = 4 << 20


SMALL_FILE_BYTES = 1 << 20
"""Files up to here are read first under a time budget: descriptions, dumps, small logs."""


SMALL_FILES_BYTES = 64 << 20
"""As many of them as this."""


class ShardTask(Struct, frozen=True):
    """Sources that one worker writes into one shard."""

    run: str
    shard: str
    sources: tuple[tuple[SourceEntry, SourceFile], ...]
    stacks: bool
    threads_count: int = 1
    """Threads that the worker may take: more than one where it has cores to spare."""


class Shard(Struct, frozen=True):
    """What one shard holds. Paths of its files are relative to the run."""

    files: tuple[ShardFile, ...]
    readers: Mapping[int, str]
    """By source: which ingestor read it, as ``SourceEntry.reader``."""


class Carried(Struct, frozen=True):
    """A shard of which some sources stand: their rows are copied, without their raw files."""

    shard: str
    files: tuple[ShardFile, ...]
    source_ids: tuple[int, ...]


class Held(Struct, frozen=True):
    """What stands of the last generation, and what of it must be read again."""

    sources: tuple[SourceEntry, ...] = ()
    files: tuple[ShardFile, ...] = ()
    carried: tuple[Carried, ...] = ()
    again: tuple[SourceFile, ...] = ()


def held_of(
    previous: Manifest | None,
    files: Sequence[SourceFile],
    digests: Mapping[str, str],
    options: IngestOptions,
    columns: Columns,
    *,
    may_read: bool = True,
) -> Held:
    """What of the last generation stands, now that ``files`` are given.

    What leaves: rows of a file that has since changed, or was read with other options, by an
    older version of its ingestor, or by another ingestor than would read it now. Of a file that
    is gone the rows of an older ingestor stay (``staleness`` says so), for they are all there is;
    StoreError where they cannot, because their columns mean something else by now. Without
    ``may_read`` nothing is read again that was not given.
    """
    if previous is None:
        return Held()
    keys = {
        path: entry_key(
            digests[path], f.path, stacks=options.stacks, columns=columns_text(f.columns)
        )
        for f in files
        if (path := whole(f.path)) in digests
    }
    given = set(keys.values())
    moved: set[str] = set()
    if previous.ingestor_versions != ingestor_versions():
        moved = _read_by_another(files, previous)
    # A report that was unreadable by itself makes room for what nsys made of it.
    split = {path.rpartition("!")[0] for path in digests}
    leaving: set[int] = set()
    again: list[SourceFile] = []
    known = readers()
    for source in previous.sources:
        path = whole(source.path, source.folder)
        if path in split and "!" not in source.path:
            leaving.add(source.source_id)
        elif path in keys:
            if keys[path] != source.key or is_older(source, known) or path in moved:
                leaving.add(source.source_id)
        elif source.key in given and is_older(source, known):
            leaving.add(source.source_id)  # it was given from another place
        elif file := _read_again(source, previous, columns, known if may_read else None):
            leaving.add(source.source_id)
            again.append(explain(file, columns))
    standing = tuple(s for s in previous.sources if s.source_id not in leaving)
    files_left, carried = _split_shards(previous, {s.source_id for s in standing}, leaving)
    return Held(standing, files_left, carried, tuple(again))


def _split_shards(
    previous: Manifest, standing: Collection[int], leaving: Collection[int]
) -> tuple[tuple[ShardFile, ...], tuple[Carried, ...]]:
    """Files of the shards that stay whole, and the shards that some sources leave."""
    shards: dict[str, list[ShardFile]] = {}
    for file in previous.files:
        if file.path.startswith("data/"):
            shards.setdefault(Path(file.path).parts[1], []).append(file)
    files_left: list[ShardFile] = []
    carried: list[Carried] = []
    for shard, files in shards.items():
        spans = [
            range(f.min_source_id or 0, (f.max_source_id or 0) + 1)
            for f in files
            if f.table == "source"
        ]
        ids = {i for span in spans for i in span}
        if ids.isdisjoint(leaving):
            files_left += files
        elif rest := tuple(sorted(ids.intersection(standing))):
            carried.append(Carried(shard, tuple(files), rest))
    return tuple(files_left), tuple(carried)


def is_older(source: SourceEntry, known: Collection[str]) -> bool:
    """Whether its ingestor has since changed, or is no more: it is none of these ``readers()``."""
    return bool(source.reader) and source.reader not in known


def _read_by_another(files: Sequence[SourceFile], previous: Manifest) -> set[str]:
    """Whole paths of those of the files that another ingestor would read now."""
    from tracekit.ingest import recognise

    before = {whole(s.path, s.folder): s.reader.partition("=")[0] for s in previous.sources}
    return {
        path
        for f in files
        if (path := whole(f.path)) in before and (recognise(f).ingestor or "") != before[path]
    }


def _read_again(
    source: SourceEntry, previous: Manifest, columns: Columns, known: Collection[str] | None
) -> SourceFile | None:
    """The file of a source that was not given and must be read again; None where its rows stand.
    For another reader than the ``known`` ones it is not read where these are None.

    StoreError where they cannot, and the file is gone or has changed.
    """
    said = columns_text(columns(whole(source.path, source.folder)))
    must = previous.registry_version != REGISTRY_VERSION or said != source.columns
    if not must and (known is None or not is_older(source, known)):
        return None
    again = _found_again(source)
    if again is None and must:
        raise StoreError(
            f"{source.path}: must be read again, and is gone or no longer what the run was made "
            "from",
            hint="ingest the sources that you still have into a new folder",
        )
    return again


def _found_again(source: SourceEntry) -> SourceFile | None:
    """The file that the run was made from; None where it is gone or has changed."""
    from tracekit.ingest.files import expand

    path = whole(source.path, source.folder)
    with contextlib.suppress(InputError):
        for name in (path, path.rpartition("!")[0]):
            for file in expand([name]) if name and os.path.lexists(name) else ():
                if file.path == path and content_hash(file, {}) == source.sha256:
                    return file
    return None


def files_again(manifest: Manifest) -> list[str]:
    """Paths of what the run was made from, of what is still there."""
    paths: dict[str, None] = {}
    for source in manifest.sources:
        path = whole(source.path, source.folder)
        while path and not os.path.lexists(path):
            path = path.rpartition("!")[0]
        if path:
            paths[path] = None
    return list(paths)


def spread(files: Sequence[SourceFile]) -> list[SourceFile]:
    """The files in an order of which every beginning is spread over all of them.

    Ranks follow each other in folders and names: the first eight of 512 files would be one host.
    Halves, then quarters, and so on (bit reversal).
    """
    bits = max(1, (len(files) - 1).bit_length())
    order = sorted(range(len(files)), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2))
    return [files[i] for i in order]


class Pace(Struct):
    """How much may still be read before a time, by how long the reading took so far."""

    until: float
    began: float = field(default_factory=time.monotonic)
    taken_bytes: int = 0

    def next_round(self, later: Sequence[SourceFile], workers: int) -> list[SourceFile]:
        """The files to read now: half of what there is time for; something at least at first."""
        now = time.monotonic()
        if not self.taken_bytes:
            some = _small(later) or list(later[:workers])
        elif now >= self.until:
            some = []
        else:
            rate = self.taken_bytes / max(now - self.began, 1e-3)
            room = rate * (self.until - now)
            fitting = [f for f in later if f.file_bytes <= room]
            some = _upto(fitting, max(room / 2, fitting[0].file_bytes if fitting else 0))
        self.taken_bytes += sum(max(1, f.file_bytes) for f in some)
        return some


def _small(files: Sequence[SourceFile]) -> list[SourceFile]:
    return _upto([f for f in files if f.file_bytes <= SMALL_FILE_BYTES], SMALL_FILES_BYTES)


def _upto(files: Sequence[SourceFile], limit_bytes: float) -> list[SourceFile]:
    """The first files that together stay below a size."""
    some: list[SourceFile] = []
    size = 0
    for file in files:
        size += file.file_bytes
        if size > limit_bytes:
            break
        some.append(file)
    return some


def new_entries(
    files: Sequence[SourceFile],
    digests: Mapping[str, str],
    previous: Manifest | None,
    held: Held,
    options: IngestOptions,
    earlier: Sequence[tuple[SourceEntry, SourceFile]] = (),
) -> list[tuple[SourceEntry, SourceFile]]:
    """Entries for the files that the run does not hold yet, with the next free ids.

    ``earlier`` are those that were made for it already.
    """
    taken = [*(previous.sources if previous else ()), *(entry for entry, _ in earlier)]
    keys = {s.key for s in (*held.sources, *(entry for entry, _ in earlier))}
    next_id = max((s.source_id for s in taken), default=-1) + 1
    new: list[tuple[SourceEntry, SourceFile]] = []
    for file in files:
        digest = digests.get(whole(file.path)) or content_hash(file, {})
        said = columns_text(file.columns)
        key = entry_key(digest, file.path, stacks=options.stacks, columns=said)
        if key in keys:
            continue
        entry = SourceEntry(
            next_id,
            file.path,
            digest,
            file.file_bytes,
            file.mtime_ns,
            key,
            said,
            folder="" if os.path.isabs(file.path) else os.getcwd(),  # noqa: PTH109, PTH117
        )
        new.append((entry, file))
        next_id += 1
    return new


def available_cpus() -> int:
    """CPUs that this process may use: affinity, and the cgroup's quota where there is one."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            cpus = min(cpus, max(1, int(quota) // int(period)))
    return max(1, cpus)


def workers_within(memory_bytes: int, workers: int | None) -> int:
    """As many workers as fit in the memory that the user gives, at least one."""
    return max(1, min(workers or available_cpus(), memory_bytes // WORKER_BYTES))


def plan_shards(
    run: Path,
    new: Sequence[tuple[SourceEntry, SourceFile]],
    workers: int,
    options: IngestOptions,
) -> list[ShardTask]:
    """Group sources, in order, into shards: enough to keep the workers busy, few in all."""
    total = sum(entry.file_bytes for entry, _ in new)
    if total < SMALL_INPUT_BYTES:
        workers = 1
    target = min(SHARD_BYTES, max(MIN_SHARD_BYTES, total // (4 * workers)))
    groups: list[list[tuple[SourceEntry, SourceFile]]] = []
    size = 0
    for entry, file in new:
        if not groups or size + entry.file_bytes > target:
            groups.append([])
            size = 0
        groups[-1].append((entry, file))
        size += entry.file_bytes
    return [
        ShardTask(
            str(run),
            hash_of(ingestor_versions(), *(f"{e.source_id}:{e.key}" for e, _ in group))[:24],
            tuple(group),
            options.stacks,
        )
        for group in groups
    ]
