"""The slow link of a ring of gloo, by who leaves last and which way the data go round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

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
UNKNOWN_RATIO = 0.5
"""What a slow link loses of a transfer where nothing tells: anything between nothing and all."""


class RingThresholds(Thresholds):
    """When the members of a ring show a slow link."""

    min_behind_ratio: float = threshold(
        0.2,
        "of a transfer, for which members leave apart: of a ring that passes on two pieces a"
        " member, leaving later by 5 % of it; healthy members stay under 3 %",
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
        "of the transfer, for which members leave apart: from there on it is more than a suspicion",
    )


class Witness(Struct, frozen=True):
    """One kind of operation of a group, which the same member leaves last."""

    group_id: str
    members_count: int
    sender: int
    receiver: int
    row: Row
    """Of the receiver."""
    spread_ns: float
    """Between the first member that leaves and the last."""
    lag_ratio: float
    """Between the receiver's end and that of the member that it passes pieces on to, of a call's
    transfer."""
    is_alone: bool = True
    """Whether it is the receiver's only call of a ring in a step."""
    healthy_ns: float | None = None
    """What the same transfer takes in the job's other groups of this kind; None: none has it."""

    @property
    def spread_ratio(self) -> float:
        """How far the members leave apart: pieces that take as long, over its transfer."""
        return spread_ratio(self.row, self.members_count, self.spread_ns)

    @property
    def lost_ratio(self) -> float:
        """The share of its transfer that the link loses: beside groups of its kind, else by how the
        ring's members leave."""
        if self.healthy_ns is not None:
            return max(0.0, 1 - self.healthy_ns / float(self.row["transfer_p50_ns"]))
        return lost_ratio(self.row, self.members_count, self.lag_ratio, self.is_alone)


class Edge(Struct, frozen=True):
    """A slow link and what shows it; of one of its ends where several others show that end."""

    sender: int | None
    receiver: int | None
    witnesses: tuple[Witness, ...]


def is_ring(row: Row) -> bool:
    """Whether this operation goes round a ring whose way is known: gloo's, on a host's thread."""
    return row.get("timeline") == "host" and row["op"] in SENDER_OFFSETS


def _crossings(row: Row, members_count: int) -> float:
    """How many pieces cross each link of the ring in a call; the least, where its size is not
    known."""
    size = row["message_bytes"]
    pieces = 2 * members_count
    if size is not None:
        pieces = max(pieces, -(-int(size) // SEGMENT_BYTES))
    rounds = 2 if row["op"] == "all_reduce" else 1
    return rounds * (members_count - 1) * pieces / members_count


def spread_ratio(row: Row, members_count: int, spread_ns: float) -> float:
    """How far members leave apart, each by a piece of the link, as a share of all its pieces.

    All links pass equally many pieces, one after the other: so members behind a slow one leave at
    distances of a piece or two, and those of a healthy ring together.
    """
    transfer_ns = float(row["transfer_p50_ns"])
    apart_ns = _crossings(row, members_count) * spread_ns / (members_count - 1)
    return min(1.0, apart_ns / transfer_ns) if transfer_ns else 0.0


def lost_ratio(row: Row, members_count: int, lag_ratio: float, is_alone: bool) -> float:
    """The share of a transfer that a ring's slow link loses against its others; an estimate.

    N pieces cross the link one after the other and take a time P each, the whole transfer. The
    receiver sends one on when the one before it has come (gloo has two under way), which takes p
    over a fast link: so the next member has its last piece 2P - p earlier, and 1 - p/P is N times
    this lag, as a share of the transfer, less 1. Of calls that overlap a piece of another may lie
    between, too: they are taken to have one piece less. Where this leaves no loss there were more
    pieces than are known, or what the next member sends kept it: half.
    """
    pieces = _crossings(row, members_count) - (0 if is_alone else 1)
    return min(1.0, max(0.0, pieces * lag_ratio - 1)) or UNKNOWN_RATIO


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
        ring = [next(r for r in of if r["rank"] == rank) for rank in ranks]
        # As the data go.
        ring = ring[:: -SENDER_OFFSETS[str(op)]]
        seen += [
            w for w in _slow_in(group, ring, limits) if w.spread_ratio >= limits.min_behind_ratio
        ]
    seen = [
        replace(
            w,
            is_alone=_calls_a_step(facts, w.receiver, rows) <= 1,
            healthy_ns=_healthy_ns(w, seen, by_operation, members),
        )
        for w in seen
    ]
    least_ns = limits.min_step_ratio * facts.steps.step_ns
    return [edge for edge in _edges(seen, limits) if price(facts, edge).ns >= least_ns]


def _calls_a_step(facts: Facts, rank: int, rows: Sequence[Row]) -> float:
    calls_count = sum(int(r["calls_count"]) for r in filter(is_ring, rows) if r["rank"] == rank)
    return calls_count / max(1, len(facts.steps) + len(facts.steps.warmup_keys))


def _step_ns(facts: Facts, row: Row, what: str) -> float:
    """One of a row's times, summed over the calls of a step."""
    steps_count = len(facts.steps) + len(facts.steps.warmup_keys)
    return float(row[what]) * int(row["calls_count"]) / max(1, steps_count)


def _healthy_ns(
    one: Witness,
    seen: Sequence[Witness],
    by_operation: Mapping[tuple[str, object, object], Sequence[Row]],
    members: Mapping[str, Sequence[int]],
) -> float | None:
    """What other groups take for as many equal calls: groups that share no rank with this one, like
    those of one dimension of a mesh, and show no slow link."""
    slow = {w.group_id for w in seen}
    own = set(members[one.group_id])
    others = [
        float(of[0]["group_transfer_p50_ns"])
        for (group, op, size), of in by_operation.items()
        if group not in slow
        and (op, size) == (one.row["op"], one.row["message_bytes"])
        and len(members.get(group, ())) == one.members_count
        and not own & set(members[group])
        and int(of[0]["calls_count"]) == int(one.row["calls_count"])
    ]
    return median(others) if others else None


def _slow_in(group: str, ring: Sequence[Row], limits: RingThresholds) -> list[Witness]:
    """Links of one ring whose receivers leave last; ``ring``: its members as the data go."""
    late_ns = [float(r["exit_p50_ns"]) for r in ring]
    latest, second = sorted(ring, key=lambda r: (-float(r["exit_p50_ns"]), int(r["rank"])))[:2]
    count = len(ring)
    spread_ns = max(late_ns) - min(late_ns)
    if not _is_last(latest, second, limits):
        return []
    at = ring.index(latest)
    ends = [float(ring[i % count]["exit_p50_ratio"] or 0.0) for i in (at, at + 1)]
    sender = int(ring[at - 1]["rank"])
    lag_ratio = ends[0] - ends[1]
    return [Witness(group, count, sender, int(latest["rank"]), latest, spread_ns, lag_ratio)]


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
    all_ns = sum(_step_ns(facts, one.row, "transfer_p50_ns") for one in edge.witnesses)
    lost_ns = sum(
        _step_ns(facts, one.row, "transfer_p50_ns") * one.lost_ratio for one in edge.witnesses
    )
    late_ns = sum(_step_ns(facts, one.row, "exit_p50_ns") for one in edge.witnesses)
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
    worst = max(edge.witnesses, key=lambda one: _step_ns(facts, one.row, "exit_p50_ns"))
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
    is_more = worst.spread_ratio >= limits.min_lost_ratio
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
                "the same for all pieces that cross the link, over the transfer",
                worst.spread_ratio,
                "ratio",
                threshold=limits.min_behind_ratio,
                query="exit_lateness",
            ),
            Evidence(
                "of the transfer, lost on the link: an estimate",
                worst.lost_ratio,
                "ratio",
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
