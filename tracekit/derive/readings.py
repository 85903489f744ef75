"""Readings of counters in order: the one place that corrects, sorts and thins them out.

A file's rows are on its own clock, and a series may be spread over files: only after every time was
put right do readings follow each other, and only then can a difference of two be taken. SQL has the
same in ``counter_deltas`` of queries/macros/counters.sql, on views that have put times right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from tracekit.correction import Correction, corrected
from tracekit.ingest.counters.deltas import deltas

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Clocks(Struct, frozen=True):
    """Of the sources whose times count from the epoch: how they are put right, and their hosts."""

    corrections: Mapping[int, Correction]
    hosts: Mapping[int, str | None]
    """Every such source is here."""
    same: Mapping[int, int] = field(default_factory=dict)
    """By source: those of one number have one clock, or clocks that were compared."""

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


def of_one_collector(
    times: Int64s, source_ids: Int64s, same: Mapping[int, int]
) -> NDArray[np.intp]:
    """Positions of readings less those that another collector took meanwhile by another clock.

    Unless clocks are the same, or were compared (``same``, by source), nobody knows in which order
    two programs read one counter: of files that overlap those of the clock with most readings are
    kept. SQL has the same in ``one_collector`` of queries/macros/counters.sql.
    """
    import numpy as np

    ids = np.unique(source_ids)
    # Below -1, the mark of compared clocks.
    clocks = {int(i): same.get(int(i), -2 - int(i)) for i in ids}
    if len(set(clocks.values())) < 2:
        return np.arange(len(times))
    spans = sorted(
        (int(file_times.min()), int(file_times.max()), int(i), len(file_times))
        for i in ids
        for file_times in [times[source_ids == i]]
    )
    stretches: list[list[tuple[int, int, int, int]]] = []
    end = 0
    for span in spans:
        if stretches and span[0] < end:
            stretches[-1].append(span)
            end = max(end, span[1])
        else:
            stretches.append([span])
            end = span[1]
    chosen: set[int] = set()
    for stretch in stretches:
        counts: dict[int, int] = defaultdict(int)
        for _, _, source_id, count in sorted(stretch, key=lambda span: span[2]):
            counts[clocks[source_id]] += count
        best = max(counts, key=lambda clock: counts[clock])  # of equal ones the first file's
        chosen |= {s for _, _, s, _ in stretch if clocks[s] == best}
    return np.flatnonzero(np.isin(source_ids, sorted(chosen)))


def growth(counted: list[int]) -> tuple[Floats, Floats]:
    """What a counter grew by up to each reading, in order, and where a reset hides it (1)."""
    import numpy as np

    steps = deltas(counted)
    grown = np.array([d.growth or 0 for d in steps], float)
    holes = np.array([d.event == "reset" for d in steps], float)
    return np.cumsum(grown), holes
