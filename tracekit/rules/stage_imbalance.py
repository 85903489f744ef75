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
  A stage with a single slow GPU looks the same where there is one replica only, unless as many
  calls on inputs as large are what takes longer: then slow-gpu or slow-host tells it, or, of
  several ranks, this finding says so. Else compare the GPU's clocks before moving layers. With
  replicas the lower median of the stage's ranks is used. A host that holds whole stages and
  whose counters say that it is braked, hot or shared makes them heavy: then this is its symptom.
  Recomputation that only some stages do, and experts that draw tokens, also make stages differ.

Source
  Understanding Stragglers in Large Model Training Using What-if Analysis (OSDI 2025): the last
  stage accounts for half of the slowdown or more in 39 % of straggling jobs.
"""

from __future__ import annotations

from tracekit.findings import Finding, Instrument
from tracekit.rules import pipeline
from tracekit.rules.base import Facts, Rule, RuleOutcome
from tracekit.rules.heavy_stage import (
    QUERIES,
    HeavyStage,
    HeavyStageThresholds,
    dealt_out_evenly,
    heaviest,
)

SLOWER = (
    "as many calls on inputs as large take longer there: not its layers, but what runs them is slow"
)


def evaluate(facts: Facts, limits: HeavyStageThresholds) -> RuleOutcome:
    """The heaviest stage, if it has more to do in most steps and that costs something."""
    stages = pipeline.stages(facts)
    if not stages or facts.step_ns <= 0:
        return facts.lacking(pipeline.NEEDS, pipeline.CAPTURE)
    if len(stages) < 2:
        return facts.lacking("operations of more than one pipeline stage", pipeline.CAPTURE)
    heavy = heaviest(facts, limits)
    if heavy is None or (heavy.is_one_rank and heavy.is_same_work):
        return (
            RuleOutcome()
        )  # the latter is a slow GPU or host, or one within what stages differ by
    return RuleOutcome(findings=(_finding(facts, limits, heavy),))


def _finding(facts: Facts, limits: HeavyStageThresholds, heavy: HeavyStage) -> Finding:
    stage = heavy.stage
    scope = facts.scope(stage.ranks, facts.steps.keys)
    cost = heavy.cost if heavy.is_same_work else dealt_out_evenly(facts, heavy, limits)
    kinds: list[Instrument] = ["GPU timeline" if facts.has_gpu else "host ranges"]
    if stage.replicas_count > 1:
        kinds.append("peers")
    alone = stage.replicas_count == 1
    loses = heavy.loses(facts)
    confirm: tuple[str, ...] = (
        "compare layers, embedding, loss and recomputation of the stages",
        *(("run the stage on another GPU, or compare its clocks",) if alone else ()),
    )
    remedy: tuple[str, ...] = (
        f"move layers away from stage {stage.stage} (uneven split of the layers)",
        "split the vocabulary over the tensor-parallel ranks, or give embedding and loss a "
        "place of their own in the count of layers",
    )
    if heavy.is_same_work:
        loses = f"{loses[:-1]}; {SLOWER}."
        confirm = ("compare clocks, temperature and load of its hosts with the other stages'",)
        remedy = ("mend or change the hosts of this stage; its layers may stay as they are",)
    return facts.finding(
        scope,
        f"Pipeline {heavy.name} {loses}",
        heavy.evidence(facts, limits),
        by=kinds,
        basis="one replica: a slow GPU at this stage would look the same"
        if alone
        else f"{stage.replicas_count} replicas agree",
        impact=facts.impact(cost),
        against=cost.against,
        confirm=confirm,
        remedy=remedy,
        rules_out=("a longer step on all stages",),
    )


RULE = Rule(
    name="stage-imbalance",
    summary="One pipeline stage computes longer than the others.",
    owner="model",
    thresholds=HeavyStageThresholds(),
    queries=QUERIES,
    evaluate=evaluate,
    needs=pipeline.NEEDS,
    explains=("waiting", "idle stages", "lateness"),
    symptom_of=("slow GPU",),
    same="ranks",
)
