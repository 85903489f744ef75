"""How sure a difference is: what a block bootstrap must say of series that a reader can judge."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.comparison import interval

Run = np.ndarray


def run(*steps: float) -> Run:
    return np.array(steps, dtype=float)[:, None]


def noisy(mean: float, count: int = 20, seed: int = 0, spread: float = 1.0) -> Run:
    rng = np.random.default_rng(seed)
    return run(*(mean + spread * rng.standard_normal(count)))


def total(before: list[Run], after: list[Run]) -> tuple[float, float]:
    low, high = interval.bounds(before, after)[2]
    return float(low), float(high)


def test_a_difference_far_beyond_the_scatter_is_sure() -> None:
    low, high = total([noisy(100, seed=1)], [noisy(110, seed=2)])
    assert 5 < low < 10 < high < 15


def test_a_difference_within_the_scatter_may_be_chance() -> None:
    low, high = total([noisy(100, seed=1, spread=10)], [noisy(101, seed=2, spread=10)])
    assert low < 0 < high


def test_swapped_sides_give_the_same_bounds_with_the_other_sign() -> None:
    one, other = [noisy(100, seed=1)], [noisy(103, seed=2)]
    low, high = total(one, other)
    assert total(other, one) == pytest.approx((-high, -low))


def test_single_runs_may_differ_by_more_than_their_steps_show() -> None:
    """Two standard deviations of 1 % on either side are 2.8 %."""
    low, high = total([run(*[100.0] * 20)], [run(*[102.0] * 20)])
    assert low < 0 < high
    assert high - low == pytest.approx(5.6, rel=0.05)
    assert total([run(*[100.0] * 20)], [run(*[104.0] * 20)])[0] > 0


def test_few_steps_make_a_wider_interval_than_many_of_the_same_scatter() -> None:
    few = total([noisy(100, 4, 1, 10)], [noisy(100, 4, 2, 10)])
    many = total([noisy(100, 64, 1, 10)], [noisy(100, 64, 2, 10)])
    assert few[1] - few[0] > 4 * (many[1] - many[0])


def test_one_step_has_no_interval() -> None:
    with pytest.raises(ValueError, match="too few"):
        interval.bounds([run(100.0)], [noisy(100)])


def test_what_comes_every_fourth_step_is_drawn_by_fours() -> None:
    every_fourth = run(*[100.0, 100.0, 100.0, 500.0] * 4)
    assert interval.block_length(every_fourth[:, 0]) == 4
    low, high = total([run(*[100.0, 100.1] * 8)], [every_fourth])
    assert 95 < low <= high < 105


def test_rare_steps_at_any_time_prove_little() -> None:
    twice = run(*[100.0, 400.0] + [100.0] * 5 + [400.0] + [100.0] * 2)
    low, high = total([noisy(100, 10)], [twice])
    assert low < 0 < high


def test_runs_that_differ_more_than_their_steps_widen_the_interval() -> None:
    alone = total([noisy(100, seed=1)], [noisy(105, seed=2)])
    several = total(
        [noisy(100, seed=1), noisy(107, seed=3)], [noisy(105, seed=2), noisy(112, seed=4)]
    )
    assert alone[0] > 0
    assert several[0] < 0 < several[1]


def test_how_runs_of_one_side_differ_counts_for_the_single_run_of_the_other() -> None:
    baseline = [noisy(mean, seed=seed) for seed, mean in enumerate((100, 103, 106))]
    low, high = total(baseline, [noisy(106, seed=9)])
    assert low < 0 < high


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Series of 12 whose steps hang together: 95 % of 200 would be 190. Around 0, of which 1 %
    for single runs is nothing."""
    rng = np.random.default_rng(7)

    def series() -> Run:
        noise = rng.standard_normal(13)
        return run(*(noise[1:] + 0.4 * noise[:-1]))

    held = 0
    for _ in range(200):
        low, high = total([series()], [series()])
        held += low <= 0 <= high
    assert held >= 180


def test_every_run_counts_alike_however_many_steps_it_has() -> None:
    mean = interval.mean_of([run(*[10.0] * 30), run(20.0, 20.0)])
    assert mean.tolist() == [15.0]
