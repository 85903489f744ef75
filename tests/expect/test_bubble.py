"""The bubble of each schedule against event simulations with F = 1, B = 2."""

from __future__ import annotations

import pytest

from tracekit.errors import UsageError
from tracekit.expect import bubble

# p, m, v, time, idle/busy
VECTORS = [
    (4, 4, 1, 21.0, 0.75),
    (4, 8, 1, 33.0, 0.375),
    (4, 16, 1, 57.0, 0.1875),
    (8, 8, 1, 45.0, 0.875),
    (8, 24, 1, 93.0, 0.2916666667),
    (8, 32, 1, 117.0, 0.21875),
    (2, 8, 1, 27.0, 0.125),
    (4, 32, 1, 105.0, 0.09375),
    (4, 8, 2, 28.5, 0.1875),
    (4, 16, 2, 52.5, 0.09375),
    (8, 32, 2, 106.5, 0.109375),
    (8, 32, 4, 101.25, 0.0546875),
    (2, 8, 2, 25.5, 0.0625),
]


@pytest.mark.parametrize(("p", "m", "v", "time", "overhead"), VECTORS)
def test_published_vectors(p: int, m: int, v: int, time: float, overhead: float) -> None:
    kinds = ("interleaved-1f1b", "looped-bfs") if v > 1 else ("gpipe", "1f1b")
    for kind in kinds:
        assert 3 * m + bubble.bubble_s(kind, p, 1.0, 2.0, chunks=v) == pytest.approx(time)
        found = bubble.bubble_overhead_ratio(kind, p, m, chunks=v)
        assert found == pytest.approx(overhead)
        ratio = bubble.bubble_ratio(kind, p, m, chunks=v)
        assert ratio == pytest.approx((p - 1) / (v * m + p - 1))
        assert ratio == pytest.approx(found / (1 + found))


@pytest.mark.parametrize(
    ("p", "m", "fraction"),
    [(4, 4, 0.428571), (4, 16, 0.157895), (8, 8, 0.466667), (8, 24, 0.225806), (2, 8, 0.111111)],
)
def test_fractions(p: int, m: int, fraction: float) -> None:
    assert bubble.bubble_ratio("1f1b", p, m) == pytest.approx(fraction, abs=1e-6)


def test_zero_bubble_schedules() -> None:
    # F = B_input = W = 1: the full backward is 2, and (p-1)/3m remains.
    assert bubble.bubble_overhead_ratio("zb-h1", 4, 8) == pytest.approx(3 / 24)
    assert bubble.bubble_s("zb-2p", 4, 1.0, 2.0) == 0
    assert bubble.bubble_s("zbv", 4, 1.0, 2.0) == 0
    # (p/2 - 1)(F&B + B - 3W) with F&B = F + B.
    assert bubble.bubble_s("dualpipe", 8, 1.0, 2.0) == pytest.approx(3 * (3 + 2 - 3))
    assert bubble.bubble_s("dualpipe", 8, 1.0, 2.0, t_overlapped=2.5) == pytest.approx(4.5)


def test_what_is_no_schedule() -> None:
    with pytest.raises(UsageError):
        bubble.bubble_s("serial", 4, 1, 2)
    with pytest.raises(UsageError):
        bubble.bubble_overhead_ratio("1f1b", 4, 0)
    with pytest.raises(UsageError):
        bubble.bubble_s("1f1b", 0, 1, 2)
