"""What the rules about pipelines have in common: stages, bubbles, and how long a step is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from msgspec import Struct

from tracekit.rules.base import Facts, Row

NEEDS = "operations of pipeline microbatches (named ranges in a trace, or timer files)"
CAPTURE = "profile all stages with the framework's pipeline ranges, or record operation timers"


class Stage(Struct, frozen=True):
    """A stage of the pipeline: how long it computes for a microbatch."""

    stage: int
    ranks: tuple[int, ...]
    compute_ns: float
    compute_ratio: float
    forward_ratio: float
    backward_ratio: float
    steps_count: int
    slow_steps_count: int
    microbatches_count: float
    replicas_count: int


def stages(facts: Facts) -> list[Stage]:
    """The stages that were seen, where each has a time; the rule's queries must hold them."""
    return [
        Stage(
            stage=int(row["stage"]),
            ranks=tuple(int(r) for r in row["ranks"] or ()),
            compute_ns=float(row["compute_ns"]),
            compute_ratio=float(row["compute_ratio"]),
            forward_ratio=float(row["forward_ratio"] or 1.0),
            backward_ratio=float(row["backward_ratio"] or 1.0),
            steps_count=int(row["steps_count"]),
            slow_steps_count=int(row["slow_steps_count"]),
            microbatches_count=float(row["microbatches_count"] or 0.0),
            replicas_count=int(row["replicas_count"] or 1),
        )
        for row in facts.of("stage_balance")
        if row["compute_ns"] and row["compute_ratio"] is not None
    ]


def steady_bubbles(facts: Facts) -> list[Row]:
    """Rows of the query bubble that count: steady, with a window and a theory."""
    return [
        row
        for row in facts.of("bubble")
        if not row.get("is_warmup") and row["window_ns"] and row["expected_bubble_ratio"]
    ]


def mean_bubble_by_stage(bubbles: Sequence[Row]) -> Mapping[int, float]:
    """Idle over window of each stage: ratio of sums, over replicas and steps."""
    sums: dict[int, list[float]] = {}
    for row in bubbles:
        total = sums.setdefault(int(row["stage"]), [0.0, 0.0])
        total[0] += float(row["window_ns"]) - float(row["busy_ns"])
        total[1] += float(row["window_ns"])
    return {stage: idle / window for stage, (idle, window) in sorted(sums.items())}


class ScheduleBubble(Struct, frozen=True):
    """The bubble of a mean steady step: measured, and what the schedule makes."""

    bubble_ratio: float
    """Idle over window."""
    bubble_overhead_ratio: float
    """Idle over busy."""
    expected_bubble_ratio: float
    expected_bubble_overhead_ratio: float
    window_ns: float
    allowed_ns: float
    """Idle time that the schedule makes with as much work: theory times busy."""
    stages_count: int
    microbatches_count: int
    chunks_count: int


def schedule_bubble(facts: Facts) -> ScheduleBubble | None:
    """The bubble over all stages, replicas and steady steps; None without a pipeline.

    Ratios are of sums. What is allowed follows from the work, not from the window, which is
    longer where something is wrong.
    """
    rows = steady_bubbles(facts)
    window_ns = sum(float(r["window_ns"]) for r in rows)
    busy_ns = sum(float(r["busy_ns"]) for r in rows)
    if not rows or busy_ns <= 0:
        return None
    overhead = fmean(float(r["expected_bubble_overhead_ratio"]) for r in rows)
    return ScheduleBubble(
        bubble_ratio=(window_ns - busy_ns) / window_ns,
        bubble_overhead_ratio=(window_ns - busy_ns) / busy_ns,
        expected_bubble_ratio=overhead / (1 + overhead),
        expected_bubble_overhead_ratio=overhead,
        window_ns=window_ns / len(rows),
        allowed_ns=overhead * busy_ns / len(rows),
        stages_count=max(int(r["stages_count"]) for r in rows),
        microbatches_count=max(int(r["microbatches_count"]) for r in rows),
        chunks_count=max(int(r["chunks_count"]) for r in rows),
    )
