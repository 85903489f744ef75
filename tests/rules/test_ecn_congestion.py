"""ecn-congestion: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from port_rules import marked, only
from tracekit.rules import Facts, rule


@pytest.mark.parametrize(
    ("ratio", "verdict", "fires"),
    [
        (0.05, "cause", True),
        (0.049, "cause", False),
        (0.5, "none", False),  # marks are how congestion control works
        (0.5, "symptom", False),
        (0.5, "not_testable", False),
    ],
)
def test_marks_are_congestion_only_where_steps_are_slower(
    ratio: float, verdict: str, fires: bool
) -> None:
    outcome = rule("ecn-congestion").run(marked(ratio, verdict))
    assert bool(outcome.findings) is fires
    if fires:
        assert outcome.findings[0].confidence.level == "likely"


@pytest.mark.parametrize(("met", "is_fabric"), [(1, False), (2, True), (4, True)])
def test_marks_at_most_hosts_are_the_fabric_and_blame_no_rank(met: int, is_fabric: bool) -> None:
    rows, tests = [], []
    for i in range(4):
        one = marked(0.3 if i < met else 0.0, "cause").rows
        rows += [{**r, "port": f"p{i}", "host": f"h{i}", "rank": i, "ranks": [i]}
                 for r in one["port_counters"]]  # fmt: skip
        tests += [{**t, "port": f"p{i}"} for t in one["network_correlation"]]
    facts = Facts(rows={"port_counters": rows, "network_correlation": tests})
    finding = only(rule("ecn-congestion").run(facts))
    assert finding.id == ("ecn-congestion/fabric" if is_fabric else "ecn-congestion/0")
    assert finding.scope.ranks == (() if is_fabric else (0,))
    assert len(finding.scope.links) == met
