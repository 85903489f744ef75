"""One clock from cause and effect: what was shifted is found within the error that is stated."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tracekit import clock as clock_module
from tracekit.clock import EARLY, LATE, UNKNOWN, Alignment, Instances, Offset, align

MS = 1_000_000
BASE = 1_784_602_867_000_000_000


def collectives(
    skews_ns: list[int],
    *,
    count: int = 200,
    transfer_ns: int = 100_000,
    drift: list[float] | None = None,
    period_ns: int = 10 * MS,
    ends: list[int] | None = None,
    seed: int = 1,
) -> Instances:
    """All-reduces of one communicator, one member a clock; ``ends`` leave so much later."""
    rng = np.random.default_rng(seed)
    members = len(skews_ns)
    due = BASE + np.arange(count)[:, None] * period_ns
    start = due + rng.integers(0, 2 * MS, (count, members))
    end = start.max(axis=1, keepdims=True) + transfer_ns + rng.integers(0, 20_000, (count, members))
    if ends is not None:
        end = end + np.array(ends)
    shift = np.array(skews_ns)[None, :]
    if drift is not None:
        shift = shift + (np.array(drift)[None, :] * (start - BASE)).astype(np.int64)
    size = np.full(count, 1 << 20, np.int64)
    return Instances(tuple(range(members)), start + shift, end + shift, size)


def run(*groups: Instances, **options: bool) -> dict[int, Offset]:
    clocks = [c for g in groups for c in g.clocks]
    first = min(int(g.start_ns[g.start_ns > EARLY].min()) for g in groups)
    last = max(int(g.end_ns[g.end_ns < LATE].max()) for g in groups)
    found = align(groups, clocks, start_ns=first, end_ns=last, **options)
    return {o.clock_id: o for o in found.offsets}


def pairs_of(found: Alignment, *groups: Iterable[int]) -> list[tuple[int, int, int]]:
    """Two clocks and how far they may be apart."""
    columns = (column.tolist() for column in found.pairs(groups))
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("skew_ms", [-50, 5, 50, 1000])
def test_a_shift_is_found_within_the_stated_error(skew_ms: int) -> None:
    found = run(collectives([0, skew_ms * MS, 0]))
    error = found[1].error_ns
    assert error is not None and error < 2 * MS
    assert abs(found[1].offset_ns + skew_ms * MS) <= error
    assert found[2].offset_ns == 0


def test_a_clock_that_may_be_right_is_not_moved() -> None:
    found = run(collectives([0, 30_000, -20_000]))
    assert {o.offset_ns for o in found.values()} == {0}
    assert all((o.error_ns or 0) >= 30_000 for o in found.values())


def test_a_member_that_always_leaves_late_is_not_shifted() -> None:
    late = collectives([0, 0, 0], transfer_ns=300 * MS, ends=[0, 72 * MS, -65 * MS])
    assert {o.offset_ns for o in run(late).values()} == {0}


def test_offsets_go_along_chains_of_groups() -> None:
    left = collectives([0, 20 * MS])
    right = collectives([20 * MS, 60 * MS], seed=2)
    right = Instances((1, 2), right.start_ns, right.end_ns, right.size_bytes)
    found = run(left, right)
    for clock, skew in ((1, 20 * MS), (2, 60 * MS)):
        error = found[clock].error_ns
        assert error is not None and abs(found[clock].offset_ns + skew) <= error


def test_what_nothing_connects_has_no_error() -> None:
    left = collectives([0, 0])
    right = Instances((2, 3), left.start_ns, left.end_ns, left.size_bytes)
    assert run(left, right)[2].error_ns is None


def test_pairs_bound_from_one_side_each() -> None:
    rng = np.random.default_rng(3)
    groups = []
    for sender, receiver in ((0, 1), (1, 0)):
        sent = BASE + np.arange(100) * 10 * MS + rng.integers(0, MS, 100)
        got = sent + rng.integers(10_000, 200_000, 100)
        skew = {0: 0, 1: 40 * MS}
        start = np.stack([sent + skew[sender], sent - MS + skew[receiver]], axis=1)
        end = np.stack([sent + MS + skew[sender], got + skew[receiver]], axis=1)
        size = np.full(100, 4096, np.int64)
        groups.append(Instances((sender, receiver), start, end, size, is_pair=True))
    found = run(*groups)[1]
    assert found.error_ns is not None and found.error_ns < MS
    assert abs(found.offset_ns + 40 * MS) <= found.error_ns


@pytest.mark.parametrize("ppm", [-100, 20, 100])
def test_drift_of_a_long_window_is_found(ppm: int) -> None:
    group = collectives(
        [0, 3 * MS], count=3000, period_ns=40 * MS, drift=[0.0, ppm * 1e-6], transfer_ns=50_000
    )
    (found,) = run(group).values()
    assert found.drift_ratio == pytest.approx(-ppm * 1e-6, abs=2e-6)
    assert found.error_ns is not None
    for moment in (group.start_ns[0, 1], group.start_ns[1500, 1], group.start_ns[-1, 1]):
        truth = -(3 * MS + ppm * 1e-6 * (moment - 3 * MS - BASE))
        stated = found.offset_ns + found.drift_ratio * (moment - found.origin_ns)
        assert abs(stated - truth) <= found.error_ns


def test_equal_ends_narrow_only_where_sizes_agree() -> None:
    group = collectives([0, 0], transfer_ns=20 * MS)
    wide = run(group)[1].error_ns
    sizes = np.where(np.arange(200) % 2, 1 << 10, 1 << 24)
    narrow = run(Instances((0, 1), group.start_ns, group.end_ns, sizes))[1].error_ns
    assert wide is not None and narrow is not None and narrow < wide / 100
    uneven = group.end_ns.copy()
    uneven[sizes > 4096, 1] += 8 * MS
    kept = run(Instances((0, 1), group.start_ns, uneven, sizes))[1].error_ns
    assert kept is not None and kept > wide / 2


def test_clocks_without_an_epoch_are_moved_to_the_middle() -> None:
    found = run(collectives([0, 10_000_000_000]), is_epoch=False)[1]
    assert found.error_ns is not None
    assert abs(found.offset_ns + 10_000_000_000) <= found.error_ns


def test_one_clock_needs_nothing() -> None:
    assert align([], [3]).offsets == []


# --- pairs of clocks ------------------------------------------------------------------------------


def rounds(clocks: tuple[int, ...], skews_ns: list[int], transfer_ns: int, seed: int) -> Instances:
    """Collectives of some clocks of a job, each entered within 2 ms and left ``transfer_ns`` after
    the last entry."""
    every = collectives(
        [skews_ns[c] for c in clocks], count=100, transfer_ns=transfer_ns, seed=seed
    )
    return Instances(clocks, every.start_ns, every.end_ns, every.size_bytes)


def two_nodes(skews_ns: list[int]) -> list[Instances]:
    """Clocks 0-3 and 4-7 meet in short operations; 0 and 4 in long ones."""
    return [
        rounds((0, 1, 2, 3), skews_ns, 50_000, 1),
        rounds((4, 5, 6, 7), skews_ns, 50_000, 2),
        rounds((0, 4), skews_ns, 3 * MS, 3),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_clocks_that_meet_in_short_operations_are_told_apart_far_from_the_reference(
    seed: int,
) -> None:
    skews = [int(s) for s in np.random.default_rng(seed).integers(-50 * MS, 50 * MS, 8)]
    groups = two_nodes(skews)
    found = align(groups, range(8), is_epoch=bool(seed % 2))
    offsets = {0: 0} | {o.clock_id: o.offset_ns for o in found.offsets}
    errors = {0: 0} | {o.clock_id: o.error_ns or 0 for o in found.offsets}
    assert min(errors[c] for c in (4, 5, 6, 7)) > 1 * MS
    for a in range(8):
        for b in range(8):
            apart = int(found.apart_ns(a)[b])
            off = (skews[a] + offsets[a]) - (skews[b] + offsets[b])
            assert abs(off) <= apart <= errors[a] + errors[b] + 2
    assert max(int(found.apart_ns(a)[b]) for a in (4, 5, 6, 7) for b in (4, 5, 6, 7)) < 200_000
    # Only clocks of one group are kept, and only where that says more than the reference does.
    kept = {(a, b): e for a, b, e in pairs_of(found, (4, 5, 6, 7), (0, 4), (0, 1, 2, 3))}
    assert {(4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)} <= set(kept)
    assert not {(a, b) for a, b in kept if a < 4 <= b}
    assert all(kept[a, b] == found.apart_ns(a)[b] for a, b in kept)


def test_the_interval_of_a_pair_is_the_shortest_way_and_no_wider_than_its_own_bounds() -> None:
    """Against bounds by hand: 1 and 2 meet, 0 meets both."""
    start = np.array([[0, 0, EARLY], [0, EARLY, 0], [EARLY, 0, 0]]) + 0
    end = np.array([[100, 300, LATE], [200, LATE, 200], [LATE, 30, 50]])
    one = Instances((0, 1, 2), start, end, np.full(3, 8))
    found = align([one], range(3))
    # 1 may exceed 0 by 100, 2 by min(200, 50 + 100); 0 may exceed 1 by min(300, 200 + 30).
    assert [found.apart_ns(c).tolist() for c in range(3)] == [
        [0, 230, 200],
        [230, 0, 50],
        [200, 50, 0],
    ]


def test_clocks_that_meet_each_other_but_not_the_reference_are_compared() -> None:
    found = align([rounds((1, 2), [0, 0, 20_000], 50_000, 1)], range(3))
    assert [o.error_ns for o in found.offsets] == [None, None]
    assert found.apart_ns(0).tolist() == [0, UNKNOWN, UNKNOWN]
    ((one, other, apart),) = pairs_of(found, (0, 1, 2))
    assert (one, other) == (1, 2)
    assert 20_000 <= apart < 200_000


def test_clocks_that_are_not_moved_are_as_far_apart_as_they_are() -> None:
    """Nothing connects 1 and 2 with the reference, so neither is moved, and they are 40 ms off."""
    found = align([rounds((1, 2), [0, 0, 40 * MS], 50_000, 1)], range(3))
    assert [o.offset_ns for o in found.offsets] == [0, 0]
    ((_, _, apart),) = pairs_of(found, (0, 1, 2))
    assert 40 * MS <= apart < 43 * MS


def test_contradicting_bounds_compare_nothing() -> None:
    start = np.array([[0, 900_000]])
    end = np.array([[100_000, 1_000_000]])
    back = Instances((0, 1), start[:, ::-1].copy(), end[:, ::-1].copy(), np.full(1, 8))
    found = align([Instances((0, 1), start, end, np.full(1, 8)), back], range(2))
    assert found.apart_ns(0)[1] == UNKNOWN
    assert pairs_of(found, (0, 1)) == []


def test_no_more_pairs_than_the_limit_and_small_groups_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock_module, "MAX_PAIRS", 6)
    found = align(two_nodes([0] * 8), range(8))
    kept = {(a, b) for a, b, _ in pairs_of(found, range(8), (4, 5, 6, 7))}
    assert kept == {(4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)}


def test_many_clocks_are_bound_by_fewer_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "MAX_ROOMS", 0)
    skews = [0, 7 * MS, -7 * MS]
    found = align([collectives(skews)], range(3))
    for offset, skew in zip(found.offsets, skews[1:], strict=True):
        assert abs(offset.offset_ns + skew) <= (offset.error_ns or 0) < 3 * MS
