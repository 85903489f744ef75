"""
What it means
    A rank makes the others wait while nothing at all is recorded on the thread of its training
    loop: the process stood still, or ran code that no range names.

How it shows
    The rank enters collectives last by its own doing (as for late-rank), and half or more of that
    delay are stretches without operator, call or range, a hundredth of a step or longer, that its
    peers do not have in the same steps. The finding says between which events they lie, how long
    they are and in which steps.

Why it hurts
    All ranks wait until it goes on.

Remedy
    A pause that always lies between the same two events is code there: put a range around it
    (torch.profiler.record_function). One that moves about comes from outside that code: Python's
    collector (gc.freeze() after warm-up, collection on all ranks in the same step), swapping, a
    process that is stopped, a page cache that is written back.

When this is wrong
    A profiler that does not record a kind of event (CUDA calls, Python ranges) leaves the same gap;
    its peers, recorded alike, then show it too and it is no excess. A wait inside a library that
    records nothing looks like a pause. Which cause it was, no trace tells; the finding says what it
    is compatible with.

Source
    Diagnosis 3.11: the same two ranks were late with nothing recorded while a collector ran.
"""

from __future__ import annotations

from tracekit.findings import Evidence, Finding
from tracekit.rules.base import NO_STEPS, Facts, Row, Rule, RuleOutcome
from tracekit.rules.excess import QUERY as EXCESS
from tracekit.rules.excess import Excess, ExcessThresholds, where_it_lies
from tracekit.rules.lateness import (
    QUERIES,
    LatenessThresholds,
    LateRank,
    delay_ns,
    late_finding,
    late_ranks,
    matched_note,
    price,
    score_evidence,
    waiting,
    why_unmatched,
)
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranks_phrase, seconds

FIXED = "code there that no range names (a collection, a file, a lock)"
MOVING = "Python's collector, swapping, or the process being stopped: the place changes"


class HostPauseThresholds(LatenessThresholds, ExcessThresholds):
    """When a rank stands still."""

    min_pause_ratio: float = threshold(
        0.5, "share of the rank's delay without anything recorded; less, and most is elsewhere"
    )


def evaluate(facts: Facts, limits: HostPauseThresholds) -> RuleOutcome:
    """One finding for each late rank of which nothing is recorded meanwhile."""
    if matched_note(facts) is None:
        return facts.lacking(why_unmatched(facts), "profile all ranks in the same steps")
    if not len(facts.steps):
        return facts.lacking(*NO_STEPS)
    findings = []
    for late in late_ranks(facts, limits):
        excess = where_it_lies(facts, late.rank, delay_ns(late))
        if excess is None or excess.nature != "pause" or excess.is_beside_training:
            continue
        pauses = [row for row in excess.rows if row["kind"] == "pause"]
        if _total_ns(pauses) >= limits.min_pause_ratio * delay_ns(late):
            findings.append(_finding(facts, limits, late, excess, pauses))
    return RuleOutcome(findings=tuple(findings))


def _total_ns(rows: list[Row]) -> float:
    return sum(float(row["excess_ns"]) for row in rows)


def _finding(
    facts: Facts, limits: HostPauseThresholds, late: LateRank, excess: Excess, pauses: list[Row]
) -> Finding:
    cost = price(facts, [late])
    longest = max(pauses, key=lambda row: int(row["longest_ns"]))
    is_fixed = float(pauses[0]["excess_ns"]) >= limits.min_inside_ratio * _total_ns(pauses)
    return late_finding(
        facts,
        late,
        cost,
        f"{ranks_phrase([late.rank], facts.ranks)} stands still for up to "
        f"{seconds(int(longest['longest_ns']) / 1e9)}, and the others wait "
        f"{waiting(facts, cost)}: {excess.sentence}. "
        f"Compatible with {FIXED if is_fixed else MOVING}.",
        (
            Evidence(
                f"pauses of rank {late.rank} beyond its peers', mean step",
                _total_ns(pauses) / 1e9,
                "s",
                threshold=limits.min_pause_ratio * delay_ns(late) / 1e9,
                query=EXCESS,
                rows=facts.places(pauses),
            ),
            Evidence("the longest", int(longest["longest_ns"]) / 1e9, "s", query=EXCESS),
            *score_evidence(facts, late, limits),
        ),
        by=("host ranges", "peers"),
        basis=f"nothing recorded on the rank while the others wait for it; {matched_note(facts)}",
        confirm=(
            "put a range around what runs there and record again: torch.profiler.record_function"
            if is_fixed
            else "gc.disable() for 50 steps: is the pause gone?",
            "pidstat -r -w 1 on its host: major faults, involuntary switches; /proc/PID/status: T",
        ),
        remedy=(
            "move the code out of the step, or beside it"
            if is_fixed
            else "gc.freeze() after warm-up and collect on all ranks in one step; no swap",
        ),
    )


RULE = Rule(
    name="host-pause",
    summary="A rank stands still with nothing recorded, and the others wait.",
    owner="platform",
    thresholds=HostPauseThresholds(),
    queries=(*QUERIES, EXCESS),
    needs_kernels=True,
    evaluate=evaluate,
    doc=__doc__,
    explains=("waiting", "lateness", "latency"),
)
