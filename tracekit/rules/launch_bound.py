"""
What it means
    The GPU waits for the host to launch work: the kernels are so short that the program spends
    longer on launching each than the GPU on running it. It names no culprit: it is a property of
    the program, alike on most ranks.

How it shows
    On most ranks: idle time in which the next operation had not been launched yet makes up a good
    part of the step and of the idle time; the median kernel is short; operations start almost as
    soon as they are launched, so no queue has built up. What counts is the median step: a pause of
    some steps is no launching. Idle time that synchronisations, fetches, collections and
    checkpoints explain is taken off first, and so is what the profiler's own records take: what the
    profiled steps of a log take longer than its others, else an estimate from how many operators
    and calls were recorded. Or all hosts set the pace: on every rank the host works through the
    whole step, never blocked and hardly ahead of its device, while the device waits for half of it
    or more; most of that is inside collectives, for launches of peers.

Why it hurts
    The GPU is bought and not used; a faster one would change nothing.

Remedy
    CUDA graphs; ``torch.compile``; fused optimizers and kernels; a larger micro-batch.

When this is wrong
    A synchronisation inside the step also empties the queue: that is a sync-stall and is taken
    off. A profiler slows every launch, most of all with Python stacks, by more than the estimate on
    a slow host: where three times that would explain half of the waiting, the finding is only
    possible, and the cost may be nothing. Measure once without the profiler before acting. A few
    ranks alone that launch late have a slow host instead: their peers' hosts run ahead of their
    devices, or are blocked. In a window without steps, waits of a millisecond and more are left
    out: a program that waits for requests is not slow to launch.

Source
    Diagnosis D32; host wait as HolisticTraceAnalysis attributes idle time. Of the records: 0.4 to
    0.7 us an operator measured with PyTorch 2.13 (no options, shapes, stacks, memory); of a job on
    an H100 that takes 11 ms a step without the profiler and 16 to 27 with it, over 3 us a call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from msgspec import Struct

from tracekit.findings import Evidence, Finding, Price, Severity
from tracekit.rules.base import NO_GPU, NO_STEPS, Facts, Row, Rule, RuleOutcome
from tracekit.rules.launches import launch_wait_ns, launch_wait_shares
from tracekit.rules.prices import at_most
from tracekit.rules.steps import StepKey
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import between, seconds, share

BLOCKING_QUERIES = (
    *("sync_stall", "input_stall", "gc_pause", "checkpoint_stall"),
    *("compile_stall", "allocator_stall"),
)
"""In these a host does not work."""
STALL_QUERIES = (*BLOCKING_QUERIES, "pause_stall")
WINDOW_QUERY = "profiled_window"
NEEDS = "launches joined to GPU operations in a trace"
CAPTURE = "profile with activities CPU and CUDA, without Python stacks"
CONFIRM = ("time 50 steps without the profiler, then with CUDA graphs or torch.compile",)
REMEDY = (
    "capture the step in CUDA graphs, or use torch.compile(mode='reduce-overhead')",
    "use fused optimizers and fused kernels",
    "raise the micro-batch so that each kernel does more",
)


class LaunchBoundThresholds(Thresholds):
    """When a job is bound by launching."""

    min_step_ratio: float = threshold(
        0.10, "share of the step that the GPU waits for launches; less is start and end of a step"
    )
    min_idle_ratio: float = threshold(0.20, "share of the idle time that waits for launches (D32)")
    max_kernel_ns: int = threshold(20_000, "median kernel; longer ones outlast a launch (D32)")
    max_queue_ns: int = threshold(
        50_000, "median delay from launch to start; more means that a queue had built up"
    )
    min_busy_ratio: float = threshold(
        0.9, "of the step in which a host that sets the pace is not blocked: it waits for nobody"
    )
    max_ahead_ratio: float = threshold(
        0.1, "of the step that such a host is ahead of its device; more and it waits for a peer's"
    )
    min_waiting_ratio: float = threshold(
        0.5, "of the step that its device waits for launches, in collectives for those of peers"
    )
    min_ranks_ratio: float = threshold(
        0.5, "share of the ranks; fewer are late hosts, not a property of the program"
    )
    operator_record_ns: int = threshold(600, "the profiler's work for an operator, measured")
    call_record_ns: int = threshold(
        3_000, "the same for a CUDA call, assumed: the one job recorded both ways shows more"
    )
    max_record_ratio: float = threshold(3.0, "times as much, that it may be on a slow host")
    min_doubt_ratio: float = threshold(
        0.5, "of the waiting that the profiler may be, for it to be possible only"
    )
    max_touched_ratio: float = threshold(
        2.0, "steps of a log touched for each profiled: of more, it tells of steps beside them"
    )


class RankLaunching(Struct, frozen=True):
    """How one rank launches."""

    rank: int
    launch_idle_ns: float
    """Of the median step."""
    recording_ns: float
    """The profiler's own work in it."""
    idle_share: float
    kernel_ns: float
    queue_ns: float
    is_beside_comm: bool = False
    """Whether a part of it passed while communication ran."""


def evaluate(facts: Facts, limits: LaunchBoundThresholds) -> RuleOutcome:
    """One finding for the job if most of its ranks are bound by launching."""
    if not facts.has_gpu:
        return facts.lacking(*NO_GPU)
    if not facts.steps.rank_means:
        return facts.lacking(*NO_STEPS)
    ranks = _launching(facts, limits)
    if not ranks:
        return facts.lacking(NEEDS, CAPTURE)
    bound = [r for r in ranks if _is_bound(r, facts, limits)]
    if bound and len(bound) >= limits.min_ranks_ratio * len(facts.steps.ranks):
        return RuleOutcome(findings=(_finding(facts, limits, bound),))
    paced = _paced(facts, ranks, limits)
    # Where one host is ahead or blocked, the others may be what it waits for.
    everybody = len(facts.steps.ranks) + len(facts.missing_ranks)
    if len(paced) < 2 or len(paced) < everybody or facts.is_window:
        return RuleOutcome()
    return RuleOutcome(findings=(_paced_finding(facts, limits, paced),))


def _launching(facts: Facts, limits: LaunchBoundThresholds) -> list[RankLaunching]:
    """Ranks with an idle breakdown, launch statistics and kernels."""
    explained = _explained_ns(facts)
    recording, _ = _recording_ns(facts, limits)
    waiting_share, stream_share = launch_wait_shares(facts), _stream_wait_shares(facts)
    blocked = _blocked_ns(facts)
    kernels = _typical_kernels_ns(facts)
    launching: list[RankLaunching] = []
    for row in facts.of("launch_stats"):
        rank = int(row["rank"])
        parts = facts.steps.rank_means.get(rank)
        if parts is None or rank not in waiting_share or rank not in kernels:
            continue
        if not row["launched_count"] or row["queue_delay_p50_ns"] is None:
            continue
        # The breakdown covers the whole window; its share is applied to the steady steps.
        waits, streams, idles = [], [], []
        for key, by_rank in facts.steps.by_key.items():
            if (step := by_rank.get(rank)) is not None:
                stalled_ns = explained.get((rank, key), 0.0)
                not_computing_ns = step.idle_ns + step.exposed_comm_ns
                waits.append(step.idle_ns * waiting_share[rank] - stalled_ns)
                streams.append(not_computing_ns * stream_share.get(rank, 0.0) - stalled_ns)
                idles.append((step.idle_ns, not_computing_ns))
        waiting_ns, stream_ns = median(waits), median(streams) - blocked.get(rank, 0.0)
        is_beside_comm = stream_ns > waiting_ns
        launch_idle_ns = max(0.0, stream_ns if is_beside_comm else waiting_ns)
        idle_ns = median(pair[is_beside_comm] for pair in idles)
        launching.append(
            RankLaunching(
                rank=rank,
                launch_idle_ns=launch_idle_ns,
                recording_ns=min(launch_idle_ns, recording.get(rank, 0.0)),
                idle_share=launch_idle_ns / idle_ns if idle_ns > 0 else 0.0,
                kernel_ns=kernels[rank],
                queue_ns=float(row["queue_delay_p50_ns"]),
                is_beside_comm=is_beside_comm,
            )
        )
    return launching


def _stream_wait_shares(facts: Facts) -> dict[int, float]:
    """The same of the stream that computes: of short kernels it has by far the most operations."""
    most: dict[int, Row] = {}
    for row in facts.of("idle_breakdown"):
        rank = int(row["rank"])
        is_more = rank not in most or int(row["idle_count"]) > int(most[rank]["idle_count"])
        if row["stream"] is not None and row["idle_ns"] and is_more:
            most[rank] = row
    return {r: launch_wait_ns(facts, row) / float(row["idle_ns"]) for r, row in most.items()}


def _blocked_ns(facts: Facts) -> dict[int, float]:
    """Time of a mean steady step in which each rank's host waited for its device."""
    steady = set(facts.steps.keys)
    times: dict[int, list[float]] = defaultdict(list)
    for row in facts.of("step_breakdown"):
        key = (int(row["attempt"]), int(row["capture_id"]), int(row["step"]))
        if key in steady:
            times[int(row["rank"])].append(float(row.get("host_blocked_ns") or 0))
    return {rank: fmean(blocked_ns) for rank, blocked_ns in times.items()}


def _typical_kernels_ns(facts: Facts) -> dict[int, float]:
    """Duration of each rank's typical computing kernel.

    The median over calls of the median of their name: half of all launches start a kernel of a
    name that is no longer than this.
    """
    by_rank: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for row in facts.of("kernel_summary"):
        if row["class"] == "compute" and row["p50_ns"] is not None:
            by_rank[int(row["rank"])].append((float(row["p50_ns"]), int(row["calls_count"])))
    typical: dict[int, float] = {}
    for rank, names in by_rank.items():
        names.sort()
        half, seen = sum(count for _, count in names) / 2, 0
        for p50_ns, count in names:
            seen += count
            if seen >= half:
                typical[rank] = p50_ns
                break
    return typical


def _explained_ns(
    facts: Facts, queries: Sequence[str] = STALL_QUERIES
) -> dict[tuple[int, StepKey], float]:
    """Idle time of each steady step that stalls explain, by rank."""
    total: dict[tuple[int, StepKey], float] = defaultdict(float)
    for query in queries:
        for row in facts.of(query):
            key = StepKey.of(row)
            if row["rank"] in facts.steps.by_key.get(key, ()):
                total[int(row["rank"]), key] += float(row["exposed_ns"])
    return total


def _mean_explained_ns(facts: Facts) -> dict[int, float]:
    """The same of a mean steady step."""
    total: dict[int, float] = defaultdict(float)
    for (rank, _), ns in _explained_ns(facts, BLOCKING_QUERIES).items():
        total[rank] += ns
    return {
        rank: ns / sum(1 for ranks in facts.steps.by_key.values() if rank in ranks)
        for rank, ns in total.items()
    }


def _recording_ns(facts: Facts, limits: LaunchBoundThresholds) -> tuple[dict[int, float], bool]:
    """What the profiler's own work takes of a step of each rank, and whether a log measured it."""
    window = next(iter(facts.of(WINDOW_QUERY)), None)
    if (
        window is not None
        and window["p50_ns"]
        and window["job_p50_ns"]
        and window["traced_count"]
        and window["touched_count"] <= limits.max_touched_ratio * window["traced_count"]
    ):
        longer_ns = max(0.0, float(window["p50_ns"]) - float(window["job_p50_ns"]))
        return dict.fromkeys(facts.steps.ranks, longer_ns), True
    counts: dict[int, int] = defaultdict(int)
    for row in facts.of("step_breakdown"):
        counts[int(row["rank"])] += 1
    return {
        int(row["rank"]): (
            int(row["operators_count"] or 0) * limits.operator_record_ns
            + int(row["calls_count"] or 0) * limits.call_record_ns
        )
        / counts[int(row["rank"])]
        for row in facts.of("launch_stats")
        if counts[int(row["rank"])]
    }, False


def _is_bound(rank: RankLaunching, facts: Facts, limits: LaunchBoundThresholds) -> bool:
    dur_ns = facts.steps.rank_means[rank.rank].dur
    return (
        rank.launch_idle_ns - rank.recording_ns >= limits.min_step_ratio * dur_ns
        and rank.idle_share >= limits.min_idle_ratio
        and rank.kernel_ns < limits.max_kernel_ns
        and rank.queue_ns <= limits.max_queue_ns
    )


class Paced(Struct, frozen=True):
    """A rank whose host works all through a mean steady step, and whose device waits."""

    rank: int
    host_ns: float
    waiting_ns: float
    ahead_ns: float


def _paced(
    facts: Facts, ranks: Sequence[RankLaunching], limits: LaunchBoundThresholds
) -> list[Paced]:
    """The ranks whose hosts set the pace of their devices."""
    stalled, blocked = _mean_explained_ns(facts), _blocked_ns(facts)
    shares, bare = launch_wait_shares(facts), _bare_ratios(facts)
    paced = []
    for each in ranks:
        rank, parts = each.rank, facts.steps.rank_means[each.rank]
        host_ns = parts.dur - blocked.get(rank, 0.0) - stalled.get(rank, 0.0)
        in_calls_ns = parts.exposed_comm * (1 - bare.get(rank, 1.0))
        waiting_ns = in_calls_ns + parts.idle * shares[rank]
        if (
            host_ns >= limits.min_busy_ratio * parts.dur
            and each.queue_ns <= limits.max_ahead_ratio * parts.dur
            and waiting_ns >= limits.min_waiting_ratio * parts.dur
        ):
            paced.append(Paced(rank, host_ns, waiting_ns, each.queue_ns))
    return paced


def _bare_ratios(facts: Facts) -> dict[int, float]:
    """Share of each rank's communication that its bytes need: what the shortest call of the job
    took, of as many bytes; the rest is waiting."""
    shortest: dict[tuple[object, ...], int] = {}
    for row in facts.of("comm_summary"):
        key = row["op"], row["message_bytes"], row["group_size"]
        shortest[key] = min(int(row["min_ns"]), shortest.get(key, int(row["min_ns"])))
    bare: dict[int, int] = defaultdict(int)
    total: dict[int, int] = defaultdict(int)
    for row in facts.of("comm_summary"):
        if row["timeline"] == "device":
            key = row["op"], row["message_bytes"], row["group_size"]
            # Calls of unknown size may differ in it: nothing of them is called waiting.
            each_ns = int(row["mean_ns"]) if row["message_bytes"] is None else shortest[key]
            bare[int(row["rank"])] += each_ns * int(row["calls_count"])
            total[int(row["rank"])] += int(row["total_ns"])
    return {rank: min(1.0, bare[rank] / ns) for rank, ns in total.items() if ns}


def _paced_finding(facts: Facts, limits: LaunchBoundThresholds, paced: list[Paced]) -> Finding:
    steps = facts.steps
    hosts = sorted(p.host_ns for p in paced)
    waiting_ns, ahead_ns = median(p.waiting_ns for p in paced), max(p.ahead_ns for p in paced)
    worked = between(hosts[0] / 1e9, hosts[-1] / 1e9)
    return facts.finding(
        facts.scope([p.rank for p in paced], steps.keys),
        f"The hosts set the pace: all of them work for {worked} of the "
        f"{seconds(steps.step_ns / 1e9)} step, and the GPUs wait {seconds(waiting_ns / 1e9)} of it "
        "for launches, their own or in collectives those of their peers.",
        (
            Evidence.seconds(
                "time of the step in which the host is not blocked, the least of all ranks",
                hosts[0],
                limits.min_busy_ratio * steps.step_ns,
                "step_breakdown",
            ),
            Evidence.seconds(
                "median delay from launch to start, the longest of all ranks",
                ahead_ns,
                limits.max_ahead_ratio * steps.step_ns,
                "launch_stats",
            ),
            Evidence.seconds(
                "waiting for launches, median rank",
                waiting_ns,
                limits.min_waiting_ratio * steps.step_ns,
                "comm_summary",
            ),
        ),
        by=["host ranges", "GPU timeline"],
        basis=f"launch times and GPU timeline agree on all {len(paced)} ranks; a profiler slows "
        "launches",
        impact=facts.impact(at_most(waiting_ns, "recorded time")),
        confirm=CONFIRM,
        remedy=REMEDY,
    )


def _finding(facts: Facts, limits: LaunchBoundThresholds, bound: list[RankLaunching]) -> Finding:
    steps = facts.steps
    scope = facts.scope([r.rank for r in bound], steps.keys)
    waiting_ns = median(r.launch_idle_ns for r in bound)
    recording_ns = median(r.recording_ns for r in bound)
    _, is_measured = _recording_ns(facts, limits)
    most_ns = limits.max_record_ratio * recording_ns
    least_ns = limits.min_doubt_ratio * waiting_ns
    is_doubtful = not is_measured and most_ns >= least_ns
    kernel_ns = median(r.kernel_ns for r in bound)
    queue_ns = median(r.queue_ns for r in bound)
    is_beside_comm = 2 * sum(r.is_beside_comm for r in bound) > len(bound)
    beside = ", in part while only communication runs" if is_beside_comm else ""
    return facts.finding(
        scope,
        f"The GPU waits {seconds(waiting_ns / 1e9)} {facts.each} "
        f"({share(waiting_ns / steps.step_ns)}) for the host to launch work{beside}; "
        f"the median kernel takes {seconds(kernel_ns / 1e9)}."
        + _of_the_profiler(recording_ns, most_ns, is_measured=is_measured, is_doubtful=is_doubtful),
        (
            Evidence.seconds(
                "GPU idle for want of a launch, median rank",
                waiting_ns,
                limits.min_step_ratio * steps.step_ns,
                "idle_breakdown",
            ),
            Evidence.ratio(
                "share of the idle time, median rank",
                median(r.idle_share for r in bound),
                limits.min_idle_ratio,
                "idle_breakdown",
            ),
            Evidence.seconds("median kernel", kernel_ns, limits.max_kernel_ns, "kernel_summary"),
            Evidence.seconds(
                "median delay from launch to start", queue_ns, limits.max_queue_ns, "launch_stats"
            ),
        ),
        by=["GPU timeline"] if is_doubtful else ["host ranges", "GPU timeline"],
        basis=f"launch times and GPU timeline agree on {len(bound)} of {len(steps.ranks)} ranks; "
        + (
            "the log's other steps say what the profiler takes"
            if is_measured
            else "a profiler slows launches"
        ),
        impact=facts.impact(Price(waiting_ns - recording_ns, "recorded time", 0.0, waiting_ns)),
        against=(
            Evidence.seconds(
                "the profiler's own records on a slow host",
                most_ns,
                least_ns,
                "launch_stats",
            ),
        )
        if is_doubtful
        else (),
        confirm=CONFIRM,
        remedy=REMEDY,
    )


def _of_the_profiler(
    recording_ns: float, most_ns: float, *, is_measured: bool, is_doubtful: bool
) -> str:
    """How much of the waiting is the profiler's, as a sentence."""
    if recording_ns <= 0:
        return ""
    if is_measured:
        return (
            f" The profiled steps take {seconds(recording_ns / 1e9)} longer than the log's others."
        )
    without = ": without it the GPU may not wait at all" if is_doubtful else ""
    return (
        f" The profiler's own records are {seconds(recording_ns / 1e9)} to "
        f"{seconds(most_ns / 1e9)} of it{without}."
    )


RULE = Rule(
    name="launch-bound",
    summary="The GPU waits for the host to launch work.",
    owner="framework",
    thresholds=LaunchBoundThresholds(),
    queries=(
        *("step_breakdown", "idle_breakdown", "launch_stats", "kernel_summary", "comm_summary"),
        *STALL_QUERIES,
        WINDOW_QUERY,
    ),
    needs_kernels=True,
    evaluate=evaluate,
    cap=Severity.MINOR,
    blames="program",
    needs=NEEDS,
    explains=("unfed GPUs",),
    symptom_of=("stalled launches",),
    budget="idle first",
    judges_windows=True,
)
