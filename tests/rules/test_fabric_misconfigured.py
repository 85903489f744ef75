"""fabric-misconfigured: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from port_rules import port, run
from tracekit.rules import Facts, RuleOutcome, rule


def test_no_notices_where_control_is_off_everywhere_accuse_nobody() -> None:
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "np_ecn_marked_packets", 5000.0, direction=None),
            port(f"p{i}", "np_cnp_sent", 0.0, direction=None),
        )
    ]
    assert run(rows, "fabric-misconfigured") == RuleOutcome()
    rows[1] |= {"growth": 5000.0}
    found = run(rows, "fabric-misconfigured").findings
    assert [f.scope.ranks for f in found] == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("sizes", "odd"),
    [
        ([9000, 1500, 9000], (1,)),
        ([9000, 9000, 9000], None),
        ([9000, 1500], None),
        ([9000, 1500, 9000, None], (1,)),
        ([9000, 1500, None], None),
        ([None, None, None], None),
    ],
)
def test_the_port_with_another_mtu_is_named(
    sizes: list[int | None], odd: tuple[int, ...] | None
) -> None:
    """None: read, but not while the job ran."""
    rows = [port(f"p{i}", "tx_bytes", 1.0) for i in range(len(sizes))]
    levels = [
        {"node": "sw", "port": f"p{i}", "counter": "mtu", "last_value": size}
        for i, size in enumerate(sizes)
    ]
    facts = Facts(rows={"port_counters": rows, "port_levels": levels})
    outcome = rule("fabric-misconfigured").run(facts)
    assert [f.scope.ranks for f in outcome.findings] == ([odd] if odd else [])
