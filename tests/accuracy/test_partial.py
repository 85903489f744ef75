"""Eight traces of a larger job: the truth is among the candidates, and no traced rank is accused.

``python -m accuracy.partial`` does the same with 512 ranks and more seeds.
"""

from __future__ import annotations

import pytest

from accuracy.partial import Outcome, outcome
from soaks import soak


@pytest.mark.parametrize(("layout", "seed"), soak([("ddp", 2), ("tp8", 1)], fast=[("ddp", 2)]))
def test_the_culprit_is_among_the_candidates(layout: str, seed: int) -> None:
    found = outcome("slow-gpu:1.7", layout, 32, seed)
    assert found is not None
    assert found.is_held
    assert found.is_halving
    assert found.accused == ()
    assert not set(found.candidates or ()) & set(range(8))


def test_a_healthy_job_has_no_candidates() -> None:
    found = outcome("none", "ddp", 32, 0)
    assert found is not None
    assert (found.candidates, found.accused) == (None, ())


def test_a_culprit_that_was_captured_is_no_case() -> None:
    assert outcome("slow-gpu:1.7", "ddp", 32, 0) is None


def test_what_counts_as_held_and_as_half() -> None:
    base = {"scenario": "s", "layout": "ddp", "seed": 0, "accused": ()}
    good = Outcome(culprits=(9,), candidates=(8, 9, 10), next_count=2, **base)  # type: ignore[arg-type]
    assert (good.is_held, good.is_halving) == (True, True)
    bad = Outcome(culprits=(9,), candidates=(8, 10, 11, 12), next_count=4, **base)  # type: ignore[arg-type]
    assert (bad.is_held, bad.is_halving) == (False, False)
    silent = Outcome(culprits=(9,), candidates=None, next_count=0, **base)  # type: ignore[arg-type]
    assert (silent.is_held, silent.is_halving) == (False, False)
