"""What tests of rules over port counters share: rows of ports, and of a fabric of them."""

from __future__ import annotations

from typing import Any

from tracekit.findings import Finding
from tracekit.rules import Facts, RuleOutcome, rule


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
        "step_growth": growth,
        "step_covered_ns": 19e9,
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


SPAN_US = 19 * 1e6


"""The rows' 19 intervals of a second, in microseconds."""


def pausing(
    name: str, share: dict[str, float], *, is_on_host: bool = False
) -> list[dict[str, Any]]:
    """Four ports that paused for these shares of the time, as a counter of durations has it."""
    return [
        port(f"p{i}", name, share.get(f"p{i}", 0.0) * SPAN_US, is_on_host=is_on_host, unit="us")
        for i in range(4)
    ]


def marked(ratio: float, verdict: str) -> Facts:
    rows = [
        port("p1", "tx_queue_ecn_marked_packets", ratio * 1000),
        port("p1", "tx_packets", 1000.0),
    ]
    test = {
        "node": "sw", "port": "p1", "counter": "tx_queue_ecn_marked_packets", "verdict": verdict,
        "rho": 0.6, "q_value": 0.01, "cost_ratio": 0.2, "reason": "load controlled for",
    }  # fmt: skip
    return Facts(rows={"port_counters": rows, "network_correlation": [test]})


def held_back(make_job: Any, shaper: float, comm_ms: int = 60) -> Facts:
    """Four NICs of 50 MB/s, one behind a shaper, each sending 1.2 MB in steps of 100 ms."""
    job = make_job(ranks_count=4, comm_ms=comm_ms)
    rates = {"p0": shaper, "p1": 50e6, "p2": 50e6, "p3": 50e6}
    job.rows["port_counters"] = [port(name, "tx_bytes", 19 * 12e6) for name in rates]
    job.rows["port_levels"] = [
        {"node": "sw", "port": name, "counter": "tx_shaper_rate", "max_value": rate, "attempt": 1,
         "min_value": rate, "is_from_documentation": False, "source_id": 0, "place": 1}
        for name, rate in rates.items()
    ]  # fmt: skip
    facts: Facts = job.facts()
    return facts
