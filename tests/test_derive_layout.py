"""Coordinates that nobody names: who passes on to whom says chains from rings."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.derive.calls import NOBODY
from tracekit.derive.layout import _one_size, _rings, _stages

RING = {0: {1}, 1: {2}, 2: {3}, 3: {0}}
ALL = [frozenset(range(4))]


def test_a_ring_whose_members_share_their_gradients_has_places() -> None:
    assert _rings(RING, ALL) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert _stages(RING) == {}


def test_two_rings_of_a_size_are_told_apart() -> None:
    onward = {0: {2}, 2: {4}, 4: {0}, 1: {3}, 3: {5}, 5: {1}}
    assert _rings(onward, [frozenset(range(6))]) == {0: 0, 2: 1, 4: 2, 1: 0, 3: 1, 5: 2}


@pytest.mark.parametrize(
    ("onward", "reducing"),
    [
        ({}, ALL),
        (RING, []),  # each has gradients of its own: chunks of a pipeline
        (RING, [frozenset({0, 1}), frozenset({2, 3})]),
        ({0: {1}, 1: {0, 2}, 2: {1}}, ALL),  # a pipeline, there and back
        ({0: {1}, 1: {2}, 2: {3}}, ALL),  # a chain
        ({0: {1}, 1: {2}, 2: {1}}, ALL),  # no ring goes through the first
        ({0: {1}, 1: {0}}, ALL),  # two ranks may be two stages
        ({0: {1}, 1: {2}, 2: {0}, 3: {4}, 4: {5}, 5: {6}, 6: {3}}, [frozenset(range(7))]),
    ],
)
def test_what_may_be_something_else_has_no_places(
    onward: dict[int, set[int]], reducing: list[frozenset[int]]
) -> None:
    assert _rings(onward, reducing) == {}


def test_a_chain_has_stages_and_one_that_lacks_a_pair_is_another() -> None:
    assert _stages({0: {1}, 1: {2}, 2: {3}}) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert _stages({0: {1}, 1: {0, 2}, 2: {1}}) == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize(
    ("sizes", "share"),
    [([2048, 2048, 2048, 4], 0.75), ([4, 4, 4, 2048], 0.25), ([4, 4], 0.0), ([NOBODY], 0.0)],
)
def test_metrics_and_norms_of_one_size_are_no_activations(sizes: list[int], share: float) -> None:
    assert _one_size(np.array(sizes)) == share
