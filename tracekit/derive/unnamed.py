"""Microbatch operations of pipelines whose traces name none: from messages and kernels.

Who sends to whom says which rank is which stage: the first messages of a step go down the
pipeline, from a rank that receives nothing before it sends. What a rank launched between two
messages is then the operation that the messages belong to:

* a forward lies between the receive of its input and the send of its output;
* a backward lies between the receive of its gradient and the send of the next;
* where a message is missing, at both ends of the pipeline, the launching thread tells the two
  apart: PyTorch launches a backward from threads of autograd.

Nothing is claimed of a step in which that does not come out even: another number of messages than
of microbatches, operations without a kernel or with very different numbers of them, computation
that belongs to neither (weight gradients on their own, several chunks a rank), messages in a ring
(chunks or context parallelism). Ranks without a device are left out: their traces name the ranges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import duckdb

Ints = npt.NDArray[np.int64]
Window = tuple[int, int, int]
"""Capture, step, rank."""

MIN_COVERED_RATIO = 0.95
"""Share of the computation between the first forward and the last backward that must be theirs."""

MAX_KERNELS_RATIO = 1.25
"""Operations of one kind on one rank launch about the same number of kernels."""

_MESSAGES = """
SELECT c.capture_id, s.step, c.rank, o.op,
       coalesce(g.launch_start_ns, o.enqueue_ns) AS launch_ns, o.start_ns,
       o.start_ns + o.dur_ns AS end_ns, m.instance_id
FROM collective o
JOIN derive_context c USING (source_id)
JOIN derive_match m ON m.source_id = o.source_id AND m.place = o.place
LEFT JOIN gpu_op g ON g.source_id = o.source_id AND g.place = o.gpu_op_place
ASOF JOIN derive_step s
  ON o.source_id = s.source_id AND coalesce(g.launch_start_ns, o.enqueue_ns) >= s.start_ns
WHERE o.op IN ('send', 'recv') AND o.timeline = 'device' AND c.rank IS NOT NULL
  AND coalesce(g.launch_start_ns, o.enqueue_ns) < s.end_ns
  AND o.start_ns IS NOT NULL AND o.dur_ns IS NOT NULL AND m.instance_id IS NOT NULL
ORDER BY c.capture_id, s.step, c.rank, launch_ns, o.start_ns
"""

_KERNELS = """
SELECT c.capture_id, s.step, c.rank, g.launch_start_ns, coalesce(g.launch_thread, -1), g.start_ns,
       g.start_ns + g.dur_ns AS end_ns
FROM gpu_op g
JOIN derive_context c USING (source_id)
ASOF JOIN derive_step s ON g.source_id = s.source_id AND g.launch_start_ns >= s.start_ns
WHERE g.class = 'compute' AND c.rank IS NOT NULL AND g.launch_start_ns < s.end_ns
ORDER BY c.capture_id, s.step, c.rank, g.launch_start_ns, g.start_ns
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on its source's own clock."""

    capture: int
    step: int
    rank: int
    stage: int
    operation: str
    sequence: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class _Messages:
    """Of one rank in one step, in the order of their launches."""

    op: list[str]
    launch: list[int]
    start: list[int]
    end: list[int]
    peer: list[int]


@dataclass(slots=True)
class _Kernels:
    launch: Ints
    thread: Ints
    start: Ints
    end: Ints


def find_operations(
    con: duckdb.DuckDBPyConnection, notes: list[str]
) -> tuple[list[Operation], dict[int, int]]:
    """Operations of all steps in which they can be told, and the stage of each rank.

    The tables derive_context, derive_step and derive_match (source_id, place, instance_id) must be
    there. What a reader should know is appended to ``notes``.
    """
    messages = _messages(con)
    if not messages:
        return [], {}
    stages, reason = _chains(messages)
    if reason:
        notes.append(f"pipeline: messages without named microbatches; {reason}")
    if not stages:
        return [], {}
    kernels = _kernels(con)
    operations: list[Operation] = []
    reasons: Counter[str] = Counter()
    by_step: dict[tuple[int, int], list[int]] = defaultdict(list)
    for capture, step, rank in messages:
        by_step[capture, step].append(rank)
    for (capture, step), ranks in sorted(by_step.items()):
        parts: list[Operation] = []
        for rank in sorted(ranks):
            here = capture, step, rank
            parts_here = _operations(here, messages[here], kernels.get(here), stages)
            if isinstance(parts_here, str):
                reasons[parts_here] += 1
                break
            parts += parts_here
        else:
            if set(ranks) == set(stages):
                operations += parts
    if reasons:
        reason = reasons.most_common(1)[0][0]
        notes.append(
            f"pipeline: of {len(by_step)} steps without named microbatches "
            f"{len({(o.capture, o.step) for o in operations})} can be told apart; {reason}"
        )
    return operations, stages if operations else {}


def _messages(con: duckdb.DuckDBPyConnection) -> dict[Window, _Messages]:
    rows = con.sql(_MESSAGES).fetchall()
    members: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        members[row[7]].append(row[2])
    messages: dict[Window, _Messages] = {}
    for capture, step, rank, op, launch, start, end, instance in rows:
        others = [r for r in members[instance] if r != rank]
        if len(others) != 1:
            continue
        exchanged = messages.setdefault((capture, step, rank), _Messages([], [], [], [], []))
        exchanged.op.append(op)
        exchanged.launch.append(launch)
        exchanged.start.append(start)
        exchanged.end.append(end)
        exchanged.peer.append(others[0])
    return messages


def _kernels(con: duckdb.DuckDBPyConnection) -> dict[Window, _Kernels]:
    columns = con.sql(_KERNELS).fetchnumpy()
    arrays = [np.asarray(values, np.int64) for values in columns.values()]
    if not len(arrays[0]):
        return {}
    keys = np.stack(arrays[:3])
    cuts = np.flatnonzero((np.diff(keys, axis=1) != 0).any(axis=0)) + 1
    bounds = [0, *cuts.tolist(), keys.shape[1]]
    return {
        (int(keys[0, a]), int(keys[1, a]), int(keys[2, a])): _Kernels(*(v[a:b] for v in arrays[3:]))
        for a, b in pairwise(bounds)
    }


# --- stages ---------------------------------------------------------------------------------------


def _chains(messages: Mapping[Window, _Messages]) -> tuple[dict[int, int], str]:
    """Stage by rank, and why there are none."""
    down: Counter[tuple[int, int]] = Counter()
    for (_, _, rank), exchanged in messages.items():
        for peer in set(exchanged.peer):
            with_peer = [k for k, p in enumerate(exchanged.peer) if p == peer]
            if exchanged.op[with_peer[0]] == "send":
                down[rank, peer] += 1
    edges = {e for e, n in down.items() if n > down[e[1], e[0]]}
    ranks = {r for _, _, r in messages}
    talks = {frozenset((r, p)) for (_, _, r), exchanged in messages.items() for p in exchanged.peer}
    if any(len(e) < 2 for e in talks) or talks != {frozenset(e) for e in edges}:
        return {}, "which way they go first differs from step to step"
    after, before = dict(edges), {b: a for a, b in edges}
    if len(after) < len(edges) or len(before) < len(edges):
        return {}, "a rank sends to several: no chain of stages"
    stages: dict[int, int] = {}
    lengths = set()
    for head in sorted(ranks - set(before)):
        rank, stage = head, 0
        while True:
            stages[rank] = stage
            if rank not in after:
                break
            rank, stage = after[rank], stage + 1
        lengths.add(stage + 1)
    if set(stages) != ranks:
        return {}, "they go in a ring (several chunks a rank, or context parallelism)"
    if len(lengths) != 1 or lengths == {1}:
        return {}, "chains of different length"
    return stages, ""


# --- operations of a rank in a step ---------------------------------------------------------------


def _operations(
    here: Window, messages: _Messages, kernels: _Kernels | None, stages: Mapping[int, int]
) -> list[Operation] | str:
    """The operations, or why they cannot be told."""
    rank, last = here[2], max(stages.values())
    stage = stages[rank]
    marks = _marks(messages, stages, stage)
    counts = {len(v) for v in marks.values() if v}
    wanted = {
        *(("forward-recv", "backward-send") if stage > 0 else ()),
        *(("forward-send", "backward-recv") if stage < last else ()),
    }
    if len(counts) != 1 or {name for name, v in marks.items() if v} != wanted:
        return "messages do not come in pairs of forward and backward"
    if kernels is None:
        return "a rank has no computation"
    at = {name: [messages.launch[k] for k in rows] for name, rows in marks.items()}
    begin, end = int(kernels.launch[0]), int(kernels.launch[-1]) + 1
    forwards, backwards = _windows(at, begin, end, is_first=stage == 0, is_last=stage == last)
    main = _main_thread(kernels, forwards[0])
    autograd = set(np.unique(kernels.thread).tolist()) - {main}
    if (stage in (0, last)) and not autograd:
        return "forward and backward are launched by one thread"
    only = (kernels.thread == main) if autograd else np.ones(len(kernels.thread), np.bool_)
    other = ~only if autograd else only
    chosen = [
        *(("forward-compute", k, _inside(kernels, w) & only) for k, w in enumerate(forwards)),
        *(("backward-compute", k, _inside(kernels, w) & other) for k, w in enumerate(backwards)),
    ]
    reason = _doubt(kernels, chosen)
    if reason:
        return reason
    computes = [
        Operation(*here, stage, name, k, int(kernels.start[rows].min()),
                  int(kernels.end[rows].max()))
        for name, k, rows in chosen
    ]  # fmt: skip
    moved = [
        Operation(*here, stage, name, k, messages.start[row], messages.end[row])
        for name, rows in marks.items()
        for k, row in enumerate(rows)
    ]
    return [*computes, *moved]


def _marks(messages: _Messages, stages: Mapping[int, int], stage: int) -> dict[str, list[int]]:
    """Rows of the messages by what they carry."""
    marks: dict[str, list[int]] = {
        "forward-recv": [], "forward-send": [], "backward-recv": [], "backward-send": [],
    }  # fmt: skip
    for k, (op, peer) in enumerate(zip(messages.op, messages.peer, strict=True)):
        is_earlier = stages.get(peer, -1) == stage - 1
        way = "forward" if is_earlier == (op == "recv") else "backward"
        marks[f"{way}-{op}"].append(k)
    return marks


def _windows(
    at: Mapping[str, Sequence[int]], begin: int, end: int, *, is_first: bool, is_last: bool
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Launch times between which forwards and backwards were launched."""
    if is_first:
        sends, receives = at["forward-send"], at["backward-recv"]
        forwards = list(zip([begin, *sends[:-1]], sends, strict=True))
        return forwards, list(zip(receives, [*receives[1:], end], strict=True))
    receives, sends = at["forward-recv"], at["backward-send"]
    if not is_last:
        return (
            list(zip(receives, at["forward-send"], strict=True)),
            list(zip(at["backward-recv"], sends, strict=True)),
        )
    forwards = []
    for receive, following in zip(receives, [*receives[1:], end], strict=True):
        later = [s for s in sends if s > receive]
        forwards.append((receive, min([following, *later[:1]])))
    return forwards, list(zip([begin, *sends[:-1]], sends, strict=True))


def _main_thread(kernels: _Kernels, window: tuple[int, int]) -> int:
    """The thread that launched the first forward."""
    first = np.flatnonzero(_inside(kernels, window))
    return int(kernels.thread[first[0]]) if len(first) else -2


def _inside(kernels: _Kernels, window: tuple[int, int]) -> npt.NDArray[np.bool_]:
    return np.asarray((kernels.launch >= window[0]) & (kernels.launch < window[1]))


def _doubt(
    kernels: _Kernels, chosen: Sequence[tuple[str, int, npt.NDArray[np.bool_]]]
) -> str | None:
    """Why the operations found cannot be right."""
    taken = np.sum([rows for _, _, rows in chosen], axis=0)
    if (taken > 1).any():
        return "a kernel would belong to two operations"
    for name in ("forward-compute", "backward-compute"):
        counts = [int(rows.sum()) for n, _, rows in chosen if n == name]
        if min(counts) == 0:
            return "receives are asked for ahead of the computation before"
        if max(counts) > MAX_KERNELS_RATIO * min(counts):
            return "operations of one kind launch different numbers of kernels"
    ours = taken > 0
    first, last = int(kernels.start[ours].min()), int(kernels.end[ours].max())
    between = (kernels.start >= first) & (kernels.end <= last)
    took = kernels.end - kernels.start
    if took[ours].sum() < MIN_COVERED_RATIO * took[between].sum():
        return "computation between them belongs to neither (weight gradients on their own?)"
    return None
