"""
What it means
    One GPU takes longer than its peers for the same computation, step after step.

How it shows
    Its computing time is 1.10 times its peers' median or more in four of five steady steps (peers:
    ranks of the same pipeline stage), and the others wait for it by its own doing. It runs as many
    kernels as they do.

Why it hurts
    Every rank waits for it in every step; one GPU sets the pace of all.

Remedy
    Look at its clocks, temperature and power first; run a GEMM test on it beside a peer; if it is
    slow there too, drain the machine.

When this is wrong
    More work is no slower GPU: a rank with more kernels, the ranks of a job with experts (the
    router deals out tokens unevenly), and stages of a pipeline that are not known are left out.
    Longer sequences move from rank to rank; this fault does not.

Source
    Diagnosis D1 and 3.11.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tracekit.findings import (
    Evidence,
    Finding,
    Severity,
    confidence_from,
    finding_id,
    impact_of,
    severity_of,
)
from tracekit.rules import gpus
from tracekit.rules.base import Facts, Rule, RuleOutcome, lacking, threshold
from tracekit.rules.lateness import (
    QUERIES,
    LatenessThresholds,
    LateRank,
    beside,
    late_ranks,
    matched_note,
    price_ns,
    score_evidence,
    step_ratios,
    why_unmatched,
)
from tracekit.wording import ranks_phrase, seconds

NAME = "slow-gpu"
CLOCK_RATIO = 0.95
"""Clock over its peers' that counts as lost (D2)."""


@dataclass(frozen=True)
class SlowGpuThresholds(LatenessThresholds):
    """When a GPU is slow."""

    min_compute_ratio: float = threshold(
        1.10, "computing time over its peers' median; healthy GPUs of a model differ by 1 to 3 %"
    )
    min_steps_ratio: float = threshold(
        0.80, "share of the steady steps in which it is that slow: the fault is persistent (D1)"
    )
    max_calls_ratio: float = threshold(
        1.05, "its kernels over its peers'; more kernels are more work, not a slower GPU"
    )


def evaluate(facts: Facts, limits: SlowGpuThresholds) -> RuleOutcome:
    """One finding for each GPU that computes more slowly than its peers."""
    if not facts.has_gpu:
        return lacking(
            NAME,
            "a GPU timeline (these ranks show none)",
            "profile with activities CPU and CUDA",
        )
    if matched_note(facts) is None:
        return lacking(NAME, why_unmatched(facts), "profile all ranks in the same steps")
    if not len(facts.steps):
        return lacking(NAME, "at least one steady step", "profile five or more steps after warm-up")
    if has_uneven_work(facts):
        return lacking(NAME, "the work of each rank: experts get unequal shares of the tokens")
    found = []
    for late in late_ranks(facts, limits):
        ratios = step_ratios(facts, [late.rank], "compute")[late.rank]
        if is_slow(late, ratios, limits) and not _has_more_calls(facts, late.rank, limits):
            found.append(_finding(facts, limits, late, ratios))
    return RuleOutcome(findings=tuple(found))


def has_uneven_work(facts: Facts) -> bool:
    """Whether the job may deal out work unevenly: it exchanges tokens all to all, and the traces
    do not state that every rank receives as many."""
    if not any(row["op"] == "all_to_all" for row in facts.of("comm_summary")):
        return False
    shares = [row["received_ratio"] for row in facts.of("expert_load")]
    return not shares or any(s is None or not 0.9 <= float(s) <= 1.1 for s in shares)


def is_slow(late: LateRank, ratios: Sequence[float], limits: SlowGpuThresholds) -> bool:
    """Whether computing is slow over the window and in most steps."""
    if late.compute_ratio is None or late.compute_ratio < limits.min_compute_ratio or not ratios:
        return False
    slow = sum(1 for r in ratios if r >= limits.min_compute_ratio)
    return slow >= limits.min_steps_ratio * len(ratios)


def _has_more_calls(facts: Facts, rank: int, limits: SlowGpuThresholds) -> bool:
    calls: dict[int, int] = defaultdict(int)
    for row in facts.of("kernel_summary"):
        if row["class"] == "compute":
            calls[int(row["rank"])] += int(row["calls_count"])
    others = [n for r, n in calls.items() if r != rank]
    if rank not in calls or not others:
        return False
    return calls[rank] > limits.max_calls_ratio * median(others)


def _finding(
    facts: Facts, limits: SlowGpuThresholds, late: LateRank, ratios: Sequence[float]
) -> Finding:
    scope = facts.scope([late.rank], late.late_keys or facts.steps.keys)
    step_s = facts.steps.step_ns / 1e9
    cost_ns = price_ns(facts, [late])
    impact = impact_of(cost_ns / 1e9, step_s, facts.gpus_count)
    ratio = late.compute_ratio or 0.0
    # A clock like its peers' speaks against the GPU: then its work or its host is slow.
    clock = gpus.clock_of(facts, late.rank)
    return Finding(
        id=finding_id(NAME, scope, facts.ranks),
        rule=NAME,
        severity=severity_of(
            impact.step_ratio, cap=Severity.CRITICAL if late.is_sure else Severity.MINOR
        ),
        confidence=confidence_from(
            ["GPU timeline", "peers"],
            f"its kernels are slow and the others wait for it; {matched_note(facts)}",
        ),
        summary=(
            f"{ranks_phrase([late.rank], facts.ranks)} computes {ratio:.2f}x as long as its peers, "
            f"which wait {seconds(cost_ns / 1e9)} of each {seconds(step_s)} step for it"
            f"{beside(late)}."
        ),
        owner="hardware",
        scope=scope,
        when=facts.when(late.late_keys or facts.steps.keys),
        impact=impact,
        evidence=(
            Evidence(
                name="computing time over its peers' median, median step",
                value=median(ratios),
                unit="ratio",
                threshold=limits.min_compute_ratio,
                query="step_breakdown",
            ),
            *score_evidence(facts, late, limits),
            *(e for e in clock if e.value <= CLOCK_RATIO),
        ),
        counter_evidence=tuple(e for e in clock if e.value > CLOCK_RATIO),
        confirm=(
            "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK on its host, while the job runs",
            "run the same GEMM on this GPU and on a peer",
        ),
        remedy=("if the GEMM is slow there too: drain the machine and hand it to hardware",),
    )


RULE = Rule(
    name=NAME,
    summary="A GPU takes longer than its peers for the same computation.",
    owner="hardware",
    thresholds=SlowGpuThresholds(),
    queries=(*QUERIES, "kernel_summary", "comm_summary", "expert_load", gpus.COUNTERS),
    needs_kernels=True,
    evaluate=evaluate,
    doc=__doc__,
)
