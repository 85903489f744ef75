"""What several queries would each derive, derived once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tracekit import macros
from tracekit.catalog import find, load_macros, macro_statements
from tracekit.store import parsed
from tracekit.tasks import Task, run_beside

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

SHARED_MACROS = {
    "host_work": ("gpu_op", "host_op"),
    "device_stretches": (),
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

IN_PARTS = {"time_spent": "time_spent_of"}
"""Of these, macros that hold all events in memory, and what gives the rows of a ``Part``."""
MAX_EVENTS = 500_000
"""Rows that such a macro is given at a time: some 150 MB of memory."""
PARTS_AT_ONCE = 2
"""Of one macro; each part holds its events."""
_EVENTS = """
SELECT rank, count(*)
FROM (
    SELECT rank FROM annotation UNION ALL SELECT rank FROM gpu_op UNION ALL SELECT rank FROM host_op
)
WHERE rank IS NOT NULL GROUP BY rank ORDER BY rank
"""
_STEPS = """
SELECT coalesce(paced_start_ns, start_ns) AS start_ns, coalesce(paced_end_ns, start_ns + dur_ns)
FROM step WHERE rank = $rank AND start_ns IS NOT NULL ORDER BY start_ns
"""
FIRST_NS, LAST_NS = -(2**63) + 1, 2**63 - 1
"""Before and after all steps."""


class Part(NamedTuple):
    """Some of what a macro is derived from: the ranks from one to another, and of these the steps
    that begin from one moment to before another, by which they have ended."""

    first_rank: int
    last_rank: int
    first_ns: int = FIRST_NS
    last_ns: int = LAST_NS


@contextmanager
def shared(
    con: duckdb.DuckDBPyConnection,
    names: Iterable[str],
    *,
    may_have_hosts: bool = True,
    loaded: dict[str, str] | None = None,
    held: Collection[str] = (),
    later: list[Task[bool]] | None = None,
) -> Iterator[None]:
    """Within it, what two or more of the named queries would each derive is derived once.

    What a macro can derive in parts is so derived where it holds more than ``MAX_EVENTS``, if for
    one query only: its memory then depends on no number of ranks, nor of a rank's steps.
    Macros must be loaded, for the same ``may_have_hosts``. Rows are the same: a macro with the
    tables that all queries give it is read from a table in memory (spilled like any other) instead
    of being expanded again.

    Afterwards these macros are what they were. With ``loaded``, the macros that are loaded, only
    those are that somebody ``held`` before; others are taken from it, for whoever loads what is not
    in it before asking again. ``later`` gets what would be run, for whoever runs it beside the
    queries.
    """
    statements = macro_statements(may_have_hosts)
    made: list[str] = []
    try:
        tasks = _tasks(con, _worth(con, names, statements), statements, made)
        if later is None:
            for _ in run_beside(con, tasks, 1):
                pass
        else:
            later += tasks
        yield
    finally:
        for name in reversed(made):  # each is bound while those that it needs are tables
            if loaded is None or name in held:
                con.execute(parsed(con, statements[name]))
            else:
                del loaded[name]
        for name in made:
            con.execute(f"DROP TABLE shared_{name}")


def share(
    con: duckdb.DuckDBPyConnection,
    names: Iterable[str],
    loaded: dict[str, str],
    *,
    may_have_hosts: bool = True,
) -> None:
    """The same for as long as the connection lasts, for a run so small that to plan takes longer
    than to run.

    Tables must be there, but no macros: those that are ``loaded``, by name, with what made them,
    become more by what is derived. DuckDB binds a macro when it is made, and again wherever it is
    named; so what is derived is no macro before, and what it is made of binds what is derived
    already.
    """
    statements = macro_statements(may_have_hosts)
    for name, parts in _worth(con, names, statements).items():
        if loaded.get(name) == _reading(name):
            continue
        sources = _bodies(name, parts, statements)
        loaded |= load_macros(con, sources, may_have_hosts=may_have_hosts, loaded=loaded)
        if _share(con, name, [f"({source})" for source in sources]):
            loaded[name] = _reading(name)


def put(con: duckdb.DuckDBPyConnection, name: str, rows: pa.Table, loaded: dict[str, str]) -> None:
    """Let a macro without arguments give these rows, which somebody derived elsewhere, for as long
    as the connection lasts; ``loaded`` as for ``share``."""
    con.register("put_rows", rows)
    con.execute(f"CREATE OR REPLACE TABLE shared_{name} AS FROM put_rows")
    con.unregister("put_rows")
    con.execute(_reading(name))
    loaded[name] = _reading(name)


def _worth(
    con: duckdb.DuckDBPyConnection, names: Iterable[str], statements: Mapping[str, str]
) -> dict[str, Sequence[Part]]:
    """What to derive once for these queries, in order, and in which parts, where that matters."""
    used = [macros.used_by(find(name).sql, known=statements) for name in names]
    in_parts = [m for m in IN_PARTS if any(m in words for words in used)]
    parts = parts_of(con) if in_parts else ()
    each = macros.used_by(*in_parts, known=statements) if len(parts) > 1 else set()
    worth = [m for m in SHARED_MACROS if m in each or sum(m in words for words in used) > 1]
    return {name: parts if name in in_parts else () for name in worth}


def _calls(name: str, parts: Sequence[Part]) -> list[str]:
    """What gives a macro's rows, by macros."""
    arguments = ", ".join(f"'{table}'" for table in SHARED_MACROS[name])
    calls = [f"{IN_PARTS[name]}({', '.join(map(str, part))})" for part in parts]
    return calls or [f"{name}({arguments})"]


def _bodies(name: str, parts: Sequence[Part], statements: Mapping[str, str]) -> list[str]:
    """The same without the macro."""
    bodies = [_body(statements[IN_PARTS[name]], [*map(str, part)]) for part in parts]
    return bodies or [_body(statements[name], [f"'{table}'" for table in SHARED_MACROS[name]])]


def _body(statement: str, arguments: Sequence[str]) -> str:
    head, _, body = statement.partition(" AS TABLE\n")
    parameters = re.findall(r"\w+", head.partition("(")[2])
    for parameter, argument in zip(parameters, arguments, strict=True):
        body = re.sub(rf"\b{parameter}\b", argument, body)
    return body.rstrip(";\n")


def needs(name: str, *, may_have_hosts: bool = True) -> set[str]:
    """The tables that a named query reads once what it needs is derived for several."""
    return _tables(macros.used_by(find(name).sql, known=macro_statements(may_have_hosts)))


def _tables(used: Collection[str]) -> set[str]:
    """What becomes of macros that are derived once."""
    return {f"shared_{name}" for name in used if name in SHARED_MACROS}


def sharing_with(
    names: Iterable[str], others: Iterable[str], *, may_have_hosts: bool = True
) -> list[str]:
    """Of the other queries, those that derive what one of the named queries derives as well."""
    names = [*names]
    derived = set().union(*(needs(name, may_have_hosts=may_have_hosts) for name in names))
    return [
        other
        for other in others
        if other not in names and derived & needs(other, may_have_hosts=may_have_hosts)
    ]


def parts_of(con: duckdb.DuckDBPyConnection) -> Sequence[Part]:
    """Parts of up to ``MAX_EVENTS`` events: of several ranks, of one, or of some steps of one.
    None where the events are unknown."""
    import duckdb

    try:
        counts = con.execute(_EVENTS).fetchall()
        cuts = {rank: _cuts(con, rank, count) for rank, count in counts if count > MAX_EVENTS}
    except duckdb.Error:
        return ()
    parts: list[Part] = []
    held = MAX_EVENTS
    for rank, count in counts:
        held += count
        if held > MAX_EVENTS:
            parts.append(Part(rank, rank))
            held = count
        parts[-1] = parts[-1]._replace(last_rank=rank)
        if cuts.get(rank):
            moments = [FIRST_NS, *cuts[rank], LAST_NS]
            parts[-1:] = [Part(rank, rank, *times) for times in pairwise(moments)]
    return parts


def _cuts(con: duckdb.DuckDBPyConnection, rank: int, events_count: int) -> list[int]:
    """Moments between steps of a rank that leave about ``MAX_EVENTS`` events between two of them,
    where all its steps have about as many."""
    moments: list[int] = []
    latest_ns: int | None = None
    for start_ns, end_ns in con.execute(_STEPS, {"rank": rank}).fetchall():
        if latest_ns is not None and start_ns >= latest_ns:
            moments.append(start_ns)
        latest_ns = max(end_ns or start_ns, start_ns if latest_ns is None else latest_ns)
    count = min(-(-events_count // MAX_EVENTS), len(moments) + 1)
    return sorted({moments[i * len(moments) // count] for i in range(1, count)})


def _tasks(
    con: duckdb.DuckDBPyConnection,
    worth: Mapping[str, Sequence[Part]],
    statements: Mapping[str, str],
    made: list[str],
) -> list[Task[bool]]:
    """What derives each macro's rows; ``made`` gets the names of those that read a table since."""

    def task(name: str, calls: Sequence[str]) -> Task[bool]:
        def end(added: Sequence[bool]) -> None:
            if _read(con, name, is_whole=all(added)):
                made.append(name)

        return Task(
            f"shared_{name}",
            [partial(_add, name=name, source=call) for call in calls],
            _tables(macros.used_by(*calls, known=statements) - {name}),
            PARTS_AT_ONCE,
            begin=lambda: _create(con, name, f"{calls[0]} WITH NO DATA"),
            end=end,
        )

    return [task(name, _calls(name, parts)) for name, parts in worth.items()]


def _share(con: duckdb.DuckDBPyConnection, name: str, sources: Sequence[str]) -> bool:
    """Whether the macro reads a table of these rows from now on; where it cannot be made, queries
    say why."""
    first, *rest = sources
    return _create(con, name, first) and _read(
        con, name, is_whole=all(_add(con, name, source) for source in rest)
    )


def _create(con: duckdb.DuckDBPyConnection, name: str, source: str) -> bool:
    """Whether a table was made; there may be one, whose maker goes on needing it."""
    import duckdb

    existing = "SELECT 1 FROM duckdb_tables() WHERE table_name = ?"
    try:
        if con.execute(existing, [f"shared_{name}"]).fetchall():
            return False
        con.execute(parsed(con, f"CREATE TABLE shared_{name} AS FROM {source}"))
    except duckdb.Error:
        return False
    return True


def _add(con: duckdb.DuckDBPyConnection, name: str, source: str) -> bool:
    import duckdb

    try:
        con.execute(f"INSERT INTO shared_{name} FROM {source}")
    except duckdb.Error:
        return False
    return True


def _read(con: duckdb.DuckDBPyConnection, name: str, *, is_whole: bool) -> bool:
    """Let the macro read its table; one that is not whole is dropped."""
    import duckdb

    if is_whole:
        con.execute(parsed(con, _reading(name)))
    else:
        with suppress(duckdb.Error):  # in a transaction that failed there is nothing to drop
            con.execute(f"DROP TABLE shared_{name}")
    return is_whole


def _reading(name: str) -> str:
    """The statement that makes a macro read what was derived."""
    markers = ", ".join(f"p{number}" for number in range(len(SHARED_MACROS.get(name, ()))))
    return f"CREATE OR REPLACE MACRO {name}({markers}) AS TABLE FROM shared_{name}"
