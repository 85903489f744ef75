"""Numbers between NumPy and Arrow without a copy, and without what Arrow's own ways import.

``pyarrow.compute`` makes a function with its help for each of its 280 when it is imported, and
``pa.array`` of a NumPy array imports ``numpy.ma``: 0.05 s together, a tenth of a command on a small
trace. What reads the frequent events and writes tables needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]


def column(values: npt.NDArray[Any], is_null: Bools | None = None) -> pa.Array:
    """An Arrow column of the same type; numbers that lie behind one another are not copied."""
    is_bits = values.dtype == np.bool_
    data = np.packbits(values, bitorder="little") if is_bits else np.ascontiguousarray(values)
    type_ = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, len(values), [_validity(is_null), pa.py_buffer(data)])


PACKED = pa.dictionary(pa.int32(), pa.string())
"""Text as a number of each distinct one, which Parquet writes as it is."""

FEW_TEXTS = 20_000
"""Texts that are numbered by way of Python in less time than importing Arrow's functions takes."""

NO_INT32 = -(2**63)
"""What ``int32s`` makes null, as it does all that 32 bits cannot hold."""


def int32s(values: npt.NDArray[np.int64]) -> pa.Array:
    """An int32 column; what does not fit becomes null."""
    fits = (values >= -(2**31)) & (values < 2**31)
    return column(np.where(fits, values, 0).astype(np.int32), ~fits)


def triples(values: npt.NDArray[Any], is_null: Bools) -> pa.Array:
    """A column of lists of three from an array of shape (rows that are not null, 3)."""
    offsets = np.zeros(len(is_null) + 1, np.int32)
    np.cumsum(~is_null, out=offsets[1:])
    offsets *= 3
    flat = column(values.ravel())
    buffers = [_validity(is_null), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(flat.type), len(is_null), buffers, children=[flat])


def known(values: pa.Array | pa.ChunkedArray) -> Bools:
    """Which values are not null."""
    if isinstance(values, pa.ChunkedArray):
        parts = [known(chunk) for chunk in values.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.bool_), *parts])
    validity = values.buffers()[0]
    if validity is None or not values.null_count:
        return np.full(len(values), not isinstance(values, pa.NullArray))
    return _bits(validity, values)


def numbers(values: pa.Array | pa.ChunkedArray, null: int) -> npt.NDArray[Any]:
    """The numbers of a column of integers, ``null`` where there is none; not to be written to."""
    if isinstance(values, pa.ChunkedArray):
        parts = [numbers(chunk, null) for chunk in values.chunks]
        empty = np.zeros(0, values.type.to_pandas_dtype())
        return parts[0] if len(parts) == 1 else np.concatenate([empty, *parts])
    stored = _stored(values)
    return np.where(known(values), stored, stored.dtype.type(null)) if values.null_count else stored


def ends(values: pa.Array | pa.ChunkedArray) -> tuple[int, int] | None:
    """The least and the largest number of a column of integers; None where all are null."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    found = []
    for chunk in chunks:
        stored = _stored(chunk)
        if chunk.null_count:
            stored = stored[known(chunk)]
        if len(stored):
            found.append((int(stored.min()), int(stored.max())))
    if not found:
        return None
    return min(low for low, _ in found), max(high for _, high in found)


def plus(values: pa.ChunkedArray, added: int) -> pa.ChunkedArray:
    """A column of integers, each larger by a number; as in Arrow, what has no room wraps around."""
    moved = [column(_stored(c) + added, ~known(c) if c.null_count else None) for c in values.chunks]
    return pa.chunked_array(moved, values.type)


def encoded(texts: pa.StringArray) -> pa.DictionaryArray:
    """Texts as numbers in the order of their first appearance."""
    if len(texts) <= FEW_TEXTS:
        return pa.array(texts.to_pylist(), PACKED)
    return texts.dictionary_encode()


def shaped(columns: Mapping[str, pa.ChunkedArray] | pa.Table, schema: pa.Schema) -> pa.Table:
    """A table of a schema from columns of its names, cast where their types differ."""
    made = [columns[f.name] for f in schema]
    cast = [c if c.type == f.type else c.cast(f.type) for c, f in zip(made, schema, strict=True)]
    return pa.table(cast, schema=schema)


def taken(values: pa.ChunkedArray, rows: Sequence[int]) -> pa.Array:
    """Some of a column of integers."""
    at = np.array(rows, np.int64)
    return column(numbers(values, 0)[at], ~known(values)[at])


def distinct(values: pa.ChunkedArray) -> list[int]:
    """The distinct numbers of a column of integers."""
    bounds = ends(values)
    if bounds is None or bounds[0] == bounds[1]:  # nearly always: a process, a device
        return [] if bounds is None else [bounds[0]]
    stored = numbers(values, bounds[0])
    return np.unique(stored).tolist()  # type: ignore[no-any-return]


def _validity(is_null: Bools | None) -> pa.Buffer | None:
    if is_null is None or not is_null.any():
        return None
    return pa.py_buffer(np.packbits(~is_null, bitorder="little"))


def _bits(buffer: pa.Buffer, values: pa.Array) -> Bools:
    until = values.offset + len(values)
    told = np.unpackbits(np.frombuffer(buffer, np.uint8), count=until, bitorder="little")
    return told[values.offset :].view(np.bool_)


def _stored(values: pa.Array) -> npt.NDArray[Any]:
    """What lies in memory, where a null is any number."""
    data = values.buffers()[1]
    if data is not None and pa.types.is_boolean(values.type):
        return _bits(data, values)
    dtype = np.dtype(values.type.to_pandas_dtype())
    if data is None:  # of no rows
        return np.zeros(len(values), dtype)
    return np.frombuffer(data, dtype)[values.offset : values.offset + len(values)]
