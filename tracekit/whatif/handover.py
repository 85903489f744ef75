"""How long a pipeline must stand idle that hands over between stages as fast as it can.

The known bubbles, (p-1)/m and its kin, hold where handing over takes no time. In a real pipeline
a stage's output is reduced over its tensor group, sent to a neighbour and received before that
neighbour can begin; and the order of 1F1B puts such a hand-over into every turn of the cycle
between two stages, so that no amount of health takes it away. So the same operations are replayed
in their order, each computation with the mean of its kind and stage, and each hand-over as fast
as the fastest tenth of its kind was in this very job: a transport that was fast so often can be.
What the stages stood idle beyond that is neither the schedule's nor the transport's.

The same operations say what a step would take if the messages that some ranks send took what
those of others do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from tracekit.whatif import operations as o
from tracekit.whatif.metrics import MAX_SIMULATION_ERROR_RATIO, error_ratio
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


def saved_by_messages_s(replay: Replay, ranks: Collection[int]) -> float | None:
    """Seconds a step that go if the messages that these ranks send and receive took what the median
    message of their kind takes between others.

    Who sends slowly receives slowly too where what asks for a message or confirms it waits behind
    what is sent; where all messages of a kind have one of these ranks at an end, those that they
    receive are the others. Messages of one direction to a stage pass one after the other, so those
    that a slow link holds up queue, and each takes what it ends after the one before it. Of one
    that was asked for later less may be seen, so these are compared with such of the others.
    Launches stay. None where there are no others of a kind, or the replay is not believed.
    """
    pairs = _messages(replay)
    turns = _in_turn(replay, [receive for _, receive in pairs])
    replay = replay.with_edges([*_posted_in_order(replay), *turns])
    before = {after: first for first, after in turns}
    start, end, work = replay.start_s, replay.end_s, replay.work_s.copy()
    is_sent, is_received, is_whole = (np.zeros(work.shape, dtype=np.bool_) for _ in range(3))
    for send, receive in pairs:
        is_sent[receive] = _is_of(replay, send, ranks)
        is_received[receive] = _is_of(replay, receive, ranks)
        begin = start[send]
        if receive in before:
            begin = np.maximum(begin, end[before[receive]])
        is_whole[receive] = start[receive] <= begin
        work[receive] = np.maximum(0.0, end[receive] - np.maximum(begin, start[receive]))
    changed, has_some = work.copy(), False
    for optype in (o.FORWARD_RECV, o.BACKWARD_RECV):
        of_kind = [pair for pair in pairs if replay.template.ops[pair[1]].optype == optype]
        sends, kind = [send for send, _ in of_kind], [receive for _, receive in of_kind]
        sent, received = is_sent[kind], is_received[kind]
        others = ~sent & ~received
        if not others.any():
            others, received = ~sent, np.zeros_like(received)
        if not (sent | received).any():
            continue
        if not others.any():
            return None
        has_some = True
        for theirs in (sent, received & ~sent):
            for alike in (is_whole[kind], ~is_whole[kind]):
                longer_s = _longer_s(work[kind], theirs & alike, others & alike, others)
                for ends in (sends, kind):
                    shorter = np.maximum(0.0, work[ends] - longer_s)
                    changed[ends] = np.where(theirs & alike, shorter, changed[ends])
    if not has_some:
        return None
    now, then = (float(t.mean()) for t in replay.run([work, changed]))
    if error_ratio(float(replay.base_s.mean()), now) > MAX_SIMULATION_ERROR_RATIO:
        return None
    return now - then


def _is_of(replay: Replay, op: int, ranks: Collection[int]) -> Mask:
    """Whether an operation is one of these ranks', by replica."""
    row = replay.stages.index(replay.template.ops[op].stage)
    return np.asarray(np.isin(replay.ranks[row], list(ranks)), np.bool_)


def _longer_s(work: Floats, theirs: Mask, like_them: Mask, others: Mask) -> float:
    """What the median of their messages takes beyond that of others, like them if there are such;
    0 or more."""
    if not theirs.any():
        return 0.0
    usual_s = float(np.median(work[like_them if like_them.any() else others]))
    return max(0.0, float(np.median(work[theirs])) - usual_s)


def _in_turn(replay: Replay, receives: Sequence[int]) -> list[tuple[int, int]]:
    """(before, after) of a stage's receives of one direction."""
    ops = replay.template.ops
    queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for receive in sorted(receives, key=lambda r: ops[r].order):
        queues[ops[receive].optype, ops[receive].stage].append(receive)
    return [pair for queue in queues.values() for pair in pairwise(queue)]


def _messages(replay: Replay) -> list[tuple[int, int]]:
    """Send and receive of each group that is one of each."""
    ops = replay.template.ops
    messages = []
    for members, _ in replay.template.groups:
        sends = [m for m in members if ops[m].optype in (o.FORWARD_SEND, o.BACKWARD_SEND)]
        receives = [m for m in members if ops[m].optype in (o.FORWARD_RECV, o.BACKWARD_RECV)]
        if len(sends) == len(receives) == 1:
            messages.append((sends[0], receives[0]))
    return messages


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
