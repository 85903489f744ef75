"""Which operation waits for which: the dependency template of a pipeline step.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): the
template is read off the order in which one replica ran its operations in one step, and is reused
for every step and replica. An edge u -> v says that v waits for the end of u on the same rank. A
group is a set of operations that finish only after all of them have started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from msgspec import Struct

from tracekit.errors import InputError
from tracekit.whatif import operations as o

NOOP_SLACK_S = 5e-5
"""A receive that starts later than this after the last compute started feeds nothing."""

DP_SYNCED = frozenset({o.PARAMS_GATHER, o.GRADS_SCATTER, o.SEPARATE_REDUCE, o.CLIP})
"""Operations that wait for the same operation of all replicas."""

_MIRROR = {
    o.FORWARD: (o.FORWARD_RECV, o.FORWARD_SEND),
    o.BACKWARD: (o.BACKWARD_RECV, o.BACKWARD_SEND),
}


class Op(Struct):
    """An operation of the template."""

    optype: str
    sequence: int
    stage: int
    start_s: float
    end_s: float
    chunk: int
    global_chunk: int
    index: int = -1
    is_noop: bool = False

    @property
    def order(self) -> tuple[float, int, str]:
        """Sort key: how the rank issued its operations."""
        return (self.start_s, self.sequence, self.optype)


class Template(Struct):
    """Operations, whom each waits for, and which finish together; groups in a valid order."""

    ops: list[Op]
    deps: list[tuple[int, ...]]
    groups: list[tuple[tuple[int, ...], bool]]
    """(members, whether all replicas are members), each after all that it waits for."""


def build(ops: Sequence[Op], *, has_dp: bool) -> Template:
    """The template from one replica's operations of one step, in any order.

    Raises InputError where the order of the operations contradicts itself.
    """
    ops = list(ops)
    for index, op in enumerate(ops):
        op.index = index
    stages: dict[int, dict[str, list[Op]]] = defaultdict(lambda: defaultdict(list))
    for op in sorted(ops, key=lambda op: op.order):
        stages[op.stage][op.optype].append(op)
    last_stage = max(stages, default=0)
    chunks_count = max((op.chunk for op in ops), default=0) + 1
    edges: set[tuple[int, int]] = set()
    for stage, by_type in stages.items():
        edges |= _stage_edges(by_type, stage, last_stage, chunks_count, has_dp)
    groups = _groups(stages, last_stage, chunks_count)
    deps: list[list[int]] = [[] for _ in ops]
    for before, after in sorted(edges):
        deps[after].append(before)
    return Template(ops, [tuple(d) for d in deps], ordered(groups, deps, len(ops)))


def _chain(ops: Iterable[Op]) -> Iterable[tuple[int, int]]:
    return ((a.index, b.index) for a, b in pairwise(ops))


def _stage_edges(
    by_type: dict[str, list[Op]], stage: int, last_stage: int, chunks_count: int, has_dp: bool
) -> set[tuple[int, int]]:
    compute = sorted((op for t in o.COMPUTE for op in by_type[t]), key=lambda op: op.order)
    edges = set(_chain(compute))
    for kind in o.P2P:
        edges |= set(_chain(by_type[kind]))
    for kind in o.DIRECTIONS:
        edges |= _transfer_edges(by_type, kind, stage, last_stage, chunks_count)
    edges |= _first_backward_edges(by_type, compute)
    if has_dp:
        stream = [*by_type[o.PARAMS_GATHER], *by_type[o.GRADS_SCATTER]]
        edges |= set(_chain(sorted(stream, key=lambda op: op.order)))
        edges |= _gather_edges(by_type)
    return edges | _tail_edges(by_type, compute, has_dp)


def _transfer_edges(
    by_type: dict[str, list[Op]], kind: str, stage: int, last_stage: int, chunks_count: int
) -> set[tuple[int, int]]:
    """A compute waits for its receive, the next receive for that compute's turn, a send for it.

    Marks as no-ops what the timers recorded though nothing was moved, so that it is matched
    with nothing: trailing receives, leading sends, and, where a rank holds several chunks, what
    the first and the last chunk of the model would have to receive and send.
    """
    recv_kind, send_kind = _MIRROR[kind]
    computes, recvs, sends = by_type[kind], by_type[recv_kind], by_type[send_kind]
    if not computes:
        return set()
    for op in recvs:
        op.is_noop = op.start_s > computes[-1].start_s + NOOP_SLACK_S
    for op in sends:
        op.is_noop = op.end_s < computes[0].end_s - NOOP_SLACK_S
    edge_chunks = (0, (last_stage + 1) * chunks_count - 1)
    starts, ends = edge_chunks if kind == o.FORWARD else edge_chunks[::-1]
    edges: set[tuple[int, int]] = set()
    positions = {op.index: k for k, op in enumerate(computes)}
    for op, compute in _paired(recvs, computes, starts, last_stage, stage, chunks_count):
        edges.add((op.index, compute.index))
        k = positions[compute.index]
        if k > 0:
            edges.add((computes[k - 1].index, op.index))
    for op, compute in _paired(sends, computes, ends, last_stage, stage, chunks_count):
        edges.add((compute.index, op.index))
    return edges


def _paired(
    transfers: list[Op],
    computes: list[Op],
    edge_chunk: int,
    last_stage: int,
    stage: int,
    chunks_count: int,
) -> list[tuple[Op, Op]]:
    """Transfers with the computes that they belong to, in order.

    With several chunks the timers may or may not have recorded what the edge of the model does
    not move: as many transfers as computes means that they did.
    """
    real = [op for op in transfers if not op.is_noop]
    if chunks_count == 1:
        return list(zip(real, computes, strict=False))

    def is_edge(op: Op) -> bool:
        known = op.global_chunk if op.global_chunk >= 0 else None
        return (op.chunk * (last_stage + 1) + stage if known is None else known) == edge_chunk

    moving = [op for op in computes if not is_edge(op)]
    if len(real) <= len(moving) and len(real) + 1 < len(computes):
        return list(zip(real, moving, strict=False))
    # The receive before the very first compute is the one that may be missing.
    is_recv = bool(real) and real[0].optype in (o.FORWARD_RECV, o.BACKWARD_RECV)
    skipped = 1 if is_recv and len(real) + 1 == len(computes) else 0
    pairs = list(zip(real, computes[skipped:], strict=False))
    for transfer, compute in pairs:
        transfer.is_noop = is_edge(compute)
    return pairs


def _first_backward_edges(by_type: dict[str, list[Op]], compute: list[Op]) -> set[tuple[int, int]]:
    """The backward streams open when the warm-up is about to end, not with the step."""
    first = next((k for k, op in enumerate(compute) if op.optype == o.BACKWARD), None)
    if first is None or first < 2:
        return set()
    return {
        (compute[first - 2].index, by_type[kind][0].index)
        for kind in (o.BACKWARD_RECV, o.BACKWARD_SEND)
        if by_type[kind]
    }


def _gather_edges(by_type: dict[str, list[Op]]) -> set[tuple[int, int]]:
    """A chunk's first forward waits for the last gather of its parameters."""
    edges = set()
    for chunk in {op.chunk for op in by_type[o.PARAMS_GATHER]}:
        gathers = [op for op in by_type[o.PARAMS_GATHER] if op.chunk == chunk]
        forwards = [op for op in by_type[o.FORWARD] if op.chunk == chunk]
        if forwards:
            last = max(gathers, key=lambda op: op.sequence)
            edges.add((last.index, min(forwards, key=lambda op: op.start_s).index))
    return edges


def _tail_edges(
    by_type: dict[str, list[Op]], compute: list[Op], has_dp: bool
) -> set[tuple[int, int]]:
    """What follows the last microbatch: a collection, gradient reductions, the optimizer."""
    last = [max(compute, key=lambda op: op.end_s)] if compute else []
    separate, scatters = by_type[o.SEPARATE_REDUCE], by_type[o.GRADS_SCATTER]
    edges: set[tuple[int, int]] = set()
    before_clip: list[Op] = []
    if has_dp and separate:
        for chunk in {op.chunk for op in scatters}:
            of_chunk = [op for op in scatters if op.chunk == chunk]
            backwards = [op for op in by_type[o.BACKWARD] if op.chunk == chunk]
            if backwards:
                edges.add((max(backwards, key=lambda op: op.end_s).index, of_chunk[0].index))
        before_clip = separate
        if scatters and by_type[o.LAYERNORM]:
            edges.add((scatters[-1].index, by_type[o.LAYERNORM][0].index))
        elif scatters:
            edges.add((scatters[-1].index, separate[0].index))
    elif has_dp:
        before_clip = scatters
    tail = [
        *last,
        *by_type[o.GC][:1],
        *by_type[o.LAYERNORM],
        *by_type[o.EMBEDDING],
        *before_clip,
        *by_type[o.CLIP],
        *by_type[o.OPTIMIZER],
    ]
    return edges | set(_chain(tail))


def _groups(
    stages: dict[int, dict[str, list[Op]]], last_stage: int, chunks_count: int
) -> list[tuple[tuple[int, ...], bool]]:
    """Sets of operations that finish together; an operation of no set is one of its own."""
    groups: list[tuple[int, ...]] = []
    order = sorted(stages)
    for position, stage in enumerate(order):
        wraps = position + 1 == len(order)
        if wraps and chunks_count == 1:
            continue
        following = order[(position + 1) % len(order)]
        for sender, receiver, send_kind, recv_kind in (
            (stage, following, o.FORWARD_SEND, o.FORWARD_RECV),
            (following, stage, o.BACKWARD_SEND, o.BACKWARD_RECV),
        ):
            sends = [op for op in stages[sender][send_kind] if not op.is_noop]
            recvs = [op for op in stages[receiver][recv_kind] if not op.is_noop]
            groups += [(a.index, b.index) for a, b in zip(sends, recvs, strict=False)]
    for kind in (o.EMBEDDING, o.CLIP):
        by_sequence: dict[int, list[int]] = defaultdict(list)
        for stage in order:
            for op in stages[stage][kind]:
                by_sequence[op.sequence].append(op.index)
        groups += [tuple(members) for members in by_sequence.values()]
    taken = {index for members in groups for index in members}
    everything = [op for by_type in stages.values() for ops in by_type.values() for op in ops]
    groups += [(op.index,) for op in everything if op.index not in taken]
    types = {op.index: op.optype for op in everything}
    return [(members, types[members[0]] in DP_SYNCED) for members in groups]


def ordered(
    groups: Sequence[tuple[tuple[int, ...], bool]], deps: Sequence[Sequence[int]], ops_count: int
) -> list[tuple[tuple[int, ...], bool]]:
    """Groups so that each comes after all that its members wait for; InputError for a circle."""
    group_of = [-1] * ops_count
    for number, (members, _) in enumerate(groups):
        for member in members:
            group_of[member] = number
    waits = {
        number: {group_of[d] for member in members for d in deps[member]}
        for number, (members, _) in enumerate(groups)
    }
    try:
        return [groups[number] for number in TopologicalSorter(waits).static_order()]
    except CycleError:
        raise InputError(
            "the pipeline operations wait for each other in a circle",
            hint="sends and receives of one step do not pair: is a rank's timer file missing?",
        ) from None
