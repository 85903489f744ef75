"""The critical path of every step: which rank did what while everybody else waited for it.

A step of the job lasts from the moment when the last rank begins it to that when the last rank
begins the next (docs/steps.md). The path is walked backwards from there: along the rank's own work
to the last call at whose end it computed nothing; if another rank held that call up, the time since
that one entered is transfer, and the path goes on at that rank. So every nanosecond of a step is
charged once, to one rank and one cause, and waiting to what was waited for. The charges of a step
add up to it.

Of a rank's time on the path, its excess over its peers (the median of the others of its stage in
that step) is charged to it; the rest is what all ranks have alike, whichever of them the path went
over. On a rank without a GPU the operators inside a range beside training (fetching input, saving)
belong to that range; on a GPU only the time in which nothing runs.

Source: Böhme et al. 2012 (critical-path profiles and the cost of imbalance).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import Struct

from tracekit.rules.range_names import BESIDE_TRAINING, class_of
from tracekit.rules.steps import StepKey, Steps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Times: TypeAlias = NDArray[np.int64]

BESIDE = tuple(sorted(BESIDE_TRAINING))
OWN = ("compute", "copies", "communication", "idle", *BESIDE)
"""Causes that a rank's own timeline shows."""
NOBODY = -1
"""Stands for a rank in arrays where there is none."""


class Part(NamedTuple):
    """What a part of a step is charged to: rank None is what all ranks have alike."""

    cause: str
    rank: int | None = None
    operation: str | None = None


Charges: TypeAlias = Mapping[Part, float]
"""Nanoseconds of a step."""


class Calls(Struct, frozen=True):
    """A rank's calls at whose end it computed nothing, by their ends."""

    start_ns: Times
    end_ns: Times
    exposed_start_ns: Times
    holder_rank: Times
    holder_start_ns: Times
    error_ns: Times
    operations: Sequence[str]


class Timeline(Struct, frozen=True):
    """What a rank had done by each moment: a column a cause of ``OWN``, in ns."""

    moments_ns: Times
    done_ns: Floats

    def between(self, start_ns: int, end_ns: int) -> Floats:
        """ns of each cause in a stretch; linear where an end is no moment."""
        return self._until(end_ns) - self._until(start_ns)

    def _until(self, time_ns: int) -> Floats:
        import numpy as np

        index = int(np.searchsorted(self.moments_ns, time_ns))
        if index == len(self.moments_ns):
            return np.asarray(self.done_ns[-1])
        if index == 0 or self.moments_ns[index] == time_ns:
            return np.asarray(self.done_ns[index])
        before, after = int(self.moments_ns[index - 1]), int(self.moments_ns[index])
        share = (time_ns - before) / (after - before)
        low, high = self.done_ns[index - 1], self.done_ns[index]
        return np.asarray(low + (high - low) * share)


class Lane(NamedTuple):
    """A rank in one of its captures."""

    rank: int
    capture_id: int


class Paths(Struct, frozen=True):
    """Timelines and calls of an attempt's ranks."""

    timelines: Mapping[Lane, Timeline]
    calls: Mapping[Lane, Calls]

    @classmethod
    def from_columns(
        cls,
        moments: Mapping[str, Sequence[Any]],
        calls: Mapping[str, Sequence[Any]],
        ranges: Iterable[Mapping[str, Any]],
        host_ranks: Iterable[int],
    ) -> Paths:
        """From the queries path_moments and path_calls, a column each, and path_ranges, in rows.

        ``host_ranks`` are measured on their host.
        """
        by_lane: dict[Lane, list[tuple[int, int, str]]] = defaultdict(list)
        for row in ranges:
            lane = Lane(int(row["rank"]), int(row["capture_id"]))
            by_lane[lane].append((int(row["start_ns"]), int(row["end_ns"]), str(row["name"])))
        on_host = frozenset(host_ranks)
        timelines = {
            lane: _timeline(
                [_array(moments[name], part) for name in _MOMENTS],
                by_lane.get(lane, ()),
                lane.rank in on_host,
            )
            for lane, part in _lanes(moments)
        }
        return cls(timelines, {lane: _calls(calls, part) for lane, part in _lanes(calls)})

    def walk(self, lane: Lane, start_ns: int, end_ns: int) -> dict[Part, float]:
        """What each rank did on the path that ends at this rank and moment, back to the start."""
        import numpy as np

        charges: dict[Part, float] = defaultdict(float)
        while end_ns > start_ns:
            calls = self.calls.get(lane)
            index = -1 if calls is None else int(np.searchsorted(calls.end_ns, end_ns, "right")) - 1
            if calls is None or index < 0 or calls.end_ns[index] <= start_ns:
                self._charge(charges, lane, start_ns, end_ns)
                break
            left_ns = int(calls.end_ns[index])
            self._charge(charges, lane, left_ns, end_ns)
            began_ns = int(calls.exposed_start_ns[index])
            holder, entered_ns = int(calls.holder_rank[index]), int(calls.holder_start_ns[index])
            is_held = (
                holder not in (NOBODY, lane.rank)
                and began_ns + int(calls.error_ns[index]) < entered_ns < left_ns
            )
            end_ns = entered_ns if is_held else began_ns
            transfer = Part("transfer", None, calls.operations[index])
            charges[transfer] += left_ns - max(end_ns, start_ns)
            if is_held:
                lane = Lane(holder, lane.capture_id)
        return charges

    def _charge(self, charges: dict[Part, float], lane: Lane, start_ns: int, end_ns: int) -> None:
        timeline = self.timelines.get(lane)
        rest = float(end_ns - start_ns)
        if timeline is not None:
            for cause, spent_ns in zip(OWN, timeline.between(start_ns, end_ns), strict=True):
                if spent_ns > 0:
                    charges[Part(cause, lane.rank)] += float(spent_ns)
                    rest -= float(spent_ns)
        if rest:
            charges[Part("unexplained")] += rest

    def steps(self, steps: Steps, stages: Mapping[int, int]) -> dict[StepKey, dict[Part, float]]:
        """The charges of each steady step; ``stages`` is the pipeline stage of a rank.

        Empty where a rank has no clock: then nothing says who was waited for.
        """
        charged: dict[StepKey, dict[Part, float]] = {}
        for key, rows in steps.by_key.items():
            spans = {
                rank: (row.start_ns, row.start_ns + row.dur_ns)
                for rank, row in rows.items()
                if row.start_ns is not None
            }
            if len(spans) < len(rows):
                return {}
            last = max(spans, key=lambda rank: (spans[rank][1], -rank))
            start_ns = max(start for start, _ in spans.values())
            walked = self.walk(Lane(last, key.capture_id), start_ns, spans[last][1])
            own_ns = {
                rank: dict(zip(OWN, timeline.between(*span), strict=True))
                for rank, span in spans.items()
                if (timeline := self.timelines.get(Lane(rank, key.capture_id))) is not None
            }
            charged[key] = _by_excess(walked, own_ns, stages)
        return charged

    def own_ns(self, steps: Steps) -> dict[int, dict[str, float]]:
        """What each rank did in a mean steady step, in ns by cause, on the path or beside it."""
        import numpy as np

        sums: dict[int, list[Floats]] = defaultdict(list)
        for key, rows in steps.by_key.items():
            for rank, row in rows.items():
                timeline = self.timelines.get(Lane(rank, key.capture_id))
                if timeline is not None and row.start_ns is not None:
                    stretch = timeline.between(row.start_ns, row.start_ns + row.dur_ns)
                    sums[rank].append(stretch)
        return {
            rank: dict(zip(OWN, np.mean(rows, axis=0).tolist(), strict=True))
            for rank, rows in sorted(sums.items())
        }


_MOMENTS = ("time_ns", "compute_ns", "memory_ns", "exposed_comm_ns")


def _array(column: Sequence[Any], part: slice) -> Times:
    import numpy as np

    return np.asarray(column[part], dtype=np.int64)


def _lanes(columns: Mapping[str, Sequence[Any]]) -> list[tuple[Lane, slice]]:
    """Where each rank and capture stands in columns that are ordered by them."""
    import numpy as np

    ranks, captures = np.asarray(columns["rank"]), np.asarray(columns["capture_id"])
    if not len(ranks):
        return []
    changes = np.flatnonzero((np.diff(ranks) != 0) | (np.diff(captures) != 0)) + 1
    edges = [0, *changes.tolist(), len(ranks)]
    return [
        (Lane(int(ranks[first]), int(captures[first])), slice(first, last))
        for first, last in pairwise(edges)
    ]


def _calls(columns: Mapping[str, Sequence[Any]], part: slice) -> Calls:
    return Calls(
        start_ns=_array(columns["start_ns"], part),
        end_ns=_array(columns["end_ns"], part),
        exposed_start_ns=_array(columns["exposed_start_ns"], part),
        holder_rank=_array(columns["holder_rank"], part),
        holder_start_ns=_array(columns["holder_start_ns"], part),
        error_ns=_array(columns["error_ns"], part),
        operations=columns["op"][part],
    )


def _timeline(
    columns: Sequence[Times], ranges: Sequence[tuple[int, int, str]], is_on_host: bool
) -> Timeline:
    """A rank's moments, with what it had done of each cause until then."""
    import numpy as np

    moments, *busy = columns
    compute, copies, comm = (np.diff(column).astype(np.float64) for column in busy)
    idle = np.diff(moments) - compute - copies - comm
    spent = np.zeros((len(moments), len(OWN)))
    kinds = _kinds(moments, ranges)
    is_beside = kinds > 0
    owned = is_beside & is_on_host
    spent[1:, 0] = np.where(owned, 0, compute)
    spent[1:, 1] = np.where(owned, 0, copies)
    spent[1:, 2] = comm
    spent[1:, 3] = np.where(is_beside, 0, idle)
    beside = idle + np.where(owned, compute + copies, 0)
    for number in range(len(BESIDE)):
        spent[1:, 4 + number] = np.where(kinds == number + 1, beside, 0)
    return Timeline(moments, spent.cumsum(axis=0))


def _kinds(moments: Times, ranges: Sequence[tuple[int, int, str]]) -> NDArray[np.int64]:
    """What the training loop is in between each moment and the next: 1 and up of ``BESIDE``, 0
    for training. Of nested ranges the innermost decides whose name means something."""
    import numpy as np

    kinds = np.zeros(max(0, len(moments) - 1), np.int64)
    known: dict[str, int | None] = {}
    # Outer ranges first: an inner one takes its own stretch over.
    for start_ns, end_ns, name in sorted(ranges, key=lambda r: (r[0], -r[1], r[2])):
        if name not in known:
            kind = class_of([name])
            beside = BESIDE.index(kind) + 1 if kind in BESIDE else 0
            known[name] = None if kind is None else beside
        number = known[name]
        if number is not None:
            first, last = np.searchsorted(moments, [start_ns, end_ns])
            kinds[first:last] = number
    return kinds


def _by_excess(
    walked: Charges,
    own_ns: Mapping[int, Mapping[str, float]],
    stages: Mapping[int, int],
) -> dict[Part, float]:
    """Charges of a step: to a rank what it had beyond its peers, to all what they had alike."""
    charged: dict[Part, float] = defaultdict(float)
    for part, spent_ns in walked.items():
        excess_ns = 0.0
        if part.rank is not None:
            peers = _peers(part.rank, own_ns, stages)
            if peers:
                usual_ns = median(own_ns[peer][part.cause] for peer in peers)
                beyond_ns = own_ns[part.rank][part.cause] - usual_ns if part.rank in own_ns else 0.0
                excess_ns = min(spent_ns, max(0.0, float(beyond_ns)))
        if excess_ns > 0:
            charged[part] += excess_ns
        if spent_ns > excess_ns:
            charged[Part(part.cause, None, part.operation)] += spent_ns - excess_ns
    return dict(charged)


def _peers(
    rank: int, own_ns: Mapping[int, Mapping[str, float]], stages: Mapping[int, int]
) -> list[int]:
    """The other ranks of its stage; the other ranks of the job where it is alone there."""
    others = [other for other in own_ns if other != rank]
    return [other for other in others if stages.get(other) == stages.get(rank)] or others
