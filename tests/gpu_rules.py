"""What tests of rules over GPU counters share: rows of the queries that these read."""

from __future__ import annotations

from typing import Any

from tracekit.findings import Finding
from tracekit.rules import Facts, RuleOutcome, rule

GPUS = 4


MHZ = 1e6


def named(index: int, **more: Any) -> dict[str, Any]:
    """How every query names a GPU."""
    return {
        "gpu_id": f"h0 GPU {index}",
        "host": "h0",
        "gpu_index": index,
        "pci": None,
        "model": "A",
        "rank": None,
        "rank_source": None,
        "host_ranks": [0, 1],
        "source_id": 0,
        "place": index,
        "attempt": 1,
    } | more


def gauge(
    index: int, counter: str, value: float, peers: float | None, **more: Any
) -> dict[str, Any]:
    """A row of gpu_counters: a GPU that shows the same value in every moment."""
    ratio = value / peers if peers else None
    row = named(index) | {
        "counter": counter,
        "unit": "",
        "samples_count": 10,
        "min_value": value,
        "p50_value": value,
        "max_value": value,
        "last_value": value,
        "peer_group": "A",
        "peers_count": GPUS - 1 if peers is not None else 0,
        "moments_count": 10 if peers is not None else 0,
        "peer_value": peers,
        "peer_ratio": ratio,
        "total_ratio": ratio,
        "below_ratio": float(value <= 0.95 * peers) if peers is not None else None,
        "above_ratio": float(value >= 1.05 * peers) if peers is not None else None,
        "highest_ratio": float(value >= peers) if peers is not None else None,
        "busy_below_ratio": float(value <= 0.95 * peers) if peers is not None else None,
        "busy_peer_ratio": ratio,
    }
    return row | more


def reason(index: int, event: str, active: int, held: float | None = None) -> dict[str, Any]:
    """A row of gpu_throttle: so many of 100 samples, or a share of the time by a counter."""
    return named(index) | {
        "event": event,
        "samples_count": 100,
        "active_count": active,
        "active_ratio": active / 100,
        "held_ns": None if held is None else held * 1e10,
        "held_ratio": held,
    }


def growth(index: int, counter: str, grown: float | None) -> dict[str, Any]:
    return named(index) | {
        "counter": counter, "growth": grown, "samples_count": 2, "last_value": grown,
        "peer_group": "H100",
    }  # fmt: skip


def xid(index: int, number: int, **more: Any) -> dict[str, Any]:
    row = named(index) | {"xid": number, "time_ns": 5, "is_in_window": True, "severity": "error"}
    return row | more


def run(name: str, **rows: list[dict[str, Any]]) -> RuleOutcome:
    return rule(name).run(Facts(rows=rows))


def only(outcome: RuleOutcome) -> Finding:
    assert not outcome.not_checked
    (finding,) = outcome.findings
    return finding


ALL = ("thermal-throttle", "power-brake", "gpu-memory-fault", "pcie-degraded", "nvlink-fault",
       "gpu-outlier")  # fmt: skip


HOT = [
    *(gauge(i, "sm_clock", 1980 * MHZ, 1980 * MHZ) for i in range(3)),
    gauge(3, "sm_clock", 1170 * MHZ, 1980 * MHZ),
    gauge(3, "gpu_temperature", 91, 60),
]


def link(width: float, peers: float | None, busy: float) -> list[dict[str, Any]]:
    return [
        gauge(3, "pcie_width", width, peers),
        gauge(3, "pcie_width_max", 16, 16),
        gauge(3, "gpu_utilisation", busy, None),
    ]


def temperatures(own: float, others: float = 45.0) -> list[dict[str, Any]]:
    cool = [
        gauge(i, "gpu_temperature", others + i - 1, others, highest_ratio=0.0) for i in range(3)
    ]
    return [*cool, gauge(3, "gpu_temperature", own, others)]


def active(ratio: float = 1.4, below: float = 0.0, **more: Any) -> list[dict[str, Any]]:
    """Four GPUs; the last is so many times as active as the others."""
    found = [gauge(i, "sm_active", 0.6, 0.6) for i in range(3)]
    own = gauge(3, "sm_active", 0.6 * ratio, 0.6) | {"below_ratio": below}
    return [*found, own | more]


SLOW = gauge(3, "sm_clock", 1500 * MHZ, 1980 * MHZ)
