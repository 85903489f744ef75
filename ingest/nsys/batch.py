"""Some rows of a table, as whichever library read them gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from tracekit.ingest.traces import columns


class Batch(Struct, frozen=True):
    """Where each row stands, and columns: Python values as SQLite has them, or Arrow's int64 and
    strings, null where a value is of another type."""

    rowids: Sequence[int] | npt.NDArray[np.int64]
    columns: Mapping[str, Sequence[Any] | pa.Array]

    def __len__(self) -> int:
        return len(self.rowids)

    def __getitem__(self, name: str) -> Sequence[Any]:
        """A column as Python values; all null where the table has none of that name."""
        column = self.columns.get(name)
        if column is None:
            return [None] * len(self)
        values: Sequence[Any] = column.to_pylist() if isinstance(column, pa.Array) else column
        return values

    def ints(self, name: str) -> pa.Array:
        """A column as int64; what is no integer of 64 bits is null."""
        column = self.columns.get(name)
        if column is None:
            return pa.nulls(len(self), pa.int64())
        is_done = isinstance(column, pa.Array) and column.type == pa.int64()
        return column if is_done else columns.ints(self[name])

    def int32s(self, name: str) -> pa.Array:
        """A column as int32; what does not fit is null."""
        return columns.int32s(self.ints(name))

    def texts(self, name: str) -> pa.Array:
        """A column as strings; what is no text is null."""
        column = self.columns.get(name)
        if column is None:
            return pa.nulls(len(self), pa.string())
        if isinstance(column, pa.Array):
            return column if column.type == pa.string() else pa.nulls(len(self), pa.string())
        return columns.texts([v if isinstance(v, str) else None for v in column])

    @property
    def text_bytes(self) -> int:
        """Bytes of the columns that are Arrow's strings."""
        columns = (c for c in self.columns.values() if isinstance(c, pa.Array))
        return sum(c.nbytes - 4 * len(c) for c in columns if c.type == pa.string())

    def has_null(self, name: str) -> bool:
        """Whether a column lacks a value."""
        column = self.columns.get(name)
        if column is None:
            return len(self) > 0
        return column.null_count > 0 if isinstance(column, pa.Array) else None in column
