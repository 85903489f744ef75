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


def drifts(work: NDArray[np.float64], seed: int = 3) -> list[float]:
    """Slopes a day that are told of steps that take so many times the usual."""
    noise = 1 + 0.01 * np.random.default_rng(seed).standard_normal(COUNT)
    dur = np.rint(STEP_NS * work * noise)
    zeros = np.zeros(COUNT, np.int64)
    steps = np.arange(1, COUNT + 1)
    first = np.arange(COUNT) == 0
    lines = Lines(
        zeros, steps, zeros, steps, np.cumsum(dur).astype(np.int64), np.ones(COUNT, np.int64), dur,
        np.where(first, np.nan, dur), first, np.zeros(COUNT, bool),
        np.zeros(COUNT, bool),
    )  # fmt: skip
    return [r["per_day_ratio"] for r in episodes(lines) if r["kind"] == "drift"]


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
