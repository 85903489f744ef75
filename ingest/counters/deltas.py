"""Deltas of a cumulative counter.

They are taken in SQL, over all files of a run (``counter_deltas`` of
queries/macros/counters.sql): one file rarely holds two readings of a counter. This is the same in
Python, for derive and for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

NARROW = 2**32
"""What a 32-bit counter wraps at."""
NARROW_END_RATIO = 0.9
"""A 32-bit counter wraps from its last tenth into its first."""


class Delta(NamedTuple):
    """What a counter grew by since its last reading, and what happened to it in between."""

    growth: int | None
    """None where it cannot be known: the first reading, a reset, a counter stuck at its end."""
    event: Literal["wrap", "reset", "saturated"] | None = None


def deltas(readings: Sequence[int], limit: int | None = None) -> list[Delta]:
    """What a cumulative counter grew by between readings in order of time; the first is unknown.

    A counter that falls has wrapped at 32 bits if it was near that end, is now near zero and was
    never above it; else it was reset, and what was counted in between is unknown: never zero,
    never a spike. ``limit`` is where the counter stops counting, if it does (InfiniBand's
    classic counters): a reading there says only that the counter is full.
    The same as ``counter_deltas`` of queries/macros/counters.sql, which tests compare with this.
    """
    is_narrow = max(readings, default=0) < NARROW
    pieces = [Delta(None)] if readings else []
    for old, new in pairwise(readings):
        if limit is not None and new >= limit:
            pieces.append(Delta(None, "saturated"))
        elif new >= old:
            pieces.append(Delta(new - old))
        elif (
            is_narrow and old > NARROW_END_RATIO * NARROW and new < (1 - NARROW_END_RATIO) * NARROW
        ):
            pieces.append(Delta(new - old + NARROW, "wrap"))
        else:
            pieces.append(Delta(None, "reset"))
    return pieces
