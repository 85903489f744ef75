"""
What it means
    A link is slower than those beside it: a member of a communicator always gets its data late, or
    one group moves its data more slowly than others of its kind.

How it shows
    In traces alone: a member leaves nearly every operation later than the others, by the same
    amount, while its own work takes as long as theirs (of gloo's rings it is known whose data it
    waits for then, so both ends of the link are told, and where operations of several kinds or
    groups point at one end, that one); or a group's bandwidth (from the transfer,
    never from the duration) is under 0.8 of the median of groups of its kind, operation and size.
    In NCCL logs: completions with errors on InfiniBand or RoCE, by the first status other than a
    flush; both on one host are one finding. In counters of ports: a port of the job whose speed,
    width or shaper allows 0.8 of the others' or less. In the fabric's map (iblinkinfo,
    ibnetdiscover): a cable that the map says could be wider or faster, or a host's NIC slower than
    the NIC of that name on most hosts.

Why it hurts
    A ring is as fast as its slowest link, and whoever leaves late enters the next operation late.
    Ports of one communicator that are slow alike have one cost: each waits for the other.

Remedy
    Read the counters of the port (errors, drops, link width and speed); then replace cable or
    optic, or drain the machine.

When this is wrong
    A slow group has a slow link somewhere; its members are candidates and none is accused.
    Members need not leave together: rooted operations and trees release some earlier by design.
    Small messages are bound by latency, not by the link. A congested switch looks the same.
    Without counters of the port or NCCL's own errors this is a suspicion: at most minor, but for
    a ring of gloo whose members leave half of its transfer apart. What that ring loses is told
    beside groups of its kind, else an estimate from by how much the next member leaves before;
    what sockets take before it is sent hides a part. A cable of the map is minor, too: it has no
    price, and a split cable may have half of the lanes by design.

Source
    Diagnosis D16 and 3.10: behind a link of 60 Mbit/s one rank left every all-reduce 72 ms late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from tracekit.findings import Candidates, Evidence, Finding, Severity
from tracekit.rules import cables, gloo_rings, nccl_links, port_links, ports
from tracekit.rules.base import NO_STEPS, Facts, Row, Rule, RuleOutcome
from tracekit.rules.declared import Lends
from tracekit.rules.prices import at_most
from tracekit.rules.sources import agreed
from tracekit.rules.thresholds import threshold
from tracekit.wording import listed, ranks_phrase, safe, seconds, share

CAPTURE = "tracekit capture --what nic"
PER_STEP = "the same, a step"


class LinkDegradedThresholds(
    nccl_links.FailureThresholds,
    port_links.SpeedThresholds,
    cables.CableThresholds,
    gloo_rings.RingThresholds,
):
    """When a link is suspected from traces."""

    min_exit_ratio: float = threshold(
        0.05, "lateness on leaving over the group's transfer; healthy members stay under 3 %"
    )
    min_members_count: int = threshold(3, "of a group: of two nobody can tell which leaves late")
    max_bandwidth_ratio: float = threshold(
        0.8, "bus bandwidth over the median of groups of the same kind (D16)"
    )
    min_peers_count: int = threshold(4, "groups of a kind, to have a median worth the name")
    min_steps_count: int = threshold(3, "steps in which the group was seen (D16)")
    min_message_bytes: int = threshold(
        1_048_576, "smaller operations of a group are bound by latency, not by a link"
    )


def evaluate(facts: Facts, limits: LinkDegradedThresholds) -> RuleOutcome:
    """Members that always leave late, and groups that are slow beside their kind."""
    broken = [*nccl_links.failures(facts, limits), *port_links.slow_links(facts)]
    # What counters of the port say has a price; the map of it has none.
    told = {host for finding in broken for host in finding.scope.hosts}
    broken += [c for c in cables.slow_cables(facts) if not told & set(c.scope.hosts)]
    rows = facts.of("exit_lateness")
    if broken and not (rows and len(facts.steps)):
        return RuleOutcome(findings=tuple(broken))
    if not rows:
        return facts.lacking(f"matched collectives, or {_counters_needed(facts)}", CAPTURE)
    if not len(facts.steps):
        return facts.lacking(*NO_STEPS)
    rings = [_behind_ring(facts, edge) for edge in gloo_rings.edges(facts, rows)]
    rows = [r for r in rows if not gloo_rings.is_ring(r)]
    suspected = _late_leavers(facts, rows, limits)
    named = {rank for finding in suspected for rank in finding.scope.ranks}
    suspected += _slow_groups(facts, limits, named)
    groups = [{int(r) for r in row["ranks"] or ()} for row in facts.of("match_coverage")]
    joined = _joined(broken, suspected, groups)
    # A port's own word has the rings behind it; what they say without one is told by itself.
    with_rings = [_with_rings(f, rings, groups) for f in joined]
    joined += [r for r in rings if not any(_is_ring_of(r, f, groups) for f in joined)]
    return RuleOutcome(findings=(*with_rings, *joined[len(with_rings) :]))


def _counters_needed(facts: Facts) -> str:
    """What counters would have to be there, beside those that are."""
    given = {str(r["counter"]) for r in facts.of("port_counters")}
    return ports.why_not(facts, given) or "NIC or switch counters of errors and speed"


def _behind_ring(facts: Facts, edge: gloo_rings.Edge) -> Finding:
    work = {r: ratio for r in facts.ranks if (ratio := _peer_ratio(facts, r)) is not None}
    return gloo_rings.finding(facts, edge, work, CAPTURE)


def _ends(ring: Finding) -> set[int]:
    return {*ring.scope.ranks, *ring.candidates.ranks}


def _is_ring_of(ring: Finding, link: Finding, groups: Sequence[set[int]]) -> bool:
    """Whether a ring leaves late at, or in a communicator with, a link that is told already."""
    if not link.scope.ranks or link.impact.s_per_step is None:
        return False
    return any(_ends(ring) <= group and group & set(link.scope.ranks) for group in groups)


def _with_rings(link: Finding, rings: Sequence[Finding], groups: Sequence[set[int]]) -> Finding:
    """The link with what a ring shows of the same end, which is another kind of evidence."""
    for ring in rings:
        if _is_ring_of(ring, link, groups) and set(link.scope.ranks) & _ends(ring):
            return agreed(link, ring)
    return link


def _is_behind(late: Finding, link: Finding, groups: Sequence[set[int]]) -> bool:
    """Whether a member that leaves late is in a communicator with a link that costs more."""
    cost_s, late_s = link.impact.s_per_step, late.impact.s_per_step
    if len(late.scope.ranks) != 1 or cost_s is None or cost_s < (late_s or 0.0):
        return False
    (rank,) = late.scope.ranks
    return any(rank in group and group & set(link.scope.ranks) for group in groups)


def _left_behind(late: Finding) -> Evidence:
    """What a member behind the link was seen to leave late by."""
    (rank,) = late.scope.ranks
    row = next(e for e in late.evidence if e.name == PER_STEP)
    return replace(row, name=f"rank {rank} behind it leaves its operations late, a step")


def _joined(
    broken: Sequence[Finding], suspected: Sequence[Finding], groups: Sequence[set[int]]
) -> list[Finding]:
    """What NCCL or a port says first; a member that leaves late on the host that it names, or a
    slow group of the rank that it names, is the same. So is one that leaves late behind it: a ring
    passes the delay on, and traces cannot tell such a member from one with a slow link too."""
    joined, left = [], list(suspected)
    for error in broken:
        merged = error
        # Only a host that the errors single out: a pair shares the blame.
        if len(error.scope.hosts) == 1:
            leavers = [f for f in left if len(f.scope.ranks) == 1]
            for late in [f for f in leavers if f.scope.hosts == error.scope.hosts]:
                merged = agreed(merged, late)
                left.remove(late)
        if len(error.scope.ranks) == 1:
            for slow in [f for f in left if set(error.scope.ranks) <= set(f.candidates.ranks)]:
                merged = agreed(merged, slow)
                left.remove(slow)
        for late in [f for f in left if _is_behind(f, error, groups)]:
            merged = replace(merged, evidence=(*merged.evidence, _left_behind(late)))
            left.remove(late)
        joined.append(merged)
    return joined + left


def _late_leavers(
    facts: Facts, rows: Sequence[Row], limits: LinkDegradedThresholds
) -> list[Finding]:
    by_operation: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        by_operation[row["group_id"], row["op"], row["message_bytes"]].append(row)
    worst: dict[int, list[Row]] = defaultdict(list)
    for members in by_operation.values():
        ordered = sorted(members, key=lambda r: (-float(r["exit_p50_ns"]), int(r["rank"])))
        if len(ordered) >= limits.min_members_count and _is_late(ordered[0], ordered[1], limits):
            worst[int(ordered[0]["rank"])].append(ordered[0])
    steps_count = len(facts.steps) + len(facts.steps.warmup_keys)
    findings = []
    for rank, calls in sorted(worst.items()):
        cost_ns = sum(float(r["exit_p50_ns"]) * int(r["calls_count"]) for r in calls) / steps_count
        if cost_ns >= limits.min_step_ratio * facts.steps.step_ns:
            findings.append(_leaver(facts, rank, calls, cost_ns, limits))
    return findings


def _is_late(first: Row, second: Row, limits: LinkDegradedThresholds) -> bool:
    late_ns = float(first["exit_p50_ns"])
    least_ns = max(int(first["error_ns"]), limits.min_steady_ratio * late_ns)
    # Nearly every time, not on average: a tenth of the calls may do better.
    return (
        int(first["calls_count"]) >= limits.min_calls_count
        and float(first["exit_p10_ns"]) > least_ns
        and late_ns >= limits.min_exit_ratio * float(first["group_transfer_p50_ns"])
        and late_ns >= limits.min_ahead_ratio * max(0.0, float(second["exit_p50_ns"]))
    )


def _leaver(
    facts: Facts, rank: int, rows: Sequence[Row], cost_ns: float, limits: LinkDegradedThresholds
) -> Finding:
    row = max(rows, key=lambda r: float(r["exit_p50_ns"]) * int(r["calls_count"]))
    scope = facts.scope([rank], facts.steps.keys)
    step_s = facts.steps.step_ns / 1e9
    impact = facts.impact(at_most(cost_ns, "twin ranks"))
    ratio = float(row["exit_p50_ns"]) / float(row["group_transfer_p50_ns"] or 1)
    host = f" ({scope.hosts[0]})" if scope.hosts else ""
    peer = _peer_ratio(facts, rank)
    own_work = f", though its own work takes {peer:.2f}x its peers'" if peer is not None else ""
    return facts.finding(
        scope,
        f"The transfer towards rank {rank}{host} is slow: it leaves each {row['op']} "
        f"{seconds(float(row['exit_p50_ns']) / 1e9)} after the others "
        f"({share(ratio)} of the transfer){own_work}.",
        (
            Evidence(
                "end less the members' median end, median call",
                float(row["exit_p50_ns"]) / 1e9,
                "s",
                threshold=limits.min_exit_ratio * float(row["group_transfer_p50_ns"]) / 1e9,
                query="exit_lateness",
            ),
            Evidence(
                "the same, all but the best tenth of the calls",
                float(row["exit_p10_ns"]) / 1e9,
                "s",
                threshold=limits.min_steady_ratio * float(row["exit_p50_ns"]) / 1e9,
                query="exit_lateness",
            ),
            Evidence(
                PER_STEP,
                cost_ns / 1e9,
                "s",
                threshold=limits.min_step_ratio * step_s,
                query="exit_lateness",
            ),
        ),
        by=["peers"],
        basis="one kind of evidence: traces, no counters of a port",
        impact=impact,
        cap=Severity.MINOR,
        confirm=(
            "read the counters of its port twice, a minute apart: errors, drops, discards",
            "run a bandwidth test (ib_write_bw, iperf3) to this host and to a peer",
        ),
        remedy=("if the counters or the test agree: replace cable or optic, or drain the machine",),
        next_capture=(CAPTURE,),
    )


def _peer_ratio(facts: Facts, rank: int) -> float | None:
    row = next((r for r in facts.of("straggler") if r["rank"] == rank), None)
    return None if row is None or row["peer_ratio"] is None else float(row["peer_ratio"])


def _slow_groups(facts: Facts, limits: LinkDegradedThresholds, named: set[int]) -> list[Finding]:
    """One finding a group: its operations pass the same links, one after the other."""
    members = {r["group_id"]: sorted(r["ranks"] or ()) for r in facts.of("match_coverage")}
    slow: dict[str, list[tuple[float, Row]]] = defaultdict(list)
    for row in facts.of("group_bandwidth"):
        if (
            row["peer_ratio"] is None
            # Worker threads share cores: their times say nothing about a link.
            or row["timeline"] != "device"
            or int(row["message_bytes"]) < limits.min_message_bytes
            or float(row["peer_ratio"]) >= limits.max_bandwidth_ratio
            or int(row["peers_count"]) < limits.min_peers_count
            or int(row["steps_count"]) < limits.min_steps_count
            or int(row["instances_count"]) < limits.min_calls_count
        ):
            continue
        lost_ns = float(row["transfer_p50_ns"]) * (1 - float(row["peer_ratio"]))
        # A transfer begins on one clock and ends on others.
        if lost_ns <= int(row["error_ns"]):
            continue
        cost_ns = lost_ns * int(row["instances_count"]) / int(row["steps_count"])
        slow[str(row["group_id"])].append((cost_ns, row))
    findings = []
    for group, rows in sorted(slow.items()):
        ranks = members.get(group, [])
        cost_ns = sum(cost for cost, _ in rows)
        if cost_ns < limits.min_step_ratio * facts.steps.step_ns or named & set(ranks):
            continue
        _, worst = max(rows, key=lambda r: r[0])
        findings.append(_slow_group(facts, worst, ranks, cost_ns, limits))
    return findings


def _transports(facts: Facts, group_id: object) -> list[str]:
    """Over what NCCL's logs say that a group talks; empty where they do not."""
    rows = [r for r in facts.of("nccl_groups") if r["group_id"] == group_id]
    return sorted({safe(str(way)) for r in rows for way in r["transports"] or ()})[:4]


def _slow_group(
    facts: Facts, row: Row, ranks: Sequence[int], cost_ns: float, limits: LinkDegradedThresholds
) -> Finding:
    # A ring is as fast as its slowest link, so the transfer says which group it is in and never at
    # which member: none of them is accused.
    behind = facts.scope(ranks, facts.steps.keys)
    scope = replace(behind, ranks=(), hosts=(), groups=(str(row["group_id"]),))
    impact = facts.impact(at_most(cost_ns, "twin ranks"))
    ways = _transports(facts, row["group_id"])
    over = f"; it runs over {listed(ways)}" if ways else ""
    return facts.finding(
        scope,
        (
            f"The {row['kind'] or ''} group of {ranks_phrase(ranks, ()).lower()} moves its "
            f"{row['op']} at {float(row['bus_bytes_per_s']) / 1e9:.2f} GB/s, "
            f"{float(row['peer_ratio']):.2f} of what groups of its kind reach{over}; which of its "
            "links is slow, the traces do not say."
        ).replace("  ", " "),
        (
            Evidence(
                "bus bandwidth over the median of groups of its kind",
                float(row["peer_ratio"]),
                "ratio",
                threshold=limits.max_bandwidth_ratio,
                query="group_bandwidth",
            ),
        ),
        by=["peers"],
        basis="one kind of evidence: traces, no counters of a port",
        impact=impact,
        cap=Severity.MINOR,
        place=row["group_id"],
        candidates=Candidates(
            ranks=behind.ranks,
            hosts=behind.hosts,
            why="one slow link slows every member of its group alike",
        ),
        confirm=("run a bandwidth test between the hosts of this group, pair by pair",),
        remedy=("if a pair is slow there too: replace cable or optic, or drain the machine",),
        next_capture=(CAPTURE,),
    )


RULE = Rule(
    name="link-degraded",
    summary="A link is slower than those beside it.",
    owner="network",
    thresholds=LinkDegradedThresholds(),
    queries=(
        "step_breakdown",
        "exit_lateness",
        *nccl_links.QUERIES,
        *port_links.QUERIES,
        *cables.QUERIES,
        "group_bandwidth",
        "nccl_groups",
        "straggler",
        "match_coverage",
    ),
    kernel_queries=("exit_lateness", "group_bandwidth", "straggler", "match_coverage"),
    evaluate=evaluate,
    explains=("waiting", "lateness of its group", "latency"),
    symptom_of=("slow transfers within hosts", "slow transfers between hosts"),
    same="hosts",
    sees="slow link",
    states="harm",
    lends=Lends("log", "slow transfers there"),
    reads_other_files=True,
)
