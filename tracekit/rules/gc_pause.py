"""
What it means
    Python's garbage collector stops a rank's training loop, each rank at a moment of its own.

How it shows
    A range of garbage collection on the thread that runs the steps, with the rank's GPU idle
    meanwhile. The ranks take turns: which one is late changes from step to step. Only code that
    Python launches is hit; the backward pass is launched from C++ and is not.

Why it hurts
    A pause of 100 to 500 ms on one rank stops all of them. With many ranks some rank pauses in
    almost every step. Pauses that grow over the run mean that objects leak.

Remedy
    Switch the automatic collection off (``gc.disable()``) and collect on all ranks in the same
    step every few hundred steps; ``gc.freeze()`` after set-up makes each collection cheaper.

When this is wrong
    Sequences of unequal length also make another rank late each step, but then forward and
    backward move together and no collection is recorded: only recorded pauses count here, and
    only as far as the GPU was idle during them. The profiler's own objects lengthen collections
    while it records Python stacks.

Source
    Diagnosis D9; the OSDI'25 study of stragglers gained 12.6 % from planned collection.
"""

from __future__ import annotations

from tracekit.rules.base import Facts, Rule, RuleOutcome
from tracekit.rules.stalls import StallSummary, StallText, StallThresholds, evaluate_stalls


def _says(stall: StallSummary) -> str:
    verb = "stops" if stall.subject.startswith("Rank ") else "stop"
    return (
        f"{stall.subject} {verb} for {stall.lasts} of Python garbage collection "
        f"{stall.often}, and the job waits."
    )


TEXT = StallText(
    query="gc_pause",
    says=_says,
    noun="garbage collection",
    needs="collections recorded in a trace (annotated through gc.callbacks, or Python stacks)",
    capture="tracekit capture --what profiler",
    confirm=("run with gc.disable() for 50 steps and watch the step time and host memory",),
    remedy=(
        "gc.disable() after set-up; gc.collect() on all ranks in the same step, now and then",
        "call gc.freeze() once before training",
        "if pauses grow over the run, look for objects that are kept from step to step",
    ),
)


def evaluate(facts: Facts, limits: StallThresholds) -> RuleOutcome:
    """The ranks whose collections delay the job."""
    return evaluate_stalls(facts, limits, TEXT)


RULE = Rule(
    name="gc-pause",
    summary="Python garbage collection stops a rank, and all others wait for it.",
    owner="framework",
    thresholds=StallThresholds(),
    queries=("step_breakdown", TEXT.query),
    evaluate=evaluate,
    judges_windows=True,
    needs=TEXT.needs,
    explains=("waiting", "lateness", "stalled launches", "idle stages"),
)
