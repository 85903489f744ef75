"""The replay itself: a rank's blocks as events, and a window's events in all scenarios at once.

Ranks that do the same in the same order go through their events together, so that every step of
the replay is one operation on an array over ranks and scenarios. Where ranks that do the same wait
for each other (stages of a pipeline that nobody told apart), each goes by itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.errors import InputError
from tracekit.whatif.calls import Floats, Scenarios, leave
from tracekit.whatif.streams.rows import END, OP, SYNC, Block, Ints, RankBlocks
from tracekit.whatif.streams.windows import Event, Program, Window

_RUN, _CALL, _SINGLE, _HOST, _BOUNDARY = 0, 1, 2, 3, 4

Waited = tuple[tuple[bool, int], ...]
"""What an event waits for: (True, the k-th call of the rank) or (False, a marked row)."""


def compile_rank(rank: RankBlocks, variants: Sequence[Sequence[Block]]) -> Program:
    """The events of a rank, with times of each variant; variants share their rows."""
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
    latency, gap = rank.latency_ns, rank.gap_ns
    segment = np.cumsum(is_cut)
    cut, bulk = np.flatnonzero(is_cut), np.flatnonzero(~is_cut)
    bulk = bulk[np.lexsort((bulk, segment[bulk], stream[bulk]))]
    is_first = np.ones(len(bulk), np.bool_)
    is_first[1:] = (np.diff(segment[bulk]) != 0) | (np.diff(stream[bulk]) != 0)
    starts = np.flatnonzero(is_first)
    total = bound = np.zeros((len(variants), 0))
    if len(bulk):
        took = work[:, bulk] + lag[:, bulk] + gap
        total = np.add.reduceat(took, starts, axis=1)
        # Launched last of all constraints: its launch, and then all that follows in the run.
        so_far = np.cumsum(took, axis=1)
        ready = came[:, bulk] + latency - gap - (so_far - took)
        last = np.concatenate([starts[1:], [len(bulk)]]) - 1
        bound = np.maximum.reduceat(ready, starts, axis=1) + so_far[:, last]
    is_call, is_end = call[cut] >= 0, kind[cut] == END
    is_host = kind[cut] == SYNC
    is_single = ~(is_call | is_end | is_host)
    # Of a run its total and its bound; of others when the host came to it, and what follows.
    first = came[:, cut] + np.where(is_call | is_single, latency, 0.0)
    second = np.where(is_call, 0.0, work[:, cut]) + np.where(is_host, 0.0, lag[:, cut])
    # A cut row ends the segment before it: runs of a segment come after its opening cut.
    order = np.argsort(
        np.concatenate([2 * segment[bulk[starts]] + 1, 2 * segment[cut]]), kind="stable"
    )
    what = np.select([is_end, is_host, is_call], [_BOUNDARY, _HOST, _CALL], _SINGLE)
    number = np.where(is_call, np.cumsum(is_call) - 1, -1)
    number = np.where(is_end, np.cumsum(is_end) - 1, number)
    number[np.isin(cut, list(marked)) & is_single] = cut[np.isin(cut, list(marked)) & is_single]
    runs = len(starts)
    codes = np.concatenate([np.full(runs, _RUN), what])[order]
    streams = np.concatenate([stream[bulk[starts]], stream[cut]])[order]
    numbers = np.concatenate([np.full(runs, -1), number])[order]
    followed = np.concatenate([np.zeros(runs, np.bool_), follows[cut]])[order]
    waited: list[Waited] = [()] * runs + [waits.get(row, ()) for row in cut.tolist()]
    events: tuple[Event, ...] = tuple(
        zip(
            codes.tolist(),
            streams.tolist(),
            numbers.tolist(),
            followed.tolist(),
            (waited[i] for i in order.tolist()),
            strict=True,
        )
    )
    return Program(
        events,
        call[call >= 0],
        np.concatenate([total, first], axis=1)[:, order].T,
        np.concatenate([bound, second], axis=1)[:, order].T,
    )


def _resolved(blocks: Sequence[Block]) -> tuple[dict[int, Waited], set[int]]:
    """By row what it waits for; and rows that are waited for and are no calls."""
    waits: dict[int, Waited] = {}
    marked: set[int] = set()
    row = 0
    counts = [len(b.calls) for b in blocks]
    first_calls = [sum(counts[:k]) for k in range(len(blocks))]
    for k, block in enumerate(blocks):
        for position, told in block.waits.items():
            found = []
            for one in told:
                if not one.is_call:
                    found.append((False, row + one.number))
                    marked.add(row + one.number)
                elif one.back <= k and one.number < counts[k - one.back]:
                    found.append((True, first_calls[k - one.back] + one.number))
            waits[row + position] = tuple(found)
        row += len(block.kind)
    return waits, marked


@dataclass
class _Entry:
    """A call as the ranks of a team enter it: (rank, scenario), in ns."""

    now: Floats
    lag: Floats
    before: int
    """The call before it on its stream that had not been waited for; -1: none."""


class _Team:
    """Ranks that do the same: their state, and what their calls left behind."""

    def __init__(
        self,
        ranks: Sequence[RankBlocks],
        programs: Sequence[Program],
        variant: Mapping[int, Ints],
        origin: int,
        count: int,
    ) -> None:
        self.ranks = [r.rank for r in ranks]
        self.events = programs[0].events
        self.calls = np.stack([p.calls for p in programs], axis=1)
        """Numbers of the collectives: (call, rank)."""
        self._first = np.stack([p.first for p in programs], axis=1)
        self._second = np.stack([p.second for p in programs], axis=1)
        chosen = np.stack([variant[r] for r in self.ranks])
        self._chosen = chosen + self._first.shape[2] * np.arange(len(ranks))[:, None]
        self.compute_stream = ranks[0].compute_stream
        self.gap = np.array([[r.gap_ns] for r in ranks])
        self.position = 0
        self.never = np.full((len(ranks), count), -math.inf)
        self.offset = np.repeat([[float(r.begin_ns - origin)] for r in ranks], count, axis=1)
        """What the host's own time is counted from: it moves on when the host waits."""
        self.free: dict[int, Floats] = {}
        for row, one in enumerate(ranks):
            for stream, until in one.busy_until_ns.items():
                self.free.setdefault(stream, self.never.copy())[row] = until - origin
        self.tail: dict[int, int] = {}
        """The call that was launched last on a stream and has not been waited for."""
        self.marks: dict[int, Floats] = {}
        self.entered: dict[int, _Entry] = {}
        self.left: dict[int, Floats] = {}
        self.missing = [len(ranks)] * len(self.calls)
        """By call, ranks that have not left it."""

    def first(self, event: int) -> Floats:
        found: Floats = self._first[event].take(self._chosen)
        return found

    def second(self, event: int) -> Floats:
        found: Floats = self._second[event].take(self._chosen)
        return found

    def blocked_by(self, event: Event) -> int:
        """A call that must be left before this can be replayed; -1: none."""
        what, stream, _, follows, waited = event
        if what == _BOUNDARY:
            return -1
        if what == _CALL:
            tail = self.tail.get(self.compute_stream, -1) if follows else -1
        else:
            tail = self.tail.get(stream, -1) if what != _HOST else -1
        if tail >= 0 and self.missing[tail]:
            return tail
        for is_call, number in waited:
            if is_call and self.missing[number]:
                return number
        return -1

    def stream_free(self, stream: int) -> Floats:
        """When a stream has done what it was given."""
        tail = self.tail.get(stream, -1)
        return self.left[tail] if tail >= 0 else self.free.get(stream, self.never)

    def waited(self, now: Floats, waited: Waited) -> Floats:
        for is_call, number in waited:
            other = self.left[number] if is_call else self.marks.get(number)
            if other is not None:
                now = np.maximum(now, other)
        return now


class WindowReplay:
    """One window in all scenarios at once."""

    def __init__(
        self,
        window: Window,
        programs: Mapping[int, Program],
        variant: Mapping[int, Ints],
        ideal: Mapping[int, float],
        how: Scenarios,
    ) -> None:
        self._window, self._programs, self._variant = window, programs, variant
        self._ideal, self._how = ideal, how

    def run(self) -> Floats:
        """Ends of the steps after the window's start: (step, scenario), in ns."""
        together: dict[object, list[int]] = defaultdict(list)
        for rank, program in sorted(self._programs.items()):
            one = self._window.ranks[rank]
            together[one.stage, one.compute_stream, program.events].append(rank)
        for teams in (list(together.values()), [[rank] for rank in sorted(self._programs)]):
            found = self._run(teams)
            if found is not None:
                return found
        raise InputError(
            "cannot be replayed: ranks call the matched collectives in orders that wait for "
            "each other for ever",
            hint="tracekit query RUN match_coverage",
        )

    def _run(self, teams: Sequence[Sequence[int]]) -> Floats | None:
        """The same with these ranks going together; None where they wait for each other."""
        ranks = self._window.ranks
        origin = min(r.begin_ns for r in ranks.values())
        self._teams = [
            _Team(
                [ranks[r] for r in team],
                [self._programs[r] for r in team],
                self._variant,
                origin,
                self._how.count,
            )
            for team in teams
        ]
        self._places = _places(self._teams)
        self._to_come = {n: len(self._window.calls[n].starts) for n in self._places}
        self._left: set[int] = set()
        self._held: dict[int, set[int]] = defaultdict(set)
        self._waiting: dict[tuple[int, int], bool] = {}
        self._todo = list(range(len(self._teams)))
        ends = np.zeros((len(self._window.steps), self._how.count))
        while self._todo:
            number = self._todo.pop()
            team = self._teams[number]
            while team.position < len(team.events):
                event = team.events[team.position]
                missing = team.blocked_by(event)
                if missing >= 0:
                    self._waiting[number, missing] = True
                    break
                self._do(number, team, event, ends)
                team.position += 1
        if any(t.position < len(t.events) for t in self._teams):
            return None
        return ends

    def _do(self, number: int, team: _Team, event: Event, ends: Floats) -> None:
        what, stream, which, follows, waited = event
        first = team.first(team.position)
        if what == _RUN:
            free = team.stream_free(stream) + first
            team.free[stream] = np.maximum(free, team.offset + team.second(team.position))
            team.tail.pop(stream, None)
        elif what == _CALL:
            now = team.waited(team.offset + first, waited)
            if follows:
                now = np.maximum(now, team.stream_free(team.compute_stream))
            before = team.tail.get(stream, -1)
            if before < 0:
                now = np.maximum(now, team.free.get(stream, team.never) + team.gap)
            team.tail[stream] = which
            team.entered[which] = _Entry(now, team.second(team.position), before)
            for call, rows in self._entering(number, which):
                self._to_come[call] -= rows
                if not self._to_come[call]:
                    self._complete(call)
        elif what == _SINGLE:
            now = np.maximum(team.stream_free(stream) + team.gap, team.offset + first)
            now = team.waited(now, waited) + team.second(team.position)
            team.free[stream] = now
            team.tail.pop(stream, None)
            if which >= 0:
                team.marks[which] = now
        elif what == _HOST:
            resumed = team.waited(team.offset + first, waited)
            team.offset = resumed + team.second(team.position) - first
        else:
            np.maximum(ends[which], (team.offset + first).max(axis=0), out=ends[which])

    def _entering(self, team: int, which: int) -> list[tuple[int, int]]:
        """The collectives that a team enters together, and how many of its ranks each has."""
        numbers = self._teams[team].calls[which].tolist()
        if len(numbers) == 1:
            return [(numbers[0], 1)]
        return [
            (n, sum(len(rows) for t, w, rows in self._places[n] if t == team and w == which))
            for n in dict.fromkeys(numbers)
        ]

    def _complete(self, number: int) -> None:
        """Let everybody leave a call that all have entered, and what follows from that."""
        ready = [number]
        while ready:
            one = ready.pop()
            behind = self._behind(one)
            if behind >= 0:
                self._held[behind].add(one)
                continue
            times = []
            members: list[int] = []
            for place, which, rows in self._places[one]:
                team = self._teams[place]
                entry = team.entered[which]
                now = entry.now[rows]
                if entry.before >= 0:
                    now = np.maximum(now, team.left[entry.before][rows] + team.gap[rows])
                times.append(now + entry.lag[rows])
                members += [team.ranks[row] for row in rows]
            left = leave(
                self._window.calls[one], members, np.concatenate(times), self._ideal[one], self._how
            )
            self._left.add(one)
            at = 0
            for place, which, rows in self._places[one]:
                team = self._teams[place]
                if which not in team.left:
                    team.left[which] = np.empty_like(team.never)
                team.left[which][rows] = left[at : at + len(rows)]
                at += len(rows)
                team.missing[which] -= len(rows)
                if not team.missing[which]:
                    del team.entered[which]
                    if self._waiting.pop((place, which), False):
                        self._todo.append(place)
            ready += self._held.pop(one, ())

    def _behind(self, number: int) -> int:
        """A call on a member's stream that must be left before this one can be; -1: none."""
        for place, which, rows in self._places[number]:
            team = self._teams[place]
            before = team.entered[which].before
            if before >= 0 and team.missing[before]:
                for other in team.calls[before][rows].tolist():
                    if other not in self._left:
                        return int(other)
        return -1


def _places(teams: Sequence[_Team]) -> dict[int, list[tuple[int, int, list[int]]]]:
    """By collective, the rows of the teams that enter it: (team, which of its calls, rows)."""
    found: dict[int, list[tuple[int, int, list[int]]]] = defaultdict(list)
    for place, team in enumerate(teams):
        for which, numbers in enumerate(team.calls.tolist()):
            rows: dict[int, list[int]] = {}
            for row, number in enumerate(numbers):
                rows.setdefault(number, []).append(row)
            for number, own in rows.items():
                found[number].append((place, which, own))
    return found
