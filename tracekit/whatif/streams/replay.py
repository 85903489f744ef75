"""The replay itself: a rank's blocks as events, and a window's events in all scenarios at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tracekit.errors import InputError
from tracekit.whatif.calls import Floats, Scenarios, leave
from tracekit.whatif.streams.rows import END, OP, SYNC, Block, Ints, RankBlocks
from tracekit.whatif.streams.windows import Event, Window

_RUN, _CALL, _SINGLE, _HOST, _BOUNDARY = 0, 1, 2, 3, 4


def compile_rank(rank: RankBlocks, variants: Sequence[Sequence[Block]]) -> list[Event]:
    """The events of a rank; every number is an array over variants, which share their rows."""
    blocks = variants[0]
    kind = np.concatenate([b.kind for b in blocks])
    stream = np.concatenate([b.stream for b in blocks])
    call = np.concatenate([b.call for b in blocks])
    follows = np.concatenate([b.follows_compute for b in blocks])
    host = np.stack([np.concatenate([b.host_ns for b in v]) for v in variants])
    work = np.stack([np.concatenate([b.work_ns for b in v]) for v in variants])
    lag = np.stack([np.concatenate([b.lag_ns for b in v]) for v in variants])
    came = np.cumsum(host, axis=1)
    waits, marked = _resolved(blocks)
    is_cut = (kind != OP) | (call >= 0)
    is_cut[list(waits)] = True
    is_cut[list(marked)] = True
    events: list[tuple[int, int, Event]] = []
    latency, gap = rank.latency_ns, rank.gap_ns
    bulk = np.flatnonzero(~is_cut)
    segment = np.cumsum(is_cut)
    if len(bulk):
        order = np.lexsort((bulk, segment[bulk], stream[bulk]))
        bulk = bulk[order]
        starts = np.flatnonzero(
            np.concatenate([[True], (np.diff(segment[bulk]) != 0) | (np.diff(stream[bulk]) != 0)])
        )
        took = work[:, bulk] + lag[:, bulk] + gap
        total = np.add.reduceat(took, starts, axis=1)
        # Launched last of all constraints: its launch, and then all that follows in the run.
        so_far = np.cumsum(took, axis=1)
        ready = came[:, bulk] + latency - gap - (so_far - took)
        last = np.concatenate([starts[1:], [len(bulk)]]) - 1
        bound = np.maximum.reduceat(ready, starts, axis=1) + so_far[:, last]
        for j, a in enumerate(starts.tolist()):
            row = int(bulk[a])
            events.append(
                (int(segment[row]), 1, (_RUN, int(stream[row]), total[:, j], bound[:, j]))
            )
    steps = iter(b.step for b in blocks)
    for row in np.flatnonzero(is_cut).tolist():
        waited = waits.get(row, ())
        if kind[row] == END:
            event: Event = (_BOUNDARY, next(steps), came[:, row])
        elif kind[row] == SYNC:
            event = (_HOST, waited, came[:, row], work[:, row])
        elif call[row] >= 0:
            event = (
                _CALL, int(call[row]), int(stream[row]), came[:, row] + latency, lag[:, row],
                waited, bool(follows[row]),
            )  # fmt: skip
        else:
            event = (
                _SINGLE, int(stream[row]), came[:, row] + latency, lag[:, row] + work[:, row],
                waited, row if row in marked else -1,
            )  # fmt: skip
        # A cut row ends the segment before it: runs of a segment come after its opening cut.
        events.append((int(segment[row]), 0, event))
    events.sort(key=lambda e: e[:2])
    return [e for _, _, e in events]


def _resolved(
    blocks: Sequence[Block],
) -> tuple[dict[int, list[tuple[bool, int]]], set[int]]:
    """By row what it waits for (calls by number, others by row); and rows that are waited for."""
    waits: dict[int, list[tuple[bool, int]]] = {}
    marked: set[int] = set()
    first = 0
    calls = [b.calls.tolist() for b in blocks]
    for k, block in enumerate(blocks):
        for position, told in block.waits.items():
            found = []
            for one in told:
                if not one.is_call:
                    found.append((False, first + one.number))
                    marked.add(first + one.number)
                elif one.back <= k and one.number < len(calls[k - one.back]):
                    found.append((True, calls[k - one.back][one.number]))
            waits[first + position] = found
        first += len(block.kind)
    return waits, marked


class WindowReplay:
    """One window in all scenarios at once."""

    def __init__(
        self,
        window: Window,
        events: Mapping[int, list[Event]],
        variant: Mapping[int, Ints],
        ideal: Mapping[int, Mapping[int, float]],
        how: Scenarios,
    ) -> None:
        self.window, self.events, self.variant = window, events, variant
        self.ideal, self.how = ideal, how
        self.origin = min(r.begin_ns for r in window.ranks.values())
        self.left: dict[int, dict[int, Floats]] = {}
        self.entered: dict[int, dict[int, tuple[Floats, Floats, int | None]]] = defaultdict(dict)
        self.held: dict[int, set[int]] = defaultdict(set)
        self.waiting: dict[int, list[int]] = defaultdict(list)
        self.todo: list[int] = sorted(events)
        count = how.count
        self.offset = {
            r: np.full(count, float(window.ranks[r].begin_ns - self.origin)) for r in events
        }
        """What the host's own time is counted from: it moves on when the host waits."""
        self.free: dict[tuple[int, int], Floats] = {
            (r, s): np.full(count, t - self.origin)
            for r in events
            for s, t in window.ranks[r].busy_until_ns.items()
        }
        self.tail: dict[tuple[int, int], int] = {}
        """The call that was launched last on a stream and has not been waited for."""
        self.marks: dict[tuple[int, int], Floats] = {}
        self.never = np.full(count, -math.inf)

    def run(self) -> Floats:
        """Ends of the steps after the window's start: (step, scenario), in ns."""
        position = dict.fromkeys(self.events, 0)
        ends = {step: np.zeros(self.how.count) for step in self.window.steps}
        while self.todo:
            rank = self.todo.pop()
            events, chosen = self.events[rank], self.variant[rank]
            while position[rank] < len(events):
                event = events[position[rank]]
                missing = self._missing(rank, event)
                if missing >= 0:
                    self.waiting[missing].append(rank)
                    break
                self._do(rank, event, chosen, ends)
                position[rank] += 1
        if any(position[r] < len(e) for r, e in self.events.items()):
            raise InputError(
                "cannot be replayed: ranks call the matched collectives in orders that wait for "
                "each other for ever",
                hint="tracekit query RUN match_coverage",
            )
        return np.array([ends[s] for s in self.window.steps])

    def _missing(self, rank: int, event: Event) -> int:
        """A call that must be left before this can be replayed; -1: none."""
        what = event[0]
        if what == _BOUNDARY:
            return -1
        streams: tuple[int, ...] = ()
        waited: Iterable[tuple[bool, int]] = ()
        if what == _RUN:
            streams = (event[1],)
        elif what == _SINGLE:
            streams, waited = (event[1],), event[4]
        elif what == _HOST:
            waited = event[1]
        else:
            waited = event[5]
            if event[6]:
                streams = (self.window.ranks[rank].compute_stream,)
        for stream in streams:
            tail = self.tail.get((rank, stream), -1)
            if tail >= 0 and tail not in self.left:
                return tail
        for is_call, number in waited:
            if is_call and number not in self.left:
                return number
        return -1

    def _stream(self, rank: int, stream: int) -> Floats:
        """When a stream has done what it was given."""
        tail = self.tail.get((rank, stream), -1)
        if tail >= 0:
            return self.left[tail][rank]
        return self.free.get((rank, stream), self.never)

    def _waited(self, rank: int, now: Floats, waited: Iterable[tuple[bool, int]]) -> Floats:
        for is_call, number in waited:
            other = self.left[number][rank] if is_call else self.marks.get((rank, number))
            if other is not None:
                now = np.maximum(now, other)
        return now

    def _do(self, rank: int, event: Event, chosen: Ints, ends: Mapping[int, Floats]) -> None:
        own = self.window.ranks[rank]
        offset = self.offset[rank]
        what = event[0]
        if what == _RUN:
            _, stream, total, bound = event
            free = self._stream(rank, stream) + total[chosen]
            self.free[rank, stream] = np.maximum(free, offset + bound[chosen])
            self.tail.pop((rank, stream), None)
        elif what == _CALL:
            _, number, stream, came, lag, waited, follows = event
            now = self._waited(rank, offset + came[chosen], waited)
            if follows:
                now = np.maximum(now, self._stream(rank, own.compute_stream))
            before = self.tail.get((rank, stream), -1)
            if before < 0:
                now = np.maximum(now, self.free.get((rank, stream), self.never) + own.gap_ns)
            self.tail[rank, stream] = number
            self._enter(number, rank, now, lag[chosen], before if before >= 0 else None)
        elif what == _SINGLE:
            _, stream, came, took, waited, mark = event
            now = np.maximum(self._stream(rank, stream) + own.gap_ns, offset + came[chosen])
            now = self._waited(rank, now, waited) + took[chosen]
            self.free[rank, stream] = now
            self.tail.pop((rank, stream), None)
            if mark >= 0:
                self.marks[rank, mark] = now
        elif what == _HOST:
            _, waited, came, after = event
            here = offset + came[chosen]
            self.offset[rank] = self._waited(rank, here, waited) + after[chosen] - came[chosen]
        else:
            _, step, came = event
            np.maximum(ends[step], offset + came[chosen], out=ends[step])

    def _enter(self, number: int, rank: int, now: Floats, lag: Floats, before: int | None) -> None:
        self.entered[number][rank] = now, lag, before
        if len(self.entered[number]) == len(self.window.calls[number].starts):
            self._complete(number)

    def _complete(self, number: int) -> None:
        """Let everybody leave a call that all have entered, and what follows from that."""
        ready = [number]
        while ready:
            one = ready.pop()
            entered = self.entered[one]
            missing = {b for _, _, b in entered.values() if b is not None and b not in self.left}
            if missing:
                self.held[missing.pop()].add(one)
                continue
            times = {}
            for rank, (now, lag, before) in entered.items():
                gap = self.window.ranks[rank].gap_ns
                free = self.never if before is None else self.left[before][rank] + gap
                times[rank] = np.maximum(now, free) + lag
            del self.entered[one]
            self.left[one] = leave(one, self.window.calls[one], times, self.ideal, self.how)
            self.todo += self.waiting.pop(one, ())
            ready += self.held.pop(one, ())
