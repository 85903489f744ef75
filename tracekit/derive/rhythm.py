"""The rhythm of one regular series: its period, its steady stretches, where a repetition begins.

The period is the first lag at which the autocorrelation peaks nearly as high as anywhere and does
so again at twice the lag. It must stand out beside first-order autoregressive noise of the same
persistence, which wanders much as a loaded GPU does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.derive.coherence import vertex

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MIN_SAMPLES = 4
"""Samples of a period."""
MIN_CYCLES = 10
"""Repetitions that the readings must hold."""
FIRST_RATIO = 0.85
"""The first peak that is so high beside the highest is the period; those after repeat it."""
SURROGATES = 299
ENOUGH = 10
"""Surrogates as strong as the readings, after which no more are drawn: p is 0.033 or more then."""
STRETCH_CELLS = 64
"""Parts of the readings at whose borders a lead-in may end or a tail begin."""
MIN_STRETCH_RATIO = 0.25
"""Share of the readings that a stretch asked by itself has."""
MIN_CHANGE = 0.2
"""Likelihood that two changes gain, in nats a reading (twice): log 1.25 is what a level that moves
by one standard deviation half way gains."""
FINE = 4
"""Lags in a sample: a period is rarely a whole number of samples."""


class Rhythm(NamedTuple):
    """A rhythm, whether or not it may be called the step."""

    period_samples: float
    strength: float
    p_value: float | None
    """None where it is too weak to be asked."""


def rhythm(series: Floats, min_strength: float = 0.0) -> Rhythm | None:
    """The strongest rhythm of a regular series; None: no candidate.

    ``p_value``: how often autoregressive noise of the same persistence has one as strong, by
    surrogates drawn until ``ENOUGH`` were (the sequential test of Besag and Clifford, 1991).
    Of one below ``min_strength`` it is not asked: that takes most of the time.
    """
    import numpy as np

    from tracekit.stats import ar1

    steady = detrended(series)
    if not np.any(steady):
        return None
    found = _autocorrelation(steady)
    fundamental = _peak(found)
    if fundamental is None:
        return None
    lag, strength = fundamental
    if strength < min_strength:
        return Rhythm(_refined(found, lag), strength, None)
    rng = np.random.default_rng(20_260_721)
    phi = float(ar1(series[None, :])[0])
    walks = rng.normal(size=(SURROGATES, len(series)))
    for i in range(1, len(series)):
        walks[:, i] += phi * walks[:, i - 1]
    as_strong = 0
    p_value = None
    for tried, walk in enumerate(walks, 1):
        chance = _peak(_autocorrelation(detrended(walk)))
        as_strong += chance is not None and chance[1] >= strength
        if as_strong == ENOUGH:
            p_value = as_strong / tried
            break
    if p_value is None:
        p_value = (as_strong + 1) / (SURROGATES + 1)
    return Rhythm(_refined(found, lag), strength, p_value)


def detrended(series: Floats) -> Floats:
    """Less its running mean over twice the longest period that is looked for."""
    import numpy as np

    width = 2 * (len(series) // MIN_CYCLES) + 1
    half = width // 2
    sums = np.concatenate([[0.0], np.cumsum(series)])
    low = np.maximum(np.arange(len(series)) - half, 0)
    high = np.minimum(np.arange(len(series)) + half + 1, len(series))
    return np.asarray(series - (sums[high] - sums[low]) / (high - low))


def _autocorrelation(series: Floats) -> Floats:
    """At lags from 0 to a quarter of the length, ``FINE`` a sample, each over what overlaps."""
    import numpy as np

    n = len(series)
    spectrum = abs(np.fft.rfft(series - series.mean(), 2 * n)) ** 2
    raw = FINE * np.fft.irfft(spectrum, 2 * n * FINE)[: n * FINE // 4 + 1]
    grown = raw / (n - np.arange(len(raw)) / FINE)
    return np.asarray(grown / grown[0])


def _peak(r: Floats) -> tuple[int, float] | None:
    """The first lag that peaks nearly as high as any, and the lesser of it and its double."""
    import numpy as np

    longest = 4 * (len(r) - 1) // MIN_CYCLES
    fallen = np.flatnonzero(r < 0)
    first = max(MIN_SAMPLES * FINE - 1, int(fallen[0]) if len(fallen) else len(r))
    lags = np.arange(first, min(longest, (len(r) - 2) // 2) + 1)
    if not len(lags):
        return None
    lags = lags[(r[lags] >= r[lags - 1]) & (r[lags] >= r[lags + 1])]
    if not len(lags):
        return None
    near = np.minimum(2 * lags + np.arange(-2, 3)[:, None], len(r) - 1)
    twice = r[near].max(axis=0)
    strengths = np.minimum(r[lags], twice)
    if strengths.max() <= 0:
        return None
    at = int(np.flatnonzero(strengths >= FIRST_RATIO * strengths.max())[0])
    return int(lags[at]), float(strengths[at])


def _refined(r: Floats, lag: int) -> float:
    """The period in samples by the farthest multiple that still peaks: its error is shared."""
    import numpy as np

    period, times = lag + vertex(r, lag), 1
    while True:
        centre = round(period * 2 * times)
        reach = max(1, round(period / 4))
        if centre + reach + 1 >= len(r):
            return period / FINE
        window = r[centre - reach : centre + reach + 1]
        top = centre - reach + int(np.argmax(window))
        if r[top] < 0.5 * r[lag]:
            return period / FINE
        times *= 2
        period = (top + vertex(r, top)) / times


def stretches(series: Floats) -> list[tuple[int, int]]:
    """The longest parts between the two clearest changes of level or swing, [first, end).

    At most two that vary, each ``MIN_STRETCH_RATIO`` of all or more; none where nothing changes.
    The changes are where three normal distributions fit the readings best (maximum likelihood), so
    whether a part repeats has no say in it. What is next to a change is left out.
    """
    import numpy as np

    edges = np.unique(np.linspace(0, len(series), STRETCH_CELLS + 1).round().astype(int))
    if len(edges) <= STRETCH_CELLS or not np.any(series != series[0]):
        return []
    ones = np.concatenate([[0.0], np.cumsum(series)])[edges]
    squares = np.concatenate([[0.0], np.cumsum(series * series)])[edges]
    lengths = np.maximum(edges[None, :] - edges[:, None], 1)
    means = (ones[None, :] - ones[:, None]) / lengths
    # An idle GPU reads the same all along: a floor keeps its likelihood finite.
    floor = 1e-3 * float(np.var(series))
    spread = np.maximum((squares[None, :] - squares[:, None]) / lengths - means * means, floor)
    cost = np.where(edges[None, :] > edges[:, None], lengths * np.log(spread), 0.0)
    three = cost[0, :, None] + cost + cost[:, -1][None, :]
    three[np.tril_indices(len(edges), -1)] = np.inf
    low, high = np.unravel_index(int(three.argmin()), three.shape)
    if float(cost[0, -1] - three[low, high]) < MIN_CHANGE * len(series):
        return []
    last = len(edges) - 1
    parts = [(0, int(low)), (int(low), int(high)), (int(high), last)]
    varying = [(a, b) for a, b in parts if b - a > 2 and spread[a, b] > floor]
    inner = [(a + (a > 0), b - (b < last)) for a, b in varying]
    long_parts = [(int(edges[a]), int(edges[b])) for a, b in inner]
    long_parts = [(a, b) for a, b in long_parts if b - a >= MIN_STRETCH_RATIO * len(series)]
    return sorted(long_parts, key=lambda p: p[0] - p[1])[:2]


def boundaries(series: Floats, period: float) -> Floats:
    """Where one repetition ends and the next begins, in samples; NaN between those lost.

    Each repetition is laid over the mean of all, from 0.6 to 2.5 periods after the one before;
    what fits nowhere (an evaluation, a checkpoint) is left out.
    """
    import numpy as np

    steady = detrended(series)
    template = _repetition(steady, period)
    fine = np.arange(len(template)) / len(template) * period
    starts = np.arange(0.0, len(series) - period, 0.25)
    windows = np.interp(starts[:, None] + fine, np.arange(len(series)), steady)
    windows -= windows.mean(axis=1, keepdims=True)
    scale = np.sqrt((windows * windows).sum(axis=1) * (template * template).sum())
    fit = np.divide(windows @ template, scale, out=np.zeros(len(starts)), where=scale > 0)
    times: list[float] = []
    first = int(np.argmax(fit[: max(1, int(4 * period))]))
    at = starts[first] if len(starts) else float("inf")
    is_first = True
    while at <= len(series) - period:
        if is_first:
            times.append(float(at))
            is_first = False
        low, high = np.searchsorted(starts, [at + 0.6 * period, at + 2.5 * period])
        window = fit[low:high]
        best = float(window.max(initial=0.0))
        if best < 0.5:
            times.append(float("nan"))
            at += 2 * period
            low, high = np.searchsorted(starts, [at - 0.5 * period, at + 0.5 * period])
            if high <= low:
                break
            at = float(starts[low + int(np.argmax(fit[low:high]))])
            is_first = True
            continue
        good = np.flatnonzero(window >= max(0.5, 0.8 * best))
        # The top of the first hill that is nearly as high as any.
        end = int(good[0])
        while end + 1 < len(window) and window[end + 1] >= window[end]:
            end += 1
        at = float(starts[low + end])
        times.append(at)
    return np.array(times)


def _repetition(series: Floats, period: float) -> Floats:
    """The mean repetition, less its mean, beginning where activity is least."""
    import numpy as np

    bins = max(8, round(4 * period))
    place = ((np.arange(len(series)) % period) / period * bins).astype(int).clip(0, bins - 1)
    sums = np.bincount(place, series, bins)
    counts = np.bincount(place, minlength=bins)
    seen = np.flatnonzero(counts)
    means = np.interp(np.arange(bins), seen, sums[seen] / counts[seen])
    width = max(1, bins // 8)
    ring = np.concatenate([means, means[:width]])
    smooth = np.convolve(ring, np.ones(width) / width, "valid")[:bins]
    least = int(np.argmin(smooth)) + width // 2
    rolled = np.roll(means, -least)
    return np.asarray(rolled - rolled.mean())
