"""What tests of rules about pipelines share: rows of stages, bubbles and microbatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracekit.rules import rule
from tracekit.rules.base import Facts

MakeJob = Callable[..., Any]


STAGES, BUBBLE, SEQUENCE = (
    rule(n) for n in ("stage-imbalance", "excess-bubble", "sequence-imbalance")
)


MS = 1_000_000


def stage_rows(*compute_ms: float, **changed: Any) -> list[dict[str, Any]]:
    """Stages by their compute of a microbatch; the median is taken as 10 ms."""
    return [
        {
            "stage": stage,
            "attempt": 1,
            "ranks": [stage],
            "compute_ns": ms * MS,
            "compute_ratio": ms / 10,
            "forward_ratio": ms / 10,
            "backward_ratio": ms / 10,
            "steps_count": 10,
            "slow_steps_count": 10 if ms >= 11 else 0,
            "microbatches_count": 4.0,
            "replicas_count": 1,
            **changed,
        }
        for stage, ms in enumerate(compute_ms)
    ]


def bubble_rows(*idle_ratio: float, window_ms: float = 80.0) -> list[dict[str, Any]]:
    """Stages by their idle share, where the schedule makes 3/7."""
    return [
        {
            "stage": stage,
            "replica": 0,
            "step": 1,
            "attempt": 1,
            "window_ns": int(window_ms * MS),
            "busy_ns": int(window_ms * MS * (1 - idle)),
            "bubble_ratio": idle,
            "expected_bubble_ratio": 3 / 7,
            "expected_bubble_overhead_ratio": 0.75,
            "stages_count": 4,
            "microbatches_count": 4,
            "chunks_count": 1,
            "is_warmup": False,
        }
        for stage, idle in enumerate(idle_ratio)
    ]


def facts(job: Any, stages: list[Any], bubbles: list[Any], kernels_ms: int | None = None) -> Facts:
    """A job with these stages; its kernels take as much longer as the operations, or as given."""
    for row in stages:
        longer_ms = int(row["microbatches_count"] * (row["compute_ns"] / MS - 10))
        for step in job.steps if longer_ms > 0 and row["stage"] < job.ranks_count else ():
            job.add(row["stage"], step, "compute", longer_ms if kernels_ms is None else kernels_ms)
    job.rows |= {"stage_balance": stages, "bubble": bubbles}
    found: Facts = job.facts()
    return found


class Replayed:
    """A replay that knows how much a pipeline idles beyond fast hand-overs, what a stage costs that
    computes longer than the median other one, and what the same work costs that is not dealt out
    evenly, and what messages of a slow link do; and nothing else."""

    is_by_streams = is_by_operations = False
    error_ratio = 0.0
    operations_error_ratio: float | None = 0.02

    def __init__(
        self,
        beyond_ms: float | None = None,
        *,
        stage_ms: float | None = None,
        evenly_ms: float | None = None,
        messages_ms: float | None = None,
        lengths_ms: float | None = None,
    ) -> None:
        self.lengths_ms = lengths_ms
        self.messages_ms = messages_ms
        self.beyond_ms, self.stage_ms, self.evenly_ms = beyond_ms, stage_ms, evenly_ms

    def idle_beyond_hand_overs_ns(self) -> float | None:
        return None if self.beyond_ms is None else self.beyond_ms * MS

    def hand_overs_ns(self) -> float | None:
        return self.idle_beyond_hand_overs_ns()

    def saved_by_messages_ns(self, ranks: Sequence[int]) -> float | None:
        return None if self.messages_ms is None else self.messages_ms * MS

    def saved_in_operations_ns(self, rank: int, delay_ns: float) -> float | None:
        return None

    def saved_at_speed_ns(self, ranks: Sequence[int], factor: float) -> float | None:
        return None

    def saved_evenly_ns(self) -> float | None:
        return None

    def saved_ns(self, ranks: Sequence[int]) -> float | None:
        return None

    def saved_by_work_ns(self, ranks: Sequence[int]) -> float | None:
        return None

    def saved_at_most_ns(self, ranks: Sequence[int]) -> float | None:
        return None

    def saved_by_even_stages_ns(self) -> float | None:
        return None if self.evenly_ms is None else self.evenly_ms * MS

    def saved_by_even_lengths_ns(self) -> float | None:
        return None if self.lengths_ms is None else self.lengths_ms * MS

    def saved_by_stage_ns(self, stage: int) -> float | None:
        return None if self.stage_ms is None else self.stage_ms * MS

    def saved_by_operations_ns(self, rank: int) -> float | None:
        return None

    def saved_beside_replicas_ns(self, rank: int, least_ns: float) -> float | None:
        return None

    def slowdown(self, rank: int) -> float | None:
        return None


def lengths(
    job: Any,
    *,
    correlation: float | None = 0.99,
    cv: float = 0.3,
    ranks: int = 4,
    longest: tuple[int, ...] = (0, 1, 2, 3),
    lost_ms: float = 6.0,
    replicas: int = 4,
    microbatches: int = 40,
) -> Facts:
    job.rows["microbatch_correlation"] = [
        {"rank": r, "attempt": 1, "correlation_ratio": correlation if r < ranks else 0.1,
         "forward_cv_ratio": cv, "microbatches_count": microbatches}
        for r in range(4)
    ]  # fmt: skip
    job.rows["replica_balance"] = [
        {"step": s, "attempt": 1, "replicas_count": replicas, "longest_replica": one,
         "longest_ns": (50 + lost_ms) * MS, "mean_ns": 50.0 * MS}
        for s, one in enumerate(longest)
    ]  # fmt: skip
    found: Facts = job.facts()
    return found
