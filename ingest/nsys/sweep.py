"""Which ranges of a host thread hold which launches, by one sweep over the thread in time.

As Nsight Systems projects ranges onto the device: an operation belongs to every range of the
thread that launched it which begins no later than the launch call and ends no earlier. A range
join asks every range about every launch; ranges nest, so a stack answers in one pass.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Int64s = npt.NDArray[np.int64]

NEVER = np.iinfo(np.int64).max


class Launched(Struct):
    """Launch calls that put work on a device, and when that work ran."""

    thread: Int64s
    start: Int64s
    end: Int64s
    first: Int64s
    """Start of the earliest operation that the call launched."""
    last: Int64s
    """End of the latest."""


class Projection(Struct):
    """What each range launched; one entry a range."""

    first: Int64s
    last: Int64s
    launches: Int64s
    """Launch calls within it, its inner ranges' included."""
    level: Int64s
    """Ranges of the thread around it."""
    children: Int64s
    """Ranges directly inside it that launched anything."""


def project(thread: Int64s, start: Int64s, end: Int64s, launched: Launched) -> Projection:
    """The projection of ranges of any number of threads."""
    count = len(start)
    projection = Projection(
        np.full(count, NEVER, np.int64),
        np.full(count, -NEVER, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )
    order = np.lexsort((np.arange(count), -end, start, thread))
    calls = np.lexsort((launched.start, launched.thread))
    sorted_threads, call_threads = thread[order], launched.thread[calls]
    for thread_id in np.unique(thread).tolist():
        low, high = (
            np.searchsorted(sorted_threads, thread_id),
            np.searchsorted(sorted_threads, thread_id, "right"),
        )
        first, last = (
            np.searchsorted(call_threads, thread_id),
            np.searchsorted(call_threads, thread_id, "right"),
        )
        _project_thread(order[low:high], calls[first:last], start, end, launched, projection)
    return projection


def _project_thread(
    rows: Int64s,
    calls: Int64s,
    start: Int64s,
    end: Int64s,
    launched: Launched,
    projection: Projection,
) -> None:
    swept = _sweep(
        start[rows].tolist(),
        end[rows].tolist(),
        launched.start[calls].tolist(),
        launched.end[calls].tolist(),
    )
    if swept is None:
        _project_crossing(rows, calls, start, end, launched, projection)
        return
    parent, depth, leaf = swept
    n = len(rows)
    first, last = np.full(n, NEVER, np.int64), np.full(n, -NEVER, np.int64)
    launches, children = np.zeros(n, np.int64), np.zeros(n, np.int64)
    held = leaf >= 0
    at = leaf[held]
    np.minimum.at(first, at, launched.first[calls][held])
    np.maximum.at(last, at, launched.last[calls][held])
    np.add.at(launches, at, 1)
    by_depth = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    for level in range(len(edges) - 2, 0, -1):  # the innermost first
        inner = by_depth[edges[level] : edges[level + 1]]
        inner = inner[launches[inner] > 0]
        outer = parent[inner]
        np.minimum.at(first, outer, first[inner])
        np.maximum.at(last, outer, last[inner])
        np.add.at(launches, outer, launches[inner])
        np.add.at(children, outer, 1)
    projection.first[rows], projection.last[rows], projection.launches[rows] = first, last, launches
    projection.level[rows], projection.children[rows] = depth, children


def _sweep(
    start: list[int], end: list[int], call_start: list[int], call_end: list[int]
) -> tuple[Int64s, Int64s, Int64s] | None:
    """Parent and depth of each range, and the innermost range around each call (-1: none).

    None where ranges cross: those of different domains or started and ended by hand need not nest.
    """
    n, calls_count = len(start), len(call_start)
    parent, depth, leaf = [-1] * n, [0] * n, [-1] * calls_count
    stack: list[int] = []
    call = 0
    for i in range(n + 1):
        until = start[i] if i < n else NEVER
        while call < calls_count and call_start[call] < until:
            begin, done = call_start[call], call_end[call]
            while stack and end[stack[-1]] < begin:
                stack.pop()
            at = stack[-1] if stack else -1
            while at >= 0 and end[at] < done:
                at = parent[at]
            leaf[call] = at
            call += 1
        if i == n:
            break
        mine = end[i]
        while stack and end[stack[-1]] < mine:
            if end[stack[-1]] > until:
                return None
            stack.pop()
        if stack:
            parent[i] = stack[-1]
            depth[i] = depth[stack[-1]] + 1
        stack.append(i)
    return np.array(parent, np.int64), np.array(depth, np.int64), np.array(leaf, np.int64)


def _project_crossing(
    rows: Int64s,
    calls: Int64s,
    start: Int64s,
    end: Int64s,
    launched: Launched,
    projection: Projection,
) -> None:
    """The same where ranges cross: every call asks the ranges that are open."""
    call = 0
    ranges, called = rows.tolist(), calls.tolist()
    begins, ends = launched.start, launched.end
    active: list[int] = []
    around: dict[int, int] = {}
    for i in range(len(ranges) + 1):
        until = int(start[ranges[i]]) if i < len(ranges) else NEVER
        while call < len(called) and begins[called[call]] < until:
            launch = called[call]
            active = [r for r in active if end[r] >= begins[launch]]
            for r in active:
                if end[r] >= ends[launch]:
                    projection.first[r] = min(projection.first[r], launched.first[launch])
                    projection.last[r] = max(projection.last[r], launched.last[launch])
                    projection.launches[r] += 1
            call += 1
        if i == len(ranges):
            break
        mine = ranges[i]
        active = [r for r in active if end[r] >= until]
        holders = [r for r in active if end[r] >= end[mine]]
        projection.level[mine] = len(holders)
        if holders:
            around[mine] = holders[-1]
        active.append(mine)
    for inner, outer in around.items():
        if projection.launches[inner]:
            projection.children[outer] += 1
