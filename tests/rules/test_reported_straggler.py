"""reported-straggler: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.findings import Severity
from tracekit.rules import Facts, RuleOutcome, rule
from tracekit.rules.base import JobFacts

NAME = "reported-straggler"


def row(**more: Any) -> dict[str, Any]:
    return {
        "detector": "nvrx", "what": "score", "rank": 76, "node": "h1", "reports_count": 3,
        "worst_count": 3, "worst_value": 0.8, "best_value": 1.0, "behind_ratio": 1.25,
        "source_id": 0, "place": 4,
    } | more  # fmt: skip


def run(*rows: dict[str, Any], job: JobFacts | None = None) -> RuleOutcome:
    return rule(NAME).run(Facts(rows={"straggler_reports": rows}, job=job or JobFacts()))


def test_the_rank_that_is_the_worst_again_and_again_is_named() -> None:
    (finding,) = run(row()).findings
    assert finding.severity is Severity.MINOR
    assert (finding.scope.ranks, finding.scope.hosts) == ((76,), ("h1",))
    assert finding.summary == (
        "NVRx' straggler detector reports rank 76 on h1 as the slowest in 3 of 3 reports: score "
        "0.8, the best 1. If the others wait for it, that is up to 20 % of each step."
    )


@pytest.mark.parametrize(
    ("more", "fires"),
    [
        ({"behind_ratio": 1.1}, True),
        ({"behind_ratio": 1.09}, False),
        ({"reports_count": 2, "worst_count": 2}, False),
        ({"reports_count": 100, "worst_count": 67}, True),
        ({"reports_count": 100, "worst_count": 66}, False),
        ({"what": "clock_mhz"}, False),
        ({"what": "temperature_celsius"}, False),
    ],
)
def test_chance_and_what_is_no_speed_name_nobody(more: dict[str, Any], fires: bool) -> None:
    assert bool(run(row(**more)).findings) is fires


def test_throughput_alone_may_be_more_work_and_a_low_clock_says_that_it_is_not() -> None:
    slow = row(detector="megatron", what="throughput_tflops", node=None, worst_value=301.2,
               best_value=420.0, behind_ratio=1.39)  # fmt: skip
    (finding,) = run(slow).findings
    assert finding.severity is Severity.NOTE
    assert "more work looks the same" in finding.confidence.basis
    clock = slow | {"what": "clock_mhz", "worst_value": 1005.0, "best_value": 1980.0}
    hot = slow | {"what": "temperature_celsius", "worst_value": 88.0}
    (finding,) = run(slow, clock, hot, clock | {"rank": 9}).findings
    assert finding.severity is Severity.MINOR
    assert (
        "it has the lowest clock in 3 of 3 (1005 MHz, the highest 1980) and the highest "
        "temperature in 3 of 3 (88 degrees Celsius)"
    ) in finding.summary
    (finding,) = run(slow, clock | {"worst_count": 1}).findings
    assert "clock" not in finding.summary


def test_beside_traces_these_judge() -> None:
    assert run(row(), job=JobFacts(rank_sources={0: "env"})) == RuleOutcome()


def test_without_reports_it_is_not_checked() -> None:
    assert "straggler detector" in run().not_checked[0].needs
