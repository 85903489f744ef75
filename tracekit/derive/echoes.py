"""Whether a period that slow sampling shows may be the echo of a faster rhythm.

A faster rhythm that is sampled regularly looks like a slow one: steps of 0.3 s at one sample a
second seem to last 3 s. A period counts only where it cannot be such an echo:

- the readings are means over their interval (SM activity, traffic, energy) and swing further than
  the mean of anything faster could: what changes between 0 and R and is M in the mean has no
  Fourier amplitude above (2 R / pi) sin(pi M / R), which is 2 M where nobody knows R; and a mean
  over one interval of d leaves sin(pi f d) / (pi f d) of it, which is most at the lowest frequency
  that could be mistaken, f = 1 / d - 1 / period; or
- GPUs that are read at different moments of the interval agree on when the period begins, which
  the echo of a faster one would not.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.derive.rhythm import MIN_SAMPLES
from tracekit.derive.signals import Readings

SPREAD_LIMIT = 0.7
"""Resultant of the moments of sampling from which they count as spread out."""
SWING_CYCLES = 8
"""Repetitions of which the swing is taken at a time."""
AGREE_LIMIT = 0.9
"""Resultant of the GPUs' phases from which they agree."""


def is_too_large_for_an_echo(
    readings: Sequence[Readings], period: float, interval: float, ceiling: float
) -> bool:
    """Whether the usual GPU swings further than the means of anything faster could."""
    import numpy as np

    cycles = 1 - interval / period  # of the lowest frequency that looks the same, in an interval
    left = np.sin(np.pi * cycles) / (np.pi * cycles)
    beyond = []
    for gpu in readings:
        # Steps wander: over the whole job they are out of phase, over a few they are not.
        edges = np.arange(gpu.times[0], gpu.times[-1] + period, SWING_CYCLES * period)
        cuts = np.searchsorted(gpu.times, edges)
        swings, means = [], []
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            if high - low < MIN_SAMPLES * SWING_CYCLES / 2:
                continue
            part = Readings(gpu.gpu, gpu.times[low:high], gpu.values[low:high])
            power_there = abs(_fourier(part, period)) ** 2
            # What stands between its harmonics is no part of it.
            beside = [abs(_fourier(part, period / k)) ** 2 for k in (0.5, 1.5)]
            swings.append(2 * np.sqrt(max(0.0, power_there - float(np.mean(beside)))))
            means.append(float(part.values.mean()))
        if not swings:
            continue
        mean = float(np.median(means))
        # A mean beyond the ceiling is no share or power at all: the bound is at its widest.
        most = 2 * mean if np.isinf(ceiling) else 2 * ceiling / np.pi
        if 0 < mean < ceiling and not np.isinf(ceiling):
            most *= np.sin(np.pi * mean / ceiling)
        beyond.append(float(np.median(swings)) - most * left)
    return bool(beyond) and float(np.median(beyond)) > 0


def _fourier(gpu: Readings, period: float) -> complex:
    import numpy as np

    turns = np.exp(-2j * np.pi * gpu.times / period)
    return complex(np.mean((gpu.values - gpu.values.mean()) * turns))


def agree_in_phase(readings: Sequence[Readings], period: float, interval: float) -> bool:
    """Whether GPUs that are read at different moments agree on when the period begins."""
    import numpy as np

    moments = []
    for gpu in readings:
        turn = complex(np.mean(np.exp(2j * np.pi * gpu.times / interval)))
        if abs(turn) < AGREE_LIMIT:
            return False  # its moments wander: nothing is known of what an echo would do
        moments.append(turn / abs(turn))
    spread = [abs(np.mean(np.array(moments) ** k)) for k in range(1, 6)]
    if max(spread) > SPREAD_LIMIT:
        return False
    phases = np.array([_fourier(gpu, period) for gpu in readings])
    return bool(abs(np.mean(phases / abs(phases))) >= AGREE_LIMIT)
