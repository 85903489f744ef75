"""Statistics of time series: known values, and how often chance is called a cause."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tracekit import stats

Floats = NDArray[np.float64]


def autocorrelated(phi: float, rows: int, length: int, seed: int) -> Floats:
    """Rows of an AR(1) process in its steady state."""
    noise = np.random.default_rng(seed).standard_normal((rows, length + 300))
    series = np.zeros_like(noise)
    for t in range(1, noise.shape[1]):
        series[:, t] = phi * series[:, t - 1] + noise[:, t]
    return series[:, 300:]


def wilson_upper(hits: int, trials: int, z: float = 1.959964) -> float:
    """Upper end of Wilson's 95 % interval of a share."""
    share = hits / trials
    centre = share + z * z / (2 * trials)
    spread = z * ((share * (1 - share) + z * z / (4 * trials)) / trials) ** 0.5
    return float((centre + spread) / (1 + z * z / trials))


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_chance_is_called_a_correlation_no_more_often_than_said(
    phi: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """The null study: both series autocorrelated and unrelated, 11 lags scanned, level 5 %."""
    trials, length = 2_000, 200
    first = autocorrelated(phi, trials, length, seed=1)
    second = autocorrelated(phi, trials, length, seed=2)
    _, p_values = stats.LagTest(length, permutations=999).many(first, second)
    hits = int((p_values <= 0.05).sum())
    upper = wilson_upper(hits, trials)
    with capsys.disabled():
        print(  # noqa: T201  # the study's figures are part of its result
            f"\nnull study: phi {phi}, n {length}, {trials} trials: false positives "
            f"{hits / trials:.3f}, at most {upper:.3f} (95 %)"
        )
    assert upper <= 0.10
    assert hits / trials >= 0.02  # a test that never speaks passes the study and is of no use


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_a_real_effect_is_found_at_every_autocorrelation(phi: float) -> None:
    cause = autocorrelated(phi, 200, 200, seed=3)
    effect = autocorrelated(phi, 200, 200, seed=4) + 0.4 * cause
    _, p_values = stats.LagTest(200, permutations=999).many(cause, effect)
    assert (p_values <= 0.05).mean() >= 0.95


def test_without_prewhitening_half_of_all_chances_would_pass() -> None:
    """What the study is worth: the same test on raw ranks fails it."""
    length, trials = 200, 300
    first = stats.mid_ranks(autocorrelated(0.9, trials, length, seed=5))
    second = stats.mid_ranks(autocorrelated(0.9, trials, length, seed=6))
    rho = [np.corrcoef(a, b)[0, 1] for a, b in zip(first, second, strict=True)]
    naive = np.mean(np.abs(rho) > 1.96 / np.sqrt(length))
    assert naive > 0.3


def test_one_pair_and_many_are_the_same_test() -> None:
    first, second = autocorrelated(0.5, 5, 60, seed=7), autocorrelated(0.5, 5, 60, seed=8)
    test = stats.LagTest(60, permutations=1999)
    rhos, p_values = test.many(first, second)
    for i in range(5):
        one = test(first[i], second[i])
        assert one.rho == pytest.approx(rhos[i])
        assert one.p_value == pytest.approx(p_values[i], abs=0.03)


@pytest.mark.parametrize("lag", [-3, 0, 2])
def test_the_lag_is_found_and_its_sign_says_who_follows(lag: int) -> None:
    noise = np.random.default_rng(9).standard_normal(220)
    step = noise[10:210]
    counter = noise[10 - lag : 210 - lag]  # at t it shows what the step showed at t - lag
    found = stats.LagTest(200, permutations=199)(counter, step)
    assert found.lag == lag
    assert found.rho > 0.9
    assert found.p_value == pytest.approx(1 / 200)


def test_what_both_owe_to_the_load_is_no_correlation() -> None:
    rng = np.random.default_rng(10)
    load = rng.standard_normal(300)
    pauses, step = load + 0.5 * rng.standard_normal(300), load + 0.5 * rng.standard_normal(300)
    test = stats.LagTest(300, permutations=499)
    assert test(pauses, step).p_value <= 0.01
    assert test(pauses, step, control=load).p_value > 0.05


def test_a_counter_that_never_moves_correlates_with_nothing() -> None:
    step = np.random.default_rng(11).standard_normal(50)
    assert stats.LagTest(50, permutations=99)(np.zeros(50), step) == stats.LagResult(0.0, 0, 1.0)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_equal_values_share_the_middle_of_their_ranks(values: list[int]) -> None:
    ranks = stats.mid_ranks(np.array([values], float))[0]
    for value, rank in zip(values, ranks, strict=True):
        below = sum(v < value for v in values)
        same = sum(v == value for v in values)
        assert rank == below + (same + 1) / 2


def test_prewhitening_takes_the_autocorrelation_away() -> None:
    series = autocorrelated(0.9, 300, 200, seed=12)
    assert np.median(stats.ar1(series)) > 0.85
    assert abs(np.median(stats.ar1(stats.prewhiten(series)))) < 0.05
    assert not stats.ar1(np.ones((1, 5))).any()


def test_false_discovery_is_benjamini_and_hochberg_s() -> None:
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert stats.false_discovery(p_values) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert stats.false_discovery([]) == []
    assert stats.false_discovery([0.7]) == [0.7]


def test_the_effect_compares_quarters_and_mostly_zero_counters_their_events() -> None:
    cause = np.array([0.0] * 9 + [5.0])
    effect = np.array([1.0] * 9 + [1.5])
    assert stats.quartile_effect(cause, effect) == pytest.approx(0.5)
    assert stats.quartile_effect(np.zeros(10), effect) == 0.0
    rising = np.arange(1.0, 9.0)
    assert stats.quartile_effect(rising, rising) == pytest.approx(7.5 / 1.5 - 1)


def test_wilson_s_interval_has_its_known_value() -> None:
    assert wilson_upper(5, 100) == pytest.approx(0.1118, abs=1e-4)
