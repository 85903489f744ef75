"""Tables by hand, as derive and queries read them: what a row leaves out is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
from proofs import create_empty_tables

from tracekit.errors import UsageError
from tracekit.schema import TABLES, table

_COLUMNS = {
    t.name: ", ".join(f'"{c.name}" {c.type}' for c in t.stored_columns)
    for t in TABLES
    if t.kind == "source"
}
_EMPTY = "; ".join(f"CREATE TABLE {name} ({columns})" for name, columns in _COLUMNS.items())


@cache
def _empty() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect(config={"threads": 1})
    con.execute(_EMPTY)
    return con


def database(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> duckdb.DuckDBPyConnection:
    """Every source table, with these rows; like a small run's, with one thread.

    Rows are those of a transaction that never ends, so one database serves all: to make one takes
    longer than most of what is asked of it.
    """
    con = _empty().cursor()
    con.begin()
    for name, rows in tables.items():
        con.register("given", pa.Table.from_pylist(list(rows), table(name).arrow_schema()))
        con.execute(f"INSERT INTO {name} BY NAME FROM given")
        con.unregister("given")
    return con


def create_table(
    con: duckdb.DuckDBPyConnection, name: str, rows: Sequence[Mapping[str, object]]
) -> None:
    """Create a logical table that holds these rows; columns that a row lacks are null."""
    create_empty_tables(con, [name])
    given = {key for row in rows for key in row}
    unknown = given - {c.name for c in table(name).columns}
    if unknown:
        raise UsageError(f"table {name} has no column {', '.join(sorted(unknown))}")
    if rows:
        columns = sorted(given)
        con.register("_rows", pa.table({c: [row.get(c) for row in rows] for c in columns}))
        names = ", ".join(f'"{c}"' for c in columns)
        # Names come from the registry, never from outside.
        con.execute(f'INSERT INTO "{name}" ({names}) SELECT {names} FROM _rows')
        con.unregister("_rows")
