"""Which ranks' lanes are one communicator, where the trace does not say.

gloo names no group: its only identity is the worker thread. Old NCCL traces have none either:
there the stream stands in. The members' calls decide: they must agree in order, operation, size
and type, and nobody may leave a synchronising operation before the last member has entered.
Groups that the traces list (``distributedInfo.pg_config``) are tried; without a list, the whole
world is, and then groups that form by themselves. What fits two groups equally fits none, but for
the group of all ranks, which every job has whether it is used or not: what fits it and the groups
of one dimension alike is theirs, unless they end only when a rank outside has come. Groups of the
same members do not compete: who called what with whom is the same, whichever of them it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from tracekit.derive.align import Fit, find_shift, fit
from tracekit.derive.calls import Calls, Lane
from tracekit.values import group_id

if TYPE_CHECKING:
    from tracekit.derive.calls import Ints

DEFAULT_GROUP = "default_pg"
"""How PyTorch describes the group of all ranks."""

CLEAR_RATIO = 0.5
"""A group fits a lane best if its ends scatter less than this share of the next best group's."""

MAX_TAIL_RATIO = 10
"""A call is a listed group's if it ends, after its last member has come, within so many times what
it ends in after the last of all ranks has: more, and it has waited for somebody outside."""

MAX_NODES = 128
"""Lanes beyond which groups are not searched for pair by pair."""


class Group(Struct, frozen=True):
    """A process group as the sources list it."""

    group_id: str
    ranks: tuple[int, ...]
    name: str | None = None
    description: str | None = None
    size: int | None = None
    is_complete: bool = True


class Communicator(Struct):
    """The lanes that belong together, or that cannot be put together for ``refusal``."""

    attempt: int
    capture: int
    group_id: str
    group_source: str
    lanes: dict[int, Ints]
    members_count: int | None = None
    group: Group | None = None
    refusal: str = ""
    is_pair: bool = False
    clocks: dict[int, int] = field(default_factory=dict)


def pools(calls: Calls, lanes: Sequence[Lane]) -> list[Lane]:
    """Worker threads of one process group joined to one lane; other lanes as they are.

    gloo starts its threads group by group, so those of one group are neighbours in number, and
    they take the group's calls in turn, so they run the same kinds of operation.
    """
    ordered = sorted(lanes, key=lambda lane: (len(lane.name), lane.name))
    pooled: list[Lane] = []
    waiting: Lane | None = None
    for lane in ordered:
        if not lane.name.startswith("t"):
            pooled.append(lane)
        elif waiting is not None and _is_pool(calls, waiting, lane):
            pooled.append(_pool(calls, waiting, lane))
            waiting = None
        else:
            if waiting is not None:
                pooled.append(waiting)
            waiting = lane
    return pooled + ([waiting] if waiting is not None else [])


def _pool(calls: Calls, lane: Lane, other: Lane) -> Lane:
    import numpy as np

    rows = np.concatenate([lane.rows, other.rows])
    rows = rows[np.lexsort((calls["place"][rows], calls["start_ns"][rows]))]
    return Lane(lane.attempt, lane.capture, lane.rank, lane.clock_id, lane.name, rows)


def _as_elsewhere(calls: Calls, lanes: list[Lane], elsewhere: Sequence[Lane]) -> list[Lane]:
    """A rank's lanes, neighbouring threads joined where other ranks' pools say that they are one.

    Where a step has an even number of calls, two threads that take turns may run different kinds
    of them in every step, and share none.
    """
    joined: list[Lane] = []
    for lane in lanes:
        last = joined[-1] if joined else None
        if last is not None and last.name.startswith("t") and lane.name.startswith("t"):
            pool = _pool(calls, last, lane)
            if any(
                _fit(calls, other, pool) is not None
                and _fit(calls, other, last) is None
                and _fit(calls, other, lane) is None
                for other in elsewhere
            ):
                joined[-1] = pool
                continue
        joined.append(lane)
    return joined


def _is_pool(calls: Calls, lane: Lane, other: Lane) -> bool:
    ours, theirs = set(calls.kind[lane.rows].tolist()), set(calls.kind[other.rows].tolist())
    return len(ours & theirs) >= 0.5 * min(len(ours), len(theirs))


def infer(
    calls: Calls, lanes: Sequence[Lane], groups: Iterable[Group], world_size: int | None
) -> list[Communicator]:
    """Communicators of one capture's lanes that carry no group."""
    by_rank: dict[int, list[Lane]] = defaultdict(list)
    for lane in lanes:
        by_rank[lane.rank].append(lane)
    pooled = {rank: pools(calls, communicators) for rank, communicators in sorted(by_rank.items())}
    alone = {id(lane) for lane in lanes}
    shared = [lane for ranks in pooled.values() for lane in ranks if id(lane) not in alone]
    for rank, own in pooled.items():
        if len(own) > 1:
            pooled[rank] = _as_elsewhere(calls, own, [x for x in shared if x.rank != rank])
    listed = _of_other_members([g for g in groups if g.is_complete and len(g.ranks) > 1])
    taken: set[int] = set()
    communicators = _of_listed(calls, pooled, listed, taken)
    is_listed = any(set(g.ranks) >= set(pooled) for g in listed)
    if not is_listed or not listed:
        communicators += _of_world(calls, pooled, world_size, taken)
        communicators += _of_behaviour(calls, pooled, taken)
    rest = [
        lane for found_lanes in pooled.values() for lane in found_lanes if id(lane) not in taken
    ]
    return communicators + [_refused(lane, _why_not(pooled)) for lane in rest]


def _of_other_members(listed: Sequence[Group]) -> list[Group]:
    """One group for each set of members, under the name that it has beside the group of all ranks;
    without a name where there are several."""
    by_members: dict[frozenset[int], list[Group]] = defaultdict(list)
    for group in listed:
        by_members[frozenset(group.ranks)].append(group)
    kept = []
    for alike in by_members.values():
        others = [g for g in alike if g.description != DEFAULT_GROUP] or alike
        is_one = len({(g.name, g.description) for g in others}) == 1
        kept.append(others[0] if is_one else replace(others[0], name=None, description=None))
    return kept


def _why_not(pooled: dict[int, list[Lane]]) -> str:
    if len(pooled) < 2:
        return "no other member was traced"
    return "the trace names no group, and the calls fit none or several"


def _refused(lane: Lane, reason: str) -> Communicator:
    return Communicator(
        lane.attempt,
        lane.capture,
        f"rank{lane.rank}/{lane.name}",
        "order",
        {lane.rank: lane.rows},
        refusal=reason,
        clocks={lane.rank: lane.clock_id},
    )


# --- listed groups ------------------------------------------------------------------------------


class _Guess(Struct, frozen=True):
    """One way to read lanes as a group's."""

    group: Group
    lanes: dict[int, Lane]
    scatter_ns: float

    def tail_ns(self, calls: Calls) -> float | None:
        """From the last member's entry to the first one's end, mean; None where members are on
        several clocks, or made different numbers of calls."""
        import numpy as np

        lanes = list(self.lanes.values())
        if len({lane.clock_id for lane in lanes}) > 1 or len({len(x.rows) for x in lanes}) > 1:
            return None
        entered = np.max([calls["start_ns"][lane.rows] for lane in lanes], axis=0)
        left = np.min([calls["end_ns"][lane.rows] for lane in lanes], axis=0)
        return float(np.maximum(left - entered, 0).mean())


def _of_listed(
    calls: Calls, pooled: dict[int, list[Lane]], listed: Sequence[Group], taken: set[int]
) -> list[Communicator]:
    guesses: list[_Guess] = []
    for group in listed:
        members = [r for r in group.ranks if r in pooled]
        if len(members) < 2:
            continue
        for lane in pooled[members[0]]:
            guess = _guess(calls, group, lane, [pooled[r] for r in members[1:]])
            if guess is not None:
                guesses.append(guess)
    communicators = []
    for guess in _clear(guesses):
        taken |= {id(lane) for lane in guess.lanes.values()}
        communicators.append(_joined(guess.lanes, guess.group, "behaviour"))
    done = {c.group_id for c in communicators}
    for guess in _rather_than_all(calls, guesses, set(pooled), done):
        if taken.isdisjoint(id(lane) for lane in guess.lanes.values()):
            taken |= {id(lane) for lane in guess.lanes.values()}
            communicators.append(_joined(guess.lanes, guess.group, "behaviour"))
    return communicators


def _clear(guesses: Sequence[_Guess]) -> list[_Guess]:
    """Guesses that fit clearly better than every other one of the same lanes. Lanes that are a
    group's are no other's: so those that are left are asked again without them."""
    found: list[_Guess] = []
    while True:
        by_lane: dict[int, list[_Guess]] = defaultdict(list)
        for guess in guesses:
            for lane in guess.lanes.values():
                by_lane[id(lane)].append(guess)
        # A lone rival that fits less well is no rival; two that fit alike leave it open.
        clear = [
            guess
            for guess in guesses
            if all(
                guess.scatter_ns < CLEAR_RATIO * other.scatter_ns
                for lane in guess.lanes.values()
                for other in by_lane[id(lane)]
                if other is not guess
            )
        ]
        if not clear:
            return found
        found += clear
        taken = {id(lane) for guess in clear for lane in guess.lanes.values()}
        guesses = [g for g in guesses if taken.isdisjoint(id(x) for x in g.lanes.values())]


def _rather_than_all(
    calls: Calls, guesses: Sequence[_Guess], everybody: set[int], done: set[str]
) -> list[_Guess]:
    """Groups of the one dimension whose calls the lanes can be that fit all ranks as well.

    Ranks that are late together, all of a host, leave no other mark: their calls end alike. Groups
    that are ``done`` have their lanes already.
    """
    preferred: list[_Guess] = []
    for whole in guesses:
        tail_ns = whole.tail_ns(calls) if set(whole.group.ranks) == everybody else None
        if tail_ns is None:
            continue
        dimensions: dict[str, list[_Guess]] = defaultdict(list)
        for guess in guesses:
            is_part = set(guess.group.ranks) < everybody and guess.group.group_id not in done
            if is_part and all(whole.lanes[r] is lane for r, lane in guess.lanes.items()):
                dimensions[guess.group.description or ""].append(guess)
        fitting = [
            parts
            for parts in dimensions.values()
            if sorted(r for part in parts for r in part.lanes) == sorted(everybody)
            and all((part.tail_ns(calls) or 0.0) <= MAX_TAIL_RATIO * tail_ns for part in parts)
        ]
        if len(fitting) == 1:
            preferred += fitting[0]
    return preferred


def _guess(
    calls: Calls, group: Group, lane: Lane, others: Sequence[Sequence[Lane]]
) -> _Guess | None:
    """The group's calls if ``lane`` is its first member's lane; None if that cannot be."""
    chosen = {lane.rank: lane}
    scatter = 0.0
    for candidates in others:
        fits = [(f, c) for c in candidates if (f := _fit(calls, lane, c)) is not None]
        if not fits:
            return None
        best, fitting = min(fits, key=lambda pair: pair[0].scatter_ns)
        chosen[fitting.rank] = fitting
        scatter = max(scatter, best.scatter_ns)
    return _Guess(group, chosen, scatter)


def _fit(calls: Calls, a: Lane, b: Lane) -> Fit | None:
    is_one_clock = a.clock_id == b.clock_id
    shift = find_shift(calls, a.rows, b.rows, is_one_clock=is_one_clock)
    if shift.value is None:
        return None
    return fit(calls, a.rows, b.rows, shift.value, is_one_clock=is_one_clock)


def _joined(lanes: dict[int, Lane], group: Group, source: str) -> Communicator:
    first = next(iter(lanes.values()))
    return Communicator(
        first.attempt,
        first.capture,
        group.group_id,
        source,
        {rank: lane.rows for rank, lane in sorted(lanes.items())},
        members_count=group.size or len(group.ranks),
        group=group,
        clocks={rank: lane.clock_id for rank, lane in lanes.items()},
    )


# --- no list ------------------------------------------------------------------------------------


def _of_world(
    calls: Calls, pooled: dict[int, list[Lane]], world_size: int | None, taken: set[int]
) -> list[Communicator]:
    """Lanes that every traced rank has and that agree: communicators of the whole world."""
    if len(pooled) < 2:
        return []
    ranks = list(pooled)
    group = _group(ranks if world_size in (None, len(ranks)) else range(world_size or 0))
    communicators = []
    for lane in pooled[ranks[0]]:
        if id(lane) in taken:
            continue
        others = [[c for c in pooled[r] if id(c) not in taken] for r in ranks[1:]]
        guess = _guess(calls, group, lane, others)
        if guess is not None:
            taken |= {id(c) for c in guess.lanes.values()}
            communicators.append(_joined(guess.lanes, group, "behaviour"))
    return communicators


def _of_behaviour(
    calls: Calls, pooled: dict[int, list[Lane]], taken: set[int]
) -> list[Communicator]:
    """Groups that form by themselves: lanes that fit each other, and no other lane."""
    lanes = [
        lane for communicators in pooled.values() for lane in communicators if id(lane) not in taken
    ]
    if not 2 <= len(lanes) <= MAX_NODES:
        return []
    friends: dict[int, set[int]] = {i: {i} for i in range(len(lanes))}
    for i, j in combinations(range(len(lanes)), 2):
        if lanes[i].rank != lanes[j].rank and _fit(calls, lanes[i], lanes[j]) is not None:
            friends[i].add(j)
            friends[j].add(i)
    communicators = []
    for i, members in friends.items():
        is_clique = all(friends[j] == members for j in members)
        ranks = sorted(lanes[j].rank for j in members)
        if i != min(members) or not is_clique or len(set(ranks)) != len(members) or len(ranks) < 2:
            continue
        taken |= {id(lanes[j]) for j in members}
        communicators.append(
            _joined({lanes[j].rank: lanes[j] for j in members}, _group(ranks), "behaviour")
        )
    return communicators


def _group(ranks: Iterable[int]) -> Group:
    members = tuple(ranks)
    return Group(group_id(members), members, size=len(members))
