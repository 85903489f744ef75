"""
What it means
    One GPU takes longer than its peers for the same computation, step after step.

How it shows
    Its computing time is 1.10 times its peers' median or more in four of five steady steps (peers:
    ranks of the same pipeline stage), and the others wait for it by its own doing. It runs as many
    kernels as they do. Where every call has a member without a trace, who came last is not known:
    then the others stand in communication for longer than it does, and that is the cost; nobody is
    named where the last of them to come waits too, because an absent rank is slower still. With
    timers of pipeline operations alone: its forwards and backwards take 1.10 times as long as its
    peers' in four of five steps; what that costs is replayed. Without either: its multiprocessors
    are active 1.10 times as much as its peers' and below theirs in one of five moments at most, so
    it does not wait, and its clock, its power or its memory gives a reason. Where of activity only
    the utilisation is known (nvidia-smi): it is as much in use as its peers, and its clock is 0.85
    times theirs or less in four of five moments.

Why it hurts
    Every rank waits for it in every step; one GPU sets the pace of all.

Remedy
    Look at its clocks, temperature and power first; run a GEMM test on it beside a peer; if it is
    slow there too, drain the machine.

When this is wrong
    More work is no slower GPU: a rank with more or larger kernels (unequal-work), the ranks of a
    job with experts (the router deals out tokens unevenly), and stages of a pipeline that are not
    known are left out.
    Longer sequences move from rank to rank; this fault does not. Timers do not tell the GPU from
    its host: a peer's clock or a test must confirm it. The busiest GPU may just have more to do (a
    stage of a pipeline, an expert): with counters alone it is named only beside a reason of its
    own, as a possible cause whose cost is unknown.

Source
    Diagnosis D1 and 3.11.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from tracekit.findings import Evidence, Finding, Impact, Severity, severity_of
from tracekit.rules import busiest as active
from tracekit.rules import gpus, logged
from tracekit.rules.base import NO_GPU, NO_STEPS, Facts, Row, Rule, RuleOutcome
from tracekit.rules.excess import QUERY as EXCESS
from tracekit.rules.excess import Excess, where_it_lies
from tracekit.rules.facts import SUMMARY_QUERY
from tracekit.rules.heavy_stage import QUERIES as STAGE_QUERIES
from tracekit.rules.heavy_stage import HeavyStage, HeavyStageThresholds, slow_alone
from tracekit.rules.lateness.late import LateRank, delay_ns
from tracekit.rules.lateness.limits import ABSENT_WAITS, QUERIES, SlowerThresholds
from tracekit.rules.lateness.price import price
from tracekit.rules.lateness.search import late_ranks, slower_ranks
from tracekit.rules.lateness.telling import (
    absent_note,
    beside,
    matched_note,
    peers_of,
    score_evidence,
    step_ratios_of,
    waiting,
    why_unmatched,
)
from tracekit.rules.prices import by_replay
from tracekit.rules.thresholds import threshold
from tracekit.wording import listed, ranks_phrase, seconds, share

OPERATIONS = "pipeline_heat_map"
EPISODE_CLOCKS = "episode_clocks"
CLOCKS = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK on its host, while the job runs"
SAME_GEMM = "run the same GEMM on this GPU and on a peer"
FREE_CLOCK = (
    "its cooling, its power and a clock that somebody set (nvidia-smi -rgc resets it); else drain "
    "the machine"
)
DRAIN = "if the GEMM is slow there too: drain the machine and hand it to hardware"


class SlowGpuThresholds(active.BusiestThresholds, SlowerThresholds, HeavyStageThresholds):
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
    if _has_timers_only(facts):
        return RuleOutcome(_by_operations(facts, limits))
    if not facts.has_gpu and facts.of(gpus.COUNTERS):
        return _by_counters(facts, limits)
    if not facts.has_gpu:
        return facts.lacking(*NO_GPU)
    alone = slow_alone(facts, limits)
    if alone is not None:
        return RuleOutcome(findings=(_at_its_stage(facts, limits, alone),))
    if matched_note(facts) is None:
        return facts.lacking(why_unmatched(facts), "profile all ranks in the same steps")
    if not len(facts.steps):
        return facts.lacking(*NO_STEPS)
    if has_uneven_work(facts, limits):
        return facts.lacking("the work of each rank: experts get unequal shares of the tokens")
    findings = []
    for late in late_ranks(facts, limits) or slower_ranks(facts, limits):
        ratios = step_ratios_of(facts, late, "compute")
        if not is_slow(late, ratios, limits) or _has_more_calls(facts, late, limits):
            continue
        excess = where_it_lies(facts, late.rank, delay_ns(late))
        if excess is None or excess.nature != "more work":
            findings.append(_finding(facts, limits, late, ratios, excess))
    return RuleOutcome(findings=tuple(findings))


def _at_its_stage(facts: Facts, limits: SlowGpuThresholds, heavy: HeavyStage) -> Finding:
    """The one GPU of a pipeline's stage, which does the other stages' work more slowly."""
    (rank,) = heavy.stage.ranks
    clock = gpus.clock_of(facts, rank, limits.max_clock_ratio)
    return facts.finding(
        facts.scope([rank], facts.steps.keys),
        f"{ranks_phrase([rank], facts.ranks)} (stage {heavy.stage.stage}) does the same work and "
        f"{heavy.loses(facts)}",
        (
            *heavy.evidence(facts, limits),
            *(e for e in clock if e.value <= limits.max_clock_ratio),
        ),
        by=["GPU timeline", "peers"],
        basis="as many kernels of as many threads take longer than at the other stages; no other "
        "rank has its layers",
        impact=facts.impact(heavy.cost),
        against=(*(e for e in clock if e.value > limits.max_clock_ratio), *heavy.cost.against),
        confirm=(CLOCKS, SAME_GEMM),
        remedy=(DRAIN,),
        rules_out=("a longer step on all stages",),
    )


def _has_timers_only(facts: Facts) -> bool:
    """Whether operations of peers are known and nothing of GPUs, hosts and collectives is."""
    if facts.has_gpu or facts.of("match_coverage") or len(facts.steps):
        return False
    return any(row["peer_ratio"] is not None for row in facts.of(OPERATIONS))


def _by_operations(facts: Facts, limits: SlowGpuThresholds) -> tuple[Finding, ...]:
    """A finding for each rank whose operations take longer than those of its stage's others."""
    job = facts.description
    if job is not None and (job.parallelism.ep or 1) > 1:
        return ()
    slow = [
        row
        for row in facts.of(OPERATIONS)
        if row["peer_ratio"] is not None
        and row["peer_ratio"] >= limits.min_compute_ratio
        and row["slow_steps_ratio"] >= limits.min_steps_ratio
    ]
    return tuple(_of_operations(facts, limits, row) for row in slow)


def _of_operations(facts: Facts, limits: SlowGpuThresholds, row: Row) -> Finding:
    rank, ratio = int(row["rank"]), float(row["peer_ratio"])
    scope = facts.scope([rank], facts.steps.keys)
    step_ns = facts.step_ns
    replay = facts.replay
    saved_ns = replay.saved_by_operations_ns(rank) if replay is not None else None
    impact, costs = Impact(), ""
    if replay is not None and saved_ns is not None and step_ns > 0:
        saved_ns = max(0.0, saved_ns)
        impact = facts.impact(by_replay(saved_ns, replay.operations_error_ratio, step_ns))
        costs = f", which costs {seconds(saved_ns / 1e9)} of each {seconds(step_ns / 1e9)}"
    return facts.finding(
        scope,
        f"{ranks_phrase([rank], facts.ranks)} (stage {row['stage']}, replica {row['replica']})"
        f" computes {ratio:.2f}x as long as its peers at the same stage{costs}.",
        (
            Evidence(
                "computing time over its peers' median, median step",
                ratio,
                "ratio",
                threshold=limits.min_compute_ratio,
                query=OPERATIONS,
            ),
            Evidence(
                "share of steps in which it is that slow",
                float(row["slow_steps_ratio"]),
                "ratio",
                threshold=limits.min_steps_ratio,
                query=OPERATIONS,
            ),
        ),
        by=["host ranges", "peers"],
        basis="timers of operations against the other replicas of the stage; they do not tell the "
        "GPU from its host",
        impact=impact,
        confirm=(CLOCKS, SAME_GEMM),
        remedy=(DRAIN,),
        next_capture=("profile this rank and a peer: kernels tell the GPU from its host",),
    )


def _by_counters(facts: Facts, limits: SlowGpuThresholds) -> RuleOutcome:
    """The GPU that does not wait, where its own counters say why it may be slow."""
    has_activity = active.has_activity(facts)
    told = active.busiest(facts, limits) if has_activity else active.held_clocks(facts, limits)
    named = {str(suspect.row["gpu_id"]) for suspect in told}
    of = _suspect if has_activity else _held_clock
    findings = [of(facts, limits, suspect) for suspect in told]
    findings += [f for gpu, f in _in_history(facts, limits).items() if gpu not in named]
    if not findings and not has_activity:
        return facts.lacking("a GPU timeline, or the SM activity of GPUs (DCGM 1002)", gpus.CAPTURE)
    return RuleOutcome(tuple(findings))


def _in_history(facts: Facts, limits: SlowGpuThresholds) -> dict[str, Finding]:
    """By GPU: those whose clock was held in a slow stretch of the training log, and not at other
    times, nor their peers' then."""
    stretches: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in facts.of(EPISODE_CLOCKS):
        if row["usual_mean_hz"] and row["samples_count"] >= limits.min_moments_count:
            stretches[row["first_step"], row["last_step"], row["alike"]].append(row)
    held: dict[str, tuple[Row, float]] = {}
    for rows in stretches.values():
        shares = {str(r["gpu_id"]): r["mean_hz"] / r["usual_mean_hz"] for r in rows}
        for row in rows:
            gpu = str(row["gpu_id"])
            others = [share for name, share in shares.items() if name != gpu]
            is_idle = row["use_ratio"] is not None and row["use_ratio"] < limits.min_use_ratio
            if (
                not is_idle
                and len(others) >= limits.min_peers_count
                and shares[gpu] <= limits.max_alone_clock_ratio * median(others)
                and (gpu not in held or row["lost_ns"] > held[gpu][0]["lost_ns"])
            ):
                held[gpu] = row, median(others)
    return {gpu: _held_then(facts, limits, *told) for gpu, told in sorted(held.items())}


def _held_then(facts: Facts, limits: SlowGpuThresholds, row: Row, peers_ratio: float) -> Finding:
    own_mhz, usual_mhz = row["mean_hz"] / 1e6, row["usual_mean_hz"] / 1e6
    impact = logged.price_of_stretch(facts, row)
    finding = gpus.finding(
        facts,
        [row],
        f"{gpus.subject([row])} ran at {own_mhz:.0f} MHz in steps {row['first_step']:,} to "
        f"{row['last_step']:,} of the training log, at {usual_mhz:.0f} otherwise, and its peers "
        f"kept {share(peers_ratio)} of theirs; those steps {logged.longer(row)}.",
        (
            Evidence.ratio(
                "clock in the stretch over that at other times",
                row["mean_hz"] / row["usual_mean_hz"],
                limits.max_alone_clock_ratio * peers_ratio,
                EPISODE_CLOCKS,
                facts.readings([row]),
            ),
        ),
        by=("counters", "log"),
        basis="its clock, and the training log: slow for just that time",
        least=severity_of(impact.step_ratio),
        confirm=(f"{_asked_of(row)}   on its host: what holds its clock", SAME_GEMM),
        remedy=(FREE_CLOCK,),
    )
    return replace(finding, impact=impact)


def _held_clock(facts: Facts, limits: SlowGpuThresholds, suspect: active.Busiest) -> Finding:
    row = suspect.row
    return gpus.finding(
        facts,
        [row],
        f"{gpus.subject([row])} is as much in use as its peers, and {listed(suspect.reasons)}.",
        suspect.evidence,
        least=Severity.MAJOR,
        basis="one kind of evidence: its clock; no trace shows who waits for whom",
        confirm=(f"{_asked_of(row)}   on its host: what holds its clock", SAME_GEMM),
        remedy=(FREE_CLOCK,),
        next_capture=("profile this rank and a peer: traces say what it costs",),
    )


def _suspect(facts: Facts, limits: SlowGpuThresholds, suspect: active.Busiest) -> Finding:
    row = suspect.row
    return gpus.finding(
        facts,
        [row],
        f"{gpus.subject([row])} does not wait for its peers "
        f"({row['total_ratio']:.2f}x as active as they are), and {listed(suspect.reasons)}.",
        (
            Evidence(
                "activity over its peers'",
                float(row["total_ratio"]),
                "ratio",
                threshold=limits.min_activity_ratio,
                query=gpus.COUNTERS,
                rows=facts.readings([row]),
            ),
            *suspect.evidence,
        ),
        least=Severity.MINOR,
        basis="one kind of evidence: counters; no trace shows who waits for whom",
        confirm=(
            f"{_asked_of(row)},ECC   on its host",
            SAME_GEMM,
        ),
        remedy=(DRAIN,),
        next_capture=("profile this rank and a peer: traces say what it costs",),
    )


def _asked_of(row: Row) -> str:
    index = row["gpu_index"] if row["gpu_index"] is not None else row["pci"] or "N"
    return f"nvidia-smi -i {index} -q -d PERFORMANCE,TEMPERATURE,CLOCK"


def has_uneven_work(facts: Facts, limits: SlowerThresholds) -> bool:
    """Whether the job may deal out work unevenly: it exchanges tokens all to all, and the traces
    do not state that every rank receives as many."""
    if not any(row["op"] == "all_to_all" for row in facts.of("comm_summary")):
        return False
    shares = [row["received_ratio"] for row in facts.of("expert_load")]
    most = limits.max_uneven_ratio
    return not shares or any(s is None or not 1 - most <= float(s) <= 1 + most for s in shares)


def is_slow(late: LateRank, ratios: Sequence[float], limits: SlowGpuThresholds) -> bool:
    """Whether computing is slow over the window and in most steps."""
    if late.compute_ratio is None or late.compute_ratio < limits.min_compute_ratio or not ratios:
        return False
    slow = sum(1 for r in ratios if r >= limits.min_compute_ratio)
    return slow >= limits.min_steps_ratio * len(ratios)


def _has_more_calls(facts: Facts, late: LateRank, limits: SlowGpuThresholds) -> bool:
    calls: dict[int, int] = defaultdict(int)
    for row in facts.of("kernel_summary"):
        if row["class"] == "compute":
            calls[int(row["rank"])] += int(row["calls_count"])
    others = [calls[r] for r in peers_of(facts, late) if r in calls]
    if late.rank not in calls or not others:
        return False
    return calls[late.rank] > limits.max_calls_ratio * median(others)


def _finding(
    facts: Facts,
    limits: SlowGpuThresholds,
    late: LateRank,
    ratios: Sequence[float],
    excess: Excess | None,
) -> Finding:
    scope = facts.scope([late.rank], late.late_keys or facts.steps.keys)
    cost = price(facts, [late])
    impact = facts.impact(cost)
    ratio = late.compute_ratio or 0.0
    # A clock like its peers' speaks against the GPU: then its work or its host is slow.
    clock = gpus.clock_of(facts, late.rank, limits.max_clock_ratio)
    return facts.finding(
        scope,
        f"{ranks_phrase([late.rank], facts.ranks)} computes {ratio:.2f}x as long as its peers, "
        f"which wait {waiting(facts, cost)} for it"
        f"{beside(late)}{'' if excess is None else f': {excess.sentence}'}.",
        (
            Evidence(
                "computing time over its peers' median, median step",
                median(ratios),
                "ratio",
                threshold=limits.min_compute_ratio,
                query="step_breakdown",
            ),
            *score_evidence(facts, late, limits),
            *(e for e in clock if e.value <= limits.max_clock_ratio),
            *(() if excess is None else excess.evidence(facts)),
        ),
        by=["GPU timeline", "peers"],
        basis=f"its kernels are slow and the others wait for it; {matched_note(facts)}"
        f"{absent_note(late)}",
        impact=impact,
        cap=Severity.CRITICAL if late.is_sure else Severity.MINOR,
        keys=late.late_keys or facts.steps.keys,
        against=(*(e for e in clock if e.value > limits.max_clock_ratio), *cost.against),
        confirm=(CLOCKS, SAME_GEMM),
        remedy=(DRAIN,),
    )


RULE = Rule(
    name="slow-gpu",
    summary="A GPU takes longer than its peers for the same computation.",
    owner="hardware",
    thresholds=SlowGpuThresholds(),
    queries=(
        *QUERIES,
        *("kernel_summary", "expert_load", OPERATIONS, SUMMARY_QUERY, ABSENT_WAITS, EXCESS),
        *(*active.QUERIES, *STAGE_QUERIES),
    ),
    optional=gpus.WHEN
    | {EPISODE_CLOCKS: "how fast GPUs ran in slow stretches of the training log"},
    needs_kernels=True,
    evaluate=evaluate,
    explains=("waiting", "lateness", "idle stages"),
    sees="slow GPU",
)
