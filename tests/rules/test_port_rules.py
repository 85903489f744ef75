"""Rules over port counters: fires, silent just below, exemptions, healthy twins, missing input."""

from __future__ import annotations

import pytest

from port_rules import port, run
from tracekit.rules import rule


@pytest.mark.parametrize(
    "name",
    ["slow-receiver", "pfc-storm", "nic-error", "ecn-congestion", "fabric-misconfigured"],
)
def test_each_says_what_it_needs(name: str) -> None:
    assert run([], name).not_checked[0].needs == rule(name).needs
    (other,) = run([port("p0", "rx_unknown", 5.0)], name).not_checked
    assert other.needs != rule(name).needs
