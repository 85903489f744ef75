"""One clock for all ranks, from cause and effect.

Wall clocks come first. In a synchronising collective nobody leaves before the last has entered,
and a receive does not end before its send begins: every such instance bounds the offset of each
pair of clocks from both sides, and bounds add up along chains of clocks. What is left is an
interval for each clock against a reference. A clock is moved only where its interval excludes
zero, to the middle: what its own time leaves possible is no reason to doubt it. Its error is the
distance to the farther end of the interval (half of it, once moved), and no lateness below that
may be claimed. Rows of one clock are never moved against each other.

The bounds are a system of difference constraints, so the tightest interval between any two clocks
is the shortest path between them, both ways, and need not lead through the reference: two clocks
that meet in short operations are told apart sharply, however far both are from the reference.

Equal ends are no law: a ring leaves a slow link last, every time. They only narrow an interval
where they scatter little and do not depend on the size of the operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from tracekit.bounds import UNBOUND, Bounds, Meetings, Search, without_own

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

MAX_SLACK_NS = 200_000
"""Bounds may contradict each other by this much (rounding, conversion of device times)."""

DRIFT_WINDOW_NS = 60_000_000_000
"""From this length on the drift of free-running clocks (some 10 ppm) shows."""

DRIFT_BUCKETS = (12, 60, 300)
"""Stretches into which a long window is cut; the next number where the one before fails."""

MAX_DRIFT_RATIO = 500e-6
"""More than any working oscillator drifts: such a fit is refused."""

MAX_INSTANCES = 4000
"""Instances of one communicator that bound clocks; the shortest, which bound tightest."""

MAX_ROOMS = 300_000_000
"""Members squared times instances: of many clocks fewer instances are taken, for bounded time."""

MIN_INSTANCES = 16
"""As many are taken in any case."""

MAX_CLOCKS_BY_PAIR = 64
"""Of so many clocks of a communicator each pair has one bound: fewer than its instances have
entries and exits."""

MAX_PAIRS = 1_000_000
"""Pairs of clocks whose error is kept; those of small groups first."""

MIN_ENDS = 3
"""Instances of each size class from which equal ends may be concluded."""

SIZE_RATIO = 4
"""Sizes that far apart tell whether ends depend on size."""


class Instances(Struct, frozen=True):
    """Matched instances of one communicator, as members (columns) by instances (rows).

    Times are on each member's own clock; a member that an instance lacks has ``start`` very
    early and ``end`` very late, which bounds nothing.
    """

    clocks: tuple[int, ...]
    start_ns: Ints
    end_ns: Ints
    size_bytes: Ints
    is_pair: bool = False
    """Column 0 sends to column 1: only "no receive ends before its send begins" holds."""


class Offset(Struct, frozen=True):
    """What is added to a clock's times: offset + drift * (time - origin)."""

    clock_id: int
    reference_id: int
    offset_ns: int
    drift_ratio: float
    origin_ns: int
    error_ns: int | None
    """None where no instance connects it with the reference."""
    method: str


class Alignment:
    """The offsets of a capture's clocks, and how far any two of them may still be apart."""

    def __init__(
        self, offsets: list[Offset], clock_ids: Sequence[int], left: Left | None = None
    ) -> None:
        self.offsets = offsets
        """One for each clock but the reference."""
        self.clock_ids = tuple(clock_ids)
        self._left = left
        self._at = {clock: i for i, clock in enumerate(clock_ids)}

    def apart_ns(self, clock: int) -> Ints:
        """In the order of clock_ids: the error of each one's difference from this clock once both
        are corrected; UNKNOWN where nothing bounds it from both sides."""
        import numpy as np

        at = self._at[clock]
        if self._left is not None:
            return self._left.apart_ns(at)
        apart = np.full(len(self.clock_ids), UNKNOWN, np.int64)
        apart[at] = 0
        return apart

    def pairs(self, groups: Iterable[Iterable[int]]) -> tuple[Ints, Ints, Ints]:
        """Clocks that share one of the groups, the other one of each, and how far the two may be
        apart; each pair once: only where that is less than what both may be off against the
        reference, and MAX_PAIRS at most, the smallest groups first."""
        import numpy as np

        told = [np.empty((3, 0), np.int64)]
        if self._left is not None:
            ids = np.array(self.clock_ids, np.int64)
            known = {o.clock_id: o.error_ns for o in self.offsets}
            errors = (known.get(clock, 0) for clock in self.clock_ids)
            error_ns = np.array([UNBOUND if e is None else e for e in errors])
            for source, others in self._asked(groups).items():
                apart = self._left.apart_ns(source, others)[others]
                is_tighter = apart < error_ns[source] + error_ns[others]
                kept = (apart != UNKNOWN) & is_tighter
                clock = np.full(kept.sum(), ids[source])
                told.append(np.stack([clock, ids[others[kept]], apart[kept]]))
        clocks, others, apart = np.concatenate(told, axis=1)
        return clocks, others, apart

    def _asked(self, groups: Iterable[Iterable[int]]) -> dict[int, Ints]:
        """The later clocks of each clock's groups, as places in clock_ids."""
        import numpy as np

        asked: dict[int, Ints] = {}
        left, is_new = MAX_PAIRS, np.ones(len(self.clock_ids), bool)
        several = {tuple(sorted(found)) for g in groups if len(found := set(g)) > 1}
        for group in sorted(several, key=lambda g: (len(g), g)):
            places = np.array([self._at[clock] for clock in group])
            for i, source in enumerate(places[:-1].tolist()):
                others = places[i + 1 :]
                before = asked.get(source)
                if before is not None:
                    is_new[before] = False
                    others = others[is_new[others]]
                    is_new[before] = True
                others = others[:left]
                left -= len(others)
                if len(others):
                    asked[source] = others if before is None else np.concatenate([before, others])
                if not left:
                    return asked
        return asked


UNKNOWN = -1
EARLY = -(2**62)
LATE = 2**62


def align(
    instances: Sequence[Instances],
    clock_ids: Sequence[int],
    *,
    is_epoch: bool = True,
    start_ns: int = 0,
    end_ns: int = 0,
) -> Alignment:
    """Offsets of all clocks but the reference, which is the first. Empty with one clock.

    ``is_epoch``: the clocks count from the epoch, so zero is a good guess; else any correction
    that the bounds allow is applied.
    """

    ids = sorted(set(clock_ids))
    if len(ids) < 2:
        return Alignment([], ids)
    bounds = _bounds(instances, ids)
    if end_ns - start_ns >= DRIFT_WINDOW_NS:
        drifting = _drifting(instances, ids, bounds, start_ns, end_ns, is_epoch)
        if drifting is not None:
            return drifting
    possible, slack_ns = _consistent(bounds)
    if possible is None:
        why = "the bounds contradict each other"
        return Alignment([Offset(c, ids[0], 0, 0.0, 0, None, why) for c in ids[1:]], ids)
    possible = _narrowed(instances, ids, possible)
    left = Left(possible, _choose(possible, is_epoch), slack_ns)
    apart, values = left.apart_ns(0), left.offsets_ns
    offsets = []
    for i, clock in enumerate(ids[1:], start=1):
        if apart[i] == UNKNOWN:
            offsets.append(Offset(clock, ids[0], 0, 0.0, 0, None, "not connected"))
            continue
        method = "causality" if values[i] else "wall clock, within the bounds of causality"
        offsets.append(Offset(clock, ids[0], int(values[i]), 0.0, 0, int(apart[i]), method))
    return Alignment(offsets, ids, left)


class Left:
    """What bounds that are consistent leave of the differences of corrected clocks, asked one clock
    at a time."""

    def __init__(self, bounds: Bounds, offsets_ns: Floats, slack_ns: float) -> None:
        import numpy as np

        solution = bounds.solution_ns()
        if solution is None:
            raise ValueError("bounds that contradict each other leave nothing")
        self._slack_ns = slack_ns
        # Corrected by a solution no bound is negative, so a search may end early.
        forth = bounds.corrected(solution)
        self._forth, self._back = Search.start(forth, 0), Search.start(forth.reversed(), 0)
        is_known = np.isfinite(self._forth.least_ns) & np.isfinite(self._back.least_ns)
        self.offsets_ns = np.where(is_known, np.rint(offsets_ns), 0.0)
        """Nothing is moved that is not bound to the reference from both sides."""
        self._beyond_ns = solution - self.offsets_ns

    def apart_ns(self, node: int, targets: Ints | None = None) -> Ints:
        """How far the difference of each clock from this one may be off: to the farther end of
        what the bounds leave of it. With ``targets`` only theirs are told."""
        import numpy as np

        # Nobody is farther from another than through the reference.
        forth = self._forth.behind(float(self._back.least_ns[node]))
        back = self._back.behind(float(self._forth.least_ns[node]))
        forth.lower(node, 0.0, targets)
        back.lower(node, 0.0, targets)
        beyond = self._beyond_ns[node] - self._beyond_ns
        room = np.maximum(forth.least_ns + beyond, back.least_ns - beyond)
        apart = np.full(len(room), UNKNOWN, np.int64)
        known = np.isfinite(room)
        apart[known] = np.ceil(room[known] + self._slack_ns)
        apart[node] = 0
        return apart


def _bounds(instances: Sequence[Instances], ids: Sequence[int]) -> Bounds:
    """The most by which each offset may exceed another, from each instance."""
    import numpy as np

    position = {clock: i for i, clock in enumerate(ids)}
    edges: list[tuple[Ints, Ints, Floats]] = [(np.empty(0, int), np.empty(0, int), np.empty(0))]
    meetings = []
    for group in instances:
        columns = np.array([position[c] for c in group.clocks])
        start, end = _shortest(group)
        if group.is_pair or len(columns) <= MAX_CLOCKS_BY_PAIR:
            edges += _by_pair(columns, start, end, group.is_pair)
        elif len(start):
            meetings.append(_meetings(columns, start, end))
    source, target, room = (np.concatenate(c) for c in zip(*edges, strict=True))
    return Bounds(len(ids), source, target, room, meetings)


def _by_pair(
    columns: Ints, start: Ints, end: Ints, is_pair: bool
) -> Iterator[tuple[Ints, Ints, Floats]]:
    """The least room of each clock against each other one."""
    import numpy as np

    is_whole = bool((start > EARLY).all() and (end < LATE).all())
    for i, c in enumerate(columns):
        if is_pair and i == 1:
            continue
        # Entered on clock c, left on clock d: start + offset c <= end + offset d.
        room = end - start[:, i : i + 1]
        if not is_whole:
            room = np.where((start[:, i : i + 1] > EARLY) & (end < LATE), room, LATE)
        least = room.min(axis=0, initial=LATE)
        told = (least < LATE // 2) & (columns != c)
        yield np.full(told.sum(), c), columns[told], least[told].astype(float)


def _meetings(columns: Ints, start: Ints, end: Ints) -> Meetings:
    """Each instance from a zero of its own, so that floats hold nanoseconds."""
    import numpy as np

    zero = end.min(axis=1, keepdims=True)
    has_entered, has_left = start > EARLY, end < LATE
    entry = np.where(has_entered, np.where(has_entered, start, zero) - zero, -UNBOUND)
    leaving = np.where(has_left, np.where(has_left, end, zero) - zero, UNBOUND)
    known = has_entered.any(axis=1) & has_left.any(axis=1)
    return Meetings(columns, *without_own(entry[known], leaving[known]))


def _shortest(group: Instances) -> tuple[Ints, Ints]:
    import numpy as np

    most = min(MAX_INSTANCES, max(MIN_INSTANCES, MAX_ROOMS // len(group.clocks) ** 2))
    if len(group.start_ns) <= most:
        return group.start_ns, group.end_ns
    # The room of an instance, whoever was last: from the last known entry to the first exit.
    length = group.end_ns.min(axis=1) - group.start_ns.max(axis=1)
    chosen = np.sort(np.argpartition(np.abs(length), most)[:most])
    return group.start_ns[chosen], group.end_ns[chosen]


def _consistent(bounds: Bounds) -> tuple[Bounds | None, float]:
    """The bounds with the slack that makes them consistent, and that slack."""
    slack = 0.0
    while slack <= MAX_SLACK_NS:
        possible = bounds.widened(slack)
        if possible.solution_ns() is not None:
            return possible, slack
        slack = max(1_000.0, slack * 2)
    return None, 0.0


def _choose(bounds: Bounds, is_epoch: bool) -> Floats:
    """Offsets that keep all bounds: zero where it may stay, else the middle of what is possible."""
    import numpy as np

    count = bounds.count
    if is_epoch and bounds.allow_zero():
        return np.zeros(count)
    # Bounds against the reference and all that stay with it, which is one clock then.
    above, below = Search.start(bounds.reversed(), 0), Search.start(bounds, 0)
    moving = np.zeros(count, bool)
    for i in range(1, count):
        upper, lower = above.least_ns[i], -below.least_ns[i]
        if not is_epoch or lower > 0 or upper < 0:
            moving[i] = bool(np.isfinite(lower) and np.isfinite(upper))
            continue
        # It stays: the others must go with that.
        above.lower(i, 0.0)
        below.lower(i, 0.0)
    values = np.zeros(count)
    # The mean of two solutions (all as late, all as early as can be) is a solution.
    values[moving] = (above.least_ns[moving] - below.least_ns[moving]) / 2
    return values


# --- equal ends ---------------------------------------------------------------------------------


def _narrowed(instances: Sequence[Instances], ids: Sequence[int], bounds: Bounds) -> Bounds:
    """Bounds narrowed by ends that coincide whatever the size, where there are such."""
    position = {clock: i for i, clock in enumerate(ids)}
    rooms: dict[tuple[int, int], float] = {}
    back = bounds.reversed()
    for group in instances:
        if group.is_pair:
            continue
        by_clock = {c: i for i, c in enumerate(group.clocks)}
        columns = list(by_clock.items())
        if len(columns) < 2:
            continue
        (first, base), *others = columns
        equal_ends = [(clock, _equal_ends(group, base, column)) for clock, column in others]
        if not any(narrow for _, narrow in equal_ends):
            continue
        j = position[first]
        above, below = Search.start(back, j).least_ns, Search.start(bounds, j).least_ns
        for clock, narrow in equal_ends:
            if narrow is None:
                continue
            i = position[clock]
            middle, width = narrow
            upper = min(float(above[i]), rooms.get((i, j), UNBOUND))
            lower = min(float(below[i]), rooms.get((j, i), UNBOUND))
            # Only inside what causality allows: ends are weaker evidence.
            if -lower <= middle <= upper and 2 * width < lower + upper:
                rooms[i, j] = min(upper, middle + width)
                rooms[j, i] = min(lower, -(middle - width))
    slack = 0.0
    while rooms and slack <= MAX_SLACK_NS:
        # Equal ends that contradict each other give way, causality does not.
        narrowed = bounds.with_edges({pair: room + slack for pair, room in rooms.items()})
        if narrowed.solution_ns() is not None:
            return narrowed
        slack = max(1_000.0, slack * 2)
    return bounds


def _equal_ends(group: Instances, base: int, column: int) -> tuple[float, float] | None:
    """Offset of a member's clock by its ends, and how far it may be off; None where ends differ
    with size, or sizes do not show whether they do."""
    import numpy as np

    ends = group.end_ns[:, [base, column]]
    known = (ends < LATE).all(axis=1) & (group.size_bytes > 0)
    if known.sum() < 2 * MIN_ENDS:
        return None
    shift = (ends[known, 0] - ends[known, 1]).astype(float)
    sizes = group.size_bytes[known]
    small, large = sizes <= sizes.min() * 1.01, sizes >= sizes.max() * 0.99
    if sizes.max() < SIZE_RATIO * sizes.min() or min(small.sum(), large.sum()) < MIN_ENDS:
        return None
    length = np.median(group.end_ns[known, column] - group.start_ns[known, column])
    middle = float(np.median(shift))
    width = float(np.quantile(np.abs(shift - middle), 0.95))
    differ = abs(float(np.median(shift[small]) - np.median(shift[large])))
    width = max(width, differ)
    return (middle, width) if width <= 0.1 * length else None


# --- drift --------------------------------------------------------------------------------------


def _drifting(
    instances: Sequence[Instances],
    ids: Sequence[int],
    bounds: Bounds,
    start_ns: int,
    end_ns: int,
    is_epoch: bool,
) -> Alignment | None:
    """Offsets with drift; None where constant ones explain the bounds as well."""
    import numpy as np

    drifts = _drifts(instances, ids, start_ns, end_ns)
    if drifts is None:
        return None
    constant, _ = _consistent(bounds)
    if constant is not None:
        # Whether drift would matter beside the error of constant offsets.
        upper, lower = _against_reference(constant)
        width = (upper - lower)[1:]
        if not (np.abs(drifts[1:]) * (end_ns - start_ns) > 2 * width).any():
            return None
    straight = [_straightened(g, dict(zip(ids, drifts, strict=True)), start_ns) for g in instances]
    possible, slack = _consistent(_bounds(straight, ids))
    if possible is None:
        return None
    # What is left of the drift tilts the line within the interval.
    left = Left(possible, _choose(possible, is_epoch), slack + 1)
    apart, values = left.apart_ns(0), left.offsets_ns
    offsets = []
    for i, clock in enumerate(ids[1:], start=1):
        if apart[i] == UNKNOWN:
            offsets.append(Offset(clock, ids[0], 0, 0.0, 0, None, "not connected"))
            continue
        value, error = int(values[i]), int(apart[i])
        method = "causality, drift"
        offsets.append(Offset(clock, ids[0], value, float(drifts[i]), start_ns, error, method))
    return Alignment(offsets, ids, left)


def _against_reference(bounds: Bounds) -> tuple[Floats, Floats]:
    """The most and the least by which each offset may exceed the reference's."""
    return Search.start(bounds.reversed(), 0).least_ns, -Search.start(bounds, 0).least_ns


def _drifts(
    instances: Sequence[Instances], ids: Sequence[int], start_ns: int, end_ns: int
) -> Floats | None:
    """Drift of each clock against the first, from lines through the intervals of stretches.

    Clocks that drift fast contradict themselves within a long stretch: then shorter ones do.
    """
    import numpy as np

    for count in DRIFT_BUCKETS:
        edges = np.linspace(start_ns, end_ns + 1, count + 1).astype(np.int64)
        lower = np.full((len(ids), count), -UNBOUND)
        upper = np.full((len(ids), count), UNBOUND)
        failed = 0
        for bucket in range(count):
            part = [p for g in instances if (p := _between(g, edges[bucket], edges[bucket + 1]))]
            possible, _ = _consistent(_bounds(part, ids))
            failed += possible is None
            if possible is not None:
                upper[:, bucket], lower[:, bucket] = _against_reference(possible)
        middles = (edges[1:] + edges[:-1]) / 2 - start_ns
        slopes = [0.0] + [_slope(middles, lower[i], upper[i]) for i in range(1, len(ids))]
        if failed <= count / 4 and all(abs(s) <= MAX_DRIFT_RATIO for s in slopes):
            return np.array(slopes)
    return None


def _slope(middles: Floats, lower: Floats, upper: Floats) -> float:
    import numpy as np

    known = np.isfinite(lower) & np.isfinite(upper)
    if known.sum() < 3:
        return 0.0
    width = np.maximum((upper[known] - lower[known]) / 2, 1.0)
    return float(np.polyfit(middles[known], (lower[known] + upper[known]) / 2, 1, w=1 / width)[0])


def _straightened(group: Instances, drifts: dict[int, float], origin_ns: int) -> Instances:
    import numpy as np

    ratio = np.array([drifts[c] for c in group.clocks])[None, :]

    def moved(times: Ints) -> Ints:
        is_known = (times > EARLY) & (times < LATE)
        bend = np.where(is_known, np.where(is_known, times - origin_ns, 0) * ratio, 0)
        return times + np.rint(bend).astype(np.int64)

    return Instances(
        group.clocks, moved(group.start_ns), moved(group.end_ns), group.size_bytes, group.is_pair
    )


def _between(group: Instances, first: int, last: int) -> Instances | None:
    moment = group.start_ns.max(axis=1)
    rows = (moment >= first) & (moment < last)
    if not rows.any():
        return None
    return Instances(
        group.clocks,
        group.start_ns[rows],
        group.end_ns[rows],
        group.size_bytes[rows],
        group.is_pair,
    )
