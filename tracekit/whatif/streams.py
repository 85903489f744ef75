"""A replay of GPU jobs from what their traces hold: hosts that launch, streams that run.

    launched(x)  = the host's own time so far, plus its waits for the device
    start(x)     = max(launched(x) + latency, end(one before on its stream) + gap, its waits)
    end(x)       = start(x) + its duration
    end(c)       = max(start(c) of the members that it needs) + transfer   for a collective c

Traces do not say what a stream was told to wait for. Three things are taken to be so:

* A collective waits for the compute that was launched before it, as the process group of PyTorch
  makes it wait, unless the trace shows collectives of that kind starting earlier.
* An operation that began much later than its launch and its stream allow, at the moment when
  something on another stream ended, waited for that.
* Ranks and steps that launch the same operations in the same order wait for the same things: what
  one rank was never held up by is known from those that were. It must contradict none of them.

What begins late for no such reason is unexplained. The replay leaves it out, so the simulation
error is the part of the step that this model does not explain.

The ideal of a rank's step is the median of its peers, operation by operation: ranks of the same
stage that launch the same in that step. Of a step that differs from all others it is the typical
one of the rank's other steps.

Limits: a launch that blocks because the queue is full counts as the host's own time, as does
waiting in a collective on the host; a longer collective does not slow the kernels beside it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracekit.errors import InputError, UsageError
from tracekit.whatif.analysis import CauseResult
from tracekit.whatif.calls import (
    OF_RANKS,
    Call,
    CollectivesWhatIf,
    Floats,
    Places,
    Scenarios,
    alike,
    change_transfers,
    class_of,
    error_ratio,
    ideal_transfers,
    leave,
    refused_because,
    settled_clocks,
    transfers_of,
    unbroken,
)
from tracekit.whatif.causes import Cause

if TYPE_CHECKING:
    import pyarrow as pa

Ints = npt.NDArray[np.int64]

MAX_OPERATIONS = 2_000_000
"""Operations of a replay; later steps are left out beyond it."""

MAX_EVENTS = 400_000
"""Collectives, waits and steps of a replay; later steps are left out beyond it."""

CLOSE_NS = 20_000
"""An operation that begins within this of what it could wait for has waited for it; one that
begins later than anything explains by more than this is unexplained."""

EARLY_NS = 2_000
"""Devices' clocks and hosts' differ by this much within a trace."""

MAX_GAP_NS = 10_000
"""Operations of a stream that follow each other within this were queued."""

MAX_SINGLE_RANKS = 64
"""Ranks that are each replayed alone: those with the most own time beyond their peers'."""

MIN_SLOWDOWN, MAX_REMOVED_RANKS = 1.02, 8
"""The job without one rank is replayed for the worst ranks that slow it down by this much."""

MAX_UNEQUAL_RATIO = 0.1
"""Share of a link's transfers that may have no equal elsewhere when the link is taken out."""

MAX_UNMATCHED_RATIO = 0.05
"""Share of the step that unmatched collectives may stop computing for."""

_Event = tuple[Any, ...]

_OP, _SYNC, _END = 0, 1, 2
_RUN, _CALL, _SINGLE, _HOST, _BOUNDARY = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class _Wait:
    """What a row waits for: the k-th call of a step, or a row of the same step."""

    is_call: bool
    back: int
    """Steps back."""
    number: int


@dataclass
class _Block:
    """One step of one rank: rows in the order in which the host came to them."""

    step: int
    kind: Ints
    """_OP, _SYNC or _END."""
    stream: Ints
    name: Ints
    call: Ints
    """Number of the collective; -1 of anything else."""
    host_ns: Floats
    """The host's own time before the row."""
    work_ns: Floats
    """Duration of an operation, the host's own time after a wait for the device."""
    lag_ns: Floats
    """How much later it began than the model says."""
    follows_compute: npt.NDArray[np.bool_]
    waits: dict[int, list[_Wait]]
    """By row."""
    key: int
    """The same for blocks with the same rows."""
    signature: tuple[tuple[str, str, int], ...]
    """Its collectives in order."""

    @property
    def calls(self) -> Ints:
        return self.call[self.call >= 0]


@dataclass
class _Rank:
    """A rank in one capture."""

    rank: int
    begin_ns: int
    blocks: list[_Block]
    busy_until_ns: dict[int, float]
    """By stream: end of what was launched before the window, after its begin."""
    compute_stream: int
    latency_ns: float
    gap_ns: float


@dataclass
class _Window:
    capture: int
    steps: list[int]
    dropped: list[int]
    calls: dict[int, Call]
    ranks: dict[int, _Rank]
    base_ns: list[float]
    unmatched_count: int = 0
    unmatched_ratio: float = 0.0
    """Of the step, for which an unmatched collective ran and nothing was computed; worst rank."""
    compiled: dict[int, list[_Event]] = field(default_factory=dict)
    """By rank its events as it was, without what is unexplained."""


class StreamReplay:
    """One attempt of a GPU job, ready to be replayed.

    ``operations``: capture_id, rank, stream (any number that tells a rank's streams apart),
    is_compute, is_communication, name (a number), launch_ns, start_ns, end_ns, instance_id (null
    where not matched), op, group_id, kind (of the communicator), members_count, root,
    message_bytes. ``syncs``: capture_id, rank, is_device, start_ns, end_ns of the host's waits.
    ``steps``: capture_id, rank, step, start_ns, end_ns of steady steps, on the host. ``places``:
    ranks of one stage only are taken for peers; hosts tell collectives within one from others.

    Raises InputError where no collective of the steady steps is matched on two ranks or more.
    """

    def __init__(
        self,
        operations: pa.Table,
        syncs: pa.Table,
        steps: pa.Table,
        places: Places | None = None,
    ) -> None:
        self._places = places or Places()
        self.windows = _windows(operations, syncs, steps, self._places.clocks)
        if not any(w.calls for w in self.windows):
            raise InputError(
                "nothing to replay: no collectives of steady steps are matched across ranks",
                hint="profile all ranks in the same steps; tracekit query RUN match_coverage",
            )

    @property
    def ranks(self) -> list[int]:
        """All ranks that are replayed."""
        return sorted({r for w in self.windows for r in w.ranks})

    @cached_property
    def step_s(self) -> float:
        """Replayed length of a step as it was."""
        return self.step_s_without([])

    @property
    def refused(self) -> str | None:
        """Why the replay must not be believed; None where it may."""
        return _refused(self.windows, _mean_s([w.base_ns for w in self.windows]), self.step_s)

    def step_s_without(self, ranks: Iterable[int]) -> float:
        """Length of a step if these ranks did what their peers do, in s."""
        return _time_without(self.windows, set(ranks), self._places.stages)

    def analyse(self, causes: Sequence[Cause] = ()) -> CollectivesWhatIf:
        """Replay in all the ways that the metrics need.

        UsageError where a cause names nothing of the job.
        """
        return _analyse(self.windows, self._places, causes)


def _refused(windows: Sequence[_Window], base_s: float, replayed_s: float) -> str | None:
    share = max(w.unmatched_ratio for w in windows)
    if share > MAX_UNMATCHED_RATIO:
        return (
            f"for {share:.1%} of the step (limit {MAX_UNMATCHED_RATIO:.0%}) a rank computed nothing"
            " while a collective ran that is not matched across ranks: nobody knows for whom it"
            " waited"
        )
    return refused_because(base_s, replayed_s)


def _mean_s(values: Sequence[Sequence[float]]) -> float:
    return float(np.mean([v for one in values for v in one])) / 1e9


# --- from rows to blocks --------------------------------------------------------------------------


@dataclass
class _Rows:
    """Operations of one rank in the order of their launches."""

    stream: Ints
    name: Ints
    launch: Ints
    start: Ints
    end: Ints
    call: Ints
    is_compute: npt.NDArray[np.bool_]
    is_communication: npt.NDArray[np.bool_]

    def move(self, shift_ns: int) -> None:
        """Correct the clock."""
        self.launch, self.start, self.end = (
            t + shift_ns for t in (self.launch, self.start, self.end)
        )

    def cut(self, rows: Any) -> _Rows:
        return _Rows(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def _windows(
    operations: pa.Table,
    syncs: pa.Table,
    steps: pa.Table,
    clocks: Mapping[int, tuple[int, int]],
) -> list[_Window]:
    spans: dict[int, dict[int, dict[int, tuple[int, int]]]] = defaultdict(lambda: defaultdict(dict))
    for row in steps.to_pylist():
        spans[row["capture_id"]][row["rank"]][row["step"]] = row["start_ns"], row["end_ns"]
    table = _Table(operations)
    stops: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
    for row in syncs.to_pylist():
        stops[row["capture_id"], row["rank"]].append(
            (row["start_ns"], row["end_ns"], bool(row["is_device"]))
        )
    found = []
    room = 1.0
    for capture, ranks in sorted(spans.items()):
        window = _window(capture, ranks, table, stops, clocks, room)
        if window is not None:
            room -= _size(window)
            found.append(window)
    return found


def _size(window: _Window) -> float:
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
        self.rows = _Rows(
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

    def of(self, capture: int, rank: int) -> tuple[_Rows, int]:
        """The rank's rows, and the number of the first."""
        part = self.parts.get((capture, rank), slice(0, 0))
        return self.rows.cut(part), part.start


def _window(
    capture: int,
    spans: Mapping[int, Mapping[int, tuple[int, int]]],
    table: _Table,
    stops: Mapping[tuple[int, int], list[tuple[int, int, bool]]],
    clocks: Mapping[int, tuple[int, int]],
    room: float,
) -> _Window | None:
    common = sorted(set.intersection(*(set(s) for s in spans.values())))
    everything = sorted({s for one in spans.values() for s in one})
    kept = unbroken(common, spans)
    own = {r: table.of(capture, r) for r in spans}
    rows = sum(len(one.launch) for one, _ in own.values())
    calls = sum(int((one.call >= 0).sum()) for one, _ in own.values())
    a_step = (rows / MAX_OPERATIONS + calls / MAX_EVENTS) / max(1, len(everything))
    kept = kept[: max(1, int(max(0.0, room) / a_step))] if a_step > 0 else kept
    if not kept or room <= 0:
        return None
    begins = {r: s[kept[0]][0] for r, s in spans.items()}
    ends = {r: s[kept[-1]][1] for r, s in spans.items()}
    inside = {r: (one.launch >= begins[r]) & (one.launch < ends[r]) for r, (one, _) in own.items()}
    found = _calls(own, inside, table.facts)
    shifts = settled_clocks(found.values(), clocks)
    moved = {r: shifts.get(clocks[r][0], 0) if r in clocks else 0 for r in own}
    if shifts:
        for rank, (one, _) in own.items():
            one.move(moved[rank])
            begins[rank] += moved[rank]
            ends[rank] += moved[rank]
        for call in found.values():
            call.starts = {r: t + moved[r] for r, t in call.starts.items()}
            call.ends = {r: t + moved[r] for r, t in call.ends.items()}
        spans = {
            r: {s: (a + moved[r], b + moved[r]) for s, (a, b) in one.items()}
            for r, one in spans.items()
        }
    base, previous = [], float(min(begins.values()))
    for step in kept:
        last = float(max(s[step][1] for s in spans.values()))
        base.append(last - previous)
        previous = last
    window = _Window(capture, kept, [s for s in everything if s not in kept], found, {}, base)
    numbers = np.array(sorted(found), np.int64)
    for rank, (one, _) in own.items():
        one.call[~(np.isin(one.call, numbers) & inside[rank])] = -1
        lost = inside[rank] & one.is_communication & (one.call < 0)
        window.unmatched_count += int(lost.sum())
        share = _uncovered_ns(one, lost) / max(1, ends[rank] - begins[rank])
        window.unmatched_ratio = max(window.unmatched_ratio, share)
    prepared = []
    for rank, (one, _) in own.items():
        waits = [
            (a + moved[rank], b + moved[rank], w) for a, b, w in stops.get((capture, rank), ())
        ]
        edges = [spans[rank][s] for s in kept]
        prepared.append(_prepare(rank, one, inside[rank], waits, edges, kept, found))
    # Where the queue is always deep, no operation began as soon as it was launched.
    usual = min((p.latency_ns for p in prepared), default=0.0)
    for ready in prepared:
        if ready.latency_ns > CLOSE_NS:
            ready.latency_ns = min(usual, CLOSE_NS)
    _learn_waits(prepared, found)
    for ready in prepared:
        window.ranks[ready.rank] = ready.finish()
    return window


def _calls(
    own: Mapping[int, tuple[_Rows, int]],
    inside: Mapping[int, npt.NDArray[np.bool_]],
    facts: Mapping[int, Mapping[str, Any]],
) -> dict[int, Call]:
    """Calls whose members are all launched within the window."""
    found: dict[int, Call] = {}
    sizes: dict[int, int] = {}
    for rank, (rows, first) in own.items():
        for i in np.flatnonzero((rows.call >= 0) & inside[rank]).tolist():
            fact, number = facts[first + i], int(rows.call[i])
            op = str(fact["op"] or "unknown")
            is_pair = op in ("send", "recv")
            call = found.get(number)
            if call is None:
                call = found[number] = Call(
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
            call.starts[rank], call.ends[rank] = int(rows.start[i]), int(rows.end[i])
    return {n: c for n, c in found.items() if len(c.starts) >= max(2, sizes[n]) and sizes[n]}


def _uncovered_ns(rows: _Rows, lost: npt.NDArray[np.bool_]) -> float:
    """Time of these operations during which nothing was computed."""
    if not lost.any():
        return 0.0
    edges = [(t, 1, 0) for t in rows.start[lost]] + [(t, -1, 0) for t in rows.end[lost]]
    other = rows.is_compute
    edges += [(t, 0, 1) for t in rows.start[other]] + [(t, 0, -1) for t in rows.end[other]]
    at = np.array(sorted(edges), np.int64)
    waiting, computing = np.cumsum(at[:, 1]), np.cumsum(at[:, 2])
    alone = (waiting[:-1] > 0) & (computing[:-1] == 0)
    return float(np.diff(at[:, 0])[alone].sum())


@dataclass
class _Prepared:
    """A rank's rows of the window, before it is known what they wait for."""

    rank: int
    begin_ns: int
    kind: Ints
    stream: Ints
    name: Ints
    call: Ints
    moment: Ints
    """Launch of an operation, begin of a wait, end of a step."""
    start: Ints
    end: Ints
    """Of a wait: the host's."""
    before: Ints
    """Row before it on its stream; -1: none in the window."""
    host_ns: Floats
    edges: list[int]
    """First row of each step, and the number of rows."""
    steps: list[int]
    signatures: list[tuple[tuple[str, str, int], ...]]
    keys: list[int]
    busy_until: dict[int, int]
    compute_stream: int
    is_device_wide: npt.NDArray[np.bool_]
    latency_ns: float = 0.0
    gap_ns: float = 0.0
    tail: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """The compute launched last before each row; -1: none in the window."""
    follows: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    waits: dict[int, set[int]] = field(default_factory=dict)
    """Rows that a row waits for."""
    seen_rows: list[list[int]] = field(default_factory=list)
    """By step, rows that were seen to wait."""
    waits_told: list[dict[int, list[_Wait]]] = field(default_factory=list)
    """By step, the waits of each row told by their places."""

    def free_at(self, explained: bool = True) -> Floats:
        """When each operation could have begun, by launch, stream and known waits."""
        known = self.moment + self.latency_ns
        has = self.before >= 0
        known[has] = np.maximum(known[has], self.end[self.before[has]] + self.gap_ns)
        first = ~has & (self.kind == _OP)
        for stream, busy in self.busy_until.items():
            own = first & (self.stream == stream)
            known[own] = np.maximum(known[own], busy + self.gap_ns)
        if explained:
            follows = self.follows & (self.tail >= 0)
            known[follows] = np.maximum(known[follows], self.end[self.tail[follows]])
            for row, others in self.waits.items():
                if self.kind[row] == _OP:
                    known[row] = max(known[row], *(self.end[o] for o in others))
        return np.asarray(known, np.float64)

    @cached_property
    def step_of(self) -> Ints:
        """Which of the steps each row belongs to."""
        return np.asarray(
            np.searchsorted(self.edges, np.arange(len(self.kind)), side="right") - 1, np.int64
        )

    @cached_property
    def call_rows(self) -> list[Ints]:
        """Rows of the calls of each step."""
        return [a + np.flatnonzero(self.call[a:b] >= 0) for a, b in pairwise(self.edges)]

    def told(self, row: int, other: int) -> _Wait | None:
        """A wait by its place in the step; None for a row of an earlier step that is no call."""
        k, j = int(self.step_of[row]), int(self.step_of[other])
        if self.call[other] >= 0:
            return _Wait(True, k - j, int(np.searchsorted(self.call_rows[j], other)))
        return _Wait(False, 0, other - self.edges[k]) if j == k else None

    def row_of(self, k: int, wait: _Wait) -> int:
        """The row that a wait of the k-th step means; -1: outside the window."""
        if not wait.is_call:
            return self.edges[k] + wait.number
        if wait.back > k or wait.number >= len(self.call_rows[k - wait.back]):
            return -1
        return int(self.call_rows[k - wait.back][wait.number])

    def finish(self) -> _Rank:
        """The blocks of the steps."""
        lag = np.where(self.kind == _OP, self.start - self.free_at(), 0.0)
        work = (self.end - self.start).astype(np.float64)
        for row in np.flatnonzero(self.kind == _SYNC).tolist():
            until = max((self.end[o] for o in self.waits.get(row, ())), default=self.moment[row])
            work[row] = max(0, self.end[row] - max(until, self.moment[row]))
        work[self.kind == _END] = 0.0
        blocks = [
            _Block(
                self.steps[k],
                self.kind[a:b],
                self.stream[a:b],
                self.name[a:b],
                self.call[a:b],
                self.host_ns[a:b],
                work[a:b],
                lag[a:b],
                self.follows[a:b],
                self.waits_told[k],
                self.keys[k],
                self.signatures[k],
            )
            for k, (a, b) in enumerate(pairwise(self.edges))
        ]
        busy = {s: float(t) for s, t in self.busy_until.items()}
        return _Rank(
            self.rank, self.begin_ns, blocks, busy, self.compute_stream, self.latency_ns,
            self.gap_ns,
        )  # fmt: skip


def _prepare(
    rank: int,
    rows: _Rows,
    inside: npt.NDArray[np.bool_],
    stops: Sequence[tuple[int, int, bool]],
    spans: Sequence[tuple[int, int]],
    steps: Sequence[int],
    calls: Mapping[int, Call],
) -> _Prepared:
    begin, window_end = spans[0][0], spans[-1][1]
    earlier = rows.launch < begin
    busy: dict[int, int] = {}
    codes: dict[int, int] = {}
    for stream in rows.stream[inside].tolist():
        codes.setdefault(stream, len(codes))
    for stream, code in codes.items():
        left = rows.end[earlier & (rows.stream == stream)]
        if len(left) and int(left.max()) > begin:
            busy[code] = int(left.max())
    own = rows.cut(inside)
    stream = np.array([codes[s] for s in own.stream.tolist()], np.int64)
    computing = {
        code: int((own.end - own.start)[(stream == code) & own.is_compute].sum())
        for code in codes.values()
    }
    kept = _plain_stops(stops, own.launch, begin, window_end)
    n, m, k = len(own.launch), len(kept), len(steps)
    kind = np.concatenate([np.full(n, _OP), np.full(m, _SYNC), np.full(k, _END)])
    moment = np.concatenate([own.launch, [s for s, _, _ in kept], [e for _, e in spans]])
    order = np.lexsort((kind, moment))
    nothing = np.full(m + k, -1)
    until = np.concatenate([own.end, [e for _, e, _ in kept], [e for _, e in spans]])[order]
    kind, moment = kind[order].astype(np.int64), moment[order].astype(np.int64)
    resumed = np.where(kind == _SYNC, until, moment)
    host = moment - np.concatenate([[begin], resumed[:-1]])
    stream = np.concatenate([stream, nothing])[order].astype(np.int64)
    call = np.concatenate([own.call, nothing])[order].astype(np.int64)
    start = np.concatenate([own.start, [s for s, _, _ in kept], [e for _, e in spans]])[order]
    name = np.concatenate([own.name, nothing])[order].astype(np.int64)
    wide = np.concatenate([np.zeros(n, bool), [w for _, _, w in kept], np.zeros(k, bool)])[order]
    edges = [0, *(np.flatnonzero(kind == _END) + 1).tolist()]
    before = np.full(len(kind), -1, np.int64)
    for code in codes.values():
        mine = np.flatnonzero(stream == code)
        before[mine[1:]] = mine[:-1]
    words = np.array([_word(calls[c]) if c >= 0 else 0 for c in call.tolist()], np.int64)
    name = np.where(call >= 0, words, name)
    prepared = _Prepared(
        rank, begin, kind, stream, name, call, moment, start.astype(np.int64),
        until.astype(np.int64), before, np.maximum(host, 0).astype(np.float64), edges, list(steps),
        [], [], busy, max(computing, key=lambda c: computing[c]) if computing else -1,
        wide.astype(np.bool_),
    )  # fmt: skip
    for a, b in pairwise(edges):
        signature = []
        for number in call[a:b][call[a:b] >= 0].tolist():
            one = calls[number]
            op = one.op if rank not in one.sends else "send"
            signature.append((op, one.kind, one.size_bytes if op != "all_to_all" else 0))
        prepared.signatures.append(tuple(signature))
        parts = (kind[a:b].tobytes(), stream[a:b].tobytes(), name[a:b].tobytes())
        prepared.keys.append(hash(parts))
    is_main = (stream == prepared.compute_stream) & (call < 0)
    positions = np.where(is_main, np.arange(len(kind)), -1)
    prepared.tail = np.concatenate([[-1], np.maximum.accumulate(positions)[:-1]]).astype(np.int64)
    _set_overheads(prepared)
    return prepared


def _word(call: Call) -> int:
    """A number for the kind of call; other than any name's."""
    return -2 - (hash((call.op, call.kind, len(call.starts))) & 0xFFFFFFFF)


def _plain_stops(
    stops: Sequence[tuple[int, int, bool]], launches: Ints, begin: int, end: int
) -> list[tuple[int, int, bool]]:
    """Waits within the window in which the rank launched nothing; none within another."""
    kept: list[tuple[int, int, bool]] = []
    for start, stop, is_wide in sorted(stops, key=lambda s: (s[0], -s[1])):
        if start < begin or stop > end or (kept and start < kept[-1][1]):
            continue
        a, b = np.searchsorted(launches, [start, stop], side="left").tolist()
        if a == b:
            kept.append((start, stop, is_wide))
    return kept


def _set_overheads(rows: _Prepared) -> None:
    """Usual time from a launch to the earliest start, and between operations of a stream."""
    is_op = rows.kind == _OP
    since = (rows.start - rows.moment)[is_op]
    since = since[since >= 0]
    rows.latency_ns = float(np.percentile(since, 1)) if len(since) else math.inf
    has = is_op & (rows.before >= 0)
    gaps = (rows.start[has] - rows.end[rows.before[has]]).astype(np.float64)
    queued = gaps[(gaps >= 0) & (gaps <= MAX_GAP_NS)]
    rows.gap_ns = float(np.median(queued)) if len(queued) else 0.0


# --- what waits for what --------------------------------------------------------------------------


def _learn_waits(ranks: Sequence[_Prepared], calls: Mapping[int, Call]) -> None:
    contradicted: Counter[tuple[str, str, int]] = Counter()
    seen: Counter[tuple[str, str, int]] = Counter()
    for one in ranks:
        for row in np.flatnonzero((one.call >= 0) & (one.tail >= 0)).tolist():
            what = _family(one, row, calls)
            seen[what] += 1
            contradicted[what] += bool(one.start[row] < one.end[one.tail[row]] - EARLY_NS)
    for one in ranks:
        one.follows = np.zeros(len(one.kind), np.bool_)
        for row in np.flatnonzero((one.call >= 0) & (one.tail >= 0)).tolist():
            what = _family(one, row, calls)
            is_on_it = one.stream[row] == one.compute_stream
            one.follows[row] = not is_on_it and contradicted[what] * 100 <= seen[what]
    for one in ranks:
        one.waits = _seen_waits(one)
        one.seen_rows = [
            [r for r in sorted(one.waits) if a <= r < b] for a, b in pairwise(one.edges)
        ]
    _share_waits(ranks)


def _family(one: _Prepared, row: int, calls: Mapping[int, Call]) -> tuple[str, str, int]:
    call = calls[int(one.call[row])]
    op = call.op if one.rank not in call.sends else "send"
    return op, call.kind, int(one.stream[row])


def _seen_waits(one: _Prepared) -> dict[int, set[int]]:
    """Operations that began when something on another stream ended, and not for another reason."""
    free = one.free_at()
    late = np.flatnonzero((one.kind == _OP) & (one.start - free > CLOSE_NS / 4))
    is_op = one.kind == _OP
    by_end = np.flatnonzero(is_op)[np.argsort(one.end[is_op], kind="stable")]
    ends = one.end[by_end]
    found: dict[int, set[int]] = {}

    def latest(row: int, at: int, reach: int, is_other_stream: bool) -> int:
        """The operation launched before the row that ended last, within ``reach`` before ``at``."""
        k = int(np.searchsorted(ends, at + EARLY_NS, side="right")) - 1
        while k >= 0 and ends[k] >= at - reach:
            other = int(by_end[k])
            if other < row and not (is_other_stream and one.stream[other] == one.stream[row]):
                return other
            k -= 1
        return -1

    for row in late.tolist():
        other = latest(row, int(one.start[row]), CLOSE_NS, True)
        if other >= 0:
            found[row] = {other}
    for row in np.flatnonzero(one.kind == _SYNC).tolist():
        others: set[int] = set()
        if one.is_device_wide[row]:
            for code in range(int(one.stream.max()) + 1):
                mine = np.flatnonzero((one.stream[:row] == code) & is_op[:row])
                if len(mine) and one.end[mine[-1]] <= one.end[row] + EARLY_NS:
                    others.add(int(mine[-1]))
        else:
            other = latest(row, int(one.end[row]), 10 * CLOSE_NS, False)
            if other >= 0 and one.end[other] > one.moment[row]:
                others.add(other)
        if others:
            found[row] = others
    return found


def _share_waits(ranks: Sequence[_Prepared]) -> None:
    """Give every step what equal steps were seen to wait for, where that contradicts none."""
    equal: dict[int, list[tuple[_Prepared, int]]] = defaultdict(list)
    for one in ranks:
        one.waits_told = [{} for _ in one.keys]
        for k, key in enumerate(one.keys):
            equal[key].append((one, k))
    for places in equal.values():
        seen: dict[tuple[int, _Wait], int] = {}
        for one, k in places:
            for row in (r for r in one.seen_rows[k] if r in one.waits):
                for other in one.waits[row]:
                    told = one.told(row, other)
                    if told is not None:
                        seen.setdefault((row - one.edges[k], told), int(one.stream[other]))
        for (position, told), stream in seen.items():
            rows = [(one, one.edges[k] + position, one.row_of(k, told)) for one, k in places]
            known = [(one, row, other) for one, row, other in rows if other >= 0]
            if any(
                one.stream[other] != stream
                or one.end[other]
                > (one.end if one.kind[row] == _SYNC else one.start)[row] + EARLY_NS
                for one, row, other in known
            ):
                continue
            for one, row, other in known:
                one.waits.setdefault(row, set()).add(other)
            for one, k in places:
                one.waits_told[k].setdefault(position, []).append(told)
        # What contradicts another step is kept where it was seen.
        for one, k in places:
            for row in one.seen_rows[k]:
                position = row - one.edges[k]
                kept = one.waits_told[k].setdefault(position, [])
                for other in sorted(one.waits.get(row, ())):
                    told = one.told(row, other)
                    if told is not None and told not in kept:
                        kept.append(told)


# --- blocks of other ranks and steps --------------------------------------------------------------


def _median(blocks: Sequence[_Block], like: _Block) -> tuple[Floats, Floats, Floats]:
    """Host time, work and lag, row by row, of blocks with the same rows.

    Of two the one that took less: with one slow rank of two the mean is half slow.
    """
    if len(blocks) == 2:
        blocks = [min(blocks, key=_own_ns)]
    if not blocks:
        return like.host_ns, like.work_ns, like.lag_ns
    return (
        np.median([b.host_ns for b in blocks], axis=0),
        np.median([b.work_ns for b in blocks], axis=0),
        np.median([b.lag_ns for b in blocks], axis=0),
    )


def _changed(block: _Block, shape: _Block, values: tuple[Floats, Floats, Floats]) -> _Block:
    """A step with the rows of another and these times; its calls stay its own."""
    call = shape.call.copy()
    call[call >= 0] = block.calls
    host, work, lag = values
    return _Block(
        block.step, shape.kind, shape.stream, shape.name, call, host, work, lag,
        shape.follows_compute, shape.waits, shape.key, block.signature,
    )  # fmt: skip


class _Names:
    """Usual times of rows by their names and their neighbours', where no peer does the same work.

    Kernels of one name differ in their shapes, so the neighbours' names must be the same too: six
    on either side, else three, else one. What is found nowhere changes as the rest does.
    """

    def __init__(self, blocks: Sequence[_Block]) -> None:
        self.found: list[dict[int, tuple[float, float]]] = []
        for reach in _REACHES:
            keys = np.concatenate([_surroundings(b, reach) for b in blocks])
            host = np.concatenate([b.host_ns for b in blocks])
            work = np.concatenate([b.work_ns for b in blocks])
            order = np.argsort(keys, kind="stable")
            cuts = np.flatnonzero(np.diff(keys[order])) + 1
            self.found.append(
                {
                    int(keys[rows[0]]): (float(np.median(host[rows])), float(np.median(work[rows])))
                    for rows in np.split(order, cuts)
                    if len(rows)
                }
            )

    def applied(self, block: _Block) -> _Block:
        """The block with the usual times."""
        host, work = block.host_ns.copy(), block.work_ns.copy()
        known = np.zeros(len(host), np.bool_)
        for reach, found in zip(_REACHES, self.found, strict=True):
            keys = _surroundings(block, reach)
            for row in np.flatnonzero(~known).tolist():
                usual = found.get(int(keys[row]))
                if usual is not None:
                    host[row], work[row] = usual
                    known[row] = True
        own = block.call < 0
        for mine, theirs, rows in (
            (block.host_ns, host, known),
            (block.work_ns, work, known & own),
        ):
            before = float(mine[rows].sum())
            if before > 0:
                theirs[~known] = mine[~known] * float(theirs[rows].sum()) / before
        return _changed(block, block, (host, work, block.lag_ns))


_REACHES = (6, 3, 1)


def _surroundings(block: _Block, reach: int) -> Ints:
    """A number for each row's name and those of ``reach`` rows on either side."""
    mixed = (block.name * np.int64(1_000_003)) ^ (block.kind + 7)
    padded = np.concatenate([np.zeros(reach, np.int64), mixed, np.zeros(reach, np.int64)])
    found = np.zeros(len(mixed), np.int64)
    with np.errstate(over="ignore"):
        for shift in range(2 * reach + 1):
            found = found * np.int64(31) + padded[shift : shift + len(mixed)]
    return found


class _Peers:
    """Who does the same work in a step."""

    def __init__(self, window: _Window, stages: Mapping[int, int]) -> None:
        self.groups: dict[Any, list[tuple[int, _Block]]] = defaultdict(list)
        self.own: dict[Any, list[_Block]] = defaultdict(list)
        self.window, self.stages = window, stages
        self._names: dict[Any, _Names] = {}
        for rank, one in window.ranks.items():
            for position, block in enumerate(one.blocks):
                self.groups[self._key(rank, position, block)].append((rank, block))
                self.own[rank, block.signature].append(block)

    def _key(self, rank: int, position: int, block: _Block) -> Any:
        return position, self.stages.get(rank), tuple(sorted(block.signature))

    def ideal(self, rank: int, position: int) -> _Block:
        """The block's own rows with the times that peers take for them."""
        block = self.window.ranks[rank].blocks[position]
        group = [b for _, b in self.groups[self._key(rank, position, block)]]
        if len(group) < 2:
            group = self.own[rank, block.signature]
        same = [b for b in group if b.key == block.key]
        if 2 * len(same) <= len(group):
            return self._scaled(block, group)
        return _changed(block, block, _median(same, block))

    def typical(self, rank: int, position: int, without: set[int]) -> _Block:
        """What peers do in this step; else what others do for operations of the same name in the
        same surroundings; where all ranks are removed, what the rank does in other steps."""
        block = self.window.ranks[rank].blocks[position]
        others = [b for r, b in self.groups[self._key(rank, position, block)] if r not in without]
        if not others and len(without) < len(self.window.ranks):
            return self._by_name(position, without).applied(block)
        if not others:
            others = self.own[rank, block.signature]
        same = [b for b in others if b.signature == block.signature]
        if not same:
            return self._scaled(block, others)
        counts = Counter(b.key for b in same)
        key = max(counts, key=lambda k: (counts[k], k == block.key))
        alike_blocks = [b for b in same if b.key == key]
        shape = block if block.key == key else alike_blocks[0]
        return _changed(block, shape, _median(alike_blocks, block))

    def _by_name(self, position: int, without: set[int]) -> _Names:
        key = position, frozenset(without)
        if key not in self._names:
            ranks = self.window.ranks
            self._names[key] = _Names(
                [ranks[r].blocks[position] for r in ranks if r not in without]
            )
        return self._names[key]

    @staticmethod
    def _scaled(block: _Block, others: Sequence[_Block]) -> _Block:
        """Peers call in another order: their whole step's times."""
        if not others:
            return block

        def factor(values: Iterable[float], own: float) -> float:
            return float(np.median(list(values))) / own if own > 0 else 1.0

        own = block.call < 0
        work = block.work_ns.copy()
        typical = (float(b.work_ns[b.call < 0].sum()) for b in others)
        work[own] *= factor(typical, float(work[own].sum()))
        host_total = float(block.host_ns.sum())
        host = block.host_ns * factor((float(b.host_ns.sum()) for b in others), host_total)
        return _changed(block, block, (host, work, block.lag_ns))


# --- compiling a rank for replay ------------------------------------------------------------------


def _compile(rank: _Rank, variants: Sequence[Sequence[_Block]]) -> list[_Event]:
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
    is_cut = (kind != _OP) | (call >= 0)
    is_cut[list(waits)] = True
    is_cut[list(marked)] = True
    events: list[tuple[int, int, _Event]] = []
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
        if kind[row] == _END:
            event: _Event = (_BOUNDARY, next(steps), came[:, row])
        elif kind[row] == _SYNC:
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
    blocks: Sequence[_Block],
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


# --- replay ---------------------------------------------------------------------------------------


class _Replay:
    """One window in all scenarios at once."""

    def __init__(
        self,
        window: _Window,
        events: Mapping[int, list[_Event]],
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

    def _missing(self, rank: int, event: _Event) -> int:
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

    def _do(self, rank: int, event: _Event, chosen: Ints, ends: Mapping[int, Floats]) -> None:
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


# --- scenarios ------------------------------------------------------------------------------------


def _explained(block: _Block) -> _Block:
    """A step without what begins late for no known reason."""
    lag = np.where(block.lag_ns > CLOSE_NS, 0.0, block.lag_ns)
    return _changed(block, block, (block.host_ns, block.work_ns, lag))


def _step_times(
    windows: Sequence[_Window],
    events: Sequence[Mapping[int, list[_Event]]],
    variant: Mapping[int, Ints],
    how: Scenarios,
) -> Floats:
    """Length of each step in each scenario, in ns."""
    ideal = ideal_transfers([w.calls for w in windows])
    parts = []
    for window, own, typical in zip(windows, events, ideal, strict=True):
        ends = _Replay(window, own, variant, typical, how).run()
        parts.append(np.diff(ends, axis=0, prepend=np.zeros((1, how.count))))
    return np.concatenate(parts)


def _one_time(windows: Sequence[_Window], events: Sequence[Mapping[int, list[_Event]]]) -> float:
    """Seconds a step with measured transfers."""
    nothing = {r: np.zeros(1, np.int64) for w in windows for r in w.ranks}
    one, none = np.ones(1), np.zeros(1)
    how = Scenarios(defaultdict(lambda: (one, none)), defaultdict(lambda: (one, none)), 1)
    return float(_step_times(windows, events, nothing, how).mean()) / 1e9


def _own_ns(block: _Block) -> float:
    return float(block.host_ns.sum() + block.work_ns[block.call < 0].sum())


def _work_scale(cause: Cause) -> tuple[float, float]:
    """Factors of a rank's time on the host and on the GPU."""
    factor = 1.0 if cause.factor is None else cause.factor
    if cause.operation in (None, "all"):
        return factor, factor
    if cause.operation == "compute":
        return 1.0, factor
    if cause.operation == "host":
        return factor, 1.0
    raise UsageError(
        f"{cause.text}: a replay of streams knows no operation {cause.operation!r}",
        hint=f"{cause.kind}={cause.value}:all=..., :compute=... or :host=...",
    )


def _scaled(block: _Block, factors: tuple[float, float]) -> _Block:
    """The step with other times on the host and on the GPU."""
    host, gpu = factors
    is_gpu = (block.kind == _OP) & (block.call < 0)
    work = block.work_ns * np.where(is_gpu, gpu, host)
    return _changed(block, block, (block.host_ns * host, work, block.lag_ns))


def _time_without_link(
    windows: Sequence[_Window], places: Places, ranks: Sequence[int], cause: Cause
) -> float:
    """Seconds a step if calls of these ranks took what equal calls without them take.

    Equal: operation, size, members, and how many hosts they span. UsageError where other ranks
    make no such calls: a trace cannot say then what the link should do.
    """
    chosen = set(places.ranks_of(cause, ranks))

    def what(call: Call) -> tuple[object, ...]:
        spanned = {places.hosts.get(r) for r in call.starts}
        return (*alike(call), len(spanned))

    samples: dict[tuple[object, ...], list[float]] = defaultdict(list)
    lost, known = 0.0, 0.0
    for window in windows:
        for call in window.calls.values():
            if not chosen & set(call.starts):
                samples[what(call)] += map(float, transfers_of(call).values())
    usual = {k: float(np.median(v)) for k, v in samples.items()}
    changed = []
    for window in windows:
        calls = dict(window.calls)
        for number, call in window.calls.items():
            if not chosen & set(call.starts):
                continue
            took = max(transfers_of(call).values())
            typical = usual.get(what(call))
            known, lost = known + (typical is not None) * took, lost + (typical is None) * took
            if typical is not None:
                last = {r: max(call.starts[m] for m in call.needed(r)) for r in call.starts}
                ends = {r: round(t + typical) for r, t in last.items()}
                calls[number] = replace(call, ends=ends, transfers=None)
        changed.append(replace(window, calls=calls))
    if lost > MAX_UNEQUAL_RATIO * (lost + known):
        raise UsageError(
            f"{cause.text}: {lost / (lost + known):.0%} of the transfers through rank "
            f"{cause.value} have no equal among other ranks, so the trace does not say what they "
            "should take",
            hint="--scale comm=KIND=FACTOR asks for a given speed; tracekit expect has the ideal",
        )
    return _time_without(changed, set(), places.stages)


def _time_without(
    windows: Sequence[_Window], removed: set[int], stages: Mapping[int, int]
) -> float:
    """Seconds a step with these ranks doing what their peers do."""
    events = []
    for window in windows:
        peers = _Peers(window, stages) if removed else None
        own: dict[int, list[_Event]] = {}
        for rank, one in window.ranks.items():
            if peers is not None and rank in removed:
                blocks = [peers.typical(rank, k, removed) for k in range(len(one.blocks))]
                own[rank] = _compile(one, [[_explained(b) for b in blocks]])
                continue
            if rank not in window.compiled:
                window.compiled[rank] = _compile(one, [[_explained(b) for b in one.blocks]])
            own[rank] = window.compiled[rank]
        events.append(own)
    return _one_time(windows, events)


def raw_step_s(replay: StreamReplay) -> float:
    """Replayed length of a step with everything as it was, unexplained delays included.

    For tests: it must be what was measured.
    """
    windows = replay.windows
    return _one_time(
        windows, [{r: _compile(one, [one.blocks]) for r, one in w.ranks.items()} for w in windows]
    )


def _analyse(
    windows: Sequence[_Window], places: Places, causes: Sequence[Cause]
) -> CollectivesWhatIf:
    stages = places.stages
    ranks = sorted({r for w in windows for r in w.ranks})
    kinds = sorted({class_of(c) for w in windows for c in w.calls.values()})
    chosen = {c: places.ranks_of(c, ranks) for c in causes if c.kind in OF_RANKS}
    replaced = {c for c in chosen if c.factor is None}
    changed = [c for c in causes if c not in replaced and c.kind != "link"]
    scales = sorted({_work_scale(c) for c in changed if c in chosen})
    excess = dict.fromkeys(ranks, 0.0)
    events = []
    for window in windows:
        peers = _Peers(window, stages)
        own: dict[int, list[_Event]] = {}
        for rank, one in window.ranks.items():
            measured = [_explained(b) for b in one.blocks]
            ideal = [_explained(peers.ideal(rank, k)) for k in range(len(measured))]
            for mine, theirs in zip(measured, ideal, strict=True):
                excess[rank] += _own_ns(mine) - _own_ns(theirs)
            scaled = [[_scaled(b, s) for b in measured] for s in scales]
            own[rank] = _compile(one, [measured, ideal, *scaled])
        events.append(own)
    single = sorted(sorted(ranks, key=lambda r: (-excess[r], r))[:MAX_SINGLE_RANKS])
    groups = ["own", *kinds]
    first_rank = 2 + len(groups)
    first_cause = first_rank + len(single)
    count = first_cause + len(changed)
    variant = {r: np.zeros(count, np.int64) for r in ranks}
    transfer = {k: (np.ones(count), np.zeros(count)) for k in kinds}
    # Column 0 is what was measured, 1 the ideal; then the ideal with one thing put back.
    for rank in ranks:
        variant[rank][1:first_cause] = 1
        variant[rank][2] = 0
    for measured_how, ideal_how in transfer.values():
        measured_how[1:first_cause], ideal_how[1:first_cause] = 0.0, 1.0
    for column, kind in enumerate(kinds, start=3):
        transfer[kind][0][column], transfer[kind][1][column] = 1.0, 0.0
    for column, rank in enumerate(single, start=first_rank):
        variant[rank][column] = 0
    for column, cause in enumerate(changed, start=first_cause):
        if cause in chosen:
            for rank in chosen[cause]:
                variant[rank][column] = 2 + scales.index(_work_scale(cause))
        else:
            change_transfers(cause, transfer, column)
    ends = _step_times(windows, events, variant, Scenarios({}, transfer, count)) / 1e9
    mean = ends.mean(axis=0)
    t_now, t_ideal = float(mean[0]), float(mean[1])
    alone = {r: float(mean[first_rank + i]) / t_ideal for i, r in enumerate(single)}
    worst = sorted((r for r in single if alone[r] >= MIN_SLOWDOWN), key=lambda r: (-alone[r], r))
    times = {c: float(mean[first_cause + i]) for i, c in enumerate(changed)}
    for cause in causes:
        if cause in replaced:
            times[cause] = _time_without(windows, set(chosen[cause]), stages)
        elif cause.kind == "link":
            times[cause] = _time_without_link(windows, places, ranks, cause)
    base = [v for w in windows for v in w.base_ns]
    steps = [s for w in windows for s in w.steps]
    return CollectivesWhatIf(
        steps=tuple(steps),
        dropped_steps=tuple(s for w in windows for s in w.dropped),
        ranks=tuple(ranks),
        t_base_s=float(np.mean(base)) / 1e9,
        t_no_delay_s=t_now,
        t_ideal_s=t_ideal,
        slowdown_by_rank=alone,
        saved_s_by_rank={
            r: t_now - _time_without(windows, {r}, stages) for r in worst[:MAX_REMOVED_RANKS]
        },
        slowdown_by_optype={g: float(mean[2 + i]) / t_ideal for i, g in enumerate(groups)},
        per_step={
            s: (b / 1e9, float(row[0]), float(row[1]))
            for s, b, row in zip(steps, base, ends, strict=True)
        },
        causes=tuple(
            CauseResult(
                c.text,
                times[c],
                t_now / times[c],
                t_now - times[c],
                "streams",
                error_ratio(float(np.mean(base)) / 1e9, t_now),
            )
            for c in causes
        ),
        calls_count=sum(len(c.starts) for w in windows for c in w.calls.values()),
        unmatched_count=sum(w.unmatched_count for w in windows),
        refused=_refused(windows, float(np.mean(base)) / 1e9, t_now),
        method="streams",
    )
