"""Building a run: files to shards (a map over files), then derive, then the manifest.

Idempotent by content: the key of a run hashes its sources' bytes, the job description, the
options and the versions; ingesting the same again changes nothing. Finished shards of an ingest
that was killed are found again and kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import store
from tracekit.errors import InputError, RunWriteError, StoreError, UsageError
from tracekit.schema import REGISTRY_VERSION
from tracekit.store.manifest import (
    Manifest,
    ShardFile,
    SourceEntry,
    commit,
    load,
    next_generation,
    work_path,
)
from tracekit.version import __version__

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.ingest.base import IngestOptions, SourceFile
    from tracekit.job import JobDescription

SMALL_INPUT_BYTES = 24 << 20
"""Below this total (as stored) one process is faster than starting workers."""

WORKER_BYTES = 256 << 20
"""What reading one file takes at most, whatever its size: --memory decides how many are read at
a time."""

SHARD_BYTES = 1 << 30
"""Sources are grouped into shards of about this size as stored: few files at 10,000 ranks."""

MIN_SHARD_BYTES = 4 << 20

COMMIT_TRIES = 20

READING_SHARE = 0.8
"""Part of a time budget in which files are read; the rest is for deriving and judging."""

SMALL_FILE_BYTES = 1 << 20
"""Files up to here are read first under a time budget: descriptions, dumps, small logs."""

SMALL_FILES_BYTES = 64 << 20
"""As many of them as this."""

Progress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in all, what was finished)."""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Sources that one worker writes into one shard."""

    run: str
    shard: str
    sources: tuple[tuple[SourceEntry, SourceFile], ...]
    stacks: bool
    may_thread: bool = False
    """Whether one worker has cores to spare for a helper thread."""


def ingest(
    paths: Sequence[str | Path],
    run: Path,
    *,
    job_paths: Sequence[str | Path] = (),
    stacks: bool = False,
    workers: int | None = None,
    memory_bytes: int | None = None,
    scheduler: str | None = None,
    attempt: int | None = None,
    nsys: str | None = None,
    budget_s: float | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Bring ``paths`` into ``run`` (made if absent) and return its latest generation.

    ``nsys`` is the program that exports Nsight Systems reports among them. With ``budget_s``
    reading ends in time for a report within as many seconds; ``Manifest.unread`` names the files
    that wait, and the same call again goes on from there.
    Raises InputError where there is nothing to read, AmbiguousInputError where the sources
    cannot be one attempt, StoreError where ``run`` is something else or cannot be written.
    """
    from tracekit.ingest.base import IngestOptions

    if run.exists() and not store.is_run(run) and _is_foreign(run):
        raise StoreError(
            f"{run}: exists and is not a run", hint="name a new folder, or an existing run"
        )
    files, job = gather(paths, job_paths, run)
    options = IngestOptions(stacks=stacks)
    until = None if budget_s is None else time.monotonic() + READING_SHARE * budget_s
    with store.writing(run), contextlib.ExitStack() as stack:
        run.mkdir(parents=True, exist_ok=True)
        _sweep_dead_work(run)
        if nsys is not None:
            from tracekit.ingest.nsys.report import export_reports

            exports = work_folder(run)
            stack.callback(shutil.rmtree, exports, ignore_errors=True)
            files = export_reports(files, nsys, exports)
        for _ in range(COMMIT_TRIES):
            manifest = _ingest_once(
                files, job, run, options, workers, memory_bytes, scheduler, attempt, until, progress
            )
            if manifest is not None:
                return manifest
    raise StoreError(
        f"{run}: {COMMIT_TRIES} other writers were faster", hint="try again when they are done"
    )


def gather(
    paths: Sequence[str | Path], job_paths: Sequence[str | Path], run: Path | None = None
) -> tuple[list[SourceFile], JobDescription | None]:
    """The source files behind ``paths``, and the job description (given, or found among them).

    What lies inside ``run`` is no source: a run may be kept beside its traces.
    """
    from tracekit.ingest.files import expand

    files: list[SourceFile] = []
    found_jobs: list[str] = []
    own = os.path.realpath(run) + os.sep if run is not None else None
    for file in expand(paths):
        if own is not None and os.path.realpath(file.path).startswith(own):
            continue
        if is_job_description(file):
            found_jobs.append(file.path)
        else:
            files.append(file)
    if has_reports(files):
        from tracekit.ingest.nsys.report import with_exports

        files = with_exports(files)
    if not files:
        raise InputError(
            "nothing to read in " + ", ".join(str(p) for p in paths),
            hint="give trace files, folders or archives; tracekit sources PATH shows what is seen",
        )
    wanted = [*found_jobs, *(str(p) for p in job_paths)]
    if not wanted:
        return files, None
    from tracekit.jobs_import import load_descriptions

    return files, load_descriptions(wanted)


Columns = Callable[[str], tuple[tuple[str, str], ...]]
"""What the job description says of the columns of a path; nothing, mostly."""


def columns_of(job: JobDescription | None) -> Columns:
    """What the job description says of the columns of tables.

    InputError, with path and line, where it speaks of a counter that there is not.
    """
    entries = [e for e in job.source if e.columns] if job is not None else []
    if not entries:
        return lambda path: ()
    from tracekit.ingest.columns import UnknownColumnError, check_columns
    from tracekit.job import PathMatcher, place_of

    for entry in entries:
        try:
            check_columns(entry.columns or {})
        except UnknownColumnError as error:
            place = place_of(job.files if job else (), error.key)
            raise InputError(
                f"{place}[[source]] {entry.path!r}: {error}", hint=error.hint
            ) from None
    matcher = PathMatcher(entries)

    def find(path: str) -> tuple[tuple[str, str], ...]:
        entry = matcher.find(path)
        return tuple((entry.columns or {}).items()) if entry is not None else ()

    return find


def explain(file: SourceFile, columns: Columns) -> SourceFile:
    """The file with what the job description says of its columns."""
    found = columns(file.path)
    return replace(file, columns=found) if found else file


def is_job_description(file: SourceFile) -> bool:
    """Whether a file among the paths is a job.toml; members of archives are not."""
    # Importing the job module costs start time: only where a name may be a description.
    if not file.name.lower().endswith(".toml") or not Path(file.path).is_file():
        return False
    from tracekit.ingest.files import read_head
    from tracekit.job import is_job_file

    return is_job_file(file.path, read_head(file))


def has_unread(run: Path) -> bool:
    """Whether a time budget left files of the run for another time; not of a damaged run, which
    whoever opens it will meet."""
    try:
        manifest = load(run)
    except StoreError:
        return False
    return manifest is not None and bool(manifest.unread)


def has_reports(files: Sequence[SourceFile]) -> bool:
    """Whether there are Nsight Systems reports, which only nsys can read, among the files."""
    from tracekit.ingest.nsys.sniff import is_report

    return any(is_report(f.name) for f in files)


def _without_held_reports(
    files: Sequence[SourceFile], previous: Manifest | None
) -> Sequence[SourceFile]:
    """The files without the reports that the run holds exported: their rows stand."""
    if previous is None or not has_reports(files):
        return files
    held = {s.sha256 for s in previous.sources}

    def is_held(file: SourceFile) -> bool:
        parts = (
            s.path.removeprefix(file.path).removeprefix("!")
            for s in previous.sources
            if s.path == file.path or s.path.startswith(f"{file.path}!")
        )
        own = _content_hash(file, {})
        return any(_exported_hash(_hash(own, p) if p else own) in held for p in parts)

    return [f for f in files if f.stored or not has_reports([f]) or not is_held(f)]


def _exported_hash(digest: str) -> str:
    """The hash of what nsys makes of a report; the report by itself holds nothing to read."""
    return _hash(digest, "exported")


def _ingest_once(
    files: Sequence[SourceFile],
    job: JobDescription | None,
    run: Path,
    options: IngestOptions,
    workers: int | None,
    memory_bytes: int | None,
    scheduler: str | None,
    attempt: int | None,
    until: float | None,
    progress: Progress | None,
) -> Manifest | None:
    """One attempt at the next generation; None if another writer came first."""
    previous = load(run)
    explained = columns_of(job or (job_of(previous) if previous else None))
    files = [explain(f, explained) for f in _without_held_reports(files, previous)]
    known = {s.path for s in previous.sources} if previous else set()
    first = files if until is None else [f for f in files if f.path in known]
    digests = _digests(first, previous)
    held = _held(previous, digests, options, explained)
    new = _new_entries([*first, *held.again], digests, previous, held, options)
    if memory_bytes is not None:
        workers = _within(memory_bytes, workers)

    def read(some: Sequence[tuple[SourceEntry, SourceFile]]) -> list[ShardFile]:
        tasks = _plan(run, some, workers or available_cpus(), options)
        return _run_tasks(tasks, workers, scheduler, progress)

    shard_files: list[ShardFile] | None = None
    unread = {p for p in previous.unread if p not in {f.path for f in files}} if previous else set()
    if until is not None:
        shard_files = read(new) if new else []
        later = [f for f in spread(files) if f.path not in known]
        pace = _Pace(until)
        while some := pace.next_round(later, workers or available_cpus()):
            later = [f for f in later if f not in some]
            more = _new_entries(some, _digests(some, previous), previous, held, options, new)
            shard_files += read(more)
            new += more
        unread.update(f.path for f in later)
    entries = (*held.sources, *(entry for entry, _ in new))
    digest = job.digest() if job else ""
    if previous and not digest and previous.job_toml:
        job, digest = _job_of(previous)
    if attempt is None and previous:
        attempt = previous.attempt
    key = _hash(
        *sorted(e.key for e in entries),
        digest,
        str(attempt),
        str(REGISTRY_VERSION),
        ingestor_versions(),
        *sorted(unread),
    )
    if previous and previous.key == key:
        return previous
    if shard_files is None:
        shard_files = read(new)
    source_files = [*held.files, *shard_files]
    notes: list[str] = []
    derived = _derive(run, source_files, job, key, memory_bytes, attempt, notes)
    manifest = next_generation(
        previous,
        key=key,
        tracekit_version=__version__,
        registry_version=REGISTRY_VERSION,
        job_toml=_job_text(job),
        job_path=job.files[0] if job and job.files else previous and previous.job_path,
        sources=entries,
        files=(*source_files, *derived),
        attempt=attempt,
        notes=tuple(notes),
        unread=tuple(sorted(unread)),
    )
    if commit(run, manifest):
        return manifest
    if derived:
        shutil.rmtree(run / Path(derived[0].path).parent, ignore_errors=True)
    return None


def _job_of(manifest: Manifest) -> tuple[JobDescription | None, str]:
    job = job_of(manifest)
    return job, job.digest() if job else ""


def job_of(manifest: Manifest) -> JobDescription | None:
    """The job description that a run was made with; its paths are relative to where it lay."""
    if manifest.job_toml is None:
        return None
    from tracekit.job import parse_job

    return parse_job(manifest.job_toml.encode(), manifest.job_path or "job.toml")


def _job_text(job: JobDescription | None) -> str | None:
    if job is None:
        return None
    from tracekit.job import to_toml

    return to_toml(job, {})


def _is_foreign(path: Path) -> bool:
    """Whether it is a file, or a folder that holds more than an unfinished run does."""
    ours = {"manifests", "data", "derived", "tmp"}
    return not path.is_dir() or any(entry.name not in ours for entry in path.iterdir())


@dataclass(frozen=True, slots=True)
class _Held:
    """What stands of the last generation, and what of it must be read again."""

    sources: tuple[SourceEntry, ...] = ()
    files: tuple[ShardFile, ...] = ()
    again: tuple[SourceFile, ...] = ()


def _held(
    previous: Manifest | None,
    digests: Mapping[str, str],
    options: IngestOptions,
    columns: Columns,
) -> _Held:
    """Rows of older ingestors, and of a file that has since changed, are not served.

    They leave with their whole shard; the other sources of that shard are read again, which
    needs their files. StoreError where one of them is gone.
    """
    if previous is None:
        return _Held()
    # A report that was unreadable by itself makes room for what nsys made of it.
    split = {path.rpartition("!")[0] for path in digests}
    replaced = {s.source_id for s in previous.sources if s.path in split and "!" not in s.path}
    stale = {s.source_id for s in previous.sources if _is_stale(s, digests, options, columns)}
    stale |= replaced
    shards = {Path(f.path).parts[1]: f for f in previous.files if f.table == "source"}
    dropped = {
        shard: range(file.min_source_id or 0, (file.max_source_id or 0) + 1)
        for shard, file in shards.items()
    }
    dropped = {shard: ids for shard, ids in dropped.items() if stale.intersection(ids)}
    gone = {i for ids in dropped.values() for i in ids}
    lost = [s for s in previous.sources if s.source_id in gone - replaced and s.path not in digests]
    return _Held(
        tuple(s for s in previous.sources if s.source_id not in gone),
        tuple(
            f
            for f in previous.files
            if f.path.startswith("data/") and Path(f.path).parts[1] not in dropped
        ),
        tuple(explain(_found_again(s), columns) for s in lost),
    )


def _is_stale(
    source: SourceEntry, digests: Mapping[str, str], options: IngestOptions, columns: Columns
) -> bool:
    path, said = source.path, _columns_text(columns(source.path))
    if path in digests:
        wanted = {_entry_key(digests[path], path, stacks=options.stacks, columns=said)}
    else:
        wanted = {_entry_key(source.sha256, path, stacks=s, columns=said) for s in (False, True)}
    return source.key not in wanted


def _found_again(source: SourceEntry) -> SourceFile:
    """The file that the run was made from; StoreError where it is gone or has changed."""
    from tracekit.ingest.files import expand

    with contextlib.suppress(InputError):
        for name in (source.path, source.path.rpartition("!")[0]):
            for file in expand([name]) if name and os.path.lexists(name) else ():
                if file.path == source.path and _content_hash(file, {}) == source.sha256:
                    return file
    raise StoreError(
        f"{source.path}: must be read again, and is gone or no longer what the run was made from",
        hint="ingest the sources that you still have into a new folder",
    )


def spread(files: Sequence[SourceFile]) -> list[SourceFile]:
    """The files in an order of which every beginning is spread over all of them.

    Ranks follow each other in folders and names: the first eight of 512 files would be one host.
    Halves, then quarters, and so on (bit reversal).
    """
    bits = max(1, (len(files) - 1).bit_length())
    order = sorted(range(len(files)), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2))
    return [files[i] for i in order]


@dataclass
class _Pace:
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


def _digests(files: Sequence[SourceFile], previous: Manifest | None) -> dict[str, str]:
    """Content hash by path; files that look untouched since the last generation are not read."""
    known = {(s.path, s.file_bytes, s.mtime_ns): s for s in previous.sources} if previous else {}
    archives: dict[str, str] = {}
    return {
        file.path: old.sha256
        if (old := known.get((file.path, file.file_bytes, file.mtime_ns))) and not file.stored
        else _content_hash(file, archives)
        for file in files
    }


def _entry_key(digest: str, path: str, *, stacks: bool, columns: str = "") -> str:
    """Content, name (a rank may be read from it), options and versions; rarely the folder."""
    from tracekit.ingest.files import identity_of

    said = (columns,) if columns else ()
    return _hash(
        digest, identity_of(path), f"stacks={stacks}", str(REGISTRY_VERSION), ingestor_versions(),
        *said,
    )  # fmt: skip


def _columns_text(columns: tuple[tuple[str, str], ...]) -> str:
    return json.dumps(sorted(columns)) if columns else ""


def _new_entries(
    files: Sequence[SourceFile],
    digests: Mapping[str, str],
    previous: Manifest | None,
    held: _Held,
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
        digest = digests.get(file.path) or _content_hash(file, {})
        said = _columns_text(file.columns)
        key = _entry_key(digest, file.path, stacks=options.stacks, columns=said)
        if key in keys:
            continue
        entry = SourceEntry(next_id, file.path, digest, file.file_bytes, file.mtime_ns, key, said)
        new.append((entry, file))
        next_id += 1
    return new


def _content_hash(file: SourceFile, archives: dict[str, str]) -> str:
    """Hash of the file as stored; of the archive and the member's name for members."""
    path, _, member = file.path, "", ""
    if not os.path.lexists(path) and "!" in path:
        path, _, member = path.rpartition("!")
    if path not in archives or not member:
        try:
            archives[path] = _bytes_hash(Path(path))
        except OSError as error:
            # Named in the report as unreadable; the reason changes the key when it goes away.
            archives[path] = _hash("unreadable", path, type(error).__name__)
    digest = _hash(archives[path], member) if member else archives[path]
    return _exported_hash(digest) if file.stored else digest


def _bytes_hash(path: Path) -> str:
    """Hash of a file's bytes; of the names and bytes of its files for a folder."""
    if path.is_dir():
        parts = sorted(p for p in path.iterdir() if p.is_file())
        return _hash(*(text for p in parts for text in (p.name, _bytes_hash(p))))
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def ingestor_versions() -> str:
    """Names and versions of all ingestors: part of every key."""
    from tracekit.ingest import INGESTORS

    return ",".join(f"{i.name}={i.version}" for i in INGESTORS)


def available_cpus() -> int:
    """CPUs that this process may use: affinity, and the cgroup's quota where there is one."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            cpus = min(cpus, max(1, int(quota) // int(period)))
    return max(1, cpus)


def _within(memory_bytes: int, workers: int | None) -> int:
    """As many workers as fit in the memory that the user gives, at least one."""
    return max(1, min(workers or available_cpus(), memory_bytes // WORKER_BYTES))


def _plan(
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
            _hash(*(f"{entry.source_id}:{entry.key}" for entry, _ in group))[:24],
            tuple(group),
            options.stacks,
        )
        for group in groups
    ]


def _run_tasks(
    tasks: Sequence[ShardTask],
    workers: int | None,
    scheduler: str | None,
    progress: Progress | None,
) -> list[ShardFile]:
    """Run the tasks here or in an executor; files in the order of the tasks."""
    total = sum(_task_bytes(t) for t in tasks)
    if scheduler is None:
        wanted = min(workers or available_cpus(), len(tasks))
        if wanted <= 1 or total < SMALL_INPUT_BYTES:
            # One worker that was asked for is one core; left to us, it may use a second.
            may_thread = workers is None and available_cpus() > 1
            here = [replace(task, may_thread=may_thread) for task in tasks]
            return _run_here(here, total, progress)
    results: dict[str, list[ShardFile]] = {}
    done = 0

    def finished(task: ShardTask, files: list[ShardFile]) -> None:
        nonlocal done
        results[task.shard] = files
        done += _task_bytes(task)
        if progress:
            progress(done, total, task.sources[-1][0].path)

    count = min(workers or available_cpus(), len(tasks))
    # This process is one of the workers: it is at work while the others still start.
    others = count if scheduler else max(1, count - 1)
    with _executor(scheduler, others) as executor:
        handed = _Handed(executor, tasks)
        for _ in range(len(tasks) if scheduler else others):
            handed.give()
        while others < count and (mine := handed.take()):
            finished(mine, write_shard(mine))
        for future in as_completed(handed.futures):
            finished(handed.futures[future], _result(future))
    return [file for task in tasks for file in results[task.shard]]


class _Handed:
    """Hands out tasks one at a time, the largest first, so that all workers end together.

    What waits in an executor's own queue is promised to its workers, and cannot be taken back when
    this process has nothing left to do.
    """

    def __init__(self, executor: Executor, tasks: Sequence[ShardTask]) -> None:
        self.futures: dict[Future[list[ShardFile]], ShardTask] = {}
        """Complete once ``take`` found nothing."""
        self._executor = executor
        self._todo = deque(sorted(tasks, key=_task_bytes, reverse=True))
        self._lock = threading.Lock()

    def take(self) -> ShardTask | None:
        """The next task, for this process; None once there is none, or a worker failed."""
        with self._lock:
            return self._todo.popleft() if self._todo else None

    def give(self, done: Future[list[ShardFile]] | None = None) -> None:
        """The next task to a worker: at first, and whenever one is ``done``."""
        with self._lock:
            if done is not None and (done.cancelled() or done.exception() is not None):
                self._todo.clear()  # whoever waits for it says why
            if not self._todo:
                return
            task = self._todo.popleft()
            try:
                future = self._executor.submit(write_shard, task)
            except BrokenProcessPool as error:
                future = Future()
                future.set_exception(error)
            self.futures[future] = task
        future.add_done_callback(self.give)


def _result(future: Future[list[ShardFile]]) -> list[ShardFile]:
    try:
        return future.result()
    except BrokenProcessPool:
        raise StoreError(
            "a worker process was killed; the usual reason is that memory ran out",
            hint="try again with fewer --workers; what is finished is kept. A script of "
            "your own must call tracekit below 'if __name__ == \"__main__\":', because workers "
            "import it",
        ) from None


def _task_bytes(task: ShardTask) -> int:
    return sum(entry.file_bytes for entry, _ in task.sources)


def _run_here(tasks: Sequence[ShardTask], total: int, progress: Progress | None) -> list[ShardFile]:
    files: list[ShardFile] = []
    done = 0

    def step(entry: SourceEntry) -> None:
        nonlocal done
        done += entry.file_bytes
        if progress:
            progress(done, total, entry.path)

    for task in tasks:
        files += write_shard(task, step)
    return files


@contextlib.contextmanager
def _executor(scheduler: str | None, workers: int) -> Iterator[Executor]:
    if scheduler is None:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        # spawn: a fork would copy the threads of Arrow and DuckDB half alive.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=workers, mp_context=context) as pool:
            yield pool
            pool.shutdown(wait=False)  # they end by themselves, while this process derives
        return
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            "--scheduler needs dask.distributed", hint="pip install 'tracekit[cluster]'"
        ) from None
    with Client(scheduler) as client:
        yield client.get_executor()


def write_shard(
    task: ShardTask, step: Callable[[SourceEntry], None] | None = None
) -> list[ShardFile]:
    """Ingest the task's sources into their shard; paths relative to the run.

    Runs in a worker. The shard's folder appears whole, by rename, with its list of files; a
    folder that is already there is the same shard, finished earlier.
    """
    from tracekit.ingest.base import IngestOptions

    run = Path(task.run)
    target = run / "data" / task.shard
    with contextlib.suppress(FileNotFoundError):
        return _listed(target)
    work = work_folder(run)
    writer = store.ShardWriter(work, background=task.may_thread)
    options = IngestOptions(stacks=task.stacks)
    try:
        for entry, source in task.sources:
            with _without_collection():
                _ingest_source(entry, source, writer, options)
            if step:
                step(entry)
        if step:
            store.warm()  # here, not in a worker: to derive, once all is parsed
        files = writer.close()
        text = json.dumps([asdict(f) for f in files])
        (work / "shard.json").write_text(text, encoding="utf-8")
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # another writer finished the same shard: use that
            work.rename(target)
    finally:
        writer.stop()
        shutil.rmtree(work, ignore_errors=True)
        _release_memory()
    return _listed(target)


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


def _release_memory() -> None:
    """Give freed memory back to the system: parsing and querying must not add up to one peak."""
    import ctypes

    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # glibc has it; others need no telling
        ctypes.CDLL(None).malloc_trim(0)


def _listed(shard: Path) -> list[ShardFile]:
    entries = json.loads((shard / "shard.json").read_text(encoding="utf-8"))
    return [
        ShardFile(**{**entry, "path": f"data/{shard.name}/{entry['path']}"}) for entry in entries
    ]


def _ingest_source(
    entry: SourceEntry, source: SourceFile, writer: store.ShardWriter, options: IngestOptions
) -> None:
    """One source into the shard. Whatever is wrong with it becomes its status."""
    from tracekit.ingest import ingestor, recognise

    sink = writer.sink(entry.source_id)
    sink.fact(path=entry.path, sha256=entry.sha256, file_bytes=entry.file_bytes)
    try:
        found = recognise(source)
        sink.fact(kind=found.kind, status=found.status, reason=found.reason, **found.facts)
        if found.ingestor is not None:
            ingestor(found.ingestor).read(source, sink, options)
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
            shape=_where_raised(error),
        )
    sink.close()


def _where_raised(error: BaseException) -> str:
    """module:line of our own code; never the message, which may quote the file."""
    trace = error.__traceback__
    where = "unknown"
    while trace is not None:
        where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__} at {where}"


def _derive(
    run: Path,
    source_files: Sequence[ShardFile],
    job: JobDescription | None,
    key: str,
    memory_bytes: int | None,
    attempt: int | None,
    notes: list[str],
) -> list[ShardFile]:
    """Derive the whole run's tables into a folder of their own, never shared between writers."""
    from tracekit.derive import READS

    target = run / "derived" / f"{key[:16]}-{secrets.token_hex(4)}"
    work = work_folder(run)
    try:
        store.warm()  # for whoever opens the run
        con = store.open_physical(run, source_files, tables=READS, memory_bytes=memory_bytes)
        try:
            filled = {f.table for f in source_files if f.rows_count}
            tables = _derived(con, job, attempt, notes, filled)
        finally:
            closed = store.close_later(con)
        # Most jobs fill few of them; the views know what columns an absent one has.
        files = [
            store.write_table(work, name, rows)
            for name, rows in sorted(tables.items())
            if rows.num_rows
        ]
        target.parent.mkdir(parents=True, exist_ok=True)
        work.rename(target)
        del tables
        closed.result()
    finally:
        shutil.rmtree(work, ignore_errors=True)
        _release_memory()
    return [
        ShardFile(f.table, f"derived/{target.name}/{f.path}", f.rows_count, f.file_bytes)
        for f in files
    ]


def _derived(
    con: duckdb.DuckDBPyConnection,
    job: JobDescription | None,
    attempt: int | None,
    notes: list[str],
    filled: Collection[str],
) -> dict[str, pa.Table]:
    import duckdb

    from tracekit.derive import derive

    try:
        return derive(con, job, attempt=attempt, notes=notes, filled=filled)
    except duckdb.OutOfMemoryException:
        raise StoreError(
            "deriving the run's tables needs more memory than it may use", hint="--memory 4GB"
        ) from None


def work_folder(run: Path) -> Path:
    """A new folder for work in progress."""
    folder = work_path(run)
    folder.mkdir(parents=True)
    return folder


def _sweep_dead_work(run: Path) -> None:
    """Remove what killed processes of this host left behind."""
    host = socket.gethostname().split(".")[0]
    with contextlib.suppress(FileNotFoundError):
        for folder in (run / "tmp").iterdir():
            parts = folder.name.rsplit("-", 2)
            if (
                len(parts) == 3
                and parts[0] == host
                and parts[1].isdigit()
                and _is_dead(int(parts[1]))
            ):
                if folder.is_dir():
                    shutil.rmtree(folder, ignore_errors=True)
                else:
                    folder.unlink(missing_ok=True)


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
