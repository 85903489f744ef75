"""What waits for what: seen where something began late, and shared with equal steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.whatif.calls import Call
from tracekit.whatif.operations import Ints
from tracekit.whatif.streams.rows import CLOSE_NS, EARLY_NS, OP, SYNC, RankRows, Wait

_Place = tuple[int, int]
"""A rank's step: number of the rank, number of the step."""


def learn_waits(ranks: Sequence[RankRows], calls: Mapping[int, Call]) -> None:
    """Set ``follows``, ``waits`` and ``waits_told`` of the ranks."""
    contradicted: Counter[tuple[str, str, int]] = Counter()
    seen: Counter[tuple[str, str, int]] = Counter()
    families = []
    for events in ranks:
        rows = np.flatnonzero((events.call >= 0) & (events.tail >= 0))
        of_rank = _families(events, rows, calls)
        families.append((rows, of_rank))
        seen.update(of_rank)
        is_early = events.start[rows] < events.end[events.tail[rows]] - EARLY_NS
        contradicted.update(of_rank[i] for i in np.flatnonzero(is_early).tolist())
    for events, (rows, of_rank) in zip(ranks, families, strict=True):
        events.follows = np.zeros(len(events.kind), np.bool_)
        holds = np.array([contradicted[what] * 100 <= seen[what] for what in of_rank], np.bool_)
        events.follows[rows] = holds & (events.stream[rows] != events.compute_stream)
    for events in ranks:
        events.waits = _seen_waits(events)
    _share_waits(ranks)


def _families(
    events: RankRows, rows: Ints, calls: Mapping[int, Call]
) -> list[tuple[str, str, int]]:
    families = []
    for number, stream in zip(
        events.call[rows].tolist(), events.stream[rows].tolist(), strict=True
    ):
        call = calls[number]
        op = call.op if events.rank not in call.sends else "send"
        families.append((op, call.kind, stream))
    return families


def _seen_waits(events: RankRows) -> Ints:
    """Operations that began when something on another stream ended, and not for another reason.

    (row, the row that it waited for), in order.
    """
    free = events.free_at()
    is_op = events.kind == OP
    late = np.flatnonzero(is_op & (events.start - free > CLOSE_NS / 4))
    by_end = np.flatnonzero(is_op)[np.argsort(events.end[is_op], kind="stable")]
    ends, others, streams = events.end[by_end].tolist(), by_end.tolist(), events.stream.tolist()

    def latest(row: int, k: int, since: int, is_other_stream: bool) -> int:
        """The operation launched before the row that ended last, at ``since`` or later."""
        while k >= 0 and ends[k] >= since:
            other = int(others[k])
            if other < row and not (is_other_stream and streams[other] == streams[row]):
                return other
            k -= 1
        return -1

    waits: list[tuple[int, int]] = []
    at = events.start[late]
    positions = np.searchsorted(events.end[by_end], at + EARLY_NS, side="right") - 1
    for row, k, since in zip(
        late.tolist(), positions.tolist(), (at - CLOSE_NS).tolist(), strict=True
    ):
        other = latest(row, k, since, True)
        if other >= 0:
            waits.append((row, other))
    stops = np.flatnonzero(events.kind == SYNC)
    at = events.end[stops]
    positions = np.searchsorted(events.end[by_end], at + EARLY_NS, side="right") - 1
    last = _last_of_streams(events, is_op)
    for row, k, until in zip(stops.tolist(), positions.tolist(), at.tolist(), strict=True):
        if events.is_device_wide[row]:
            waits += [
                (row, int(last_rows[row]))
                for last_rows in last
                if last_rows[row] >= 0 and events.end[last_rows[row]] <= until + EARLY_NS
            ]
        else:
            other = latest(row, k, until - 10 * CLOSE_NS, False)
            if other >= 0 and events.end[other] > events.moment[row]:
                waits.append((row, other))
    return np.array(sorted(waits), np.int64).reshape(-1, 2)


def _last_of_streams(events: RankRows, is_op: npt.NDArray[np.bool_]) -> list[Ints]:
    """By stream, the last operation before each row; -1: none. Empty where nobody asks."""
    if not events.is_device_wide.any():
        return []
    rows = np.arange(len(events.kind))
    return [
        np.maximum.accumulate(np.where((events.stream == code) & is_op, rows, -1))
        for code in range(int(events.stream.max()) + 1)
    ]


def _told(events: RankRows) -> list[Wait | None]:
    """What was seen, by its place in the step; None: no call, and in an earlier step."""
    edges = np.array(events.edges)
    row, other = events.waits.T
    k = np.searchsorted(edges, row, side="right") - 1
    j = np.searchsorted(edges, other, side="right") - 1
    is_call = events.call[other] >= 0
    before = np.concatenate([[0], np.cumsum(events.call >= 0)])
    number = np.where(is_call, before[other] - before[edges[j]], other - edges[k])
    back = np.where(is_call, k - j, 0)
    return [
        Wait(call, steps, which) if known else None
        for call, steps, which, known in zip(
            is_call.tolist(), back.tolist(), number.tolist(), (is_call | (j == k)).tolist(),
            strict=True,
        )
    ]  # fmt: skip


class _All:
    """Rows of all ranks one after another, so that places are compared at once."""

    def __init__(self, ranks: Sequence[RankRows]) -> None:
        self.kind = np.concatenate([r.kind for r in ranks])
        self.stream = np.concatenate([r.stream for r in ranks])
        self.start = np.concatenate([r.start for r in ranks])
        self.end = np.concatenate([r.end for r in ranks])
        self.calls = np.flatnonzero(np.concatenate([r.call for r in ranks]) >= 0)
        self.base = np.cumsum([0, *(len(r.kind) for r in ranks)])
        """First row of each rank, and the number of rows."""
        edges = np.concatenate(
            [np.array(r.edges[:-1]) + b for r, b in zip(ranks, self.base, strict=False)]
        )
        self.first = np.append(edges, self.base[-1])
        """First row of each rank's steps."""
        self.first_call = np.searchsorted(self.calls, self.first)
        self.steps_before = np.cumsum([0, *(len(r.keys) for r in ranks)])

    def others(self, steps: Ints, numbers: Ints, wait: Wait) -> Ints:
        """The row that a wait means in each of these steps; -1: outside the window.

        ``steps``: numbers of steps of all ranks; ``numbers``: the same within the rank.
        """
        if not wait.is_call:
            return np.asarray(self.first[steps] + wait.number, np.int64)
        inside = numbers >= wait.back
        there = np.where(inside, steps - wait.back, 0)
        position = self.first_call[there] + wait.number
        inside &= position < self.first_call[there + 1]
        rows = np.full(len(steps), -1, np.int64)
        rows[inside] = self.calls[position[inside]]
        return rows


def _share_waits(ranks: Sequence[RankRows]) -> None:
    """Give every step what equal steps were seen to wait for, where that contradicts none."""
    rows = _All(ranks)
    equal: dict[int, list[_Place]] = defaultdict(list)
    seen: dict[_Place, list[tuple[int, int, Wait | None]]] = defaultdict(list)
    for rank, events in enumerate(ranks):
        events.waits_told = [{} for _ in events.keys]
        for k, key in enumerate(events.keys):
            equal[key].append((rank, k))
        steps = np.searchsorted(events.edges, events.waits[:, 0], side="right") - 1
        for k, (row, other), told in zip(
            steps.tolist(), events.waits.tolist(), _told(events), strict=True
        ):
            seen[rank, k].append((row - events.edges[k], int(events.stream[other]), told))
    shared: list[Ints] = []
    for places in equal.values():
        candidates: dict[tuple[int, Wait], int] = {}
        for place in places:
            for position, stream, told in seen.get(place, ()):
                if told is not None:
                    candidates.setdefault((position, told), stream)
        numbers = np.array([k for _, k in places])
        steps = np.array([rows.steps_before[rank] + k for rank, k in places])
        agreed: dict[int, list[Wait]] = {}
        for (position, told), stream in candidates.items():
            other = rows.others(steps, numbers, told)
            after = (rows.first[steps] + position)[other >= 0]
            other = other[other >= 0]
            until = (rows.end if (rows.kind[after] == SYNC).all() else rows.start)[after] + EARLY_NS
            if (rows.stream[other] != stream).any() or (rows.end[other] > until).any():
                continue
            shared.append(np.stack([after, other], axis=1))
            agreed.setdefault(position, []).append(told)
        # What contradicts another step is kept where it was seen.
        for rank, k in places:
            ranks[rank].waits_told[k] = _with_seen(agreed, seen.get((rank, k), ()))
    if not shared:
        return
    pairs = np.concatenate(shared)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    cuts = np.searchsorted(pairs[:, 0], rows.base)
    for rank, events in enumerate(ranks):
        shared_here = pairs[cuts[rank] : cuts[rank + 1]] - rows.base[rank]
        events.waits = np.concatenate([events.waits, shared_here])


def _with_seen(
    agreed: dict[int, list[Wait]], seen: Sequence[tuple[int, int, Wait | None]]
) -> dict[int, list[Wait]]:
    """What all equal steps wait for, and what this one was seen to."""
    more: dict[int, list[Wait]] = {}
    for position, _, told in seen:
        known = agreed.get(position)
        if known is None or (told is not None and told not in known):
            waits = more.setdefault(position, [*(known or ())])
            if told is not None and told not in waits:
                waits.append(told)
    return {**agreed, **more} if more else agreed
