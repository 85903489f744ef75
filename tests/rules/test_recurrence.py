"""How often something happens, in words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tracekit.rules.recurrence import how_often, ordinal


@pytest.mark.parametrize(
    ("steps", "count", "words"),
    [
        ([3, 7, 11], 12, "in steps 3,7,11 (3 of 12, every 4th)"),
        ([3, 7], 12, "in steps 3,7 (2 of 12)"),  # any two are at one distance
        ([3, 7, 12], 12, "in steps 3,7,12 (3 of 12)"),
        ([3, 4, 5], 12, "in steps 3-5 (3 of 12)"),
        ([3], 12, "in step 3 (1 of 12)"),
        ([3, 4], 2, "in every step"),
        ([3], 1, "in the step"),
    ],
)
def test_words(steps: Sequence[int], count: int, words: str) -> None:
    assert how_often(steps, count) == words


def test_ordinals() -> None:
    assert [ordinal(n) for n in (2, 3, 4, 11, 21)] == ["2nd", "3rd", "4th", "11th", "21st"]
