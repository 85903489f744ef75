"""Rows that wait: in memory while they are few, beyond that in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

SPILL_ROWS = 1 << 15
"""Rows that wait in memory before they go to a temporary file."""


class Spill:
    """Batches of rows of one shape, in order; beyond ``SPILL_ROWS`` in a temporary file."""

    def __init__(self) -> None:
        self._limit = SPILL_ROWS
        self._tables: list[pa.Table] = []
        self._waiting = 0
        self._file: Any = None
        self._writer: Any = None
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
        merged = pa.concat_tables(self._tables).combine_chunks()
        if self._writer is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            self._writer = pa.ipc.new_stream(self._file, merged.schema)
        self._writer.write_table(merged)
        self._tables = []
        self._waiting = 0

    def batches(self) -> Iterator[pa.Table]:
        """All batches, oldest first."""
        if self._writer is not None:
            self._flush()
            self._writer.close()
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])
        elif self._tables:
            yield pa.concat_tables(self._tables).combine_chunks()

    def close(self) -> None:
        """Drop the temporary file."""
        if self._file is not None:
            self._file.close()
