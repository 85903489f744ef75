"""What a rank would have done as its peers do: ideal times, and windows changed by them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracekit.whatif.calls import last_starts, transfers_of
from tracekit.whatif.collectives.windows import ENTER, STEP_END, Item, Window

EXCHANGE = "all_to_all"

Operation = tuple[str, str, int]
Signature = tuple[Operation, ...]
"""Of the calls of a step: operation, kind of communicator, bytes."""


class Part(Struct):
    """A rank's step: its segments of own time, each ending with a call or with the step."""

    rank: int
    items: list[list[Item]]
    signature: Signature

    @property
    def own_ns(self) -> list[float]:
        return [sum(i.own_ns for i in segment) for segment in self.items]

    @property
    def enters(self) -> list[Item]:
        """The calls that it enters, in order."""
        return [segment[-1] for segment in self.items[:-1]]

    def move_up(self, k: int, done_ns: float) -> None:
        """Let the k-th call be entered when this much of the step's own time is done.

        Never before the call before it, nor later than now.
        """
        done = sum(i.own_ns for segment in self.items[:k] for i in segment)
        segment, entering = self.items[k], self.items[k][-1]
        kept: list[Item] = []
        after = segment[:-1]
        while after and done + after[0].own_ns <= done_ns:
            done += after[0].own_ns
            kept.append(after.pop(0))
        early = min(max(0.0, done_ns - done), after[0].own_ns if after else entering.own_ns)
        if after:
            after[0].own_ns -= early
            rest = entering.own_ns
        else:
            rest = entering.own_ns - early
        entering.own_ns = early
        self.items[k] = [*kept, entering]
        following = [*after, *self.items[k + 1]]
        if rest > 0 and following:
            following[len(after)].own_ns += rest
        self.items[k + 1] = following


def set_ideal(window: Window, stages: Mapping[int, int]) -> None:
    """Set the ideal own times of all items: what the peers of the rank's stage usually take."""
    by_step: dict[tuple[int, int | None], list[Part]] = defaultdict(list)
    by_rank: dict[int, list[Part]] = {}
    for rank in window.items:
        by_rank[rank] = parts_of(window, rank)
        for step, part in zip(window.steps, by_rank[rank], strict=True):
            by_step[step, stages.get(rank)].append(part)
    for parts in by_step.values():
        alike: dict[Signature, list[Part]] = defaultdict(list)
        for part in parts:
            alike[part.signature].append(part)
        # Other calls mean other work, unless only their order differs.
        same_work: dict[Signature, list[Part]] = defaultdict(list)
        for part in parts:
            same_work[tuple(sorted(part.signature))].append(part)
        for signature, group in alike.items():
            _release_queued(group)
            peers = same_work[tuple(sorted(signature))]
            if 2 * len(group) > len(peers):
                _by_segment(group)
            else:
                _by_step(group, peers)
    for rank, parts in by_rank.items():
        window.items[rank] = [i for part in parts for segment in part.items for i in segment]


def _release_queued(parts: Sequence[Part]) -> None:
    """Let queued calls be ready when they were on peers where nothing stood in their way.

    Ranks that wait for a late one have their calls queued behind the one that waits; the late
    rank does not. Compared by the share of the step's own time that was done. Where the call
    was queued on every rank, it was ready when the first rank began it, or before.
    """
    done = []
    for part in parts:
        total = sum(part.own_ns)
        done.append(np.cumsum(part.own_ns) / total if total > 0 else None)
    usable = [(p, d) for p, d in zip(parts, done, strict=True) if d is not None]
    for k in range(len(parts[0].enters) if usable else 0):
        free = [float(d[k]) for p, d in usable if not p.enters[k].is_queued]
        share = float(np.median(free)) if free else min(float(d[k]) for _, d in usable)
        for part, own_done in usable:
            if part.enters[k].is_queued and own_done[k] > share:
                part.move_up(k, share * sum(part.own_ns))


def parts_of(window: Window, rank: int) -> list[Part]:
    """The steps of a rank in the window; what follows the last is left out."""
    parts = []
    segments: list[list[Item]] = [[]]
    signature: list[tuple[str, str, int]] = []
    for item in window.items[rank]:
        segments[-1].append(item)
        if item.kind == ENTER:
            call = window.calls[item.call]
            op = call.op if rank not in call.sends else "send"
            signature.append((op, call.kind, call.size_bytes if op != "all_to_all" else 0))
            segments.append([])
        elif item.kind == STEP_END:
            parts.append(Part(rank, segments, tuple(signature)))
            segments, signature = [[]], []
    return parts


def _by_segment(parts: Sequence[Part]) -> None:
    times = np.array([p.own_ns for p in parts])
    typical = np.median(times, axis=0)
    for part, mine in zip(parts, times, strict=True):
        for segment, value, ideal in zip(part.items, mine, typical, strict=True):
            _share(segment, float(value), float(ideal))


def _by_step(parts: Sequence[Part], peers: Sequence[Part]) -> None:
    typical = float(np.median([sum(p.own_ns) for p in peers]))
    for part in parts:
        total = sum(part.own_ns)
        for segment, value in zip(part.items, part.own_ns, strict=True):
            _share(segment, value, value * typical / total if total > 0 else 0.0)


def _share(segment: Sequence[Item], own_ns: float, ideal_ns: float) -> None:
    if own_ns > 0:
        for item in segment:
            item.ideal_ns = item.own_ns * ideal_ns / own_ns
    elif segment:
        segment[-1].ideal_ns = ideal_ns


def without(window: Window, ranks: Iterable[int], stages: Mapping[int, int]) -> Window:
    """The window with these ranks doing what a typical peer does, in its order.

    A late rank does not stop where its peers do, so its own times alone do not say what it would
    do if it were not late. Where no peer makes the same calls, its times are scaled.
    """
    chosen = set(ranks)
    calls = {r: [i.call for i in items if i.kind == ENTER] for r, items in window.items.items()}
    work = {r: _work(window, r, calls[r]) for r in calls}
    made = {r: sorted(work[r]) for r in calls}
    spent = {r: sum(i.own_ns for i in items) for r, items in window.items.items()}
    items = dict(window.items)
    for rank in sorted(chosen & set(items)):
        peers = [
            r
            for r in items
            if r not in chosen and made[r] == made[rank] and stages.get(r) == stages.get(rank)
        ]
        if not peers:
            items[rank] = [replace(i, own_ns=i.ideal_ns) for i in items[rank]]
            continue
        middle = float(np.median([spent[r] for r in peers]))
        typical = min(peers, key=lambda r: (abs(spent[r] - middle), r))
        same = _counterparts(
            list(zip(calls[typical], work[typical], strict=True)),
            list(zip(calls[rank], work[rank], strict=True)),
        )
        items[rank] = [
            i if i.kind == STEP_END else replace(i, call=same[i.call])
            for i in window.items[typical]
        ]
    return replace(window, items=items)


def evenly(window: Window) -> Window:
    """The window with the experts' work dealt out evenly: between an all-to-all and the next, and
    in the transfers, each member takes the mean of all, so that nothing is added or lost."""
    calls = dict(window.calls)
    for number, call in window.calls.items():
        if call.op == EXCHANGE:
            mean = fmean(transfers_of(call).values())
            ends = {r: round(start + mean) for r, start in last_starts(call).items()}
            calls[number] = call.with_ends(ends)
    before: dict[int, dict[int, list[int]]] = defaultdict(dict)
    """By all-to-all and rank, the items that lead to it from the one before."""
    for rank, items in window.items.items():
        since: list[int] = []
        is_after = False
        for position, item in enumerate(items):
            since.append(position)
            if item.kind != ENTER:
                continue
            is_exchange = window.calls[item.call].op == EXCHANGE
            if is_after and is_exchange:
                before[item.call][rank] = since
            since, is_after = [], is_exchange
    evened = {rank: list(items) for rank, items in window.items.items()}
    for number, by_rank in before.items():
        if by_rank.keys() != window.calls[number].starts.keys():
            continue
        spent = {r: sum(evened[r][i].own_ns for i in some) for r, some in by_rank.items()}
        mean = fmean(spent.values())
        for rank, some in by_rank.items():
            for i in some:
                item = evened[rank][i]
                share = item.own_ns / spent[rank] if spent[rank] > 0 else float(i == some[-1])
                evened[rank][i] = replace(item, own_ns=share * mean)
    return replace(window, calls=calls, items=evened)


def _counterparts(
    theirs: Sequence[tuple[int, Operation]], own: Sequence[tuple[int, Operation]]
) -> dict[int, int]:
    """By call of a peer the call that the rank makes in its place, where both make as many alike.

    A call in which both do the same is itself. Threads that communicate side by side enter calls
    in either order, so the others go by what they do, and in order among those alike.
    """
    shared = set(theirs) & set(own)
    waiting: dict[Operation, deque[int]] = defaultdict(deque)
    for call, operation in own:
        if (call, operation) not in shared:
            waiting[operation].append(call)
    return {
        call: call if (call, operation) in shared else waiting[operation].popleft()
        for call, operation in theirs
    }


def _work(window: Window, rank: int, calls: Sequence[int]) -> Signature:
    signature = []
    for number in calls:
        call = window.calls[number]
        op = call.op if rank not in call.sends else "send"
        signature.append((op, call.kind, call.size_bytes if op != "all_to_all" else 0))
    return tuple(signature)
