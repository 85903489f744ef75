"""Ranges are the numbers that they stand for, and no more memory than what was seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.ranges import Ranges
from tracekit.wording import ranges, runs, some_ranges


@given(st.integers(-2, 12), st.sets(st.integers(-3, 15)))
def test_they_are_the_numbers_that_a_set_would_hold(count: int, seen: set[int]) -> None:
    listed = sorted(set(range(count)) - seen)
    found = Ranges.without(count, seen)
    assert list(found) == listed == [found[i] for i in range(len(found))]
    assert (len(found), bool(found), found[:3]) == (len(listed), bool(listed), tuple(listed[:3]))
    assert [n in found for n in range(-3, 15)] == [n in listed for n in range(-3, 15)]
    assert runs(found) == runs(listed)
    assert ranges(found) == ranges(listed)
    if listed:
        assert found[-1] == listed[-1]
    with pytest.raises(IndexError):
        found[len(listed)]


def test_a_claim_of_billions_costs_nothing() -> None:
    found = Ranges.without(2**31 - 1, {0, 7})
    assert len(found) == 2**31 - 3
    assert some_ranges(found) == "1-6,8-2147483646"
