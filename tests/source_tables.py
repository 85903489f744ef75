"""Source tables by hand, as derive reads them: what a row leaves out is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from tracekit.schema import TABLES, table

_COLUMNS = {
    t.name: ", ".join(f'"{c.name}" {c.type}' for c in t.stored_columns)
    for t in TABLES
    if t.kind == "source"
}
_EMPTY = "; ".join(f"CREATE TABLE {name} ({columns})" for name, columns in _COLUMNS.items())


def database(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> duckdb.DuckDBPyConnection:
    """Every source table, with these rows; like a small run's, with one thread."""
    con = duckdb.connect(config={"threads": 1})
    con.execute(_EMPTY)
    for name, rows in tables.items():
        con.register("given", pa.Table.from_pylist(list(rows), table(name).arrow_schema()))
        con.execute(f"INSERT INTO {name} BY NAME FROM given")
        con.unregister("given")
    return con
