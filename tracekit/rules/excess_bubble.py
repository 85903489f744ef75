"""The pipeline stands idle longer than its schedule must, with stages that are alike.

What it means
  A schedule cannot avoid some idle time: (p-1)/(v m + p-1) of the window for GPipe, 1F1B and
  interleaved. Idle time beyond that is handing over between stages (the tensor group's last
  collective, the message, the first launch), or late transfers, launch gaps and pauses inside
  the pipeline.

How it shows
  Measured idle over window is at least 1.15 times the theory for as many stages, microbatches
  and chunks as were seen, while no stage computes 1.1 times the median stage. The theory hands
  over in no time, and no real job does. So the operations are replayed in their order with every
  hand-over as fast as the job's own fastest tenth: only idle time beyond that is more than this
  layout makes, and only that can be a major finding. The rest is worth knowing (interleaving, or
  sends that overlap, would save some of it) and minor at most.

Why it hurts
  Idle stages hold GPUs that do nothing. The price stated is the idle time beyond theory.

Remedy
  Overlap the transfers between stages with computation; place neighbours on one rail; look for
  pauses (input, collections) inside the pipeline. More microbatches, interleaving or a
  zero-bubble schedule lower what theory itself makes.

When this is wrong
  Where only the host was recorded, ranges include what Python does between operators, and
  nothing is claimed. Stages that were not captured change the number of stages. Warm-up steps
  are left out. With FSDP an operation may wait for the gather of its first layer before its first
  kernel: idle time too, and no fault of the schedule. A link between stages that is slow all the
  time has no fast hand-overs to be held against: that stays minor here, and shows as a slow group
  (link-degraded) or as exposed communication.

Source
  Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters (SC 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules import pipeline
from tracekit.rules.base import NO_GPU, Facts, Row, Rule, RuleOutcome
from tracekit.rules.facts import SUMMARY_QUERY
from tracekit.rules.prices import at_most
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import seconds, share


class ExcessBubbleThresholds(Thresholds):
    """When a bubble is more than its schedule makes."""

    min_theory_ratio: float = threshold(
        1.15, "measured over theory; recorded healthy pipelines reach 1.12 with launch gaps"
    )
    max_stage_ratio: float = threshold(
        1.10, "a stage this heavy explains the idle time: stage-imbalance says so"
    )
    min_impact_ratio: float = threshold(0.01, "under 1 % of the step nobody should be called")
    min_beyond_ratio: float = threshold(
        0.05,
        "share of the step beyond the schedule with the job's own fast hand-overs: as of any major"
        " finding; less is what this layout makes",
    )


def evaluate(facts: Facts, limits: ExcessBubbleThresholds) -> RuleOutcome:
    """One finding for the job, without a culprit."""
    bubbles = pipeline.steady_bubbles(facts)
    step_ns = facts.step_ns
    if not bubbles or step_ns <= 0:
        return facts.lacking(pipeline.NEEDS, pipeline.CAPTURE)
    if len(facts.steps) and not facts.has_gpu:
        return facts.lacking(*NO_GPU)
    if (
        max((s.compute_ratio for s in pipeline.stages(facts)), default=1.0)
        >= limits.max_stage_ratio
    ):
        return RuleOutcome()
    measured = fmean(float(r["bubble_ratio"]) for r in bubbles)
    theory = fmean(float(r["expected_bubble_ratio"]) for r in bubbles)
    window_ns = fmean(float(r["window_ns"]) for r in bubbles)
    # Idle time that theory allows for this much work, not for this long a window.
    busy_ns = fmean(float(r["busy_ns"]) for r in bubbles)
    allowed_ns = busy_ns * fmean(float(r["expected_bubble_overhead_ratio"]) for r in bubbles)
    excess_ns = window_ns - busy_ns - allowed_ns
    if measured < limits.min_theory_ratio * theory:
        return RuleOutcome()
    if excess_ns < limits.min_impact_ratio * step_ns:
        return RuleOutcome()
    beyond_ns = facts.replay.idle_beyond_hand_overs_ns() if facts.replay is not None else None
    return RuleOutcome(findings=(_finding(facts, limits, bubbles, excess_ns, beyond_ns, step_ns),))


def _finding(
    facts: Facts,
    limits: ExcessBubbleThresholds,
    bubbles: Sequence[Row],
    excess_ns: float,
    beyond_ns: float | None,
    step_ns: float,
) -> Finding:
    measured = fmean(float(r["bubble_ratio"]) for r in bubbles)
    theory = fmean(float(r["expected_bubble_ratio"]) for r in bubbles)
    stages = max(int(r["stages_count"]) for r in bubbles)
    microbatches = max(int(r["microbatches_count"]) for r in bubbles)
    scope = facts.scope(facts.ranks, facts.steps.keys)
    impact = facts.impact(at_most(excess_ns, "recorded time", beyond_ns or 0.0))
    is_more = beyond_ns is not None and beyond_ns >= limits.min_beyond_ratio * step_ns
    return facts.finding(
        scope,
        f"Pipeline stages stand idle for {share(measured)} of the window, {stages} stages and "
        f"{microbatches} microbatches make {share(theory)}: {seconds(excess_ns / 1e9)} a step "
        f"is more than the schedule needs{_hand_over_words(beyond_ns)}.",
        (
            Evidence.ratio(
                "idle over window", measured, limits.min_theory_ratio * theory, "bubble"
            ),
            Evidence.ratio("idle over window that the schedule makes", theory, None, "bubble"),
            *_beyond_evidence(limits, beyond_ns, step_ns),
        ),
        by=["GPU timeline"],
        basis="one kind of evidence; what fills the gaps is not told apart",
        impact=impact,
        cap=Severity.MAJOR if is_more else Severity.MINOR,
        confirm=("tracekit whatif RUN --remove comm=pp   says how much of it is transfers",),
        remedy=(
            "overlap sends and receives with computation; keep stage neighbours on one rail",
            "more microbatches, interleaved chunks or a zero-bubble schedule",
        ),
    )


def _hand_over_words(beyond_ns: float | None) -> str:
    """How much the excess is beside real hand-overs, to end the sentence."""
    if beyond_ns is None:
        return "; what handing over between stages takes is not known"
    return f" ({seconds(beyond_ns / 1e9)} beyond what handing over takes at its fastest)"


def _beyond_evidence(
    limits: ExcessBubbleThresholds, beyond_ns: float | None, step_ns: float
) -> tuple[Evidence, ...]:
    if beyond_ns is None:
        return ()
    return (
        Evidence.seconds(
            "a step's idle time beyond the schedule and fast hand-overs, by replay",
            beyond_ns,
            limits.min_beyond_ratio * step_ns,
            "bubble",
        ),
    )


RULE = Rule(
    name="excess-bubble",
    summary="Pipeline stages stand idle longer than the schedule makes.",
    owner="framework",
    thresholds=ExcessBubbleThresholds(),
    queries=("step_breakdown", SUMMARY_QUERY, "bubble", "stage_balance"),
    evaluate=evaluate,
    cap=Severity.MAJOR,
    blames="nobody",
    needs=pipeline.NEEDS,
    symptom_of=("idle stages",),
)
