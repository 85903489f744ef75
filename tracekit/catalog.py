"""The query catalogue: which queries there are, and how one is found and run.

Queries read the logical tables of the registry (views that carry rank, attempt, capture_id,
clock_id and host) and the macros of ``queries/macros/`` (tracekit.macros); they know nothing of
files. What a file declares, ``tracekit.query_file`` tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tracekit import macros
from tracekit.errors import QueryError, UsageError
from tracekit.query_file import ParamValue, Query, did_you_mean, parse
from tracekit.schema import table
from tracekit.store import arrow_table, parsed, plain_rows, rows_or_table

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
    "steps/python_time",
    "steps/rare_ranges",
    "steps/slow_steps",
    "steps/path_moments",
    "steps/path_calls",
    "steps/path_ranges",
    "steps/step_calls",
    "history/job_step_curve",
    "history/job_step_summary",
    "history/slow_episode",
    "history/episode_pressure",
    "history/episode_storage",
    "history/episode_clocks",
    "history/pod_restarts",
    "history/profiled_window",
    "history/logged_input",
    "history/logged_rank_input",
    "history/straggler_reports",
    "history/step_part_time",
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
    "gpu/kernel_turns",
    "gpu/memcpy_summary",
    "gpu/gemm_efficiency",
    "gpu/operator_summary",
    "gpu/module_summary",
    "gpu/memory_timeline",
    "comm/comm_summary",
    "comm/traffic",
    "comm/gradient_rounds",
    "comm/buffer_broadcasts",
    "comm/shard_gathers",
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
    "nccl/collective_checks",
    "nccl/flight_calls",
    "nccl/comm_records",
    "nccl/nccl_expected",
    "nccl/nccl_calls",
    "nccl/inspector_calls",
    "comm/collective_skew",
    "comm/straggler",
    "comm/late_steps",
    "comm/slow_transfers",
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
    "gpu/process_place",
    "comm/rank_clocks",
    "timeline/timeline_load",
    "timeline/timeline_slices",
    "health/input_stall",
    "health/gc_pause",
    "health/gil_stall",
    "health/checkpoint_stall",
    "health/pause_stall",
    "health/sync_stall",
    "health/compile_stall",
    "health/allocator_stall",
    "health/job_sources",
    "health/environment",
    "health/kernel_reports",
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
    "net/fabric_leaves",
    "net/fabric_path",
    "net/fabric_uplinks",
    "net/net_sources",
    "net/reduced_cables",
    "net/port_levels",
    "net/port_traffic",
    "net/port_events",
)
"""Every query, in the order in which lists and documentation show them."""
NO_MACROS: Mapping[str, str] = {}
_DOMAIN = ":"
_PATHS = {path.rpartition("/")[2]: path for path in QUERY_FILES}


def queries() -> tuple[Query, ...]:
    """All queries of the catalogue, in its order."""
    return tuple(map(_parsed, QUERY_FILES))


@cache
def _parsed(path: str) -> Query:
    file = files("tracekit.queries").joinpath(f"{path}.sql")
    return parse(path, file.read_text(encoding="utf-8"))


def has(name: str) -> bool:
    """Whether a query is so named."""
    path = _PATHS.get(name.rpartition("/")[2])
    return path is not None and name in (path, path.rpartition("/")[2])


def find(name: str) -> Query:
    """The query of that name (``overlap`` or ``gpu/overlap``); UsageError if there is none."""
    short = name.rpartition("/")[2]
    if not has(name):
        raise UsageError(
            f"there is no query named {name!r}", hint=did_you_mean(short, _PATHS, "queries")
        )
    return _parsed(_PATHS[short])


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
    text: str | Iterable[str] | None = None,
    *,
    may_have_hosts: bool = True,
    loaded: Mapping[str, str] = NO_MACROS,
) -> dict[str, str]:
    """Create the macros that queries use in this connection, whose tables must exist.

    With ``text`` (of queries) only those that it needs, and none of those that are ``loaded`` (by
    name, with what made them); what was made, likewise. ``may_have_hosts``: whether a rank may
    have no GPU operations, so that it is measured on its host.
    """
    statements = {**macro_statements(may_have_hosts), **loaded}
    texts = (text,) if isinstance(text, str) else text
    wanted = statements.keys() if texts is None else macros.used_by(*texts, known=statements)
    made = {n: sql for n, sql in statements.items() if n in wanted and n not in loaded}
    for sql in made.values():
        con.execute(parsed(con, sql))
    return made


def macro_statements(may_have_hosts: bool) -> dict[str, str]:
    """Macro to the statement that makes it, as ``load_macros`` does."""
    statements = {macro.name: macro.sql for macro in macros.macros().values()}
    return statements if may_have_hosts else {**statements, "host_work": NO_HOST_WORK}


def run(con: duckdb.DuckDBPyConnection, name: str, **params: object) -> pa.Table:
    """Run a named query over the connection's views; macros must be loaded.

    Parameters are parsed by their declared type, so text from a command line will do.
    UsageError for an unknown query, parameter or value; QueryError if DuckDB refuses.
    """
    query = find(name)
    return execute(con, query, query.bind(params))


def rows(
    con: duckdb.DuckDBPyConnection, name: str, params: Mapping[str, object]
) -> list[dict[str, Any]]:
    """The same as dictionaries."""
    query = find(name)
    with _told(query):
        return plain_rows(con, query.sql, query.bind(params))


def few_rows(
    con: duckdb.DuckDBPyConnection, name: str, params: Mapping[str, object], most_rows: int
) -> list[dict[str, Any]] | pa.Table:
    """The same as dictionaries, or as a table where there are more than so many."""
    query = find(name)
    with _told(query):
        return rows_or_table(con, query.sql, query.bind(params), most_rows)


def stream(
    con: duckdb.DuckDBPyConnection, name: str, rows_per_batch: int = 10_000, **params: object
) -> Iterator[pa.RecordBatch]:
    """As ``run``, a batch at a time, in memory that does not grow with the result.

    Nothing else may run on the connection meanwhile.
    """
    query = find(name)
    with _told(query):
        relation = con.sql(query.sql, params=dict(query.bind(params)))
        yield from relation.to_arrow_reader(rows_per_batch)


def execute(
    con: duckdb.DuckDBPyConnection, query: Query, params: Mapping[str, ParamValue]
) -> pa.Table:
    """Run a query with exactly its declared parameters, as ``Query.bind`` returns them."""
    with _told(query):
        return arrow_table(con, query.sql, params)


@contextmanager
def _told(query: Query) -> Iterator[None]:
    """Within it, what DuckDB refuses is a QueryError that names the query."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise QueryError(f"query {query.name} failed: {error}") from error
