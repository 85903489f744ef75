"""How often something happens, and how regularly: words that every rule of stalls shares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tracekit.wording import some_ranges


def how_often(steps: Sequence[int], judged_count: int) -> str:
    """``in steps 3,7,11 (3 of 12, every 4th)``: which steps, how many, and how regular.

    Regular are three or more at one distance: any two are.
    """
    if len(steps) == judged_count:
        return "in every step" if judged_count > 1 else "in the step"
    words = "step" if len(steps) == 1 else "steps"
    return f"in {words} {some_ranges(steps)} ({how_many(steps, judged_count)})"


def how_many(steps: Sequence[int], judged_count: int) -> str:
    """``3 of 12, every 4th``: the same without the steps' numbers."""
    distance = period(steps)
    regular = f", every {ordinal(distance)}" if distance is not None else ""
    return f"{len(steps)} of {judged_count}{regular}"


def period(steps: Sequence[int]) -> int | None:
    """The one distance of three or more steps, beyond one; None where there is none."""
    distances = [b - a for a, b in pairwise(steps)]
    is_regular = len(distances) > 1 and len(set(distances)) == 1 and distances[0] > 1
    return distances[0] if is_regular else None


def ordinal(number: int) -> str:
    """``2nd``, ``4th``, ``11th``."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"
