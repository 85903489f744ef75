"""What several queries would each derive, derived once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tracekit import macros
from tracekit.catalog import find, load_macros, macro_statements
from tracekit.runs import available_cpus
from tracekit.store import beside, parsed

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

BY_RANKS = {"time_spent": "time_spent_of"}
"""Of these, macros that hold all events in memory, and what gives their rows from one rank to
another."""
MAX_EVENTS = 500_000
"""Rows that such a macro is given at a time: some 150 MB of memory."""
PARTS_AT_ONCE = 2
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
    loaded: dict[str, str] | None = None,
    held: Collection[str] = (),
) -> Iterator[None]:
    """Within it, what two or more of the named queries would each derive is derived once.

    What a macro can derive a few ranks at a time is so derived where it holds more than
    ``MAX_EVENTS``, if for one query only: its memory then depends on no number of ranks.
    Macros must be loaded, for the same ``may_have_hosts``. Rows are the same: a macro with the
    tables that all queries give it is read from a table in memory (spilled like any other) instead
    of being expanded again.

    Afterwards these macros are what they were. With ``loaded``, the macros that are loaded, only
    those are that somebody ``held`` before; others are taken from it, for whoever loads what is not
    in it before asking again.
    """
    statements = macro_statements(may_have_hosts)
    made: list[str] = []
    try:
        for name, parts in _worth(con, names, statements).items():
            if _share(con, name, _calls(name, parts)):
                made.append(name)
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


_Ranks = Sequence[tuple[int, int]]
"""First and last ranks that are derived at a time."""


def _worth(
    con: duckdb.DuckDBPyConnection, names: Iterable[str], statements: Mapping[str, str]
) -> dict[str, _Ranks]:
    """What to derive once for these queries, in order, and for which ranks at a time, where that
    matters."""
    used = [macros.used_by(find(name).sql, known=statements) for name in names]
    by_ranks = [m for m in BY_RANKS if any(m in words for words in used)]
    parts = rank_ranges(con) if by_ranks else ()
    each = macros.used_by(*by_ranks, known=statements) if len(parts) > 1 else set()
    worth = [m for m in SHARED_MACROS if m in each or sum(m in words for words in used) > 1]
    return {name: parts if name in by_ranks else () for name in worth}


def _calls(name: str, parts: _Ranks) -> list[str]:
    """What gives a macro's rows, by macros."""
    arguments = ", ".join(f"'{table}'" for table in SHARED_MACROS[name])
    by_ranks = [f"{BY_RANKS[name]}({first}, {last})" for first, last in parts]
    return by_ranks or [f"{name}({arguments})"]


def _bodies(name: str, parts: _Ranks, statements: Mapping[str, str]) -> list[str]:
    """The same without the macro."""
    by_ranks = [_body(statements[BY_RANKS[name]], [*map(str, ranks)]) for ranks in parts]
    return by_ranks or [_body(statements[name], [f"'{table}'" for table in SHARED_MACROS[name]])]


def _body(statement: str, arguments: Sequence[str]) -> str:
    head, _, body = statement.partition(" AS TABLE\n")
    parameters = re.findall(r"\w+", head.partition("(")[2])
    for parameter, argument in zip(parameters, arguments, strict=True):
        body = re.sub(rf"\b{parameter}\b", argument, body)
    return body.rstrip(";\n")


def sharing_with(
    names: Iterable[str], others: Iterable[str], *, may_have_hosts: bool = True
) -> list[str]:
    """Of the other queries, those that derive what one of the named queries derives as well."""
    statements = macro_statements(may_have_hosts)
    names = [*names]
    derived = macros.used_by(*(find(n).sql for n in names), known=statements) & {*SHARED_MACROS}
    return [
        other
        for other in others
        if other not in names and derived & macros.used_by(find(other).sql, known=statements)
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


def _share(con: duckdb.DuckDBPyConnection, name: str, sources: Sequence[str]) -> bool:
    """Whether the macro reads a table of these rows from now on; where it cannot be made, queries
    say why."""
    import duckdb

    first, *rest = sources
    try:
        existing = con.execute(
            "SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [f"shared_{name}"]
        )
        if existing.fetchall():
            return False  # it reads one already, whose maker goes on needing it
        con.execute(parsed(con, f"CREATE TABLE shared_{name} AS FROM {first}"))
        _insert(con, name, rest)
    except duckdb.Error:
        with suppress(duckdb.Error):  # in a transaction that failed there is nothing to drop
            con.execute(f"DROP TABLE IF EXISTS shared_{name}")
        return False
    con.execute(parsed(con, _reading(name)))
    return True


def _insert(con: duckdb.DuckDBPyConnection, name: str, sources: Sequence[str]) -> None:
    """Add what further sources give, ``PARTS_AT_ONCE`` where a statement has one thread."""
    ((threads,),) = con.execute("SELECT current_setting('threads')").fetchall()
    count = min(PARTS_AT_ONCE, available_cpus()) if threads == 1 else 1

    def insert(con: duckdb.DuckDBPyConnection, source: str) -> None:
        con.execute(f"INSERT INTO shared_{name} FROM {source}")

    if count == 1 or len(sources) < 2:
        for source in sources:
            insert(con, source)
        return
    with ThreadPoolExecutor(count, "share") as pool:
        for added in [pool.submit(insert, beside(con), source) for source in sources]:
            added.result()


def _reading(name: str) -> str:
    """The statement that makes a macro read what was derived."""
    markers = ", ".join(f"p{number}" for number in range(len(SHARED_MACROS.get(name, ()))))
    return f"CREATE OR REPLACE MACRO {name}({markers}) AS TABLE FROM shared_{name}"
