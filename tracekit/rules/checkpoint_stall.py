"""
What it means
    Training stands still while a checkpoint is written.

How it shows
    A range of saving (``torch.save``, distributed checkpoint, or an annotated save) on the thread
    that runs the steps, with no computation and no communication of the rank's GPU beside it; the
    step that saves is longer than the typical step. Copies to the host are part of the saving.

Why it hurts
    The whole job waits for the slowest rank's save, at every interval, for as long as it runs.

Remedy
    Save asynchronously (copy to pinned memory, write from another thread), save in shards from
    all ranks, save less often, write to faster storage.

When this is wrong
    Evaluation and logging are periodic too; only ranges that are named as saving count. An
    asynchronous save that training runs past is hidden and costs nothing. A window with a single
    checkpoint cannot tell how often one comes: that is said, and not turned into a cost.

Source
    Diagnosis D30: step excess of 5 median absolute deviations at a period, with events of saving.
"""

from __future__ import annotations

from statistics import median

from msgspec.structs import replace

from tracekit.rules.base import Facts, Rule, RuleOutcome
from tracekit.rules.stalls import (
    StallSummary,
    StallText,
    StallThresholds,
    StepDelay,
    evaluate_stalls,
    step_delays,
)
from tracekit.rules.steps import Steps
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranks_phrase, seconds


class CheckpointStallThresholds(StallThresholds):
    """When saving is a stall."""

    persistent_ratio: float = threshold(
        0.0, "two checkpoints show a period: their number in the window is the user's choice"
    )
    min_excess_mads: float = threshold(
        5.0, "median absolute deviations by which a step that saves must exceed the median (D30)"
    )


def _says(stall: StallSummary) -> str:
    return (
        f"Writing a checkpoint stops training for {stall.lasts} {stall.often}, "
        f"on {stall.subject.lower()}."
    )


TEXT = StallText(
    query="checkpoint_stall",
    says=_says,
    noun="checkpoint",
    needs="saves recorded in a trace (annotated, or Python stacks)",
    capture="profile a window that spans two checkpoints, with the save annotated",
    confirm=("skip saving for one interval: those steps should be as short as the others",),
    remedy=(
        "save asynchronously: copy to pinned host memory, write from another thread",
        "save in shards from all ranks instead of gathering on one",
        "save less often, or to faster storage",
    ),
)


def evaluate(facts: Facts, limits: CheckpointStallThresholds) -> RuleOutcome:
    """What synchronous saving costs, where a period can be seen."""
    steps = facts.steps
    if not facts.of(TEXT.query) or len(steps) < limits.min_steps_count:
        return evaluate_stalls(facts, limits, TEXT)
    delays = step_delays(steps, facts.of(TEXT.query), limits)
    if sum(1 for d in delays if d.stalls_ns) <= len(delays) / 2:
        # Where most steps save, there is no typical step without: saving counts as it is.
        delays = [_within_excess(d, steps, limits) for d in delays]
    saving = [d for d in delays if d.delay_ns >= limits.min_step_ratio * steps.step_ns > 0]
    if len(saving) == 1:
        (only,) = saving
        subject = ranks_phrase(sorted(only.stalls_ns), facts.ranks).lower()
        return facts.lacking(
            f"a second checkpoint, to know how often one comes (there is one, of "
            f"{seconds(only.delay_ns / 1e9)} in step {only.key.step}, {subject})",
            TEXT.capture,
        )
    return evaluate_stalls(facts, limits, TEXT, delays)


def _within_excess(delay: StepDelay, steps: Steps, limits: CheckpointStallThresholds) -> StepDelay:
    """The delay, no more than the step is longer than the typical one.

    A save that does not make its step an outlier was hidden behind other work.
    """
    typical = median(steps.job_durs_ns)
    deviation = median(abs(dur - typical) for dur in steps.job_durs_ns)
    excess = steps.job_dur_ns(delay.key) - typical
    if excess < limits.min_excess_mads * deviation:
        excess = 0
    return replace(delay, delay_ns=min(delay.delay_ns, max(0, round(excess))))


RULE = Rule(
    name="checkpoint-stall",
    summary="Training stands still while a checkpoint is written.",
    owner="framework",
    thresholds=CheckpointStallThresholds(),
    queries=("step_breakdown", TEXT.query),
    evaluate=evaluate,
    needs=TEXT.needs,
    explains=("waiting", "lateness", "stalled launches"),
    symptom_of=("slow saves",),
    same="ranks",
)
