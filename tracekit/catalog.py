"""The query catalogue: find a named query, parse its header, run it.

A query is one file ``queries/<subject>/<name>.sql``: a header of comment lines, then one SELECT::

    -- One-line title.
    --
    -- Why it matters, in free text.
    --
    -- reads: step, gpu_op
    -- needs: gpu_op (optional): without a row of each of these it has none, whatever else there is.
    --     ``annotation:python_gc`` is a row of that domain.
    -- grain: rank, capture_id, step
    -- param: rounding VARCHAR = 'none' | 'hta' : What it does; the default comes first.
    -- column: rank INTEGER : What it is, with unit and range. Names with blanks stand in "".
    --     A line that is indented further continues the one before.
    -- completed: replay | job (optional): what fills in the columns that SQL leaves null.
    -- asked: report | report where slow | report where nobody communicates | where late | with OP |
    --     after silence (optional): by the report of a diagnosis, whichever rules run; or by no
    --     diagnosis but where step_breakdown shows slow steps, comm_summary nothing, straggler a
    --     rank that may be late, comm_summary that operation, or last_calls that no rank
    --     communicates at its end: what they walk is large.
    -- shows: device (optional): what a rank's device did, though it reads no gpu_op.
    -- source: Where a formula comes from (optional).
    SELECT ...

Tests prove each header against its query instead of trusting it. Queries read the logical tables of
the registry (views that carry rank, attempt, capture_id, clock_id and host) and the macros of
``queries/macros/`` (tracekit.macros); they know nothing of files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, get_args

from tracekit import macros
from tracekit.errors import QueryError, UsageError
from tracekit.schema import table
from tracekit.store import arrow_table

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

QUERY_FILES: tuple[str, ...] = (
    "steps/coverage",
    "steps/step_time",
    "steps/step_time_summary",
    "steps/job_step_time",
    "steps/step_segments",
    "steps/step_breakdown",
    "steps/self_time",
    "steps/excess",
    "steps/slow_steps",
    "steps/path_moments",
    "steps/path_calls",
    "steps/path_ranges",
    "steps/step_calls",
    "history/job_step_curve",
    "history/job_step_summary",
    "history/slow_episode",
    "history/episode_pressure",
    "history/profiled_window",
    "history/failures",
    "history/attempt_summary",
    "history/goodput",
    "gpu/overlap",
    "gpu/hidden_kernels",
    "gpu/lost_kernels",
    "gpu/temporal_breakdown",
    "gpu/idle_breakdown",
    "gpu/launch_stats",
    "gpu/kernel_summary",
    "gpu/memcpy_summary",
    "gpu/gemm_efficiency",
    "gpu/operator_summary",
    "gpu/module_summary",
    "gpu/memory_timeline",
    "comm/comm_summary",
    "comm/traffic",
    "comm/expert_load",
    "comm/exposed_comm_by_op",
    "nccl/nccl_comms",
    "nccl/nccl_topology",
    "nccl/ras_growth",
    "nccl/nccl_matrix",
    "nccl/nccl_signals",
    "nccl/nccl_bench",
    "nccl/nccl_choices",
    "nccl/nccl_nics",
    "nccl/nccl_rails",
    "nccl/nccl_groups",
    "nccl/watchdog",
    "nccl/flight_calls",
    "nccl/comm_records",
    "nccl/nccl_expected",
    "nccl/nccl_calls",
    "nccl/inspector_calls",
    "comm/collective_skew",
    "comm/straggler",
    "comm/late_steps",
    "comm/delay_matrix",
    "comm/exit_lateness",
    "comm/group_bandwidth",
    "comm/match_coverage",
    "comm/last_calls",
    "comm/open_calls",
    "comm/standing",
    "comm/enqueued_calls",
    "comm/absent_waits",
    "comm/rank_stacks",
    "counters/port_counters",
    "counters/network_correlation",
    "counters/port_steps",
    "counters/counter_clocks",
    "counters/host_pressure",
    "counters/host_pressure_steps",
    "counters/storage_latency",
    "counters/storage_steps",
    "counters/activity_steps",
    "counters/counter_profile",
    "counters/counter_statements",
    "gpu/gpu_counters",
    "gpu/gpu_series",
    "gpu/gpu_throttle",
    "gpu/gpu_growth",
    "gpu/gpu_events",
    "gpu/gpu_processes",
    "gpu/host_topology",
    "comm/rank_clocks",
    "timeline/timeline_load",
    "timeline/timeline_slices",
    "health/input_stall",
    "health/gc_pause",
    "health/checkpoint_stall",
    "health/sync_stall",
    "health/compile_stall",
    "health/allocator_stall",
    "health/job_sources",
    "health/environment",
    "health/job_attempts",
    "health/job_ranks",
    "health/input_issues",
    "pipeline/bubble",
    "pipeline/stage_balance",
    "pipeline/pipeline_heat_map",
    "pipeline/microbatch_correlation",
    "pipeline/replica_balance",
    "nsys/cuda_gpu_kern_sum",
    "nsys/cuda_gpu_mem_time_sum",
    "nsys/cuda_api_sum",
    "nsys/nvtx_pushpop_sum",
    "nsys/nvtx_gpu_proj_sum",
    "net/fabric_path",
    "net/net_sources",
    "net/port_levels",
    "net/port_events",
)
"""Every query, in the order in which lists and documentation show them."""
_PATHS = {path.rpartition("/")[2]: path for path in QUERY_FILES}

ParamValue = str | int | float | bool

Completion = Literal["replay", "job"]
"""By a replay of the run, or by what its job description implies."""

ASKED = re.compile(
    r"report|report where (slow|nobody communicates)|where late|with \w+|after silence"
)
"""When a diagnosis asks a query beyond the rules that read it, or only then."""


@dataclass(frozen=True, slots=True)
class Param:
    """A named parameter. ``choices`` is empty where any value of the type will do."""

    name: str
    type: str
    default: ParamValue
    doc: str
    choices: tuple[ParamValue, ...] = ()

    def parse(self, value: object) -> ParamValue:
        """The value as this parameter's type; text is read as on the command line.

        UsageError if it is not of that type, or none of the choices.
        """
        parsed = _as_type(value, self.type)
        if parsed is None:
            raise UsageError(
                f"parameter {self.name} takes a {self.type}, not {value!r}",
                hint=f"its default is {self.default}",
            )
        if self.choices and parsed not in self.choices:
            raise UsageError(
                f"parameter {self.name} cannot be {value!r}",
                hint=f"one of: {', '.join(str(c) for c in self.choices)}",
            )
        return parsed


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """An output column: its DuckDB type and its meaning with unit."""

    name: str
    type: str
    doc: str


@dataclass(frozen=True, slots=True)
class Query:
    """A named query as its file declares it. ``sql`` is the file's text, header included."""

    name: str
    subject: str
    title: str
    why: str
    reads: tuple[str, ...]
    grain: tuple[str, ...]
    params: tuple[Param, ...]
    columns: tuple[QueryColumn, ...]
    source: str | None
    sql: str
    needs: tuple[str, ...] = ()
    """Tables without whose rows it has none, of those that it reads; ``annotation:domain`` too."""
    completed: Completion | None = None
    """What fills in the columns that no SQL can know; they are null without."""
    asked: str = ""
    """When a diagnosis asks it (``ASKED``); empty: where a rule reads it."""
    shows: str = ""

    @property
    def is_for_report(self) -> bool:
        """Whether a diagnosis asks it whichever rules run."""
        return self.asked.startswith("report")

    @property
    def is_of_device(self) -> bool:
        """Whether its rows say what a rank's device did, or what that shows of its host: without
        the rank's kernels they say that it idled."""
        return "rank" in self.grain and (self.shows == "device" or "gpu_op" in self.reads)

    def bind(self, given: Mapping[str, object]) -> dict[str, ParamValue]:
        """Every declared parameter with its given or default value; UsageError on an unknown."""
        known = {p.name: p for p in self.params}
        for name in given:
            if name not in known:
                raise UsageError(
                    f"query {self.name} has no parameter {name!r}",
                    hint=_did_you_mean(name, known, f"parameters of {self.name}"),
                )
        return {
            p.name: p.parse(given[p.name]) if p.name in given else p.default for p in self.params
        }


def queries() -> tuple[Query, ...]:
    """All queries of the catalogue, in its order."""
    return tuple(map(_parsed, QUERY_FILES))


@cache
def _parsed(path: str) -> Query:
    file = files("tracekit.queries").joinpath(f"{path}.sql")
    return parse(path, file.read_text(encoding="utf-8"))


def find(name: str) -> Query:
    """The query of that name (``overlap`` or ``gpu/overlap``); UsageError if there is none."""
    short = name.rpartition("/")[2]
    path = _PATHS.get(short)
    if path is None or name not in (short, path):
        raise UsageError(
            f"there is no query named {name!r}", hint=_did_you_mean(short, _PATHS, "queries")
        )
    return _parsed(path)


NO_HOST_WORK = """CREATE OR REPLACE MACRO host_work(gpu_op_name, host_op_name) AS TABLE
SELECT
    CAST(NULL AS INTEGER) AS attempt,
    CAST(NULL AS INTEGER) AS rank,
    CAST(NULL AS INTEGER) AS capture_id,
    CAST(NULL AS VARCHAR) AS class,
    CAST(NULL AS VARCHAR) AS op,
    CAST(NULL AS BIGINT) AS start_ns,
    CAST(NULL AS BIGINT) AS end_ns
WHERE FALSE;
"""
"""What host_work gives where every rank has GPU operations. It is the largest plan of all macros,
and walks all operators to find that none is asked for."""


def finds_nothing(query: Query, filled: Collection[str]) -> bool:
    """Whether the query has no rows because tables are empty; ``filled`` names those with rows.

    So it is where a table that it needs is empty, and where all source tables that it reads are:
    derived tables say where rows belong, they are not what is asked for. (A test holds every query
    to both.) ``source`` has rows in every run and does not count. Needed domains count where
    ``filled`` has any, as ``with_domains`` gives it.
    """
    are_domains_known = any(_DOMAIN in name for name in filled)
    if not all(name in filled for name in query.needs if are_domains_known or _DOMAIN not in name):
        return True
    reads = [name for name in query.reads if name != "source" and table(name).kind == "source"]
    return bool(reads) and not any(name in filled for name in reads)


def with_domains(con: duckdb.DuckDBPyConnection, filled: Collection[str]) -> set[str]:
    """The same names, and ``annotation:domain`` of every domain that has rows."""
    if "annotation" not in filled:
        return set(filled)
    rows = con.execute("SELECT DISTINCT domain FROM annotation").fetchall()
    return {*filled, *(f"annotation{_DOMAIN}{domain}" for (domain,) in rows)}


def no_rows(con: duckdb.DuckDBPyConnection, query: Query) -> pa.Table:
    """What a query gives that finds nothing: its columns, with their types, and no rows."""
    columns = ", ".join(f'CAST(NULL AS {c.type}) AS "{c.name}"' for c in query.columns)
    return arrow_table(con, f"SELECT {columns} WHERE FALSE", {})  # from its header


def load_macros(
    con: duckdb.DuckDBPyConnection,
    text: str | None = None,
    *,
    may_have_hosts: bool = True,
    loaded: Collection[str] = (),
) -> set[str]:
    """Create the macros that queries use in this connection, whose tables must exist.

    With ``text`` (of queries) only those that it needs, and none of those that are ``loaded``;
    the names of what was made. ``may_have_hosts``: whether a rank may have no GPU operations, so
    that it is measured on its host.
    """
    statements = _macro_statements(may_have_hosts)
    wanted = statements.keys() if text is None else macros.used_by(text, statements)
    made = [name for name in statements if name in wanted and name not in loaded]
    for name in made:
        con.execute(statements[name])
    return set(made)


def _macro_statements(may_have_hosts: bool) -> dict[str, str]:
    statements = {macro.name: macro.sql for macro in macros.macros().values()}
    return statements if may_have_hosts else {**statements, "host_work": NO_HOST_WORK}


SHARED_MACROS = {
    "host_work": ("gpu_op", "host_op"),
    "rank_compute": (),
    "exposed_calls": (),
    "collective_calls": (),
    "inflicted_waits": (),
    "loop_threads": (),
    "time_spent": (),
    "path_calls": (),
}
"""Macros that derive rows which several queries of a diagnosis need, with the arguments that every
query gives them; in an order in which none needs a later one."""

BY_RANKS = {"time_spent": "time_spent_of"}
"""Of these, macros that hold all events in memory, and what gives their rows from one rank to
another."""
MAX_EVENTS = 500_000
"""Rows that such a macro is given at a time: some 150 MB of memory."""
_EVENTS = """
SELECT rank, count(*)
FROM (
    SELECT rank FROM annotation UNION ALL SELECT rank FROM gpu_op UNION ALL SELECT rank FROM host_op
)
WHERE rank IS NOT NULL GROUP BY rank ORDER BY rank
"""


@contextmanager
def shared(
    con: duckdb.DuckDBPyConnection,
    names: Iterable[str],
    *,
    may_have_hosts: bool = True,
    loaded: set[str] | None = None,
) -> Iterator[None]:
    """Within it, what two or more of the named queries would each derive is derived once.

    What a macro can derive a few ranks at a time is so derived where it holds more than
    ``MAX_EVENTS``, if for one query only: its memory then depends on no number of ranks.
    Macros must be loaded, for the same ``may_have_hosts``. Rows are the same: a macro with the
    tables that all queries give it is read from a table in memory (spilled like any other) instead
    of being expanded again.

    Afterwards these macros are what they were. With ``loaded``, names of macros that are loaded,
    they are taken from it instead: for whoever loads what is not in it before asking again, which
    after a diagnosis nobody may do.
    """
    texts = [find(name).sql for name in names]
    statements = _macro_statements(may_have_hosts)
    used = [macros.used_by(text, statements) for text in texts]
    by_ranks = [m for m in BY_RANKS if any(m in words for words in used)]
    parts = rank_ranges(con) if by_ranks else ()
    each = macros.used_by(" ".join(by_ranks), statements) if len(parts) > 1 else set()
    worth = [m for m in SHARED_MACROS if m in each or sum(m in words for words in used) > 1]
    made: list[str] = []
    try:
        for name in worth:
            if _share(con, name, SHARED_MACROS[name], parts if name in by_ranks else ()):
                made.append(name)
        yield
    finally:
        if loaded is None:
            for name in reversed(made):  # each is bound while those that it needs are tables
                con.execute(statements[name])
        else:
            loaded.difference_update(made)
        for name in made:
            con.execute(f"DROP TABLE shared_{name}")


def sharing_with(
    names: Iterable[str], others: Iterable[str], *, may_have_hosts: bool = True
) -> list[str]:
    """Of the other queries, those that derive what one of the named queries derives as well."""
    statements = _macro_statements(may_have_hosts)
    names = [*names]
    derived = macros.used_by(" ".join(find(n).sql for n in names), statements) & {*SHARED_MACROS}
    return [
        other
        for other in others
        if other not in names and derived & macros.used_by(find(other).sql, statements)
    ]


def rank_ranges(con: duckdb.DuckDBPyConnection) -> Sequence[tuple[int, int]]:
    """First and last ranks that together have up to ``MAX_EVENTS`` events; none where unknown."""
    import duckdb

    try:
        counts = con.execute(_EVENTS).fetchall()
    except duckdb.Error:
        return ()
    ranges: list[tuple[int, int]] = []
    held = 0
    for rank, count in counts:
        held += count
        if not ranges or held > MAX_EVENTS:
            ranges.append((rank, rank))
            held = count
        ranges[-1] = (ranges[-1][0], rank)
    return ranges


def _share(
    con: duckdb.DuckDBPyConnection,
    name: str,
    tables: Sequence[str],
    parts: Sequence[tuple[int, int]],
) -> bool:
    """Whether the macro reads a table from now on; where it cannot be made, queries say why.

    ``parts``: first and last ranks that are derived at a time, where not all are.
    """
    import duckdb

    arguments = ", ".join(f"'{each}'" for each in tables)
    markers = ", ".join(f"p{number}" for number in range(len(tables)))
    sources = [f"{BY_RANKS[name]}({first}, {last})" for first, last in parts]
    source, *rest = sources or [f"{name}({arguments})"]
    try:
        existing = con.execute(
            "SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [f"shared_{name}"]
        )
        if existing.fetchall():
            return False  # it reads one already, whose maker goes on needing it
        con.execute(f"CREATE TABLE shared_{name} AS FROM {source}")
        for other in rest:
            con.execute(f"INSERT INTO shared_{name} FROM {other}")
    except duckdb.Error:
        with suppress(duckdb.Error):  # in a transaction that failed there is nothing to drop
            con.execute(f"DROP TABLE IF EXISTS shared_{name}")
        return False
    con.execute(f"CREATE OR REPLACE MACRO {name}({markers}) AS TABLE FROM shared_{name}")
    return True


def run(con: duckdb.DuckDBPyConnection, name: str, **params: object) -> pa.Table:
    """Run a named query over the connection's views; macros must be loaded.

    Parameters are parsed by their declared type, so text from a command line will do.
    UsageError for an unknown query, parameter or value; QueryError if DuckDB refuses.
    """
    query = find(name)
    return execute(con, query, query.bind(params))


def stream(
    con: duckdb.DuckDBPyConnection, name: str, rows_per_batch: int = 10_000, **params: object
) -> Iterator[pa.RecordBatch]:
    """As ``run``, a batch at a time, in memory that does not grow with the result.

    Nothing else may run on the connection meanwhile.
    """
    import duckdb

    query = find(name)
    try:
        relation = con.sql(query.sql, params=dict(query.bind(params)))
        yield from relation.to_arrow_reader(rows_per_batch)
    except duckdb.Error as error:
        raise QueryError(f"query {query.name} failed: {error}") from error


def execute(
    con: duckdb.DuckDBPyConnection, query: Query, params: Mapping[str, ParamValue]
) -> pa.Table:
    """Run a query with exactly its declared parameters, as ``Query.bind`` returns them."""
    import duckdb

    try:
        return arrow_table(con, query.sql, params)
    except duckdb.Error as error:
        raise QueryError(f"query {query.name} failed: {error}") from error


# ---------------------------------------------------------------- header

_DOMAIN = ":"
_KEY = re.compile(r"-- (reads|needs|grain|param|column|completed|asked|shows|source): (.*)")
_PARAM = re.compile(r"(\w+) (\w+) = (.+?) : (.+)")
_COLUMN = re.compile(r"""(\w+|"[^"]+") ([\w\[\]]+) : (.+)""")


def parse(path: str, text: str) -> Query:
    """A query from its path (``subject/name``) and text; ValueError names the faulty line."""
    subject, _, name = path.partition("/")
    title, why, entries = _header(path, text)
    lists = {
        key: tuple(word.strip() for k, value in entries if k == key for word in value.split(","))
        for key in ("reads", "needs", "grain")
    }
    return Query(
        name=name,
        subject=subject,
        title=title,
        why=why,
        reads=lists["reads"],
        needs=lists["needs"],
        grain=lists["grain"],
        params=tuple(_param(path, value) for key, value in entries if key == "param"),
        columns=tuple(_column(path, value) for key, value in entries if key == "column"),
        source=_only(entries, "source"),
        sql=text,
        completed=_completion(path, entries),
        asked=_only(entries, "asked") or "",
        shows=_only(entries, "shows") or "",
    )


def _only(entries: Iterable[tuple[str, str]], wanted: str) -> str | None:
    return next((value for key, value in entries if key == wanted), None)


def _completion(path: str, entries: Iterable[tuple[str, str]]) -> Completion | None:
    by = _only(entries, "completed")
    known: tuple[Completion, ...] = get_args(Completion)
    if by is not None and by not in known:
        raise ValueError(f"{path}: completed by {' or '.join(known)}, not {by!r}")
    return next((word for word in known if word == by), None)


def _header(path: str, text: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Title, why paragraphs, and the keyed entries with their continuation lines joined."""
    title, *lines = takewhile(lambda line: line.startswith("--"), text.splitlines())
    return title[2:].strip(), *macros.header_of(path, lines, _KEY)


def _param(path: str, text: str) -> Param:
    match = _PARAM.fullmatch(text)
    if match is None:
        raise ValueError(f"{path}: expected 'name TYPE = default : meaning', found {text!r}")
    name, type_, values, doc = match.groups()
    parsed = [_as_type(v.strip().strip("'"), type_) for v in values.split(" | ")]
    choices = tuple(v for v in parsed if v is not None)
    if len(choices) < len(parsed):
        raise ValueError(f"{path}: {values!r} is not {type_}")
    return Param(name, type_, choices[0], doc, choices if len(choices) > 1 else ())


def _column(path: str, text: str) -> QueryColumn:
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise ValueError(f"{path}: expected 'name TYPE : meaning', found {text!r}")
    return QueryColumn(match[1].strip('"'), match[2], match[3])


def _as_type(value: object, type_: str) -> ParamValue | None:
    """The value as a DuckDB type's Python value, or None where it is not one."""
    text = str(value).strip()
    if type_ == "VARCHAR":
        return str(value)
    if type_ == "BOOLEAN":
        return {"true": True, "false": False}.get(text.lower())
    try:
        if type_ in ("INTEGER", "BIGINT"):
            return None if isinstance(value, bool) else int(text)
        if type_ == "DOUBLE":
            return None if isinstance(value, bool) else float(text)
    except ValueError:
        return None
    raise ValueError(f"parameters cannot be of type {type_}")


def _did_you_mean(name: str, known: Iterable[str], what: str) -> str:
    names = list(known)
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"{what}: {', '.join(names) or 'none'}"
