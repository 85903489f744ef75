"""One generation of a run: read what is new, derive, and publish the manifest."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from tracekit import store
from tracekit.errors import StoreError
from tracekit.runs.execute import (
    Progress,
    carry_shard,
    release_memory,
    run_tasks,
    sweep_dead_work,
    work_folder,
)
from tracekit.runs.heads import refuse_mixed
from tracekit.runs.keys import (
    derive_version,
    digests_of,
    hash_of,
    ingestor_versions,
    job_digest,
    readers,
    whole,
)
from tracekit.runs.plan import (
    Pace,
    Shard,
    ShardTask,
    available_cpus,
    files_again,
    held_of,
    is_older,
    new_entries,
    plan_shards,
    spread,
    workers_within,
)
from tracekit.runs.sources import (
    columns_of,
    described,
    explain,
    gather,
    job_fields,
    job_of,
    without_held_reports,
)
from tracekit.schema import REGISTRY_VERSION
from tracekit.store.manifest import (
    Manifest,
    ShardFile,
    SourceEntry,
    commit,
    is_made_by_us,
    load,
    mark,
    next_generation,
)
from tracekit.version import __version__

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.cluster import Cluster
    from tracekit.derive.matching import Columns, Numbering
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
    cluster: Cluster | None = None,
    via: str | None = None,
    attempt: int | None = None,
    nsys: str | None = None,
    budget_s: float | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Bring ``paths`` into ``run`` (made if absent) and return its latest generation.

    Without paths: those that the run was made from, as far as they are still there; what is gone
    stays as it was read, and what is derived is derived again where this tracekit derives
    otherwise.
    With ``cluster`` its workers read the files; ``via`` is the URI below which they hand over what
    they made, where they do not see ``run``.
    ``nsys`` is the program that exports Nsight Systems reports among them. With ``budget_s``
    reading ends in time for a report within as many seconds; ``Manifest.unread`` names the files
    that wait, and the same call again goes on from there.
    Raises InputError where there is nothing to read, AmbiguousInputError where the sources
    cannot be one attempt, StoreError where ``run`` is something else or cannot be written.
    """
    from tracekit.ingest.base import IngestOptions

    if run.exists() and not is_made_by_us(run) and _is_foreign(run):
        raise StoreError(
            f"{run}: exists and is not a run", hint="name a new folder, or an existing run"
        )
    previous = load(run)
    if not paths and previous is not None:
        paths = files_again(previous)
    if paths or previous is None:
        files, job = gather(paths, job_paths, run)
    else:
        files, job = [], described(job_paths)
    if previous is None and attempt is None and not _places(job):
        refuse_mixed(files)
    options = IngestOptions(stacks=stacks)
    until = None if budget_s is None else time.monotonic() + READING_SHARE * budget_s
    remote = None if cluster is None else _Remote(cluster, run, via)
    with store.writing(run), contextlib.ExitStack() as stack:
        run.mkdir(parents=True, exist_ok=True)
        mark(run)
        sweep_dead_work(run)
        if nsys is not None:
            from tracekit.ingest.nsys.report import export_reports

            exports = work_folder(run)
            stack.callback(shutil.rmtree, exports, ignore_errors=True)
            files = export_reports(files, nsys, exports)
        for _ in range(COMMIT_TRIES):
            manifest = _ingest_once(
                files, job, run, options, workers, memory_bytes, attempt, until, progress, remote
            )
            if manifest is not None:
                return manifest
    raise _beaten(run)


class _Remote(Struct, frozen=True):
    """Where shards are written and calls numbered, if not on this machine."""

    cluster: Cluster
    run: Path
    via: str | None

    def written(self, tasks: Sequence[ShardTask]) -> Iterable[tuple[ShardTask, Shard]]:
        from tracekit.runs.elsewhere import written_elsewhere

        return written_elsewhere(self.cluster, self.run, tasks, self.via)

    def numbered(
        self, parts: Sequence[Columns]
    ) -> Iterable[tuple[int, Columns, Mapping[int, str]]]:
        """As ``derive.matching.Numbering``."""
        from tracekit.runs.numbered import numbered_elsewhere

        return numbered_elsewhere(self.cluster, self.run, parts, self.via)


class Staleness(Struct, frozen=True):
    """What of a run this tracekit would make otherwise."""

    is_derived_otherwise: bool
    """Its derived tables: they need no raw files to be made again."""
    older: tuple[SourceEntry, ...]
    """Sources whose ingestor has changed since."""


def staleness(manifest: Manifest) -> Staleness:
    """What of a run is from other versions than these."""
    known = readers()
    older = tuple(s for s in manifest.sources if is_older(s, known))
    return Staleness(manifest.derive_version != derive_version(), older)


def derive_again(run: Path, *, memory_bytes: int | None = None) -> Manifest:
    """Make a run's derived tables with this version; its raw files are not needed.

    StoreError where the run is damaged, or its folder may not be written.
    """
    from tracekit.ingest.base import IngestOptions

    rest = (None, memory_bytes, None, None, None)
    with store.writing(run):
        for _ in range(COMMIT_TRIES):
            manifest = _ingest_once([], None, run, IngestOptions(), *rest, may_read=False)
            if manifest is not None:
                return manifest
    raise _beaten(run)


def is_up_to_date(run: Path) -> bool:
    """Whether nothing of the run waits to be read, and these versions would make the same of it.

    Also of a damaged run, which whoever opens it will meet.
    """
    try:
        manifest = load(run)
    except StoreError:
        return True
    return (
        manifest is not None
        and not manifest.unread
        and manifest.derive_version == derive_version()
        and manifest.ingestor_versions == ingestor_versions()
    )


def _beaten(run: Path) -> StoreError:
    return StoreError(
        f"{run}: {COMMIT_TRIES} other writers were faster", hint="try again when they are done"
    )


def _ingest_once(
    files: Sequence[SourceFile],
    job: JobDescription | None,
    run: Path,
    options: IngestOptions,
    workers: int | None,
    memory_bytes: int | None,
    attempt: int | None,
    until: float | None,
    progress: Progress | None,
    remote: _Remote | None = None,
    *,
    may_read: bool = True,
) -> Manifest | None:
    """One attempt at the next generation; None if another writer came first."""
    previous = load(run)
    explained = columns_of(job or (job_of(previous) if previous else None))
    files = [explain(f, explained) for f in without_held_reports(files, previous)]
    known = {whole(s.path, s.folder) for s in previous.sources} if previous else set()
    first = files if until is None else [f for f in files if whole(f.path) in known]
    threads_count = workers or available_cpus()
    digests = digests_of(first, previous, threads_count)
    held = held_of(previous, first, digests, options, explained, may_read=may_read)
    new = new_entries([*first, *held.again], digests, previous, held, options)
    if memory_bytes is not None:
        workers = workers_within(memory_bytes, workers)

    def read(some: Sequence[tuple[SourceEntry, SourceFile]]) -> list[Shard]:
        width = workers or available_cpus() if remote is None else remote.cluster.width
        tasks = plan_shards(run, some, width, options)
        return run_tasks(tasks, workers, progress, remote.written if remote else None)

    shards: list[Shard] | None = None
    unread = {p for p in previous.unread if p not in {f.path for f in files}} if previous else set()
    if until is not None:
        shards = read(new) if new else []
        later = [f for f in spread(files) if whole(f.path) not in known]
        pace = Pace(until)
        while some := pace.next_round(later, workers or available_cpus()):
            later = [f for f in later if f not in some]
            found = digests_of(some, previous, threads_count)
            more = new_entries(some, found, previous, held, options, new)
            shards += read(more)
            new += more
        unread.update(f.path for f in later)
    if previous and job is None:
        job = job_of(previous)
    if attempt is None and previous:
        attempt = previous.attempt
    key = hash_of(
        *sorted(e.key for e in (*held.sources, *(entry for entry, _ in new))),
        job_digest(job),
        str(attempt),
        str(REGISTRY_VERSION),
        ingestor_versions(),
        derive_version(),
        *sorted(unread),
    )
    if previous and previous.key == key and not new:
        return previous
    store.verify_if_small(run, held.files)
    if shards is None:
        shards = read(new)
    readers = {i: reader for shard in shards for i, reader in shard.readers.items()}
    entries = (
        *held.sources,
        *(replace(entry, reader=readers.get(entry.source_id, "")) for entry, _ in new),
    )
    shards = [*(carry_shard(run, c) for c in held.carried), *shards]
    source_files = [*held.files, *(f for shard in shards for f in shard.files)]
    notes: list[str] = []
    number = remote.numbered if remote else None
    derived = _derive(run, entries, source_files, job, memory_bytes, attempt, notes, number)
    manifest = next_generation(
        previous,
        key=key,
        tracekit_version=__version__,
        registry_version=REGISTRY_VERSION,
        **job_fields(job, previous),
        sources=entries,
        files=(*source_files, *derived),
        attempt=attempt,
        notes=tuple(notes),
        unread=tuple(sorted(unread)),
        derive_version=derive_version(),
        ingestor_versions=ingestor_versions(),
    )
    if commit(run, manifest):
        return manifest
    if derived:
        shutil.rmtree(run / Path(derived[0].path).parent, ignore_errors=True)
    return None


def _places(job: JobDescription | None) -> bool:
    """Whether it says which attempt some source is of."""
    return job is not None and any(entry.attempt is not None for entry in job.source)


def _is_foreign(path: Path) -> bool:
    """Whether it is a file, or a folder that holds more than an unfinished run does."""
    ours = {"manifests", "data", "derived", "tmp"}
    return not path.is_dir() or any(entry.name not in ours for entry in path.iterdir())


def _derive(
    run: Path,
    sources: Sequence[SourceEntry],
    source_files: Sequence[ShardFile],
    job: JobDescription | None,
    memory_bytes: int | None,
    attempt: int | None,
    notes: list[str],
    number: Numbering | None = None,
) -> list[ShardFile]:
    """Derive the whole run's tables into a folder of their own, never shared between writers."""
    from tracekit.derive.run import READS

    target = run / "derived" / secrets.token_hex(12)
    work = work_folder(run)
    try:
        store.warm()  # for whoever opens the run
        with store.blaming(run, source_files):
            con = store.open_physical(run, source_files, tables=READS, memory_bytes=memory_bytes)
            try:
                filled = {f.table for f in source_files if f.rows_count}
                folders = {s.source_id: s.folder for s in sources if s.folder}
                tables = _derived(con, job, attempt, notes, filled, folders, number)
            finally:
                closed = store.close_later(con)
        tables["run"] = _with_readers(tables["run"], sources)
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
    return [replace(f, path=f"derived/{target.name}/{f.path}") for f in files]


def _with_readers(rows: pa.Table, sources: Sequence[SourceEntry]) -> pa.Table:
    """The rows of ``run``, which say what each ingestor's version was."""
    import pyarrow as pa

    readers = sorted({s.reader for s in sources if s.reader})
    index = rows.schema.get_field_index("ingestor_versions")
    column = pa.array([readers] * rows.num_rows, pa.list_(pa.string()))
    return rows.set_column(index, rows.schema.field(index), column)


def _derived(
    con: duckdb.DuckDBPyConnection,
    job: JobDescription | None,
    attempt: int | None,
    notes: list[str],
    filled: Collection[str],
    folders: Mapping[int, str],
    number: Numbering | None,
) -> dict[str, pa.Table]:
    import duckdb

    from tracekit.derive.run import derive

    try:
        return derive(
            con,
            job,
            attempt=attempt,
            notes=notes,
            filled=filled,
            folders=folders,
            number=number,
        )
    except duckdb.OutOfMemoryException:
        raise StoreError(
            "deriving the run's tables needs more memory than it may use", hint="--memory 4GB"
        ) from None
