"""Columns of the registry's types from what a trace holds: what does not fit becomes null."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tracekit import arrays
from tracekit.ingest.traces import names

INT64_MAX = 2**63 - 1
CACHE_LIMIT = 100_000
"""Distinct values that a cache keeps before it starts anew."""

Column: TypeAlias = "Sequence[object] | array[int]"
"""Values of a column: an array where all are integers of 64 bits."""


class Cache(dict[Any, Any]):
    """Remembers what a pure function said about each distinct value."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: Any) -> Any:
        if len(self) >= CACHE_LIMIT:
            self.clear()
        value = self[key] = self._function(key)
        return value


def as_int(value: object) -> int | None:
    """An id as the file spells it (7, "7", "stream 7"); None if it is no number."""
    if isinstance(value, str):
        digits = value.removeprefix("stream").strip()
        try:
            value = int(digits)
        except ValueError:
            return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    if value > INT64_MAX:
        value -= 2**64
    return value if -INT64_MAX - 1 <= value <= INT64_MAX else None


def ints(values: Column) -> pa.Array:
    """An int64 column; what is no integer of 64 bits becomes null."""
    if isinstance(values, array):
        return arrays.column(np.frombuffer(values, np.int64))
    try:
        return pa.array(values, pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError):
        return pa.array([as_int(v) for v in values], pa.int64())


def ids(values: Column) -> pa.Array:
    """An int64 column of which one value is often all there is (a process, a thread)."""
    if isinstance(values, array):
        return ints(values)
    distinct = set(values)
    if len(distinct) == 1:
        return constant_int(as_int(distinct.pop()), len(values))
    return ints(values)


def constant_int(value: int | None, n: int) -> pa.Array:
    """An int64 column of one value."""
    return pa.nulls(n, pa.int64()) if value is None else arrays.column(np.full(n, value))


def texts(values: Sequence[str | None], type_: pa.DataType | None = None) -> pa.Array:
    """A string column, or of another type for text; lone surrogates are replaced."""
    type_ = type_ or pa.string()
    try:
        return pa.array(values, type_)
    except UnicodeEncodeError:
        clean = [None if v is None else v.encode("utf-8", "replace").decode() for v in values]
        return pa.array(clean, type_)


_REDACTED = Cache(names.redact)


def shown_names(values: list[str]) -> pa.Array:
    """A column of names, without what looks like a secret in one."""
    changed = {v: _REDACTED[v] for v in set(values) if _REDACTED[v] != v}
    return texts([changed.get(v, v) for v in values] if changed else values)


def constant(value: str, n: int) -> pa.Array:
    """A column of one value."""
    words = pa.array([value], pa.string())
    return pa.DictionaryArray.from_arrays(arrays.column(np.zeros(n, np.int32)), words)


def int32s(values: Column) -> pa.Array:
    """An int32 column; what does not fit becomes null."""
    return arrays.int32s(arrays.numbers(ints(values), arrays.NO_INT32))


def int_lists(values: Sequence[Sequence[int] | None], type_: pa.DataType) -> pa.Array:
    """A column of lists of integers of a type; a list with one that does not fit becomes null."""
    try:
        return pa.array(values, pa.list_(type_))
    except (pa.ArrowInvalid, OverflowError):
        limit = 1 << (type_.bit_width - 1)
        fits = [
            v if v is not None and all(-limit <= n < limit for n in v) else None for v in values
        ]
        return pa.array(fits, pa.list_(type_))
