"""What a rank did in a capture, in the order in which its host came to it: rows and blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from tracekit.whatif.calls import Call, quantile
from tracekit.whatif.operations import Floats, Ints

CLOSE_NS = 20_000
"""An operation that begins within this of what it could wait for has waited for it; one that
begins later than anything explains by more than this is unexplained."""

EARLY_NS = 2_000
"""Devices' clocks and hosts' differ by this much within a trace."""

MAX_GAP_NS = 10_000
"""Operations of a stream that follow each other within this were queued."""

OP, SYNC, END = 0, 1, 2


class Wait(NamedTuple):
    """What a row waits for: the k-th call of a step, or a row of the same step."""

    is_call: bool
    back: int
    """Steps back."""
    number: int


class Block(Struct):
    """One step of one rank: rows in the order in which the host came to them."""

    step: int
    kind: Ints
    """OP, SYNC or END."""
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
    waits: dict[int, list[Wait]]
    """By row."""
    key: int
    """The same for blocks with the same rows."""
    signature: tuple[tuple[str, str, int], ...]
    """Its collectives in order."""

    @property
    def calls(self) -> Ints:
        return self.call[self.call >= 0]


class RankBlocks(Struct):
    """A rank in one capture."""

    rank: int
    stage: int | None
    begin_ns: int
    blocks: list[Block]
    busy_until_ns: dict[int, float]
    """By stream: end of what was launched before the window, after its begin."""
    compute_stream: int
    latency_ns: float
    gap_ns: float


class Rows(Struct):
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

    def cut(self, rows: Any) -> Rows:
        return Rows(*(getattr(self, name)[rows] for name in self.__struct_fields__))


class RankRows(Struct):
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
    waits: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """(row, row that it waits for)."""
    waits_told: list[dict[int, list[Wait]]] = field(default_factory=list)
    """By step, the waits of each row told by their places."""

    def free_at(self) -> Floats:
        """When each operation could have begun, by launch, stream and known waits."""
        known = self.moment + self.latency_ns
        has = self.before >= 0
        known[has] = np.maximum(known[has], self.end[self.before[has]] + self.gap_ns)
        first = ~has & (self.kind == OP)
        for stream, busy in self.busy_until.items():
            is_busy = first & (self.stream == stream)
            known[is_busy] = np.maximum(known[is_busy], busy + self.gap_ns)
        follows = self.follows & (self.tail >= 0)
        known[follows] = np.maximum(known[follows], self.end[self.tail[follows]])
        row, other = self.waits[self.kind[self.waits[:, 0]] == OP].T
        np.maximum.at(known, row, self.end[other])
        return np.asarray(known, np.float64)

    def finish(self, stage: int | None) -> RankBlocks:
        """The blocks of the steps."""
        lag = np.where(self.kind == OP, self.start - self.free_at(), 0.0)
        work = (self.end - self.start).astype(np.float64)
        until = self.moment.copy()
        np.maximum.at(until, self.waits[:, 0], self.end[self.waits[:, 1]])
        is_stop = self.kind == SYNC
        work[is_stop] = np.maximum(0, self.end - until)[is_stop]
        work[self.kind == END] = 0.0
        blocks = [
            Block(
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
        return RankBlocks(
            self.rank, stage, self.begin_ns, blocks, busy, self.compute_stream, self.latency_ns,
            self.gap_ns,
        )  # fmt: skip


def rank_rows(
    rank: int,
    rows: Rows,
    inside: npt.NDArray[np.bool_],
    stops: Sequence[tuple[int, int, bool]],
    spans: Sequence[tuple[int, int]],
    steps: Sequence[int],
    calls: Mapping[int, Call],
) -> RankRows:
    begin, window_end = spans[0][0], spans[-1][1]
    earlier = rows.launch < begin
    busy: dict[int, int] = {}
    ops = rows.cut(inside)
    streams, firsts, numbers = np.unique(ops.stream, return_index=True, return_inverse=True)
    # By code, in the order in which they come first.
    by_first = np.argsort(firsts)
    codes = {int(streams[at]): code for code, at in enumerate(by_first.tolist())}
    for given, code in codes.items():
        left = rows.end[earlier & (rows.stream == given)]
        if len(left) and int(left.max()) > begin:
            busy[code] = int(left.max())
    stream = np.argsort(by_first)[numbers]
    computing = {
        code: int((ops.end - ops.start)[(stream == code) & ops.is_compute].sum())
        for code in codes.values()
    }
    syncs = _plain_stops(stops, ops.launch, begin, window_end)
    n, m, k = len(ops.launch), len(syncs), len(steps)
    kind = np.concatenate([np.full(n, OP), np.full(m, SYNC), np.full(k, END)])
    moment = np.concatenate([ops.launch, [s for s, _, _ in syncs], [e for _, e in spans]])
    order = np.lexsort((kind, moment))
    nothing = np.full(m + k, -1)
    until = np.concatenate([ops.end, [e for _, e, _ in syncs], [e for _, e in spans]])[order]
    kind, moment = kind[order].astype(np.int64), moment[order].astype(np.int64)
    resumed = np.where(kind == SYNC, until, moment)
    host = moment - np.concatenate([[begin], resumed[:-1]])
    stream = np.concatenate([stream, nothing])[order].astype(np.int64)
    call = np.concatenate([ops.call, nothing])[order].astype(np.int64)
    start = np.concatenate([ops.start, [s for s, _, _ in syncs], [e for _, e in spans]])[order]
    name = np.concatenate([ops.name, nothing])[order].astype(np.int64)
    wide = np.concatenate([np.zeros(n, bool), [w for _, _, w in syncs], np.zeros(k, bool)])[order]
    edges = [0, *(np.flatnonzero(kind == END) + 1).tolist()]
    before = np.full(len(kind), -1, np.int64)
    for code in codes.values():
        mine = np.flatnonzero(stream == code)
        before[mine[1:]] = mine[:-1]
    is_call = call >= 0
    name[is_call] = [_word(calls[c]) for c in call[is_call].tolist()]
    prepared = RankRows(
        rank, begin, kind, stream, name, call, moment, start.astype(np.int64),
        until.astype(np.int64), before, np.maximum(host, 0).astype(np.float64), edges, list(steps),
        [], [], busy, max(computing, key=lambda c: computing[c]) if computing else -1,
        wide.astype(np.bool_),
    )  # fmt: skip
    for a, b in pairwise(edges):
        signature = []
        for number in call[a:b][call[a:b] >= 0].tolist():
            called = calls[number]
            op = called.op if rank not in called.sends else "send"
            signature.append((op, called.kind, called.size_bytes if op != "all_to_all" else 0))
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


def _set_overheads(rows: RankRows) -> None:
    """Usual time from a launch to the earliest start, and between operations of a stream."""
    is_op = rows.kind == OP
    since = (rows.start - rows.moment)[is_op]
    since = np.sort(since[since >= 0]).astype(np.float64)
    rows.latency_ns = quantile(since.tolist(), 0.01) if len(since) else math.inf
    has = is_op & (rows.before >= 0)
    gaps = (rows.start[has] - rows.end[rows.before[has]]).astype(np.float64)
    queued = gaps[(gaps >= 0) & (gaps <= MAX_GAP_NS)]
    rows.gap_ns = float(np.median(queued)) if len(queued) else 0.0
