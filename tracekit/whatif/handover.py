"""How long a pipeline must stand idle that hands over between stages as fast as it can.

The known bubbles, (p-1)/m and its kin, hold where handing over takes no time. In a real pipeline
a stage's output is reduced over its tensor group, sent to a neighbour and received before that
neighbour can begin; and the order of 1F1B puts such a hand-over into every turn of the cycle
between two stages, so that no amount of health takes it away. So the same operations are replayed
in their order, each computation with the mean of its kind and stage, and each hand-over as fast
as the fastest tenth of its kind was in this very job: a transport that was fast so often can be.
What the stages stood idle beyond that is neither the schedule's nor the transport's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np

from tracekit.whatif import operations as o
from tracekit.whatif.operations import Floats, Mask
from tracekit.whatif.replay import Replay

FAST_QUANTILE = 0.1
"""The fastest itself may be an error of clocks; a tenth of them cannot all be."""


def idle_beyond_s(replay: Replay) -> float | None:
    """Seconds a step that the pipeline takes beyond its order of operations and fast hand-overs.

    Of the mean replica and step, from the first computation to the last; 0 or more. None where the
    messages between stages were not recorded: then nobody knows what handing over takes.
    """
    if not _has_messages(replay):
        return None
    replay = replay.with_edges(_posted_in_order(replay))
    work, delay = _fastest(replay)
    ends = replay.ends_s(work, delay)
    compute = replay.ops_where(optypes=o.COMPUTE)
    took = _windows(replay.start_s[compute], replay.end_s[compute])
    needed = _windows(ends[compute] - work[compute], ends[compute])
    return max(0.0, float((took - needed).mean()))


def _windows(start: Floats, end: Floats) -> Floats:
    """First start to last end over the operations, by step and replica."""
    return np.asarray(end.max(axis=0) - start.min(axis=0), dtype=np.float64)


def _has_messages(replay: Replay) -> bool:
    """Whether every computation that has a neighbour before it waits for a receive.

    Those of the model's first chunk (forward) and last chunk (backward) receive nothing: as many
    of each as there are microbatches.
    """
    ops, deps = replay.template.ops, replay.template.deps
    received, alone = Counter[str](), Counter[str]()
    chunks: set[tuple[int, int]] = set()
    for op in ops:
        if op.optype not in o.DIRECTIONS:
            continue
        chunks.add((op.stage, op.chunk))
        waits = any(ops[d].optype in (o.FORWARD_RECV, o.BACKWARD_RECV) for d in deps[op.index])
        (received if waits else alone)[op.optype] += 1
    if len(chunks) < 2:
        return False
    return all(
        received[kind] and alone[kind] * len(chunks) <= alone[kind] + received[kind]
        for kind in o.DIRECTIONS
    )


def _posted_in_order(replay: Replay) -> list[tuple[int, int]]:
    """Receives that were asked for only once the stage's computation before was done.

    (computation, receive), where nearly every step and replica shows it: such a message cannot
    pass while the receiving stage still computes.
    """
    ops, deps = replay.template.ops, replay.template.deps
    by_stage: dict[int, list[int]] = defaultdict(list)
    for op in sorted(ops, key=lambda op: op.order):
        if op.optype in o.COMPUTE:
            by_stage[op.stage].append(op.index)
    edges = []
    for chain in by_stage.values():
        for before, after in pairwise(chain):
            for dep in deps[after]:
                is_receive = ops[dep].optype in (o.FORWARD_RECV, o.BACKWARD_RECV)
                waited = replay.start_s[dep] >= replay.end_s[before]
                if is_receive and waited.mean() >= 1 - FAST_QUANTILE:
                    edges.append((before, dep))
    return edges


def _fastest(replay: Replay) -> tuple[Floats, Floats]:
    """Work and launch delay of each operation: the usual computation, the fast hand-over.

    By type, stage and chunk, over microbatches, steps and replicas. Computations keep their mean,
    so that their sum stays what was measured; what is neither computation nor message (gathers,
    the optimizer) keeps its own time.
    """
    kinds: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for op in replay.template.ops:
        kinds[op.optype, op.stage, op.chunk].append(op.index)
    work, delay = replay.work_s.copy(), np.zeros_like(replay.delay_s)
    was_ready = _was_receiver_ready(replay)
    for (optype, _, _), indices in kinds.items():
        delay[indices] = max(0.0, float(np.quantile(replay.delay_s[indices], FAST_QUANTILE)))
        if optype in o.P2P:
            ready = was_ready[indices]
            whole = work[indices][ready] if ready.any() else work[indices]
            work[indices] = max(0.0, float(np.quantile(whole, FAST_QUANTILE)))
        elif optype in o.COMPUTE:
            work[indices] = work[indices].mean()
    return work, delay


def _was_receiver_ready(replay: Replay) -> Mask:
    """Whether the receiver of a message waited for its sender, by operation, step and replica.

    Only then all of the transfer was seen: where a transport buffers, a receive that is asked for
    late finds its message there.
    """
    ops, start = replay.template.ops, replay.start_s
    was_ready = np.zeros(start.shape, dtype=np.bool_)
    for members, _ in replay.template.groups:
        sends = [m for m in members if ops[m].optype in (o.FORWARD_SEND, o.BACKWARD_SEND)]
        recvs = [m for m in members if ops[m].optype in (o.FORWARD_RECV, o.BACKWARD_RECV)]
        if sends and recvs:
            was_ready[list(members)] = start[recvs].max(axis=0) <= start[sends].max(axis=0)
    return was_ready
