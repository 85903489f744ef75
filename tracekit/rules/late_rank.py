"""
What it means
    One rank (or a few) enters the collectives last, by its own doing, and all others wait for it.

How it shows
    Matched collectives: the waiting of every member until the last has entered is booked to that
    one, less what it inherited (it left the collective before late, or waited for another rank
    meanwhile). The rank causes a fifth or more of all such waiting, and the delay that the others
    could not fill with computing is 5 % of the step or more, beyond what the typical rank causes.

Why it hurts
    A synchronous job is as slow as its slowest rank, and every rank looks equally slow.

Remedy
    Find what the rank does differently: its kernels (slow-gpu), its host (slow-host), its input,
    its collector, its share of the work. The findings that explain this one say which.

When this is wrong
    How often a rank is last is shown and never tested: noise makes somebody last every time.
    Lateness below the clocks' error is not counted. Work that is unequal by nature (the last
    pipeline stage, a hot expert) makes a rank late that nothing is wrong with. Where a member
    left no trace it may be the one that is late: then nobody that was captured is named.

Source
    Diagnosis D29 and 3.11.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from tracekit.findings import (
    Candidates,
    Evidence,
    Finding,
    Instrument,
    Severity,
    confidence_from,
    finding_id,
    impact_of,
    severity_of,
)
from tracekit.rules.base import Facts, Rule, RuleOutcome, lacking, threshold
from tracekit.rules.lateness import (
    QUERIES,
    LatenessThresholds,
    LateRank,
    late_ranks,
    matched_note,
    score_evidence,
    why_unmatched,
)
from tracekit.wording import plural, ranges, ranks_phrase, seconds, share

NAME = "late-rank"
CAPTURE = "profile all ranks in the same steps, with a PyTorch that records collective metadata"


@dataclass(frozen=True)
class LateRankThresholds(LatenessThresholds):
    """When a rank is late, and when absent ranks may be."""

    min_estimated_ratio: float = threshold(
        0.10, "waiting of the traced ranks for absent ones, over the step; as exposed comm (D27)"
    )


def evaluate(facts: Facts, limits: LateRankThresholds) -> RuleOutcome:
    """One finding for each late rank, or one for the ranks that nobody captured."""
    if not facts.of("match_coverage"):
        if facts.job.world_size == 1:
            return RuleOutcome()
        return lacking(NAME, "collectives in the traces of two or more ranks", CAPTURE)
    if not len(facts.steps):
        return lacking(NAME, "at least one steady step", "profile five or more steps after warm-up")
    absent = _absent(facts, limits)
    if absent is not None:
        return RuleOutcome(findings=(absent,))
    if matched_note(facts) is None:
        return lacking(NAME, why_unmatched(facts), CAPTURE)
    found = late_ranks(facts, limits)
    return RuleOutcome(findings=tuple(_finding(facts, limits, late) for late in found))


def _finding(facts: Facts, limits: LateRankThresholds, late: LateRank) -> Finding:
    keys = late.late_keys or facts.steps.keys
    scope = facts.scope([late.rank], keys)
    step_s = facts.steps.step_ns / 1e9
    impact = impact_of(late.cost_ns / 1e9, step_s, facts.gpus_count)
    kinds: list[Instrument] = ["peers"]
    if (late.peer_ratio or 0.0) >= limits.min_peer_ratio:
        kinds.append("host ranges" if not facts.has_gpu else "GPU timeline")
    cap = Severity.CRITICAL if late.is_sure else Severity.MINOR
    return Finding(
        id=finding_id(NAME, scope, facts.ranks),
        rule=NAME,
        severity=severity_of(impact.step_ratio, cap=cap),
        confidence=confidence_from(
            kinds,
            f"{late.scores_count} of {late.available_count} straggler scores agree; "
            f"{matched_note(facts)}",
        ),
        summary=(
            f"{ranks_phrase([late.rank], facts.ranks)} makes the others wait "
            f"{seconds(late.cost_ns / 1e9)} of each {seconds(step_s)} step by its own doing "
            f"({share(late.share_ratio)} of all such waiting){_nature(late, limits)}."
        ),
        owner="platform",
        scope=scope,
        when=facts.when(keys),
        impact=impact,
        evidence=score_evidence(facts, late, limits),
        counter_evidence=_counter(late, limits),
        confirm=(f"compare rank {late.rank} with a peer in the same step: kernels, host, input",),
        remedy=("fix what makes the rank late; see the findings that explain this one",),
    )


def _nature(late: LateRank, limits: LateRankThresholds) -> str:
    if late.peer_ratio is None or late.compute_ratio is None:
        return ""
    if late.peer_ratio < limits.min_peer_ratio:
        return ""
    if late.compute_ratio < limits.min_peer_ratio:
        return (
            f": its kernels take as long as its peers' ({late.compute_ratio:.2f}x), "
            f"the time between them {late.peer_ratio:.1f}x, so its host holds it up"
        )
    return f": it computes {late.compute_ratio:.1f}x as long as its peers"


def _counter(late: LateRank, limits: LateRankThresholds) -> tuple[Evidence, ...]:
    if late.peer_ratio is None or late.peer_ratio >= limits.min_peer_ratio:
        return ()
    return (
        Evidence(
            name="its own time is like its peers'",
            value=late.peer_ratio,
            unit="ratio",
            threshold=limits.min_peer_ratio,
            query="straggler",
        ),
    )


# --- members that nobody captured ---------------------------------------------------------------


def _absent(facts: Facts, limits: LateRankThresholds) -> Finding | None:
    """The finding where the traced ranks wait for members without a trace."""
    rows = [
        r
        for r in facts.of("absent_waits")
        if r["wait_per_step_ns"] is not None and r["missing_ranks"]
    ]
    step_ns = facts.steps.step_ns
    heavy = [
        r for r in rows if float(r["wait_per_step_ns"]) >= limits.min_estimated_ratio * step_ns
    ]
    if not heavy:
        return None
    # The smallest set that explains who waited: what all the groups that wait have in common.
    waiting = [set(r["missing_ranks"]) for r in heavy]
    common = set.intersection(*waiting)
    calm = [set(r["missing_ranks"]) for r in rows if r not in heavy]
    smallest = (common or set.union(*waiting)) - (set.union(*calm) if calm else set())
    candidates = sorted(smallest or common or set.union(*waiting))
    half = candidates[: (len(candidates) + 1) // 2]
    cost_ns = fmean(float(r["wait_per_step_ns"]) for r in heavy)
    traced = sorted({int(rank) for r in heavy for rank in r["traced_ranks"]})
    scope = facts.scope([], facts.steps.keys)
    step_s = step_ns / 1e9
    impact = impact_of(cost_ns / 1e9, step_s, facts.gpus_count)
    return Finding(
        id=f"{NAME}/not-captured",
        rule=NAME,
        severity=severity_of(impact.step_ratio, cap=Severity.MINOR),
        confidence=confidence_from(["peers"], "estimated from the traced members' durations"),
        summary=(
            f"{ranks_phrase(traced, facts.ranks)} wait about {seconds(cost_ns / 1e9)} of each "
            f"{seconds(step_s)} step for members that were not captured: the culprit is among "
            f"{plural(len(candidates), 'rank')} without a trace."
        ),
        owner="platform",
        scope=scope,
        when=facts.when(facts.steps.keys),
        impact=impact,
        evidence=(
            Evidence(
                name="waiting of a traced member for absent ones, a step (estimate)",
                value=cost_ns / 1e9,
                unit="s",
                threshold=limits.min_estimated_ratio * step_s,
                query="absent_waits",
            ),
        ),
        candidates=Candidates(
            ranks=tuple(candidates),
            hosts=(),
            why="they belong to every communicator in which the traced ranks wait, "
            "and to none in which they do not"
            if calm
            else "they belong to the communicators in which the traced ranks wait",
        ),
        next_capture=(
            f"profile ranks {ranges([*half])} in the same steps: it halves the candidates",
        ),
    )


RULE = Rule(
    name=NAME,
    summary="A rank enters the collectives last by its own doing, and the others wait.",
    owner="platform",
    thresholds=LateRankThresholds(),
    queries=(*QUERIES, "absent_waits"),
    evaluate=evaluate,
    doc=__doc__,
    symptom_of=(
        "slow-gpu",
        "slow-host",
        "dataloader-stall",
        "gc-pause",
        "checkpoint-stall",
        "sync-stall",
        "link-degraded",
    ),
)
