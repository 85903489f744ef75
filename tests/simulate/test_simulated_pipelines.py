"""Pipelines of equal stages and no noise: times and bubbles that theory knows exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tracekit.simulate.builder import COMPUTE, StepBuilder
from tracekit.simulate.engine import HostModel
from tracekit.simulate.hardware import GPUS, Latency, Topology
from tracekit.simulate.job import Job, Plan
from tracekit.simulate.layout import Layout
from tracekit.simulate.model import ModelShape
from tracekit.simulate.noise import NoiseModel
from tracekit.simulate.program import KERNEL, Kernel, Program
from tracekit.simulate.schedules import SCHEDULES

NO_HOST_COST = HostModel(0.0, 0.0, 0, 0, 0.0)
NO_LATENCY = Latency(0.0, 0.0, 0.0)
QUIET = NoiseModel(0.0, 0.0, 0.0, 0.0, 0.0, is_exit_spread=False)
UNIT = 8_000
"""Nanoseconds of one forward; divisible by every number of chunks here."""


class FixedBuilder(StepBuilder):
    """A pipeline whose actions take given times and whose messages nothing: for test vectors."""

    def __init__(self, layout: Layout, topology: Topology, forward_ns: int, backward_ns: int,
                 weight_ns: int = 0) -> None:  # fmt: skip
        super().__init__(layout, ModelShape(), topology, [1] * (layout.pp * layout.chunks))
        self._times = {"F": forward_ns, "B": backward_ns, "W": weight_ns}

    def build(self, stage: int) -> Program:
        """The pipeline alone."""
        self.out = []
        self.stage = stage
        self._work()
        return self.out

    def _kernel(self, action: str, m: int) -> None:
        kernel = Kernel(action, action, float(self._times[action]))
        self._add(KERNEL, kernel, COMPUTE, m)

    def _forward(self, m: int, chunk: int) -> None:
        v = self._virtual(chunk)
        if v > 0:
            self._message("f", is_send=False)
        self._kernel("F", m)
        if v < self._last_virtual:
            self._message("f", is_send=True)

    def _backward(self, m: int, chunk: int, *, is_split: bool) -> None:
        v = self._virtual(chunk)
        if v < self._last_virtual:
            self._message("b", is_send=False)
        self._kernel("B", m)
        if v > 0:
            self._message("b", is_send=True)

    def _weights(self, m: int) -> None:
        self._kernel("W", m)


def makespan_ns(plan: Plan, builder: StepBuilder) -> int:
    """Time from the first kernel's start to the last one's end over one step."""
    job = Job(plan, builder=builder)
    ends: list[int] = []
    starts: list[int] = []
    for records in job.run():
        for record in records:
            ends += [o.end for o in record.operations]
            starts += [o.start for o in record.operations if o.transfer is None]
    return max(ends) - min(starts)


def plan(stages: int, microbatches: int, schedule: str, chunks: int = 1) -> Plan:
    gpu = replace(GPUS["h100"], nvlink_bytes_per_s=1e30)
    topology = Topology(stages, gpu, nic_bytes_per_s=1e30, latency=NO_LATENCY)
    layout = Layout(stages, pp=stages, microbatches=microbatches, schedule=schedule, chunks=chunks)
    return Plan(
        "pipeline", layout, topology, ModelShape(), steps_count=1, host=NO_HOST_COST, noise=QUIET
    )


def builder(p: Plan, forward: int, backward: int, weight: int = 0) -> FixedBuilder:
    return FixedBuilder(p.layout, p.topology, forward, backward, weight)


def units(p: Plan, forward: int, backward: int, weight: int = 0) -> Fraction:
    return Fraction(makespan_ns(p, builder(p, forward, backward, weight)), UNIT)


# Published figures (F = 1, B = 2): stages, microbatches, time, idle over busy, idle over window.
VECTORS = [
    (4, 4, 21, 0.75, 0.428571),
    (4, 8, 33, 0.375, 0.272727),
    (4, 16, 57, 0.1875, 0.157895),
    (8, 8, 45, 0.875, 0.466667),
    (8, 24, 93, 0.291667, 0.225806),
    (8, 32, 117, 0.21875, 0.179487),
    (2, 8, 27, 0.125, 0.111111),
    (4, 32, 105, 0.09375, 0.085714),
]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches", "time", "ratio", "fraction"), VECTORS)
def test_gpipe_and_1f1b(
    stages: int, microbatches: int, time: int, ratio: float, fraction: float, schedule: str
) -> None:
    p = plan(stages, microbatches, schedule)
    assert units(p, UNIT, 2 * UNIT) == time
    for busy_ns in busy(p, builder(p, UNIT, 2 * UNIT)):
        idle = time - busy_ns / UNIT
        assert idle / (busy_ns / UNIT) == pytest.approx(ratio, abs=5e-7)
        assert idle / time == pytest.approx(fraction, abs=5e-7)


def busy(p: Plan, b: FixedBuilder) -> list[int]:
    """Busy nanoseconds of every rank, from the events."""
    (records,) = Job(p, builder=b).run()
    return [sum(o.end - o.start for o in r.operations if o.transfer is None) for r in records]


@pytest.mark.parametrize(
    ("stages", "microbatches", "chunks", "time", "ratio"),
    [
        (4, 8, 2, 28.5, 0.1875),
        (4, 16, 2, 52.5, 0.09375),
        (8, 32, 2, 106.5, 0.109375),
        (8, 32, 4, 101.25, 0.0546875),
        (2, 8, 2, 25.5, 0.0625),
    ],
)
def test_interleaved(
    stages: int, microbatches: int, chunks: int, time: float, ratio: float
) -> None:
    p = plan(stages, microbatches, "interleaved-1f1b", chunks)
    found = units(p, UNIT // chunks, 2 * UNIT // chunks)
    assert found == Fraction(time)
    assert (found - 3 * microbatches) / (3 * microbatches) == Fraction(ratio)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 8), (4, 4), (4, 8), (8, 8), (8, 24)])
def test_zb_h1(stages: int, microbatches: int) -> None:
    """A third of 1F1B's bubble, where forward, backward and weight gradients take equally long."""
    p = plan(stages, microbatches, "zb-h1")
    time = units(p, UNIT, UNIT, UNIT)
    assert (time - 3 * microbatches) / (3 * microbatches) == Fraction(stages - 1, 3 * microbatches)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_microbatch_goes_through_every_chunk_once(name: str) -> None:
    chunks = 2 if name == "interleaved-1f1b" else 1
    for stage in range(4):
        actions = SCHEDULES[name](stage, 4, 8, chunks)
        assert len(actions) == len(set(actions))
        for action in {a for a, _, _ in actions}:
            assert {(m, c) for a, m, c in actions if a == action} == {
                (m, c) for m in range(8) for c in range(chunks)
            }


@settings(max_examples=30)
@given(
    microbatches=st.integers(1, 12),
    times=st.lists(st.integers(1, 50), min_size=2, max_size=5),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
)
def test_uneven_stages_take_at_least_their_bound(
    microbatches: int, times: list[int], schedule: str
) -> None:
    """Stage i does all its microbatches; before the first and after the last, those above work.

    What the stages below do can hide behind its other microbatches: no bound may count them.
    """

    class Uneven(FixedBuilder):
        def build(self, stage: int) -> list[tuple[object, ...]]:
            self._times = {"F": times[stage], "B": 2 * times[stage], "W": 0}
            return super().build(stage)

    p = plan(len(times), microbatches, schedule)
    found = makespan_ns(p, Uneven(p.layout, p.topology, 1, 1))
    bound = max(microbatches * 3 * t + 3 * sum(times[:i]) for i, t in enumerate(times))
    assert found >= max(bound, 3 * sum(times))
