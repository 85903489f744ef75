"""One generation of a run: read what is new, derive, and publish the manifest."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import store
from tracekit.errors import StoreError
from tracekit.runs.execute import Progress, release_memory, run_tasks, sweep_dead_work, work_folder
from tracekit.runs.keys import digests_of, hash_of, ingestor_versions
from tracekit.runs.plan import (
    Pace,
    available_cpus,
    held_of,
    new_entries,
    plan_shards,
    spread,
    workers_within,
)
from tracekit.runs.sources import (
    columns_of,
    explain,
    gather,
    job_of,
    job_text,
    without_held_reports,
)
from tracekit.schema import REGISTRY_VERSION
from tracekit.store.manifest import (
    Manifest,
    ShardFile,
    SourceEntry,
    commit,
    load,
    next_generation,
)
from tracekit.version import __version__

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.ingest.base import IngestOptions, SourceFile
    from tracekit.job import JobDescription


COMMIT_TRIES = 20


READING_SHARE = 0.8
"""Part of a time budget in which files are read; the rest is for deriving and judging."""


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
        sweep_dead_work(run)
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


def has_unread(run: Path) -> bool:
    """Whether a time budget left files of the run for another time; not of a damaged run, which
    whoever opens it will meet."""
    try:
        manifest = load(run)
    except StoreError:
        return False
    return manifest is not None and bool(manifest.unread)


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
    files = [explain(f, explained) for f in without_held_reports(files, previous)]
    known = {s.path for s in previous.sources} if previous else set()
    first = files if until is None else [f for f in files if f.path in known]
    digests = digests_of(first, previous)
    held = held_of(previous, digests, options, explained)
    new = new_entries([*first, *held.again], digests, previous, held, options)
    if memory_bytes is not None:
        workers = workers_within(memory_bytes, workers)

    def read(some: Sequence[tuple[SourceEntry, SourceFile]]) -> list[ShardFile]:
        tasks = plan_shards(run, some, workers or available_cpus(), options)
        return run_tasks(tasks, workers, scheduler, progress)

    shard_files: list[ShardFile] | None = None
    unread = {p for p in previous.unread if p not in {f.path for f in files}} if previous else set()
    if until is not None:
        shard_files = read(new) if new else []
        later = [f for f in spread(files) if f.path not in known]
        pace = Pace(until)
        while some := pace.next_round(later, workers or available_cpus()):
            later = [f for f in later if f not in some]
            more = new_entries(some, digests_of(some, previous), previous, held, options, new)
            shard_files += read(more)
            new += more
        unread.update(f.path for f in later)
    entries = (*held.sources, *(entry for entry, _ in new))
    digest = job.digest() if job else ""
    if previous and not digest and previous.job_toml:
        job, digest = _job_of(previous)
    if attempt is None and previous:
        attempt = previous.attempt
    key = hash_of(
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
        job_toml=job_text(job),
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


def _is_foreign(path: Path) -> bool:
    """Whether it is a file, or a folder that holds more than an unfinished run does."""
    ours = {"manifests", "data", "derived", "tmp"}
    return not path.is_dir() or any(entry.name not in ours for entry in path.iterdir())


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
        release_memory()
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
