"""What is asked of a replay: the job as it was, ideal, with one thing put back, without a cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from tracekit.errors import UsageError
from tracekit.whatif.calls import (
    OF_RANKS,
    Call,
    Places,
    Scenarios,
    alike,
    change_transfers,
    last_starts,
    step_s,
    step_times,
    transfers_of,
)
from tracekit.whatif.causes import Cause
from tracekit.whatif.columns import Columns
from tracekit.whatif.matched import MatchedReplay
from tracekit.whatif.metrics import WhatIf
from tracekit.whatif.streams.compiled import compile_rank, compile_ranks
from tracekit.whatif.streams.peers import Peers, own_ns, with_times
from tracekit.whatif.streams.rows import CLOSE_NS, OP, Block, RankBlocks
from tracekit.whatif.streams.windows import Window, windows_of

if TYPE_CHECKING:
    import pyarrow as pa

MAX_SINGLE_RANKS = 64
"""Ranks that are each replayed alone: those with the most own time beyond their peers'."""

MAX_UNEQUAL_RATIO = 0.1
"""Share of a link's transfers that may have no equal elsewhere when the link is taken out."""


class StreamReplay(MatchedReplay[Window]):
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
        places = places or Places()
        super().__init__(windows_of(operations, syncs, steps, places), places)

    @property
    def ranks(self) -> list[int]:
        """All ranks that are replayed."""
        return sorted({r for w in self.windows for r in w.ranks})

    @property
    def base_ns(self) -> list[float]:
        """Measured length of each step."""
        return [v for w in self.windows for v in w.base_ns]

    def step_s_without(self, ranks: Iterable[int]) -> float:
        """Length of a step if these ranks did what their peers do, in s."""
        return _time_without(self.windows, set(ranks))

    def step_s_unhindered(self, ranks: Iterable[int]) -> float:
        """The same if these ranks took no time of their own, on the host or on the GPU: no repair
        of theirs can make a step shorter."""
        chosen = set(ranks)
        events = []
        for w in self.windows:
            given = []
            for r, of_rank in w.ranks.items():
                factors = (0.0, 0.0) if r in chosen else (1.0, 1.0)
                given.append((of_rank, [[_scaled(_explained(b), factors) for b in of_rank.blocks]]))
            events.append(dict(zip(w.ranks, compile_ranks(given), strict=True)))
        return step_s([w.calls for w in self.windows], events)

    def step_s_at_speed(self, ranks: Iterable[int], factor: float) -> float:
        """Length of a step, in s, if the longest transfers between hosts that these ranks take part
        in were cut so that all of a kind together take this share of what they took."""
        chosen, hosts = set(ranks), self.places.hosts
        slowed = [
            (window, number, call)
            for window in self.windows
            for number, call in window.calls.items()
            if chosen & set(call.starts) and len({hosts.get(r, r) for r in call.starts}) > 1
        ]
        took: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for _, _, call in slowed:
            took[call.lane, *alike(call)] += transfers_of(call).values()
        longest = {kind: _cut(values, factor) for kind, values in took.items()}
        changed = {id(w): dict(w.calls) for w in self.windows}
        for window, number, call in slowed:
            most = longest[call.lane, *alike(call)]
            shorter = {r: min(ns, most) for r, ns in transfers_of(call).items()}
            changed[id(window)][number] = replace(call, transfers=shorter, settled=None)
        return _time_without([replace(w, calls=changed[id(w)]) for w in self.windows], set())

    def _analysed(self, causes: Sequence[Cause], *, is_whole: bool) -> WhatIf:
        return _analyse(self, causes, is_whole)


def _cut(values: Sequence[int], factor: float) -> int:
    """What none of the values may pass, so that their sum is this share of what it is."""
    left = factor * sum(values)
    for position, value in enumerate(sorted(values)):
        above = len(values) - position
        if value * above >= left:
            return round(left / above)
        left -= value
    return max(values)


def _explained(block: Block) -> Block:
    """A step without what begins late for no known reason."""
    lag = np.where(block.lag_ns > CLOSE_NS, 0.0, block.lag_ns)
    return with_times(block, block, (block.host_ns, block.work_ns, lag))


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


def _scaled(block: Block, factors: tuple[float, float]) -> Block:
    """The step with other times on the host and on the GPU."""
    host, gpu = factors
    is_gpu = (block.kind == OP) & (block.call < 0)
    work = block.work_ns * np.where(is_gpu, gpu, host)
    return with_times(block, block, (block.host_ns * host, work, block.lag_ns))


def _time_without_link(
    windows: Sequence[Window], places: Places, ranks: Sequence[int], cause: Cause
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
                ends = {r: round(t + typical) for r, t in last_starts(call).items()}
                calls[number] = call.with_ends(ends)
        changed.append(replace(window, calls=calls))
    if lost > MAX_UNEQUAL_RATIO * (lost + known):
        raise UsageError(
            f"{cause.text}: {lost / (lost + known):.0%} of the transfers through rank "
            f"{cause.value} have no equal among other ranks, so the trace does not say what they "
            "should take",
            hint="--scale comm=KIND=FACTOR asks for a given speed; tracekit expect has the ideal",
        )
    return _time_without(changed, set())


def _time_without(windows: Sequence[Window], removed: set[int]) -> float:
    """Seconds a step with these ranks doing what their peers do."""
    events = []
    for window in windows:
        new = {r: b for r, b in window.ranks.items() if r not in window.compiled}
        compiled = compile_ranks([(b, [[_explained(s) for s in b.blocks]]) for b in new.values()])
        window.compiled |= zip(new, compiled, strict=True)
        programs = dict(window.compiled)
        if removed:
            peers = Peers(window)
            for rank in removed & window.ranks.keys():
                of_rank = window.ranks[rank]
                blocks = [peers.typical(rank, k, removed) for k in range(len(of_rank.blocks))]
                programs[rank] = compile_rank(of_rank, [[_explained(b) for b in blocks]])
        events.append(programs)
    return step_s([w.calls for w in windows], events)


def _analyse(replay: StreamReplay, causes: Sequence[Cause], is_whole: bool) -> WhatIf:
    windows, job = replay.windows, replay.job
    excess = dict.fromkeys(sorted({r for w in windows for r in w.ranks}), 0.0)
    ranks = [*excess]
    chosen = {c: replay.places.ranks_of(c, ranks) for c in causes if c.kind in OF_RANKS}
    changed = [c for c in causes if c.kind != "link" and (c not in chosen or c.factor is not None)]
    scales = sorted({_work_scale(c) for c in changed if c in chosen})
    events = []
    for window in windows:
        peers = Peers(window)
        given: list[tuple[RankBlocks, list[list[Block]]]] = []
        for rank, of_rank in window.ranks.items():
            measured = [_explained(b) for b in of_rank.blocks]
            ideal = [_explained(peers.ideal(rank, k)) for k in range(len(measured))]
            for mine, theirs in zip(measured, ideal, strict=True):
                excess[rank] += own_ns(mine) - own_ns(theirs)
            scaled = [[_scaled(b, s) for b in measured] for s in scales]
            given.append((of_rank, [measured, ideal, *scaled]))
        events.append(dict(zip(window.ranks, compile_ranks(given), strict=True)))
    columns = Columns(job.kinds, excess, MAX_SINGLE_RANKS, changed)
    # Variant 0 of a rank is what was measured, 1 the ideal, then each scale.
    variant = {r: np.where(at, 0, 1) for r, at in columns.is_own_measured.items()}
    transfer = columns.transfers
    for column, cause in enumerate(changed, start=columns.first_cause):
        if cause in chosen:
            for rank in chosen[cause]:
                variant[rank][column] = 2 + scales.index(_work_scale(cause))
        else:
            change_transfers(cause, transfer, column)
    calls = [w.calls for w in windows]
    times = step_times(calls, events, variant, Scenarios(transfer, columns.count)) / 1e9

    def without(cause: Cause) -> float:
        if cause.kind == "link":
            return _time_without_link(windows, replay.places, ranks, cause)
        return replay.step_s_without(chosen[cause])

    return columns.result(
        times,
        job,
        causes,
        without,
        (lambda rank: replay.step_s_without([rank])) if is_whole else None,
        method="streams",
        refused=replay.refused_at(float(times[:, 0].mean())),
    )
