"""Idle time of devices that waits for launches, as rules share it."""

from __future__ import annotations

from collections import defaultdict

from tracekit.rules.base import Facts, Row

QUERY = "idle_breakdown"


def launch_wait_ns(facts: Facts, row: Row) -> float:
    """Waiting for launches. In a window without steps anything may lie between them (requests that
    do not come, imports): there long waits are for something else."""
    other_ns = float(row["host_pause_ns"] or 0) if facts.is_window else 0.0
    return float(row["host_wait_ns"] or 0) - other_ns


def launch_wait_shares(facts: Facts) -> dict[int, float]:
    """Share of each rank's idle time that waits for a launch, over its devices as a whole."""
    waiting: dict[int, float] = defaultdict(float)
    idle: dict[int, float] = defaultdict(float)
    for row in facts.of(QUERY):
        if row["stream"] is None:
            waiting[int(row["rank"])] += launch_wait_ns(facts, row)
            idle[int(row["rank"])] += float(row["idle_ns"] or 0)
    return {rank: waiting[rank] / ns for rank, ns in idle.items() if ns > 0}
