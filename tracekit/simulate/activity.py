"""What the hardware of a simulated job did, for whoever counts it.

Taken from the operations as they ended, step by step: how long each GPU computed and communicated,
what its NIC and its NVLinks carried, what was lost. A profiler looks at a few seconds of a job that
runs for minutes: before the captured steps the job repeats the first half of them, after them the
second half, so that a fault that begins among them goes on and one that was there before has been
there for a while.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracekit.simulate import program as p
from tracekit.simulate.job import StepRecord
from tracekit.simulate.network import Network
from tracekit.simulate.records import Operation

Floats = NDArray[np.float64]

SLICES = 16
"""Parts of a step within which an activity is spread evenly."""
KINDS = ("compute", "talk", "wire", "tx", "rx", "spine", "nvlink", "lost")
"""ns that kernels computed; ns in collectives, waiting included; ns that the NIC was in use; bytes
that it sent and got; of these sent, through the spine; bytes over NVLink; transfers that timed out
over this rank's NIC."""

IDLE_S = 20.0
"""Idle time at both ends of a series."""
AROUND_S = 50.0
"""How long the job runs before and after the captured steps."""
USUAL_INTERVAL_S = 0.25
"""Readings closer than this shorten both in proportion: nobody keeps minutes of them."""


class Segment(Struct, frozen=True):
    """A stretch of time in which a captured step happens, once more."""

    start_ns: float
    end_ns: float
    index: int
    """Of the captured step."""


class Activity:
    """Gathers what every rank did; ``finish`` lays the steps out in time."""

    def __init__(self, network: Network, ranks_count: int, interval_s: float = 1.0) -> None:
        self.network = network
        part = min(1.0, interval_s / USUAL_INTERVAL_S)
        self._idle_ns, self._around_ns = part * IDLE_S * 1e9, part * AROUND_S * 1e9
        self.ranks_count = ranks_count
        self.steps: list[int] = []
        self.starts_ns: list[int] = []
        self.ends_ns: list[int] = []
        self._amounts: dict[str, list[Floats]] = {k: [] for k in KINDS}
        self.segments: list[Segment] = []
        self._edges: Floats = np.zeros(0)
        self._order: NDArray[np.int_] = np.zeros(0, int)

    def add(self, records: Sequence[StepRecord]) -> None:
        """One step of all ranks."""
        start = min(r.start_ns for r in records)
        ends = (max(r.end_ns, r.operations.last_ns) for r in records)
        end = max(start + 1, *ends)
        self.steps.append(records[0].step)
        self.starts_ns.append(start)
        self.ends_ns.append(end)
        edges = np.linspace(start, end, SLICES + 1)
        sums = {k: np.zeros((self.ranks_count, SLICES)) for k in KINDS}
        for record in records:
            spans: dict[str, list[tuple[float, float, float]]] = {k: [] for k in KINDS}
            for operation in record.operations:
                if operation.end >= 0:
                    self._operation(record.rank, operation, spans)
            for name, listed in spans.items():
                if listed:
                    sums[name][record.rank] = _spread(np.array(listed), edges)
        for name in KINDS:
            self._amounts[name].append(sums[name])

    def _operation(
        self, rank: int, operation: Operation, spans: dict[str, list[tuple[float, float, float]]]
    ) -> None:
        start, end = operation.start, max(operation.end, operation.start + 1)
        transfer = operation.transfer
        if transfer is None:
            if operation.spec.kind == "kernel":
                spans["compute"].append((start, end, end - start))
            return
        spans["talk"].append((start, end, end - start))
        begun = min(transfer.latest, end - 1)
        if isinstance(operation.spec, p.Message):
            src, dst = transfer.ranks
            wire = self.network.message_bytes(src, dst, operation.size_bytes, rank)
        else:
            wire = self.network.wire_bytes(
                operation.spec.op, operation.size_bytes, transfer.ranks, rank, operation.routing
            )
        if wire.sent or wire.received:
            spans["wire"].append((begun, end, end - begun))
            spans["tx"].append((begun, end, wire.sent))
            spans["rx"].append((begun, end, wire.received))
            spans["spine"].append((begun, end, wire.through_spine))
        if wire.inside:
            spans["nvlink"].append((begun, end, wire.inside))
        if transfer.lost_at == rank:
            spans["lost"].append((begun, end, 1.0))

    def finish(self, *, is_hung: bool = False) -> None:
        """Lay the steps out: before, as captured, and after (nothing happens after a hang)."""
        count = len(self.steps)
        half = max(1, count // 2)
        first, last = self.starts_ns[0], self.ends_ns[-1]
        captured = [
            Segment(self.starts_ns[i], self.starts_ns[i + 1] if i + 1 < count else last, i)
            for i in range(count)
        ]
        before: list[Segment] = []
        at, turn = float(first), 0
        while at > first - self._around_ns:
            captured_at = captured[half - 1 - turn % half]
            length = captured_at.end_ns - captured_at.start_ns
            before.append(Segment(at - length, at, captured_at.index))
            at, turn = at - length, turn + 1
        after: list[Segment] = []
        at, turn = float(last), 0
        while not is_hung and at < last + self._around_ns:
            captured_at = captured[count - half + turn % half]
            length = captured_at.end_ns - captured_at.start_ns
            after.append(Segment(at, at + length, captured_at.index))
            at, turn = at + length, turn + 1
        self.segments = [*reversed(before), *captured, *after]
        self._order = np.array([s.index for s in self.segments])
        slices = np.arange(SLICES) / SLICES
        parts = [s.start_ns + slices * (s.end_ns - s.start_ns) for s in self.segments]
        self._edges = np.concatenate([*parts, [self.segments[-1].end_ns]])

    @property
    def start_ns(self) -> float:
        """When the job begins."""
        return self.segments[0].start_ns

    @property
    def end_ns(self) -> float:
        """When it ends, or hangs."""
        return self.segments[-1].end_ns

    def ticks(self, interval_s: float, phase_s: float) -> Floats:
        """Moments of a collector: one every interval, from before the job to after it, ns."""
        first = self.start_ns - self._idle_ns + phase_s * 1e9
        return np.arange(first, self.end_ns + self._idle_ns, interval_s * 1e9)

    def grown(self, kind: str, rank: int, ticks: Floats, factors: Floats | None = None) -> Floats:
        """What a kind of activity of a rank has added up to at each tick.

        ``factors`` multiplies what each captured step adds, wherever it is repeated.
        """
        each = np.stack([a[rank] for a in self._amounts[kind]])
        if factors is not None:
            each = each * factors[:, None]
        totals = np.concatenate([[0.0], np.cumsum(each[self._order].ravel())])
        grown: Floats = np.interp(ticks, self._edges, totals)
        return grown

    def time_grown(self, ticks: Floats, factors: Floats) -> Floats:
        """ns of the job's time up to each tick, each step's multiplied by its factor."""
        lengths = np.array([s.end_ns - s.start_ns for s in self.segments])
        ends = np.array([self.start_ns, *(s.end_ns for s in self.segments)])
        totals = np.concatenate([[0.0], np.cumsum(lengths * factors[self._order])])
        grown: Floats = np.interp(ticks, ends, totals)
        return grown

    def step_at(self, ticks: Floats) -> NDArray[np.int_]:
        """Index of the captured step that happens at each tick; -1 outside the job."""
        starts = np.array([s.start_ns for s in self.segments])
        at = np.searchsorted(starts, ticks, "right") - 1
        steps = self._order[np.maximum(at, 0)]
        steps[(at < 0) | (ticks > self.end_ns)] = -1
        return steps

    def onset_ns(self, index: int) -> float:
        """When a captured step (or its first repetition) first happens."""
        return next(s.start_ns for s in self.segments if s.index == index)


def _spread(spans: Floats, edges: Floats) -> Floats:
    """Amounts of (start, end, amount) within the slices between edges."""
    start, end, amount = spans.T
    done = np.clip((edges[None, :] - start[:, None]) / (end - start)[:, None], 0.0, 1.0)
    spread: Floats = np.diff(amount @ done)
    return spread
