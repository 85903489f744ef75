"""A sink that keeps everything in memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tracekit import schema


class MemorySink:
    """Keeps rows, counters and facts; checks names and types against the registry."""

    def __init__(self) -> None:
        self.tables: dict[str, list[pa.Table]] = {}
        self.counters: dict[str, int] = {}
        self.severities: dict[str, str] = {}
        self.shapes: dict[str, str | None] = {}
        self.places: dict[str, int | None] = {}
        self.facts: dict[str, Any] = {}

    def write(self, table: str, rows: pa.Table) -> None:
        declared = schema.table(table).arrow_schema()
        columns = []
        for field in declared:
            if field.name in rows.column_names:
                columns.append(rows[field.name].cast(field.type))
            else:
                columns.append(pa.nulls(rows.num_rows, field.type))
        unknown = set(rows.column_names) - set(declared.names)
        assert not unknown, f"{table} has no {unknown}"
        self.tables.setdefault(table, []).append(pa.table(columns, schema=declared))

    def count(
        self,
        counter: str,
        n: int = 1,
        *,
        severity: str = "warning",
        doc: str,
        place: int | None = None,
        shape: str | None = None,
    ) -> None:
        assert doc
        self.counters[counter] = self.counters.get(counter, 0) + n
        self.severities[counter] = severity
        self.shapes.setdefault(counter, shape)
        self.places.setdefault(counter, place)

    def fact(self, **columns: object) -> None:
        declared = {c.name for c in schema.table("source").columns}
        assert set(columns) <= declared, set(columns) - declared
        self.facts.update(columns)

    def table(self, name: str) -> pa.Table:
        parts = self.tables.get(name)
        if not parts:
            return schema.table(name).arrow_schema().empty_table()
        return pa.concat_tables(parts)

    def rows(self, name: str, *columns: str) -> list[Any]:
        """Rows by place as dictionaries, or tuples of some columns."""
        table = self.table(name)
        if "place" in table.column_names:
            table = table.sort_by("place")
        rows = table.to_pylist()
        if not columns:
            return rows
        if len(columns) == 1:
            return [r[columns[0]] for r in rows]
        return [tuple(r[c] for c in columns) for r in rows]
