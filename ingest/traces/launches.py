"""What ties device rows to the host: launch calls and steps.

Flow arrows are not used: in every CUDA file some have no other end. ``correlation`` ties a
kernel to its launch, the launch's time ties it to a step and to the ranges around it.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field

from tracekit import arrays
from tracekit.ingest.traces import spill

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
MAX_SHARED = 64
"""Calls of one correlation that are looked at: processes of one file, and wrapped counters."""
PIECE_ROWS = 1 << 16
"""Calls that stand in memory before they go to a temporary file: 40 bytes each."""


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
            self._parts.append(self.columns())
        corr, start, end, thread, pid = (np.concatenate(c) for c in zip(*self._parts, strict=True))
        self._parts = []
        if not (corr[1:] > corr[:-1]).all():  # as the calls of one thread come
            order = np.lexsort((pid, thread, end, start, corr))
            corr, start, end = corr[order], start[order], end[order]
            thread, pid = thread[order], pid[order]
        self.correlation, self.start, self.end = corr, start, end
        self.thread, self.pid = thread, pid

    def columns(self) -> tuple[Int64s, ...]:
        """Correlation, start, end, thread and process, as ``add`` takes them."""
        return self.correlation, self.start, self.end, self.thread, self.pid

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


class Called(NamedTuple):
    """The launch calls of device work, row by row; what is not found has zeros."""

    start: Int64s
    end: Int64s
    thread: Int64s
    pid: Int64s
    is_found: Bools


class LaunchFile:
    """Launch calls of a file of any length, in memory while they are few, else in a file.

    The file has them in pieces of ``PIECE_ROWS`` as they came. A process counts its correlations
    up and its device works them off nearly in that order, so few pieces hold those that a batch
    of device work asks for; of these only what is asked for comes back into memory.
    """

    def __init__(self) -> None:
        self._calls = Launches()
        """All that there are, or those that are not written yet."""
        self._calls_count = 0
        self._file: Any = None
        self._pieces: list[tuple[int, int, int]] = []
        """Of each piece: its number of calls, first and last correlation."""

    def add(
        self, correlation: Int64s, start: Int64s, end: Int64s, thread: Int64s, pid: Int64s
    ) -> None:
        """Remember calls."""
        self._calls.add(correlation, start, end, thread, pid)
        self._calls_count += len(correlation)
        if self._calls_count >= PIECE_ROWS:
            self._write()

    def finish(self) -> None:
        """No more are added."""
        if self._file is not None and self._calls_count:
            self._write()
        self._calls.finish()

    def find(self, correlation: pa.ChunkedArray, before: Int64s) -> Called:
        """The launch of each correlation, as ``Launches.find`` says which."""
        calls = self._calls
        if self._file is not None:
            calls = self._read(np.unique(arrays.numbers(correlation, 0)))
        rows, is_found = calls.find(correlation, before)
        if not len(calls.start):
            zeros = np.zeros(len(before), np.int64)
            return Called(zeros, zeros, zeros, zeros, is_found)
        start, end, thread, pid = (column[rows] for column in calls.columns()[1:])
        return Called(start, end, thread, pid, is_found)

    def close(self) -> None:
        """Drop the temporary file."""
        if self._file is not None:
            with suppress(OSError):  # what could not be written is tried once more
                self._file.close()

    def _write(self) -> None:
        self._calls.finish()
        columns = self._calls.columns()
        with spill.writing():
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            for column in columns:
                self._file.write(column.tobytes())
            self._file.flush()
        self._pieces.append((len(columns[0]), int(columns[0][0]), int(columns[0][-1])))
        self._calls, self._calls_count = Launches(), 0

    def _read(self, wanted: Int64s) -> Launches:
        """The calls of correlations, which are sorted and distinct."""
        calls = Launches()
        counts, firsts, lasts = np.array(self._pieces, np.int64).T
        offsets = 5 * counts.itemsize * (np.cumsum(counts) - counts)
        is_near = np.searchsorted(wanted, lasts, "right") > np.searchsorted(wanted, firsts, "left")
        for piece in np.flatnonzero(is_near).tolist():
            self._file.seek(int(offsets[piece]))
            text = self._file.read(5 * counts.itemsize * int(counts[piece]))
            columns = np.frombuffer(text, np.int64).reshape(5, -1)
            at = np.minimum(np.searchsorted(wanted, columns[0]), len(wanted) - 1)
            calls.add(*columns[:, wanted[at] == columns[0]])
        calls.finish()
        return calls


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
