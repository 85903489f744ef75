"""What tests of rules about shared links share: ports, uplinks and classes of traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conftest import JobRows
from msgspec.structs import replace

from tracekit.findings import Finding
from tracekit.rules import Facts, RuleOutcome

MakeJob = Callable[..., JobRows]


SPAN_S = 19.0


"""The rows' 19 intervals of a second."""


GBIT = 1e9


def port(name: str, counter: str, growth: float, **more: Any) -> dict[str, Any]:
    """A row of port_counters: the leaf's port towards the rank of its number; hosts of two."""
    number = int(name[-1])
    return {
        "node": "leaf",
        "port": name,
        "host": f"h{number // 2}",
        "host_source": "job_toml",
        "rank": number,
        "ranks": [number],
        "is_on_host": False,
        "counter": counter,
        "direction": counter[:2] if counter[:2] in ("rx", "tx") else None,
        "priority": None,
        "queue": None,
        "interval_ns": 1e9,
        "growth": growth,
        "intervals_count": 19,
        "coverage_ratio": 1.0,
        "step_growth": growth,
        "step_covered_ns": SPAN_S * 1e9,
        "is_from_documentation": False,
        "source_id": 0,
        "place": number,
    } | more


def job_of(make_job: MakeJob, rows: list[dict[str, Any]], **more: Any) -> Facts:
    """Four ranks on two hosts; 40 of 100 ms are transfers that nothing hides, in four calls."""
    job = make_job(4, comm_ms=40)
    job.rows["port_counters"] = rows
    job.rows["match_coverage"] = [{"group_id": "g", "ranks": [0, 1, 2, 3], "is_trusted": True}]
    job.rows["group_bandwidth"] = [
        {
            "group_id": "g", "timeline": "device", "transfer_p50_ns": 10e6, "instances_count": 40,
            "transfer_mean_ns": 10e6, "transfer_p25_ns": 10e6,
            "steps_count": 10, "stuck_ns": 0.0,
        }
    ]  # fmt: skip
    job.rows["port_levels"] = [
        {"node": "leaf", "port": f"p{i}", "counter": "link_speed", "max_value": 200 * GBIT,
         "is_from_documentation": False}
        for i in range(4)
    ]  # fmt: skip
    for name, listed in more.items():
        job.rows[name] = listed
    return job.facts()


def only(outcome: RuleOutcome) -> Finding:
    assert not outcome.not_checked
    (finding,) = outcome.findings
    return finding


def crowd(
    marked: float = 0.05, others: float = 0.0, held: float = 0.01, host: float = 0.0,
    senders: int = 2, **more: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Marks towards rank 3; the ports of ranks 0 and 1 are told to pause."""
    rows = []
    for i in range(4):
        share = marked if i == 3 else others
        rows += [
            port(f"p{i}", "tx_packets", 1e6),
            port(f"p{i}", "tx_bytes", 4e9),
            port(f"p{i}", "tx_queue_ecn_marked_packets", share * 1e6, **more),
            port(f"p{i}", "tx_pfc_duration", held * SPAN_S * 1e6 if i < senders else 0.0),
            port(f"p{i}", "rx_pfc_duration", host * SPAN_S * 1e6 if i == 3 else 0.0),
        ]
    return rows


def uplinks(
    *shares: float, entered: float = 1e9, far: str | None = "spine"
) -> list[dict[str, Any]]:
    """A leaf that sends so many bytes up each uplink, and gets so many from the job's ports."""
    nobody = {"host": far, "rank": None, "ranks": None}
    rows = [port(f"u{i}", "tx_bytes", s, **nobody) for i, s in enumerate(shares)]
    rows += [port(f"p{i}", "rx_bytes", entered / 4) for i in range(4)]
    below = {"node": "spine", "host": "leaf", "rank": None, "ranks": None}
    return [*rows, port("d0", "rx_bytes", sum(shares), **below)]


def classes(foreign: dict[int, float], own: float = 1e9, **more: Any) -> list[dict[str, Any]]:
    """Bytes a second of queue 3 (the job's) and queue 0 towards each rank."""
    rows = []
    for i in range(4):
        other = foreign.get(i, 0.0)
        rows += [
            port(f"p{i}", "tx_queue_bytes", own * SPAN_S, queue=3, **more),
            port(f"p{i}", "tx_queue_bytes", other * SPAN_S, queue=0, **more),
            port(f"p{i}", "tx_bytes", (own + other) * SPAN_S),
        ]
    return rows


NAME = "storage-interference"


def unmatched(
    make_job: MakeJob, rows: list[dict[str, Any]], called_ms: float, waited_ms: float
) -> Facts:
    """The same job beside a rank without a trace: no call has all its members."""
    waits = {
        "traced_ranks": [0, 1, 2, 3], "missing_ranks": [4], "call_per_step_ns": called_ms * 1e6,
        "wait_per_step_ns": waited_ms * 1e6,
    }  # fmt: skip
    facts = job_of(make_job, rows, absent_waits=[waits], group_bandwidth=[])
    return replace(facts, job=replace(facts.job, world_size=5))


COLLIDED = uplinks(4e8, 0.0, 2e8, 2e8, entered=4e9)


"""Of each rank 1 GB in 19 s, which needs 0.26 ms of a step of 100 ms at 0.8 of 25 GB a second."""
