"""Unions of half-open time intervals ``[start, end)``: the only such code in Python.

``queries/macros/intervals.sql`` holds the only one in SQL; tests prove both equal. Times: int64 ns.
Empty and reversed intervals count for nothing; touching ones are joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


def merged(starts_ns: ArrayLike, ends_ns: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends of the union, disjoint and in order of time."""
    import numpy as np

    starts, ends = np.asarray(starts_ns, np.int64), np.asarray(ends_ns, np.int64)
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    order = np.argsort(starts, kind="stable")
    starts, latest_ends = starts[order], np.maximum.accumulate(ends[order])
    if starts.size == 0:
        return starts, latest_ends
    # A row opens a new stretch exactly if it starts after the latest end before it.
    opens = np.append(True, starts[1:] > latest_ends[:-1])
    closes = np.append(opens[1:], True)
    return starts[opens], latest_ends[closes]


def busy_ns(starts_ns: ArrayLike, ends_ns: ArrayLike) -> int:
    """Time covered by at least one interval."""
    starts, ends = merged(starts_ns, ends_ns)
    return int((ends - starts).sum())


def overlap_ns(
    starts_ns: ArrayLike, ends_ns: ArrayLike, other_starts_ns: ArrayLike, other_ends_ns: ArrayLike
) -> int:
    """Time covered by both sets."""
    import numpy as np

    starts = [np.asarray(values, np.int64) for values in (starts_ns, other_starts_ns)]
    ends = [np.asarray(values, np.int64) for values in (ends_ns, other_ends_ns)]
    each = sum(busy_ns(s, e) for s, e in zip(starts, ends, strict=True))
    return each - busy_ns(np.concatenate(starts), np.concatenate(ends))
