"""One pipeline stage computes longer than the others, and every microbatch waits for it.

What it means
  A pipeline runs at the pace of its longest stage. If one stage has more layers, the embedding
  or the loss, all others stand idle for the difference, once for each microbatch.

How it shows
  The stage's forward and backward of a microbatch take at least 1.1 times those of the median of
  the other stages, in most steps and on most of its replicas; it has the smallest bubble while
  the others have more than the schedule makes. On GPUs half of that or more is time in kernels: a
  host that launches late stretches the operations of its stages too, and their kernels take as
  long as all.

Why it hurts
  The time from first forward to last backward is at least m times the longest stage plus what
  leads to it and away from it. The price stated is what a step takes less, by replay of its
  operations, if the stage computes as long as the median other one. Where its work is not to be
  had for less, only given to the others, a step gains less: that is the lower bound, and stands
  beside the price. Without a replay the price is m times the longest stage plus the others once,
  against the same work spread evenly.

Remedy
  Move layers away from the stage; the last one carries the loss and the output layer, the first
  the embedding. Split the vocabulary over the tensor-parallel ranks. Use an uneven layer split.

When this is wrong
  A stage with a single slow GPU looks the same where there is one replica only: compare the
  GPU's clocks before moving layers. With replicas the lower median of the stage's ranks is
  used. A host that holds whole stages and whose counters say that it is braked, hot or shared
  makes them heavy: then this is its symptom. Recomputation that only some stages do, and
  experts that draw tokens, also make stages differ.

Source
  Understanding Stragglers in Large Model Training Using What-if Analysis (OSDI 2025): the last
  stage accounts for half of the slowdown or more in 39 % of straggling jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, median_low

from tracekit.findings import Evidence, Finding, Instrument, Price
from tracekit.rules import pipeline
from tracekit.rules.base import Facts, Rule, RuleOutcome
from tracekit.rules.excess import QUERY as EXCESS
from tracekit.rules.excess import ExcessThresholds, where_it_lies
from tracekit.rules.facts import SUMMARY_QUERY
from tracekit.rules.prices import PriceThresholds, at_most, by_replay, disagreeing
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranks_phrase, seconds, share


class StageImbalanceThresholds(ExcessThresholds, PriceThresholds):
    """When a stage counts as too heavy."""

    min_stage_ratio: float = threshold(
        1.10, "its compute over the median other stage's; healthy pipelines stay within 1.03"
    )
    min_steps_ratio: float = threshold(0.80, "a layout is uneven in every step; noise is not")
    min_kernels_ratio: float = threshold(
        0.5, "of the operations' longer time, in kernels: else the launches are late, not the work"
    )
    min_impact_ratio: float = threshold(0.01, "under 1 % of the step nobody should be called")


def evaluate(facts: Facts, limits: StageImbalanceThresholds) -> RuleOutcome:
    """The heaviest stage, if it is heavy in most steps and costs something."""
    stages = pipeline.stages(facts)
    bubbles = pipeline.steady_bubbles(facts)
    step_ns = facts.step_ns
    if not stages or step_ns <= 0:
        return facts.lacking(pipeline.NEEDS, pipeline.CAPTURE)
    if len(stages) < 2:
        return facts.lacking("operations of more than one pipeline stage", pipeline.CAPTURE)
    heavy = max(stages, key=lambda s: (s.compute_ratio, -s.stage))
    if heavy.compute_ratio < limits.min_stage_ratio:
        return RuleOutcome()
    if heavy.slow_steps_count < limits.min_steps_ratio * heavy.steps_count:
        return RuleOutcome()
    in_kernels = kernels_ratio(facts, stages, heavy)
    if in_kernels is not None and in_kernels < limits.min_kernels_ratio:
        return RuleOutcome()
    idle = pipeline.mean_bubble_by_stage(bubbles)
    if heavy.stage in idle and idle[heavy.stage] > min(idle.values()):
        return RuleOutcome()  # another stage is busier: this one does not hold the others up
    cost = price(facts, limits, stages, heavy)
    if cost.ns < limits.min_impact_ratio * step_ns:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, limits, stages, heavy, cost, step_ns),))


def price(
    facts: Facts,
    limits: StageImbalanceThresholds,
    stages: Sequence[pipeline.Stage],
    heavy: pipeline.Stage,
) -> Price:
    """What a step would take less if the heavy stage computed as the median other one; and at
    least, if its work were dealt out evenly over the stages."""
    replay = facts.replay
    saved_ns = replay.saved_by_stage_ns(heavy.stage) if replay is not None else None
    even_ns = replay.saved_by_even_stages_ns() if replay is not None else None
    if replay is None or saved_ns is None or even_ns is None:
        return at_most(excess_ns(stages), "twin ranks")
    saved_ns = min(max(0.0, saved_ns), facts.step_ns)
    least_ns = min(saved_ns, max(0.0, even_ns))
    says = "the same work dealt out evenly over the stages, by replay of its operations"
    against = disagreeing(saved_ns, says, least_ns, limits, "stage_balance")
    error = replay.operations_error_ratio
    return by_replay(saved_ns, error, facts.step_ns, [least_ns], against)


def excess_ns(stages: Sequence[pipeline.Stage]) -> float:
    """What a step loses against the same work spread evenly over the stages."""
    times = [s.compute_ns for s in stages]
    microbatches = max(s.microbatches_count for s in stages)
    longest, everything = max(times), sum(times)
    uneven = microbatches * longest + everything - longest
    even = (microbatches + len(times) - 1) * everything / len(times)
    return max(0.0, uneven - even)


def kernels_ratio(
    facts: Facts, stages: Sequence[pipeline.Stage], heavy: pipeline.Stage
) -> float | None:
    """Of the time that the heavy stage's operations take longer than the median stage's, how much
    its kernels do; None without a GPU timeline of every stage."""
    if not facts.has_gpu:
        return None
    means = facts.steps.rank_means
    kernels = [[means[r].compute for r in s.ranks if r in means] for s in stages]
    if not all(kernels):
        return None
    # Of two ranks the faster one counts, as for the operations.
    by_stage = {s.stage: median_low(ns) for s, ns in zip(stages, kernels, strict=True)}
    spans = {s.stage: s.compute_ns * s.microbatches_count for s in stages}
    longer_ns = spans[heavy.stage] - median(spans.values())
    return (by_stage[heavy.stage] - median(by_stage.values())) / longer_ns if longer_ns else None


def _finding(
    facts: Facts,
    limits: StageImbalanceThresholds,
    stages: Sequence[pipeline.Stage],
    heavy: pipeline.Stage,
    cost: Price,
    step_ns: float,
) -> Finding:
    scope = facts.scope(heavy.ranks, facts.steps.keys)
    lost_ns = cost.ns
    idle = pipeline.mean_bubble_by_stage(pipeline.steady_bubbles(facts))
    others = [ratio for stage, ratio in idle.items() if stage != heavy.stage]
    is_host_side = not facts.has_gpu
    kinds: list[Instrument] = ["host ranges" if is_host_side else "GPU timeline"]
    if heavy.replicas_count > 1:
        kinds.append("peers")
    alone = heavy.replicas_count == 1
    order = sorted(s.stage for s in stages)
    where = {order[0]: "the first; ", order[-1]: "the last; "}.get(heavy.stage, "")
    others_name, waiting = "the median other stage", "the others wait"
    if len(stages) == 2:
        others_name, waiting = "the other stage", "it waits"
    who = ranks_phrase(heavy.ranks, ()).lower()
    excess = where_it_lies(facts, heavy.ranks[0], lost_ns, peers="job")
    evidence = [
        Evidence.ratio(
            f"compute of stage {heavy.stage} over {others_name}",
            heavy.compute_ratio,
            limits.min_stage_ratio,
            "stage_balance",
        ),
        *(
            Evidence.ratio(
                f"{kind} of stage {heavy.stage} over {others_name}", value, None, "stage_balance"
            )
            for kind, value in (
                ("forward", heavy.forward_ratio),
                ("backward", heavy.backward_ratio),
            )
        ),
        Evidence.ratio(
            "share of steps in which it was that slow",
            heavy.slow_steps_count / heavy.steps_count,
            limits.min_steps_ratio,
            "stage_balance",
        ),
    ]
    in_kernels = kernels_ratio(facts, stages, heavy)
    if in_kernels is not None:
        evidence.append(
            Evidence.ratio(
                "of the time that its operations take longer, in kernels",
                in_kernels,
                limits.min_kernels_ratio,
                "step_breakdown",
            )
        )
    if others:
        evidence += [
            Evidence.ratio(f"idle share of stage {heavy.stage}", idle[heavy.stage], None, "bubble"),
            Evidence.ratio(
                "idle share of the other stages", sum(others) / len(others), None, "bubble"
            ),
        ]
    return facts.finding(
        scope,
        f"Pipeline stage {heavy.stage} ({where}{who}) computes "
        f"{heavy.compute_ratio:.2f}x as long as {others_name}: {waiting} "
        f"{seconds(lost_ns / 1e9)} a step ({share(lost_ns / step_ns)})"
        f"{'' if excess is None else f': {excess.sentence}'}.",
        (*evidence, *(() if excess is None else excess.evidence(facts))),
        by=kinds,
        basis="one replica: a slow GPU at this stage would look the same"
        if alone
        else f"{heavy.replicas_count} replicas agree",
        impact=facts.impact(cost),
        against=cost.against,
        confirm=(
            "compare layers, embedding, loss and recomputation of the stages",
            *(("run the stage on another GPU, or compare its clocks",) if alone else ()),
        ),
        remedy=(
            f"move layers away from stage {heavy.stage} (uneven split of the layers)",
            "split the vocabulary over the tensor-parallel ranks, or give embedding and loss a "
            "place of their own in the count of layers",
        ),
        rules_out=("a longer step on all stages",),
    )


RULE = Rule(
    name="stage-imbalance",
    summary="One pipeline stage computes longer than the others.",
    owner="model",
    thresholds=StageImbalanceThresholds(),
    queries=("step_breakdown", SUMMARY_QUERY, "stage_balance", "bubble"),
    optional={EXCESS: "what the stage computes more than the others"},
    evaluate=evaluate,
    needs=pipeline.NEEDS,
    explains=("waiting", "idle stages", "lateness"),
    symptom_of=("slow GPU",),
    same="ranks",
)
