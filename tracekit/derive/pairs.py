"""Sends and receives: the k-th send of one rank to another is the k-th receive there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tracekit.derive.calls import NOBODY, Calls, Lane
from tracekit.derive.groups import Communicator, Group
from tracekit.derive.infer import group_dimension

if TYPE_CHECKING:
    from tracekit.derive.calls import Ints

MAX_BROKEN = 0.02
"""Share of receives that may end before their send began: rows can be a little off."""

HOST_SLACK_NS = 5_000_000
"""gloo's ranges of sends may begin that much after the data was handed over (2 ms seen)."""

Channel = tuple[int, int, str]
"""Sender, receiver, and the group's name in the rows."""


def pair_lanes(calls: Calls, lanes: Sequence[Lane], groups: Iterable[Group]) -> list[Communicator]:
    """Communicators of send and receive, one a direction of a pair of ranks."""
    by_id = {g.group_id: g for g in groups}
    numbered = _numbered(calls, lanes, list(by_id.values()))
    sends: dict[Channel, Ints] = {}
    receives: dict[Channel, Ints] = {}
    communicators: list[Communicator] = []
    unknown: list[Lane] = []
    clocks: dict[int, int] = {}
    for lane in lanes:
        clocks[lane.rank] = lane.clock_id
        rest = _by_channel(calls, lane, by_id, sends, receives, numbered.get(lane.rank, ()))
        if len(rest):
            unknown.append(
                Lane(lane.attempt, lane.capture, lane.rank, lane.clock_id, lane.name, rest)
            )
    still_unknown = _of_twos(calls, unknown, by_id.values(), sends, receives)
    for channel in sorted(set(sends) | set(receives)):
        communicators.append(_channel(calls, channel, sends, receives, clocks, lanes[0]))
    for lane in still_unknown:
        communicators.append(
            Communicator(
                lane.attempt,
                lane.capture,
                f"rank{lane.rank}/{lane.name}",
                "order",
                {lane.rank: lane.rows},
                refusal="the trace does not say with whom it was exchanged",
                is_pair=True,
                clocks={lane.rank: lane.clock_id},
            )
        )
    return communicators


def _by_channel(
    calls: Calls,
    lane: Lane,
    groups: dict[str, Group],
    sends: dict[Channel, Ints],
    receives: dict[Channel, Ints],
    numbered: tuple[int, ...],
) -> Ints:
    """Sort the lane's rows with known peers into channels; the rows that are left."""
    import numpy as np

    rows = lane.rows
    peers = _peers(calls, lane, groups, numbered)
    ops = calls["op"][rows]
    known = peers != NOBODY
    for word, target in (("send", sends), ("recv", receives)):
        code = calls.op_names.index(word) if word in calls.op_names else NOBODY - 1
        for peer in np.unique(peers[known & (ops == code)]).tolist():
            mine = rows[known & (ops == code) & (peers == peer)]
            ends = (lane.rank, peer) if word == "send" else (peer, lane.rank)
            target[ends[0], ends[1], lane.name] = mine
    pairs = [calls.op_names.index(w) for w in ("send", "recv") if w in calls.op_names]
    unpaired: Ints = rows[~known | ~np.isin(ops, pairs)]
    return unpaired


def _peers(
    calls: Calls, lane: Lane, groups: dict[str, Group], numbered: tuple[int, ...] = ()
) -> Ints:
    """The other rank of each row. Numbers may count within the group: the own one tells.
    ``numbered``: the members that they count where rows give nothing else."""
    import numpy as np

    rows = lane.rows
    src, dst = calls["src_rank"][rows], calls["dst_rank"][rows]
    is_send = calls["op"][rows] == (
        calls.op_names.index("send") if "send" in calls.op_names else NOBODY - 1
    )
    rank, peer = np.where(is_send, src, dst), np.where(is_send, dst, src)
    if (peer == NOBODY).all() and numbered:
        return np.array(numbered, np.int64)[calls["peer_group_rank"][rows]]
    group = groups.get(lane.name[1:].partition("/")[0]) if lane.name.startswith("g") else None
    stated = rank[rank != NOBODY]
    if group is not None and group.is_complete and lane.rank in group.ranks:
        within = group.ranks.index(lane.rank)
        is_local = len(stated) > 0 and within != lane.rank and bool((stated == within).all())
        if is_local and peer.max(initial=NOBODY) < len(group.ranks):
            members = np.array([*group.ranks, NOBODY])
            return members[peer].astype(np.int64)
    if len(stated) and not (stated == lane.rank).all():
        return np.full(len(rows), NOBODY, np.int64)
    return np.where(peer == lane.rank, NOBODY, peer)


def _numbered(
    calls: Calls, lanes: Sequence[Lane], groups: Sequence[Group]
) -> dict[int, tuple[int, ...]]:
    """By rank the members of the group within which its rows number the others, where no row names
    the group (gloo): the one group of each rank that is named a pipeline, else all ranks. Nothing
    where a rank would send to itself, or to one that receives nothing from it."""
    complete = [g for g in groups if g.is_complete]
    pipelines: dict[int, tuple[int, ...]] = {}
    for lane in lanes:
        own = {g.ranks for g in complete if lane.rank in g.ranks and _is_pipeline(g)}
        if len(own) == 1:
            (pipelines[lane.rank],) = own
    world = max((g.ranks for g in complete), key=len, default=())
    everybody = {lane.rank: world for lane in lanes if lane.rank in world}
    for members in (pipelines, everybody):
        if len(members) == len(lanes) and _is_mutual(calls, lanes, members):
            return members
    return {}


def _is_pipeline(group: Group) -> bool:
    return group_dimension(group.description, group.name) == "pp"


def _is_mutual(calls: Calls, lanes: Sequence[Lane], members: dict[int, tuple[int, ...]]) -> bool:
    """Whether every sender has a receiver that means it, and the other way round."""
    import numpy as np

    sent: set[tuple[int, int]] = set()
    received: set[tuple[int, int]] = set()
    for lane in lanes:
        within, ranks = calls["peer_group_rank"][lane.rows], members[lane.rank]
        if not len(within) or within.min() < 0 or within.max() >= len(ranks):
            return False
        for op, ends in (("send", sent), ("recv", received)):
            code = calls.op_names.index(op) if op in calls.op_names else NOBODY - 1
            for number in np.unique(within[calls["op"][lane.rows] == code]).tolist():
                pair = lane.rank, ranks[number]
                ends.add(pair if op == "send" else pair[::-1])
    return sent == received and bool(sent) and all(a != b for a, b in sent)


def _of_twos(
    calls: Calls,
    lanes: Sequence[Lane],
    groups: Iterable[Group],
    sends: dict[Channel, Ints],
    receives: dict[Channel, Ints],
) -> list[Lane]:
    """Rows without a peer, where one group of two alone can have carried them."""
    import numpy as np

    by_rank = {lane.rank: lane for lane in lanes}
    fits: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for group in groups:
        if group.is_complete and len(group.ranks) == 2 and set(group.ranks) <= set(by_rank):
            a, b = group.ranks
            if not all(_is_other(calls, by_rank[r], group) for r in (a, b)):
                continue
            if _can_be(calls, by_rank[a], by_rank[b]) and _can_be(calls, by_rank[b], by_rank[a]):
                fits[a].append((a, b))
                fits[b].append((a, b))
    named = {g.ranks for g in groups if group_dimension(g.description, g.name) == "pp"}
    for rank, pairs in fits.items():
        # Where several could have, the one that is named a pipeline did.
        fits[rank] = [pair for pair in pairs if pair in named] or pairs
    done: set[int] = set()
    for a, b in sorted({pair for fitting in fits.values() for pair in fitting}):
        if fits[a] != [(a, b)] or fits[b] != [(a, b)]:
            continue
        done |= {a, b}
        for src, dst in ((a, b), (b, a)):
            sent, received = _of(calls, by_rank[src], "send"), _of(calls, by_rank[dst], "recv")
            if len(sent) or len(received):
                sends[src, dst, ""], receives[src, dst, ""] = sent, received
    return [lane for lane in lanes if lane.rank not in done and np.size(lane.rows)]


def _is_other(calls: Calls, lane: Lane, group: Group) -> bool:
    """Whether the numbers that a rank's rows give, if any, are the other's, within this group or
    within all ranks."""
    import numpy as np

    other = 1 - group.ranks.index(lane.rank)
    could_be = (NOBODY, other, group.ranks[other])
    return bool(np.isin(calls["peer_group_rank"][lane.rows], could_be).all())


def _of(calls: Calls, lane: Lane, op: str) -> Ints:
    code = calls.op_names.index(op) if op in calls.op_names else NOBODY - 1
    rows: Ints = lane.rows[calls["op"][lane.rows] == code]
    return rows


def _can_be(calls: Calls, sender: Lane, receiver: Lane) -> bool:
    sent, received = _of(calls, sender, "send"), _of(calls, receiver, "recv")
    if len(sent) != len(received):
        return False
    return _refusal(calls, sent, received, sender.clock_id == receiver.clock_id) == ""


def is_on_host(calls: Calls, rows: Ints) -> bool:
    """Whether these calls are ranges on host threads."""
    return len(rows) > 0 and calls.text("timeline", int(rows[0])) == "host"


def _refusal(calls: Calls, sent: Ints, received: Ints, is_one_clock: bool) -> str:
    """Why these cannot be pairs in order; empty where they can."""
    if len(sent) != len(received):
        return f"{len(sent)} sends, {len(received)} receives"
    sizes = calls["message_bytes"][sent], calls["message_bytes"][received]
    known = (sizes[0] != NOBODY) & (sizes[1] != NOBODY)
    if known.any() and float((sizes[0][known] == sizes[1][known]).mean()) < 1 - MAX_BROKEN:
        return "sizes of sends and receives differ"
    slack = HOST_SLACK_NS if is_on_host(calls, sent) else 0
    late = calls["start_ns"][sent] > calls["end_ns"][received] + slack
    if is_one_clock and len(sent) and float(late.mean()) > MAX_BROKEN:
        return "receives end before their sends begin"
    return ""


def _channel(
    calls: Calls,
    channel: Channel,
    sends: dict[Channel, Ints],
    receives: dict[Channel, Ints],
    clocks: dict[int, int],
    any_lane: Lane,
) -> Communicator:
    src, dst, name = channel
    sent, received = sends.get(channel), receives.get(channel)
    lanes = {r: rows for r, rows in ((src, sent), (dst, received)) if rows is not None}
    refusal = ""
    if sent is None or received is None:
        refusal = "no other member was traced"
    else:
        sent, received, refusal = _trimmed(calls, sent, received, clocks[src] == clocks[dst])
        lanes = {src: sent, dst: received}
    group = name[1:].partition("#")[0] if name.startswith("g") else ""
    return Communicator(
        any_lane.attempt,
        any_lane.capture,
        f"{group}:{src}>{dst}" if group else f"{src}>{dst}",
        "file" if group else "behaviour",
        lanes,
        members_count=2,
        group=Group(f"{src}>{dst}", (src, dst), size=2),
        refusal=refusal,
        is_pair=True,
        clocks={r: clocks[r] for r in lanes},
    )


def _trimmed(
    calls: Calls, sent: Ints, received: Ints, is_one_clock: bool
) -> tuple[Ints, Ints, str]:
    """Where one side has more, its window is longer: drop the surplus at one end, if only one
    way is possible."""
    if len(sent) == len(received):
        return sent, received, _refusal(calls, sent, received, is_one_clock)
    n = min(len(sent), len(received))
    ways = [
        (s, r)
        for s, r in ((sent[:n], received[:n]), (sent[-n:], received[-n:]))
        if n and _refusal(calls, s, r, is_one_clock) == "" and _same_steps(calls, s, r)
    ]
    if len(ways) == 1:
        return (*ways[0], "")
    return sent, received, f"{len(sent)} sends, {len(received)} receives: the pairs are not clear"


def _same_steps(calls: Calls, sent: Ints, received: Ints) -> bool:
    steps = calls["step"][sent], calls["step"][received]
    known = (steps[0] != NOBODY) & (steps[1] != NOBODY)
    return not known.any() or float((steps[0][known] == steps[1][known]).mean()) >= 0.8
