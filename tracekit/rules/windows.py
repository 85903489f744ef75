"""Windows in which nothing marks steps, as the rules see them: each as one step.

A query that has the parameter ``over`` gives two rows for such a window, for the halves of what its
device did. What a job does all the time shows in both; what one half has alone may be its
beginning, an evaluation or a save, and is no fault. So of each time the smaller share of the two
counts, for the whole window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]

OVER = "over"
"""The parameter of the queries that can ask for windows instead of steps."""
WINDOWS = "windows"
"""Its value for them."""
NOT_MARKED = "the traces mark no steps, and both halves of the window show it"
"""Added to the grounds of a finding on a window."""

HALVES = (0, 1)
"""What stands for a step in the rows of a window."""

_PARTS = ("comm_ns", "exposed_comm_ns", "memory_ns", "idle_ns", "host_blocked_ns")
_Key = tuple[int, int, int]


def breakdown_of_windows(halves: Iterable[Row]) -> list[Row]:
    """One row a window from the rows of ``step_breakdown``: its parts add up to it.

    What is not in both halves counts as computing, which accuses nobody.
    """
    windows: list[Row] = []
    for pair in _pairs(halves).values():
        if not all(h["dur_ns"] for h in pair):
            continue
        dur_ns = sum(int(h["dur_ns"]) for h in pair)
        times = {
            name: min(int(h.get(name) or 0) * dur_ns // int(h["dur_ns"]) for h in pair)
            for name in _PARTS
        }
        rest_ns = times["exposed_comm_ns"] + times["memory_ns"] + times["idle_ns"]
        # No start: a rank's window begins when its profiler did, which compares with no other's.
        windows.append(
            {**pair[0], **times, "step": 0, "dur_ns": dur_ns, "compute_ns": dur_ns - rest_ns,
             "start_ns": None}
        )  # fmt: skip
    return windows


def spans_of_windows(halves: Iterable[Row]) -> list[Row]:
    """When each window was, as rows of ``step_time``."""
    return [
        {**pair[0], "step": 0, "dur_ns": sum(int(h["dur_ns"]) for h in pair)}
        for pair in _pairs(halves).values()
    ]


def stalls_of_windows(halves: Iterable[Row], breakdown: Iterable[Row]) -> list[Row]:
    """One row a window from the rows of a query of stalls, with no time where only one half has
    any; ``breakdown`` has the lengths of the halves."""
    durs_ns = {key: [int(h["dur_ns"]) for h in pair] for key, pair in _pairs(breakdown).items()}
    windows: list[Row] = []
    for key, rows in _by_window(halves).items():
        lengths = durs_ns.get(key, [0])
        if not all(lengths):
            continue
        by_half = {int(row["step"]): row for row in rows}
        times = {
            name: min(
                int(by_half[half][name] if half in by_half else 0) * sum(lengths) // ns
                for half, ns in zip(HALVES, lengths, strict=True)
            )
            for name in ("stall_ns", "exposed_ns")
        }
        longest = max(rows, key=lambda h: int(h["longest_ns"]))
        count = sum(int(h["ranges_count"]) for h in rows)
        windows.append({**longest, **times, "step": 0, "ranges_count": count})
    return windows


def _pairs(halves: Iterable[Row]) -> dict[_Key, list[Row]]:
    """The rows of each window that has both halves, the first half first."""
    return {key: rows for key, rows in _by_window(halves).items() if len(rows) == len(HALVES)}


def _by_window(halves: Iterable[Row]) -> dict[_Key, list[Row]]:
    windows: dict[_Key, list[Row]] = {}
    for row in sorted(halves, key=lambda h: int(h["step"])):
        key = (int(row["attempt"]), int(row["rank"]), int(row["capture_id"]))
        windows.setdefault(key, []).append(row)
    return dict(sorted(windows.items()))
