"""The replay of matched collectives, as it was and without its causes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tracekit.errors import UsageError
from tracekit.whatif.calls import (
    OF_RANKS,
    Places,
    Scenarios,
    change_transfers,
    step_s,
    step_times,
)
from tracekit.whatif.causes import Cause
from tracekit.whatif.collectives.peers import EXCHANGE, evenly, set_ideal, without
from tracekit.whatif.collectives.standstill import stands_still, undisturbed
from tracekit.whatif.collectives.windows import (
    ENTER,
    STEP_END,
    WAIT,
    Item,
    Window,
    step_lengths,
    windows_of,
)
from tracekit.whatif.columns import Columns
from tracekit.whatif.executor import BOUNDARY, CALL, FREE_CALL, HOST, Event, Program
from tracekit.whatif.matched import MatchedReplay
from tracekit.whatif.metrics import WhatIf
from tracekit.whatif.operations import Floats

if TYPE_CHECKING:
    import pyarrow as pa

MAX_SINGLE_RANKS = 256
"""Ranks that are each replayed alone: those with the most own time beyond their peers'."""


class CollectiveReplay(MatchedReplay[Window]):
    """One attempt, ready to be replayed.

    ``calls``: capture_id, rank, instance_id (null where not matched), op, group_id, kind (of the
    communicator), members_count, root, message_bytes, timeline, start_ns, end_ns. ``stalls``:
    capture_id, rank, start_ns, end_ns, disjoint: no computation ran and communication did.
    ``steps``: capture_id, rank, step, start_ns, end_ns of steady steps. ``places``: ranks of
    one stage only are taken for peers.

    Raises InputError where no collective of the steady steps is matched on two ranks or more.
    """

    def __init__(
        self,
        calls: pa.Table,
        stalls: pa.Table,
        steps: pa.Table,
        places: Places | None = None,
    ) -> None:
        windows = windows_of(calls.to_pylist(), stalls.to_pylist(), steps.to_pylist())
        super().__init__(windows, places or Places())
        for window in windows:
            set_ideal(window, self.places.stages)
        self._stopped: dict[int, bool] = {}
        """By rank, once somebody asked."""

    @property
    def ranks(self) -> list[int]:
        """All ranks that are replayed."""
        return sorted({r for w in self.windows for r in w.items})

    @property
    def base_ns(self) -> list[float]:
        """Measured length of each step."""
        return step_lengths(self.windows)

    def step_s_without(self, ranks: Iterable[int]) -> float:
        """Length of a step if these ranks did what their peers do, in s; of those that something
        stops now and then, if their transfers did not stand still with them either."""
        chosen = list(ranks)
        stopped = self.stopped(chosen)
        windows = undisturbed(self.windows, stopped) if stopped else self.windows
        return _time_without(windows, chosen, self.places.stages)

    def stopped(self, ranks: Iterable[int]) -> list[int]:
        """Those of these ranks that something stops now and then."""
        return [r for r in ranks if self._is_stopped(r)]

    def _is_stopped(self, rank: int) -> bool:
        if rank not in self._stopped:
            self._stopped[rank] = stands_still(self.windows, rank)
        return self._stopped[rank]

    def step_s_without_work(self, ranks: Iterable[int]) -> float:
        """The same with all transfers as they were."""
        return _time_without(self.windows, ranks, self.places.stages)

    def step_s_evenly(self) -> float | None:
        """Length of a step, in s, if all members of an exchange had the same amount to do between
        one all-to-all and the next, and to send; None where no exchange is replayed."""
        if not any(c.op == EXCHANGE for w in self.windows for c in w.calls.values()):
            return None
        return _time_without([evenly(w) for w in self.windows], [], self.places.stages)

    def _analysed(self, causes: Sequence[Cause], *, is_whole: bool) -> WhatIf:
        return _analyse(self, causes, is_whole)


def _program(window: Window, rank: int, variants: Sequence[Floats]) -> Program:
    """What a rank does, by its items; ``variants``: its own times before each, in ns."""
    items = window.items[rank]
    calls = [i.call for i in items if i.kind == ENTER]
    order = {number: k for k, number in enumerate(calls)}
    lanes: dict[str, int] = {}
    steps = 0
    events: list[Event] = []
    for item in items:
        if item.kind == WAIT:
            events.append((HOST, -1, -1, False, ((True, order[item.call]),)))
        elif item.kind == STEP_END:
            events.append((BOUNDARY, -1, steps, False, ()))
            steps += 1
        else:
            lane = lanes.setdefault(window.calls[item.call].lane, len(lanes))
            kind = FREE_CALL if item.is_parallel else CALL
            events.append((kind, lane, order[item.call], False, ()))
    lag = np.array([i.lag_ns if i.kind == ENTER else 0.0 for i in items])
    return Program(
        rank,
        tuple(events),
        np.array(calls, np.int64),
        np.stack([np.cumsum(times) for times in variants], axis=1),
        np.repeat(lag[:, None], len(variants), axis=1),
        window.starts[rank],
    )


def _own_ns(items: Sequence[Item]) -> Floats:
    return np.array([i.own_ns for i in items])


def _ideal_ns(items: Sequence[Item]) -> Floats:
    return np.array([i.ideal_ns for i in items])


def _analyse(replay: CollectiveReplay, causes: Sequence[Cause], is_whole: bool) -> WhatIf:
    windows, job = replay.windows, replay.job
    excess = dict.fromkeys(sorted({r for w in windows for r in w.items}), 0.0)
    for window in windows:
        for rank, items in window.items.items():
            excess[rank] += sum(i.own_ns - i.ideal_ns for i in items)
    chosen = {c: replay.places.ranks_of(c, [*excess]) for c in causes if c.kind in OF_RANKS}
    scaled = [c for c in causes if c not in chosen or c.factor is not None]
    factors = sorted({_factor(c) for c in scaled if c in chosen})
    columns = Columns(job.kinds, excess, MAX_SINGLE_RANKS, scaled)
    # Variant 0 of a rank is what was measured, 1 the ideal, then each scale.
    variant = {r: np.where(at, 0, 1) for r, at in columns.is_own_measured.items()}
    transfer = columns.transfers
    for column, cause in enumerate(scaled, start=columns.first_cause):
        if cause in chosen:
            for rank in chosen[cause]:
                variant[rank][column] = 2 + factors.index(_factor(cause))
        else:
            change_transfers(cause, transfer, column)
    programs = [
        {
            rank: _program(
                w, rank, [_own_ns(items), _ideal_ns(items), *(_own_ns(items) * f for f in factors)]
            )
            for rank, items in w.items.items()
        }
        for w in windows
    ]
    calls = [w.calls for w in windows]
    times = step_times(calls, programs, variant, Scenarios(transfer, columns.count)) / 1e9
    return columns.result(
        times,
        job,
        causes,
        lambda cause: replay.step_s_without(chosen[cause]),
        (lambda rank: replay.step_s_without([rank])) if is_whole else None,
        method="collectives",
        refused=replay.refused_at(float(times[:, 0].mean())),
    )


def _time_without(
    windows: Sequence[Window], ranks: Iterable[int], stages: Mapping[int, int]
) -> float:
    """Seconds a step with these ranks doing what their peers do."""
    chosen = list(ranks)
    changed = [without(w, chosen, stages) for w in windows]
    programs = [
        {
            r: _compiled(w, r) if items is w.items[r] else _program(then, r, [_own_ns(items)])
            for r, items in then.items.items()
        }
        for w, then in zip(windows, changed, strict=True)
    ]
    return step_s([w.calls for w in changed], programs)


def _compiled(window: Window, rank: int) -> Program:
    """The rank's program by its own times, made once."""
    if rank not in window.compiled:
        window.compiled[rank] = _program(window, rank, [_own_ns(window.items[rank])])
    return window.compiled[rank]


def _factor(cause: Cause) -> float:
    """Of the own time of the ranks that a cause scales."""
    if cause.operation not in (None, "all"):
        raise UsageError(
            f"{cause.text}: without GPU operations host and compute cannot be told apart",
            hint=f"{cause.kind}={cause.value}:all=...",
        )
    return 1.0 if cause.factor is None else cause.factor
