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
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

MAX_PAIRS = 1_000_000
"""Pairs of clocks whose error is kept; those of small groups first."""

MIN_ENDS = 3
"""Instances of each size class from which equal ends may be concluded."""

SIZE_RATIO = 4
"""Sizes that far apart tell whether ends depend on size."""


@dataclass(frozen=True)
class Instances:
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


@dataclass(frozen=True, slots=True)
class Offset:
    """What is added to a clock's times: offset + drift * (time - origin)."""

    clock_id: int
    reference_id: int
    offset_ns: int
    drift_ratio: float
    origin_ns: int
    error_ns: int | None
    """None where no instance connects it with the reference."""
    method: str


@dataclass(frozen=True)
class Alignment:
    """The offsets of a capture's clocks, and how far any two of them may still be apart."""

    offsets: list[Offset]
    """One for each clock but the reference."""
    clock_ids: tuple[int, ...]
    apart_ns: Ints
    """By clock and clock, in the order of clock_ids: the error of their difference once both are
    corrected; UNKNOWN where nothing bounds it from both sides."""

    def pairs(self, groups: Iterable[Iterable[int]]) -> Iterator[tuple[int, int, int]]:
        """Clocks that share one of the groups and how far they may be apart, each pair once: only
        where that is less than what both may be off against the reference, and MAX_PAIRS at most,
        the smallest groups first."""
        errors = {o.clock_id: o.error_ns for o in self.offsets}
        at = {clock: i for i, clock in enumerate(self.clock_ids)}
        seen: set[tuple[int, int]] = set()
        for group in sorted({tuple(sorted(set(g))) for g in groups}, key=lambda g: (len(g), g)):
            for i, source in enumerate(group):
                for other in group[i + 1 :]:
                    if (source, other) in seen:
                        continue
                    if len(seen) >= MAX_PAIRS:
                        return
                    seen.add((source, other))
                    apart = int(self.apart_ns[at[source], at[other]])
                    through = errors.get(source, 0), errors.get(other, 0)
                    is_tighter = None in through or apart < sum(e or 0 for e in through)
                    if apart != UNKNOWN and is_tighter:
                        yield source, other, apart


UNKNOWN = -1
EARLY = -(2**62)
LATE = 2**62
UNBOUND = float("inf")


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
    import numpy as np

    ids = sorted(set(clock_ids))
    if len(ids) < 2:
        return Alignment([], tuple(ids), np.zeros((len(ids), len(ids)), np.int64))
    bounds = _bounds(instances, ids)
    if end_ns - start_ns >= DRIFT_WINDOW_NS:
        drifting = _drifting(instances, ids, bounds, start_ns, end_ns, is_epoch)
        if drifting is not None:
            return drifting
    closed, slack_ns = _closed(bounds)
    if closed is None:
        why = "the bounds contradict each other"
        offsets = [Offset(c, ids[0], 0, 0.0, 0, None, why) for c in ids[1:]]
        unknown = np.full((len(ids), len(ids)), UNKNOWN)
        np.fill_diagonal(unknown, 0)
        return Alignment(offsets, tuple(ids), unknown)
    closed = _narrowed(instances, ids, closed)
    values = np.rint(_choose(closed, is_epoch))
    apart = _apart(closed, values, slack_ns)
    offsets = []
    for i, clock in enumerate(ids[1:], start=1):
        if apart[0, i] == UNKNOWN:
            offsets.append(Offset(clock, ids[0], 0, 0.0, 0, None, "not connected"))
            continue
        method = "causality" if values[i] else "wall clock, within the bounds of causality"
        offsets.append(Offset(clock, ids[0], int(values[i]), 0.0, 0, int(apart[0, i]), method))
    return Alignment(offsets, tuple(ids), apart)


def _apart(closed: Floats, values: Floats, slack_ns: float) -> Ints:
    """How far the difference of two corrected clocks may be off: to the farther end of what
    ``closed`` leaves of it."""
    import numpy as np

    room = closed - (values[:, None] - values[None, :])
    room = np.maximum(room, room.T)
    known = np.isfinite(room)
    apart = np.full(room.shape, UNKNOWN, np.int64)
    apart[known] = np.ceil(room[known] + slack_ns)
    np.fill_diagonal(apart, 0)
    return apart


def _bounds(instances: Sequence[Instances], ids: Sequence[int]) -> Floats:
    """B[c, d]: the most by which offset c may exceed offset d."""
    import numpy as np

    bounds = np.full((len(ids), len(ids)), UNBOUND)
    np.fill_diagonal(bounds, 0.0)
    position = {clock: i for i, clock in enumerate(ids)}
    for group in instances:
        columns = [position[c] for c in group.clocks]
        start, end = _shortest(group)
        is_whole = bool((start > EARLY).all() and (end < LATE).all())
        for i, c in enumerate(columns):
            if group.is_pair and i == 1:
                continue
            # Entered on clock c, left on clock d: start + offset c <= end + offset d.
            room = end - start[:, i : i + 1]
            if not is_whole:
                room = np.where((start[:, i : i + 1] > EARLY) & (end < LATE), room, LATE)
            least = room.min(axis=0, initial=LATE)
            for j, d in enumerate(columns):
                if c != d and least[j] < LATE // 2:
                    bounds[c, d] = min(bounds[c, d], float(least[j]))
    return bounds


def _shortest(group: Instances) -> tuple[Ints, Ints]:
    import numpy as np

    most = min(MAX_INSTANCES, max(MIN_INSTANCES, MAX_ROOMS // len(group.clocks) ** 2))
    if len(group.start_ns) <= most:
        return group.start_ns, group.end_ns
    # The room of an instance, whoever was last: from the last known entry to the first exit.
    length = group.end_ns.min(axis=1) - group.start_ns.max(axis=1)
    chosen = np.sort(np.argpartition(np.abs(length), most)[:most])
    return group.start_ns[chosen], group.end_ns[chosen]


def _closed(bounds: Floats) -> tuple[Floats | None, float]:
    """Bounds along all chains (shortest paths), and the slack that made them consistent."""
    import numpy as np

    slack = 0.0
    room = np.empty_like(bounds)
    while slack <= MAX_SLACK_NS:
        closed = bounds + slack * (1 - np.eye(len(bounds)))
        for k in range(len(closed)):
            np.add(closed[:, k : k + 1], closed[k : k + 1, :], out=room)
            np.minimum(closed, room, out=closed)
            if closed.diagonal().min() < 0:
                break
        else:
            return closed, slack
        slack = max(1_000.0, slack * 2)
    return None, 0.0


def _choose(closed: Floats, is_epoch: bool) -> Floats:
    """Offsets that keep all bounds: zero where it may stay, else the middle of what is possible."""
    import numpy as np

    count = len(closed)
    # Bounds against the reference and all that stay with it, which is one clock then.
    upper, lower = closed[:, 0].copy(), -closed[0]
    moving = np.zeros(count, bool)
    for i in range(1, count):
        if not is_epoch or lower[i] > 0 or upper[i] < 0:
            moving[i] = bool(np.isfinite(lower[i]) and np.isfinite(upper[i]))
            continue
        # It stays: the others must go with that.
        upper = np.minimum(upper, closed[:, i])
        lower = np.maximum(lower, -closed[i])
    values = np.zeros(count)
    # The mean of two solutions (all as late, all as early as can be) is a solution.
    values[moving] = (upper[moving] + lower[moving]) / 2
    return values


# --- equal ends ---------------------------------------------------------------------------------


def _narrowed(instances: Sequence[Instances], ids: Sequence[int], closed: Floats) -> Floats:
    """Bounds narrowed by ends that coincide whatever the size, where there are such."""
    import numpy as np

    position = {clock: i for i, clock in enumerate(ids)}
    narrowed = closed.copy()
    for group in instances:
        if group.is_pair:
            continue
        by_clock = {c: i for i, c in enumerate(group.clocks)}
        columns = list(by_clock.items())
        if len(columns) < 2:
            continue
        (first, base), *others = columns
        for clock, column in others:
            narrow = _equal_ends(group, base, column)
            if narrow is None:
                continue
            i, j = position[clock], position[first]
            middle, width = narrow
            # Only inside what causality allows: ends are weaker evidence.
            if (
                -narrowed[j, i] <= middle <= narrowed[i, j]
                and 2 * width < narrowed[i, j] + narrowed[j, i]
            ):
                narrowed[i, j] = min(narrowed[i, j], middle + width)
                narrowed[j, i] = min(narrowed[j, i], -(middle - width))
    tightened, _ = _closed(narrowed)
    return closed if tightened is None else np.minimum(closed, tightened)


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
    bounds: Floats,
    start_ns: int,
    end_ns: int,
    is_epoch: bool,
) -> Alignment | None:
    """Offsets with drift; None where constant ones explain the bounds as well."""
    import numpy as np

    drifts = _drifts(instances, ids, start_ns, end_ns)
    if drifts is None:
        return None
    constant, _ = _closed(bounds)
    if constant is not None:
        # Whether drift would matter beside the error of constant offsets.
        width = constant[1:, 0] + constant[0, 1:]
        if not (np.abs(drifts[1:]) * (end_ns - start_ns) > 2 * width).any():
            return None
    straight = [_straightened(g, dict(zip(ids, drifts, strict=True)), start_ns) for g in instances]
    closed, slack = _closed(_bounds(straight, ids))
    if closed is None:
        return None
    values = np.rint(_choose(closed, is_epoch))
    # What is left of the drift tilts the line within the interval.
    apart = _apart(closed, values, slack + 1)
    offsets = []
    for i, clock in enumerate(ids[1:], start=1):
        if apart[0, i] == UNKNOWN:
            offsets.append(Offset(clock, ids[0], 0, 0.0, 0, None, "not connected"))
            continue
        value, error = int(values[i]), int(apart[0, i])
        method = "causality, drift"
        offsets.append(Offset(clock, ids[0], value, float(drifts[i]), start_ns, error, method))
    return Alignment(offsets, tuple(ids), apart)


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
            closed, _ = _closed(_bounds(part, ids))
            failed += closed is None
            if closed is not None:
                lower[:, bucket], upper[:, bucket] = -closed[0], closed[:, 0]
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
