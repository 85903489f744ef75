"""A sink and a source in memory: for tests, and for a look at one file from a notebook."""

from __future__ import annotations

import io
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa

from tracekit import schema
from tracekit.ingest import files, streams
from tracekit.ingest.base import Severity, SourceFile


class MemorySink:
    """Keeps rows, counters and facts; refuses what the registry does not know."""

    def __init__(self) -> None:
        self.tables: dict[str, list[pa.Table]] = {}
        self.counters: dict[str, int] = {}
        self.severities: dict[str, Severity] = {}
        self.shapes: dict[str, str | None] = {}
        self.places: dict[str, int | None] = {}
        self.facts: dict[str, Any] = {}

    def write(self, table: str, rows: pa.Table) -> None:
        """Keep rows, completed and cast to the registry's columns."""
        declared = schema.table(table).arrow_schema()
        unknown = set(rows.column_names) - set(declared.names)
        if unknown:
            raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
        columns = [
            rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in declared
        ]
        self.tables.setdefault(table, []).append(pa.table(columns, schema=declared))

    def count(
        self,
        counter: str,
        n: int = 1,
        *,
        severity: Severity = "warning",
        doc: str,
        place: int | None = None,
        shape: str | None = None,
    ) -> None:
        """Add to a counter; the first place and shape are kept."""
        if not doc:
            raise ValueError(f"{counter} lacks its sentence")
        self.counters[counter] = self.counters.get(counter, 0) + n
        self.severities[counter] = severity
        self.shapes.setdefault(counter, shape)
        self.places.setdefault(counter, place)

    def fact(self, **columns: object) -> None:
        """Keep facts."""
        for name in columns:
            schema.table("source").column(name)
        self.facts.update(columns)

    def table(self, name: str) -> pa.Table:
        """All rows of a table, in the order in which they were written."""
        parts = self.tables.get(name)
        if not parts:
            return schema.table(name).arrow_schema().empty_table()
        return pa.concat_tables(parts)

    def rows(self, name: str, *columns: str) -> list[Any]:
        """Rows by place, as dictionaries, as tuples of some columns, or as values of one."""
        table = self.table(name)
        if name not in ("device", "process", "process_group"):
            table = table.sort_by("place")
        rows: list[dict[str, Any]] = table.to_pylist()
        if not columns:
            return rows
        if len(columns) == 1:
            return [r[columns[0]] for r in rows]
        return [tuple(r[c] for c in columns) for r in rows]


def source_of(data: bytes, name: str = "trace.json") -> SourceFile:
    """A file that exists in memory only (compressed or not)."""
    return SourceFile(name, files.base_name(name), len(data), 0, partial(_open, data))


def _open(data: bytes) -> BinaryIO:
    return streams.decompressed(io.BytesIO(data))  # type: ignore[return-value]
