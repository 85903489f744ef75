"""What a rank launched, as the program of a replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tracekit.whatif.executor import (
    BOUNDARY,
    CALL,
    HOST,
    RUN,
    SINGLE,
    Event,
    Program,
    Waited,
)
from tracekit.whatif.streams.rows import END, OP, SYNC, Block, RankBlocks

AT_ONCE = 64
"""Ranks that are prepared together: more take more memory and hardly less time."""

Variants = Sequence[Sequence[Block]]
"""A rank's steps in each variant."""


def compile_rank(rank: RankBlocks, variants: Variants) -> Program:
    """The events of a rank, with times of each variant; variants share their rows."""
    return compile_ranks([(rank, variants)])[0]


def compile_ranks(given: Sequence[tuple[RankBlocks, Variants]]) -> list[Program]:
    """The same of several ranks, each with as many variants: those with the same rows at once."""
    told: dict[int, object] = {}
    alike: dict[object, list[int]] = defaultdict(list)
    for number, (_, variants) in enumerate(given):
        alike[tuple(_shape(block, told) for block in variants[0])].append(number)
    programs: dict[int, Program] = {}
    for numbers in alike.values():
        for at in range(0, len(numbers), AT_ONCE):
            some = numbers[at : at + AT_ONCE]
            programs |= zip(some, _compile_alike([given[n] for n in some]), strict=True)
    return [programs[number] for number in range(len(given))]


def _shape(block: Block, told: dict[int, object]) -> object:
    """All of a step but its times and which calls it makes; ``told``: its waits by their identity,
    because most steps share them."""
    waits = told.get(id(block.waits))
    if waits is None:
        waits = tuple(sorted((row, tuple(of_row)) for row, of_row in block.waits.items()))
        told[id(block.waits)] = waits
    arrays = (block.kind, block.stream, block.call >= 0, block.follows_compute)
    return (*(array.tobytes() for array in arrays), waits)


def _compile_alike(given: Sequence[tuple[RankBlocks, Variants]]) -> list[Program]:
    """Programs of ranks whose steps are of one shape."""
    blocks = given[0][1][0]
    kind = np.concatenate([b.kind for b in blocks])
    stream = np.concatenate([b.stream for b in blocks])
    is_called = np.concatenate([b.call for b in blocks]) >= 0
    follows = np.concatenate([b.follows_compute for b in blocks])
    every = [b for _, variants in given for variant in variants for b in variant]
    host, work, lag = (
        np.concatenate([getattr(b, name) for b in every]).reshape(-1, len(kind))
        for name in ("host_ns", "work_ns", "lag_ns")
    )
    variants_count = len(given[0][1])
    latency, gap = (
        np.repeat([[getattr(rank, name)] for rank, _ in given], variants_count, axis=0)
        for name in ("latency_ns", "gap_ns")
    )
    came = np.cumsum(host, axis=1)
    waits, marked = _resolved(blocks)
    is_cut = (kind != OP) | is_called
    is_cut[list(waits)] = True
    is_cut[list(marked)] = True
    segment = np.cumsum(is_cut)
    cut, bulk = np.flatnonzero(is_cut), np.flatnonzero(~is_cut)
    bulk = bulk[np.lexsort((bulk, segment[bulk], stream[bulk]))]
    is_first = np.ones(len(bulk), np.bool_)
    is_first[1:] = (np.diff(segment[bulk]) != 0) | (np.diff(stream[bulk]) != 0)
    starts = np.flatnonzero(is_first)
    total = bound = np.zeros((len(host), 0))
    if len(bulk):
        took = work[:, bulk] + lag[:, bulk] + gap
        total = np.add.reduceat(took, starts, axis=1)
        # Launched last of all constraints: its launch, and then all that follows in the run.
        so_far = np.cumsum(took, axis=1)
        ready = came[:, bulk] + latency - gap - (so_far - took)
        last = np.concatenate([starts[1:], [len(bulk)]]) - 1
        bound = np.maximum.reduceat(ready, starts, axis=1) + so_far[:, last]
    is_call, is_end = is_called[cut], kind[cut] == END
    is_host = kind[cut] == SYNC
    is_single = ~(is_call | is_end | is_host)
    # Of a run its total and its bound; of others when the host came to it, and what follows.
    first = came[:, cut] + np.where(is_call | is_single, latency, 0.0)
    second = np.where(is_call, 0.0, work[:, cut]) + np.where(is_host, 0.0, lag[:, cut])
    # A cut row ends the segment before it: runs of a segment come after its opening cut.
    order = np.argsort(
        np.concatenate([2 * segment[bulk[starts]] + 1, 2 * segment[cut]]), kind="stable"
    )
    what = np.select([is_end, is_host, is_call], [BOUNDARY, HOST, CALL], SINGLE)
    number = np.where(is_call, np.cumsum(is_call) - 1, -1)
    number = np.where(is_end, np.cumsum(is_end) - 1, number)
    number[np.isin(cut, list(marked)) & is_single] = cut[np.isin(cut, list(marked)) & is_single]
    runs = len(starts)
    codes = np.concatenate([np.full(runs, RUN), what])[order]
    streams = np.concatenate([stream[bulk[starts]], stream[cut]])[order]
    numbers = np.concatenate([np.full(runs, -1), number])[order]
    followed = np.concatenate([np.zeros(runs, np.bool_), follows[cut]])[order]
    waited: list[Waited] = [()] * runs + [waits.get(row, ()) for row in cut.tolist()]
    events: tuple[Event, ...] = tuple(
        zip(
            codes.tolist(),
            streams.tolist(),
            numbers.tolist(),
            followed.tolist(),
            (waited[i] for i in order.tolist()),
            strict=True,
        )
    )
    by_event = (len(given), variants_count, len(events))
    first = np.concatenate([total, first], axis=1)[:, order].reshape(by_event)
    second = np.concatenate([bound, second], axis=1)[:, order].reshape(by_event)
    return [
        Program(
            rank.rank,
            events,
            np.concatenate([b.calls for b in variants[0]]),
            first[i].T,
            second[i].T,
            rank.begin_ns,
            rank.stage,
            rank.compute_stream,
            rank.gap_ns,
            rank.busy_until_ns,
        )
        for i, (rank, variants) in enumerate(given)
    ]


def _resolved(blocks: Sequence[Block]) -> tuple[dict[int, Waited], set[int]]:
    """By row what it waits for; and rows that are waited for and are no calls."""
    waits: dict[int, Waited] = {}
    marked: set[int] = set()
    row = 0
    counts = [len(b.calls) for b in blocks]
    first_calls = [sum(counts[:k]) for k in range(len(blocks))]
    for k, block in enumerate(blocks):
        for position, told in block.waits.items():
            resolved = []
            for wait in told:
                if not wait.is_call:
                    resolved.append((False, row + wait.number))
                    marked.add(row + wait.number)
                elif wait.back <= k and wait.number < counts[k - wait.back]:
                    resolved.append((True, first_calls[k - wait.back] + wait.number))
            waits[row + position] = tuple(resolved)
        row += len(block.kind)
    return waits, marked
