"""cross-rail-traffic: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_rules import FOUR, PAIR, Build, crossing, findings, matrix, say, text, with_traces
from tracekit.findings import Severity


def test_rails_are_left_by_a_tenth_of_the_channels(build: Build) -> None:
    (finding,) = findings("cross-rail-traffic", build(text(crossing(1))))
    assert finding.severity is Severity.NOTE  # indices may not be rails
    assert not findings("cross-rail-traffic", build(text(crossing(0))))
    assert not findings("cross-rail-traffic", build(text(crossing(1, 11))))
    # PXN lends another rank's NIC; the device that is named is the one that sends.
    assert findings("cross-rail-traffic", build(text(crossing(5, 10, "(3)"))))


def test_a_rail_is_the_gpu_a_nic_is_near_where_the_topology_is_known(build: Build) -> None:
    """h1 lists its NICs in another order: its device 1 is on the rail of h0's device 0."""
    lists = [say(FOUR, 0, "h0"), say(FOUR, 1, "h1")]
    lines = text(lists, crossing(10))
    (finding,) = findings("cross-rail-traffic", build(lines))
    assert finding.confidence.basis.startswith("device indices")
    plans = (matrix([0, 1, 2, 3]), matrix([1, 0, 2, 3], host="h1"))
    assert not findings("cross-rail-traffic", build(lines, *plans))
    straight = text(lists, crossing(0))
    (finding,) = findings("cross-rail-traffic", build(straight, *plans))
    assert finding.confidence.basis.startswith("rails by the GPU")
    # One host alone tells no rail of the other.
    assert not findings("cross-rail-traffic", build(straight, plans[1]))


@pytest.mark.parametrize(("exposed_ns", "severity"), [(10, Severity.MINOR), (9, Severity.NOTE)])
@pytest.mark.parametrize("count", [5, 4])
def test_rails_cost_where_half_cross_and_nothing_hides_it(
    exposed_ns: int, severity: Severity, count: int, build: Build
) -> None:
    facts = build(text(crossing(count)))
    overlap = [{"rank": r, "span_ns": 100, "exposed_comm_ns": exposed_ns} for r in (0, 1)]
    (finding,) = findings("cross-rail-traffic", with_traces(facts, overlap=overlap))
    assert finding.severity is (severity if count == 5 else Severity.NOTE)
    assert finding.scope.hosts == ()  # two orders that differ do not say which one is odd


def test_nccls_own_warning_of_rails_is_enough(build: Build) -> None:
    warn = ("h0:100:100 [0] net.cc:1 NCCL WARN mismatched physical devices between local "
            "(mlx5_0:1) and remote (mlx5_3:1)")  # fmt: skip
    (finding,) = findings("cross-rail-traffic", build(text(PAIR, warn)))
    assert finding.severity is Severity.MINOR
