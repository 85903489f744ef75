"""
What it means
    A large part of the step is communication with no computation running beside it. It names no
    culprit: it says how the time is spent, not whose fault it is.

How it shows
    The union of communication less the union of computation, per steady step, on the median rank
    (a step has many ranks, and the one that arrives last waits for nobody). Waiting for a late
    rank is included: this measure cannot tell it from transfer.

Why it hurts
    While it lasts the rank computes nothing. If all of it could be hidden, the step would be
    shorter by that much, and no more.

Remedy
    First settle what it is: waiting for a late rank, a slow link, or the layout itself. For the
    layout: larger buckets, earlier prefetch, asynchronous tensor parallelism, sharding within a
    node only, more work a rank between synchronisations.

When this is wrong
    Some layouts cannot hide more: then there is nothing to fix. Overlap is not free either; a
    kernel that runs beside communication runs slower. On ranks measured on the host (gloo), the
    main thread's waiting is taken for communication.

Source
    Diagnosis D27; overlap as HolisticTraceAnalysis defines it, over unions of intervals.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from statistics import median

from tracekit.findings import Candidates, Evidence, Finding, Severity
from tracekit.rules.base import NO_STEPS, PROFILE, Facts, Rule, RuleOutcome
from tracekit.rules.facts import MAX_CANDIDATES
from tracekit.rules.prices import at_most
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, safe, seconds, share


class ExposedCommunicationThresholds(Thresholds):
    """When exposed communication is worth saying."""

    min_exposed_ratio: float = threshold(
        0.10, "share of the step; D27: less is common in jobs that nobody would call slow"
    )


def evaluate(facts: Facts, limits: ExposedCommunicationThresholds) -> RuleOutcome:
    """One finding for the job, without a culprit."""
    steps = facts.steps
    if not steps.rank_means:
        return facts.lacking(*NO_STEPS)
    if not steps.is_coupled:
        if facts.job.world_size == 1 or (facts.job.world_size is None and len(facts.ranks) == 1):
            return RuleOutcome()
        return facts.lacking("communication in a trace", PROFILE)
    exposed = {rank: parts.exposed_comm for rank, parts in steps.rank_means.items()}
    typical_ns = median(exposed.values())
    ratio = typical_ns / steps.step_ns
    if ratio < limits.min_exposed_ratio:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, limits, exposed, typical_ns),))


def _finding(
    facts: Facts,
    limits: ExposedCommunicationThresholds,
    exposed: dict[int, float],
    typical_ns: float,
) -> Finding:
    steps = facts.steps
    impact = facts.impact(at_most(typical_ns, "recorded time"))
    split, split_evidence = _by_op(facts)
    scope = facts.scope(steps.ranks, steps.keys)
    step_s = steps.step_ns / 1e9
    host = any(r.is_host_side for ranks in steps.by_key.values() for r in ranks.values())
    where = " (seen from the host)" if host else ""
    missing = facts.missing_ranks
    return facts.finding(
        scope,
        f"{seconds(typical_ns / 1e9)} {facts.each} ({share(typical_ns / steps.step_ns)}) is "
        f"communication that no computation hides{split}.",
        (
            Evidence(
                "exposed communication of the median rank",
                typical_ns / 1e9,
                "s",
                threshold=limits.min_exposed_ratio * step_s,
                query="step_breakdown",
            ),
            Evidence.seconds(
                "exposed communication of the rank with least",
                min(exposed.values()),
                None,
                "step_breakdown",
            ),
            Evidence.seconds(
                "exposed communication of the rank with most",
                max(exposed.values()),
                None,
                "step_breakdown",
            ),
            *split_evidence,
        ),
        by=["host ranges" if host else "GPU timeline"],
        basis=f"one kind of evidence{where}; waiting and transfer are not told apart",
        impact=impact,
        candidates=_candidates(facts),
        confirm=("compare with the same job on fewer nodes, or with what the layout must move",),
        remedy=(
            "enlarge gradient buckets, prefetch earlier, or use asynchronous tensor parallelism",
            "shard within a node and replicate between nodes (HSDP)",
            "raise the work between synchronisations: larger micro-batch, gradient accumulation",
        ),
        next_capture=(facts.missing_advice,) if missing else (),
    )


def _candidates(facts: Facts) -> Candidates:
    missing = facts.missing_ranks
    if not missing:
        return Candidates()
    who = plural(len(missing), "rank")
    why = f"{who} {facts.missing_state} and may be what the others wait for"
    if len(missing) > MAX_CANDIDATES:
        why += f"; the first {MAX_CANDIDATES:,} are listed"
    return Candidates(ranks=tuple(islice(missing, MAX_CANDIDATES)), why=why)


def _by_op(facts: Facts) -> tuple[str, tuple[Evidence, ...]]:
    """The operations that expose most, as words and as evidence; means over ranks."""
    total: dict[str, float] = defaultdict(float)
    for row in facts.of("exposed_comm_by_op"):
        total[safe(str(row["op"] or "unknown"))] += float(row["exposed_comm_ns"] or 0)
    everything = sum(total.values())
    if everything <= 0:
        return "", ()
    largest = sorted(total.items(), key=lambda item: (-item[1], item[0]))[:3]
    words = ", ".join(f"{op} {share(ns / everything)}" for op, ns in largest)
    evidence = tuple(
        Evidence.ratio(
            f"share of {op} in exposed communication", ns / everything, None, "exposed_comm_by_op"
        )
        for op, ns in largest
    )
    return f" ({words})", evidence


RULE = Rule(
    name="exposed-communication",
    summary="Much of the step is communication that no computation hides.",
    owner="framework",
    thresholds=ExposedCommunicationThresholds(),
    queries=("step_breakdown",),
    optional={"exposed_comm_by_op": "which operations expose most"},
    needs_kernels=True,
    evaluate=evaluate,
    cap=Severity.MINOR,
    blames="nobody",
    symptom_of=("waiting",),
    same="some ranks",
    budget="communication",
    judges_windows=True,
)
