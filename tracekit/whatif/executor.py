"""The replay itself: what each rank does as events, and all scenarios of a window at once.

Every front end writes what a rank does as a Program: events in the order in which the rank comes to
them, each with what it waits for and the times of its variants (as measured, ideal, scaled). The
matched collectives, or what else finishes together, is described as Exchanges. Times are in ns, of
a pipeline's timers in s: a replay adds and compares.

Ranks that do the same in the same order go through their events together, so that every step of
the replay is one operation on an array over ranks and scenarios. Where ranks that do the same wait
for each other (stages of a pipeline that nobody told apart), each goes by itself. Of a pipeline's
timers a rank is a stage, and a scenario has a column for each step of each replica.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Protocol

import numpy as np
from msgspec import Struct, field

from tracekit.errors import InputError
from tracekit.whatif.operations import Floats, Ints

RUN, CALL, FREE_CALL, SINGLE, HOST, BOUNDARY, FOLLOWING, JOINING = range(8)
"""Kinds of events. RUN: operations that follow each other on a stream. CALL: the rank enters a
collective when the one before it on the stream is over; FREE_CALL: whether it is or not. SINGLE:
one operation. HOST: the host waits. BOUNDARY: a step ends on the host, or with what it waits for.
FOLLOWING: an operation that no host launches and no stream holds: it begins when what it waits for
is over. JOINING: such a one that finishes together with others."""

Waited = tuple[tuple[bool, int], ...]
"""What an event waits for: (True, the k-th call of the rank) or (False, a marked row)."""

Event = tuple[int, int, int, bool, Waited]
"""Kind, stream, which call or step or marked row, whether it follows the compute, what it waits
for."""


Times = Floats | Sequence[Floats]
"""By event, in each variant."""


class Program(Struct):
    """What a rank does in a window, as events with times of its variants."""

    rank: int
    events: tuple[Event, ...]
    calls: Ints
    """Numbers of its collectives in order."""
    first: Times | None
    """By (event, variant): of a run what it takes, else when the host comes to it, counted in the
    host's own time from the begin; of what no host launches its delay. None: no delays."""
    second: Times
    """Of a run the earliest end that its launches allow; of a call the lag before it enters; of
    another the time that follows."""
    begin_ns: int = 0
    stage: int | None = None
    """Ranks of different stages do not go together."""
    compute_stream: int = -1
    gap_ns: float = 0.0
    """Between one operation of a stream and the next."""
    busy_until_ns: Mapping[int, float] = field(default_factory=dict)
    """By stream, when it has done what it was given before the begin."""


class Exchanges(Protocol):
    """What several ranks finish together, by number."""

    def size(self, number: int) -> int:
        """How many enter it."""

    def leave(self, number: int, members: Sequence[int], entered: Floats) -> Floats:
        """When the members leave what they enter then: (member, scenario)."""


class _Entry(Struct):
    """A call as the ranks of a team enter it: (rank, scenario)."""

    now: Floats
    lag: Floats | None
    before: int
    """The call before it on its stream that had not been waited for; -1: none."""


class _Team:
    """Ranks that do the same: their state, and what their calls left behind."""

    def __init__(
        self,
        programs: Sequence[Program],
        variant: Mapping[int, Ints] | None,
        origin: int,
        count: int,
    ) -> None:
        self.ranks = [p.rank for p in programs]
        self.events = programs[0].events
        self.calls = np.stack([p.calls for p in programs], axis=1)
        """Numbers of the collectives: (call, rank)."""
        self._first = _side_by_side([p.first for p in programs if p.first is not None])
        self._second = _side_by_side([p.second for p in programs])
        self._chosen: Ints | None = None
        if variant is not None:
            rows = np.arange(len(programs))[:, None]
            chosen = np.stack([variant[r] for r in self.ranks])
            self._chosen = chosen + self._second[0].shape[1] * rows
        self.compute_stream = programs[0].compute_stream
        self.gap = np.array([[p.gap_ns] for p in programs])
        self.position = 0
        self.never = np.full((len(programs), count), -math.inf)
        self.offset = np.repeat([[float(p.begin_ns - origin)] for p in programs], count, axis=1)
        """What the host's own time is counted from: it moves on when the host waits."""
        self.free: dict[int, Floats] = {}
        for row, program in enumerate(programs):
            for stream, until in program.busy_until_ns.items():
                self.free.setdefault(stream, self.never.copy())[row] = until - origin
        self.tail: dict[int, int] = {}
        """The call that was launched last on a stream and has not been waited for."""
        self.marks: dict[int, Floats] = {}
        self.entered: dict[int, _Entry] = {}
        self.left: dict[int, Floats] = {}
        self.missing = [len(programs)] * len(self.calls)
        """By call, ranks that have not left it."""

    def first(self) -> Floats:
        """The first time of the event that is to come."""
        return self._scenarios(self._first)

    def second(self) -> Floats:
        return self._scenarios(self._second)

    def _scenarios(self, times: Sequence[Floats]) -> Floats:
        scenarios = times[self.position]
        return scenarios if self._chosen is None else scenarios.take(self._chosen)

    def blocked_by(self, event: Event) -> int:
        """A call that must be left before this can be replayed; -1: none."""
        what, stream, _, follows, waited = event
        if what in (CALL, FREE_CALL):
            tail = self.tail.get(self.compute_stream, -1) if follows else -1
        else:
            tail = self.tail.get(stream, -1) if what in (RUN, SINGLE) else -1
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

    def follows(self, waited: Waited) -> Floats:
        """When an operation begins that no host launches."""
        ends = [self.left[number] if is_call else self.marks[number] for is_call, number in waited]
        now = reduce(np.maximum, ends) if ends else self.offset
        return now + self.first() if self._first else now


class Executor:
    """One window in all scenarios at once.

    ``exchanges``: what the programs' calls are. ``variant``: by rank, which times of its program
    each scenario takes; None: they stand by scenario. ``count``: of the scenarios.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        programs: Mapping[int, Program],
        variant: Mapping[int, Ints] | None,
        count: int,
    ) -> None:
        self._exchanges, self._programs, self._variant = exchanges, programs, variant
        self._count = count
        self._steps_count = max(
            sum(event[0] == BOUNDARY for event in p.events) for p in programs.values()
        )

    def ends_of(self, rank: int, events: Iterable[Event]) -> Iterator[Floats]:
        """When operations that no host launches ended, once the rank has run by itself; of other
        events nothing."""
        (team,) = (t for t in self._teams if t.ranks == [rank])
        for what, _, which, _, _ in events:
            if what in (FOLLOWING, JOINING):
                yield (team.left if what == JOINING else team.marks)[which]

    def run(self) -> Floats:
        """Ends of the steps after the first rank's begin: (step, scenario).

        Raises InputError where ranks wait for each other for ever.
        """
        together: dict[object, list[int]] = defaultdict(list)
        for rank, program in sorted(self._programs.items()):
            together[program.stage, program.compute_stream, program.events].append(rank)
        for teams in (list(together.values()), [[rank] for rank in sorted(self._programs)]):
            ends = self._run(teams)
            if ends is not None:
                return ends
        raise InputError(
            "cannot be replayed: ranks call the matched collectives in orders that wait for "
            "each other for ever",
            hint="tracekit query RUN match_coverage",
        )

    def _run(self, teams: Sequence[Sequence[int]]) -> Floats | None:
        """The same with these ranks going together; None where they wait for each other."""
        origin = min(p.begin_ns for p in self._programs.values())
        self._teams = [
            _Team(
                [self._programs[r] for r in team],
                self._variant,
                origin,
                self._count,
            )
            for team in teams
        ]
        self._places = _places(self._teams)
        self._to_come = {n: self._exchanges.size(n) for n in self._places}
        self._left: set[int] = set()
        self._held: dict[int, set[int]] = defaultdict(set)
        self._waiting: dict[tuple[int, int], bool] = {}
        self._todo = list(range(len(self._teams)))
        ends = np.zeros((self._steps_count, self._count))
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
        if what == FOLLOWING:
            team.marks[which] = team.follows(waited) + team.second()
        elif what == JOINING:
            self._enter(number, which, _Entry(team.follows(waited), None, -1))
        elif what == RUN:
            free = team.stream_free(stream) + team.first()
            team.free[stream] = np.maximum(free, team.offset + team.second())
            team.tail.pop(stream, None)
        elif what in (CALL, FREE_CALL):
            now = team.waited(team.offset + team.first(), waited)
            if follows:
                now = np.maximum(now, team.stream_free(team.compute_stream))
            before = team.tail.get(stream, -1) if what == CALL else -1
            if before < 0 and stream in team.free:
                now = np.maximum(now, team.free[stream] + team.gap)
            team.tail[stream] = which
            self._enter(number, which, _Entry(now, team.second(), before))
        elif what == SINGLE:
            now = np.maximum(team.stream_free(stream) + team.gap, team.offset + team.first())
            now = team.waited(now, waited) + team.second()
            team.free[stream] = now
            team.tail.pop(stream, None)
            if which >= 0:
                team.marks[which] = now
        elif what == HOST:
            first = team.first()
            team.offset = team.waited(team.offset + first, waited) + team.second() - first
        else:
            now = team.follows(waited) if waited else team.offset + team.first()
            np.maximum(ends[which], now.max(axis=0), out=ends[which])

    def _enter(self, number: int, which: int, entry: _Entry) -> None:
        self._teams[number].entered[which] = entry
        for call, rows in self._entering(number, which):
            self._to_come[call] -= rows
            if not self._to_come[call]:
                self._complete(call)

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
            call = ready.pop()
            behind = self._behind(call)
            if behind >= 0:
                self._held[behind].add(call)
                continue
            times = []
            members: list[int] = []
            for place, which, rows in self._places[call]:
                team = self._teams[place]
                entry = team.entered[which]
                is_all = len(rows) == len(team.ranks)
                now = entry.now if is_all else entry.now[rows]
                if entry.before >= 0:
                    before = team.left[entry.before]
                    now = np.maximum(now, (before if is_all else before[rows]) + team.gap[rows])
                if entry.lag is not None:
                    now = now + (entry.lag if is_all else entry.lag[rows])
                times.append(now)
                members += team.ranks if is_all else [team.ranks[row] for row in rows]
            entered = times[0] if len(times) == 1 else np.concatenate(times)
            left = self._exchanges.leave(call, members, entered)
            self._left.add(call)
            at = 0
            for place, which, rows in self._places[call]:
                team = self._teams[place]
                team_left = left[at : at + len(rows)]
                at += len(rows)
                if len(rows) == len(team.ranks):
                    team.left[which] = team_left
                else:
                    if which not in team.left:
                        team.left[which] = np.empty_like(team.never)
                    team.left[which][rows] = team_left
                team.missing[which] -= len(rows)
                if not team.missing[which]:
                    del team.entered[which]
                    if self._waiting.pop((place, which), False):
                        self._todo.append(place)
            ready += self._held.pop(call, ())

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


def _side_by_side(times: Sequence[Times]) -> Sequence[Floats]:
    """By event (rank, variant); of one rank without a copy, since its columns may be many."""
    if len(times) == 1:
        return [event[None] for event in times[0]]
    return [*np.stack([np.asarray(t) for t in times], axis=1)] if times else []


def _places(teams: Sequence[_Team]) -> dict[int, list[tuple[int, int, list[int]]]]:
    """By collective, the rows of the teams that enter it: (team, which of its calls, rows)."""
    places: dict[int, list[tuple[int, int, list[int]]]] = defaultdict(list)
    for place, team in enumerate(teams):
        for which, numbers in enumerate(team.calls.tolist()):
            rows: dict[int, list[int]] = {}
            for row, number in enumerate(numbers):
                rows.setdefault(number, []).append(row)
            for number, call_rows in rows.items():
                places[number].append((place, which, call_rows))
    return places
