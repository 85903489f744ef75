"""The replay of matched collectives, as it was and without its causes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracekit.errors import InputError, UsageError
from tracekit.whatif.calls import (
    OF_RANKS,
    Places,
    Scenarios,
    change_transfers,
    refused_because,
    step_s,
    step_times,
)
from tracekit.whatif.causes import Cause
from tracekit.whatif.collectives.peers import EXCHANGE, evenly, set_ideal, without
from tracekit.whatif.collectives.windows import (
    ENTER,
    STEP_END,
    WAIT,
    Item,
    Window,
    step_lengths,
    windows_of,
)
from tracekit.whatif.columns import Columns, Replayed
from tracekit.whatif.executor import BOUNDARY, CALL, FREE_CALL, HOST, Event, Program
from tracekit.whatif.metrics import WhatIf, error_ratio
from tracekit.whatif.operations import Floats

if TYPE_CHECKING:
    import pyarrow as pa

MAX_SINGLE_RANKS = 256
"""Ranks that are each replayed alone: those with the most own time beyond their peers'."""


class CollectiveReplay:
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
        self._places = places or Places()
        self._stages = self._places.stages
        self._windows = windows_of(calls.to_pylist(), stalls.to_pylist(), steps.to_pylist())
        if not any(w.calls for w in self._windows):
            raise InputError(
                "nothing to replay: no collectives of steady steps are matched across ranks",
                hint="profile all ranks in the same steps; tracekit query RUN match_coverage",
            )
        for window in self._windows:
            set_ideal(window, self._stages)

    @property
    def ranks(self) -> list[int]:
        """All ranks that are replayed."""
        return sorted({r for w in self._windows for r in w.items})

    @cached_property
    def step_s(self) -> float:
        """Replayed length of a step as it was."""
        return self.step_s_without([])

    @property
    def error_ratio(self) -> float:
        """By how much the replay misses the measured step."""
        return error_ratio(float(np.mean(step_lengths(self._windows))) / 1e9, self.step_s)

    @property
    def refused(self) -> str | None:
        """Why the replay must not be believed; None where it may."""
        return _refused(
            self._windows, float(np.mean(step_lengths(self._windows))) / 1e9, self.step_s
        )

    def step_s_without(self, ranks: Iterable[int]) -> float:
        """Length of a step if these ranks did what their peers do, in s."""
        return _time_without(self._windows, ranks, self._stages)

    def step_s_evenly(self) -> float | None:
        """Length of a step, in s, if all members of an exchange had the same amount to do between
        one all-to-all and the next, and to send; None where no exchange is replayed."""
        if not any(c.op == EXCHANGE for w in self._windows for c in w.calls.values()):
            return None
        return _time_without([evenly(w) for w in self._windows], [], self._stages)

    def analyse(self, causes: Sequence[Cause] = ()) -> WhatIf:
        """Replay in all the ways that the metrics need.

        UsageError where a cause names nothing of the job.
        """
        return _analyse(self._windows, self._places, causes)

    def slowdown_by_rank(self) -> dict[int, float]:
        """As in the analysis, which takes longer: it replays the job without each of the worst."""
        return _analyse(self._windows, self._places, (), is_whole=False).slowdown_by_rank


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


def _analyse(
    windows: Sequence[Window], places: Places, causes: Sequence[Cause], *, is_whole: bool = True
) -> WhatIf:
    stages = places.stages
    job = Replayed(
        [s for w in windows for s in w.steps],
        [s for w in windows for s in w.dropped],
        [c for w in windows for c in w.calls.values()],
        step_lengths(windows),
        sum(w.unmatched_count for w in windows),
    )
    excess = dict.fromkeys(sorted({r for w in windows for r in w.items}), 0.0)
    for window in windows:
        for rank, items in window.items.items():
            excess[rank] += sum(i.own_ns - i.ideal_ns for i in items)
    chosen = {c: places.ranks_of(c, [*excess]) for c in causes if c.kind in OF_RANKS}
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
        lambda cause: _time_without(windows, chosen[cause], stages),
        (lambda rank: _time_without(windows, [rank], stages)) if is_whole else None,
        method="collectives",
        refused=_refused(windows, job.base_s, float(times[:, 0].mean())),
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


def _refused(windows: Sequence[Window], base_s: float, replayed_s: float) -> str | None:
    return refused_because(base_s, replayed_s, max(w.unmatched_ratio for w in windows))


def _factor(cause: Cause) -> float:
    """Of the own time of the ranks that a cause scales."""
    if cause.operation not in (None, "all"):
        raise UsageError(
            f"{cause.text}: without GPU operations host and compute cannot be told apart",
            hint=f"{cause.kind}={cause.value}:all=...",
        )
    return 1.0 if cause.factor is None else cause.factor
