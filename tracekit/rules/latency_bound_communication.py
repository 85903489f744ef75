"""
What it means
    Messages are so small that the time of a collective is its latency, not its bytes: more
    bandwidth would change nothing.

How it shows
    Collectives of up to 4 MB whose transfer takes at least twice what their bytes take at the best
    bandwidth that the same family of groups reaches with other sizes (or at 70 % of the link's
    speed, where the job description gives it). What exceeds the bytes' time, as far as nothing
    hides it, is at least 5 % of the step. It names no culprit: it is a property of the program.

Why it hurts
    A ring of n ranks takes n-1 hops however little it carries; thousands of small calls a step add
    up to time in which neither the GPUs nor the links work.

Remedy
    Fewer and larger messages: larger gradient buckets, fused norms and losses, coalesced
    point-to-point; a larger micro-batch; tensor parallelism over fewer ranks; hierarchical or tree
    algorithms; CUDA graphs where the launch is the latency.

When this is wrong
    Groups that are slower than others of their kind have a link to blame, and are left out. Where
    a family has messages of one size only and the description gives no speed, nothing can be said.
    Host-side traces (gloo) measure threads, not links: of these only calls of up to 4 kB count,
    where a step has ten or more.

Source
    The latency and bandwidth model of NCCL's tuner; "How to Scale Your Model", GPU chapter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from msgspec import Struct

from tracekit.findings import Evidence, Finding, Scope, Severity
from tracekit.rules.base import NO_STEPS, Facts, Row, Rule, RuleOutcome
from tracekit.rules.prices import at_most
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed, safe, seconds, share

NEEDS = "collectives of known size, matched across the ranks of a GPU job"
CAPTURE = "profile all ranks in the same steps, with a PyTorch that records collective metadata"


class LatencyBoundCommunicationThresholds(Thresholds):
    """When communication is bound by latency."""

    max_message_bytes: int = threshold(
        4_000_000, "latencies of 10 to 100 us are as long as 0.5 to 5 MB on a 50 GB/s link"
    )
    max_bandwidth_ratio: float = threshold(
        0.5, "the bytes' own time over the transfer: below half, latency is what takes the time"
    )
    min_step_ratio: float = threshold(0.05, "exposed latency over the step, as any major cost")
    link_ratio: float = threshold(0.7, "share of a link's speed that large collectives reach")
    min_peer_ratio: float = threshold(
        0.8, "bandwidth over other groups of the kind: below that a link is slow (D16)"
    )
    max_host_message_bytes: int = threshold(
        4096, "on host threads: metrics, losses and norms; any memory copies as much in a few us"
    )
    min_host_calls_count: int = threshold(
        10, "such calls a step: a loss, a norm and a flag are usual in any job"
    )


class Small(Struct, frozen=True):
    """Small messages of one family and operation: what a rank loses in a mean step."""

    kind: str | None
    op: str
    calls: float
    message_bytes: float
    transfer_ns: float
    latency_ns: float
    """Beyond the bytes' own time, exposed, a step."""


def evaluate(facts: Facts, limits: LatencyBoundCommunicationThresholds) -> RuleOutcome:
    """One finding for the job if latency takes a good part of its step."""
    steps = facts.steps
    if not steps.rank_means:
        return facts.lacking(*NO_STEPS)
    if not facts.has_gpu:
        return _on_threads(facts, limits)
    rows = [
        r for r in facts.of("group_bandwidth")
        if r["timeline"] == "device" and r["transfer_p50_ns"] and r["bus_bytes_per_s"]
    ]  # fmt: skip
    if not rows:
        return facts.lacking(NEEDS, CAPTURE)
    small = [family for key in _families(rows) if (family := _small(facts, limits, rows, key))]
    bound = [family for family in small if family.latency_ns > 0]
    means = steps.median_parts
    total_ns = min(sum(family.latency_ns for family in bound), means.exposed_comm if means else 0.0)
    if not bound or total_ns < limits.min_step_ratio * steps.step_ns:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, limits, bound, total_ns),))


def _families(rows: Sequence[Row]) -> list[tuple[str | None, str]]:
    return sorted({(r["kind"], str(r["op"])) for r in rows}, key=str)


def _reference(
    facts: Facts,
    limits: LatencyBoundCommunicationThresholds,
    rows: Sequence[Row],
    kind: str | None,
) -> float:
    """The bus bandwidth that this family could reach: the best seen, or the link's."""
    best = max(float(r["bus_bytes_per_s"]) for r in rows if r["kind"] == kind)
    where = {r["expected_domain"] for r in facts.of("traffic") if r["group_kind"] == kind}
    hardware = facts.description.hardware if facts.description is not None else None
    if hardware is None or len(where) != 1:
        return best
    speed = {"nvlink": hardware.nvlink_bytes_per_s, "network": hardware.nic_bytes_per_s}
    link = speed.get(str(where.pop()))
    return max(best, limits.link_ratio * link) if link else best


def _small(
    facts: Facts,
    limits: LatencyBoundCommunicationThresholds,
    rows: Sequence[Row],
    key: tuple[str | None, str],
) -> Small | None:
    """What a mean group of the family loses to latency in a step; None where nothing does."""
    kind, op = key
    reference = _reference(facts, limits, rows, kind)
    exposed = _exposed_ratio(facts, op)
    lost: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    sizes: list[float] = []
    times: list[float] = []
    for row in rows:
        if (row["kind"], row["op"]) != key:
            continue
        group = str(row["group_id"])
        lost[group] += 0.0
        peer = row["peer_ratio"]
        if float(row["message_bytes"]) > limits.max_message_bytes:
            continue
        if peer is not None and float(peer) < limits.min_peer_ratio:
            continue
        transfer_ns = float(row["transfer_p50_ns"])
        bytes_ns = transfer_ns * float(row["bus_bytes_per_s"]) / reference
        if bytes_ns > limits.max_bandwidth_ratio * transfer_ns:
            continue
        each = float(row["instances_count"]) / max(1.0, float(row["steps_count"] or 1))
        lost[group] += each * (transfer_ns - bytes_ns) * exposed
        calls[group] += each
        sizes.append(float(row["message_bytes"]))
        times.append(transfer_ns)
    if not sizes:
        return None
    return Small(
        kind, op, fmean(calls.values()), median(sizes), median(times), fmean(lost.values())
    )


def _on_threads(facts: Facts, limits: LatencyBoundCommunicationThresholds) -> RuleOutcome:
    """One finding where calls that carry next to nothing take a good part of the step of a job
    without GPUs: all of their time is latency, and waiting that they make."""
    steps_of = Counter(int(row["rank"]) for row in facts.of("step_breakdown"))
    rows = [row for row in facts.of("comm_summary") if steps_of[int(row["rank"])]]
    if not any(row["message_bytes"] is not None for row in rows):
        return facts.lacking(NEEDS, CAPTURE)
    by_rank: dict[int, list[Small]] = {rank: [] for rank in steps_of}
    for row in rows:
        rank, size = int(row["rank"]), row["message_bytes"]
        is_tiny = size is not None and size <= limits.max_host_message_bytes
        if row["timeline"] == "host" and (is_tiny or row["op"] == "barrier"):
            each = float(row["calls_count"]) / steps_of[rank]
            by_rank[rank].append(
                Small(
                    None, str(row["op"]), each, float(size or 0), float(row["p50_ns"]),
                    each * float(row["mean_ns"]),
                )
            )  # fmt: skip
    # Of ranks that do not make the same calls the typical one counts.
    order = sorted(by_rank, key=lambda rank: (sum(_latency_ns(by_rank[rank])), rank))
    tiny = by_rank[order[(len(order) - 1) // 2]] if order else []
    least_ns = sum(_latency_ns(tiny))
    means = facts.steps.median_parts
    cost_ns = min(sum(o.latency_ns for o in tiny), means.exposed_comm if means else 0.0)
    is_many = sum(o.calls for o in tiny) >= limits.min_host_calls_count
    if not is_many or min(least_ns, cost_ns) < limits.min_step_ratio * facts.steps.step_ns:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, limits, tiny, cost_ns, least_ns),))


def _latency_ns(calls: Sequence[Small]) -> list[float]:
    """What each kind of calls takes in a step where nobody comes late."""
    return [o.calls * o.transfer_ns for o in calls]


def _exposed_ratio(facts: Facts, op: str) -> float:
    """Share of an operation's time that nothing hides; all of it where it is not known."""
    of_op = [r for r in facts.of("exposed_comm_by_op") if r["op"] == op]
    whole = sum(float(r["comm_ns"] or 0.0) for r in of_op)
    return sum(float(r["exposed_comm_ns"] or 0.0) for r in of_op) / whole if whole else 1.0


def _finding(
    facts: Facts,
    limits: LatencyBoundCommunicationThresholds,
    bound: Sequence[Small],
    total_ns: float,
    least_ns: float = 0.0,
) -> Finding:
    is_host_side = not facts.has_gpu
    steps = facts.steps
    worst = sorted(bound, key=lambda family: (-family.latency_ns, family.op))[:3]
    groups = () if is_host_side else sorted({safe(str(o.kind or "unknown")) for o in worst})
    scope = Scope(groups=tuple(groups))
    what = listed([_words(o) for o in worst])
    return facts.finding(
        scope,
        f"{seconds(total_ns / 1e9)} of each step ({share(total_ns / steps.step_ns)}) is the "
        f"latency of small messages that nothing hides"
        f"{', and of waiting in them' if is_host_side else ''}: {what}.",
        tuple(
            Evidence.seconds(
                f"latency of {safe(str(o.kind or 'unknown'))} {o.op} a step, not hidden",
                o.latency_ns,
                limits.min_step_ratio * steps.step_ns,
                "comm_summary" if is_host_side else "group_bandwidth",
            )
            for o in worst
        ),
        by=["host ranges" if is_host_side else "GPU timeline"],
        basis="calls that carry next to nothing, and what ranks wait in them for each other"
        if is_host_side
        else "transfers of matched collectives, by size within a family",
        impact=facts.impact(at_most(total_ns, "recorded time", least_ns)),
        confirm=(
            "train 50 steps without them (metrics, norms, barriers): how long is a step?"
            if is_host_side
            else "nccl-tests over the same ranks, -b 8 -e 128M: where does the time stop growing",
        ),
        remedy=(
            "put what is reduced into one tensor and reduce it once, every N steps (sync_dist)",
            "no barrier beside a collective: it waits for all members as it is",
        )
        if is_host_side
        else (
            "larger buckets and fused calls: fewer, larger messages",
            "a larger micro-batch, or tensor parallelism over fewer ranks",
        ),
    )


def _words(small: Small) -> str:
    """How many of which calls, how large, and how long each takes."""
    kind = f"{safe(small.kind)} " if small.kind else ""
    size = f" of {small.message_bytes / 1e3:.3g} kB" if small.message_bytes else ""
    name = small.op.replace("_", "-")
    return f"{small.calls:.0f} {kind}{name}{size} ({seconds(small.transfer_ns / 1e9)} each)"


RULE = Rule(
    name="latency-bound-communication",
    summary="Messages are so small that latency, not bandwidth, takes the time.",
    owner="framework",
    thresholds=LatencyBoundCommunicationThresholds(),
    queries=(
        *("step_breakdown", "group_bandwidth", "traffic", "exposed_comm_by_op"),
        "comm_summary",
    ),
    needs_kernels=True,
    evaluate=evaluate,
    cap=Severity.MINOR,
    blames="program",
    needs=NEEDS,
    symptom_of=("latency",),
)
