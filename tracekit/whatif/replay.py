"""Replaying a pipeline's step: the same operations in the same order, with other durations.

The front end of the replay for timers and for traces with microbatches: the template's operations
become what each stage does, and the executor runs them.

A start is the latest end of what the operation waits for, plus the delay of its launch. A
computation ends its duration later; a communication ends its transfer after the last member of
its group has started. Durations of a collective as recorded include the waiting for peers, so
its transfer is its own end less the latest start of its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from tracekit.errors import InputError
from tracekit.whatif import operations as o
from tracekit.whatif.executor import BOUNDARY, FOLLOWING, JOINING, Event, Executor, Program
from tracekit.whatif.graph import Op, Template, build, ordered
from tracekit.whatif.operations import Floats, Ints, Mask, Operations

IMPLAUSIBLE_S = -10e-3
"""A delay or transfer at or below this is an artefact of clocks and counts as none."""

COMPUTE_LIKE = frozenset({*o.COMPUTE, o.GC, o.OPTIMIZER})
"""Operations whose ideal is the mean; all others take the median, which one jam cannot move."""
GROUPED = frozenset(
    {*o.P2P, o.PARAMS_GATHER, o.GRADS_SCATTER, o.SEPARATE_REDUCE, o.EMBEDDING, o.CLIP}
)
"""Operations that wait for others: their own part is the transfer, not the duration."""

BATCH_BYTES = 64 << 20
"""Scenarios that are replayed side by side hold about this much at once."""


class Replay(Struct, dict=True):
    """A job prepared for replay. Arrays are (operation of the template, step, replica)."""

    template: Template
    steps: list[int]
    dp_ranks: list[int]
    stages: list[int]
    ranks: Ints
    """Global rank by (stage, replica)."""
    start_s: Floats
    end_s: Floats
    work_s: Floats
    """Duration of a computation, transfer of a communication."""
    delay_s: Floats
    """How long after it could have started an operation was launched."""
    ideal_s: Floats
    """The ideal work of each operation, by type: one value for all steps, replicas, stages."""
    ideal_by_type: dict[str, float]
    dropped_steps: list[int] = field(default_factory=list)
    """Steps whose operations differ from the template's: replayed nowhere."""

    @property
    def base_s(self) -> Floats:
        """Measured time of each step: last end less its begin."""
        return np.asarray(
            self.end_s.max(axis=(0, 2)) - _begins(self.template, self.start_s), dtype=np.float64
        )

    def ops_where(self, *, optypes: Iterable[str] | None = None, stage: int | None = None) -> Mask:
        """Mask over the template's operations."""
        wanted = None if optypes is None else frozenset(optypes)
        return np.array(
            [
                (wanted is None or op.optype in wanted) and (stage is None or op.stage == stage)
                for op in self.template.ops
            ],
            dtype=np.bool_,
        )

    def with_edges(self, edges: Iterable[tuple[int, int]]) -> Replay:
        """The same with more that waits: (before, after) of the template's operations.

        Raises InputError where they contradict the order.
        """
        template = self.template
        deps = [list(d) for d in template.deps]
        for before, after in edges:
            if before not in deps[after]:
                deps[after].append(before)
        groups = ordered(template.groups, deps, len(deps))
        changed = replace(template, deps=[tuple(d) for d in deps], groups=groups)
        _, delay = _work(changed, self.start_s, self.end_s)
        return replace(self, template=changed, delay_s=delay)

    def run(self, scenarios: list[Floats], *, delays: list[Floats] | None = None) -> list[Floats]:
        """Time of each step for each scenario's work (broadcast to the shape of ``work_s``).

        ``delays``: of each scenario, how late each operation is launched; none without.
        """
        results: list[Floats] = []
        at_once = max(1, BATCH_BYTES // (2 * self.work_s.nbytes))
        for first in range(0, len(scenarios), at_once):
            part = slice(first, first + at_once)
            work = self._columns(scenarios[part])
            late = None if delays is None else self._columns(delays[part])
            (ends,) = self._executor(work, late).run()
            results += list(ends.reshape(-1, *self.work_s.shape[1:]).max(axis=-1))
        return results

    def ends_s(self, work: Floats, delay: Floats) -> Floats:
        """When each operation ends, from the step's begin; all shaped as ``work_s``."""
        executor = self._executor(self._columns([work]), self._columns([delay]))
        executor.run()
        ends = np.empty_like(work)
        for stage, line in self._lines.items():
            for op, end in zip(line.ops, executor.ends_of(stage, line.events), strict=True):
                ends[op] = end.reshape(work.shape[1:])
        return ends

    def _columns(self, scenarios: list[Floats]) -> Floats:
        """(operation, column): a column is a scenario of one step of one replica."""
        shape = self.work_s.shape
        beside = np.stack([np.broadcast_to(s, shape) for s in scenarios], axis=1)
        return beside.reshape(len(beside), -1)

    def _executor(self, work: Floats, delay: Floats | None) -> Executor:
        nothing = np.zeros(work.shape[1])
        programs = {
            stage: Program(
                stage,
                line.events,
                line.groups,
                None if delay is None else [*(delay[op] for op in line.ops), nothing],
                [*(work[op] for op in line.ops), nothing],
                stage=stage,
            )
            for stage, line in self._lines.items()
        }
        groups = _Groups(self.template, work, len(self.dp_ranks))
        return Executor(groups, programs, None, work.shape[1])

    @cached_property
    def _lines(self) -> dict[int, _Line]:
        return {stage: _line(self.template, stage) for stage in self.stages}


class _Line(Struct, frozen=True):
    """What a stage does: its operations in an order that its waits allow, then the step's end."""

    ops: list[int]
    events: tuple[Event, ...]
    groups: Ints
    """Of its events that join others, the numbers of their groups."""


def _line(template: Template, stage: int) -> _Line:
    ops: list[int] = []
    events: list[Event] = []
    groups: list[int] = []
    place: dict[int, tuple[bool, int]] = {}
    for number, (members, is_dp_synced) in enumerate(template.groups):
        for op in sorted(m for m in members if template.ops[m].stage == stage):
            waits = tuple(place[before] for before in template.deps[op])
            ops.append(op)
            if len(members) > 1 or is_dp_synced:
                place[op] = True, len(groups)
                events.append((JOINING, -1, len(groups), False, waits))
                groups.append(number)
            else:
                place[op] = False, op
                events.append((FOLLOWING, -1, op, False, waits))
    # The optimizer ends the step, if it was timed.
    last = [op for op in ops if template.ops[op].optype == o.OPTIMIZER]
    is_timed = any(op.optype == o.OPTIMIZER for op in template.ops)
    ends = tuple(place[op] for op in (last if is_timed else ops))
    if ends:
        events.append((BOUNDARY, -1, 0, False, ends))
    return _Line(ops, tuple(events), np.array(groups, np.int64))


class _Groups(Struct, frozen=True):
    """Operations that finish together, as a replay's exchanges: each its own transfer after the
    last of them has begun."""

    template: Template
    work_s: Floats
    """(operation, column)."""
    replicas: int

    def size(self, number: int) -> int:
        return len(self.template.groups[number][0])

    def leave(self, number: int, members: Sequence[int], entered: Floats) -> Floats:
        ops, is_dp_synced = self.template.groups[number]
        # As its members come: by stage, of a stage in the order of its events.
        rows = sorted(ops, key=lambda op: (self.template.ops[op].stage, op))
        latest = entered.max(axis=0)
        if is_dp_synced:
            latest = np.repeat(latest.reshape(-1, self.replicas).max(axis=1), self.replicas)
        left = np.empty_like(entered)
        for row, op in enumerate(rows):
            np.add(latest, self.work_s[op], out=left[row])
        return left


def prepare(operations: Operations) -> Replay:
    """Everything that replays need, from the operations of a job.

    Raises InputError where there is no pipeline to replay.
    """
    if len(operations) == 0:
        raise InputError(
            "there are no pipeline operations to replay",
            hint="give per-operation timer files, or traces with named microbatch ranges",
        )
    dp_ranks = [int(v) for v in np.unique(operations.dp_rank)]
    stages = [int(v) for v in np.unique(operations.stage)]
    steps, dropped = _whole_steps(operations, dp_ranks)
    if not steps:
        raise InputError("no step has the same operations on all replicas")
    kept = operations.take(np.isin(operations.step, steps))
    template = build(_template_ops(kept, steps[0], dp_ranks[0]), has_dp=_has_dp(kept))
    start, end = _placed(kept, template, steps, dp_ranks)
    work, delay = _work(template, start, end)
    ideal_by_type = _ideal(template, work)
    ideal = np.array([ideal_by_type[op.optype] for op in template.ops])[:, None, None]
    ranks = np.full((len(stages), len(dp_ranks)), -1, dtype=np.int64)
    ranks[np.searchsorted(stages, kept.stage), np.searchsorted(dp_ranks, kept.dp_rank)] = kept.rank
    return Replay(
        template, steps, dp_ranks, stages, ranks, start, end, work, delay, ideal, ideal_by_type,
        dropped,
    )  # fmt: skip


def _has_dp(operations: Operations) -> bool:
    if operations.layout.dp is not None:
        return operations.layout.dp > 1
    return bool(operations.is_type(o.PARAMS_GATHER, o.GRADS_SCATTER, o.SEPARATE_REDUCE).any())


def _keys(operations: Operations) -> Ints:
    """One number an operation key (type, sequence, stage)."""
    sequences = int(operations.sequence.max(initial=0)) + 1
    stages = int(operations.stage.max(initial=0)) + 1
    return np.asarray(
        (operations.optype * sequences + operations.sequence) * stages + operations.stage, np.int64
    )


def _whole_steps(operations: Operations, dp_ranks: list[int]) -> tuple[list[int], list[int]]:
    """Steps in which every replica has the most usual set of operations, and the others."""
    keys = _keys(operations)
    sets: dict[int, list[bytes]] = {}
    order = np.lexsort((keys, operations.dp_rank, operations.step))
    step, dp, key = operations.step[order], operations.dp_rank[order], keys[order]
    cuts = np.flatnonzero((np.diff(step) != 0) | (np.diff(dp) != 0)) + 1
    for part in np.split(np.arange(len(step)), cuts):
        sets.setdefault(int(step[part[0]]), []).append(key[part].tobytes())
    counts: dict[bytes, int] = {}
    for held in sets.values():
        for content in held:
            counts[content] = counts.get(content, 0) + 1
    usual = max(counts, key=lambda c: counts[c])
    count = len(dp_ranks)
    good = sorted(s for s, held in sets.items() if len(held) == count and set(held) == {usual})
    return good, sorted(set(sets) - set(good))


def _template_ops(operations: Operations, step: int, dp_rank: int) -> list[Op]:
    rows = np.flatnonzero((operations.step == step) & (operations.dp_rank == dp_rank))
    return [
        Op(
            optype=operations.names[operations.optype[i]],
            sequence=int(operations.sequence[i]),
            stage=int(operations.stage[i]),
            start_s=float(operations.start_s[i]),
            end_s=float(operations.start_s[i] + operations.duration_s[i]),
            chunk=int(operations.chunk[i]),
            global_chunk=int(operations.global_chunk[i]),
        )
        for i in rows
    ]


def _placed(
    operations: Operations, template: Template, steps: list[int], dp_ranks: list[int]
) -> tuple[Floats, Floats]:
    """Starts and ends in the template's order."""
    names = {name: code for code, name in enumerate(operations.names)}
    index = {(names[op.optype], op.sequence, op.stage): op.index for op in template.ops}
    rows = zip(
        operations.optype.tolist(),
        operations.sequence.tolist(),
        operations.stage.tolist(),
        strict=True,
    )
    op_index = np.fromiter((index[row] for row in rows), np.int64, len(operations))
    at = (
        op_index,
        np.searchsorted(steps, operations.step),
        np.searchsorted(dp_ranks, operations.dp_rank),
    )
    start = np.empty((len(template.ops), len(steps), len(dp_ranks)))
    end = np.empty_like(start)
    start[at] = operations.start_s
    end[at] = operations.start_s + operations.duration_s
    return start, end


def _work(template: Template, start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Own work of each operation, and how late it was launched."""
    work = end - start
    delay = np.empty_like(start)
    step_start = _begins(template, start)[:, None]
    for members, is_dp_synced in template.groups:
        latest = start[list(members)].max(axis=0)
        if is_dp_synced:
            latest = latest.max(axis=-1, keepdims=True)
        for member in members:
            before = template.deps[member]
            could = end[list(before)].max(axis=0) if before else step_start
            delay[member] = start[member] - could
            if template.ops[member].optype in GROUPED:
                work[member] = end[member] - latest
    delay[delay <= IMPLAUSIBLE_S] = 0.0
    grouped = np.array([op.optype in GROUPED for op in template.ops])
    work[grouped[:, None, None] & (work <= IMPLAUSIBLE_S)] = 0.0
    return work, delay


def _begins(template: Template, start: Floats) -> Floats:
    """When each step begins: with the first operation that is no receive.

    A receive that was posted before waits for it, maybe since the end of the step before: ranks
    that finish early begin the next step early.
    """
    is_work = np.array([op.optype not in (o.FORWARD_RECV, o.BACKWARD_RECV) for op in template.ops])
    return np.asarray((start[is_work] if is_work.any() else start).min(axis=(0, 2)), np.float64)


def _ideal(template: Template, work: Floats) -> dict[str, float]:
    rows: dict[str, list[int]] = {}
    for op in template.ops:
        rows.setdefault(op.optype, []).append(op.index)
    return {
        optype: float(work[indices].mean() if optype in COMPUTE_LIKE else np.median(work[indices]))
        for optype, indices in rows.items()
    }
