"""Opening a run: DuckDB in memory over exactly the files that the manifest lists."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from msgspec import Struct

from tracekit.correction import corrected_sql
from tracekit.errors import DamagedRunError, StoreError, TracekitError
from tracekit.schema import REGISTRY_VERSION, TABLES, Table, table
from tracekit.store import damage
from tracekit.store.manifest import Manifest, ShardFile, load, work_path
from tracekit.store.selection import (
    Selection,
    check_times,
    derived_clauses,
    prepare,
    quote,
    selected_span_ns,
    source_clauses,
)
from tracekit.store.statement import rows_of, run_select

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    import pyarrow.dataset as ds

DEFAULT_MEMORY_BYTES = 512_000_000
"""For the tables and sorts of queries, beyond which they go to disk. With twice as much a diagnosis
of a trace of 2 GB is a fifth faster, one of 4,096 ranks a tenth slower (so from 512 MiB on)."""

ONE_THREAD_BYTES = 128 << 20
"""Below this many bytes of Parquet a second thread costs more memory than it saves time."""

MAX_ASKED_ROWS = 10_000_000
"""Of so many GPU operations it takes a few ms to ask which sources have some."""

IN_MEMORY_BYTES = 1 << 20
"""In a run of up to this many bytes of Parquet a table that many queries read is read once, into
memory, where it takes some 35 times as many: each query would plan and open its files again. A
query alone reads the few columns that it needs in less time."""

IN_MEMORY_ROWS = 1_000_000
"""No such run has more rows: ten million lines of a log fit in a megabyte of Parquet."""


_KEPT_OPTIMIZERS = """
    'build_side_probe_side', 'cte_inlining', 'deliminator', 'expression_rewriter', 'filter_pullup',
    'filter_pushdown', 'in_clause', 'limit_pushdown', 'top_n', 'unnest_rewriter', 'unused_columns'
"""
"""What makes a plan of few rows faster by more than it takes itself. Of the 35 others the order of
joins takes most: named queries write theirs in an order that will do, a user's query may not."""
_KIND = """
SELECT if(table_type = 'VIEW', 'VIEW', 'TABLE') FROM information_schema.tables WHERE table_name = ?
"""


class _Connected(NamedTuple):
    con: duckdb.DuckDBPyConnection
    waiting: dict[str, str]
    """Tables that nobody asked for yet, as SELECT: a named query needs few, and a view costs half a
    ms."""
    selection: Selection
    may_have_hosts: bool


class Run(Struct, dict=True):
    """An open run. ``con`` may be used for reading; its configuration is locked."""

    path: Path
    manifest: Manifest
    tables: frozenset[str]
    """Tables that have rows in this run."""
    _chosen: Selection
    _connect: Callable[[], _Connected]
    failures: Sequence[TracekitError] | None = None
    """Of a run that is read elsewhere: what could not be. None: its files are here."""

    @cached_property
    def _connected(self) -> _Connected:
        return self._connect()

    @property
    def selection(self) -> Selection:
        """What is open, less selections of all that there is."""
        return self._chosen if self._chosen.is_empty() else self._connected.selection

    @property
    def may_have_hosts(self) -> bool:
        """Whether a rank may have no GPU operations, so that it is measured on its host."""
        return self._connected.may_have_hosts

    @property
    def is_small(self) -> bool:
        """Whether what many queries need of it is held in memory."""
        return _is_small(self.manifest.files)

    @property
    def con(self) -> duckdb.DuckDBPyConnection:
        """The connection with every table."""
        return self.prepare()

    def prepare(
        self, names: Iterable[str] | None = None, *, for_many: bool = False
    ) -> duckdb.DuckDBPyConnection:
        """The connection, with those tables (all of them, unless named).

        ``for_many``: many queries will read them, so a small run's are held in memory.
        """
        con, waiting, *_ = self._connected
        asked = waiting if names is None else names
        wanted = [name for name in dict.fromkeys(asked) if name in waiting]
        if for_many and self.is_small and wanted:
            with self.planned_briefly():
                for name in wanted:
                    con.execute(f"CREATE TABLE {name} AS {waiting.pop(name)}")
        else:
            for name in wanted:
                con.execute(f"CREATE VIEW {name} AS {waiting.pop(name)}")
        return con

    @contextlib.contextmanager
    def planned_briefly(self) -> Iterator[None]:
        """Within it, statements on a small run are planned with fewer optimizers: a fifth of the
        time of a query of few rows. For named queries: see ``_KEPT_OPTIMIZERS``.

        It holds for all connections to the run, so nothing else should ask meanwhile.
        """
        if not self.is_small:
            yield
            return
        con = self._connected.con
        leave_optimizers_out(con)
        try:
            yield
        finally:
            con.execute("RESET disabled_optimizers")

    def put(self, tables: Mapping[str, pa.Table]) -> None:
        """Let derived tables show these rows instead, which are of what is selected."""
        con, waiting, *_ = self._connected
        for name, rows in tables.items():
            waiting.pop(name, None)
            con.register("put_rows", rows)
            (kind,) = con.execute(_KIND, [name]).fetchone() or ("VIEW",)
            con.execute(f"DROP {kind} IF EXISTS {name}")
            con.execute(f"CREATE TABLE {name} AS FROM put_rows")
            con.unregister("put_rows")

    def rows_count(self, table: str) -> int:
        """Rows of a table as stored: of the whole run, whatever is selected."""
        return sum(f.rows_count for f in self.manifest.files if f.table == table)

    def left_out_ranks(self, attempt: int) -> frozenset[int]:
        """Ranks of an attempt that the run has and the selection leaves out."""
        if self.selection.is_empty():
            return frozenset()
        rows = self._connected.con.execute(
            "SELECT rank FROM left_out_rank WHERE attempt = ?", [attempt]
        ).fetchall()
        return frozenset(rank for (rank,) in rows)

    def left_out_files(self) -> int:
        """Files of no rank that the selection leaves out: those of other hosts."""
        if self.selection.is_empty():
            return 0
        ((count,),) = self._connected.con.execute(
            "SELECT count(*) FROM every_context JOIN left_out_source USING (source_id) "
            "WHERE rank IS NULL"
        ).fetchall()
        return int(count)

    def selected_span_ns(self) -> tuple[int, int] | None:
        """From when to when the selected steps, or else traces, reach; None if all are selected,
        or none of them has a time."""
        if self.selection.is_empty():
            return None
        return selected_span_ns(self.prepare(["source", "step"]), self.selection)

    def sql(self, text: str) -> duckdb.DuckDBPyRelation:
        """Run one SELECT or EXPLAIN. QueryError for anything else, and for SQL that fails."""
        return run_select(self.con, text)

    def rows(self, text: str) -> pa.Table:
        """All rows of one SELECT or EXPLAIN. QueryError also for what fails on the way."""
        return rows_of(self.con, text)

    def close(self) -> None:
        """Close the connection."""
        if "_connected" in self.__dict__:
            self._connected.con.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_spare: deque[Future[duckdb.DuckDBPyConnection]] = deque()


def warm() -> None:
    """Begin to start DuckDB in a thread: it takes 15 ms, in which a trace can be read."""
    import duckdb

    pool = ThreadPoolExecutor(1, "duckdb-start")
    _spare.append(pool.submit(duckdb.connect, ":memory:"))
    pool.shutdown(wait=False)


def close_later(con: duckdb.DuckDBPyConnection) -> Future[None]:
    """Close a connection in a thread: it takes 5 ms, in which something else can be done."""
    pool = ThreadPoolExecutor(1, "duckdb-end")
    closed = pool.submit(con.close)
    pool.shutdown(wait=False)
    return closed


def release_freed() -> None:
    """Give what queries have freed back to the system, of all databases of this process.

    DuckDB's allocator keeps hundreds of MB of it, and gives it up where a limit is set: as another
    database begins, too, which takes 10 ms.
    """
    import duckdb

    duckdb.connect(":memory:").close()


def _new_connection() -> duckdb.DuckDBPyConnection:
    """One that ``warm`` began to make, or a new one."""
    import duckdb

    with contextlib.suppress(IndexError):
        return _spare.popleft().result()
    return duckdb.connect(":memory:")


def connect(
    allowed_paths: Sequence[str], *, threads: int | None, memory_bytes: int | None, spill: Path
) -> duckdb.DuckDBPyConnection:
    """DuckDB in memory that can read ``allowed_paths`` and nothing else.

    The configuration is not locked yet: call ``lock`` once the views exist.
    """
    con = _new_connection()
    if threads == 1:
        _mark_one_threaded(con)
    settings = {
        **({"threads": str(int(threads))} if threads else {}),
        "memory_limit": f"'{int(memory_bytes or DEFAULT_MEMORY_BYTES)}B'",
        "temp_directory": quote(str(spill)),
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "preserve_insertion_order": "false",
        # Estimated as few rows, an ASOF join would compare each with all: of a trace with
        # thousands of pauses 180 million pairs. What it saves of few rows cannot be measured.
        # Global: connections beside this one do not have its own settings.
        "GLOBAL asof_loop_join_threshold": "0",
        "allowed_paths": f"[{', '.join(quote(p) for p in allowed_paths)}]",
        "enable_external_access": "false",  # the last: it forbids to change the others
    }
    con.execute("; ".join(f"SET {name} = {value}" for name, value in settings.items()))
    return con


def _spill(run: Path) -> Path:
    """Where a query may spill: DuckDB makes the folder, not those above it, and removes it.

    What a killed process leaves in it carries that process's name, so that a later one can tell.
    """
    with contextlib.suppress(OSError):  # who may not write there cannot spill, and may still read
        (run / "tmp").mkdir(exist_ok=True)
    return work_path(run)


def _is_small(files: Iterable[ShardFile]) -> bool:
    files = list(files)
    is_few = sum(f.rows_count for f in files) <= IN_MEMORY_ROWS
    return is_few and sum(f.file_bytes for f in files) <= IN_MEMORY_BYTES


def _threads(files: Iterable[ShardFile]) -> int | None:
    return 1 if sum(f.file_bytes for f in files) < ONE_THREAD_BYTES else None


_one_threaded: WeakSet[duckdb.DuckDBPyConnection] = WeakSet()
_registered: WeakKeyDictionary[duckdb.DuckDBPyConnection, Mapping[str, ds.Dataset]] = (
    WeakKeyDictionary()
)


def _register(con: duckdb.DuckDBPyConnection, stored: Mapping[str, ds.Dataset]) -> None:
    """Let a connection select from datasets; each connection of a database has its own names."""
    for name, dataset in stored.items():
        con.register(f"stored_{name}", dataset)
    _registered[con] = stored


def beside(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Another connection to the same database, for a query that runs at the same time."""
    other = con.cursor()
    _register(other, _registered.get(con, {}))
    if con in _one_threaded:
        _mark_one_threaded(other)
    return other


def _mark_one_threaded(con: duckdb.DuckDBPyConnection) -> None:
    """``arrow_table`` runs statements on it; that their few rows are copied once more is known.

    The filter stays: ``warnings.catch_warnings`` in one thread undoes what another one set.
    """
    warnings.filterwarnings(
        "ignore", "Arrow output on a DB-API result", UserWarning, re.escape(__name__)
    )
    _one_threaded.add(con)


_statements: dict[str, duckdb.Statement] = {}
MOST_STATEMENTS = 1024
"""Parsed statements that are remembered; tracekit's own are about half as many."""


def parsed(con: duckdb.DuckDBPyConnection, text: str) -> duckdb.Statement:
    """One statement of tracekit's own, parsed once in this process: of a small run that is a third
    of its time. Whoever opens many runs gains from it; it may be run on any connection."""
    known = _statements.get(text)
    if known is None:
        (known,) = con.extract_statements(text)
        if len(_statements) >= MOST_STATEMENTS:
            _statements.clear()
        _statements[text] = known
    return known


def arrow_table(
    con: duckdb.DuckDBPyConnection, text: str, params: Mapping[str, Any] | None = None
) -> pa.Table:
    """All rows of one statement, in its order; with a connection of ``connect`` or ``beside``.

    A relation is bound twice before it runs, a statement once: that is a third of a small query's
    time. But with several threads Arrow's rows of a statement lose ORDER BY (DuckDB 2.0, where
    ``preserve_insertion_order`` is off).
    """
    if con in _one_threaded:
        return con.execute(parsed(con, text), dict(params or {})).to_arrow_table()
    return con.sql(text, params=dict(params or {})).to_arrow_table()


def plain_rows(
    con: duckdb.DuckDBPyConnection, text: str, params: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The same as dictionaries, whose values are numbers, text or lists of these.

    Arrow's rows of a statement would be copied by a second statement.
    """
    if con not in _one_threaded:
        return arrow_table(con, text, params).to_pylist()  # type: ignore[no-any-return]
    result = con.execute(parsed(con, text), dict(params or {}))
    names = [name for name, *_ in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def rows_or_table(
    con: duckdb.DuckDBPyConnection, text: str, params: Mapping[str, Any], most_rows: int
) -> list[dict[str, Any]] | pa.Table:
    """Up to so many rows as ``plain_rows``, without Arrow's start; more as ``arrow_table``."""
    if con not in _one_threaded:
        table = arrow_table(con, text, params)
        return table if table.num_rows > most_rows else table.to_pylist()
    result = con.execute(parsed(con, text), dict(params))
    names = [name for name, *_ in result.description or ()]
    rows = [dict(zip(names, r, strict=True)) for r in result.fetchmany(most_rows + 1)]
    if len(rows) <= most_rows:
        return rows
    import pyarrow as pa

    rest: pa.Table = result.to_arrow_table()
    return pa.concat_tables([pa.Table.from_pylist(rows, rest.schema), rest])


def lock(con: duckdb.DuckDBPyConnection) -> None:
    """No setting can be changed from here on, but what ``Run.planned_briefly`` changes."""
    con.execute("SET allowed_configs = ['disabled_optimizers']; SET lock_configuration = true")


_left_out: list[str] = []
"""What is left out, once this process has asked DuckDB, whose versions differ in what they have."""


def leave_optimizers_out(con: duckdb.DuckDBPyConnection) -> None:
    """Plan statements of few rows in less time from here on: all but ``_KEPT_OPTIMIZERS``."""
    if not _left_out:
        others = f"SELECT name FROM duckdb_optimizers() WHERE name NOT IN ({_KEPT_OPTIMIZERS})"
        _left_out.append(",".join(name for (name,) in con.execute(others).fetchall()))
    con.execute(f"SET disabled_optimizers = '{_left_out[0]}'")


def open_physical(
    run: Path,
    files: Iterable[ShardFile],
    *,
    tables: Iterable[str] | None = None,
    memory_bytes: int | None = None,
) -> duckdb.DuckDBPyConnection:
    """The stored columns of source tables (all, or those named), as ``derive`` reads them.

    Paths of ``files`` are relative to the run. Tables without files are empty.
    """
    files = list(files)
    by_table = _paths_by_table(run, files)
    con = connect(
        [p for paths in by_table.values() for p in paths],
        threads=_threads(files),
        memory_bytes=memory_bytes,
        spill=_spill(run),
    )
    if _is_small(files):
        leave_optimizers_out(con)
    wanted = {t.name for t in TABLES if t.kind == "source"} if tables is None else set(tables)
    stored = _read_parquet(by_table)
    for of in TABLES:
        if of.name in stored and of.name in wanted:
            con.execute(f"CREATE VIEW {of.name} AS {_physical(of, stored)}")
        elif of.name in wanted:
            columns = ", ".join(f"{_name(c.name)} {c.type}" for c in of.stored_columns)
            con.execute(parsed(con, f"CREATE TABLE {of.name} ({columns})"))
    return con


def open_run(
    path: Path,
    selection: Selection | None = None,
    *,
    memory_bytes: int | None = None,
    lazily: bool = False,
) -> Run:
    """Open the latest generation of a run; StoreError if it is none or is damaged.

    ``lazily``: DuckDB starts once it is asked, if nothing is selected; what it finds damaged that
    no checksum showed is said then.
    """
    manifest = load(path)
    if manifest is None:
        raise StoreError(f"{path}: not a run (no manifest)", hint="tracekit ingest PATH --run RUN")
    _check_registry(manifest, str(path))
    chosen = selection or Selection()
    by_table = _paths_by_table(path, manifest.files)
    damage.verify_if_small(path, manifest.files)

    def connected() -> _Connected:
        con = connect(
            [p for paths in by_table.values() for p in paths],
            threads=_threads(manifest.files),
            memory_bytes=memory_bytes,
            spill=_spill(path),
        )
        with damage.blaming(path, manifest.files):
            stored = _read_parquet(by_table)
            waiting, comes_to = _views(con, stored, chosen)
            may_have_hosts = _may_have_hosts(con, manifest.files, comes_to, stored.get("gpu_op"))
        lock(con)
        return _Connected(con, waiting, comes_to, may_have_hosts)

    run = Run(path, manifest, frozenset(by_table), chosen, connected)
    if not lazily or not chosen.is_empty():
        run.prepare(())
    return run


def open_elsewhere(
    folder: Path,
    manifest: Manifest,
    stored: Mapping[str, ds.Dataset],
    failures: Sequence[TracekitError],
    selection: Selection | None = None,
    *,
    memory_bytes: int | None = None,
) -> Run:
    """A run whose tables are datasets, of which only the columns and row groups are read that a
    query needs, each time. ``folder``: where a query may spill, and answers are kept;
    ``failures``: where whoever reads them says what could not be."""
    _check_registry(manifest, str(folder))
    chosen = selection or Selection()

    def connected() -> _Connected:
        con = connect(
            (), threads=_threads(manifest.files), memory_bytes=memory_bytes, spill=_spill(folder)
        )
        _register(con, stored)
        waiting, comes_to = _views(con, {name: f"stored_{name}" for name in stored}, chosen)
        may_have_hosts = _may_have_hosts(con, manifest.files, comes_to)
        lock(con)
        return _Connected(con, waiting, comes_to, may_have_hosts)

    run = Run(folder, manifest, frozenset(stored), chosen, connected, failures)
    try:
        run.prepare(())
    except Exception:
        if failures:
            raise failures[-1] from None
        raise
    return run


def _check_registry(manifest: Manifest, where: str) -> None:
    if manifest.registry_version != REGISTRY_VERSION:
        raise StoreError(
            f"{where}: written with registry version {manifest.registry_version}, "
            f"this tracekit has {REGISTRY_VERSION}",
            hint="ingest the sources again into a new folder",
        )


def _paths_by_table(run: Path, files: Iterable[ShardFile]) -> dict[str, list[str]]:
    by_table: dict[str, list[str]] = {}
    root = run.resolve()
    for file in files:
        path = root / file.path
        size = path.stat().st_size if path.is_file() else None
        if size != file.file_bytes:
            state = "missing" if size is None else f"{size} bytes"
            raise DamagedRunError(
                f"{path}: the manifest says {file.file_bytes} bytes, found {state}",
                hint="the run is damaged: ingest the sources again into a new folder",
            )
        by_table.setdefault(file.table, []).append(str(path))
    return by_table


def _read_parquet(by_table: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What a table is selected from, by table: its files."""
    return {
        name: f"read_parquet([{', '.join(quote(p) for p in paths)}])"
        for name, paths in by_table.items()
    }


def _physical(of: Table, stored: Mapping[str, str]) -> str:
    """SELECT of the stored columns of a table, typed, also where there is no file."""
    columns = of.stored_columns
    if of.name not in stored:
        empty = ", ".join(f"CAST(NULL AS {c.type}) AS {_name(c.name)}" for c in columns)
        return f"SELECT {empty} WHERE false"
    names = ", ".join(_name(c.name) for c in columns)
    rows = stored[of.name]
    if of.name in _ADDED:  # runs that were kept before have no such columns
        added = ", ".join(f"CAST(NULL AS {of.column(n).type}) AS {n}" for n in _ADDED[of.name])
        rows = f"(FROM {rows} UNION ALL BY NAME SELECT {added} WHERE false)"
    return f"SELECT {names} FROM {rows}"


_ADDED = {
    "host_sample": ("node",),
    "storage_sample": ("node",),
    "job_step": ("input_wait_ns", "running_dur_ns", "running_input_wait_ns"),
}
"""Stored columns that came to a table after runs had been kept."""


def _name(name: str) -> str:
    return f'"{name}"'


def _views(
    con: duckdb.DuckDBPyConnection, stored: Mapping[str, str], selection: Selection
) -> tuple[dict[str, str], Selection]:
    """By table: its rows, as SELECT; and what the selection comes to.

    What these stand on is made at once.
    """
    chosen = prepare(con, lambda of: _physical(of, stored), selection)
    moved = con.execute(
        "SELECT count(*) FROM source_context WHERE offset_ns <> 0 OR drift_ratio <> 0"
    ).fetchone()
    is_moved = bool(moved and moved[0])
    step = _physical(table("step"), stored)
    inferred = con.execute(
        "CREATE TABLE inferred_step AS SELECT source_id, step, start_ns, end_ns "
        f"FROM ({step}) WHERE {_INFERRED}"
    ).fetchone()
    is_inferred = bool(inferred and inferred[0])
    statements: dict[str, str] = {}
    for of in TABLES:
        if of.name == "source_context":
            continue
        statements[of.name] = (
            _source_view(of, stored, chosen, is_moved, is_inferred)
            if any(c.is_context for c in of.columns) or of.name == "source"
            else _selected(_physical(of, stored), derived_clauses(of, chosen))
        )
    check_times(con, _source_view(table("source"), stored, chosen, is_moved, False), chosen)
    return statements, chosen


def _may_have_hosts(
    con: duckdb.DuckDBPyConnection,
    files: Iterable[ShardFile],
    selection: Selection,
    gpu_ops: str | None = None,
) -> bool:
    """Whether a selected rank may have work of its host and no GPU operation.

    By what the manifest says for sure: the first and the last source of each file have rows in it.
    Of the sources between them ``gpu_ops``, where they are stored, is asked, if that is quick.
    """
    if selection.steps or selection.since_ns is not None or selection.until_ns is not None:
        return True  # what is left of a rank may be its host's alone
    rows = con.execute("SELECT source_id, attempt, rank FROM source_context").fetchall()
    of_gpu: set[int | None] = set()
    spans: list[tuple[int, int]] = []
    between = 0
    for file in files:
        if file.table == "gpu_op":
            of_gpu |= {file.min_source_id, file.max_source_id}
            is_wide = (file.max_source_id or 0) - (file.min_source_id or 0) > 1
            between += file.rows_count if is_wide else 0
        elif file.table in ("host_op", "collective"):
            spans.append((file.min_source_id or 0, file.max_source_id or 0))

    def is_any_unmeasured() -> bool:
        measured = {
            (attempt, rank)
            for source_id, attempt, rank in rows
            if source_id in of_gpu and attempt is not None and rank is not None
        }
        return any(
            (attempt, rank) not in measured and any(low <= source_id <= high for low, high in spans)
            for source_id, attempt, rank in rows
        )

    if not is_any_unmeasured():
        return False
    if gpu_ops is not None and 0 < between <= MAX_ASKED_ROWS:
        found = con.execute(f"SELECT DISTINCT source_id FROM {gpu_ops}").fetchall()
        of_gpu |= {source_id for (source_id,) in found}
    return is_any_unmeasured()


_OF_FURTHER_MACHINES = ("host_sample", "storage_sample")
"""Tables of which a row names its machine where that is another than its file's."""
_CANONICAL_NODE = (
    "if(regexp_full_match(t.node, '[0-9.]+|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*'), lower(t.node), "
    "split_part(lower(t.node), '.', 1))"
)
"""As the hosts of files are called: short and in lower case, addresses whole."""


def _source_view(
    of: Table,
    stored: Mapping[str, str],
    selection: Selection,
    is_moved: bool,
    is_inferred: bool,
) -> str:
    columns = []
    for column in of.columns:
        name = _name(column.name)
        if column.name == "host" and of.name in _OF_FURTHER_MACHINES:
            columns.append(f"coalesce({_CANONICAL_NODE}, c.host) AS host")
        elif column.is_context:
            columns.append(f"c.{name}")
        elif column.is_time and is_moved:
            columns.append(f"{corrected_sql(f't.{name}', 'c')} AS {name}")
        else:
            columns.append(f"t.{name}")
    # Sources that belong to nobody (unreadable files) still show in source and ingest_stat.
    join = "LEFT JOIN" if of.name in ("source", "ingest_stat") else "JOIN"
    select = (
        f"SELECT {', '.join(columns)} FROM ({_physical(of, stored)}) t"
        f" {join} source_context c USING (source_id)"
    )
    if is_inferred and of.name in _ASKED:
        select = _with_inferred_steps(select, _ASKED[of.name])
    return _selected(select, source_clauses(of, selection))


def _selected(select: str, clauses: Sequence[str]) -> str:
    return f"SELECT * FROM ({select}) v WHERE {' AND '.join(clauses)}" if clauses else select


_INFERRED = "step_source IN ('optimizer', 'period', 'repetition')"
"""Steps that no row of the source itself knows of: derived, so their rows get them in views."""
_ASKED = {
    "gpu_op": "coalesce(v.launch_start_ns, v.start_ns)",
    "collective": "if(v.timeline = 'host', v.start_ns, coalesce(v.enqueue_ns, v.start_ns))",
}
"""By table: when a row was asked for, which says to what step it belongs."""


def _with_inferred_steps(select: str, asked: str) -> str:
    """The rows with the inferred step that asked for them, where the source marks none."""
    is_within = f"v.step IS NULL AND {asked} < s.end_ns"
    return (
        "SELECT v.* REPLACE ("
        f"CASE WHEN {is_within} THEN s.step ELSE v.step END AS step, "
        f"CASE WHEN {is_within} THEN 'period' ELSE v.step_source END AS step_source) "
        f"FROM ({select}) v ASOF LEFT JOIN inferred_step s "
        f"ON v.source_id = s.source_id AND {asked} >= s.start_ns"
    )
