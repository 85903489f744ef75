"""Rows that wait: in memory while they are few, beyond that in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import pyarrow as pa

from tracekit.store.writer import writing as store_writing

SPILL_ROWS = 1 << 15
"""Rows that wait in memory before they go to a temporary file."""


def writing() -> AbstractContextManager[None]:
    """Of a temporary file: a full disk is no trace's fault."""
    place = "the folder for temporary files"
    with suppress(OSError):  # where none can be used
        place = tempfile.gettempdir()
    return store_writing(place, "set TMPDIR to a folder with enough space, where you may write")


class Spill:
    """Batches of rows of one shape, in order; beyond ``SPILL_ROWS`` in a temporary file."""

    def __init__(self) -> None:
        self._limit = SPILL_ROWS
        self._tables: list[pa.Table] = []
        self._waiting = 0
        self._file: Any = None
        self._schema: pa.Schema | None = None
        self.rows = 0

    def add(self, table: pa.Table) -> None:
        """Keep a batch."""
        self._tables.append(table)
        self._waiting += table.num_rows
        self.rows += table.num_rows
        if self._waiting >= self._limit:
            self._flush()

    def _flush(self) -> None:
        if not self._tables:
            return
        merged = _without_nulls(pa.concat_tables(self._tables)).combine_chunks()
        with writing():
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
                self._schema = self._tables[0].schema
            with pa.ipc.new_stream(self._file, merged.schema) as stream:
                stream.write_table(merged)
            self._file.flush()
        self._tables = []
        self._waiting = 0

    def batches(self) -> Iterator[pa.Table]:
        """All batches, oldest first."""
        if self._schema is not None:
            self._flush()
            end = self._file.tell()
            self._file.seek(0)
            while self._file.tell() < end:
                with pa.ipc.open_stream(self._file) as stream:
                    for batch in stream:
                        yield _with_nulls(pa.Table.from_batches([batch]), self._schema)
        elif self._tables:
            yield pa.concat_tables(self._tables).combine_chunks()

    def close(self) -> None:
        """Drop the temporary file."""
        if self._file is not None:
            with suppress(OSError):  # what could not be written is tried once more
                self._file.close()


def _without_nulls(rows: pa.Table) -> pa.Table:
    """Columns in which nothing is known take no bytes: of a kernel in a graph that is half."""
    for at, column in enumerate(rows.columns):
        if column.null_count == rows.num_rows:
            rows = rows.set_column(at, rows.field(at).name, pa.nulls(rows.num_rows))
    return rows


def _with_nulls(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        pa.nulls(rows.num_rows, field.type) if pa.types.is_null(column.type) else column
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)
