"""How sure a difference of mean steps is: a block bootstrap over steps, and over runs.

Steps that follow each other are alike (a slow stretch, a save in every fourth step), so they are
drawn in blocks, on a circle, as long as the cube root of their number or as the period in which
they repeat. A bootstrap of few blocks is too sure of itself: its deviations are widened as
Student's t is wider than the normal, and for the variance that blocks of a finite series lack. Of
several runs of a side, runs are drawn first, because what differs from run to run shows in no
single one; where no side has several, runs are taken to differ by ``RUN_RATIO``.

Draws depend on a side's steps alone, so swapped sides give the same interval with the other sign.

Source: Politis and Romano 1992 (circular blocks); Kuensch 1989 (block length n^(1/3)).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

CONFIDENCE = 0.95
DRAWS = 2000
MIN_STEPS = 2
"""Steps of each side below which there is no interval."""
RUN_RATIO = 0.01
"""Standard deviation of what single runs of one job differ by, over their mean step, where nothing
measures it: placement, clocks and neighbours change from run to run, and an effect of 1 % is the
least that is called one."""
MIN_PERIOD_CORRELATION = 0.5
"""Autocorrelation from which steps count as periodic."""
_FEW = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t at ``CONFIDENCE`` for one degree of freedom and up; beyond, the first term of its
expansion around the normal is within 0.2 %."""


def block_length(series: Floats) -> int:
    """Steps of a block: the cube root of their number, or the period in which they repeat."""
    import numpy as np

    count = len(series)
    usual: int = max(1, math.floor(math.cbrt(count) + 1e-9))
    centred = series - series.mean()
    power = float(centred @ centred)
    # Three blocks at least, or there is nothing to draw from.
    lags = range(2, count // 3 + 1)
    if power <= 0 or not lags:
        return usual
    correlations = [float(centred @ np.roll(centred, lag)) / power for lag in lags]
    best = int(np.argmax(correlations))
    period: int = lags[best]
    return max(usual, period) if correlations[best] >= MIN_PERIOD_CORRELATION else usual


def _student(degrees: int) -> float:
    """By how much Student's t is wider than the normal at this confidence."""
    normal = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    if degrees <= len(_FEW):
        return _FEW[max(1, degrees) - 1] / normal
    return 1 + (normal**2 + 1) / (4 * degrees)


def _of_run(parts: Floats, rng: np.random.Generator) -> Floats:
    """Deviations of a run's mean, a row a draw; ``parts`` has a row a step."""
    import numpy as np

    count = len(parts)
    length = block_length(parts.sum(axis=1))
    blocks = -(-count // length)
    starts = rng.integers(0, count, (DRAWS, blocks))
    chosen = (starts[:, :, None] + np.arange(length)).reshape(DRAWS, -1)[:, :count] % count
    flat = chosen + np.arange(DRAWS)[:, None] * count
    weights = np.bincount(flat.ravel(), minlength=DRAWS * count).reshape(DRAWS, count) / count
    deviations = weights @ parts - parts.mean(axis=0)
    widened = math.sqrt(count / max(1, count - length)) * _student(count // length - 1)
    return np.asarray(deviations * widened)


def _of_side(runs: Sequence[Floats], others: Sequence[Floats], degrees: int) -> Floats:
    """Deviations of a side's mean, a row a draw; ``others`` are the runs of the other side."""
    import numpy as np

    digest = hashlib.sha256(b"".join(np.ascontiguousarray(run).tobytes() for run in runs))
    rng = np.random.default_rng(int.from_bytes(digest.digest()[:8], "little"))
    of_runs = np.stack([_of_run(run, rng) for run in runs])
    chosen = rng.integers(0, len(runs), (DRAWS, len(runs)))
    steps = of_runs[chosen, np.arange(DRAWS)[:, None]].mean(axis=1)
    # A single run says nothing of how runs differ: the other side's may.
    seen = runs if len(runs) > 1 else others
    if len(seen) < 2:
        factors = rng.normal(0.0, RUN_RATIO, DRAWS)
        return np.asarray(steps + factors[:, None] * runs[0].mean(axis=0))
    means = np.stack([run.mean(axis=0) for run in seen])
    apart = (means - means.mean(axis=0)) * math.sqrt(len(seen) / (len(seen) - 1))
    drawn = rng.integers(0, len(seen), (DRAWS, len(runs)))
    between = apart[drawn].mean(axis=1)
    return np.asarray(steps + between * _student(degrees))


def bounds(
    baseline: Sequence[Floats], candidate: Sequence[Floats]
) -> tuple[Floats, Floats, Floats]:
    """Bounds of the difference of each part, and of their sum, with ``CONFIDENCE``.

    One array a run, a row a step and a column a part. Returns the lower and the upper bounds, and
    the two of the sum. ValueError below ``MIN_STEPS``.
    """
    import numpy as np

    if any(len(run) < MIN_STEPS for run in (*baseline, *candidate)):
        raise ValueError("too few steps")
    several = [len(side) for side in (baseline, candidate) if len(side) > 1]
    degrees = sum(several) - len(several)
    draws = _of_side(candidate, baseline, degrees) - _of_side(baseline, candidate, degrees)
    measured = mean_of(candidate) - mean_of(baseline)
    tails = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    low, high = np.quantile(draws, tails, axis=0) + measured
    total = np.quantile(draws.sum(axis=1), tails) + measured.sum()
    return low, high, total


def mean_of(runs: Sequence[Floats]) -> Floats:
    """The mean of the runs' mean steps, by part: every run counts alike."""
    import numpy as np

    return np.asarray(np.mean([run.mean(axis=0) for run in runs], axis=0))
