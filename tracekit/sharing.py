"""What several queries would each derive, derived once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tracekit import macros
from tracekit.catalog import find, macro_statements

if TYPE_CHECKING:
    import duckdb

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
    statements = macro_statements(may_have_hosts)
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
    statements = macro_statements(may_have_hosts)
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
