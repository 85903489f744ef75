"""Microbatches are of unequal length, so in every step another replica is the last to finish.

What it means
  Attention costs the square of a sequence's length. Batches that are filled by count or by
  tokens, not by cost, give some replica more work than the others, a different one each step.

How it shows
  On most ranks the forward and the backward of a microbatch vary together (correlation at
  least 0.95) and the forward varies a lot (standard deviation at least a tenth of the mean). The
  slowest replica changes from step to step.

Why it hurts
  Replicas meet when gradients are reduced: all wait for the longest. In a pipeline a long
  microbatch also holds up every stage behind it. The price stated is what a step of a pipeline
  takes less, by replay of its operations, if the same work is dealt out evenly over the
  microbatches and replicas of each step. Without a pipeline, or a replay, it is what the longest
  replica computes beyond the mean of all, each step, and the idle time of the stages that is more
  than 1.15 times what the schedule makes.

Remedy
  Balance the sum of squared lengths over replicas, pack sequences to equal cost, sort within the
  batch so that microbatches run from long to short.

When this is wrong
  One slow rank raises a correlation that is pooled over all ranks; here each rank is judged by
  itself. A pause of Python's collector lengthens forwards alone. Experts that draw tokens
  lengthen both, on the same ranks in every step.

Source
  Understanding Stragglers in Large Model Training Using What-if Analysis (OSDI 2025): a fifth
  of straggling jobs; balancing brought 24 % on one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from tracekit.findings import Evidence, Finding, Price
from tracekit.rules import pipeline
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.facts import SUMMARY_QUERY
from tracekit.rules.prices import PriceThresholds, at_most, by_replay, disagreeing
from tracekit.rules.thresholds import threshold
from tracekit.wording import seconds, share


class SequenceImbalanceThresholds(PriceThresholds):
    """When lengths are taken as the cause."""

    min_correlation_ratio: float = threshold(0.95, "by rank; a single slow rank reaches 0.9 pooled")
    min_forward_cv_ratio: float = threshold(
        0.10, "forwards of equal length stay within 0.03 on production jobs"
    )
    min_ranks_ratio: float = threshold(0.5, "lengths are dealt to all ranks, not to one")
    max_same_replica_ratio: float = threshold(
        0.80, "a replica that is longest in more steps than this is itself slow"
    )
    min_microbatches_count: int = threshold(8, "fewer pairs correlate by chance")
    min_impact_ratio: float = threshold(0.01, "under 1 % of the step nobody should be called")
    usual_theory_ratio: float = threshold(
        1.15, "idle time of stages over theory that is not charged (as for excess-bubble)"
    )


def evaluate(facts: Facts, limits: SequenceImbalanceThresholds) -> RuleOutcome:
    """One finding for the job: what is fed to it, nobody's machine."""
    rows = [
        r
        for r in facts.of("microbatch_correlation")
        if r["microbatches_count"] >= limits.min_microbatches_count
    ]
    step_ns = facts.step_ns
    if not rows or step_ns <= 0:
        return facts.lacking(pipeline.NEEDS, pipeline.CAPTURE)
    balance = facts.of("replica_balance")
    if not balance or max(int(r["replicas_count"]) for r in balance) < 2:
        return facts.lacking("operations of two replicas or more", "profile all replicas")
    varying = [
        r
        for r in rows
        if (r["correlation_ratio"] or 0.0) >= limits.min_correlation_ratio
        and (r["forward_cv_ratio"] or 0.0) >= limits.min_forward_cv_ratio
    ]
    if len(varying) < max(1.0, limits.min_ranks_ratio * len(rows)):
        return RuleOutcome()
    longest = [int(r["longest_replica"]) for r in balance]
    same = max(longest.count(microbatch) for microbatch in set(longest)) / len(longest)
    if same > limits.max_same_replica_ratio:
        return RuleOutcome()
    lost_ns = fmean(float(r["longest_ns"]) - float(r["mean_ns"]) for r in balance)
    lost_ns += _held_stages_ns(facts, limits)
    if lost_ns < limits.min_impact_ratio * step_ns:
        return RuleOutcome()
    cost = _price(facts, limits, lost_ns)
    if cost.ns < limits.min_impact_ratio * step_ns:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, limits, rows, varying, same, cost, step_ns),))


def _price(facts: Facts, limits: SequenceImbalanceThresholds, lost_ns: float) -> Price:
    """What a step of a pipeline takes less if its microbatches are alike; else at most what was
    seen: what replicas lose and what stages lose overlap, and stages hide a part of both."""
    replay = facts.replay
    saved_ns = replay.saved_by_even_lengths_ns() if replay is not None else None
    if replay is None or saved_ns is None:
        return at_most(lost_ns, "twin ranks")
    saved_ns = min(max(0.0, saved_ns), facts.step_ns)
    says = "what replicas and stages were seen to wait for the longest"
    against = disagreeing(saved_ns, says, lost_ns, limits, "replica_balance")
    error = replay.operations_error_ratio
    return by_replay(saved_ns, error, facts.step_ns, [lost_ns] if against else [], against)


def _held_stages_ns(facts: Facts, limits: SequenceImbalanceThresholds) -> float:
    """Idle time of a mean step in which stages wait for a microbatch; 0 without a pipeline."""
    bubble = pipeline.schedule_bubble(facts)
    if bubble is None:
        return 0.0
    idle_ns = bubble.window_ns * bubble.bubble_ratio
    return max(0.0, idle_ns - limits.usual_theory_ratio * bubble.allowed_ns)


def _finding(
    facts: Facts,
    limits: SequenceImbalanceThresholds,
    rows: Sequence[Row],
    varying: Sequence[Row],
    same: float,
    cost: Price,
    step_ns: float,
) -> Finding:
    scope = facts.scope(facts.ranks, facts.steps.keys)
    impact, lost_ns = facts.impact(cost), cost.ns
    correlation = median(float(r["correlation_ratio"]) for r in varying)
    spread = median(float(r["forward_cv_ratio"]) for r in varying)
    return facts.finding(
        scope,
        f"Microbatches differ in length: forwards vary by {share(spread)}, backwards with "
        f"them (correlation {correlation:.2f}), and replicas{_stages_too(facts)} wait "
        f"{seconds(lost_ns / 1e9)} a step ({share(lost_ns / step_ns)}) for the longest.",
        (
            Evidence.ratio(
                "correlation of forward and backward, median rank",
                correlation,
                limits.min_correlation_ratio,
                "microbatch_correlation",
            ),
            Evidence.ratio(
                "spread of the forward over its mean, median rank",
                spread,
                limits.min_forward_cv_ratio,
                "microbatch_correlation",
            ),
            Evidence.ratio(
                "share of ranks that show both",
                len(varying) / len(rows),
                limits.min_ranks_ratio,
                "microbatch_correlation",
            ),
            Evidence.ratio(
                "share of steps in which the same replica was longest",
                same,
                limits.max_same_replica_ratio,
                "replica_balance",
            ),
        ),
        by=["GPU timeline" if facts.has_gpu else "host ranges", "peers"],
        basis="forward and backward vary together on most ranks, and the slowest replica changes",
        impact=impact,
        against=cost.against,
        confirm=(
            "compare the lengths of the sequences that each replica was given in a slow step",
        ),
        remedy=(
            "balance the sum of squared sequence lengths over the replicas of a step",
            "pack sequences to equal cost; order microbatches from long to short",
        ),
        rules_out=("a slow rank: the slowest replica changes from step to step",),
    )


def _stages_too(facts: Facts) -> str:
    return " and stages" if pipeline.schedule_bubble(facts) is not None else ""


RULE = Rule(
    name="sequence-imbalance",
    summary="Microbatches of unequal length keep replicas waiting for the longest.",
    owner="data",
    thresholds=SequenceImbalanceThresholds(),
    queries=(
        "step_breakdown",
        SUMMARY_QUERY,
        "microbatch_correlation",
        "replica_balance",
        "bubble",
    ),
    evaluate=evaluate,
    needs=pipeline.NEEDS,
    explains=("waiting", "idle stages"),
)
