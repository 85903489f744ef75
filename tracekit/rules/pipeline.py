"""What the rules about pipelines have in common: stages, bubbles, and how long a step is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tracekit.rules.base import Facts, Row

NEEDS = "operations of pipeline microbatches (named ranges in a trace, or timer files)"
CAPTURE = "profile all stages with the framework's pipeline ranges, or record operation timers"


@dataclass(frozen=True)
class Stage:
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


def step_ns(facts: Facts, bubbles: Sequence[Row]) -> float:
    """Length of a mean steady step; of the mean window where timers give no steps; else 0."""
    if facts.steps.step_ns:
        return facts.steps.step_ns
    return fmean(float(row["window_ns"]) for row in bubbles) if bubbles else 0.0


def mean_bubble_by_stage(bubbles: Sequence[Row]) -> Mapping[int, float]:
    """Idle over window of each stage: ratio of sums, over replicas and steps."""
    sums: dict[int, list[float]] = {}
    for row in bubbles:
        total = sums.setdefault(int(row["stage"]), [0.0, 0.0])
        total[0] += float(row["window_ns"]) - float(row["busy_ns"])
        total[1] += float(row["window_ns"])
    return {stage: idle / window for stage, (idle, window) in sorted(sums.items())}
