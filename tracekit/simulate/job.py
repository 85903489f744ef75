"""One simulated job: its parts put together, and its steps run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

from msgspec import Struct, field

from tracekit.simulate import program as p
from tracekit.simulate.builder import StepBuilder
from tracekit.simulate.engine import ORDINARY_HOST, Conditions, Engine, HostModel, Process
from tracekit.simulate.hardware import Topology
from tracekit.simulate.layout import Layout
from tracekit.simulate.model import ModelShape
from tracekit.simulate.network import LinkState, Network
from tracekit.simulate.noise import REALISTIC, NoiseModel, factors, generator, uniforms
from tracekit.simulate.records import HostRecords, Operations, Spool

StepConditions = Callable[[int, int], Conditions]
"""(rank, step) -> what is special there."""
StepLinks = Callable[[int], LinkState]


class Plan(Struct, frozen=True):
    """Everything that decides what a job does, but for its faults."""

    name: str
    layout: Layout
    topology: Topology
    shape: ModelShape
    seed: int = 0
    steps_count: int = 8
    first_step: int = 10
    host: HostModel = ORDINARY_HOST
    noise: NoiseModel = REALISTIC
    layers: tuple[int, ...] = ()
    """Layers of each virtual stage; empty: evenly."""
    input_ns: float = 600_000.0

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Layers of each virtual stage."""
        if self.layers:
            return self.layers
        count = self.layout.pp * self.layout.chunks
        each, rest = divmod(self.shape.layers, count)
        return tuple(each + (1 if v < rest else 0) for v in range(count))

    @property
    def steps(self) -> range:
        """ProfilerStep numbers."""
        return range(self.first_step, self.first_step + self.steps_count)


class StepRecord(Struct):
    """What one rank did in one step."""

    rank: int
    step: int
    start_ns: int
    end_ns: int
    host: HostRecords
    operations: Operations
    is_complete: bool = True


class Tally(Struct):
    """Sums over the job, from its own event list: the truth's ``measured``."""

    step_ns: list[list[int]] = field(default_factory=list)
    compute_ns: list[int] = field(default_factory=list)


class Job:
    """A running simulation. ``run`` yields the steps of all ranks, one step at a time.

    ``spool`` is the folder for what of a step is too much for memory (None: the system's own);
    without ``is_recorded`` only the tally is kept, and records are empty.
    """

    def __init__(
        self,
        plan: Plan,
        conditions: StepConditions | None = None,
        links: StepLinks | None = None,
        builder: StepBuilder | None = None,
        *,
        spool: Path | None = None,
        is_recorded: bool = True,
    ) -> None:
        self.plan = plan
        self._spool = spool
        self._conditions = conditions or (lambda rank, step: Conditions())
        self._links = links or (lambda step: LinkState())
        layout, seed, noise = plan.layout, plan.seed, plan.noise
        self._builder = builder or StepBuilder(
            layout, plan.shape, plan.topology, plan.stage_layers, input_ns=plan.input_ns
        )
        self._programs: dict[int, p.Program] = {}
        self.is_hung = False
        self.tally = Tally([[] for _ in range(layout.world_size)], [0] * layout.world_size)

        def exits(key: object) -> Iterator[float]:
            return uniforms(seed, "exit", key) if noise.is_exit_spread else repeat(0.0)

        self.engine = Engine(
            layout.world_size,
            Network(plan.topology),
            layout.group,
            plan.host,
            lambda key: factors(seed, noise.transfer, "transfer", key),
            exits,
            is_recorded=is_recorded,
        )
        for process in self.engine.processes:
            process.kernel_noise = factors(seed, noise.kernel, "kernel", process.rank)
            process.host_noise = factors(seed, noise.host, "host", process.rank)
        self._device = [
            float(next(factors(seed, noise.device, "device", r))) for r in range(layout.world_size)
        ]
        start = generator(seed, "start")
        if noise.host:
            for process in self.engine.processes:
                process.now = int(start.integers(0, 400_000))

    def _program(self, rank: int) -> p.Program:
        stage = self.plan.layout.coordinates(rank)["pp"]
        program = self._programs.get(stage)
        if program is None:
            program = self._programs[stage] = self._builder.build(stage)
        return program

    def run(self) -> Iterator[list[StepRecord]]:
        """The steps of all ranks; stops after the step that hangs."""
        for step in self.plan.steps:
            self.engine.links = self._links(step)
            given: list[tuple[p.Program, Conditions]] = []
            wholes: dict[int, p.Program] = {}
            spool = Spool(self._spool, len(self.engine.processes))
            for process in self.engine.processes:
                process.record(spool)
                conditions = self._conditions(process.rank, step)
                chance = factors(self.plan.seed, self.plan.noise.step, "step", process.rank, step)
                conditions.compute_scale *= self._device[process.rank] * next(chance)
                body = self._program(process.rank)
                whole = wholes.get(id(body))
                if whole is None:
                    begin = (p.BEGIN, f"ProfilerStep#{step}", "user_annotation")
                    whole = wholes[id(body)] = [begin, *body, (p.END,)]
                given.append((whole, conditions))
            starts = [q.now for q in self.engine.processes]
            is_complete = self.engine.run_step(given)
            yield [
                self._collect(q, step, begin)
                for q, begin in zip(self.engine.processes, starts, strict=True)
            ]
            if not is_complete:
                self.is_hung = True
                return

    def _collect(self, process: Process, step: int, start: int) -> StepRecord:
        record = StepRecord(
            process.rank,
            step,
            start,
            process.now,
            process.host,
            process.operations,
            process.is_done and not process.is_stuck,
        )
        if record.is_complete:
            self.tally.step_ns[process.rank].append(process.now - start)
        self.tally.compute_ns[process.rank] = process.compute_ns
        return record
