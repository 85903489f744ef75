"""One clock for all ranks, from cause and effect.

Wall clocks come first. In a synchronising collective nobody leaves before the last has entered,
and a receive does not end before its send begins: every such instance bounds the offset of each
pair of clocks from both sides, and bounds add up along chains of clocks. What is left is an
interval for each clock against a reference. A clock is moved only where its interval excludes
zero, to the middle: what its own time leaves possible is no reason to doubt it. Its error is the
distance to the farther end of the interval (half of it, once moved), and no lateness below that
may be claimed. Rows of one clock are never moved against each other.

Equal ends are no law: a ring leaves a slow link last, every time. They only narrow an interval
where they scatter little and do not depend on the size of the operation.
"""

from __future__ import annotations

from collections.abc import Sequence
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
) -> list[Offset]:
    """Offsets of all clocks but the reference, which is the first. Empty with one clock.

    ``is_epoch``: the clocks count from the epoch, so zero is a good guess; else any correction
    that the bounds allow is applied.
    """
    import numpy as np

    ids = sorted(set(clock_ids))
    if len(ids) < 2:
        return []
    bounds = _bounds(instances, ids)
    if end_ns - start_ns >= DRIFT_WINDOW_NS:
        drifting = _drifting(instances, ids, start_ns, end_ns, is_epoch)
        if drifting is not None:
            return drifting
    closed, slack_ns = _closed(bounds)
    if closed is None:
        return [
            Offset(c, ids[0], 0, 0.0, 0, None, "the bounds contradict each other") for c in ids[1:]
        ]
    closed = _narrowed(instances, ids, closed)
    lower, upper = -closed[0], closed[:, 0]
    values = _choose(closed, is_epoch)
    found = []
    for i, clock in enumerate(ids[1:], start=1):
        if not np.isfinite(lower[i]) or not np.isfinite(upper[i]):
            found.append(Offset(clock, ids[0], 0, 0.0, 0, None, "not connected"))
            continue
        value = round(float(values[i]))
        error = max(upper[i] - value, value - lower[i]) + slack_ns
        method = "causality" if value else "wall clock, within the bounds of causality"
        found.append(Offset(clock, ids[0], value, 0.0, 0, int(np.ceil(error)), method))
    return found


def _bounds(instances: Sequence[Instances], ids: Sequence[int]) -> Floats:
    """B[c, d]: the most by which offset c may exceed offset d."""
    import numpy as np

    bounds = np.full((len(ids), len(ids)), UNBOUND)
    np.fill_diagonal(bounds, 0.0)
    position = {clock: i for i, clock in enumerate(ids)}
    for group in instances:
        columns = [position[c] for c in group.clocks]
        start, end = _shortest(group)
        for i, c in enumerate(columns):
            if group.is_pair and i == 1:
                continue
            # Entered on clock c, left on clock d: start + offset c <= end + offset d.
            room = end - start[:, i : i + 1]
            least = np.where((start[:, i : i + 1] > EARLY) & (end < LATE), room, LATE).min(
                axis=0, initial=LATE
            )
            for j, d in enumerate(columns):
                if c != d and least[j] < LATE // 2:
                    bounds[c, d] = min(bounds[c, d], float(least[j]))
    return bounds


def _shortest(group: Instances) -> tuple[Ints, Ints]:
    import numpy as np

    if len(group.start_ns) <= MAX_INSTANCES:
        return group.start_ns, group.end_ns
    # The room of an instance, whoever was last: from the last known entry to the first exit.
    length = group.end_ns.min(axis=1) - group.start_ns.max(axis=1)
    chosen = np.sort(np.argpartition(np.abs(length), MAX_INSTANCES)[:MAX_INSTANCES])
    return group.start_ns[chosen], group.end_ns[chosen]


def _closed(bounds: Floats) -> tuple[Floats | None, float]:
    """Bounds along all chains (shortest paths), and the slack that made them consistent."""
    import numpy as np

    slack = 0.0
    while slack <= MAX_SLACK_NS:
        closed = bounds + slack * (1 - np.eye(len(bounds)))
        for k in range(len(closed)):
            closed = np.minimum(closed, closed[:, k : k + 1] + closed[k : k + 1, :])
        if (np.diag(closed) >= 0).all():
            return closed, slack
        slack = max(1_000.0, slack * 2)
    return None, 0.0


def _choose(closed: Floats, is_epoch: bool) -> Floats:
    """Offsets that keep all bounds: zero where it may stay, else the middle of what is possible."""
    import numpy as np

    closed = closed.copy()
    count = len(closed)
    moving = np.zeros(count, bool)
    for i in range(1, count):
        lower, upper = -closed[0, i], closed[i, 0]
        if not is_epoch or lower > 0 or upper < 0:
            moving[i] = bool(np.isfinite(lower) and np.isfinite(upper))
            continue
        # It stays: the others must go with that.
        closed[i, 0] = closed[0, i] = 0.0
        closed = np.minimum(closed, closed[:, i : i + 1] + closed[i : i + 1, :])
        closed = np.minimum(closed, closed[:, :1] + closed[:1, :])
    values = np.zeros(count)
    # The mean of two solutions (all as late, all as early as can be) is a solution.
    values[moving] = (closed[moving, 0] - closed[0, moving]) / 2
    return values


# --- equal ends ---------------------------------------------------------------------------------


def _narrowed(instances: Sequence[Instances], ids: Sequence[int], closed: Floats) -> Floats:
    """Bounds narrowed by ends that coincide whatever the size, where there are such."""
    import numpy as np

    position = {clock: i for i, clock in enumerate(ids)}
    found = closed.copy()
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
            if -found[j, i] <= middle <= found[i, j] and 2 * width < found[i, j] + found[j, i]:
                found[i, j] = min(found[i, j], middle + width)
                found[j, i] = min(found[j, i], -(middle - width))
    tightened, _ = _closed(found)
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
    start_ns: int,
    end_ns: int,
    is_epoch: bool,
) -> list[Offset] | None:
    """Offsets with drift; None where constant ones explain the bounds as well."""
    import numpy as np

    constant, _ = _closed(_bounds(instances, ids))
    if constant is not None and not _has_trend(instances, ids, constant, start_ns, end_ns):
        return None
    drifts = _drifts(instances, ids, start_ns, end_ns)
    if drifts is None:
        return None
    straight = [_straightened(g, dict(zip(ids, drifts, strict=True)), start_ns) for g in instances]
    closed, slack = _closed(_bounds(straight, ids))
    if closed is None:
        return None
    values = _choose(closed, is_epoch)
    found = []
    for i, clock in enumerate(ids[1:], start=1):
        lower, upper = -closed[0, i], closed[i, 0]
        if not np.isfinite(lower) or not np.isfinite(upper):
            found.append(Offset(clock, ids[0], 0, 0.0, 0, None, "not connected"))
            continue
        # What is left of the drift tilts the line within the interval.
        error = max(upper - values[i], values[i] - lower) + slack
        found.append(
            Offset(
                clock,
                ids[0],
                round(float(values[i])),
                float(drifts[i]),
                start_ns,
                int(np.ceil(error)) + 1,
                "causality, drift",
            )
        )
    return found


def _has_trend(
    instances: Sequence[Instances],
    ids: Sequence[int],
    constant: Floats,
    start_ns: int,
    end_ns: int,
) -> bool:
    """Whether drift would matter beside the error of constant offsets."""
    import numpy as np

    drifts = _drifts(instances, ids, start_ns, end_ns)
    if drifts is None:
        return False
    width = constant[1:, 0] + constant[0, 1:]
    return bool((np.abs(drifts[1:]) * (end_ns - start_ns) > 2 * width).any())


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
