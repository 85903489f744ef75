"""Statistics that do not lie about time series: step times beside counters.

Both are autocorrelated: a slow quarter of an hour meets a busy one by chance. Naive tests call that
a correlation in half of all cases at an autocorrelation of 0.9. So both series are prewhitened (the
part that the value before explains is taken away), ranked, and compared with shuffled ones, in
which every lag of the scan gets its chance too; many ports and counters at once are judged by
their false discovery rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

PERMUTATIONS = 9_999
LAGS = (-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5)


def ar1(series: Floats) -> Floats:
    """Autocorrelation at lag 1 of each row, within (-0.99, 0.99); 0 where nothing varies."""
    import numpy as np

    centred = series - series.mean(axis=-1, keepdims=True)
    before, after = centred[..., :-1], centred[..., 1:]
    power = (centred * centred).sum(axis=-1)
    product = (before * after).sum(axis=-1)
    phi = np.divide(product, power, out=np.zeros_like(product), where=power > 0)
    return np.asarray(np.clip(phi, -0.99, 0.99))


def prewhiten(series: Floats) -> Floats:
    """Each row less what its previous value explains; one value shorter.

    The least-squares estimate is too small in short series; the first-order correction
    (1 + 3 phi) / n of Kendall takes most of that away.
    """
    import numpy as np

    phi = ar1(series)
    n = series.shape[-1]
    phi = np.clip(phi + (1 + 3 * phi) / n, -0.99, 0.99) * (phi != 0)
    return np.asarray(series[..., 1:] - phi[..., None] * series[..., :-1])


def mid_ranks(values: Floats) -> Floats:
    """Ranks of each row from 1; equal values share the middle of their ranks."""
    import numpy as np

    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    n = values.shape[-1]
    places = np.broadcast_to(np.arange(n), values.shape)
    is_new = np.ones(values.shape, bool)
    is_new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    first = np.maximum.accumulate(np.where(is_new, places, 0), axis=-1)
    is_last = np.ones(values.shape, bool)
    is_last[..., :-1] = is_new[..., 1:]
    last = np.minimum.accumulate(np.where(is_last, places, n - 1)[..., ::-1], axis=-1)[..., ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, axis=-1)
    return ranks


def without(ranks: Floats, control: Floats) -> Floats:
    """Ranks less what a control's ranks explain of them (for a partial correlation)."""
    import numpy as np

    y = ranks - ranks.mean(axis=-1, keepdims=True)
    x = control - control.mean(axis=-1, keepdims=True)
    power = (x * x).sum(axis=-1, keepdims=True)
    slope = np.divide((x * y).sum(axis=-1, keepdims=True), power, where=power > 0,
                      out=np.zeros_like(power))  # fmt: skip
    return np.asarray(y - slope * x)


class LagResult(Struct, frozen=True):
    """The strongest correlation over the lags, and how often chance does as well."""

    rho: float
    lag: int
    """Positive: the first series (the counter) follows the second (the step time)."""
    p_value: float


class LagTest:
    """A permutation test of the strongest correlation over all lags, for series of one length.

    The shuffles are drawn once and serve every pair: that makes a thousand tests cheap and their
    p-values repeatable.
    """

    def __init__(
        self,
        length: int,
        lags: Sequence[int] = LAGS,
        permutations: int = PERMUTATIONS,
        seed: int = 20_260_721,
    ) -> None:
        import numpy as np

        self.length = length
        """Of the series before prewhitening."""
        self.lags = tuple(lag for lag in lags if abs(lag) < (length - 1) // 2)
        rng = np.random.default_rng(seed)
        base = np.tile(np.arange(length - 1, dtype=np.int32), (permutations, 1))
        self._shuffles = rng.permuted(base, axis=1)

    def __call__(self, first: Floats, second: Floats, control: Floats | None = None) -> LagResult:
        """Correlate two series; ``control`` is what both may merely follow (the load)."""
        import numpy as np

        x = mid_ranks(prewhiten(first))
        y = mid_ranks(prewhiten(second))
        if control is not None:
            load = mid_ranks(prewhiten(control))
            x, y = without(x, load), without(y, load)
        x, y = x - x.mean(), y - y.mean()
        if not x.any() or not y.any():
            return LagResult(0.0, 0, 1.0)
        shifted = self._shifted(x)
        observed = y @ shifted / np.sqrt(y @ y)
        best = int(np.argmax(np.abs(observed)))
        strongest = abs(observed[best])
        shuffled = (y[self._shuffles] @ shifted) / np.sqrt(y @ y)
        as_strong = int((np.abs(shuffled).max(axis=1) >= strongest - 1e-12).sum())
        p_value = (1 + as_strong) / (1 + len(self._shuffles))
        return LagResult(float(observed[best]), self.lags[best], p_value)

    def many(self, first: Floats, second: Floats) -> tuple[Floats, Floats]:
        """Strongest correlation and p-value of each row of two tables, all at once.

        The same test for series in which no value comes twice: their ranks are the same numbers,
        so one set of shuffled ranks serves all rows.
        """
        import numpy as np

        x = mid_ranks(prewhiten(first))
        y = mid_ranks(prewhiten(second))
        x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
        norm = np.sqrt((y * y).sum(axis=1))
        ranks = np.arange(self.length - 1) - (self.length - 2) / 2
        shuffles = ranks[self._shuffles] / np.sqrt(ranks @ ranks)
        strongest = np.zeros(len(x))
        signed = np.zeros(len(x))
        most = np.zeros((len(x), len(shuffles)))
        for lag in self.lags:
            shifted = _shifted(x, lag)
            rho = (shifted * y).sum(axis=1) / norm
            signed = np.where(np.abs(rho) > strongest, rho, signed)
            strongest = np.maximum(strongest, np.abs(rho))
            np.maximum(most, np.abs(shifted @ shuffles.T), out=most)
        as_strong = (most >= strongest[:, None] - 1e-12).sum(axis=1)
        return signed, (1 + as_strong) / (1 + len(shuffles))

    def _shifted(self, x: Floats) -> Floats:
        """A column a lag."""
        import numpy as np

        return np.stack([_shifted(x[None, :], lag)[0] for lag in self.lags], axis=1)


def _shifted(x: Floats, lag: int) -> Floats:
    """Each row moved: where the counter follows by k, its value at t + k stands at t.

    Centred and scaled over what overlaps, so that no lag has more chance than another.
    """
    import numpy as np

    n = x.shape[1]
    part = x[:, max(0, lag) : n + min(0, lag)]
    part = part - part.mean(axis=1, keepdims=True)
    norm = np.sqrt((part * part).sum(axis=1, keepdims=True))
    moved = np.zeros_like(x)
    np.divide(part, norm, out=moved[:, max(0, -lag) : n - max(0, lag)], where=norm > 0)
    return moved


def false_discovery(p_values: Sequence[float]) -> list[float]:
    """q-values of Benjamini and Hochberg: the false discovery rate at which each would count."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    q_values = [1.0] * len(p_values)
    least = 1.0
    for place in range(len(order), 0, -1):
        index = order[place - 1]
        least = min(least, p_values[index] * len(p_values) / place)
        q_values[index] = least
    return q_values


def quartile_effect(cause: Floats, effect: Floats) -> float:
    """Mean effect where the cause is in its top quarter over that in its bottom quarter, less 1.

    Equal values at a quarter's edge belong to the bottom: a counter that is mostly zero compares
    its few events with all the rest. 0 where the cause never varies.
    """
    import numpy as np

    low, high = np.quantile(cause, 0.25), np.quantile(cause, 0.75)
    top, bottom = effect[cause > high], effect[cause <= low]
    if not len(top) or not len(bottom) or bottom.mean() <= 0:
        return 0.0
    return float(top.mean() / bottom.mean() - 1)
