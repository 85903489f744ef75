"""Rules over port counters: fires, silent just below, exemptions, healthy twins, missing input."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.findings import Finding, Severity
from tracekit.rules import Facts, RuleOutcome, rule
from tracekit.rules.base import UNPROVED


def port(name: str, counter: str, growth: float | None, **more: Any) -> dict[str, Any]:
    """A row of port_counters: a switch's port that leads to the host of its number."""
    number = int(name[-1])
    row = {
        "node": "sw",
        "port": name,
        "host": f"h{number}",
        "host_source": "job_toml",
        "rank": number,
        "ranks": [number],
        "is_on_host": False,
        "counter": counter,
        "direction": counter[:2],
        "priority": None,
        "queue": None,
        "lane": None,
        "unit": "packets",
        "samples_count": 20,
        "interval_ns": 1e9,
        "growth": growth,
        "total_growth": growth,
        "grown_count": 5,
        "intervals_count": 19,
        "coverage_ratio": 1.0,
        "resets_count": 0,
        "last_value": growth,
        "is_from_documentation": False,
        "source_id": 0,
        "place": number,
        "attempt": 1,
    }
    return row | more


def fabric(drops: dict[str, float], packets: float = 100_000, **more: Any) -> list[dict[str, Any]]:
    """Four ports that each sent so many packets, and what they dropped."""
    return [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "tx_dropped_packets", drops.get(f"p{i}", 0.0), **more),
            port(f"p{i}", "tx_packets", packets, **more),
        )
    ]


def run(rows: list[dict[str, Any]], name: str = "packet-loss") -> RuleOutcome:
    return rule(name).run(Facts(rows={"port_counters": rows}))


def only(outcome: RuleOutcome) -> Finding:
    assert not outcome.not_checked
    (finding,) = outcome.findings
    return finding


def test_without_counters_or_with_others_it_says_what_it_needs() -> None:
    assert run([]).not_checked[0].needs == rule("packet-loss").needs
    (other,) = run([port("p0", "tx_bytes", 5.0)]).not_checked
    assert "of this kind" in other.needs
    (once,) = run([port("p0", "tx_dropped_packets", None)]).not_checked
    assert "one reading" in once.needs
    (late,) = run(fabric({"p1": 500}, coverage_ratio=0.4)).not_checked
    assert "from the time of the job" in late.needs


def test_the_port_that_drops_is_named_with_its_rank() -> None:
    finding = only(run(fabric({"p1": 5000})))
    assert finding.id == "packet-loss/1"
    assert finding.scope.links == ("sw:p1",)
    assert finding.scope.hosts == ("h1",)
    assert finding.scope.ranks == (1,)
    assert finding.summary == (
        "The port sw:p1 towards rank 1 (h1) drops 4.8 % of its packets (5,000) while the job "
        "runs; the other 3 ports none."
    )
    assert finding.severity is Severity.NOTE  # what it costs only the traces say


@pytest.mark.parametrize(
    ("drops", "packets", "fires"),
    [
        (10, 99_990, True),
        (10, 100_000, False),  # under one in 10,000
        (9, 1_000, False),  # too few to be more than chance
    ],
)
def test_a_little_loss_is_none(drops: float, packets: float, fires: bool) -> None:
    assert bool(run(fabric({"p1": drops}, packets)).findings) is fires


def test_loss_everywhere_accuses_no_port() -> None:
    finding = only(run(fabric({f"p{i}": 500 + i for i in range(4)})))
    assert finding.id == "packet-loss/all"
    assert len(finding.scope.links) == 4


def test_an_interface_and_its_queue_count_one_drop_once() -> None:
    rows = fabric({"p1": 50}, 1000)
    rows.append(port("p1", "tx_queue_dropped_packets", 50.0))
    finding = only(run(rows))
    assert next(e for e in finding.evidence if e.unit == "packets").value == 50


def test_on_a_host_s_nic_what_is_received_comes_towards_it() -> None:
    rows = [r | {"is_on_host": True} for r in fabric({"p1": 5000})]
    assert only(run(rows)).summary.startswith("The NIC sw:p1 of rank 1 drops")


def test_a_port_that_leads_nowhere_known_names_no_rank() -> None:
    rows = [r | {"host": None, "rank": None, "ranks": None} for r in fabric({"p1": 5000})]
    finding = only(run(rows))
    assert finding.scope.ranks == ()
    assert finding.id == "packet-loss/sw:p1"


def test_a_format_that_no_real_file_proved_says_so() -> None:
    finding = only(run(fabric({"p1": 5000}, is_from_documentation=True)))
    assert [e.name for e in finding.counter_evidence] == [UNPROVED]
    assert finding.severity is Severity.NOTE
