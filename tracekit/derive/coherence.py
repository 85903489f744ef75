"""Which devices do the same at the same moments, but for a shift of their clocks.

Devices of one job rise and fall together; those of another job, or of none, do not. Devices are
taken in order: each joins the group whose mean it follows best at some lag, or begins another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MIN_COHERENCE = 0.5
"""Correlation with a group's mean from which a device follows it."""
AT_ONCE = 0.9
"""Of the highest correlation: what is so high without a shift needs none."""
BATCH_COUNT = 16
"""Groups that a device is compared with at a time: more would only take more memory."""
MAX_LAG_RATIO = 0.25
"""Longest shift that is tried, as a share of the readings."""


class Member(Struct, frozen=True):
    """A device of a group."""

    at: int
    """Row of the device."""
    lag: float
    """Samples by which it is behind the group's first device."""


def coherent(rows: Floats) -> list[list[Member]]:
    """Groups of rows (devices x samples, each about zero, zero where nothing was read)."""
    import numpy as np

    norms = np.sqrt((rows * rows).sum(axis=1))
    reach = int(MAX_LAG_RATIO * rows.shape[1])
    size = quick_size(rows.shape[1] + reach)  # room for the longest shift that is tried
    groups: list[list[Member]] = []
    means: list[Floats] = []
    # Where no device follows another there are as many groups as devices, and all pairs are
    # looked at: each row and each mean is transformed once, not once a pair.
    references = np.zeros((len(rows), size // 2 + 1), np.complex128)
    for at in np.flatnonzero(norms).tolist():
        row = rows[at] / norms[at]
        spectrum = np.fft.rfft(row, size)
        best, where = 0.0, 0.0
        chosen = -1
        for first in range(0, len(groups), BATCH_COUNT):
            some = references[first : min(first + BATCH_COUNT, len(groups))]
            by_lag = np.fft.irfft(spectrum * some, size)
            ahead = by_lag[:, size - reach :].max(axis=1, initial=0.0)
            highest = np.maximum(by_lag[:, : reach + 1].max(axis=1), ahead)
            for number in np.flatnonzero(highest >= MIN_COHERENCE).tolist():
                strength, lag = strongest(by_lag[number], reach)
                if strength > best:
                    best, where, chosen = strength, lag, first + number
        if best < MIN_COHERENCE:
            references[len(groups)] = np.conj(spectrum)
            groups.append([Member(at, 0.0)])
            means.append(row)
            continue
        groups[chosen].append(Member(at, where))
        mean = means[chosen] = means[chosen] + moved(row, round(where))
        references[chosen] = np.conj(np.fft.rfft(mean, size)) / np.sqrt((mean * mean).sum())
    return groups


def quick_size(least: int) -> int:
    """The next length without a prime factor above 5: a length of large primes is transformed
    several times as slowly, and the next power of two may be twice as long."""
    size = max(least, 1)
    while True:
        left = size
        for prime in (2, 3, 5):
            while left % prime == 0:
                left //= prime
        if left == 1:
            return size
        size += 1


def strongest(r: Floats, reach: int) -> tuple[float, float]:
    """The highest of correlations by lag, and the samples by which the row is behind there.

    ``r``: by samples behind; below zero from the end, as of a circle. ``reach``: the longest shift.
    """
    import numpy as np

    near = np.concatenate([r[len(r) - reach :], r[: reach + 1]])
    top = int(np.argmax(near))
    if r[0] >= AT_ONCE * near[top]:
        return float(r[0]), 0.0
    return float(near[top]), top - reach + vertex(near, top)


def vertex(series: Floats, at: int) -> float:
    """How far from ``at`` a parabola through it and its neighbours has its top, -0.5..0.5."""
    if not 0 < at < len(series) - 1:
        return 0.0
    before, here, after = (float(v) for v in series[at - 1 : at + 2])
    bend = before - 2 * here + after
    return 0.5 * (before - after) / bend if bend < 0 else 0.0


def moved(row: Floats, behind: int) -> Floats:
    """The row as it would be without that lag; what nobody read is zero."""
    import numpy as np

    if not behind:
        return row
    out = np.zeros_like(row)
    if behind > 0:
        out[:-behind] = row[behind:]
    else:
        out[-behind:] = row[:behind]
    return out


def gridded(
    times: Sequence[Floats], values: Sequence[Floats], grid: Floats, interval: float
) -> tuple[Floats, NDArray[np.bool_]]:
    """Values on a grid (devices x samples), and where somebody read within 1.5 intervals."""
    import numpy as np

    rows = np.zeros((len(times), len(grid)))
    seen = np.zeros(rows.shape, bool)
    for at, (device_times, read) in enumerate(zip(times, values, strict=True)):
        after = np.searchsorted(device_times, grid).clip(1, len(device_times) - 1)
        near = np.minimum(abs(device_times[after] - grid), abs(grid - device_times[after - 1]))
        seen[at] = near <= 1.5 * interval
        rows[at] = np.interp(grid, device_times, read)
    return rows, seen
