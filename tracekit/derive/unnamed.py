"""Microbatch operations of pipelines whose traces name none: from messages and kernels.

Who sends to whom says which rank is which stage: the first messages of a step go down the
pipeline, from a rank that receives nothing before it sends. What a rank launched between two
messages is then the operation that the messages belong to:

* a forward lies between the receive of its input and the send of its output;
* a backward lies between the receive of its gradient and the send of the next;
* where a message is missing, at both ends of the pipeline, the launching thread tells the two
  apart: PyTorch launches a backward from threads of autograd.

A rank without a device launches nothing: there operators stand for kernels, and those of autograd's
engine for its threads. Where the traces do not say with whom a message was exchanged, the work
beside it says which it is: a receive comes before a forward or a backward, a send after one. Ranks
that lack the forward's receive are first, those that lack its send last, with half the messages of
the others, which lie between in the order of their first forwards; and every message must then
begin before it ends at the neighbour. Of several pipelines nobody could say which ranks are one.

Where nothing but send-receives are recorded, each may be a send, a receive or both at once (what is
sent after one operation, and what is received before the next). Which, follows from the end of the
pipeline at which the rank is: a first stage, a last one and one between leave the gaps between
operations empty that the others fill. A rank that could be at two places is at none.

Nothing is claimed of a step in which that does not come out even: another number of messages than
of microbatches, operations without a kernel or with very different numbers of them, computation
that belongs to neither (weight gradients on their own, several chunks a rank), messages in a ring
(chunks or context parallelism).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from tracekit.correction import corrected_sql
from tracekit.derive.calls import NOBODY
from tracekit.derive.matching import SLACK_NS
from tracekit.derive.pairs import HOST_SLACK_NS

if TYPE_CHECKING:
    import duckdb

Ints = npt.NDArray[np.int64]
Step = tuple[int, int]
"""Capture, step."""
Marks = dict[str, list[int]]
"""Rows of a rank's messages in a step, by what they carry."""
Window = tuple[int, int, int]
"""Capture, step, rank."""

MIN_COVERED_RATIO = 0.95
"""Share of the computation between the first forward and the last backward that must be theirs."""

MAX_KERNELS_RATIO = 1.25
"""Operations of one kind on one rank launch about the same number of kernels."""

_BEFORE = frozenset({"forward-recv", "backward-send"})
"""What a stage exchanges with the one before it."""
_ALL = _BEFORE | {"forward-send", "backward-recv"}
_ROLES = (_ALL - _BEFORE, _BEFORE, _ALL)
"""What a first stage, a last one and one between exchange."""

MIN_WORK_RATIO = 0.05
"""Of the longest kernel: shorter ones do not say what a message beside them carries."""

MIN_WAITED_RATIO = 0.5
"""Of an idle time, up to the end of a message: what waits for it goes on soon after."""

MAX_BROKEN_RATIO = 0.02
"""Of messages that may end before they began, by how ranks were put in order."""

_PAIRED = "'send', 'recv'"
_COALESCED = "'send_recv'"

_MESSAGES = f"""
WITH moved AS (
    SELECT o.source_id, o.place, o.op, o.start_ns, o.start_ns + o.dur_ns AS end_ns,
           o.timeline = 'host' AS is_host,
           coalesce(if(o.op = 'send', o.dst_rank, o.src_rank), -1) >= 0 AS has_peer,
           -- Receives are posted ahead; on the host one ends when somebody asked for it.
           CASE WHEN o.timeline <> 'host' THEN coalesce(g.launch_start_ns, o.enqueue_ns)
               WHEN o.op = 'recv' THEN o.start_ns + o.dur_ns
               ELSE o.start_ns END AS launch_ns
    FROM collective o
    LEFT JOIN gpu_op g ON g.source_id = o.source_id AND g.place = o.gpu_op_place
    WHERE o.op IN ({{ops}}) AND o.start_ns IS NOT NULL AND o.dur_ns IS NOT NULL
      AND (o.timeline = 'device' OR o.source_id NOT IN (SELECT source_id FROM gpu_op))
)
SELECT c.capture_id, s.step, c.rank, o.op, o.launch_ns, o.start_ns, o.end_ns, m.instance_id,
       {corrected_sql("o.start_ns", "c")} AS job_start_ns,
       {corrected_sql("o.end_ns", "c")} AS job_end_ns, o.is_host,
       o.has_peer OR m.instance_id IS NOT NULL AS is_told
FROM moved o
JOIN derive_context c USING (source_id)
LEFT JOIN derive_match m ON m.source_id = o.source_id AND m.place = o.place
ASOF JOIN derive_step s ON o.source_id = s.source_id AND o.launch_ns >= s.start_ns
WHERE c.rank IS NOT NULL AND o.launch_ns < s.end_ns
ORDER BY c.capture_id, s.step, c.rank, o.launch_ns, o.start_ns
"""  # noqa: S608 - what is put in is our own

# Of a rank without a device outermost operators; what autograd's engine runs is of thread -2.
_KERNELS = """
WITH work AS (
    SELECT source_id, launch_start_ns AS launch_ns, coalesce(launch_thread, -1) AS thread,
           start_ns, start_ns + dur_ns AS end_ns
    FROM gpu_op WHERE class = 'compute'
    UNION ALL
    SELECT source_id, start_ns,
           if(starts_with(name, 'autograd::engine::'), -2, coalesce(thread, -1)),
           start_ns, start_ns + dur_ns
    FROM host_op
    WHERE category = 'operator' AND source_id NOT IN (SELECT source_id FROM gpu_op)
      AND NOT regexp_matches(name, '^(c10d::|gloo:|nccl:|record_param_comms|aten::empty)')
    QUALIFY coalesce(start_ns >= max(start_ns + dur_ns) OVER (
        PARTITION BY source_id, thread ORDER BY start_ns, dur_ns DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true)
)
SELECT c.capture_id, s.step, c.rank, w.launch_ns, w.thread, w.start_ns, w.end_ns
FROM work w
JOIN derive_context c USING (source_id)
ASOF JOIN derive_step s ON w.source_id = s.source_id AND w.launch_ns >= s.start_ns
WHERE c.rank IS NOT NULL AND w.launch_ns < s.end_ns
  AND w.start_ns IS NOT NULL AND w.end_ns IS NOT NULL
ORDER BY c.capture_id, s.step, c.rank, w.launch_ns, w.start_ns
"""


class Operation(Struct, frozen=True):
    """An operation on its source's own clock."""

    capture: int
    step: int
    rank: int
    stage: int
    operation: str
    sequence: int
    start_ns: int
    end_ns: int
    is_host: bool = False


class _Messages(Struct):
    """Of one rank in one step, in the order of their launches."""

    op: list[str]
    launch: list[int]
    start: list[int]
    end: list[int]
    peer: list[int]
    job_start: list[int]
    """On the job's clock."""
    job_end: list[int]
    is_host: bool = False


class _Kernels(Struct):
    launch: Ints
    thread: Ints
    start: Ints
    end: Ints


def find_operations(
    con: duckdb.DuckDBPyConnection, notes: list[str], stated: Sequence[Sequence[int]] = ()
) -> tuple[list[Operation], dict[int, int]]:
    """Operations of all steps in which they can be told, and the stage of each rank.

    The tables derive_context, derive_step and derive_match (source_id, place, instance_id) must be
    there. ``stated``: the ranks of each pipeline in the order of its stages, where a job
    description says so. What a reader should know is appended to ``notes``.
    """
    messages, kernels = _messages(con, _PAIRED), dict[Window, _Kernels]()
    if not messages:
        together = _messages(con, _COALESCED)
        kernels = _kernels(con) if together else kernels
        messages = {w: _taken_apart(m, kernels.get(w)) for w, m in together.items()}
    if not messages:
        return [], {}
    if all(NOBODY in exchanged.peer for exchanged in messages.values()):
        kernels = kernels or _kernels(con)
        stages, reason = _by_work(messages, kernels, stated)
    else:
        stages, reason = _chains(messages)
    if reason:
        notes.append(f"pipeline: messages without named microbatches; {reason}")
    if not stages:
        return [], {}
    kernels = kernels or _kernels(con)
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


def _messages(con: duckdb.DuckDBPyConnection, ops: str) -> dict[Window, _Messages]:
    """By rank and step; with whom is NOBODY for all where some rank's messages nowhere say it, as
    send-receives never do."""
    rows = con.sql(_MESSAGES.format(ops=ops)).fetchall()
    members: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        members[row[7]].append(row[2])
    is_matched = {row[2] for row in rows} == {row[2] for row in rows if row[11]}
    is_matched = is_matched and ops != _COALESCED
    messages: dict[Window, _Messages] = {}
    for capture, step, rank, op, launch, start, end, instance, *job_times, is_host, _ in rows:
        others = [r for r in members[instance] if r != rank] if is_matched else [NOBODY]
        if len(others) != 1 or (is_matched and instance is None):
            continue
        here = (capture, step, rank)
        exchanged = messages.setdefault(here, _Messages([], [], [], [], [], [], [], is_host))
        exchanged.op.append(op)
        exchanged.launch.append(launch)
        exchanged.start.append(start)
        exchanged.end.append(end)
        exchanged.peer.append(others[0])
        exchanged.job_start.append(job_times[0])
        exchanged.job_end.append(job_times[1])
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


def _by_work(
    messages: Mapping[Window, _Messages],
    kernels: Mapping[Window, _Kernels],
    stated: Sequence[Sequence[int]],
) -> tuple[dict[int, int], str]:
    """Stage by rank where no message says with whom, and why there are none. ``messages`` are told
    with whom they were. ``stated``: the ranks of each pipeline in order, where that is known."""
    everybody = {rank for _, _, rank in messages}
    by_step: dict[Step, dict[int, Marks]] = defaultdict(dict)
    for here, exchanged in messages.items():
        if here in kernels:
            by_step[here[:2]][here[2]] = _marks_by_work(exchanged, kernels[here])
    even = {
        at: marks
        for at, marks in by_step.items()
        if set(marks) == everybody
        and all(len(set(map(len, by_kind.values()))) == 1 for by_kind in marks.values())
    }
    listed = tuple(map(tuple, stated))
    orders = {listed or _in_order(at, messages, marks) for at, marks in even.items()}
    if len(orders) != 1 or not min(orders):
        return {}, "they do not say with whom, and their pattern is not that of one pipeline"
    (lines,) = orders
    if {rank for line in lines for rank in line} != everybody:
        return {}, "they do not say with whom, and not all ranks of the pipelines have some"
    for at, marks in even.items():
        if not all(_is_chain(at, line, messages, marks) for line in lines):
            return {}, "they do not say with whom, and end before they begin in any order of stages"
    for (capture, step), marks in even.items():
        for line in lines:
            for rank, before, after in zip(
                line, [NOBODY, *line[:-1]], [*line[1:], NOBODY], strict=True
            ):
                peers = messages[capture, step, rank].peer
                for name, rows in marks[rank].items():
                    for row in rows:
                        peers[row] = before if name in _BEFORE else after
    return {rank: stage for line in lines for stage, rank in enumerate(line)}, ""


def _in_order(
    at: Step, messages: Mapping[Window, _Messages], marks: Mapping[int, Marks]
) -> tuple[tuple[int, ...], ...]:
    """The ranks of the only pipeline in order; nothing where there may be several."""
    firsts = [r for r, by_kind in marks.items() if set(by_kind) == _ALL - _BEFORE]
    lasts = [r for r, by_kind in marks.items() if set(by_kind) == _BEFORE]
    between = [r for r, by_kind in marks.items() if set(by_kind) == _ALL]
    if (len(firsts), len(lasts)) != (1, 1) or len(between) != len(marks) - len(firsts + lasts):
        return ()
    arrived = {r: messages[*at, r].job_end[marks[r]["forward-recv"][0]] for r in between}
    return ((*firsts, *sorted(between, key=lambda r: arrived[r]), *lasts),)


def _is_chain(
    at: Step,
    line: Sequence[int],
    messages: Mapping[Window, _Messages],
    marks: Mapping[int, Marks],
) -> bool:
    """Whether every message from one rank to the next ends there after it has begun."""
    broken = count = 0
    for rank, following in pairwise(line):
        for src, dst, way in ((rank, following, "forward"), (following, rank, "backward")):
            sent = marks.get(src, {}).get(f"{way}-send", [])
            received = marks.get(dst, {}).get(f"{way}-recv", [])
            if len(sent) != len(received):
                return False
            begin, end = messages[*at, src].job_start, messages[*at, dst].job_end
            slack = HOST_SLACK_NS if messages[*at, src].is_host else SLACK_NS
            broken += sum(begin[k] > end[j] + slack for k, j in zip(sent, received, strict=True))
            count += len(sent)
    return count > 0 and broken <= MAX_BROKEN_RATIO * count


def _work(kernels: _Kernels) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """When work was launched that says what a message beside it carries, and which is forward."""
    took = kernels.end - kernels.start
    rows = np.flatnonzero(took >= MIN_WORK_RATIO * took.max())
    return kernels.launch[rows], kernels.thread[rows] == kernels.thread[rows[0]]


def _taken_apart(together: _Messages, kernels: _Kernels | None) -> _Messages:
    """The sends and receives that a rank's send-receives were; none where that cannot be told."""
    apart = _Messages([], [], [], [], [], [], [])
    if kernels is None or not len(kernels.launch):
        return apart
    launches, is_forward = _work(kernels)
    gaps = np.searchsorted(launches, together.launch)
    by_role = [
        halves for role in _ROLES if (halves := _halves(gaps.tolist(), is_forward, role))
    ]  # fmt: skip
    if len(by_role) != 1:
        return apart
    for row, ops in enumerate(by_role[0]):
        for op in ops:
            apart.op.append(op)
            apart.launch.append(together.launch[row])
            apart.start.append(together.start[row])
            apart.end.append(together.end[row])
            apart.peer.append(NOBODY)
            apart.job_start.append(together.job_start[row])
            apart.job_end.append(together.job_end[row])
    return apart


def _halves(
    gaps: Sequence[int], is_forward: npt.NDArray[np.bool_], role: frozenset[str]
) -> list[tuple[str, ...]] | None:
    """Of each send-receive, by the work that it is launched before, what it was if the rank
    exchanges what a stage of this role does; None where it does not.

    A stage with one before it begins by receiving and ends by sending to that one: what it launches
    earlier and later is none of its forwards and backwards. The first one begins with a forward and
    ends with a backward.
    """
    ways = ["forward" if forward else "backward" for forward in is_forward]
    first, last = gaps[0], gaps[-1]
    begins, ends = ways[first - 1] if first else "", ways[last] if last < len(ways) else ""
    if not role & _BEFORE:
        if (begins, ends) != ("forward", "backward"):
            return None
    elif "backward" in ways[last:]:
        return None  # whose gradient is sent to nobody
    else:
        begins = ends = ""
    # Between a forward and a backward there is a gap whether or not a message fills it.
    turns = 1 + np.flatnonzero(np.diff(is_forward))
    told: list[tuple[str, ...]] = []
    for gap in sorted({*gaps, *(turn for turn in turns.tolist() if first < turn < last)}):
        before = begins if gap == first else ways[gap - 1]
        after = ends if gap == last else ways[gap]
        halves = [o for o, w in (("send", before), ("recv", after)) if f"{w}-{o}" in role]
        count = gaps.count(gap)
        if count > len(halves) or (halves and not count):
            return None
        # One is both halves; of two the first is the send.
        told += [tuple(halves)] if count == 1 else [(half,) for half in halves]
    return told


def _marks_by_work(messages: _Messages, kernels: _Kernels) -> Marks:
    """Rows of the messages by what they carry, from the nearest work before a send, or after a
    receive; those of no kind are left out, and nothing is said where one has no such work."""
    launches, is_forward = _work(kernels)
    marks: Marks = {}
    for k, (op, launch) in enumerate(zip(messages.op, messages.launch, strict=True)):
        nearest = int(np.searchsorted(launches, launch)) - (op == "send")
        if not 0 <= nearest < len(launches):
            return {}
        way = "forward" if is_forward[nearest] else "backward"
        marks.setdefault(f"{way}-{op}", []).append(k)
    return marks


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
    starting = [_until(kernels, _inside(kernels, w) & only, w, other) for w in forwards]
    if stage == last:
        starting[-1] = _as_many(starting[-1], starting[:-1])
    if stage == 0:
        starting[0] = _as_many(starting[0][::-1], starting[1:])[::-1]
    chosen = [
        *(("forward-compute", k, rows) for k, rows in enumerate(starting)),
        *(("backward-compute", k, _inside(kernels, w) & other) for k, w in enumerate(backwards)),
    ]
    reason = _doubt(kernels, chosen)
    if reason:
        return reason
    waited = sorted(messages.end) if messages.is_host else []
    computes = [
        Operation(*here, stage, name, k, *_extent(kernels.start[rows], kernels.end[rows], waited))
        for name, k, rows in chosen
    ]
    done = sorted(c.end_ns for c in computes) if messages.is_host else []
    moved = [
        Operation(*here, stage, name, k, _waited_from(messages, row, done), messages.end[row],
                  messages.is_host)
        for name, rows in marks.items()
        for k, row in enumerate(rows)
    ]  # fmt: skip
    return [*computes, *moved]


def _extent(start: Ints, end: Ints, waited: Sequence[int]) -> tuple[int, int]:
    """From when to when an operation's kernels ran, less what stands behind or before a wait for
    one of the messages that end at ``waited``, and is next to nothing: a stage that asks for the
    end of an earlier send has its output's last, empty operator only then."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    work = np.cumsum(end - np.maximum(start, np.concatenate(([start[0]], end[:-1]))))
    first, last = int(start[0]), int(end[-1])
    for k in np.flatnonzero(start[1:] > end[:-1]).tolist():
        idle = int(end[k]), int(start[k + 1])
        at = bisect_right(waited, idle[1]) - 1
        if at < 0 or waited[at] - idle[0] < MIN_WAITED_RATIO * (idle[1] - idle[0]):
            continue
        if work[-1] - work[k] < MIN_WORK_RATIO * work[-1]:
            return first, idle[0]
        if work[k] < MIN_WORK_RATIO * work[-1]:
            first = idle[1]
    return first, last


def _waited_from(messages: _Messages, row: int, done: Sequence[int]) -> int:
    """When a message begins: on the host a receive that was posted early is waited for only from
    the end of the computation before (``done``) on."""
    start, end = messages.start[row], messages.end[row]
    if messages.op[row] == "send":
        return start
    return max([start, *(ns for ns in done if ns <= end)])


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


Rows = npt.NDArray[np.bool_]


def _until(kernels: _Kernels, rows: Rows, window: tuple[int, int], other: Rows) -> Rows:
    """Those before the first of another kind that follows them in the window: after a backward the
    main thread may go on, with a loss that is logged."""
    if not rows.any():
        return rows
    first = int(np.flatnonzero(rows)[0])
    following = np.flatnonzero(other & ~rows & (kernels.launch < window[1]))
    following = following[following > first]
    return rows & (np.arange(len(rows)) < following[0]) if len(following) else rows


def _as_many(rows: Rows, others: Sequence[Rows]) -> Rows:
    """The first of a forward's kernels, no more than the others have: a step may begin with
    clearing gradients, and where all backwards follow all forwards, so does the loss."""
    most = max((int(each.sum()) for each in others), default=int(rows.sum()))
    return np.asarray(rows & (np.cumsum(rows) <= most))


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
