"""Bounds between clocks against a closure over all pairs, cubic and easy to see through."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from soaks import examples, soak
from tracekit import clock as clock_module
from tracekit.bounds import Bounds, Meetings, Search, without_own
from tracekit.clock import EARLY, LATE, MAX_SLACK_NS, UNKNOWN, Instances, align

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BASE = 1_784_602_867_000_000_000


# --- the closure over all pairs -------------------------------------------------------------------


def every_pair(groups: list[Instances], count: int) -> Floats:
    """The least room of each pair of clocks, one instance and one pair at a time."""
    rooms = np.full((count, count), np.inf)
    np.fill_diagonal(rooms, 0.0)
    for group in groups:
        for start, end in zip(group.start_ns.tolist(), group.end_ns.tolist(), strict=True):
            for i, c in enumerate(group.clocks):
                for j, d in enumerate(group.clocks):
                    is_other_way = group.is_pair and i == 1
                    if c != d and start[i] > EARLY and end[j] < LATE and not is_other_way:
                        rooms[c, d] = min(rooms[c, d], end[j] - start[i])
    return rooms


def closed(rooms: Floats) -> Floats | None:
    """Along all chains (Floyd and Warshall); None where one leads back with less than nothing."""
    rooms = rooms.copy()
    for k in range(len(rooms)):
        rooms = np.minimum(rooms, rooms[:, k : k + 1] + rooms[k])
    return None if rooms.diagonal().min() < 0 else rooms


def expected(groups: list[Instances], count: int, is_epoch: bool) -> tuple[Floats, Ints] | None:
    """Offsets, and how far each two may be apart; None where the bounds contradict each other."""
    rooms, slack = every_pair(groups, count), 0.0
    while (found := closed(rooms + slack * (1 - np.eye(count)))) is None:
        slack = max(1_000.0, slack * 2)
        if slack > MAX_SLACK_NS:
            return None
    staying, values = [0], np.zeros(count)
    moving = []
    for i in range(1, count):
        upper, lower = found[i, staying].min(), -found[staying, i].min()
        if is_epoch and lower <= 0 <= upper:
            staying.append(i)
        elif np.isfinite(upper) and np.isfinite(lower):
            moving.append(i)
    for i in moving:
        values[i] = np.rint((found[i, staying].min() - found[staying, i].min()) / 2)
    # Nothing is moved that is not bound to the reference from both sides.
    values[~(np.isfinite(found[0]) & np.isfinite(found[:, 0]))] = 0
    room = found - (values[:, None] - values[None, :])
    room = np.maximum(room, room.T) + slack
    apart = np.where(np.isfinite(room), np.ceil(room), UNKNOWN).astype(np.int64)
    np.fill_diagonal(apart, 0)
    return values, apart


def random_groups(seed: int) -> tuple[list[Instances], int]:
    """Groups of some clocks and sends between two: members that miss some, that left before they
    entered, that nothing connects; clocks off by nothing, by little and by much; now and then an
    instance that cannot be true."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 12))
    skews = rng.integers(-1, 2, count) * int(rng.choice([0, 30_000, 2_000_000, 10**10]))
    groups = []
    for _ in range(int(rng.integers(1, 7))):
        size = int(rng.integers(2, count + 1))
        clocks = rng.choice(count, size, replace=False)
        is_pair = size == 2 and bool(rng.integers(2))
        rows = int(rng.integers(1, 12))
        start = BASE + rng.integers(0, 10**6, (rows, size)) + np.arange(rows)[:, None] * 10**7
        end = start.max(axis=1, keepdims=True) + rng.integers(0, 50_000, (rows, size))
        if not rng.integers(3):
            # Beyond the last entry: no law holds, and a slack may or may not make it good.
            end -= (rng.random((rows, size)) < 0.1) * int(rng.choice([2_000, 60_000, 3_000_000]))
        shift = skews[clocks][None, :]
        start, end = start + shift, end + shift
        missing = rng.random((rows, size)) < rng.choice([0.0, 0.3])
        start[missing], end[missing] = EARLY, LATE
        ids = tuple(int(c) for c in clocks)
        groups.append(Instances(ids, start, end, np.full(rows, 8), is_pair))
    return groups, count


@pytest.mark.parametrize("by_pair", soak([4, 0, 64], fast=1))
def test_the_search_says_what_the_closure_over_all_pairs_says(
    by_pair: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``by_pair``: every group as meetings, large ones only, none."""
    monkeypatch.setattr(clock_module, "MAX_CLOCKS_BY_PAIR", by_pair)
    seen = {"contradicted": 0, "moved": 0, "slack or room": 0, "unknown": 0}
    for seed in range(examples(120, 300)):
        groups, count = random_groups(seed)
        is_epoch = bool(seed % 4)
        truth = expected(groups, count, is_epoch)
        found = align(groups, range(count), is_epoch=is_epoch)
        offsets = np.array([0] + [o.offset_ns for o in found.offsets])
        apart = np.stack([found.apart_ns(c) for c in range(count)])
        if truth is None:
            seen["contradicted"] += 1
            assert not offsets.any()
            assert (apart == np.where(np.eye(count, dtype=bool), 0, UNKNOWN)).all()
            assert {o.error_ns for o in found.offsets} == {None}
            continue
        values, farthest = truth
        assert np.abs(offsets - values).max() <= 1, seed
        assert ((apart == UNKNOWN) == (farthest == UNKNOWN)).all(), seed
        assert np.abs(apart - farthest).max() <= 1, seed
        for offset in found.offsets:
            known = int(apart[0, offset.clock_id])
            assert offset.error_ns == (None if known == UNKNOWN else known)
        # Asked for some clocks only, the search ends early and says the same.
        some = [range(count // 2), range(count // 3, count), (0, count - 1)]
        assert all(e == apart[a, b] for a, b, e in zip(*found.pairs(some), strict=True)), seed
        seen["moved"] += bool(values.any())
        seen["unknown"] += bool((farthest == UNKNOWN).any())
        seen["slack or room"] += bool(farthest.any())
    assert min(seen.values()) >= 10, seen


@pytest.mark.parametrize("seed", range(20))
def test_who_left_before_he_entered_bounds_all_but_himself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, count = int(rng.integers(1, 5)), int(rng.integers(2, 20))
    entry = rng.integers(0, 100, (rows, count)).astype(float)
    leaving: Floats = entry + np.where(
        rng.random((rows, count)) < 0.7, rng.integers(-50, 100, (rows, count)), 0
    )
    entry[rng.random((rows, count)) < 0.1] = -np.inf
    leaving[rng.random((rows, count)) < 0.1] = np.inf
    new_entry, new_leaving = without_own(entry, leaving)

    def least(into: Floats, out: Floats) -> Floats:
        rooms: Floats = (out[:, None, :] - into[:, :, None]).min(axis=0)
        return rooms

    before, after = least(entry, leaving), least(new_entry, new_leaving)
    others = ~np.eye(count, dtype=bool)
    assert (before[others] == after[others]).all()
    assert (after.diagonal() >= 0).all()


def test_a_contradiction_is_seen_long_before_every_clock_was_passed() -> None:
    """A circle of two among ten thousand clocks in a row: a few steps, not ten thousand."""
    count = 10_000
    chain = np.arange(count - 1)
    source = np.concatenate([chain, [5_000]])
    target = np.concatenate([chain + 1, [4_999]])
    room = np.concatenate([np.zeros(count - 1), [-1.0]])
    steps = 0
    step = Search.step

    def counted(self: Search, active: Ints) -> Ints:
        nonlocal steps
        steps += 1
        return step(self, active)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "step", counted)
        assert Bounds(count, source, target, room, []).solution_ns() is None
    assert steps < 10


def test_a_long_chain_is_followed_to_its_end() -> None:
    """Two operations that all share, and a row of edges that is shorter than they are."""
    count = 300
    chain = np.arange(count - 1)
    meeting = Meetings(np.arange(count), np.zeros((2, count)), np.full((2, count), 1_000.0))
    bounds = Bounds(count, chain, chain + 1, np.ones(count - 1), [meeting])
    assert Search.start(bounds, 0).least_ns.tolist() == list(range(count))
    assert Search.start(bounds, count - 1).least_ns.tolist() == [1_000.0] * (count - 1) + [0.0]
