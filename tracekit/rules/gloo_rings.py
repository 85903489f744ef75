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
    min_step_ratio: float = threshold(0.02, "what is lost over the step, of all operations")
    min_steady_ratio: float = threshold(
        0.5,
        "of its median lateness, in all but the best tenth of the calls, each over its own"
        " transfer; where several others show the same end, any lateness in them",
    )
    min_ring_count: int = threshold(2, "members: of two each sends to the other alone")
    min_transfer_ns: int = threshold(
        5_000_000, "of a call: shorter ones are bound by latency and by whose thread has a core"
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
class Witness:
    """One kind of operation of a group, which the same member leaves last."""

    group_id: str
    members_count: int
    sender: int
    receiver: int
    row: Row
    """Of the receiver."""
    spread_ns: float
    """Between the first member that leaves and the last."""

    @property
    def lost_ratio(self) -> float:
        """The share of its transfer that the link loses."""
        return lost_ratio(self.row, self.members_count, self.spread_ns)

    def step_ns(self, facts: Facts, what: str) -> float:
        """One of the row's times, summed over the calls of a step."""
        steps_count = len(facts.steps) + len(facts.steps.warmup_keys)
        return float(self.row[what]) * int(self.row["calls_count"]) / max(1, steps_count)


@dataclass(frozen=True)
class Edge:
    """A slow link and what shows it; of one of its ends where several others show that end."""

    sender: int | None
    receiver: int | None
    witnesses: tuple[Witness, ...]


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
    """Slow links of rings that are worth naming, each with all that shows it."""
    limits = facts.limits(RingThresholds)
    members = {
        str(r["group_id"]): sorted(int(m) for m in r["ranks"] or ())
        for r in facts.of("match_coverage")
    }
    by_operation: dict[tuple[str, object, object], list[Row]] = defaultdict(list)
    for row in filter(is_ring, rows):
        by_operation[str(row["group_id"]), row["op"], row["message_bytes"]].append(row)
    seen = []
    for (group, op, _), of in sorted(by_operation.items(), key=lambda item: str(item[0])):
        ranks = members.get(group, [])
        if len(ranks) < limits.min_ring_count or sorted(int(r["rank"]) for r in of) != ranks:
            continue
        ordered = sorted(of, key=lambda r: (-float(r["exit_p50_ns"]), int(r["rank"])))
        last = ordered[0]
        receiver = int(last["rank"])
        sender = ranks[(ranks.index(receiver) + SENDER_OFFSETS[str(op)]) % len(ranks)]
        spread_ns = float(last["exit_p50_ns"]) - float(ordered[-1]["exit_p50_ns"])
        one = Witness(group, len(ranks), sender, receiver, last, spread_ns)
        if _is_last(last, ordered[1], limits) and one.lost_ratio >= limits.min_behind_ratio:
            seen.append(one)
    least_ns = limits.min_step_ratio * facts.steps.step_ns
    return [edge for edge in _edges(seen, limits) if price(facts, edge).ns >= least_ns]


def _edges(seen: Sequence[Witness], limits: RingThresholds) -> list[Edge]:
    """Ends that several others show, each in any calls; then single links, by steady ones."""
    found, left = [], list(seen)
    for end, other in (("sender", "receiver"), ("receiver", "sender")):
        by_end: dict[int, list[Witness]] = defaultdict(list)
        for one in left:
            by_end[getattr(one, end)].append(one)
        for rank, of in sorted(by_end.items()):
            if len({getattr(one, other) for one in of}) > 1:
                sender, receiver = (rank, None) if end == "sender" else (None, rank)
                found.append(Edge(sender, receiver, tuple(of)))
                left = [one for one in left if one not in of]
    links: dict[tuple[int, int], list[Witness]] = defaultdict(list)
    for one in left:
        if _is_steady(one.row, limits):
            links[one.sender, one.receiver].append(one)
    return found + [Edge(*link, tuple(of)) for link, of in sorted(links.items())]


def _is_steady(row: Row, limits: RingThresholds) -> bool:
    typical, least = row["exit_p50_ratio"], row["exit_p10_ratio"]
    return typical is not None and float(least) > limits.min_steady_ratio * float(typical)


def _is_last(last: Row, second: Row, limits: RingThresholds) -> bool:
    late_ns = float(last["exit_p50_ns"])
    return (
        int(last["calls_count"]) >= limits.min_calls_count
        and float(last["group_transfer_p50_ns"]) >= limits.min_transfer_ns
        and float(last["exit_p10_ns"]) > int(last["error_ns"])
        and late_ns >= limits.min_ahead_ratio * max(0.0, float(second["exit_p50_ns"]))
    )


def price(facts: Facts, edge: Edge) -> Price:
    """What the link's transfers lose, no more than communication that nothing hides; at least by
    how much members leave late."""
    all_ns = sum(one.step_ns(facts, "transfer_p50_ns") for one in edge.witnesses)
    lost_ns = sum(one.step_ns(facts, "transfer_p50_ns") * one.lost_ratio for one in edge.witnesses)
    late_ns = sum(one.step_ns(facts, "exit_p50_ns") for one in edge.witnesses)
    means = facts.steps.rank_means
    exposed_ns = max(
        (means[one.receiver].exposed_comm for one in edge.witnesses if one.receiver in means),
        default=0.0,
    )
    # Calls of which several are on their way take longer together than one after the other.
    most_ns = min(all_ns, exposed_ns)
    cost_ns = most_ns * lost_ns / all_ns if all_ns else 0.0
    return Price(cost_ns, "twin ranks", min(late_ns, cost_ns), most_ns)


def finding(facts: Facts, edge: Edge, by_rank: Mapping[int, float], capture: str) -> Finding:
    """The link as a finding: of the end that several others show, else of no end in particular."""
    limits = facts.limits(RingThresholds)
    worst = max(edge.witnesses, key=lambda one: one.step_ns(facts, "exit_p50_ns"))
    named = [rank for rank in (edge.sender, edge.receiver) if rank is not None]
    ends = facts.scope(sorted(named), facts.steps.keys)
    is_known = len(named) == 1
    scope = ends if is_known else replace(ends, ranks=(), hosts=(), groups=(worst.group_id,))
    senders = sorted({one.sender for one in edge.witnesses})
    receivers = sorted({one.receiver for one in edge.witnesses})
    from_, to = ranks_phrase(senders, ()).lower(), ranks_phrase(receivers, ()).lower()
    work = by_rank.get(worst.receiver)
    own_work = f", though its own work takes {work:.2f}x its peers'" if work is not None else ""
    others = "others" if worst.members_count > limits.min_ring_count else "other"
    late_ns = float(worst.row["exit_p50_ns"])
    ratio = late_ns / float(worst.row["group_transfer_p50_ns"] or 1)
    is_more = worst.lost_ratio >= limits.min_lost_ratio
    return facts.finding(
        scope,
        f"The link from {from_} to {to} is slow: rank {worst.receiver} leaves each "
        f"{worst.row['op']} {seconds(late_ns / 1e9)} after the {others} ({share(ratio)} of the "
        f"transfer){own_work}.",
        (
            Evidence(
                "end less the members' median end, median call",
                late_ns / 1e9,
                "s",
                query="exit_lateness",
            ),
            Evidence(
                "between the first member that leaves and the last, median call",
                worst.spread_ns / 1e9,
                "s",
                query="exit_lateness",
            ),
            Evidence(
                "of the transfer, lost behind the link",
                worst.lost_ratio,
                "ratio",
                threshold=limits.min_behind_ratio,
                query="exit_lateness",
            ),
        ),
        by=["peers"],
        basis="one kind of evidence: traces, no counters of a port",
        impact=facts.impact(price(facts, edge)),
        cap=Severity.MAJOR if is_more else Severity.MINOR,
        place=None if is_known else f"{edge.sender}-{edge.receiver}",
        candidates=Candidates()
        if is_known
        else Candidates(
            ranks=ends.ranks,
            hosts=ends.hosts,
            why="a link that sends slowly and one that receives slowly look alike",
        ),
        confirm=(
            f"run a bandwidth test (iperf3) from {from_} to {to} and back, and between two peers",
            "tc -s qdisc and ethtool at both ends: a shaper, speed, errors",
        ),
        remedy=(
            "lift the limit, or replace cable or optic, at the end that the test shows; drain the "
            "machine until then",
        ),
        next_capture=(capture,),
    )
