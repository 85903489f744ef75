"""
What it means
    A rank does more than its peers of the same stage: it makes more calls of the same operators,
    runs more kernels, or gets larger inputs, and the others wait for it. Nothing about its machine
    is wrong.

How it shows
    The rank enters collectives last by its own doing (as for late-rank), and half or more of that
    delay is time of calls that its peers do not make, or of larger ones than theirs, at the pace of
    those that they do: larger inputs (where the profiler recorded shapes), kernels of more threads,
    copies of more bytes.

Why it hurts
    A synchronous job is as slow as the rank with most work.

Remedy
    Deal the work out evenly: samples, tokens or layers; take what one rank does alone (logging,
    metrics, extra losses) out of the step or share it out.

When this is wrong
    As many calls on larger inputs look like a slower rank where no shapes were recorded
    (record_shapes); on a GPU too, if its kernels also have as many threads whatever they get. A
    loop that polls makes more calls because it waits; such calls last next to nothing. More calls
    of the runtime that launch and copy nothing (cudaMalloc) are no work (allocator-stall). Stages
    of a pipeline are no peers (stage-imbalance), and experts get unequal shares of the tokens by
    nature (hot-expert).

Source
    Diagnosis D1: more kernels are more work, not a slower GPU.
"""

from __future__ import annotations

from tracekit.findings import Finding
from tracekit.rules.base import NO_STEPS, Facts, Rule, RuleOutcome
from tracekit.rules.excess import QUERY as EXCESS
from tracekit.rules.excess import Excess, ExcessThresholds, where_it_lies
from tracekit.rules.lateness.late import LateRank, delay_ns
from tracekit.rules.lateness.limits import QUERIES, SlowerThresholds
from tracekit.rules.lateness.price import price
from tracekit.rules.lateness.search import late_ranks
from tracekit.rules.lateness.telling import (
    late_finding,
    matched_note,
    score_evidence,
    waiting,
    why_unmatched,
)
from tracekit.rules.slow_gpu import has_uneven_work
from tracekit.wording import ranks_phrase


class UnequalWorkThresholds(SlowerThresholds, ExcessThresholds):
    """When a rank has more work."""


def evaluate(facts: Facts, limits: UnequalWorkThresholds) -> RuleOutcome:
    """One finding for each late rank that makes more calls, or gets larger inputs."""
    if matched_note(facts) is None:
        return facts.lacking(why_unmatched(facts), "profile all ranks in the same steps")
    if not len(facts.steps):
        return facts.lacking(*NO_STEPS)
    if has_uneven_work(facts, limits):
        return facts.lacking("the work of each rank: experts get unequal shares of the tokens")
    findings = []
    for late in late_ranks(facts, limits):
        excess = where_it_lies(facts, late.rank, delay_ns(late))
        if excess is not None and excess.is_more_training and not excess.is_beside_training:
            findings.append(_finding(facts, limits, late, excess))
    return RuleOutcome(findings=tuple(findings))


def _finding(
    facts: Facts, limits: UnequalWorkThresholds, late: LateRank, excess: Excess
) -> Finding:
    cost = price(facts, [late], excess.steps)
    on_device = excess.rows[0]["timeline"] == "device"
    return late_finding(
        facts,
        late,
        cost,
        f"{ranks_phrase([late.rank], facts.ranks)} does more than its peers, which wait "
        f"{waiting(facts, cost)}: "
        f"{excess.sentence}.",
        (*excess.evidence(facts), *score_evidence(facts, late, limits)),
        lies_in=excess.steps,
        by=("GPU timeline" if on_device else "host ranges", "peers"),
        basis=f"more to do on the rank, and the others wait for it; {matched_note(facts)}",
        confirm=(f"compare the batch of rank {late.rank} with a peer's: samples, tokens, lengths",),
        remedy=("deal samples and tokens out evenly; share out what this rank does alone",),
    )


RULE = Rule(
    name="unequal-work",
    summary="A rank has more calls or larger inputs than its peers, and the others wait.",
    owner="model",
    thresholds=UnequalWorkThresholds(),
    queries=(*QUERIES, "expert_load", EXCESS),
    needs_kernels=True,
    evaluate=evaluate,
    explains=("waiting", "lateness", "latency"),
)
