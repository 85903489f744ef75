"""Made-up jobs with late ranks: rows of the queries that show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

MakeJob = Callable[..., Any]
MS = 1_000_000
STEPS = tuple(range(1, 11))


def late_job(
    make_job: MakeJob,
    delays_ms: Mapping[int, float],
    *,
    steps: range | None = None,
    peer: float | None = 1.5,
    compute: float = 1.0,
    compute_ms: Mapping[int, int] | None = None,
    stages: Mapping[int, int] | None = None,
    **options: Any,
) -> Any:
    """Ranks delay each of ``steps`` by so many ms; the others wait that long."""
    job = make_job(**options)
    total = sum(delays_ms.values()) or 1
    late = steps if steps is not None else job.steps
    for rank in range(job.ranks_count):
        own = delays_ms.get(rank, 0)
        job.rows.setdefault("straggler", []).append(
            {
                "rank": rank,
                "inflicted_wait_ns": int(own * MS * len(late) * (job.ranks_count - 1)),
                "own_inflicted_wait_ns": int(own * MS * len(late) * (job.ranks_count - 1)),
                "exposed_inflicted_wait_ns": int(own * MS * len(late) * (job.ranks_count - 1)),
                "late_count": 5 if own else 0,
                "lateness_ratio": own / total,
                "peer_ratio": (peer if own else 1.0) if peer is not None else None,
                "compute_ratio": (compute if own else 1.0) if peer is not None else None,
                "slowdown_ratio": None,
                "matched_count": 30,
                "stage": (stages or {}).get(rank),
            }
        )
        for step in late:
            if own:
                job.rows.setdefault("late_steps", []).append(late_step(rank, step, own))
                job.add(rank, step, "idle", int(own))
                job.add(rank, step, "compute", (compute_ms or {}).get(rank, 0))
    for step in late:
        for rank in range(job.ranks_count):
            if not delays_ms.get(rank):
                job.add(rank, step, "exposed_comm", int(max(delays_ms.values(), default=0)))
    job.rows["match_coverage"] = [coverage()]
    return job


def late_step(rank: int, step: int, own_ms: float) -> dict[str, Any]:
    return {
        "rank": rank,
        "capture_id": 0,
        "step": step,
        "attempt": 1,
        "own_wait_ns": int(own_ms * MS),
        "own_gap_ns": int(own_ms * MS),
        "exposed_gap_ns": int(own_ms * MS),
        "late_count": 3,
        "longest_ns": int(own_ms * MS),
        "source_id": rank,
        "place": step,
    }


def coverage(**facts: Any) -> dict[str, Any]:
    row = {
        "group_id": "g",
        "method": "order",
        "is_trusted": True,
        "reason": "all members agree",
        "calls_count": 120,
        "instances_count": 30,
        "ranks": [0, 1, 2, 3],
        "source_id": 0,
        "place": 1,
        "attempt": 1,
    }
    return row | facts


def part(
    kind: str,
    name: str = "",
    path: str = "",
    *,
    ms: float = 25.0,
    peer_ms: float = 0.0,
    steps: Sequence[int] = STEPS,
    **given: Any,
) -> dict[str, Any]:
    """A row of excess: rank 2 spends ``ms`` of a mean step on it, evenly over ``steps``."""
    share = len(STEPS) / len(steps)
    row = {
        "rank": 2,
        "peers": "stage",
        "timeline": "host",
        "kind": kind,
        "path": path,
        "name": name,
        "own_ns": ms * MS,
        "input_ratio": None,
        "peer_ns": peer_ms * MS,
        "excess_ns": (ms - peer_ms) * MS,
        "spread_ns": 0.0,
        "calls_count": 1.0,
        "peer_calls_count": 1.0 if peer_ms else 0.0,
        "usual_ns": ms * MS if len(steps) > 5 else 0,
        "over_usual_ns": 0.0 if len(steps) > 5 else ms * MS,
        "steps": list(steps),
        "steps_count": len(steps),
        "judged_steps_count": len(STEPS),
        "affected_ns": ms * share * MS,
        "affected_peer_ns": peer_ms * share * MS,
        "longest_ns": int(ms * share * MS),
        "source_id": 2,
        "place": 7,
        "attempt": 1,
    }
    return row | given
