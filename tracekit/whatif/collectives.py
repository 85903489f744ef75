"""A coarse replay of jobs without a pipeline (DDP, FSDP, tensor and expert parallel).

What a rank does by itself takes the time that it took; whom it waits for follows from the
matched collectives:

    enter(c, r) = max(time at r's own progress, leave(call before c in the communicator, r)) + lag
    leave(c, r) = max(enter(c, m) for the members m that r needs) + transfer(c, r)

A rank stops where it computed nothing while a matched collective was running, and goes on when
that collective has ended. Own time is all other time: computation, idle host, unmatched
communication. The transfer is the measured end less the last start that the call had to wait
for, so the replay of what was measured gives the measured time back; by how much it does not is
the simulation error.

The ideal own time of a rank between two calls is the median of its peers', ranks whose calls in
that step have the same operations and sizes; where calls come in another order, of the whole
step. The ideal transfer is the median of calls with the same operation, size and members.

Not known: what a hidden collective would hold up if it took longer. So the replay says what a
step would take without a delay, and must not be asked for more delay than there was.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.errors import InputError, UsageError
from tracekit.whatif.calls import (
    OF_RANKS,
    Call,
    Places,
    Scenarios,
    calls_of,
    change_transfers,
    last_starts,
    refused_because,
    step_s,
    step_times,
    transfers_of,
    unbroken,
)
from tracekit.whatif.causes import Cause
from tracekit.whatif.columns import Columns, Replayed
from tracekit.whatif.executor import (
    BOUNDARY,
    CALL,
    FREE_CALL,
    HOST,
    Event,
    Program,
)
from tracekit.whatif.metrics import WhatIf, error_ratio
from tracekit.whatif.operations import Floats

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ITEMS = 600_000
"""Calls, stops and steps of a replay; later steps are left out beyond it."""

MAX_QUEUE_GAP_NS = 10_000
"""A call that begins this soon after the one before it in the communicator was queued."""

MIN_STOP_NS = 10_000
"""Shorter pauses are the gaps between kernels, whatever happens to end in them."""

MAX_SINGLE_RANKS = 256
"""Ranks that are each replayed alone: those with the most own time beyond their peers'."""

_BOUNDARY, _WAIT, _ENTER = 0, 1, 2
_EXCHANGE = "all_to_all"


@dataclass(slots=True)
class _Item:
    """A moment of a rank: it enters a call, goes on after one, or ends a step."""

    kind: int
    time_ns: int
    call: int
    """Number of the call; of the step for a boundary."""
    own_ns: float = 0.0
    ideal_ns: float = 0.0
    lag_ns: float = 0.0
    """Of a call: time from being able to begin to beginning, which nothing explains."""
    is_parallel: bool = False
    """It began before the call before it in the communicator had ended."""
    is_queued: bool = False
    """It began when the call before it in the communicator ended: it may have been ready long."""


@dataclass
class _Window:
    """One capture: its calls, and what each rank did in order."""

    capture: int
    calls: dict[int, Call]
    items: dict[int, list[_Item]]
    starts: dict[int, int]
    steps: list[int]
    dropped: list[int]
    unmatched_count: int = 0
    unmatched_ratio: float = 0.0
    """Of the window, in which a rank stood in communication of which no matched call ended; worst
    rank."""
    compiled: dict[int, Program] = field(default_factory=dict, init=False)
    """By rank its items, as a program; those of a changed window are others."""


class CollectiveReplay:
    """One attempt, ready to be replayed.

    ``calls``: capture_id, rank, instance_id (null where not matched), op, group_id, kind (of the
    communicator), members_count, root, message_bytes, timeline, start_ns, end_ns. ``stalls``:
    capture_id, rank, start_ns, end_ns, disjoint: no computation ran and communication did.
    ``steps``: capture_id, rank, step, start_ns, end_ns of steady steps. ``places``: ranks of
    one stage only are taken for peers.

    Raises InputError where no collective of the steady steps is matched on two ranks or more.
    """

    def __init__(
        self,
        calls: pa.Table,
        stalls: pa.Table,
        steps: pa.Table,
        places: Places | None = None,
    ) -> None:
        self._places = places or Places()
        self._stages = self._places.stages
        self._windows = _windows(calls.to_pylist(), stalls.to_pylist(), steps.to_pylist())
        if not any(w.calls for w in self._windows):
            raise InputError(
                "nothing to replay: no collectives of steady steps are matched across ranks",
                hint="profile all ranks in the same steps; tracekit query RUN match_coverage",
            )
        for window in self._windows:
            _set_ideal(window, self._stages)

    @property
    def ranks(self) -> list[int]:
        """All ranks that are replayed."""
        return sorted({r for w in self._windows for r in w.items})

    @cached_property
    def step_s(self) -> float:
        """Replayed length of a step as it was."""
        return self.step_s_without([])

    @property
    def error_ratio(self) -> float:
        """By how much the replay misses the measured step."""
        return error_ratio(float(np.mean(_measured(self._windows))) / 1e9, self.step_s)

    @property
    def refused(self) -> str | None:
        """Why the replay must not be believed; None where it may."""
        return _refused(self._windows, float(np.mean(_measured(self._windows))) / 1e9, self.step_s)

    def step_s_without(self, ranks: Iterable[int]) -> float:
        """Length of a step if these ranks did what their peers do, in s."""
        return _time_without(self._windows, ranks, self._stages)

    def step_s_evenly(self) -> float | None:
        """Length of a step, in s, if all members of an exchange had the same amount to do between
        one all-to-all and the next, and to send; None where no exchange is replayed."""
        if not any(c.op == _EXCHANGE for w in self._windows for c in w.calls.values()):
            return None
        return _time_without([_evenly(w) for w in self._windows], [], self._stages)

    def analyse(self, causes: Sequence[Cause] = ()) -> WhatIf:
        """Replay in all the ways that the metrics need.

        UsageError where a cause names nothing of the job.
        """
        return _analyse(self._windows, self._places, causes)

    def slowdown_by_rank(self) -> dict[int, float]:
        """As in the analysis, which takes longer: it replays the job without each of the worst."""
        return _analyse(self._windows, self._places, (), is_whole=False).slowdown_by_rank


# --- what each rank did ---------------------------------------------------------------------------


def _windows(
    calls: Sequence[Mapping[str, Any]],
    stalls: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
) -> list[_Window]:
    spans: dict[int, dict[int, dict[int, tuple[int, int]]]] = defaultdict(lambda: defaultdict(dict))
    for row in steps:
        spans[row["capture_id"]][row["rank"]][row["step"]] = row["start_ns"], row["end_ns"]
    by_capture: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    stopped: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for row in calls:
        by_capture[row["capture_id"]].append(row)
    for row in stalls:
        stopped[row["capture_id"]][row["rank"]].append((row["start_ns"], row["end_ns"]))
    room = MAX_ITEMS
    windows = []
    for capture, ranks in sorted(spans.items()):
        window = _window(capture, ranks, by_capture[capture], stopped[capture], room)
        if window is not None:
            room = max(0, room - sum(len(i) for i in window.items.values()))
            windows.append(window)
    return windows


def _window(
    capture: int,
    spans: Mapping[int, Mapping[int, tuple[int, int]]],
    rows: Sequence[Mapping[str, Any]],
    stalls: Mapping[int, list[tuple[int, int]]],
    room: int,
) -> _Window | None:
    common = sorted(set.intersection(*(set(s) for s in spans.values())))
    run = unbroken(common, spans)
    everything = sorted({s for steps in spans.values() for s in steps})
    allowed = max(1, room // max(1, 2 * len(rows) // max(1, len(everything)) + len(spans)))
    kept = run[:allowed]
    if not kept:
        return None
    begins = {r: s[kept[0]][0] for r, s in spans.items()}
    ends = {r: s[kept[-1]][1] for r, s in spans.items()}
    matched, unmatched = calls_of(rows, begins, ends)
    window = _Window(
        capture, matched, {}, begins, kept, [s for s in everything if s not in kept], unmatched
    )
    by_rank: dict[int, list[tuple[int, int, int]]] = {r: [] for r in spans}
    for number, call in matched.items():
        for rank, start_ns in call.starts.items():
            by_rank[rank].append((start_ns, call.ends[rank], number))
    for rank, entered in by_rank.items():
        edges = [spans[rank][s][1] for s in kept]
        stalled = sorted(stalls.get(rank, ()))
        window.items[rank], stops = _items(entered, stalled, kept, edges, begins[rank])
        lost_ns = _unmatched_ns(entered, stalled, begins[rank], ends[rank])
        window.unmatched_ratio = max(
            window.unmatched_ratio, lost_ns / max(1, ends[rank] - begins[rank])
        )
        _mark_queued(window, rank, stops)
    return window


def _items(
    calls: Sequence[tuple[int, int, int]],
    stalls: Sequence[tuple[int, int]],
    steps: Sequence[int],
    edges: Sequence[int],
    begin_ns: int,
) -> tuple[list[_Item], list[tuple[int, int]]]:
    """What a rank did in order, with its own time before each moment; and where it stopped."""
    ends = sorted((end, number) for _, end, number in calls)
    times = [e for e, _ in ends]
    begins = sorted(start for start, _, _ in calls)
    items = [_Item(_ENTER, start, number) for start, _, number in calls]
    items += [_Item(_BOUNDARY, end, step) for step, end in zip(steps, edges, strict=True)]
    stops: list[tuple[int, int]] = []
    for start, end in stalls:
        first, last = bisect_right(times, start), bisect_right(times, end)
        is_gap = end - start < MIN_STOP_NS
        if first == last or is_gap or times[last - 1] <= begin_ns:
            continue
        stops.append((max(start, begin_ns), times[last - 1]))
        # What ended last let the rank go on. What ended before that did so only where the rank
        # entered something at once; else it ended by chance while the rank was waiting.
        items += [_Item(_WAIT, t, n) for t, n in ends[first : last - 1] if _is_followed(begins, t)]
        items.append(_Item(_WAIT, *ends[last - 1]))
    items.sort(key=lambda i: (i.time_ns, i.kind != _WAIT, i.kind, i.call))
    _book_own_time(items, stops, begin_ns)
    return items, stops


def _unmatched_ns(
    calls: Sequence[tuple[int, int, int]], stalls: Sequence[tuple[int, int]], begin: int, end: int
) -> float:
    """Time of the stalls after the last matched call that ended in them: it counts as the rank's
    own, so that the replay gives the measured step back and knows nothing of for whom it waited."""
    times = sorted(t for _, t, _ in calls)
    lost = 0
    for start, stop in stalls:
        since, until = max(start, begin), min(stop, end)
        position = bisect_right(times, until)
        explained = max(since, times[position - 1]) if position else since
        if until - explained >= MIN_STOP_NS:
            lost += until - explained
    return float(lost)


def _is_followed(begins: Sequence[int], time_ns: int) -> bool:
    position = bisect_left(begins, time_ns)
    return position < len(begins) and begins[position] <= time_ns + MAX_QUEUE_GAP_NS


def _book_own_time(items: Sequence[_Item], stops: Sequence[tuple[int, int]], begin_ns: int) -> None:
    """Own time before each item: time since the one before, less stops."""
    position = 0
    lost, previous = 0, 0
    for item in items:
        while position < len(stops) and stops[position][1] <= item.time_ns:
            lost += stops[position][1] - stops[position][0]
            position += 1
        inside = 0
        if position < len(stops) and stops[position][0] < item.time_ns:
            inside = item.time_ns - stops[position][0]
        progress = item.time_ns - begin_ns - lost - inside
        item.own_ns = float(max(0, progress - previous))
        previous = max(previous, progress)


def _mark_queued(window: _Window, rank: int, stops: Sequence[tuple[int, int]]) -> None:
    """How each call follows the one before it in its communicator."""
    last: dict[str, int] = {}
    position = 0
    for item in window.items[rank]:
        if item.kind != _ENTER:
            continue
        while position < len(stops) and stops[position][1] <= item.time_ns:
            position += 1
        since = item.time_ns
        if position < len(stops) and stops[position][0] < item.time_ns:
            since = stops[position][0]
        call = window.calls[item.call]
        if call.lane in last:
            gap_ns = item.time_ns - last[call.lane]
            item.is_queued = 0 <= gap_ns <= MAX_QUEUE_GAP_NS
            item.is_parallel = gap_ns < 0
            since = max(since, last[call.lane]) if gap_ns >= 0 else since
        item.lag_ns = float(item.time_ns - since)
        last[call.lane] = call.ends[rank]


def _release_queued(parts: Sequence[_Part]) -> None:
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


# --- ideal times ----------------------------------------------------------------------------------


_Signature = tuple[tuple[str, str, int], ...]


@dataclass(slots=True)
class _Part:
    """A rank's step: its segments of own time, each ending with a call or with the step."""

    rank: int
    items: list[list[_Item]]
    signature: _Signature

    @property
    def own_ns(self) -> list[float]:
        return [sum(i.own_ns for i in segment) for segment in self.items]

    @property
    def enters(self) -> list[_Item]:
        """The calls that it enters, in order."""
        return [segment[-1] for segment in self.items[:-1]]

    def move_up(self, k: int, done_ns: float) -> None:
        """Let the k-th call be entered when this much of the step's own time is done.

        Never before the call before it, nor later than now.
        """
        done = sum(i.own_ns for segment in self.items[:k] for i in segment)
        segment, entering = self.items[k], self.items[k][-1]
        kept: list[_Item] = []
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


def _set_ideal(window: _Window, stages: Mapping[int, int]) -> None:
    by_step: dict[tuple[int, int | None], list[_Part]] = defaultdict(list)
    by_rank: dict[int, list[_Part]] = {}
    for rank, items in window.items.items():
        by_rank[rank] = _parts(window, rank, items)
        for step, part in zip(window.steps, by_rank[rank], strict=True):
            by_step[step, stages.get(rank)].append(part)
    for parts in by_step.values():
        alike: dict[_Signature, list[_Part]] = defaultdict(list)
        for part in parts:
            alike[part.signature].append(part)
        # Other calls mean other work, unless only their order differs.
        same_work: dict[_Signature, list[_Part]] = defaultdict(list)
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


def _parts(window: _Window, rank: int, items: Sequence[_Item]) -> list[_Part]:
    parts = []
    segments: list[list[_Item]] = [[]]
    signature: list[tuple[str, str, int]] = []
    for item in items:
        segments[-1].append(item)
        if item.kind == _ENTER:
            call = window.calls[item.call]
            op = call.op if rank not in call.sends else "send"
            signature.append((op, call.kind, call.size_bytes if op != "all_to_all" else 0))
            segments.append([])
        elif item.kind == _BOUNDARY:
            parts.append(_Part(rank, segments, tuple(signature)))
            segments, signature = [[]], []
    return parts


def _by_segment(parts: Sequence[_Part]) -> None:
    times = np.array([p.own_ns for p in parts])
    typical = np.median(times, axis=0)
    for part, mine in zip(parts, times, strict=True):
        for segment, value, ideal in zip(part.items, mine, typical, strict=True):
            _share(segment, float(value), float(ideal))


def _by_step(parts: Sequence[_Part], peers: Sequence[_Part]) -> None:
    typical = float(np.median([sum(p.own_ns) for p in peers]))
    for part in parts:
        total = sum(part.own_ns)
        for segment, value in zip(part.items, part.own_ns, strict=True):
            _share(segment, value, value * typical / total if total > 0 else 0.0)


def _share(segment: Sequence[_Item], own_ns: float, ideal_ns: float) -> None:
    if own_ns > 0:
        for item in segment:
            item.ideal_ns = item.own_ns * ideal_ns / own_ns
    elif segment:
        segment[-1].ideal_ns = ideal_ns


def _without(window: _Window, ranks: Iterable[int], stages: Mapping[int, int]) -> _Window:
    """The window with these ranks doing what a typical peer does, in its order.

    A late rank does not stop where its peers do, so its own times alone do not say what it would
    do if it were not late. Where no peer makes the same calls, its times are scaled.
    """
    chosen = set(ranks)
    calls = {r: [i.call for i in items if i.kind == _ENTER] for r, items in window.items.items()}
    work = {r: _work(window, r, calls[r]) for r in calls}
    spent = {r: sum(i.own_ns for i in items) for r, items in window.items.items()}
    items = dict(window.items)
    for rank in sorted(chosen & set(items)):
        peers = [
            r
            for r in items
            if r not in chosen and work[r] == work[rank] and stages.get(r) == stages.get(rank)
        ]
        if not peers:
            items[rank] = [replace(i, own_ns=i.ideal_ns) for i in items[rank]]
            continue
        middle = float(np.median([spent[r] for r in peers]))
        typical = min(peers, key=lambda r: (abs(spent[r] - middle), r))
        same = dict(zip(calls[typical], calls[rank], strict=True))
        items[rank] = [
            i if i.kind == _BOUNDARY else replace(i, call=same[i.call])
            for i in window.items[typical]
        ]
    return replace(window, items=items)


def _evenly(window: _Window) -> _Window:
    """The window with the experts' work dealt out evenly: between an all-to-all and the next, and
    in the transfers, each member takes the mean of all, so that nothing is added or lost."""
    calls = dict(window.calls)
    for number, call in window.calls.items():
        if call.op == _EXCHANGE:
            mean = fmean(transfers_of(call).values())
            ends = {r: round(start + mean) for r, start in last_starts(call).items()}
            calls[number] = replace(call, ends=ends, transfers=None)
    before: dict[int, dict[int, list[int]]] = defaultdict(dict)
    """By all-to-all and rank, the items that lead to it from the one before."""
    for rank, items in window.items.items():
        since: list[int] = []
        is_after = False
        for position, item in enumerate(items):
            since.append(position)
            if item.kind != _ENTER:
                continue
            is_exchange = window.calls[item.call].op == _EXCHANGE
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


def _work(window: _Window, rank: int, calls: Sequence[int]) -> _Signature:
    signature = []
    for number in calls:
        call = window.calls[number]
        op = call.op if rank not in call.sends else "send"
        signature.append((op, call.kind, call.size_bytes if op != "all_to_all" else 0))
    return tuple(signature)


# --- replay ---------------------------------------------------------------------------------------


def _program(window: _Window, rank: int, variants: Sequence[Floats]) -> Program:
    """What a rank does, by its items; ``variants``: its own times before each, in ns."""
    items = window.items[rank]
    calls = [i.call for i in items if i.kind == _ENTER]
    order = {number: k for k, number in enumerate(calls)}
    lanes: dict[str, int] = {}
    steps = 0
    events: list[Event] = []
    for item in items:
        if item.kind == _WAIT:
            events.append((HOST, -1, -1, False, ((True, order[item.call]),)))
        elif item.kind == _BOUNDARY:
            events.append((BOUNDARY, -1, steps, False, ()))
            steps += 1
        else:
            lane = lanes.setdefault(window.calls[item.call].lane, len(lanes))
            kind = FREE_CALL if item.is_parallel else CALL
            events.append((kind, lane, order[item.call], False, ()))
    lag = np.array([i.lag_ns if i.kind == _ENTER else 0.0 for i in items])
    return Program(
        rank,
        tuple(events),
        np.array(calls, np.int64),
        np.stack([np.cumsum(times) for times in variants], axis=1),
        np.repeat(lag[:, None], len(variants), axis=1),
        window.starts[rank],
    )


def _own_ns(items: Sequence[_Item]) -> Floats:
    return np.array([i.own_ns for i in items])


def _ideal_ns(items: Sequence[_Item]) -> Floats:
    return np.array([i.ideal_ns for i in items])


# --- scenarios ------------------------------------------------------------------------------------


def _analyse(
    windows: Sequence[_Window], places: Places, causes: Sequence[Cause], *, is_whole: bool = True
) -> WhatIf:
    stages = places.stages
    job = Replayed(
        [s for w in windows for s in w.steps],
        [s for w in windows for s in w.dropped],
        [c for w in windows for c in w.calls.values()],
        _measured(windows),
        sum(w.unmatched_count for w in windows),
    )
    excess = dict.fromkeys(sorted({r for w in windows for r in w.items}), 0.0)
    for window in windows:
        for rank, items in window.items.items():
            excess[rank] += sum(i.own_ns - i.ideal_ns for i in items)
    chosen = {c: places.ranks_of(c, [*excess]) for c in causes if c.kind in OF_RANKS}
    scaled = [c for c in causes if c not in chosen or c.factor is not None]
    factors = sorted({_factor(c) for c in scaled if c in chosen})
    columns = Columns(job.kinds, excess, MAX_SINGLE_RANKS, scaled)
    # Variant 0 of a rank is what was measured, 1 the ideal, then each scale.
    variant = {r: np.where(at, 0, 1) for r, at in columns.is_own_measured.items()}
    transfer = columns.transfers
    for column, cause in enumerate(scaled, start=columns.first_cause):
        if cause in chosen:
            for rank in chosen[cause]:
                variant[rank][column] = 2 + factors.index(_factor(cause))
        else:
            change_transfers(cause, transfer, column)
    programs = [
        {
            rank: _program(
                w, rank, [_own_ns(items), _ideal_ns(items), *(_own_ns(items) * f for f in factors)]
            )
            for rank, items in w.items.items()
        }
        for w in windows
    ]
    calls = [w.calls for w in windows]
    times = step_times(calls, programs, variant, Scenarios(transfer, columns.count)) / 1e9
    return columns.result(
        times,
        job,
        causes,
        lambda cause: _time_without(windows, chosen[cause], stages),
        (lambda rank: _time_without(windows, [rank], stages)) if is_whole else None,
        method="collectives",
        refused=_refused(windows, job.base_s, float(times[:, 0].mean())),
    )


def _time_without(
    windows: Sequence[_Window], ranks: Iterable[int], stages: Mapping[int, int]
) -> float:
    """Seconds a step with these ranks doing what their peers do."""
    chosen = list(ranks)
    changed = [_without(w, chosen, stages) for w in windows]
    programs = [
        {
            r: _compiled(w, r) if items is w.items[r] else _program(then, r, [_own_ns(items)])
            for r, items in then.items.items()
        }
        for w, then in zip(windows, changed, strict=True)
    ]
    return step_s([w.calls for w in changed], programs)


def _compiled(window: _Window, rank: int) -> Program:
    """The rank's program by its own times, made once."""
    if rank not in window.compiled:
        window.compiled[rank] = _program(window, rank, [_own_ns(window.items[rank])])
    return window.compiled[rank]


def _refused(windows: Sequence[_Window], base_s: float, replayed_s: float) -> str | None:
    return refused_because(base_s, replayed_s, max(w.unmatched_ratio for w in windows))


def _measured(windows: Sequence[_Window]) -> list[float]:
    """Length of each step: from the last rank's end of the step before to that of this one; of the
    first from the last rank's begin."""
    lengths: list[float] = []
    for window in windows:
        previous = float(max(window.starts.values()))
        for step in window.steps:
            end = max(
                i.time_ns
                for items in window.items.values()
                for i in items
                if i.kind == _BOUNDARY and i.call == step
            )
            lengths.append(end - previous)
            previous = float(end)
    return lengths


def _factor(cause: Cause) -> float:
    """Of the own time of the ranks that a cause scales."""
    if cause.operation not in (None, "all"):
        raise UsageError(
            f"{cause.text}: without GPU operations host and compute cannot be told apart",
            hint=f"{cause.kind}={cause.value}:all=...",
        )
    return 1.0 if cause.factor is None else cause.factor
