"""The Python API: the command line is a skin over these.

import tracekit
run = tracekit.open("traces/")           # a run, or raw paths through the cache
run.query("step_time_summary")           # polars.DataFrame
report = run.diagnose()                  # findings, metrics, .to_json()
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit import cache, runs, store
from tracekit.cluster import Cluster, cluster_of
from tracekit.errors import (
    DamagedRunError,
    QueryError,
    RunWriteError,
    StoreError,
    TracekitError,
    UsageError,
)
from tracekit.objects import is_uri, local
from tracekit.schema import REGISTRY_VERSION
from tracekit.store import Selection
from tracekit.store.manifest import Manifest, load
from tracekit.target import Target
from tracekit.wording import escaped, pairs, plural, safe

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    import pyarrow as pa
    from matplotlib.figure import Figure

    from tracekit.answers import Answers
    from tracekit.comparison.model import Comparison
    from tracekit.comparison.sides import RunRows
    from tracekit.job import JobDescription
    from tracekit.kept import Rows
    from tracekit.query_file import Query
    from tracekit.report.model import Report
    from tracekit.rules import Facts
    from tracekit.timeline import Detail, Written
    from tracekit.whatif import Cause, WhatIf

PathLike = str | Path
SHOWN_PATHS = 3
"""Paths that a report repeats."""

_LOG = logging.getLogger("tracekit")


class OpenRun(Struct, dict=True, weakref=True):
    """An open run: query it, run SQL on it, diagnose it. Close it, or use it in ``with``."""

    run: store.Run
    name: str | None = None
    """What the user gave; default: the run's folder."""
    target: Target | None = None
    """The same as words of the next command."""

    def __repr__(self) -> str:
        return f"<OpenRun {safe(self.name or str(self.path))}: {self._contents()}>"

    def _repr_html_(self) -> str:
        filled = sorted(self.run.tables)
        rows = [
            ("Holds", self._contents()),
            ("Tables", f"{len(filled)} with rows: {', '.join(filled)}"),
            ("Ask", '.diagnose()  .query("overlap")  .sql("SELECT ...")  .plot("step_times")'),
        ]
        return f"<p><b>{escaped(self.name or str(self.path))}</b></p>\n{pairs(rows)}"

    def _contents(self) -> str:
        """How many files, read by what, as the manifest has them."""
        readers = Counter(s.reader.partition("=")[0] for s in self.run.manifest.sources if s.reader)
        told = ", ".join(f"{n} {safe(reader)}" for reader, n in sorted(readers.items()))
        return told or plural(len(self.run.manifest.sources), "file")

    @cached_property
    def answers(self) -> Answers:
        """What named queries answer."""
        from tracekit.answers import Answers

        return Answers(self.run)

    @property
    def con(self) -> duckdb.DuckDBPyConnection:
        """The connection with every view and macro, as SQL needs it."""
        return self.answers.con()

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.run.path

    @cached_property
    def job(self) -> JobDescription | None:
        """The job description that the run was made with."""
        return runs.job_of(self.run.manifest)

    def table(self, name: str, **params: object) -> pa.Table:
        """Rows of a named query as an Arrow table. UsageError for a query that is not there."""
        from tracekit import catalog

        query = catalog.find(name)
        if catalog.finds_nothing(query, self.run.tables):
            query.bind(params)
            return catalog.no_rows(self.run.prepare(()), query)
        rows = self._kept_rows(query, params)
        if rows is None:
            with self._asking(query) as con:
                rows = catalog.run(con, name, **params)
        if query.completed == "replay":
            from tracekit import replays

            return replays.with_slowdowns(self.con, rows)
        if query.completed == "job":
            from tracekit import traffic

            return traffic.with_expected(rows, self.job)
        return rows

    def _kept_rows(self, query: Query, params: Mapping[str, object]) -> pa.Table | None:
        """What its SQL gave, as it is kept, where something is to complete it."""
        from tracekit import catalog

        kept = self.answers.kept_rows(query.name) if query.completed and not params else None
        if kept is None:
            return None
        import pyarrow as pa

        schema = catalog.no_rows(self.run.prepare(()), query).schema
        return pa.Table.from_pylist(kept, schema)

    def few_rows(self, name: str, params: Mapping[str, object], most_rows: int) -> Rows | pa.Table:
        """As ``table``, of a query that nothing completes; up to so many rows as dictionaries, for
        which Arrow need not start."""
        from tracekit import catalog

        query = catalog.find(name)
        if catalog.finds_nothing(query, self.run.tables):
            query.bind(params)
            return []
        with self._asking(query) as con, self.run.planned_briefly():
            return catalog.few_rows(con, name, params, most_rows)

    @contextlib.contextmanager
    def _asking(self, query: Query) -> Iterator[duckdb.DuckDBPyConnection]:
        """The connection with all that a query needs."""
        from tracekit import sharing

        con = self.answers.con([query])
        with sharing.shared(con, [query.name], may_have_hosts=self.run.may_have_hosts):
            yield con

    def query(self, name: str, **params: object) -> pl.DataFrame:
        """Rows of a named query as a Polars frame."""
        return _frame(self.table(name, **params))

    def sql(self, text: str) -> pl.DataFrame:
        """Rows of one SELECT over the run's views. QueryError for anything else."""
        return _frame(self.rows(text))

    def rows(self, text: str) -> pa.Table:
        """Rows of one SELECT over the run's views as an Arrow table."""
        try:
            return store.rows_of(self.answers.con_naming(text), text)
        except QueryError as error:
            if not error.message.startswith(("Binder Error", "Catalog Error")):
                raise
        return store.rows_of(self.con, text)  # what it calls otherwise is there too, or is proposed

    def diagnose(
        self,
        *,
        select: Sequence[str] = (),
        ignore: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> Report:
        """Findings, verdict and metrics of the run (of its selected part)."""
        return self._diagnosed(select=select, ignore=ignore, config=config)[1]

    def _diagnosed(
        self,
        *,
        select: Sequence[str] = (),
        ignore: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> tuple[Facts, Report]:
        """The report, and the facts that it was made of."""
        from tracekit.diagnose import diagnosed, job_facts
        from tracekit.report.config import DiagnoseConfig
        from tracekit.report.domains import with_topology

        facts = replace(
            job_facts(self.answers, self.run.selection.attempt),
            run_id=self.name or str(self.path),
            target=self.target or Target((str(self.path),)),
        )
        manifest = self.run.manifest
        notes = (*manifest.notes, *_remarks(manifest))
        facts = replace(facts, notes=notes, unread=manifest.unread)
        facts = replace(
            facts,
            left_out_ranks=self.run.left_out_ranks(facts.attempt),
            left_out_files=self.run.left_out_files(),
        )
        span = self.run.selected_span_ns()
        if span is not None:
            facts = replace(facts, start_ns=span[0], end_ns=span[1])
        facts = with_topology(facts, self.job)
        facts = replace(facts, prices=self.job.prices if self.job is not None else None)
        settings = DiagnoseConfig.from_mapping(config or {}, select, ignore)
        return diagnosed(
            self.answers,
            facts,
            config=settings,
            filled=self.run.tables,
            description=self.job,
        )

    def expect_page(self) -> None:
        """Say before a diagnosis that its page will be asked for: so it takes less time."""
        from tracekit import pictures

        pictures.expect_page(self.answers, self.run.tables)

    def page(self, report: Report | None = None) -> str:
        """The report as one HTML page that needs no network; None diagnoses first."""
        from tracekit import pictures

        if report is None:
            self.expect_page()
            report = self.diagnose()
        return pictures.page(self.answers, report, self.run.tables, self.job)

    def plot(self, name: str, *, findings: bool = True) -> Figure:
        """One figure by its name, as ``tracekit plot --list`` has them.

        ``findings`` marks what a diagnosis finds, where the figure marks any. UsageError for a
        name that is not there, InputError where the run has nothing to draw.
        """
        from tracekit import dashboards, pictures

        is_marked = findings and dashboards.chart(name).marks_findings
        marked = self.diagnose().findings if is_marked else ()
        return pictures.plot(self.answers, name, self.run.tables, self.job, marked)

    def compared(self, config: Mapping[str, Any] | None = None) -> RunRows:
        """The run as one of a side that ``compare`` takes: its rows, and its diagnosis."""
        from tracekit import comparing

        report = self.diagnose(config=config)
        return comparing.run_rows(self.answers, report, self.run.tables)

    def whatif(
        self, causes: Sequence[Cause] = (), *, config: Mapping[str, Any] | None = None
    ) -> WhatIf:
        """Replay the run, and take each cause out.

        By its pipeline operations, with the published metrics; where there are none, or their
        replay is refused and that of the matched collectives is not, by those. A cause of a
        pipeline is taken out of its launches and streams where these are known, since they hold
        what the named operations leave out, unless it names operations. What is removed and what
        ``diagnose`` names (with ``config`` as there) costs what that finding costs, by its method
        and within its bounds. InputError where the run holds neither.
        """
        from tracekit import replays

        dp = self.job.parallelism.dp if self.job is not None else None
        try:
            if not any(c.factor is None for c in causes):
                return replays.whatif(self.con, dp, causes)
            from tracekit.priced import whatif_priced

            facts, report = self._diagnosed(config=config)
            return whatif_priced(self.con, dp, causes, facts, report.document.findings)
        except TracekitError as error:
            if error.hint and self.target is not None:
                error.hint = self.target.filled(error.hint)
            raise

    def timeline(
        self,
        path: PathLike,
        *,
        max_slices: int | None = None,
        detail: Detail = "all",
        findings: bool = True,
        memory_bytes: int | None = None,
    ) -> Written:
        """Write all ranks on one clock for ui.perfetto.dev (packed where the name ends in .gz).

        At most ``max_slices``: steps around the first finding are chosen, and what is left out is
        said in the answer's ``cuts``. ``detail="device"`` leaves out operators and runtime calls.
        """
        from tracekit import draw

        return draw.draw(
            self.run,
            Path(path),
            report=self.diagnose() if findings else None,
            max_slices=max_slices,
            detail=detail,
            memory_bytes=memory_bytes,
        )

    def derived_tables(self) -> dict[str, pa.Table]:
        """Every derived table of the run (of its selected part)."""
        from tracekit.schema import TABLES

        derived = [t.name for t in TABLES if t.kind == "derived"]
        con = self.run.prepare(derived)
        return {name: con.table(name).to_arrow_table() for name in derived}

    def close(self) -> None:
        """Close the run."""
        self.run.close()

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self.close()
        if self.run.failures is not None:
            if isinstance(error, Exception) and self.run.failures:
                raise self.run.failures[-1] from None
        elif isinstance(error, DamagedRunError):  # seen once DuckDB read a file
            self._leave_cache(error)
        elif isinstance(error, Exception) and not isinstance(error, TracekitError):
            self._blame_damage(error)

    def _blame_damage(self, error: Exception) -> None:
        """DamagedRunError where the run's files are why something failed, and not we are.

        A large run is not read through when it is opened.
        """
        try:
            store.verify(self.path, self.run.manifest.files)
        except DamagedRunError as damaged:
            self._leave_cache(damaged)
            raise damaged from error

    def _leave_cache(self, damaged: DamagedRunError) -> None:
        if cache.is_kept(self.path):
            cache.drop(self.path)
            damaged.hint = "it has left the cache: the same command reads the files again"


def _frame(table: pa.Table) -> pl.DataFrame:
    import polars as pl

    from tracekit.report.frames import shown

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)  # noqa: S101  # a table never becomes a Series
    return shown(frame)


def ingest(
    paths: PathLike | Sequence[PathLike],
    *,
    run: PathLike,
    job: Sequence[PathLike] = (),
    stacks: bool = False,
    workers: int | None = None,
    memory_bytes: int | None = None,
    scheduler: str | None = None,
    cluster: str | None = None,
    attempt: int | None = None,
    nsys: PathLike | None = None,
    progress: runs.Progress | None = None,
) -> OpenRun:
    """Bring files into a run and open it; the same files again change nothing.

    ``scheduler`` is the address of a Dask cluster whose workers read the files; ``cluster`` starts
    one for it (local, slurm or kubernetes, of so many ``workers``).
    ``nsys`` is the program that exports Nsight Systems reports (.nsys-rep) among them.
    """
    run = local(os.fspath(run))
    if is_uri(run):
        raise UsageError(
            f"{run}: a run is made in a folder",
            hint="--lake LAKE makes it in a lake of a store",
        )
    with cluster_of(scheduler, cluster, workers, memory_bytes) as remote:
        runs.ingest(
            [paths] if isinstance(paths, (str, Path)) else list(paths),
            Path(run),
            job_paths=job,
            stacks=stacks,
            workers=workers,
            memory_bytes=memory_bytes,
            cluster=remote,
            attempt=attempt,
            nsys=str(nsys) if nsys is not None else None,
            progress=progress,
        )
        if remote is not None:
            folder = runs.work_folder(Path(run))
            try:
                keep_waits(remote, run, os.path.abspath(folder), memory_bytes=memory_bytes)  # noqa: PTH100
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return OpenRun(store.open_run(Path(run), memory_bytes=memory_bytes))


def keep_waits(
    cluster: Cluster, run: PathLike, place: str, *, memory_bytes: int | None = None
) -> None:
    """Have the workers of a cluster work out who was late in a run: see ``waits_elsewhere``.

    ``place`` is a folder or a URI of the caller's where they hand over rows.
    """
    from tracekit import waits_elsewhere

    where = run if is_uri(run) else os.path.abspath(run)  # noqa: PTH100  # resolves no link
    with open(run, memory_bytes=memory_bytes) as opened:
        waits_elsewhere.keep_waits(cluster, opened.run, where, place)


def open(  # the name that DESIGN gives it: used as tracekit.open
    paths: PathLike | Sequence[PathLike],
    *,
    job: Sequence[PathLike] = (),
    selection: Selection | None = None,
    workers: int | None = None,
    memory_bytes: int | None = None,
    nsys: PathLike | None = None,
    budget_s: float | None = None,
    progress: runs.Progress | None = None,
    in_place: bool | Collection[str] = False,
) -> OpenRun:
    """Open a run, or raw paths through the cache.

    A run in an object store is copied into the cache. ``in_place`` reads of a large one the columns
    and row groups that a query needs, each time: for a query or two. Given the tables that will be
    read, it does so only where these are the smaller part of the run.
    ``nsys`` is the program that exports Nsight Systems reports (.nsys-rep) among them.
    ``budget_s`` ends the reading in time for a report within as many seconds; files that are left
    are named in the report, and the next call goes on with them.
    InputError where nothing can be read, AmbiguousInputError where the files cannot be one
    attempt of one job. Without ``selection.attempt`` the last attempt is opened.
    """
    given = _listed(paths)
    named, jobs = tuple(map(str, given)), tuple(map(str, job))
    if in_place and not job and len(given) == 1 and is_uri(given[0]):
        wanted = None if in_place is True else in_place
        there = _opened_in_place(named[0], wanted, selection, memory_bytes)
        if there is not None:
            return OpenRun(there, named[0], Target(named))
    if any(is_uri(path) for path in given):
        given = [_fetched(given)]
    folder = Path(given[0])
    if len(given) == 1 and store.is_run(folder):
        if job:
            raise UsageError(
                f"{folder}: a run keeps the job description that it was made with",
                hint="tracekit ingest PATH --run NEW --job FILE",
            )
        _bring_up_to_date(folder, memory_bytes)
        _sweep(folder)
        opened = _opened(folder, selection, memory_bytes)
    else:
        exporter = str(nsys) if nsys is not None else None
        opened = _open_cached(
            given, job, selection, workers, memory_bytes, exporter, budget_s, progress
        )
    chosen = _last_attempt(
        opened,
        selection or Selection(),
        lambda part: store.open_run(opened.path, part, memory_bytes=memory_bytes),
    )
    more = f" and {len(given) - SHOWN_PATHS} more" if len(given) > SHOWN_PATHS else ""
    # What was read of many paths is kept in one folder, which is a run with its description.
    target = Target(named, jobs) if len(given) <= SHOWN_PATHS else Target((str(opened.path),))
    return OpenRun(chosen, " ".join(named[:SHOWN_PATHS]) + more, target)


def _fetched(paths: Sequence[PathLike]) -> Path:
    """The folder of a run that lies in an object store."""
    if len(paths) > 1:
        stored = next(path for path in paths if is_uri(path))
        raise UsageError(
            f"{stored}: what lies in a store cannot be mixed with other paths",
            hint="name one run of a lake; raw files are read where they are files",
        )
    from tracekit.fetch import fetched

    return fetched(str(paths[0]))


def _opened_in_place(
    uri: str,
    wanted: Collection[str] | None,
    selection: Selection | None,
    memory_bytes: int | None,
) -> store.Run | None:
    """A large run read where it lies, with its last attempt; None where it must be copied, because
    this version would derive it otherwise."""
    from tracekit.fetch import in_place

    there = in_place(uri, wanted)
    if there is None or runs.staleness(there.manifest).is_derived_otherwise:
        return None
    for remark in _remarks(there.manifest):
        _LOG.warning("note: %s: %s", uri, remark)

    def opened(part: Selection) -> store.Run:
        return store.open_elsewhere(
            there.folder,
            there.manifest,
            there.tables,
            there.failures,
            part,
            memory_bytes=memory_bytes,
        )

    chosen = selection or Selection()
    return _last_attempt(opened(chosen), chosen, opened)


def _opened(folder: Path, selection: Selection | None, memory_bytes: int | None) -> store.Run:
    """An open run; without DuckDB, until it is asked, where answers of its tables are kept."""
    from tracekit.kept import path_of

    run = store.open_run(folder, selection, memory_bytes=memory_bytes, lazily=True)
    if not path_of(run).is_file():
        run.prepare(())
    return run


def compare(
    baseline: PathLike | Sequence[PathLike],
    candidate: PathLike | Sequence[PathLike],
    *,
    job: Sequence[PathLike] = (),
    selection: Selection | None = None,
    config: Mapping[str, Any] | None = None,
    workers: int | None = None,
    memory_bytes: int | None = None,
    nsys: PathLike | None = None,
    progress: runs.Progress | None = None,
) -> Comparison:
    """What changed from the baseline to the candidate, how sure that is, and what it is made of.

    Each side is a run or several: every run and every folder is one, and files that are given
    beside each other are one together. Everything else holds for each of them, as in ``open`` and
    ``diagnose``. Errors as ``open``.
    """
    from tracekit.comparison.build import compare as compared

    reading = {"workers": workers, "memory_bytes": memory_bytes, "nsys": nsys, "progress": progress}
    sides: list[list[RunRows]] = []
    for paths in (baseline, candidate):
        side: list[RunRows] = []
        for given in _as_runs(_listed(paths)):
            with open(given, job=job, selection=selection, **reading) as run:  # type: ignore[arg-type]  # each as open declares it
                side.append(run.compared(config))
        sides.append(side)
    return compared(*sides)


def _as_runs(paths: Sequence[PathLike]) -> list[list[PathLike]]:
    """The paths of a side, by run."""
    runs_there = [path for path in paths if is_uri(path) or Path(path).is_dir()]
    files = [path for path in paths if path not in runs_there]
    folders = [[path] for path in runs_there]
    return [*folders, *([files] if files else [])]


def _bring_up_to_date(folder: Path, memory_bytes: int | None) -> None:
    """Derive a kept run again where this version derives otherwise, and say what is older.

    That needs no raw files. Reading them again may take long, or change what they were: only when
    asked for.
    """
    manifest = load(folder)
    if manifest is None or manifest.registry_version != REGISTRY_VERSION:
        return  # to open it says so
    if runs.staleness(manifest).is_derived_otherwise:
        made = manifest.tracekit_version
        try:
            runs.derive_again(folder, memory_bytes=memory_bytes)
        except RunWriteError as error:
            _LOG.warning(
                "note: %s: derived by another tracekit (%s); to derive again it must be writable "
                "(%s)",
                folder,
                made,
                error.message,
            )
        else:
            _LOG.warning("note: %s: derived by another tracekit (%s), now again", folder, made)
    for remark in _remarks(manifest):
        _LOG.warning("note: %s: %s; tracekit ingest --run %s", folder, remark, folder)


def _remarks(manifest: Manifest) -> tuple[str, ...]:
    """What of a run's rows an ingestor of another version wrote, in words."""
    older = runs.staleness(manifest).older
    if not older:
        return ()
    readers = ", ".join(sorted({s.reader.replace("=", " ") for s in older}))
    count = f"{len(older)} of {len(manifest.sources)} sources"
    return (f"{count} as another version of their ingestor read them ({readers})",)


def _sweep(folder: Path) -> None:
    """Remove what a killed query of this host spilled beside the run."""
    with contextlib.suppress(OSError):  # a run that may only be read
        runs.sweep_dead_work(folder)


def _last_attempt(
    run: store.Run, selection: Selection, again: Callable[[Selection], store.Run]
) -> store.Run:
    """Nothing is averaged across attempts: the last one, unless one was named."""
    if selection.attempt is not None or run.rows_count("run") <= 1:
        return run
    row = (
        run.prepare(["run"])
        .execute("SELECT count(DISTINCT attempt), max(attempt) FROM run")
        .fetchone()
    )
    if not row or row[0] <= 1:
        return run
    run.close()
    return again(replace(selection, attempt=int(row[1])))


def _open_cached(
    paths: Sequence[PathLike],
    job: Sequence[PathLike],
    selection: Selection | None,
    workers: int | None,
    memory_bytes: int | None,
    nsys: str | None,
    budget_s: float | None,
    progress: runs.Progress | None,
) -> store.Run:
    attempt = selection.attempt if selection else None
    reading = (workers, memory_bytes, attempt, nsys, budget_s, progress)
    folder = _cached(paths, job, *reading)
    _sweep(folder)
    try:
        return _opened(folder, selection, memory_bytes)
    except StoreError as error:  # a cached run that is damaged is worth nothing: read again
        _drop_damaged(folder, error)
    folder = _cached(paths, job, *reading)
    return store.open_run(folder, selection, memory_bytes=memory_bytes)


def _drop_damaged(folder: Path, error: StoreError) -> None:
    _LOG.warning("note: cache: %s; reading the files again", error.message)
    cache.drop(folder)


def _cached(
    paths: Sequence[PathLike],
    job: Sequence[PathLike],
    workers: int | None,
    memory_bytes: int | None,
    attempt: int | None,
    nsys: str | None,
    budget_s: float | None,
    progress: runs.Progress | None,
) -> Path:
    for path in paths:
        if store.is_run(Path(path)):
            raise UsageError(
                f"{path}: a run cannot be mixed with other paths",
                hint="tracekit ingest PATH --run RUN adds files to a run",
            )
    files, description = runs.gather(paths, job)
    identity = [(os.path.realpath(f.path), f.file_bytes, f.mtime_ns) for f in files]
    digest = runs.job_digest(description)
    options = f"attempt={attempt}"
    folder = cache.run_folder(identity, digest, options)
    if runs.has_reports(files):
        # Exported once, a report's rows serve the next commands without --nsys as well.
        exported = cache.run_folder(identity, digest, f"{options} exported")
        if nsys is not None or cache.is_kept(exported):
            folder = exported
    if not cache.is_kept(folder) or not runs.is_up_to_date(folder):
        ingest = partial(
            runs.ingest,
            paths,
            job_paths=job,
            workers=workers,
            memory_bytes=memory_bytes,
            attempt=attempt,
            nsys=nsys,
            budget_s=budget_s,
            progress=progress,
        )
        folder = cache.make_folder(folder)
        try:
            ingest(run=folder)
        except DamagedRunError as error:
            _drop_damaged(folder, error)
            folder = cache.make_folder(folder)
            ingest(run=folder)
        cache.trim()
    cache.touch(folder)
    return folder


def _listed(paths: PathLike | Sequence[PathLike]) -> list[PathLike]:
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given:
        raise UsageError("no path was given", hint="give trace files, folders, archives or a run")
    return [local(path) if isinstance(path, str) else path for path in given]
