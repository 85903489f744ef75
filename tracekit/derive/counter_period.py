"""The period that one counter of all devices shows, or why it shows none.

All GPUs of a job do the same together: the mean of their standardised readings repeats with the
step. What a collector samples too slowly it cannot show: a period needs four samples, and ten
repetitions, and must be no echo of something faster (``echoes``).

A job loads and compiles before it repeats itself, and stops before its collector does. What stands
before and after is told by its level and its swing alone (never by whether it repeats), and the
stretches between the two clearest changes are asked before all readings together are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit.derive.coherence import coherent
from tracekit.derive.echoes import agree_in_phase, is_too_large_for_an_echo
from tracekit.derive.rhythm import MIN_CYCLES, MIN_SAMPLES, boundaries, detrended, rhythm, stretches
from tracekit.derive.signals import (
    MIN_TRAFFIC,
    SIGNALS,
    Readings,
    interval_s,
    moving_of,
    standardised,
    together,
)
from tracekit.wording import plural, some

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MIN_STRENGTH = 0.4
"""Autocorrelation at the period and at twice the period: what is weaker has no clear boundaries."""
MAX_P_VALUE = 0.01
MIN_FOUND = 0.8
"""Share of the time, from the first repetition to the last, in which they are alike."""
ALIKE = 0.25
"""How far from the period, as a share of it, such a repetition is: a reading, where four make it.
"""
MAX_LONE = 16
"""Devices without company whose own period is asked."""
SAME_PERIOD = 0.02
"""Two periods, or a whole multiple of one and the other, that differ by no more are one."""


class Part(Struct, frozen=True):
    """Devices that do the same at the same moments, and their rhythm."""

    row: dict[str, Any]
    """Of ``activity_period``."""
    starts: Floats
    """Where its repetitions begin, s of its first device's clock; NaN between those lost."""
    lags: dict[str, float]
    """By device: s by which it is behind the first."""
    nodes: dict[str, str]
    """By device: its machine."""

    def lag_of(self, node: str) -> float | None:
        """The same of a machine's devices; None where it has none here."""
        from statistics import median

        lags = [lag for device, lag in self.lags.items() if self.nodes[device] == node]
        return median(lags) if lags else None

    @property
    def is_periodic(self) -> bool:
        """Whether its period may be called the step."""
        return bool(self.row["verdict"] == "steps")


class CounterPeriod(Struct, frozen=True):
    """What one counter of all devices shows."""

    row: dict[str, Any]
    starts: Floats
    parts: tuple[Part, ...] = ()
    """That which shows the period first; several periodic ones have no period in common."""

    nodes: frozenset[str] = frozenset()
    """Machines whose devices vary."""

    @property
    def covered_ratio(self) -> float:
        """Share of those machines that show a period."""
        periodic = {n for part in self.parts if part.is_periodic for n in part.nodes.values()}
        return len(periodic) / len(self.nodes) if self.nodes else 0.0


def no_period(reason: str, **more: Any) -> dict[str, Any]:
    """A row of ``activity_period`` that says why there is no period."""
    row: dict[str, Any] = dict.fromkeys(
        ("counter", "period_ns", "interval_ns", "strength_ratio", "p_value")
    )
    return row | {"gpus_count": 0, "steps_count": 0, "verdict": "none", "reason": reason} | more


def period_of(readings: Sequence[Readings], counter: str, ceiling: float) -> CounterPeriod:
    """What one counter of all devices shows of a period."""
    import numpy as np

    nothing = np.zeros(0)
    name = SIGNALS[counter].name
    interval = interval_s(readings)
    if interval is None:
        most = max((len(r.times) for r in readings), default=0)
        if most == 1:
            return CounterPeriod(
                no_period(f"{name} was read once: a period needs many readings"), nothing
            )
        if most:
            return CounterPeriod(
                no_period(f"{name} was read {most} times and never changed"), nothing
            )
        return CounterPeriod(
            no_period(f"{name} was sampled, but not at times that can be compared"), nothing
        )
    moving = moving_of(readings, counter)
    grid, mean = together(moving, interval) if moving else (nothing, nothing)
    for low, high in stretches(mean):
        first, last = float(grid[low]), float(grid[high - 1])
        within = [r.between(first, last) for r in moving]
        cut = [r for r in within if len(r.times) > 1]
        # Two stretches at most, so together they are asked at the level of one.
        within_period = _judged(cut, counter, ceiling, interval, MAX_P_VALUE / 2)
        if any(part.is_periodic for part in within_period.parts):
            begun = float(grid[0])
            within_period.row["reason"] += (
                f" from {first - begun:.3g} s to {last - begun:.3g} s of "
                f"{float(grid[-1]) - begun:.3g} s, around which it is otherwise"
            )
            return within_period
    return _judged(moving, counter, ceiling, interval, MAX_P_VALUE)


def _judged(
    readings: Sequence[Readings], counter: str, ceiling: float, interval: float, max_p_value: float
) -> CounterPeriod:
    """The same of one stretch: of each group of devices that go together, else of all."""
    moving = moving_of(readings, counter)
    nodes = frozenset(reading.node for reading in moving)
    groups = _groups(moving, interval) if len(moving) > 1 else []
    known = [group for group in groups if len(group) > 1 or len(groups) == len(moving) < 3]
    parts = [_part(group, counter, ceiling, interval, max_p_value) for group in known]
    parts.sort(key=lambda part: (not part.is_periodic, -len(part.lags)))
    periodic = [part for part in parts if part.is_periodic]
    if not periodic:
        # Noise may hide from each pair of devices what all together show.
        whole = _part([(r, 0.0) for r in moving], counter, ceiling, interval, max_p_value)
        if whole.is_periodic:
            return CounterPeriod(whole.row, whole.starts, (whole,), nodes)
    if 2 * sum(len(part.lags) for part in periodic) <= len(moving):
        # Two of many that happen to agree are not the job, where others have periods of theirs.
        lone = [group for group in groups if group not in known][:MAX_LONE]
        own = [_part(group, counter, ceiling, interval, max_p_value) for group in lone]
        asked = [*periodic, *(part for part in own if part.is_periodic)]
        if not all(have_one_period(asked[0], part) for part in asked):
            parts, periodic = [*asked, *(p for p in parts if not p.is_periodic)], asked
    if not periodic:
        return CounterPeriod(whole.row, whole.starts, (whole,), nodes)
    first = periodic[0]
    others = [part for part in periodic[1:] if not have_one_period(first, part)]
    if others:
        said = some([f"{_few(p)} every {p.row['period_ns'] / 1e9:.3g} s" for p in (first, *others)])
        about = {k: first.row[k] for k in ("counter", "interval_ns")}
        row = no_period(f"{SIGNALS[counter].name} has no common period: {said}", **about)
        return CounterPeriod(
            row | {"gpus_count": len(moving)}, first.starts[:0], tuple(parts), nodes
        )
    row = dict(first.row)
    together_count = sum(len(part.lags) for part in periodic)
    if together_count < len(moving):
        row["reason"] += f" ({together_count} of the {len(moving)} that vary)"
    return CounterPeriod(row, first.starts, tuple(parts), nodes)


def _few(part: Part) -> str:
    """Whose devices, and how many."""
    counts = Counter(part.nodes.values())
    return some([f"{count} of {node}" for node, count in sorted(counts.items())])


def have_one_period(part: Part, other: Part) -> bool:
    """Whether they are the same, or whole multiples of each other, within what they are exact."""
    short, long = sorted((part.row["period_ns"], other.row["period_ns"]))
    times = round(long / short)
    return bool(abs(long / short / times - 1) <= SAME_PERIOD)


def _groups(moving: Sequence[Readings], interval: float) -> list[list[tuple[Readings, float]]]:
    """Devices that go together, each with what it is behind the group's first, in s."""
    import numpy as np

    grid, rows, _ = standardised(moving, interval)
    if len(grid) < MIN_SAMPLES * MIN_CYCLES:
        return []
    steady = np.array([detrended(row) for row in rows])
    return [[(moving[m.at], m.lag * interval) for m in group] for group in coherent(steady)]


def _part(
    members: Sequence[tuple[Readings, float]],
    counter: str,
    ceiling: float,
    interval: float,
    max_p_value: float,
) -> Part:
    """The rhythm of devices whose lags are known."""
    import numpy as np

    nothing = np.zeros(0)
    name = SIGNALS[counter].name
    lags = {reading.gpu: lag for reading, lag in members}
    nodes = {reading.gpu: reading.node for reading, _ in members}
    moving = [replace(r, times=r.times - lag) for r, lag in members]
    about: dict[str, Any] = {
        "counter": counter,
        "interval_ns": interval * 1e9,
        "gpus_count": len(moving),
    }

    def none(reason: str) -> Part:
        return Part(no_period(reason, **about), nothing, lags, nodes)

    if not moving:
        if SIGNALS[counter].least_spread == MIN_TRAFFIC:
            return none(f"{name} varies by less than {MIN_TRAFFIC / 1e6:.0f} MB/s")
        return none(f"{name} does not vary")
    grid, mean = together(moving, interval)
    needed = MIN_SAMPLES * MIN_CYCLES
    if len(mean) < needed:
        return none(f"{len(mean)} readings of {name}; a period needs {needed}")
    found_rhythm = rhythm(mean, MIN_STRENGTH)
    shortest = MIN_SAMPLES * interval
    if found_rhythm is None or found_rhythm.p_value is None or found_rhythm.p_value > max_p_value:
        if found_rhythm is not None:
            about |= {"strength_ratio": found_rhythm.strength, "p_value": found_rhythm.p_value}
        return none(
            f"{name} has no clear period: sampled every {interval:.3g} s it would show steps from "
            f"{shortest:.3g} s on, and shorter ones not"
        )
    period = found_rhythm.period_samples * interval
    about |= {
        "period_ns": period * 1e9,
        "strength_ratio": found_rhythm.strength,
        "p_value": found_rhythm.p_value,
    }
    is_mean = SIGNALS[counter].is_mean
    is_large = is_mean and is_too_large_for_an_echo(moving, period, interval, ceiling)
    unmoved = [reading for reading, _ in members]
    if not is_large and not agree_in_phase(unmoved, period, interval):
        return none(
            f"{name} repeats every {period:.3g} s, but sampled every {interval:.3g} s so do "
            f"steps of {1 / (1 / interval - 1 / period):.3g} s and shorter ones"
        )
    starts = boundaries(mean, found_rhythm.period_samples) * interval + float(grid[0])
    durs = np.diff(starts)
    alike_s = float(durs[abs(durs / period - 1) <= ALIKE].sum())
    if not alike_s or alike_s < MIN_FOUND * float(np.nanmax(starts) - np.nanmin(starts)):
        return none(
            f"{name} repeats every {period:.3g} s in the mean, but most of its repetitions are "
            "not alike: layers or microbatches within longer steps may do so"
        )
    of = plural(len(moving), "port" if SIGNALS[counter].is_port else "GPU")
    about |= {"verdict": "steps", "reason": f"the period of {name} of {of}"}
    return Part(no_period("") | about, starts, lags, nodes)
