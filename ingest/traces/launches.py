"""What ties device rows to the host: launch calls and steps.

Flow arrows are not used: in every CUDA file some have no other end. ``correlation`` ties a
kernel to its launch, the launch's time ties it to a step and to the ranges around it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field

from tracekit import arrays

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
MAX_SHARED = 64
"""Calls of one correlation that are looked at: processes of one file, and wrapped counters."""


class Launches(Struct):
    """Launch calls by correlation."""

    _parts: list[tuple[Int64s, ...]] = field(default_factory=list)
    correlation: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    start: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    end: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    thread: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    pid: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(
        self, correlation: Int64s, start: Int64s, end: Int64s, thread: Int64s, pid: Int64s
    ) -> None:
        """Remember calls."""
        self._parts.append((correlation, start, end, thread, pid))

    def finish(self) -> None:
        """Sort by correlation, then start, then the rest (so that file order does not matter).

        May be called again after more were added.
        """
        if not self._parts:
            return
        if len(self.correlation):
            known = (self.correlation, self.start, self.end, self.thread, self.pid)
            self._parts.append(known)
        corr, start, end, thread, pid = (np.concatenate(c) for c in zip(*self._parts, strict=True))
        self._parts = []
        order = np.lexsort((pid, thread, end, start, corr))
        self.correlation, self.start, self.end = corr[order], start[order], end[order]
        self.thread, self.pid = thread[order], pid[order]

    def has_inside(self, correlation: Int64s, thread: Int64s, start: Int64s, end: Int64s) -> Bools:
        """Whether a call of the same correlation and thread lies within each span."""
        low = np.searchsorted(self.correlation, correlation, side="left")
        high = np.searchsorted(self.correlation, correlation, side="right")
        is_inside = np.zeros(len(correlation), np.bool_)
        # Nearly always one call has a correlation; more where it was counted past its largest.
        for offset in range(min(int((high - low).max(initial=0)), MAX_SHARED)):
            at = np.minimum(low + offset, max(len(self.correlation) - 1, 0))
            is_inside |= (
                (low + offset < high)
                & (self.thread[at] == thread)
                & (self.start[at] >= start)
                & (self.end[at] <= end)
            )
        return is_inside

    def find(self, correlation: pa.ChunkedArray, before: Int64s) -> tuple[Int64s, Bools]:
        """Row of the launch of each correlation, and whether there is one.

        Where several calls share a correlation (several processes in a file), the last that
        began before the work did.
        """
        known = arrays.known(correlation)
        wanted = arrays.numbers(correlation, 0)
        low = np.searchsorted(self.correlation, wanted, side="left")
        high = np.searchsorted(self.correlation, wanted, side="right")
        has_launch = known & (high > low)
        rows = np.where(has_launch, low, 0)
        shared = np.flatnonzero(has_launch & (high - low > 1))
        if len(shared):
            # All at once by bisection: where correlations repeat, every piece of work is one.
            first, after, limit = low[shared], high[shared], before[shared]
            least = first
            while (is_open := first < after).any():
                middle = np.where(is_open, (first + after) // 2, least)
                is_earlier = self.start[middle] <= limit
                first = np.where(is_open & is_earlier, middle + 1, first)
                after = np.where(is_open & ~is_earlier, middle, after)
            rows[shared] = np.maximum(first - 1, least)
        return rows, has_launch


class Ranges(Struct):
    """Ranges that do not overlap, such as steps: which one holds a moment."""

    _items: list[tuple[int, int, int]] = field(default_factory=list)
    start: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    end: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    value: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, start: int, end: int, value: int) -> None:
        """Remember a range."""
        self._items.append((start, end, value))

    def finish(self) -> None:
        """Sort by start."""
        items = sorted(self._items)
        table = np.array(items, dtype=np.int64).reshape(-1, 3)
        self.start, self.end, self.value = (
            table[:, 0].copy(),
            table[:, 1].copy(),
            table[:, 2].copy(),
        )

    def find(self, moments: Int64s) -> tuple[Int64s, Bools]:
        """Value of the range that holds each moment (its end excluded), and whether one does."""
        if not len(self.start):
            return np.zeros(len(moments), np.int64), np.zeros(len(moments), np.bool_)
        at = np.searchsorted(self.start, moments, side="right") - 1
        inside = (at >= 0) & (moments < self.end[np.maximum(at, 0)])
        return self.value[np.maximum(at, 0)], inside
