"""One clock from cause and effect: what was shifted is found within the error that is stated."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.clock import EARLY, LATE, Instances, Offset, align

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
