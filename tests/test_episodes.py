"""What stands out in a history, asked of made series of steps: drifts beside a day's warmth."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tracekit.derive.episodes import DAY_NS, Lines, episodes

STEP_NS = 36 * 10**9
COUNT = 6000
"""Steps: two and a half days."""
DAYS = np.arange(COUNT) * STEP_NS / DAY_NS


def of_steps(dur: NDArray[np.float64]) -> Lines:
    """A line a step, and what each step took in nanoseconds."""
    count = len(dur)
    zeros = np.zeros(count, np.int64)
    steps = np.arange(1, count + 1)
    first = np.arange(count) == 0
    return Lines(
        zeros, steps, zeros, steps, np.cumsum(dur).astype(np.int64), np.ones(count, np.int64), dur,
        np.where(first, np.nan, dur), first, np.zeros(count, bool),
        np.zeros(count, bool),
    )  # fmt: skip


def drifts(work: NDArray[np.float64], seed: int = 3) -> list[float]:
    """Slopes a day that are told of steps that take so many times the usual."""
    noise = 1 + 0.01 * np.random.default_rng(seed).standard_normal(COUNT)
    dur = np.rint(STEP_NS * work * noise)
    return [r["per_day_ratio"] for r in episodes(of_steps(dur)) if r["kind"] == "drift"]


@pytest.mark.parametrize("hours", [0, 6, 12, 18])
def test_a_drift_is_told_beside_a_days_warmth(hours: int) -> None:
    warmth = 0.004 * np.sin(2 * np.pi * (DAYS + hours / 24))
    assert drifts(1 + 0.004 * DAYS + warmth) == [pytest.approx(0.004, rel=0.15)]


@pytest.mark.parametrize("hours", [0, 6, 12, 18])
def test_a_days_warmth_is_no_drift(hours: int) -> None:
    assert drifts(1 + 0.004 * np.sin(2 * np.pi * (DAYS + hours / 24))) == []


@pytest.mark.parametrize("at", [0.3, 0.5, 0.7])
def test_one_small_change_beside_a_days_warmth_is_no_drift(at: float) -> None:
    changed = np.where(np.arange(COUNT) < at * COUNT, 1.0, 1.008)
    assert drifts(changed + 0.002 * np.sin(2 * np.pi * DAYS)) == []


@pytest.mark.parametrize(
    ("longest_s", "count", "step_s", "is_told"),
    [
        (41, 60, 5.0, True),  # 36 s more, seven usual steps, a tenth of the log
        (24, 60, 5.0, False),  # less than four steps more
        (41, 600, 5.0, False),  # of fifty minutes no twentieth
        (60, 600, 5.0, True),  # eleven usual steps, and more than half a minute
        (2, 60, 0.3, False),  # of 20 s: a hiccup
    ],
)
def test_a_long_step_is_a_stall_by_its_steps_or_by_its_share(
    longest_s: float, count: int, step_s: float, is_told: bool
) -> None:
    took = step_s * (1 + 0.01 * np.random.default_rng(7).standard_normal(count))
    took[count // 2] = longest_s
    stalls = [r for r in episodes(of_steps(np.rint(took * 1e9))) if r["kind"] == "stall"]
    assert [r["first_step"] for r in stalls] == [count // 2 + 1] * is_told


def test_several_long_steps_in_a_row_are_no_stall_for_their_share_alone() -> None:
    took = np.array([*[1.0] * 16, *[9.0] * 4])
    assert [r for r in episodes(of_steps(took * 1e9)) if r["kind"] == "stall"] == []


@pytest.mark.parametrize(
    ("level", "begins", "is_told"),
    [
        (2.2, 2000, False),  # what every fourth step of the slow stretch takes is a part of it
        (1.4, 2000, True),  # a stretch that is a little slower does not explain them
        (2.2, 0, True),  # nor one that only some of them lie in
    ],
)
def test_what_returns_in_a_slow_stretch_alone_is_a_part_of_it(
    level: float, begins: int, *, is_told: bool
) -> None:
    """As four workers of a data loader that lack a CPU are slow, each in its turn."""
    work = np.ones(COUNT)
    work[2000:3000] = level
    work[begins:3000:8] += 5
    noise = 1 + 0.01 * np.random.default_rng(5).standard_normal(COUNT)
    told = episodes(of_steps(np.rint(STEP_NS * work * noise)))
    kinds = {row["kind"] for row in told}
    assert "slow" in kinds
    assert ("periodic" in kinds) is is_told
