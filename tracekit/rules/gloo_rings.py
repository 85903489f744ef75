"""The slow link of a ring of gloo, by who leaves last and which way the data go round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracekit.findings import Candidates, Evidence, Finding, Price, Severity
from tracekit.rules.base import Facts, Row
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import ranks_phrase, seconds, share

SENDER_OFFSETS = {"all_reduce": 1, "all_gather": -1}
"""Whose data a member of gloo's ring waits for, as places in the group: an all-reduce passes them
to the member before, an all-gather to the next (gloo/allreduce.cc, allgather.cc)."""
SEGMENT_BYTES = 1 << 20
"""No piece that a ring passes on is larger (gloo's kMaxSegmentSize); a member's share is at least
two pieces."""


class RingThresholds(Thresholds):
    """When the members of a ring show a slow link."""

    min_behind_ratio: float = threshold(
        0.2,
        "of a transfer, which the link loses: of a ring that passes on two pieces a member, leaving"
        " later by 5 % of it; healthy members stay under 3 %",
    )
    min_step_ratio: float = threshold(0.02, "what is lost, or that lateness, over the step")
    min_steady_ratio: float = threshold(
        0.5,
        "of its median lateness, in all but the best tenth of the calls; where operations of two"
        " kinds, which go round opposite ways, point at one sender, any lateness in them",
    )
    min_calls_count: int = threshold(8, "operations from which a constant can be told from chance")
    min_ahead_ratio: float = threshold(
        2.0, "times the next latest member: one link, not a group that scatters"
    )
    min_lost_ratio: float = threshold(
        0.5,
        "of the transfer, which is lost behind the link: from there on it is more than a suspicion",
    )


@dataclass(frozen=True)
class Edge:
    """The link of a ring behind which one member leaves last."""

    group_id: str
    members_count: int
    sender: int
    receiver: int | None
    """None where two ways round show the sender."""
    rows: tuple[Row, ...]
    """Of the receiver, one an operation and size."""
    spread_ns: tuple[float, ...]
    """Of each row: between the first member that leaves and the last."""
    lost_ratios: tuple[float, ...]
    """Of each row: the share of its transfer that the link loses."""

    def step_ns(self, values: Sequence[float], steps_count: int) -> float:
        """A sum over the calls of a step of one value a row."""
        calls = (int(r["calls_count"]) for r in self.rows)
        return sum(v * n for v, n in zip(values, calls, strict=True)) / max(1, steps_count)


def is_ring(row: Row) -> bool:
    """Whether this operation goes round a ring whose way is known: gloo's, on a host's thread."""
    return row.get("timeline") == "host" and row["op"] in SENDER_OFFSETS


def lost_ratio(row: Row, members_count: int, spread_ns: float) -> float:
    """The share of a transfer that a ring's slow link loses against its others.

    All links pass equally many pieces, one after the other. What has crossed the slow one last
    reaches its receiver one piece of the slow link after the member that it passes pieces on to
    has its own, less one piece of a fast link: so members leave at such distances, and the spread
    over the ring is (members - 1) times what a piece loses. What a socket takes before it has left
    hides a part of it, so the ratio is an estimate.
    """
    size = row["message_bytes"]
    pieces = 2 * members_count
    if size is not None:
        pieces = max(pieces, -(-int(size) // SEGMENT_BYTES))
    rounds = 2 if row["op"] == "all_reduce" else 1
    crossing = rounds * (members_count - 1) * pieces / members_count
    transfer_ns = float(row["transfer_p50_ns"])
    return min(1.0, crossing * spread_ns / (members_count - 1) / transfer_ns) if transfer_ns else 0


def edges(facts: Facts, rows: Sequence[Row]) -> list[Edge]:
    """One edge a group: where its operations agree, and their lateness is worth naming."""
    limits = facts.limits(RingThresholds)
    members = {
        str(r["group_id"]): sorted(int(m) for m in r["ranks"] or ())
        for r in facts.of("match_coverage")
    }
    by_operation: dict[tuple[str, object, object], list[Row]] = defaultdict(list)
    for row in filter(is_ring, rows):
        by_operation[str(row["group_id"]), row["op"], row["message_bytes"]].append(row)
    found: dict[str, list[tuple[int, int, Row, float, bool]]] = defaultdict(list)
    for (group, _, _), of in by_operation.items():
        ranks = members.get(group, [])
        if len(ranks) < 2 or sorted(int(r["rank"]) for r in of) != ranks:
            continue
        ordered = sorted(of, key=lambda r: -float(r["exit_p50_ns"]))
        last = ordered[0]
        spread_ns = float(last["exit_p50_ns"]) - float(ordered[-1]["exit_p50_ns"])
        if (
            not _is_last(last, ordered[1], limits)
            or lost_ratio(last, len(ranks), spread_ns) < limits.min_behind_ratio
        ):
            continue
        receiver = int(last["rank"])
        offset = SENDER_OFFSETS[str(last["op"])]
        sender = ranks[(ranks.index(receiver) + offset) % len(ranks)]
        steady_ns = limits.min_steady_ratio * float(last["exit_p50_ns"])
        is_steady = float(last["exit_p10_ns"]) > steady_ns
        found[group].append((sender, receiver, last, spread_ns, is_steady))
    made = (_edge(group, seen, len(members[group])) for group, seen in sorted(found.items()))
    least_ns = limits.min_step_ratio * facts.steps.step_ns
    return [edge for edge in made if edge is not None and price(facts, edge).ns >= least_ns]


def _is_last(last: Row, second: Row, limits: RingThresholds) -> bool:
    late_ns = float(last["exit_p50_ns"])
    return (
        int(last["calls_count"]) >= limits.min_calls_count
        and float(last["exit_p10_ns"]) > int(last["error_ns"])
        and late_ns >= limits.min_ahead_ratio * max(0.0, float(second["exit_p50_ns"]))
    )


def _edge(
    group: str, seen: Sequence[tuple[int, int, Row, float, bool]], members_count: int
) -> Edge | None:
    """The edge that the operations of a group point at; None where they point at several."""
    kinds = {str(row["op"]) for _, _, row, _, _ in seen}
    senders, receivers = {s for s, *_ in seen}, {r for _, r, *_ in seen}
    if len(kinds) > 1 and len(senders) == 1 and members_count > 2:
        kept = list(seen)  # both ways round from one sender: each kind is the other's witness
    elif len(senders) == len(receivers) == 1:
        kept = [one for one in seen if one[4]]
    else:
        return None
    if not kept:
        return None
    return Edge(
        group,
        members_count,
        kept[0][0],
        None if len(receivers) > 1 else kept[0][1],
        tuple(row for _, _, row, _, _ in kept),
        tuple(spread for _, _, _, spread, _ in kept),
        tuple(lost_ratio(row, members_count, spread) for _, _, row, spread, _ in kept),
    )


def price(facts: Facts, edge: Edge) -> Price:
    """What the link's transfers lose, no more than communication that nothing hides; at least by
    how much members leave late."""
    steps_count = len(facts.steps) + len(facts.steps.warmup_keys)
    took = [float(r["transfer_p50_ns"]) for r in edge.rows]
    all_ns = edge.step_ns(took, steps_count)
    lost = [t * ratio for t, ratio in zip(took, edge.lost_ratios, strict=True)]
    lost_ns = edge.step_ns(lost, steps_count)
    exposed_ns = max(
        (facts.steps.rank_means[int(r["rank"])].exposed_comm
         for r in edge.rows if int(r["rank"]) in facts.steps.rank_means),
        default=0.0,
    )  # fmt: skip
    # Calls of which several are on their way take longer together than one after the other.
    most_ns = min(all_ns, exposed_ns)
    late_ns = edge.step_ns([float(r["exit_p50_ns"]) for r in edge.rows], steps_count)
    cost_ns = most_ns * lost_ns / all_ns if all_ns else 0.0
    return Price(cost_ns, "twin ranks", min(late_ns, cost_ns), most_ns)


def finding(facts: Facts, edge: Edge, by_rank: Mapping[int, float], capture: str) -> Finding:
    """The link as a finding: of both its ends, or of the sender where two ways show it."""
    limits = facts.limits(RingThresholds)
    cost = price(facts, edge)
    worst = max(edge.rows, key=lambda r: float(r["exit_p50_ns"]) * int(r["calls_count"]))
    last = int(worst["rank"])
    index = edge.rows.index(worst)
    receivers = sorted({int(r["rank"]) for r in edge.rows})
    is_sender = edge.receiver is None
    ends = facts.scope(
        sorted({edge.sender, *([] if edge.receiver is None else [edge.receiver])}), facts.steps.keys
    )
    scope = ends if is_sender else replace(ends, ranks=(), hosts=(), groups=(edge.group_id,))
    to = ranks_phrase(receivers, ()).lower()
    work = by_rank.get(last)
    own_work = f", though its own work takes {work:.2f}x its peers'" if work is not None else ""
    others = "others" if edge.members_count > 2 else "other"
    ratio = float(worst["exit_p50_ns"]) / float(worst["group_transfer_p50_ns"] or 1)
    is_more = edge.lost_ratios[index] >= limits.min_lost_ratio
    return facts.finding(
        scope,
        f"The link from rank {edge.sender} to {to} is slow: rank {last} leaves each {worst['op']} "
        f"{seconds(float(worst['exit_p50_ns']) / 1e9)} after the {others} ({share(ratio)} of the "
        f"transfer){own_work}.",
        (
            Evidence(
                "end less the members' median end, median call",
                float(worst["exit_p50_ns"]) / 1e9,
                "s",
                query="exit_lateness",
            ),
            Evidence(
                "between the first member that leaves and the last, median call",
                edge.spread_ns[index] / 1e9,
                "s",
                query="exit_lateness",
            ),
            Evidence(
                "of the transfer, lost behind the link",
                edge.lost_ratios[index],
                "ratio",
                threshold=limits.min_behind_ratio,
                query="exit_lateness",
            ),
        ),
        by=["peers"],
        basis="one kind of evidence: traces, no counters of a port",
        impact=facts.impact(cost),
        cap=Severity.MAJOR if is_more else Severity.MINOR,
        place=None if is_sender else f"{edge.sender}-{edge.receiver}",
        candidates=Candidates()
        if is_sender
        else Candidates(
            ranks=ends.ranks,
            hosts=ends.hosts,
            why="a link that sends slowly and one that receives slowly look alike",
        ),
        confirm=(
            f"run a bandwidth test (iperf3) from rank {edge.sender} to {to} and back, and between"
            " two peers",
            "tc -s qdisc and ethtool at both ends: a shaper, speed, errors",
        ),
        remedy=(
            "lift the limit, or replace cable or optic, at the end that the test shows; drain the "
            "machine until then",
        ),
        next_capture=(capture,),
    )
