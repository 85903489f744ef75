"""The clock of a node's counters beside the traces': found where it can be, else unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from soaks import soak
from tracekit.derive import counter_clock
from tracekit.derive.correlation import Series
from tracekit.derive.counter_clock import Curve, curve, estimate

S = 1e9


def steps(rng: np.random.Generator, count: int, spread: float) -> tuple[Any, Any, Any]:
    """Begin and end of each step's traffic, and the end of each step: 3 s a step, or about that."""
    durations = 3 * S * rng.lognormal(0.0, spread, count)
    ends = np.cumsum(durations)
    return ends - 0.4 * durations, ends - 0.05 * durations, ends


def job(
    seed: int,
    *,
    offset_s: float = 0.0,
    interval_s: float = 1.0,
    count: int = 40,
    spread: float = 0.3,
    is_unrelated: bool = False,
    direction: str = "tx",
) -> tuple[Series, Curve, list[tuple[float, float]]]:
    """Bytes of a port whose clock is ahead, and the collectives of its host for a part of them."""
    rng = np.random.default_rng(seed)
    begin, end, ends = steps(rng, 3 * count, spread)
    first, last = ends[count - 1], ends[2 * count - 1]
    own = (begin >= first) & (end <= last)
    seen = curve(begin[own], end[own], np.ones(own.sum()))
    if is_unrelated:
        begin, end, _ = steps(rng, 3 * count, spread)
    real = curve(begin, end, np.full(len(begin), 1e9))
    times = np.arange(0, ends[-1], interval_s * S) + rng.uniform(0, interval_s * S)
    grown = np.diff(np.interp(times, real.times, real.totals))
    grown *= rng.normal(1, 0.05, len(grown))
    totals = np.concatenate([[0.0], np.cumsum(np.maximum(grown, 0))])
    port = Series("s", "p", f"{direction}_bytes", direction, times + offset_s * S, totals,
                  np.zeros(len(times)), interval_s * S)  # fmt: skip
    return port, seen, [(float(first), float(last))]


OFFSETS_S = (-45.0, -3.3, 0.0, 0.2, 7.0, 100.0)


@pytest.mark.parametrize(
    ("interval_s", "offset_s"),
    soak(
        [(interval_s, offset_s) for interval_s in (0.25, 1.0) for offset_s in OFFSETS_S],
        fast=[(0.25, -45.0), (1.0, 0.2)],
    ),
)
@pytest.mark.slow  # another job through the same lines
def test_an_offset_is_found_within_its_error(interval_s: float, offset_s: float) -> None:
    for seed in range(3):
        port, seen, spans = job(seed, offset_s=offset_s, interval_s=interval_s)
        found = estimate([(port, seen)], spans)
        assert found.offset_ns is not None and found.error_ns is not None
        assert abs(found.offset_ns - offset_s * S) <= found.error_ns <= interval_s * S
        assert found.verdict == ("off" if abs(offset_s) > 2 else "agrees")


def test_a_steady_job_s_traffic_repeats_and_tells_nothing() -> None:
    for seed in range(5):
        port, seen, spans = job(seed, offset_s=7, spread=0.0)
        found = estimate([(port, seen)], spans)
        assert (found.verdict, found.offset_ns) == ("unknown", None)
        assert "no offset stands out" in found.reason


def test_traffic_that_has_nothing_to_do_with_the_collectives_gives_no_offset() -> None:
    """The null study: of 120 jobs beside another's traffic, at most 2 may be given an offset."""
    named = 0
    for seed in range(120):
        interval_s = (1.0, 2.0, 5.0)[seed % 3]
        port, seen, spans = job(seed, interval_s=interval_s, is_unrelated=True, count=30)
        named += estimate([(port, seen)], spans).verdict != "unknown"
    assert named <= 2


def test_two_directions_that_disagree_give_no_offset() -> None:
    out, seen, spans = job(1, offset_s=20)
    back, _, _ = job(1, offset_s=-20, direction="rx")
    assert estimate([(out, seen), (out, seen)], spans).verdict == "off"
    found = estimate([(out, seen), (back, seen), (out, seen)], spans)
    assert (found.verdict, found.offset_ns) == ("unknown", None)


def test_few_readings_or_no_bytes_give_no_offset() -> None:
    port, seen, spans = job(1, count=8, interval_s=5)
    found = estimate([(port, seen)], spans)
    assert (found.verdict, found.reason) == ("unknown", "fewer than 16 readings within the traces")
    assert estimate([], spans).verdict == "unknown"


def test_traffic_flows_from_the_last_start_and_only_between_hosts() -> None:
    class Calls(dict[str, Any]):
        pass

    class Matched:
        calls = Calls(
            attempt=np.ones(6, int),
            rank=np.array([0, 1, 2, 0, 1, 2]),
            start_ns=np.array([10, 30, 20, 100, 100, 110]),
            end_ns=np.array([50, 52, 40, 120, 120, 130]),
            message_bytes=np.array([100, 100, 100, 7, 7, 7]),
        )

        def order(self) -> tuple[Any, Any]:
            return np.array([0, 1, 2, 3, 4, 5]), np.array([0, 3, 5])

    hosts = {(1, 0): "a", (1, 1): "b", (1, 2): None}
    found = counter_clock.traffic(Matched(), hosts, 10)  # type: ignore[arg-type]
    assert set(found) == {(1, "a"), (1, "b")}
    # All are there at 30, which is 20 after the origin; what begins at 100 follows.
    assert np.interp([20, 30, 40, 50], found[1, "a"].times, found[1, "a"].totals).tolist() == [
        0, 50, 100, 100]  # fmt: skip
    assert found[1, "a"].totals[-1] == pytest.approx(107)
