"""What a layout sends past the NICs of a host in a step.

A ring enters and leaves each host once, however many of its members run there, so what one member
sends passes the host's NICs once for all of them; of an all-to-all each pair's share does, and a
message between two ranks where they run apart. Trees, switches that add up and all-gathers that
send each byte to a host once need less: what a host cannot do without stands beside it.

Sources: nccl-tests PERFORMANCE.md for what a member of a ring sends; double binary trees (Sanders
et al. 2009), where k hosts of a tree pass 2 (k-1)/k of the array; Megatron-LM (SC 2021) for the
interleaved pipeline, whose last stage hands on to the first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import NamedTuple

from msgspec import Struct

from tracekit.expect.expectation import Axes, Expectation, TrafficRow

_TIED_ONLY = "embedding"
"""Groups of which nobody knows whether they are there: a model need not tie its embeddings."""
_HALVES_RATIO = 2.0
"""The most that sequence parallelism and recomputation make of a tensor-parallel all-reduce."""


class Amount(NamedTuple):
    """Bytes a step."""

    expected: float
    """In rings, and as the description states it."""
    least: float
    most: float
    """Over the algorithms and choices that the description leaves open."""


class Crossing(Struct, frozen=True):
    """What passes the NICs of a host."""

    sent: Amount
    received: Amount
    kinds: tuple[str, ...]
    """Groups that cross: dp all_reduce, pp send, ..."""
    unknown: tuple[str, ...] = ()
    """Those of which the description does not give the bytes: the amounts are without them."""


def crossing(expectation: Expectation, ranks: Collection[int]) -> Crossing:
    """What the ranks of one host send to and get from all others of the job.

    No ranks send nothing; a job on one host sends nothing either.
    """
    own = frozenset(ranks)
    sent, received = _Sum(), _Sum()
    kinds: list[str] = []
    unknown: list[str] = []
    for row in expectation.traffic:
        flows = _flows(row, own, expectation.sizes.get("vpp", 1))
        if not flows.out and not flows.into:
            continue
        kinds.append(f"{row.group_kind} {row.op}")
        spread = row.range_bytes
        if row.bytes_per_step is None or spread is None:
            unknown.append(kinds[-1])
            continue
        low, high = spread
        if row.group_kind == _TIED_ONLY:
            low = 0.0
        if row.group_kind == "tp":
            high = max(high, _HALVES_RATIO * row.bytes_per_step)
        sent.add(flows.out, flows.least_out, row.bytes_per_step, low, high)
        received.add(flows.into, flows.least_into, row.bytes_per_step, low, high)
    return Crossing(sent.amount, received.amount, tuple(kinds), tuple(unknown))


class _Flows(NamedTuple):
    """Multiples of what one member sends, by way: in rings, and at least."""

    out: float
    into: float
    least_out: float
    least_into: float


class _Sum:
    def __init__(self) -> None:
        self.amount = Amount(0.0, 0.0, 0.0)

    def add(self, factor: float, least_factor: float, sent: float, low: float, high: float) -> None:
        expected, least, most = self.amount
        self.amount = Amount(
            expected + factor * sent, least + least_factor * low, most + factor * high
        )


def _flows(row: TrafficRow, own: frozenset[int], chunks: int) -> _Flows:
    if row.op == "send":
        out = _sends(row.group_kind, row.axes, own, chunks)
        return _Flows(out, out, out, out)
    size = math.prod(count for _, count in row.axes)
    total = [0.0, 0.0, 0.0, 0.0]
    for here in _groups(row.axes, own):
        if row.group_kind == _TIED_ONLY:
            parts = _pair(row.axes, here)
        elif len(here) == size:
            continue
        elif row.op == "all_to_all":
            share = len(here) * (size - len(here)) / (size - 1)
            parts = _Flows(share, share, share, share)
        else:
            parts = _pooled(row.op, size, len(here))
        total = [a + b for a, b in zip(total, parts, strict=True)]
    return _Flows(*total)


def _pooled(op: str, size: int, here_count: int) -> _Flows:
    """An operation of which the host passes on each byte once: one ring. Of an array, a member of a
    ring sends 2 (n-1)/n or (n-1)/n; two hosts of a tree send all of it, and of an all-gather a host
    must send its members' part and get that of the others."""
    mine, rest = here_count / (size - 1), (size - here_count) / (size - 1)
    if op == "all_reduce":
        tree = size / (2 * (size - 1))
        return _Flows(1, 1, tree, tree)
    if op == "all_gather":
        return _Flows(1, 1, mine, rest)
    return _Flows(1, 1, rest, mine) if op == "reduce_scatter" else _Flows(1, 1, 0, 0)


def _pair(axes: Axes, here: Collection[int]) -> _Flows:
    """The first and the last of a group, which exchange an array of their own."""
    ((stride, count),) = axes
    ends = sum(rank // stride % count in (0, count - 1) for rank in here)
    return _Flows(1, 1, 1, 1) if ends == 1 else _Flows(0, 0, 0, 0)


def _sends(kind: str, axes: Axes, own: frozenset[int], chunks: int) -> float:
    """Of messages to neighbours: what leaves the host, in multiples of what one rank sends. As much
    comes in: of a ring what the rank before sends, of a pipeline the gradients of what went out.

    In a pipeline half goes either way, and from its last stage to the first only what makes a chunk
    of the first out of one of the last.
    """
    ((stride, count),) = axes
    wrapped = (chunks - 1) / chunks
    out = 0.0
    for rank in own:
        at = rank // stride % count
        is_after_away = rank + ((at + 1) % count - at) * stride not in own
        is_before_away = rank + ((at - 1) % count - at) * stride not in own
        if kind != "pp":
            out += is_after_away
            continue
        out += 0.5 * (wrapped if at == count - 1 else 1.0) * is_after_away
        out += 0.5 * (wrapped if at == 0 else 1.0) * is_before_away
    return out


def _groups(axes: Axes, own: frozenset[int]) -> Iterator[list[int]]:
    """The members on the host of each group that has any."""
    found: dict[int, list[int]] = {}
    for rank in own:
        base = rank - sum((rank // stride % count) * stride for stride, count in axes)
        found.setdefault(base, []).append(rank)
    yield from found.values()
