"""What stands out in a history of steps: restarts, levels, drifts, stalls.

It is found robustly. Medians of blocks of lines are parted where a new level costs less than the
spread of one (optimal partitioning, Jackson et al. 2005, squared error); a slope common to all
levels is a drift, taken out before levels are judged. Against its level, a line that took much
longer is a stall; stalls at one distance in steps are periodic and told once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tracekit.derive import phases

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
HOURS_TICK_NS = 360_000_000
"""A ten-thousandth of an hour, as Composer prints times."""
MIN_LINES = 20
"""Lines of a history from which on something in it can stand out."""
WARM_LINES = 2
"""Lines at a start that are left out: compiling, caches and the first batch are in them."""
MIN_BLOCK_LINES = 10
MAX_BLOCKS = 400
"""Blocks whose medians are parted: the work grows with their square."""
MIN_LEVEL_BLOCKS = 2
MIN_LEVEL_RATIO = 0.02
"""How far a level must be from its neighbour: less changes with the data or the room's warmth."""
MIN_LEVEL_SIGMAS = 4.0
APART_DAYS = 0.25
"""Hours that far apart hardly resemble each other."""
MIN_CHANGE_SPREADS = 6.0
"""Of what they differ by: a smaller level that is so much higher or lower than its neighbour is no
slow stretch, but no part of a drift either."""
MOST_LINES = 0.75
"""Of two neighbouring stretches, which are one where so many lines may be as far from their medians
as these are from each other: of steps of two lengths by turns half are at either."""
NOISE_FLOOR_RATIO = 0.001
"""Spread of block medians that is assumed at least: logs round their numbers."""
MIN_DRIFT_SIGMAS = 5.0
"""Of the slope's own error, which counts hours that resemble each other and the day beside it. Of
260 made healthy jobs, a third of which have days of their own length, two reach it (one at 6)."""
SLOPE_ROUNDS = 6
DAY_ROUNDS = 3
"""Turns in which levels and the day beside them are fitted to each other."""
MAX_LEFT_SIGMAS = 4.0
"""What a block may at most tell against a slope, or against levels."""
MIN_DAILY_DAYS = 1.5
"""Time from which on a day's warmth and load can be told from a slope."""
ROBUST_SIGMAS = 1.5
"""From how far off a block counts by its distance and no longer by its square (Huber 1964)."""
MAX_GROWN_RATIO = 2.0
"""Growth over the whole log, over how far apart its steps ever are, up to which a drift is one: a
restart may take some of it back."""
MIN_DRIFT_RATIO = 0.003
"""Growth over the whole log from which on a drift is one."""
MIN_STALL_STEPS = 10.0
"""Usual steps that a stall takes more."""
MIN_STALL_NS = 30 * SECOND_NS
"""Least time of a stall that is told by itself, in a log of ten minutes or more."""
MIN_STALL_RATIO = 0.05
"""In a shorter log: what a stall takes of its time. A twentieth of a job is no hiccup."""
MIN_LARGE_STALL_STEPS = 4.0
MIN_LARGE_STALL_NS = 5 * SECOND_NS
"""Usual steps, and time, from which on it is told for that share alone: 40 s among sixty of
5 s."""
MIN_SILENT_NS = 60 * SECOND_NS
MIN_SILENT_RATIO = 2.0
"""Over the longest time between two lines before: what lies behind the last one is then no pause
that the job makes now and then."""
MIN_OUTLIER_STEPS = 0.5
"""Usual steps that a line takes more to be one of those among which a period is looked for."""
OUTLIER_SIGMAS = 8.0
MIN_TIMES = 5
"""Outliers that make a period."""
MIN_EXACT_TIMES = 4
"""The same where these are all outliers there are, each as far from the next: of four at any places
in a log of a hundred lines, one in two hundred would."""
MIN_TOLD_TIMES = 3
"""The same where the log says what lies before each of them, and hardly before other lines."""
MIN_REGULAR_RATIO = 0.8
"""Share of the distances between outliers that must be one distance, or a few of it."""
PERIOD_TOLERANCE = 0.02
MAX_PERIODS = 3
"""Periods that one job is told to have: checkpoints, evaluations and one more."""
CLOCK_PERIODS_NS = tuple(
    minutes * 60 * SECOND_NS for minutes in (1440, 720, 480, 360, 240, 180, 120, 60, 30, 20, 15, 10)
)
"""What cron and timers are told: whole parts of a day."""
CLOCK_SLACK_NS = 5 * SECOND_NS
CLOCK_SLACK_STEPS = 1.5
"""How far from the same time of day a slow line may begin: a job is started some seconds late, and
within whichever step is on the way."""
UNLIKE_RATIO = 4.0
"""An outlier so many times as long as the periodic ones, or so many times shorter, is no more one
of them: saves of 20 s that become saves of 140 s are two kinds."""
MUCH_SLOWER_RATIO = 1.5
"""Of a usual step, from which on a stretch is so slow that what returns in it is a part of that."""
FINE_RATIO = 20.0
"""Ticks of the log's clock in a line's time from which on single lines can be compared."""
TAIL_QUANTILE = 0.9
TAIL_SIGMAS = 1.6449
"""Of a normal distribution nine deviations in ten are smaller than so many standard deviations."""
WORD_SIGMA = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""


class Lines(Struct, frozen=True):
    """Lines of one start after another, ascending in step within a start. Times in ns."""

    start: Ints
    step: Ints
    source: Ints
    place: Ints
    end: Ints
    """-1 without a clock."""
    count: Ints
    """Steps since the line before; 1 for the first of a start, 0 for a bar that begins."""
    dur: Floats
    """Of each of these steps; nan where nothing says."""
    wall: Floats
    """nan for the first of a start, and without a clock."""
    is_first: Bools
    is_sample: Bools
    """Whether the duration is of the line's last step alone, as nanoGPT and MaxText print it."""
    is_done: Bools
    """Whether the job's last step is reached."""


def episodes(
    lines: Lines,
    phases_of: Mapping[str, Bools] | None = None,
    ended_for: Mapping[tuple[int, int], str] | None = None,
) -> list[dict[str, Any]]:
    """Rows of ``job_episode``, by kind and step.

    ``phases_of`` says for each line, by the column's name, what is logged before it, ``ended_for``
    by source and place of a start's first line what the start before it was ended for.
    """
    import numpy as np

    own_count, lines_count = lines.count, int((lines.dur >= 0).sum())
    is_still = _is_still(lines)
    if is_still.any():
        lines, own_count = _moved(lines, is_still), lines.count[~is_still]
        phases_of = {
            name: _since(is_before, is_still) for name, is_before in (phases_of or {}).items()
        }
    usual = float(np.nanmedian(lines.dur)) if np.isfinite(lines.dur).any() else np.nan
    rows = _restarts(lines, usual, ended_for or {})
    if lines_count < MIN_LINES:
        return rows
    warm = np.zeros(len(lines.step), bool)
    for begin in np.flatnonzero(lines.is_first):
        warm[begin : begin + WARM_LINES] = True
    judged = np.flatnonzero(~warm & np.isfinite(lines.dur) & (lines.dur > 0))
    # What begins when the last step was reached is another job, with steps of its own.
    is_other = lines.is_first & np.concatenate([[False], lines.is_done[:-1]])
    for at in np.split(judged, np.searchsorted(judged, np.flatnonzero(is_other))):
        if len(at) >= MIN_BLOCK_LINES:
            series = _Series(lines, at, phases_of or {}, own_count)
            rows += series.levels() + series.stalls() + series.drifts()
    return sorted(rows, key=lambda r: (r["kind"], r["first_step"], r["last_step"]))


def silence(lines: Lines, silent_ns: int) -> list[dict[str, Any]]:
    """The row of a job that printed nothing for so long behind its last line, until it was ended;
    none where the job was done, or was as long silent before and went on."""
    import numpy as np

    longest = float(np.nanmax(lines.wall)) if np.isfinite(lines.wall).any() else 0.0
    if lines.is_done[-1] or silent_ns < max(MIN_SILENT_NS, MIN_SILENT_RATIO * longest):
        return []
    begin, step = int(lines.end[-1]), int(lines.step[-1])
    times = (begin, begin + silent_ns if begin >= 0 else -1)
    usual = float(np.nanmedian(lines.dur)) if np.isfinite(lines.dur).any() else np.nan
    return [_row("silence", step, step, times, lost_ns=float(silent_ns), usual_ns=usual)]


def _is_still(lines: Lines) -> Bools:
    """Lines within one tick of a coarse clock, which tell nothing of their own time."""
    is_still: Bools = (lines.dur == 0) & (lines.wall == 0) & ~lines.is_first
    return is_still


def _moved(lines: Lines, is_still: Bools) -> Lines:
    """The lines at which the clock moved, each for all steps since the one before."""
    import numpy as np

    kept = ~is_still
    own = {name: getattr(lines, name)[kept] for name in Lines.__struct_fields__}
    since = np.diff(np.cumsum(lines.count)[kept], prepend=0)
    own["count"] = np.where(own["is_first"], own["count"], since)
    own["dur"] = own["wall"] / np.maximum(own["count"], 1)
    return Lines(**own)


def _since(is_before: Bools, is_still: Bools) -> Bools:
    """Whether it holds for a line that is kept, or for one left out since the last that is."""
    import numpy as np

    count = np.cumsum(is_before)[~is_still]
    return np.diff(count, prepend=0) > 0


def _restarts(
    lines: Lines, usual: float, ended_for: Mapping[tuple[int, int], str]
) -> list[dict[str, Any]]:
    import numpy as np

    rows = []
    for at in np.flatnonzero(lines.is_first)[1:]:
        if lines.is_done[at - 1]:  # another job prints into the same log
            continue
        before, after = int(lines.step[at - 1]), int(lines.step[at] - lines.count[at] + 1)
        repeated = max(0, before - after + 1)
        ends = int(lines.end[at - 1]), int(lines.end[at])
        gap = ends[1] - ends[0] if min(ends) >= 0 else 0
        lost = max(0.0, gap + (repeated - 1) * usual) if np.isfinite(usual) else None
        why = ended_for.get((int(lines.source[at]), int(lines.place[at])))
        rows.append(
            _row(
                "restart",
                after,
                before,
                ends,
                lost_ns=lost,
                usual_ns=usual,
                repeated_count=repeated,
            )
            | ({"ended_for": why} if why else {})
        )
    return rows


def _row(
    kind: str, first: int, last: int, times: tuple[int, int], **more: float | int | None
) -> dict[str, Any]:
    import math

    row: dict[str, Any] = {
        "kind": kind,
        "first_step": first,
        "last_step": last,
        "start_ns": times[0] if times[0] >= 0 else None,
        "end_ns": times[1] if times[1] >= 0 else None,
    }
    for name, value in more.items():
        # A sum of what strangers' lines say may be beyond a column.
        if value is not None and not math.isnan(value) and abs(value) < 2**63:
            row[name] = value if name.endswith("ratio") else round(value)
    return row


class _Series:
    """The judged lines: their levels, the common slope and what is left."""

    def __init__(
        self, lines: Lines, at: Ints, phases_of: Mapping[str, Bools], own_count: Ints
    ) -> None:
        import numpy as np

        self.lines, self.at = lines, at
        self.own_count = own_count[at]
        """Steps since the line that is printed before, of a judged one or not."""
        self.phases = {name: is_before[at] for name, is_before in phases_of.items()}
        self.step, self.end, self.count = lines.step[at], lines.end[at], lines.count[at]
        self.dur = lines.dur[at]
        self.usual = float(np.median(self.dur))
        # Of one step in ten a hiccup says nothing of the nine before it.
        spent = np.where(
            lines.is_sample[at], self.dur + self.usual * (self.count - 1), self.dur * self.count
        )
        self.taken = np.fmax(spent, lines.wall[at] - _stamp_tick(lines, spent, at))
        """ns from the line before: what a line states may leave out what lay between."""
        self.tick = _tick(lines)
        self.clock = np.cumsum(np.minimum(self.taken, spent + self.usual * self.count)) / DAY_NS
        """Days of training up to the line: known without a clock, too."""
        size = max(MIN_BLOCK_LINES, -(-len(at) // MAX_BLOCKS))
        edges = [*range(0, len(at) - size + 1, size), len(at)]
        self.edges = np.array(edges if len(edges) > 1 else [0, len(at)])
        is_fine = self.usual * float(np.median(self.count)) >= FINE_RATIO * self.tick
        self.middle = self._median if is_fine else self._clipped_mean
        """What a step takes in a stretch of lines, from the first to before the last."""
        if not is_fine:
            self.usual = self._clipped_mean(0, len(at))
        self.blocks = np.array([self.middle(a, b) for a, b in pairwise(edges)])
        self.times = np.array([self.clock[a:b].mean() for a, b in pairwise(edges)])
        self.sigma = max(NOISE_FLOOR_RATIO * self.usual, self._spread())
        self.daily = np.zeros_like(self.blocks)
        """What a step takes more or less by the time of day."""
        self.slope, self.slope_sigmas = self._fitted()
        trend = self.slope * self.times if abs(self.slope_sigmas) >= MIN_DRIFT_SIGMAS else 0.0
        self.parts = self._merged(self._parted(self.blocks - trend), self.blocks - trend)
        self.level = np.empty(len(at))
        for first, last in self._bounds():
            self.level[first:last] = self.middle(first, last)

    def _spread(self) -> float:
        """Standard deviation of a block's median, by how far neighbours are apart.

        Where steps are of two lengths most neighbours are alike and some far apart: the median
        of their distances is of a normal distribution only, so the tenth largest counts as well.
        """
        import numpy as np

        apart = np.abs(np.diff(self.blocks))
        if not len(apart):
            return 0.0
        middle, far = np.quantile(apart, [0.5, TAIL_QUANTILE])
        return float(max(WORD_SIGMA * middle, far / TAIL_SIGMAS) / np.sqrt(2))

    def _median(self, first: int, last: int) -> float:
        """What a step usually takes in a block of lines."""
        import numpy as np

        return float(np.median(self.dur[first:last]))

    def _clipped_mean(self, first: int, last: int) -> float:
        """The same where a clock has whole seconds: single lines say 0 or 1, only their mean says
        more."""
        import numpy as np

        clipped = np.minimum(self.dur[first:last], 2 * self.usual)
        return float(np.average(clipped, weights=self.count[first:last]))

    def _parted(self, values: Floats) -> list[int]:
        """Where levels begin, 0 first: the partition of least squared error and penalties."""
        import numpy as np

        total = len(values)
        sums = np.concatenate([[0.0], np.cumsum(values)])
        squares = np.concatenate([[0.0], np.cumsum(values**2)])
        penalty = 2 * MIN_LEVEL_SIGMAS * self.sigma**2 * np.log(max(total, 2))
        best = np.full(total + 1, np.inf)
        best[0] = -penalty
        last = np.zeros(total + 1, int)
        for end in range(MIN_LEVEL_BLOCKS, total + 1):
            begins = np.arange(0, end - MIN_LEVEL_BLOCKS + 1)
            length = end - begins
            cost = squares[end] - squares[begins] - (sums[end] - sums[begins]) ** 2 / length
            costs = best[begins] + cost + penalty
            last[end] = int(np.argmin(costs))
            best[end] = costs[last[end]]
        starts, end = [], total
        while end > 0:
            end = int(last[end])
            starts.append(end)
        return starts[::-1]

    def _merged(self, starts: list[int], values: Floats, least: float | None = None) -> list[int]:
        """Without levels that are hardly unlike the one before."""
        import numpy as np

        starts = list(starts)
        least = max(least or MIN_LEVEL_RATIO * self.usual, MIN_LEVEL_SIGMAS * self.sigma)
        while len(starts) > 1:
            ends = [*starts[1:], len(values)]
            middles = [np.median(values[a:b]) for a, b in zip(starts, ends, strict=True)]
            apart = np.abs(np.diff(middles))
            nearest = int(np.argmin(apart))
            if apart[nearest] >= least:
                break
            del starts[nearest + 1]
        return starts

    def _least_change(self, values: Floats) -> float:
        """How far a level must be from its neighbour not to be some hours' own length."""
        import numpy as np

        least = MIN_LEVEL_RATIO * self.usual
        span = float(self.times[-1] - self.times[0])
        if span < MIN_DAILY_DAYS:
            return least
        apart = max(1, round(APART_DAYS / span * (len(values) - 1)))
        between = np.abs(values[apart:] - values[:-apart])
        spread = max(WORD_SIGMA * float(np.median(between)) / 2**0.5, self.sigma / 2)
        return min(least, MIN_CHANGE_SPREADS * spread)

    def _fitted(self) -> tuple[float, float]:
        """The slope that levels share. Of a slope that is still in the values levels take a part,
        so it is sought again in what the last one left. Only levels that are told apart count:
        hours that resemble each other look like many small ones, which leave no slope."""
        slope = 0.0
        for _ in range(SLOPE_ROUNDS):
            starts = self._levels(slope)
            self.daily = self._day(starts)
            further, _ = self._slope(starts, slope)
            slope += further
        starts = self._levels(slope)
        sigmas = self._slope(starts, 0.0)[1]
        if abs(sigmas) < MIN_DRIFT_SIGMAS or not self._is_ramp(starts, slope):
            return 0.0, 0.0
        return slope, sigmas

    def _levels(self, slope: float) -> list[int]:
        """Where levels begin that are told apart, once slope and day are taken out."""
        values = self.blocks - self.daily - slope * self.times
        return self._merged(self._parted(values), values, self._least_change(values))

    def _hours(self) -> Floats | None:
        """Sine and cosine of each block's time of day, a column each; None for too short a log."""
        import numpy as np

        known = self.end.min() >= 0
        of_line = self.end / DAY_NS if known else self.clock
        days = np.array([of_line[a:b].mean() for a, b in pairwise(self.edges)])
        if len(days) < MIN_LINES or days[-1] - days[0] < MIN_DAILY_DAYS:
            return None
        turn = 2 * np.pi * (days % 1.0)
        return np.stack([np.sin(turn), np.cos(turn)], axis=1)

    def _model(self, starts: list[int], hours: Floats) -> Floats:
        """Time, sine and cosine of the day, and a constant of each level, a column each."""
        import numpy as np

        level = np.zeros(len(self.blocks), int)
        level[starts[1:]] = 1
        constants = np.eye(len(starts))[np.cumsum(level)]
        return np.concatenate([self.times[:, None], hours, constants], axis=1)

    def _day(self, starts: list[int], *, has_slope: bool = True) -> Floats:
        """What the time of day adds to a block, fitted together with the levels and a slope: two
        days that begin and end at other hours look like a slope, and a slope like hours."""
        import numpy as np

        hours = self._hours()
        if hours is None:
            return np.zeros_like(self.blocks)
        model = self._model(starts, hours)[:, 0 if has_slope else 1 :]
        weight = np.ones(len(self.blocks))
        for _ in range(SLOPE_ROUNDS):
            root = np.sqrt(weight)
            fit = np.linalg.lstsq(model * root[:, None], self.blocks * root, rcond=None)[0]
            off = np.abs(self.blocks - model @ fit)
            far = ROBUST_SIGMAS * max(WORD_SIGMA * float(np.median(off)), self.sigma / 2)
            weight = np.minimum(1.0, far / np.maximum(off, far / 1e6))
        at = 1 if has_slope else 0
        daily: Floats = hours @ fit[at : at + 2]
        return daily

    def _is_ramp(self, starts: list[int], slope: float) -> bool:
        """Whether a slope tells more than one or two further levels: changes too small for levels
        look like a slope as well.

        By Bayes' criterion (Schwarz 1978), a level having a beginning and a height. Hours that
        resemble each other count as the fewer that do not.
        """
        import numpy as np

        ends = [*starts[1:], len(self.blocks)]
        values = self.blocks - self.daily - slope * self.times
        left = np.concatenate(
            [values[a:b] - np.median(values[a:b]) for a, b in zip(starts, ends, strict=True)]
        )
        like = _likeness(left)
        count = max(len(left) * (1 - like) / (1 + like), 2.0)
        least = count * np.log(max(self._squares(left), 1e-9)) + np.log(count)
        return all(
            count * np.log(max(self._of_levels(len(starts) + more), 1e-9))
            + 2 * more * np.log(count)
            > least
            for more in (1, 2)
        )

    def _squares(self, left: Floats) -> float:
        """Sum of squares in which single blocks do not decide."""
        import numpy as np

        return float((np.minimum(np.abs(left), MAX_LEFT_SIGMAS * self.sigma) ** 2).sum())

    def _of_levels(self, count: int) -> float:
        """What the best so many levels without a slope leave, as squares; the day is theirs, not
        that of a slope, which would take the part of them that is no slope."""
        import numpy as np

        least = np.inf
        for begin in (self.daily, np.zeros_like(self.blocks)):
            daily = begin
            for _ in range(DAY_ROUNDS):
                values = self.blocks - daily
                starts = self._best_levels(values, count)
                edges = [*starts, len(values)]
                left = [values[a:b] - np.median(values[a:b]) for a, b in pairwise(edges)]
                least = min(least, self._squares(np.concatenate(left)))
                daily = self._day(starts, has_slope=False)
                if not daily.any():
                    break
        return least

    def _best_levels(self, values: Floats, count: int) -> list[int]:
        """Where so many levels of least squared error begin, 0 first."""
        import numpy as np

        total = len(values)
        sums = np.concatenate([[0.0], np.cumsum(values)])
        squares = np.concatenate([[0.0], np.cumsum(values**2)])
        cost = np.full((total + 1, total + 1), np.inf)  # of the blocks from i to before j
        for begin in range(total):
            length = np.arange(1, total - begin + 1)
            part = sums[begin + 1 :] - sums[begin]
            cost[begin, begin + 1 :] = squares[begin + 1 :] - squares[begin] - part**2 / length
        best, back = cost[0], []
        for _ in range(count - 1):
            through = best[:, None] + cost
            back.append(np.argmin(through, axis=0))
            best = through.min(axis=0)
        starts, end = [], total
        for last in reversed(back):
            end = int(last[end])
            starts.append(end)
        return sorted({0, *starts} - {total})

    def _slope(self, starts: list[int], known: float) -> tuple[float, float]:
        """Growth of the step in ns a day within levels beyond what is known, and in how many
        standard errors."""
        import numpy as np

        ends = [*starts[1:], len(self.blocks)]
        slopes, left, squares = [], [], 0.0
        for first, last in zip(starts, ends, strict=True):
            times = self.times[first:last]
            values = self.blocks[first:last] - self.daily[first:last] - known * times
            i, j = np.triu_indices(len(times), 1)
            if len(i):
                slopes.append((values[j] - values[i]) / (times[j] - times[i]))
            squares += float(((times - times.mean()) ** 2).sum())
        if not slopes or squares == 0:
            return 0.0, 0.0
        slope = float(np.median(np.concatenate(slopes)))
        for first, last in zip(starts, ends, strict=True):
            rest = self.blocks[first:last] - self.daily[first:last]
            rest = rest - (known + slope) * self.times[first:last]
            left.append(rest - np.median(rest))
        if (hours := self._hours()) is not None:  # what the day explains tells of no slope
            others = self._model(starts, hours)[:, 1:]
            alike = np.linalg.lstsq(others, self.times, rcond=None)[0]
            squares = max(float(((self.times - others @ alike) ** 2).sum()), 1e-12)
        rest = np.concatenate(left)
        spread = max(WORD_SIGMA * float(np.median(np.abs(rest))), self.sigma / 2)
        like = _likeness(rest)
        error = spread / np.sqrt(squares) * np.sqrt((1 + like) / (1 - like))
        return slope, slope / error

    def _bounds(self) -> list[tuple[int, int]]:
        """First and last line of each level: the line at which it changes, not its block."""
        import numpy as np

        cuts = [0]
        for part in self.parts[1:]:
            low, high = (
                int(self.edges[part - 1]),
                int(self.edges[min(part + 1, len(self.edges) - 1)]),
            )
            before = np.median(self.dur[int(self.edges[max(part - 2, 0)]) : int(self.edges[part])])
            after = np.median(self.dur[int(self.edges[part]) : high])
            near = self.dur[low:high]
            costs = np.cumsum(np.abs(near - before) - np.abs(near - after))
            cuts.append(max(cuts[-1] + 1, low + int(np.argmin(costs)) + 1))
        return list(zip(cuts, [*cuts[1:], len(self.at)], strict=True))

    def _times(self, first: int, last: int) -> tuple[int, int]:
        """When lines ``first`` to ``last`` (both in) began and ended."""
        end = int(self.end[last])
        wall = self.lines.wall[self.at[first]]
        begin = int(self.end[first])
        return (begin - int(wall) if begin >= 0 and wall == wall else begin), end

    def levels(self) -> list[dict[str, Any]]:
        """Stretches whose steps take longer, or less long, than those of most of the time."""
        import numpy as np

        bounds = self._bounds()
        spans = np.array([float(self.taken[a:b].sum()) for a, b in bounds])
        heights = np.array([self.middle(a, b) for a, b in bounds])
        # A slow stretch parts what is usual in two, of which neither need be the longest.
        alike = np.abs(heights - heights[:, None]) < MIN_LEVEL_RATIO * heights[:, None]
        together = (alike * spans).sum(axis=1)
        usual = float(heights[max(range(len(spans)), key=lambda i: (together[i], spans[i]))])
        rows = []
        for first, last in self._joined(bounds, usual):
            level = self.middle(first, last)
            if abs(level - usual) < MIN_LEVEL_RATIO * usual:
                continue
            before, steps, rest = (
                int(self.count[a:b].sum()) for a, b in ((0, first), (first, last), (last, None))
            )
            begin_ns, end_ns = self._times(first, last - 1)
            last_step = int(self.step[last - 1])
            if level < usual and before <= steps and rest:
                # What a job begins with is no faster stretch of it: all steps behind take longer,
                # also where these are most of them, and so the usual ones.
                rows.append(
                    _row(
                        "risen",
                        last_step + 1,
                        int(self.step[-1]),
                        (end_ns, int(self.end[-1])),
                        dur_ns=usual,
                        usual_ns=level,
                        lost_ns=(usual - level) * rest,
                    )
                )
                continue
            rows.append(
                _row(
                    "slow" if level > usual else "fast",
                    int(self.step[first] - self.count[first] + 1),
                    last_step,
                    (begin_ns, end_ns),
                    dur_ns=level,
                    usual_ns=usual,
                    lost_ns=(level - usual) * steps,
                )
            )
        return rows

    def _joined(self, bounds: list[tuple[int, int]], usual: float) -> list[tuple[int, int]]:
        """Neighbouring levels that are unusual alike as one: blocks are parted by the noise of the
        whole history, and what makes steps long makes them scatter. So two are told apart only
        where they differ by more than single lines of them do."""
        import numpy as np

        joined: list[tuple[int, int]] = []
        for first, last in bounds:
            if joined:
                begin = joined[-1][0]
                here, before = self.dur[first:last], self.dur[begin:first]
                level, level_before = self.middle(first, last), self.middle(begin, first)
                rest = np.concatenate([np.abs(here - level), np.abs(before - level_before)])
                least = MIN_LEVEL_RATIO * usual
                is_alike = (
                    min(level, level_before) - usual >= least
                    or usual - max(level, level_before) >= least
                )
                if is_alike and abs(level - level_before) <= float(np.quantile(rest, MOST_LINES)):
                    joined[-1] = (begin, last)
                    continue
            joined.append((first, last))
        return joined

    def drifts(self) -> list[dict[str, Any]]:
        """The slope that all levels share, where it is one."""
        span = float(self.times[-1] - self.times[0])
        grown = self.slope * span
        is_sure = abs(self.slope_sigmas) >= MIN_DRIFT_SIGMAS
        # What grows and falls back again and again has a slope and goes nowhere.
        seen = float(self.blocks.max() - self.blocks.min())
        if not MIN_DRIFT_RATIO * self.usual <= abs(grown) <= MAX_GROWN_RATIO * seen or not is_sure:
            return []
        return [
            _row(
                "drift",
                int(self.step[0]),
                int(self.step[-1]),
                self._times(0, len(self.at) - 1),
                dur_ns=self.usual,
                usual_ns=self.usual,
                lost_ns=max(0.0, grown / 2 * float(self.count.sum())),
                per_day_ratio=self.slope / self.usual,
            )
        ]

    def stalls(self) -> list[dict[str, Any]]:
        """Lines that took much longer: one by one, or as periods."""
        import numpy as np

        excess = self.taken - self.level * self.count
        spread = WORD_SIGMA * float(np.median(np.abs(excess - np.median(excess))))
        least = max(MIN_OUTLIER_STEPS * self.usual, OUTLIER_SIGMAS * spread, 3 * self.tick)
        outliers = np.flatnonzero(excess >= least)
        rows: list[dict[str, Any]] = []
        is_periodic = np.zeros(len(excess), bool)
        for _ in range(MAX_PERIODS):
            found = self._period(outliers[~is_periodic[outliers]], excess)
            if found is None:
                break
            period, lines = found
            is_periodic[lines] = True
            if not self._is_of_a_slow_stretch(lines):
                rows.append(self._periodic(period, lines, excess))
        share_ns = MIN_STALL_RATIO * float(self.taken.sum())
        long_ns = max(MIN_STALL_STEPS * self.usual, min(float(MIN_STALL_NS), share_ns))
        large_ns = max(MIN_LARGE_STALL_STEPS * self.usual, float(MIN_LARGE_STALL_NS), share_ns)
        limit = max(min(long_ns, large_ns), least)
        long = np.flatnonzero((excess >= limit) & ~is_periodic)
        if not len(long):
            return rows
        for run in np.split(long, np.flatnonzero(np.diff(long) > 1) + 1):
            if len(run) > 1 and float(excess[run].max()) < long_ns:
                continue  # several in a row may be a level, of which so few lines tell nothing
            first, last = int(run[0]), int(run[-1])
            steps = int(self.count[first : last + 1].sum())
            rows.append(
                _row(
                    "stall",
                    int(self.step[first] - self.own_count[first] + 1),
                    int(self.step[last]),
                    self._times(first, last),
                    dur_ns=float(self.taken[first : last + 1].sum()) / steps,
                    usual_ns=float(np.median(self.level[first : last + 1])),
                    lost_ns=float(excess[first : last + 1].sum()),
                    **phases.beside(self.phases, run),
                )
            )
        return rows

    def _period(self, outliers: Ints, excess: Floats) -> tuple[float, Ints] | None:
        """A distance in steps at which most outliers of a kind return, and the lines that do.

        Hiccups at any time stand among them, so the kinds are asked in turn: all of them, those
        with a checkpoint or an evaluation before them, and the longest of them, ever fewer.
        """
        import numpy as np

        kinds = [outliers]
        told = [
            outliers[is_before[outliers]]
            for name, is_before in self.phases.items()
            if name in phases.beside(self.phases, outliers[is_before[outliers]])
        ]
        sizes = np.sort(excess[outliers])[::-1]
        count = len(outliers) - 1
        while count >= MIN_TIMES:
            # Where sizes part most nearby: a cut within one kind would take some of it.
            near = np.arange(max(MIN_TIMES, count // 2), min(2 * count, len(sizes) - 1) + 1)
            if len(near):
                cut = int(near[np.argmax(sizes[near - 1] / sizes[near])])
                kinds.append(outliers[excess[outliers] >= sizes[cut - 1]])
            count //= 2
        asked = [(kind, MIN_TIMES) for kind in kinds]
        asked += [(outliers, MIN_EXACT_TIMES), *((kind, MIN_TOLD_TIMES) for kind in told)]
        found = [f for kind, least in asked if (f := self._regular(kind, excess, least))]
        return max(found, key=lambda f: float(excess[f[1]].sum()), default=None)

    def _regular(self, outliers: Ints, excess: Floats, least: int) -> tuple[float, Ints] | None:
        """The distance at which these return, and those without the ones unlike them. Fewer than
        ``MIN_TIMES`` must all return at it."""
        import numpy as np

        if len(outliers) < least:
            return None
        usual = float(np.median(excess[outliers]))
        is_alike = excess[outliers] < UNLIKE_RATIO * usual
        outliers = outliers[is_alike & (excess[outliers] > usual / UNLIKE_RATIO)]
        distances = np.diff(self.step[outliers])
        if len(distances) < least - 1:
            return None
        period = float(np.median(distances))
        per_line = float(np.median(self.count))
        if period < 2 * per_line:
            return None
        off = np.abs(distances - np.maximum(1, np.rint(distances / period)) * period)
        is_regular = off <= max(per_line, PERIOD_TOLERANCE * period)
        is_few = len(outliers) < MIN_TIMES
        if is_few and (distances > period + max(per_line, PERIOD_TOLERANCE * period)).any():
            return None
        enough = 1.0 if is_few else MIN_REGULAR_RATIO
        return (period, outliers) if is_regular.mean() >= enough else None

    def _is_of_a_slow_stretch(self, lines: Ints) -> bool:
        """Whether nearly all of these lie where steps are slow anyway: what makes all of them slow
        makes some slower yet (each worker's batch in its turn)."""
        import numpy as np

        return any(
            float(self.level[first]) >= MUCH_SLOWER_RATIO * self.usual
            and np.mean((lines >= first) & (lines < last)) >= MIN_REGULAR_RATIO
            for first, last in self._bounds()
        )

    def _clock_period_ns(self, lines: Ints) -> int | None:
        """The part of a day after which these lines return at one time of it, where it is one: what
        returns by steps alone comes earlier or later each time."""
        import numpy as np

        begins = np.array([self._times(int(line), int(line))[0] for line in lines])
        if len(lines) < MIN_TIMES or begins.min() < 0:
            return None
        slack = CLOCK_SLACK_NS + CLOCK_SLACK_STEPS * self.usual
        for period in CLOCK_PERIODS_NS:
            turns = np.rint((begins - begins[0]) / period)
            off = np.abs(begins - begins[0] - turns * period)
            is_each = (np.diff(turns) == 1).mean() >= MIN_REGULAR_RATIO
            if is_each and (off <= slack).mean() >= MIN_REGULAR_RATIO:
                return period
        return None

    def _periodic(self, period: float, lines: Ints, excess: Floats) -> dict[str, Any]:
        import numpy as np

        first, last = int(lines[0]), int(lines[-1])
        return _row(
            "periodic",
            int(self.step[first]),
            int(self.step[last]),
            self._times(first, last),
            dur_ns=float(np.median(self.taken[lines] / self.count[lines])),
            usual_ns=self.usual,
            lost_ns=float(excess[lines].sum()),
            period_count=period,
            times_count=len(lines),
            clock_period_ns=self._clock_period_ns(lines),
            **phases.beside(self.phases, lines),
        )


def _likeness(rest: Floats) -> float:
    """How much neighbours resemble each other, 0 to 0.95: such tell less than as many that do
    not."""
    import numpy as np

    return float(np.clip((rest[1:] * rest[:-1]).sum() / max((rest**2).sum(), 1e-9), 0, 0.95))


def _stamp_tick(lines: Lines, spent: Floats, at: Ints) -> float:
    """What a line's time may be off beside a stated duration, in ns: lines with whole seconds are
    up to one later, or earlier, than they say. 0 where the times are all that is known."""
    import numpy as np

    wall = lines.wall[at]
    known = np.isfinite(wall)
    if not known.any() or np.allclose(spent[known], wall[known], rtol=1e-9):
        return 0.0
    return float(SECOND_NS) if not np.any(wall[known] % SECOND_NS) else 0.0


def _tick(lines: Lines) -> float:
    """The clock's step in ns: that of which all times are multiples; 0 for stated durations."""
    import numpy as np

    wall = lines.wall[np.isfinite(lines.wall)]
    known = np.isfinite(lines.dur) & np.isfinite(lines.wall)
    if not len(wall) or not np.array_equal(
        lines.dur[known] * lines.count[known], lines.wall[known]
    ):
        return 0.0
    for tick in (SECOND_NS, HOURS_TICK_NS, SECOND_NS // 1000):
        if not np.any(wall % tick):
            return float(tick)
    return 0.0
