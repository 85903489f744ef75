"""Which part of a run is looked at, and what that leaves out of each table.

A selection leaves out only what is known to lie outside: a row without a rank, a host, an attempt,
a step or a time stays. So the counters and logs of a job stay with any of its ranks, and selecting
all of something is the same as selecting nothing. What a table has to be asked follows from its
columns in the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit.errors import UsageError
from tracekit.schema import Table, table
from tracekit.wording import ranges, safe, some

if TYPE_CHECKING:
    import duckdb

SHOWN_HOSTS = 8
"""Hosts that an error lists."""


class Selection(Struct, frozen=True):
    """Which part of a run to look at. Empty means all; ranges are inclusive."""

    ranks: tuple[tuple[int, int], ...] = ()
    hosts: tuple[str, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    since_ns: int | None = None
    until_ns: int | None = None
    attempt: int | None = None
    window: int | None = None

    def is_empty(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()


SHARED_TABLES = ("port", "clock")
"""Derived tables whose rank or host says who uses the thing, not whose it is: a port of the network
and a clock serve the ranks that are left, too, and rows that are left need their names."""
SUMMARIES = ("gpu_counter_summary",)
"""Derived tables of which a row sums up all samples of a file: of a part of them it says nothing,
so where anything is selected they have no rows, and who asks them asks the samples instead."""

_STARTS = ("start_ns", "time_ns", "enqueue_ns", "created_ns")
_ENDS = ("end_ns", "completed_ns")


def prepare(
    con: duckdb.DuckDBPyConnection, physical: Callable[[Table], str], selection: Selection
) -> Selection:
    """Make the small tables that the clauses of a selection stand on; what it comes to.

    ``source_context`` (the sources that are left) is made for any selection; ``left_out_source``,
    ``left_out_rank``, ``left_out_host``, ``stepped`` and ``step_window`` only where something is
    selected. ``physical`` gives the SELECT of a table's stored columns. All steps that there are
    come to no selection of steps: between them lies what belongs to none.

    UsageError where an option matches nothing, with what there is.
    """
    context = physical(table("source_context"))
    if selection.is_empty():
        con.execute(f"CREATE TABLE source_context AS {context}")
        return selection
    con.execute(f"CREATE TABLE every_context AS {context}")
    con.execute(f"CREATE TABLE labels AS {_labels(physical)}")
    selection = replace(selection, hosts=_by_alias(con, physical, selection.hosts))
    comes_to = _checked(con, selection)
    con.execute(
        f"CREATE TABLE source_context AS SELECT * FROM every_context WHERE {_labelled(selection)}"
    )
    con.execute(
        "CREATE TABLE left_out_source AS SELECT source_id FROM every_context "
        "EXCEPT SELECT source_id FROM source_context"
    )
    # A rank goes with its sources; one that only a file of many ranks states, by its own labels.
    con.execute(
        "CREATE TABLE left_out_rank AS "
        "SELECT attempt, rank FROM labels WHERE rank IS NOT NULL AND attempt IS NOT NULL "
        "EXCEPT (SELECT attempt, rank FROM source_context UNION "
        f"SELECT attempt, rank FROM labels l WHERE {_labelled(selection)} AND NOT EXISTS ("
        "SELECT 1 FROM every_context e WHERE e.attempt = l.attempt AND e.rank = l.rank))"
    )
    # For queries that ask which ranks there should be: a rank that nobody selected is not missing.
    con.execute(
        "SET VARIABLE left_out_ranks = "
        "(SELECT list({'attempt': attempt, 'rank': rank}) FROM left_out_rank)"
    )
    if selection.ranks:
        spans = ", ".join(f"[{int(low)}, {int(high)}]" for low, high in selection.ranks)
        con.execute(f"SET VARIABLE selected_ranks = CAST([{spans}] AS BIGINT[][])")
    if selection.hosts:
        con.execute(
            "CREATE TABLE left_out_host AS WITH names AS ("
            "SELECT host, host AS name FROM labels WHERE host IS NOT NULL UNION "
            f"SELECT host, alias FROM ({physical(table('host_alias'))})) "
            f"SELECT name FROM names WHERE NOT {_hosts(selection)} "
            f"EXCEPT SELECT name FROM names WHERE {_hosts(selection)}"
        )
    if selection.steps:
        steps = physical(table("step"))
        con.execute(f"CREATE TABLE stepped AS SELECT DISTINCT source_id FROM ({steps})")
        con.execute(
            # Selected steps that follow each other are one stretch, with what lies between them.
            "CREATE TABLE step_window AS WITH numbered AS (SELECT source_id, start_ns, "
            "end_ns AS host_end_ns, greatest(end_ns, coalesce(gpu_end_ns, end_ns)) AS end_ns, "
            f"{in_ranges('step', selection.steps)} AS is_selected FROM ({steps})), "
            "stretches AS (SELECT *, count(*) FILTER (NOT is_selected) OVER ("
            "PARTITION BY source_id ORDER BY start_ns, end_ns ROWS UNBOUNDED PRECEDING"
            ") AS stretch FROM numbered) "
            "SELECT source_id, min(start_ns) AS start_ns, max(end_ns) AS end_ns, "
            "max(host_end_ns) AS host_end_ns FROM stretches "
            "WHERE is_selected GROUP BY source_id, stretch"
        )
    if selection.since_ns is not None or selection.until_ns is not None:
        con.execute(
            # Times since an unknown zero say nothing beside those of other clocks since the epoch.
            "CREATE TABLE unplaced AS SELECT source_id FROM every_context "
            f"JOIN ({physical(table('clock'))}) USING (clock_id) WHERE basis <> 'epoch' "
            f"AND EXISTS (SELECT 1 FROM ({physical(table('clock'))}) WHERE basis = 'epoch')"
        )
    return comes_to


def _by_alias(
    con: duckdb.DuckDBPyConnection, physical: Callable[[Table], str], given: Sequence[str]
) -> tuple[str, ...]:
    """Hosts by the names that the run has for them: any case, full names, addresses."""
    if not given:
        return ()
    known: dict[str, set[str]] = {}
    for host, alias in con.execute(
        "SELECT host, alias FROM (SELECT host, alias FROM "
        f"({physical(table('host_alias'))}) UNION SELECT host, host FROM labels) "
        "WHERE host IS NOT NULL ORDER BY ALL"
    ).fetchall():
        known.setdefault(alias.lower(), set()).add(host)
    hosts: dict[str, None] = {}
    for name in given:
        hosts |= dict.fromkeys(sorted(known.get(name.lower(), {name})))
    return tuple(hosts)


def check_times(con: duckdb.DuckDBPyConnection, sources: str, selection: Selection) -> None:
    """UsageError where the selected time touches no file. ``sources``: SELECT of its view."""
    if selection.since_ns is None and selection.until_ns is None:
        return
    since, until = selection.since_ns, selection.until_ns
    if since is not None and until is not None and since > until:
        raise UsageError(
            "--since and --until select nothing: they run backwards",
            hint=f"--since {_time(until)} --until {_time(since)}",
        )
    spans = (
        f"SELECT window_start_ns AS start_ns, coalesce(window_end_ns, window_start_ns) AS end_ns "
        f"FROM ({sources}) WHERE window_start_ns IS NOT NULL "
        "AND source_id NOT IN (FROM unplaced)"
    )
    ((first, last, count),) = con.execute(
        f"SELECT min(start_ns), max(end_ns), count(*) FILTER (end_ns >= {_known(since, 'end_ns')} "
        f"AND start_ns <= {_known(until, 'start_ns')}) FROM ({spans})"
    ).fetchall()
    if first is not None and not count:
        given = [
            f"{name} {_time(value)}"
            for name, value in (("--since", since), ("--until", until))
            if value is not None
        ]
        raise UsageError(
            f"{' '.join(given)} selects nothing: the files cover {_time(first)} to {_time(last)}",
            hint=f"--since {_time(first)} --until {_time(last)}",
        )


def selected_span_ns(
    con: duckdb.DuckDBPyConnection, selection: Selection
) -> tuple[int, int] | None:
    """First and last time of what is selected, by the views; None where nothing tells."""
    table_of = "step" if selection.steps else "source JOIN source_context c USING (source_id)"
    start, end = ("start_ns", "end_ns") if selection.steps else ("window_start_ns", "window_end_ns")
    is_traced = "true" if selection.steps else "c.rank IS NOT NULL"
    ((first, last),) = con.execute(
        f"SELECT min({start}), max({end}) FROM {table_of} WHERE {is_traced} AND {start} IS NOT NULL"
    ).fetchall()
    if first is None or last is None:
        return None
    if selection.since_ns is not None:
        first = max(first, selection.since_ns)
    if selection.until_ns is not None:
        last = min(last, selection.until_ns)
    return (first, last) if first <= last else None


def source_clauses(of: Table, selection: Selection) -> list[str]:
    """What rows ``v`` of a source's table must meet beside their source's being selected."""
    names = {c.name for c in of.columns}
    if of.name in ("source", "ingest_stat"):
        if selection.is_empty():
            return []
        return ["v.source_id NOT IN (FROM left_out_source)"]
    start, end = _start(names), _end(names)
    clauses = [
        f"(v.source_id IN (FROM unplaced) OR {clause})"
        for clause in _time_clauses(start, end, selection)
    ]
    # Counters of many nodes come in one file. What is said of a communicator stays whole: without
    # a part of its members it would look as if they were missing.
    if selection.hosts and "node" in names and names.isdisjoint(("comm_hash", "comm_pointer")):
        clauses.append(
            "(v.node IS NULL OR lower(split_part(v.node, '.', 1)) NOT IN (FROM left_out_host) "
            "AND v.node NOT IN (FROM left_out_host))"
        )
    if selection.steps:
        clauses.append(_step_clause(names, start, end, selection))
    return [c for c in clauses if c != "true"]


def derived_clauses(of: Table, selection: Selection) -> list[str]:
    """What rows ``v`` of a derived table must meet."""
    if selection.is_empty():
        return []
    if of.name in SUMMARIES:
        return ["false"]
    names = {c.name for c in of.columns}
    is_shared = of.name in SHARED_TABLES
    clauses = []
    if "rank" in names and not is_shared:
        clauses.append(_or_null("v.rank", in_ranges("v.rank", selection.ranks)))
        if "attempt" in names:
            clauses.append(
                "NOT EXISTS (SELECT 1 FROM left_out_rank l "
                "WHERE l.rank = v.rank AND l.attempt = v.attempt)"
            )
    if "host_ranks" in names and selection.ranks:
        inside = in_ranges("r", selection.ranks)
        clauses.append(
            "(v.rank IS NOT NULL OR v.host_ranks IS NULL OR len(v.host_ranks) = 0 "
            f"OR len(list_filter(v.host_ranks, lambda r: {inside})) > 0)"
        )
    if "host" in names and selection.hosts and not is_shared:
        clauses.append(_or_null("v.host", _hosts(selection, "v.host")))
    if "attempt" in names and selection.attempt is not None:
        clauses.append(_or_null("v.attempt", f"v.attempt = {int(selection.attempt)}"))
    if "capture_id" in names and selection.window is not None:
        clauses.append(_or_null("v.capture_id", f"v.capture_id = {int(selection.window)}"))
    if "step" in names:
        clauses.append(_or_null("v.step", in_ranges("v.step", selection.steps)))
        clauses += _time_clauses(_start(names), _end(names), selection)
    return [c for c in clauses if c != "true"]


def in_ranges(column: str, among: Sequence[tuple[int, int]]) -> str:
    """Whether a column lies in one of the ranges; ``true`` without any."""
    if not among:
        return "true"
    parts = [f"{column} BETWEEN {int(low)} AND {int(high)}" for low, high in among]
    return f"({' OR '.join(parts)})"


def quote(text: str) -> str:
    """Text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _known(value_ns: int | None, otherwise: str) -> str:
    return otherwise if value_ns is None else str(int(value_ns))


def _or_null(column: str, clause: str) -> str:
    return "true" if clause == "true" else f"({column} IS NULL OR {clause})"


def _hosts(selection: Selection, column: str = "host") -> str:
    if not selection.hosts:
        return "true"
    return f"{column} IN ({', '.join(quote(h) for h in selection.hosts)})"


def _start(names: set[str]) -> str | None:
    starts = [f"v.{name}" for name in _STARTS if name in names]
    return f"coalesce({', '.join(starts)})" if starts else None


def _end(names: set[str]) -> str:
    ends = ["v.start_ns + v.dur_ns"] if {"start_ns", "dur_ns"} <= names else []
    ends += [f"v.{name}" for name in _ENDS if name in names]
    return f"coalesce({', '.join([*ends, *(f'v.{n}' for n in _STARTS if n in names)])})"


def _time_clauses(start: str | None, end: str, selection: Selection) -> list[str]:
    if start is None:
        return []
    clauses = []
    if selection.since_ns is not None:
        clauses.append(f"{start} IS NULL OR {end} >= {int(selection.since_ns)}")
    if selection.until_ns is not None:
        clauses.append(f"{start} IS NULL OR {start} <= {int(selection.until_ns)}")
    return [f"({clause})" for clause in clauses]


def _step_clause(names: set[str], start: str | None, end: str, selection: Selection) -> str:
    """By the step that a row states, else by the time of its source's steps, if it has any."""
    within = "true"
    # While the device works off a step its host calls for the next ones.
    until = "host_end_ns" if {"category", "thread"} <= names else "end_ns"
    if start is not None:
        within = (
            f"({start} IS NULL OR v.source_id NOT IN (FROM stepped) OR EXISTS ("
            "SELECT 1 FROM step_window w WHERE w.source_id = v.source_id "
            f"AND {start} < w.{until} AND greatest({end}, {start} + 1) > w.start_ns))"
        )
    # The number in an annotation's name is the file's own word, of markers only.
    if "step" in names and ("step_source" in names or "dur_ns" not in names):
        stated = in_ranges("v.step", selection.steps)
        return f"CASE WHEN v.step IS NULL THEN {within} ELSE {stated} END"
    return within


# --- what there is, and whether an option matches any of it --------------------------------------


def _labels(physical: Callable[[Table], str]) -> str:
    """Every combination of attempt, window, host, rank and step that the run knows of."""
    rank, step, operation, gpu, host, port, activity = (
        f"({physical(table(name))})"
        for name in ("rank", "step", "pipeline_op", "gpu", "host", "port", "activity_step")
    )
    unknown = "CAST(NULL AS INTEGER)"
    hosted = f"LEFT JOIN (SELECT attempt, rank, min(host) AS host FROM {rank} GROUP BY ALL) r USING"
    return (
        "SELECT attempt, capture_id, host, rank, CAST(NULL AS BIGINT) AS step FROM every_context "
        f"UNION SELECT attempt, {unknown}, host, rank, NULL FROM {rank} a WHERE NOT EXISTS ("
        "SELECT 1 FROM every_context e WHERE e.attempt = a.attempt AND e.rank = a.rank) "
        f"UNION SELECT s.attempt, s.capture_id, r.host, s.rank, s.step FROM {step} s "
        f"{hosted} (attempt, rank) "
        f"UNION SELECT s.attempt, s.capture_id, r.host, s.rank, s.step FROM {operation} s "
        f"{hosted} (attempt, rank) "
        f"UNION SELECT attempt, {unknown}, host, rank, NULL FROM {gpu} a WHERE NOT EXISTS ("
        "SELECT 1 FROM every_context e WHERE e.rank = a.rank) "
        f"UNION SELECT {unknown}, {unknown}, host, {unknown}, NULL FROM {host} "
        f"UNION SELECT {unknown}, {unknown}, host, {unknown}, NULL FROM {port} "
        f"UNION SELECT attempt, {unknown}, NULL, {unknown}, step FROM {activity}"
    )


def _labelled(selection: Selection) -> str:
    """Whether what is known of a source's or a label's identity is selected."""
    clauses = [
        _or_null("rank", in_ranges("rank", selection.ranks)),
        _or_null("host", _hosts(selection)),
    ]
    if selection.attempt is not None:
        clauses.append(_or_null("attempt", f"attempt = {int(selection.attempt)}"))
    if selection.window is not None:
        clauses.append(_or_null("capture_id", f"capture_id = {int(selection.window)}"))
    return " AND ".join(clauses)


def _numbers(values: Sequence[Any]) -> str:
    return ranges(int(v) for v in values)


def _names(values: Sequence[Any]) -> str:
    return some([safe(str(v)) for v in values], SHOWN_HOSTS)


class _Option(Struct, frozen=True):
    """An option of a selection: its field, the label that it is about, and how values are told."""

    name: str
    label: str
    noun: str
    is_among: Callable[[Selection, Any], bool]
    told: Callable[[Sequence[Any]], str] = _numbers


def _is_in(among: Sequence[tuple[int, int]], value: Any) -> bool:
    return any(low <= value <= high for low, high in among)


_OPTIONS: Mapping[str, _Option] = {
    "attempt": _Option("--attempt", "attempt", "attempt", lambda s, v: v == s.attempt),
    "window": _Option("--window", "capture_id", "capture window", lambda s, v: v == s.window),
    "hosts": _Option("--hosts", "host", "host", lambda s, v: v in s.hosts, _names),
    "ranks": _Option("--ranks", "rank", "rank", lambda s, v: _is_in(s.ranks, v)),
    "steps": _Option("--steps", "step", "step", lambda s, v: _is_in(s.steps, v)),
}
"""In the order in which they are checked: each among what those before it leave."""


def _checked(con: duckdb.DuckDBPyConnection, selection: Selection) -> Selection:
    """The selection, less a selection of all steps. UsageError where an option matches nothing."""
    before = Selection()
    comes_to = selection
    for field, option in _OPTIONS.items():
        given = getattr(selection, field)
        if given in ((), None):
            continue
        rows = con.execute(
            f"SELECT DISTINCT {option.label} FROM labels WHERE {option.label} IS NOT NULL "
            f"AND {_labelled(before)} ORDER BY 1"
        ).fetchall()
        values = [value for (value,) in rows]
        chosen = [value for value in values if option.is_among(selection, value)]
        if not chosen:
            raise _nothing(option, given, values, is_first=before.is_empty())
        if field == "steps" and len(chosen) == len(values):
            comes_to = replace(selection, steps=())
        before = replace(before, **{field: given})
    return comes_to


def _nothing(option: _Option, given: Any, values: Sequence[Any], *, is_first: bool) -> UsageError:
    if isinstance(given, int):
        wanted = str(given)
    else:
        parts = (v if isinstance(v, str) else f"{v[0]}-{v[1]}" if v[0] < v[1] else v[0]
                 for v in given)  # fmt: skip
        wanted = ",".join(safe(str(part)) for part in parts)
    if not values:
        return UsageError(
            f"{option.name} {wanted} selects nothing: no {option.noun} is known"
            + ("" if is_first else " of what else is selected"),
            hint=f"leave {option.name} out",
        )
    there = f"{option.noun}{'' if len(values) == 1 else 's'} {option.told(values)}"
    return UsageError(
        f"{option.name} {wanted} selects nothing: there {'is' if len(values) == 1 else 'are'} "
        + there
        + ("" if is_first else " in what else is selected"),
        hint=f"{option.name} {option.told(values[:1])}",
    )


def _time(value_ns: int) -> str:
    """As the options take it: ISO 8601 where it can be a date, else seconds."""
    if abs(value_ns) < 10**15 or abs(value_ns) > 10**19:
        return f"{value_ns / 1e9:.9f}".rstrip("0").rstrip(".")
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value_ns // 1000)
    return moment.isoformat().replace("+00:00", "Z")
