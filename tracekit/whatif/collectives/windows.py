"""What each rank did in a capture, in order: calls that it entered, stops, ends of steps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from tracekit.ranges import union
from tracekit.whatif.calls import Call, calls_of, last_starts, transfers_of, unbroken
from tracekit.whatif.executor import Program

MAX_ITEMS = 600_000
"""Calls, stops and steps of a replay; later steps are left out beyond it."""

MAX_QUEUE_GAP_NS = 10_000
"""A call that begins this soon after the one before it in the communicator was queued."""

MIN_STOP_NS = 10_000
"""Shorter pauses are the gaps between kernels, whatever happens to end in them."""

MAX_LATE_RECORD_NS = 5_000_000
"""A call's range on the host may end so long after whoever waited for it went on: the thread that
records it is put aside for the one that it wakes, for a turn of the scheduler's on a busy CPU."""

STEP_END, WAIT, ENTER = 0, 1, 2
"""Kinds of items."""


class Item(Struct):
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


class Window(Struct, dict=True):
    """One capture: its calls, and what each rank did in order."""

    capture: int
    calls: dict[int, Call]
    items: dict[int, list[Item]]
    starts: dict[int, int]
    steps: list[int]
    dropped: list[int]
    unmatched_count: int = 0
    unmatched_ratio: float = 0.0
    """Of the window, in which a rank stood in communication of which no matched call ended; worst
    rank."""

    @cached_property
    def compiled(self) -> dict[int, Program]:
        """By rank its items, as a program, once asked for; a changed copy begins without."""
        return {}


def windows_of(
    calls: Sequence[Mapping[str, Any]],
    stalls: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
) -> list[Window]:
    """The captures that have steps in common, as long as there is room for what their ranks did."""
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
) -> Window | None:
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
    window = Window(
        capture, matched, {}, begins, kept, [s for s in everything if s not in kept], unmatched
    )
    _end_where_ranks_went_on(matched, stalls)
    by_rank: dict[int, list[tuple[int, int, int]]] = {r: [] for r in spans}
    for number, call in matched.items():
        for rank, start_ns in call.starts.items():
            by_rank[rank].append((start_ns, call.ends[rank], number))
    others: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row["instance_id"] not in matched:
            others[row["rank"]].append((row["start_ns"], row["end_ns"]))
    for rank, entered in by_rank.items():
        edges = [spans[rank][s][1] for s in kept]
        stalled = sorted(stalls.get(rank, ()))
        sent = {n for _, _, n in entered if matched[n].is_sent_on_host_by(rank)}
        awaited = _held_senders(rank, entered, sent, stalled, matched) if sent else set()
        window.items[rank], stops = _items(
            entered, sent, awaited, stalled, kept, edges, begins[rank]
        )
        lost_ns = _unmatched_ns(entered, others[rank], stalled, begins[rank], ends[rank])
        window.unmatched_ratio = max(
            window.unmatched_ratio, lost_ns / max(1, ends[rank] - begins[rank])
        )
        _mark_queued(window, rank, stops)
    return window


def _end_where_ranks_went_on(
    calls: Mapping[int, Call], stalls: Mapping[int, Sequence[tuple[int, int]]]
) -> None:
    """Let a call of the host end with the stall that it ended, where its range ends a little later.

    It ended the stall if the last member that the rank needed came in it, since the last range that
    ended there.
    """
    arrived: dict[int, Mapping[int, int]] = {}
    recorded: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, call in calls.items():
        if call.timeline == "host":
            for rank, end_ns in call.ends.items():
                recorded[rank].append((end_ns, number))
    for rank, ends in recorded.items():
        ends.sort()
        times = [end_ns for end_ns, _ in ends]
        for start, end in stalls.get(rank, ()):
            position = bisect_right(times, end)
            since = max(start, times[position - 1]) if position else start
            for end_ns, number in ends[position:]:
                if end_ns - end > min(MAX_LATE_RECORD_NS, end - since):
                    break
                if number not in arrived:
                    arrived[number] = last_starts(calls[number])
                if since < arrived[number][rank] <= end:
                    calls[number].ends[rank] = end
                    break


def _held_senders(
    rank: int,
    entered: Sequence[tuple[int, int, int]],
    sent: Collection[int],
    stalls: Sequence[tuple[int, int]],
    calls: Mapping[int, Call],
) -> set[int]:
    """Note which messages were held until their receiver asked while the rank stood still, and say
    for which of them it stood still.

    It did where nothing else ended in the stall that anybody entered meanwhile: what else ended
    there was asked for behind the message, and may have been done at once.
    """
    awaited: set[int] = set()
    ends = sorted((end, number) for _, end, number in entered)
    times = [end for end, _ in ends]
    for start, end in stalls:
        ended = [n for _, n in ends[bisect_right(times, start) : bisect_right(times, end)]]
        asked = {
            n: asked_ns
            for n in ended
            if n in sent
            and (asked_ns := max(s for r, s in calls[n].starts.items() if r != rank))
            >= start + MIN_STOP_NS
            and calls[n].starts[rank] < asked_ns <= calls[n].ends[rank]
        }
        for n in asked:
            calls[n].held.add(rank)
            transfers_of(calls[n])[rank] = calls[n].ends[rank] - asked[n]
        others = [n for n in ended if n not in sent]
        if not asked or not others or any(max(calls[n].starts.values()) > start for n in others):
            continue
        awaited |= asked.keys()
        until = max(asked.values())
        for n in others:
            transfers = transfers_of(calls[n])
            transfers[rank] = min(transfers[rank], max(0, calls[n].ends[rank] - until))
    return awaited


def _items(
    calls: Sequence[tuple[int, int, int]],
    sent: Collection[int],
    awaited: Collection[int],
    stalls: Sequence[tuple[int, int]],
    steps: Sequence[int],
    edges: Sequence[int],
    begin_ns: int,
) -> tuple[list[Item], list[tuple[int, int]]]:
    """What a rank did in order, with its own time before each moment; and where it stopped.

    The range of a message that was ``sent`` on the host lasts until somebody asks for it, whenever
    the message was gone: where something else ended in a stop too, the rank stood still for that.
    """
    ends = sorted((end, number) for _, end, number in calls)
    times = [e for e, _ in ends]
    begins = sorted(start for start, _, _ in calls)
    items = [Item(ENTER, start, number) for start, _, number in calls]
    items += [Item(STEP_END, end, step) for step, end in zip(steps, edges, strict=True)]
    stops: list[tuple[int, int]] = []
    for start, end in stalls:
        first, last = bisect_right(times, start), bisect_right(times, end)
        is_gap = end - start < MIN_STOP_NS
        if first == last or is_gap:
            continue
        ended = (
            [e for e in ends[first:last] if e[1] in awaited]
            or [e for e in ends[first:last] if e[1] not in sent]
            or ends[first:last]
        )
        if ended[-1][0] <= begin_ns:
            continue
        stops.append((max(start, begin_ns), ended[-1][0]))
        # What ended last let the rank go on. What ended before that did so only where the rank
        # entered something at once; else it ended by chance while the rank was waiting.
        items += [Item(WAIT, t, n) for t, n in ended[:-1] if _is_followed(begins, t)]
        items.append(Item(WAIT, *ended[-1]))
    items.sort(key=lambda i: (i.time_ns, i.kind != WAIT, i.kind, i.call))
    _book_own_time(items, stops, begin_ns)
    return items, stops


def _unmatched_ns(
    calls: Sequence[tuple[int, int, int]],
    others: Sequence[tuple[int, int]],
    stalls: Sequence[tuple[int, int]],
    begin: int,
    end: int,
) -> float:
    """Time in ``others``, calls that are not matched, of the stalls after the last matched call
    that ended in them: it counts as the rank's own, so that the replay gives the measured step
    back and knows nothing of for whom it waited.

    The rest of such a stall is the rank's own indeed: another reason let its thread stand still.
    """
    times = sorted(t for _, t, _ in calls)
    running = union(others)
    lost = 0
    for start, stop in stalls:
        since, until = max(start, begin), min(stop, end)
        position = bisect_right(times, until)
        explained = max(since, times[position - 1]) if position else since
        if until - explained < MIN_STOP_NS:
            continue
        for begun, ended in running[max(bisect_right(running, (explained, end)) - 1, 0) :]:
            if begun >= until:
                break
            lost += max(0, min(ended, until) - max(begun, explained))
    return float(lost)


def _is_followed(begins: Sequence[int], time_ns: int) -> bool:
    position = bisect_left(begins, time_ns)
    return position < len(begins) and begins[position] <= time_ns + MAX_QUEUE_GAP_NS


def _book_own_time(items: Sequence[Item], stops: Sequence[tuple[int, int]], begin_ns: int) -> None:
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


def _mark_queued(window: Window, rank: int, stops: Sequence[tuple[int, int]]) -> None:
    """How each call follows the one before it in its communicator."""
    last: dict[str, int] = {}
    position = 0
    for item in window.items[rank]:
        if item.kind != ENTER:
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


def step_lengths(windows: Sequence[Window]) -> list[float]:
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
                if i.kind == STEP_END and i.call == step
            )
            lengths.append(end - previous)
            previous = float(end)
    return lengths
