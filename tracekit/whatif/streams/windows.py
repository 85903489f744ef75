"""Captures cut to whole steps: matched calls, and every rank's blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from tracekit.whatif.calls import Call, Places, settled_clocks, unbroken
from tracekit.whatif.executor import Program
from tracekit.whatif.operations import Ints
from tracekit.whatif.streams.rows import CLOSE_NS, RankBlocks, Rows, rank_rows
from tracekit.whatif.streams.waits import learn_waits

if TYPE_CHECKING:
    import pyarrow as pa

MAX_OPERATIONS = 2_000_000
"""Operations of a replay; later steps are left out beyond it."""

MAX_EVENTS = 400_000
"""Collectives, waits and steps of a replay; later steps are left out beyond it."""


class Window(Struct):
    capture: int
    steps: list[int]
    dropped: list[int]
    calls: dict[int, Call]
    ranks: dict[int, RankBlocks]
    base_ns: list[float]
    unmatched_count: int = 0
    unmatched_ratio: float = 0.0
    """Of the step, for which an unmatched collective ran and nothing was computed; worst rank."""
    compiled: dict[int, Program] = field(default_factory=dict)
    """By rank what it did, without what is unexplained."""


def windows_of(
    operations: pa.Table,
    syncs: pa.Table,
    steps: pa.Table,
    places: Places,
) -> list[Window]:
    spans: dict[int, dict[int, dict[int, tuple[int, int]]]] = defaultdict(lambda: defaultdict(dict))
    for row in steps.to_pylist():
        spans[row["capture_id"]][row["rank"]][row["step"]] = row["start_ns"], row["end_ns"]
    table = _Table(operations)
    stops: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
    for row in syncs.to_pylist():
        stops[row["capture_id"], row["rank"]].append(
            (row["start_ns"], row["end_ns"], bool(row["is_device"]))
        )
    windows = []
    room = 1.0
    for capture, ranks in sorted(spans.items()):
        window = _window(capture, ranks, table, stops, places, room)
        if window is not None:
            room -= _size(window)
            windows.append(window)
    return windows


def _size(window: Window) -> float:
    """Share of what a replay may hold that a window takes."""
    rows = sum(len(b.kind) for r in window.ranks.values() for b in r.blocks)
    return rows / MAX_OPERATIONS + sum(len(c.starts) for c in window.calls.values()) / MAX_EVENTS


class _Table:
    """Columns of all operations, by capture and rank."""

    def __init__(self, operations: pa.Table) -> None:
        import pyarrow as pa

        def ints(name: str, none: int = -1) -> Ints:
            column = operations.column(name).cast(pa.int64()).fill_null(none)
            return np.asarray(column.to_numpy(), np.int64)

        capture, rank = ints("capture_id"), ints("rank")
        order = np.lexsort((ints("start_ns"), ints("launch_ns"), rank, capture))
        columns = {n: ints(n)[order] for n in ("stream", "name", "launch_ns", "start_ns", "end_ns")}
        instance = ints("instance_id")[order]
        flags = {n: ints(n, 0)[order] > 0 for n in ("is_compute", "is_communication")}
        self.rows = Rows(
            columns["stream"], columns["name"], columns["launch_ns"], columns["start_ns"],
            columns["end_ns"], instance, flags["is_compute"], flags["is_communication"],
        )  # fmt: skip
        keys = np.stack([capture[order], rank[order]])
        cuts = np.flatnonzero((np.diff(keys, axis=1) != 0).any(axis=0)) + 1
        bounds = [0, *cuts.tolist(), len(order)]
        self.parts = {
            (int(keys[0, a]), int(keys[1, a])): slice(a, b) for a, b in pairwise(bounds) if b > a
        }
        matched = np.flatnonzero(instance >= 0)
        named = operations.take(order[matched]).select(
            ["op", "group_id", "kind", "members_count", "root", "message_bytes"]
        )
        self.facts = dict(zip(matched.tolist(), named.to_pylist(), strict=True))

    def of(self, capture: int, rank: int) -> tuple[Rows, int]:
        """The rank's rows, and the number of the first."""
        part = self.parts.get((capture, rank), slice(0, 0))
        return self.rows.cut(part), part.start


def _window(
    capture: int,
    spans: Mapping[int, Mapping[int, tuple[int, int]]],
    table: _Table,
    stops: Mapping[tuple[int, int], list[tuple[int, int, bool]]],
    places: Places,
    room: float,
) -> Window | None:
    common = sorted(set.intersection(*(set(s) for s in spans.values())))
    everything = sorted({s for steps in spans.values() for s in steps})
    steps_here = unbroken(common, spans)
    of_ranks = {r: table.of(capture, r) for r in spans}
    rows = sum(len(ops.launch) for ops, _ in of_ranks.values())
    calls = sum(int((ops.call >= 0).sum()) for ops, _ in of_ranks.values())
    a_step = (rows / MAX_OPERATIONS + calls / MAX_EVENTS) / max(1, len(everything))
    steps_here = steps_here[: max(1, int(max(0.0, room) / a_step))] if a_step > 0 else steps_here
    if not steps_here or room <= 0:
        return None
    begins = {r: s[steps_here[0]][0] for r, s in spans.items()}
    ends = {r: s[steps_here[-1]][1] for r, s in spans.items()}
    inside = {
        r: (ops.launch >= begins[r]) & (ops.launch < ends[r]) for r, (ops, _) in of_ranks.items()
    }
    matched = _calls(of_ranks, inside, table.facts)
    clocks = places.clocks
    shifts = settled_clocks(matched.values(), clocks, places.pairs)
    moved = {r: shifts.get(clocks[r][0], 0) if r in clocks else 0 for r in of_ranks}
    if shifts:
        for rank, (ops, _) in of_ranks.items():
            ops.move(moved[rank])
            begins[rank] += moved[rank]
            ends[rank] += moved[rank]
        for call in matched.values():
            call.starts = {r: t + moved[r] for r, t in call.starts.items()}
            call.ends = {r: t + moved[r] for r, t in call.ends.items()}
        spans = {
            r: {s: (a + moved[r], b + moved[r]) for s, (a, b) in steps.items()}
            for r, steps in spans.items()
        }
    base, previous = [], float(max(begins.values()))
    for step in steps_here:
        last = float(max(s[step][1] for s in spans.values()))
        base.append(last - previous)
        previous = last
    dropped = [s for s in everything if s not in steps_here]
    window = Window(capture, steps_here, dropped, matched, {}, base)
    numbers = np.array(sorted(matched), np.int64)
    for rank, (ops, _) in of_ranks.items():
        ops.call[~(np.isin(ops.call, numbers) & inside[rank])] = -1
        lost = inside[rank] & ops.is_communication & (ops.call < 0)
        window.unmatched_count += int(lost.sum())
        share = _uncovered_ns(ops, lost, ends[rank]) / max(1, ends[rank] - begins[rank])
        window.unmatched_ratio = max(window.unmatched_ratio, share)
    prepared = []
    for rank, (ops, _) in of_ranks.items():
        waits = [
            (a + moved[rank], b + moved[rank], w) for a, b, w in stops.get((capture, rank), ())
        ]
        edges = [spans[rank][s] for s in steps_here]
        prepared.append(rank_rows(rank, ops, inside[rank], waits, edges, steps_here, matched))
    # Where the queue is always deep, no operation began as soon as it was launched.
    usual = min((p.latency_ns for p in prepared), default=0.0)
    for ready in prepared:
        if ready.latency_ns > CLOSE_NS:
            ready.latency_ns = min(usual, CLOSE_NS)
    learn_waits(prepared, matched)
    for ready in prepared:
        window.ranks[ready.rank] = ready.finish(places.stages.get(ready.rank))
    return window


def _calls(
    of_ranks: Mapping[int, tuple[Rows, int]],
    inside: Mapping[int, npt.NDArray[np.bool_]],
    facts: Mapping[int, Mapping[str, Any]],
) -> dict[int, Call]:
    """Calls whose members are all launched, once each, within the window."""
    calls: dict[int, Call] = {}
    sizes: dict[int, int] = {}
    twice: set[int] = set()
    for rank, (rows, first) in of_ranks.items():
        for i in np.flatnonzero((rows.call >= 0) & inside[rank]).tolist():
            fact, number = facts[first + i], int(rows.call[i])
            op = str(fact["op"] or "unknown")
            is_pair = op in ("send", "recv")
            call = calls.get(number)
            if call is None:
                call = calls[number] = Call(
                    op="send_recv" if is_pair else op,
                    kind=str(fact["kind"] or ("pp" if is_pair else "unknown")),
                    lane=str(fact["group_id"]),
                    size_bytes=int(fact["message_bytes"] or 0),
                    root=fact["root"],
                    timeline="device",
                )
                sizes[number] = 2 if is_pair else int(fact["members_count"] or 0)
            if op == "send":
                call.sends.add(rank)
            if rank in call.starts:
                twice.add(number)
            call.starts[rank], call.ends[rank] = int(rows.start[i]), int(rows.end[i])
    return {
        n: c
        for n, c in calls.items()
        if n not in twice and len(c.starts) >= max(2, sizes[n]) and sizes[n]
    }


def _uncovered_ns(rows: Rows, lost: npt.NDArray[np.bool_], until_ns: int) -> float:
    """Time of these operations, up to the window's end, during which nothing was computed."""
    lost = lost & (rows.start < until_ns)
    if not lost.any():
        return 0.0
    edges = [(t, 1, 0) for t in rows.start[lost]] + [
        (min(t, until_ns), -1, 0) for t in rows.end[lost]
    ]
    other = rows.is_compute
    edges += [(t, 0, 1) for t in rows.start[other]] + [(t, 0, -1) for t in rows.end[other]]
    at = np.array(sorted(edges), np.int64)
    waiting, computing = np.cumsum(at[:, 1]), np.cumsum(at[:, 2])
    alone = (waiting[:-1] > 0) & (computing[:-1] == 0)
    return float(np.diff(at[:, 0])[alone].sum())
