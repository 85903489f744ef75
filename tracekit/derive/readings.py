"""Readings of counters in order: the one place that corrects, sorts and thins them out.

A file's rows are on its own clock, and a series may be spread over files: only after every time was
put right do readings follow each other, and only then can a difference of two be taken. SQL has the
same in ``counter_deltas`` of queries/macros.sql, on views whose times are put right already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.correction import Correction, corrected
from tracekit.ingest.counters.deltas import deltas

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Clocks:
    """Of the sources whose times count from the epoch: how they are put right, and their hosts."""

    corrections: Mapping[int, Correction]
    hosts: Mapping[int, str | None]
    """Every such source is here."""

    def moved(self, times_ns: Int64s, source_ids: Int64s) -> Int64s:
        """Times on the job's clock."""
        return corrected(times_ns, source_ids, self.corrections)

    @property
    def widest_ns(self) -> int:
        """How far clocks were put right: a window must not lose what is moved into it."""
        return max((abs(c.offset_ns) for c in self.corrections.values()), default=0)


def forward(times: Int64s | Floats) -> NDArray[np.intp]:
    """Positions of readings in order of time, each later than the last that is kept.

    Of readings of one moment the first is kept: give them in order of their files and places.
    """
    import numpy as np

    order = np.argsort(times, kind="stable")
    ordered = times[order]
    is_later = np.ones(len(order), bool)
    is_later[1:] = ordered[1:] > ordered[:-1]
    return order[is_later]


def growth(counted: list[int]) -> tuple[Floats, Floats]:
    """What a counter grew by up to each reading, in order, and where a reset hides it (1)."""
    import numpy as np

    steps = deltas(counted)
    grown = np.array([d.growth or 0 for d in steps], float)
    holes = np.array([d.event == "reset" for d in steps], float)
    return np.cumsum(grown), holes
