"""What each fault does to a simulated job: to its plan, to a rank in a step, to the network.

An effect changes causes only: how fast a GPU computes, how long an input takes, how wide a link is.
What follows from that is the simulation's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from tracekit.simulate import program as p
from tracekit.simulate.engine import Conditions
from tracekit.simulate.job import Plan
from tracekit.simulate.model import STREAMS, ModelShape
from tracekit.simulate.network import LinkState
from tracekit.simulate.noise import generator

Where = dict[str, list[int] | list[str]]


def place(
    ranks: list[int] | None = None,
    hosts: list[str] | None = None,
    stages: list[int] | None = None,
    links: list[str] | None = None,
    groups: list[str] | None = None,
) -> Where:
    """A place as truth.json writes it."""
    return {
        "ranks": ranks or [],
        "hosts": hosts or [],
        "stages": stages or [],
        "links": links or [],
        "groups": groups or [],
    }


@dataclass
class Effect:
    """Base: does nothing. ``strength`` is in the unit that the catalogue gives it."""

    plan: Plan
    strength: float
    steps: list[int]
    rng: np.random.Generator
    ranks: list[int] = field(default_factory=list)
    late_init_ns: dict[int, int] = field(default_factory=dict)
    """By rank: how much later than the others it comes to its communicators' initialisation."""
    unwritten: frozenset[int] = frozenset()
    """Ranks whose files are missing."""

    def __post_init__(self) -> None:
        self.choose()

    def choose(self) -> None:
        """Pick the culprit: one rank, unless an effect says otherwise."""
        self.ranks = [int(self.rng.integers(self.plan.layout.world_size))]

    @property
    def host(self) -> str:
        """The host of the (first) culprit."""
        return self.plan.topology.host(self.ranks[0])

    def changed(self, plan: Plan) -> Plan:
        """The plan with the fault in it."""
        return plan

    def without(self, plan: Plan) -> Plan:
        """The plan of the fault-free twin."""
        return plan

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        """Change what is special about a rank in a step."""

    def links(self, state: LinkState, step: int) -> None:
        """Change the network in a step."""

    def where(self) -> Where:
        """The culprit's place."""
        return place(ranks=self.ranks)

    def is_on(self, rank: int, step: int) -> bool:
        """Whether it acts there."""
        return step in self.steps and rank in self.ranks


class SlowGpu(Effect):
    """A GPU computes at a fraction of its speed."""

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        if self.is_on(rank, step):
            conditions.compute_scale *= self.strength


class SlowGpusOfHost(SlowGpu):
    """All GPUs of a host do."""

    def choose(self) -> None:
        super().choose()
        self.ranks = self.plan.topology.ranks_of_host(self.host)

    def where(self) -> Where:
        return place(ranks=self.ranks, hosts=[self.host])


SMALL = ModelShape(layers=24, hidden=2048, heads=16, kv_heads=8, ffn=5632, vocabulary=8192,
                   sequence=2048)  # fmt: skip
TINY = ModelShape(layers=24, hidden=768, heads=12, kv_heads=12, ffn=2048, vocabulary=4096,
                  sequence=512)  # fmt: skip


_PREFETCHED_NS = 30_000.0
"""Input of a job whose steps are so short that an ordinary fetch would be a stall of its own."""


class SlowHost(SlowGpusOfHost):
    """A busy host launches late; kernels themselves take as long as ever."""

    def changed(self, plan: Plan) -> Plan:
        return replace(plan, shape=SMALL, input_ns=_PREFETCHED_NS)

    def without(self, plan: Plan) -> Plan:
        return replace(plan, shape=SMALL, input_ns=_PREFETCHED_NS)

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        if self.is_on(rank, step):
            conditions.host_scale *= self.strength

    def where(self) -> Where:
        return place(ranks=self.ranks, hosts=[self.host])


class LaunchBound(Effect):
    """Kernels so short that the host cannot launch them as fast as they run."""

    def choose(self) -> None:
        self.ranks = list(range(self.plan.layout.world_size))

    def changed(self, plan: Plan) -> Plan:
        host = replace(plan.host, operator_ns=plan.host.operator_ns * self.strength)
        return replace(plan, shape=TINY, host=host, input_ns=_PREFETCHED_NS)

    def without(self, plan: Plan) -> Plan:
        # As if graphs launched everything at once.
        host = replace(plan.host, operator_ns=300.0)
        return replace(plan, shape=TINY, host=host, input_ns=_PREFETCHED_NS)


class DataloaderStall(Effect):
    """The input of one rank is late."""

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        if self.is_on(rank, step):
            conditions.hooks["input"] = [(p.HOST, "", "", self.strength * 1e9)]


class GcPause(Effect):
    """Python's garbage collector stops one rank's main thread in the middle of its forward."""

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        if self.is_on(rank, step):
            pause = self.strength * 1e9
            conditions.hooks["forward"] = [(p.HOST, "Python GC", "python_function", pause)]


class CheckpointStall(Effect):
    """All ranks save in the middle of the loop."""

    def choose(self) -> None:
        self.ranks = list(range(self.plan.layout.world_size))

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        if not self.is_on(rank, step):
            return
        size = self.plan.shape.parameters * 2 // self.plan.layout.world_size
        copy = p.Kernel(
            "Memcpy DtoH (Device -> Pageable)", "aten::copy_", size / 12e9 * 1e9, kind="memcpy",
            size_bytes=size,
        )  # fmt: skip
        conditions.hooks["step_end"] = [
            (p.BEGIN, "save_checkpoint", "user_annotation"),
            (p.KERNEL, copy, STREAMS["compute"], -1),
            (p.SYNC, "cudaStreamSynchronize", STREAMS["compute"]),
            (p.HOST, "", "", self.strength * 1e9),
            (p.END,),
        ]


class Recompile(Effect):
    """A changed shape compiles the model again, on every rank."""

    def choose(self) -> None:
        self.ranks = list(range(self.plan.layout.world_size))

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        if self.is_on(rank, step):
            conditions.hooks["forward"] = [
                (p.BEGIN, "_compile.compile_inner (dynamo_timed)", "user_annotation"),
                (p.HOST, "inductor_compile (dynamo_timed)", "user_annotation", self.strength * 1e9),
                (p.END,),
            ]


class StageImbalance(Effect):
    """One stage has more layers than the others."""

    def choose(self) -> None:
        self.stage = int(self.rng.integers(self.plan.layout.pp))
        layout = self.plan.layout
        self.ranks = [
            r for r in range(layout.world_size) if layout.coordinates(r)["pp"] == self.stage
        ]

    def changed(self, plan: Plan) -> Plan:
        layers = list(plan.stage_layers)
        layers[self.stage] = round(layers[self.stage] * self.strength)
        return replace(plan, layers=tuple(layers))

    def where(self) -> Where:
        return place(stages=[self.stage])


class SequenceImbalance(Effect):
    """Microbatches of different length: who is slow changes from step to step."""

    def choose(self) -> None:
        self.ranks = list(range(self.plan.layout.world_size))

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        layout = self.plan.layout
        replica = layout.coordinates(rank)["dp"]
        rng = generator(self.plan.seed, "lengths", step, replica)
        draws = np.exp(rng.standard_normal(layout.microbatches) * self.strength)
        conditions.microbatch_scale = [float(d) for d in draws]


class HotExpert(Effect):
    """The router sends one rank's experts more tokens than the others'."""

    def choose(self) -> None:
        layout = self.plan.layout
        self.index = int(self.rng.integers(layout.ep))
        self.ranks = [
            r for r in range(layout.world_size) if layout.coordinates(r)["ep"] == self.index
        ]

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        n = self.plan.layout.ep
        hot = self.strength / n
        shares = tuple(hot if i == self.index else (1 - hot) / (n - 1) for i in range(n))
        conditions.routing = shares
        own = self.plan.layout.group(rank, "ep").index(rank)
        conditions.expert_scale *= shares[own] * n


class SlowLink(Effect):
    """One NIC has lost bandwidth; ``strength`` is what is left of it."""

    def links(self, state: LinkState, step: int) -> None:
        if step in self.steps:
            for rank in self.ranks:
                state.nic_factor[rank] = state.nic_factor.get(rank, 1.0) * self.strength

    def where(self) -> Where:
        top = self.plan.topology
        links = [f"{top.host(r)}:mlx5_{top.local(r)}" for r in self.ranks]
        return place(ranks=self.ranks, hosts=sorted({top.host(r) for r in self.ranks}), links=links)


class SlowLinksOfHost(SlowLink):
    """All NICs of a host have."""

    def choose(self) -> None:
        super().choose()
        self.ranks = self.plan.topology.ranks_of_host(self.host)


class SlowLinksEverywhere(SlowLink):
    """The whole job's network is slower than it should be."""

    def choose(self) -> None:
        self.ranks = list(range(self.plan.layout.world_size))

    def where(self) -> Where:
        return place()


class SlowNvlink(Effect):
    """NVLink of one GPU is slower; ``strength`` is what is left of it."""

    def links(self, state: LinkState, step: int) -> None:
        if step in self.steps:
            for rank in self.ranks:
                state.nvlink_factor[rank] = self.strength


class SlowNvlinkOfHost(SlowNvlink):
    """That of a whole host is."""

    def choose(self) -> None:
        super().choose()
        self.ranks = self.plan.topology.ranks_of_host(self.host)

    def where(self) -> Where:
        return place(ranks=self.ranks, hosts=[self.host])


class PacketLoss(SlowLink):
    """Transfers over one NIC time out now and then; ``strength`` is how often."""

    timeout_ns = 60e6

    def links(self, state: LinkState, step: int) -> None:
        if step in self.steps:
            for rank in self.ranks:
                state.loss[rank] = (self.strength, self.timeout_ns)


class TensorGroupSpansHosts(Effect):
    """Hosts of four GPUs under a tensor-parallel group of eight."""

    def choose(self) -> None:
        self.ranks = []

    def changed(self, plan: Plan) -> Plan:
        size = max(1, plan.layout.tp // 2)
        topology = replace(plan.topology, gpus_per_host=size, nvlink_domain=size)
        return replace(plan, topology=topology)

    def where(self) -> Where:
        return place(groups=[self.plan.layout.description("tp")])


class CrossRail(Effect):
    """The NICs of every other host are bound in another order, so rings leave their rails."""

    def choose(self) -> None:
        self.ranks = []

    def changed(self, plan: Plan) -> Plan:
        top = plan.topology
        rails = {
            r: (top.local(r) + 1) % top.gpus_per_host
            for r in range(plan.layout.world_size)
            if top.host_index(r) % 2
        }
        spine = replace(top, oversubscription=top.oversubscription * self.strength)
        return replace(plan, topology=spine.with_rails(rails))

    def where(self) -> Where:
        top = self.plan.topology
        return place(hosts=[h for i, h in enumerate(top.hosts) if i % 2])


class CollectiveHang(Effect):
    """One rank never joins a collective; the job stops there."""

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        if rank in self.ranks and step == self.steps[0]:
            conditions.skip_collective = "dp"


class CollectiveMismatch(Effect):
    """One rank calls a collective with another size; it never completes."""

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        if rank in self.ranks and step == self.steps[0]:
            conditions.change_collective = "dp"


class AllocatorStall(Effect):
    """One rank's allocator gives blocks back and asks for them again, with everything waiting."""

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        if self.is_on(rank, step):
            half = self.strength * 1e9 / 2
            conditions.hooks["forward"] = [
                (p.SYNC, "cudaDeviceSynchronize", -1),
                (p.HOST, "cudaFree", "cuda_runtime", half),
                (p.HOST, "cudaMalloc", "cuda_runtime", half),
            ]


class SyncStall(Effect):
    """The loop reads a value off the device in every layer, then thinks about it."""

    def choose(self) -> None:
        self.ranks = list(range(self.plan.layout.world_size))

    def rank(self, conditions: Conditions, rank: int, step: int) -> None:
        if self.is_on(rank, step):
            item = p.Kernel("Memcpy DtoH (Device -> Pinned)", "aten::item", 2_000.0, kind="memcpy",
                            size_bytes=4)  # fmt: skip
            conditions.hooks["layer"] = [
                (p.KERNEL, item, STREAMS["compute"], -1),
                (p.SYNC, "cudaStreamSynchronize", STREAMS["compute"]),
                (p.HOST, "", "", self.strength * 1e9),
            ]


class LateStart(Effect):
    """One rank comes late to the initialisation, in which the others wait: no step shows it."""

    def choose(self) -> None:
        super().choose()
        self.late_init_ns = {self.ranks[0]: int(self.strength * 1e9)}


class MissingRank(Effect):
    """One rank's file is not there."""

    def choose(self) -> None:
        super().choose()
        self.unwritten = frozenset(self.ranks)


EffectType = Callable[[Plan, float, list[int], np.random.Generator], Effect]
