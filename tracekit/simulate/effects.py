"""What each fault does to a simulated job: to its plan, to a rank in a step, to the network.

An effect changes causes only: how fast a GPU computes, how long an input takes, how wide a link is.
What follows from that is the simulation's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from tracekit.simulate import health as h
from tracekit.simulate import program as p
from tracekit.simulate.engine import Conditions
from tracekit.simulate.health import Health
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

    def counters(self, health: Health, step: int) -> None:
        """Change what counters see of GPUs and ports in a step."""

    def where(self) -> Where:
        """The culprit's place."""
        return place(ranks=self.ranks)

    def hit(self, step: int) -> Sequence[int]:
        """The culprit's ranks in a step in which it acts; none in others."""
        return self.ranks if step in self.steps else ()

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


class ThermalThrottle(SlowGpu):
    """A GPU is hot: the driver lowers its clock, or the hardware halves it."""

    def counters(self, health: Health, step: int) -> None:
        for rank in self.ranks:
            # It has been getting hotter for a while before anything slows it down.
            health.heat_celsius[rank] = 26.0
            if step in self.steps:
                is_half = self.strength >= 1.9
                health.slowness[rank] = self.strength
                health.held[rank] = 1.0
                health.reasons[rank] = h.SLOWDOWN | h.HARDWARE_HEAT if is_half else h.SOFTWARE_HEAT


class PowerBrake(SlowGpusOfHost):
    """A power supply halves the clocks of a host's GPUs, again and again."""

    def counters(self, health: Health, step: int) -> None:
        for rank in self.hit(step):
            # At half the clock for a share of the time: so much slower on average.
            health.held[rank] = min(1.0, 2 * (1 - 1 / self.strength))
            health.slowness[rank] = 2.0
            health.reasons[rank] = h.SLOWDOWN | h.BRAKE


class MemoryFault(SlowGpu):
    """A GPU's memory fails: rows are replaced, and what reads them waits."""

    def counters(self, health: Health, step: int) -> None:
        for rank in self.hit(step):
            health.xids[rank] = (48, 63)
            health.memory_errors[rank] = 2


class GpuContention(SlowGpu):
    """A program of somebody else computes on the same GPU: the job gets what is left."""

    def counters(self, health: Health, step: int) -> None:
        for rank in self.hit(step):
            health.neighbour[rank] = 1 - 1 / self.strength


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
        expert_index = self.plan.layout.group(rank, "ep").index(rank)
        conditions.expert_scale *= shares[expert_index] * n


class SlowLink(Effect):
    """One NIC has lost bandwidth; ``strength`` is what is left of it."""

    def links(self, state: LinkState, step: int) -> None:
        for rank in self.hit(step):
            state.nic_factor[rank] = state.nic_factor.get(rank, 1.0) * self.strength

    def where(self) -> Where:
        top = self.plan.topology
        links = [f"{top.host(r)}:mlx5_{top.local(r)}" for r in self.ranks]
        return place(ranks=self.ranks, hosts=sorted({top.host(r) for r in self.ranks}), links=links)


class TrainedDown(SlowLink):
    """It came up with fewer lanes, and says so."""

    def counters(self, health: Health, step: int) -> None:
        for rank in self.hit(step):
            health.speed_ratio[rank] = self.strength


class NicError(SlowLink):
    """A bad cable damages packets, which are sent again."""

    def counters(self, health: Health, step: int) -> None:
        for rank in self.hit(step):
            health.damage_ratio[rank] = 1e-4


class PcieDegraded(SlowLink):
    """A GPU's PCIe link came up with fewer lanes; its NIC is behind the same bridge."""

    def counters(self, health: Health, step: int) -> None:
        for rank in self.hit(step):
            width = 16
            while width > 1 and width > 16 * self.strength:
                width //= 2
            health.pcie_width[rank] = width
            health.stalls_per_s[rank] = 40.0


class Incast(SlowLink):
    """Senders of an exchange all reach one receiver at once: its port's queue fills."""

    def counters(self, health: Health, step: int) -> None:
        if step not in self.steps:
            return
        top = self.plan.topology
        for rank in range(self.plan.layout.world_size):
            if rank in self.ranks:
                health.marked[rank] = 0.35
                health.queue_bytes[rank] = 9e6
            elif any(top.host(rank) != top.host(r) for r in self.ranks):
                # What does not fit is held back at the senders.
                health.paused[rank] = 0.5 * (1 - self.strength)


class EcmpCollision(SlowLink):
    """The flows of a leaf all hash onto one of its uplinks; another stands idle."""

    def choose(self) -> None:
        super().choose()
        top = self.plan.topology
        rail = top.rail(self.ranks[0])
        self.ranks = [r for r in range(self.plan.layout.world_size) if top.rail(r) == rail]

    def counters(self, health: Health, step: int) -> None:
        if step in self.steps:
            health.colliding = health.colliding | frozenset(self.ranks)

    def where(self) -> Where:
        return place(links=[f"uplinks of rail {self.plan.topology.rail(self.ranks[0])}"])

    def changed(self, plan: Plan) -> Plan:
        return self.without(plan)

    def without(self, plan: Plan) -> Plan:
        """Hosts under different leaves, so that rings pass the spine."""
        top = plan.topology
        per_pod = max(1, len(top.hosts) // 2)
        return replace(plan, topology=replace(top, hosts_per_pod=per_pod, oversubscription=1.0))


class SlowLinksOfHost(SlowLink):
    """All NICs of a host have."""

    def choose(self) -> None:
        super().choose()
        self.ranks = self.plan.topology.ranks_of_host(self.host)


class SlowReceiver(SlowLinksOfHost):
    """A host cannot take in what it is sent: its NICs pause their switch, and that the senders."""

    def counters(self, health: Health, step: int) -> None:
        if step not in self.steps:
            return
        held = 1 - self.strength
        for rank in range(self.plan.layout.world_size):
            if rank in self.ranks:
                health.pausing[rank] = held
                health.stalls_per_s[rank] = 200.0
            else:
                # The switch's buffer takes in a part before it pauses those who send.
                health.paused[rank] = 0.8 * held


class StorageInterference(SlowLinksOfHost):
    """Reads of a data set share the NICs of a host with its collectives."""

    def counters(self, health: Health, step: int) -> None:
        for rank in self.hit(step):
            nic = self.plan.topology.nic_bytes_per_s
            health.foreign_bytes_per_s[rank] = (1 - self.strength) * nic


class SlowLinksEverywhere(SlowLink):
    """The whole job's network is slower than it should be."""

    def choose(self) -> None:
        self.ranks = list(range(self.plan.layout.world_size))

    def where(self) -> Where:
        return place()


class SharedFabric(SlowLinksEverywhere):
    """Other jobs load the fabric, now more, now less: marks slow this one's senders down."""

    def load(self, step: int) -> float:
        """How much of the full effect a step meets, 0..1."""
        return float(generator(self.plan.seed, "fabric", step).beta(0.6, 0.6))

    def links(self, state: LinkState, step: int) -> None:
        if step in self.steps:
            left = 1 - (1 - self.strength) * self.load(step)
            for rank in self.ranks:
                state.nic_factor[rank] = state.nic_factor.get(rank, 1.0) * left

    def counters(self, health: Health, step: int) -> None:
        for rank in self.hit(step):
            health.marked[rank] = 0.5 * (1 - self.strength) * self.load(step)
            health.queue_bytes[rank] = 2e6 * self.load(step)


class SlowNvlink(Effect):
    """NVLink of one GPU is slower; ``strength`` is what is left of it."""

    def links(self, state: LinkState, step: int) -> None:
        for rank in self.hit(step):
            state.nvlink_factor[rank] = self.strength


class BrokenNvlink(SlowNvlink):
    """Lanes of it failed: what they damage is sent again, and the driver says so."""

    def counters(self, health: Health, step: int) -> None:
        for rank in self.hit(step):
            health.nvlink_errors_per_s[rank] = 300.0
            health.xids[rank] = (74,)


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
        for rank in self.hit(step):
            state.loss[rank] = (self.strength, self.timeout_ns)

    def counters(self, health: Health, step: int) -> None:
        # A receiver asks for most lost packets again at once. Only where the last one of a message
        # or what was sent again is lost does a timer run out: for each such, many others are lost.
        if step not in self.steps:
            return
        top = self.plan.topology
        for rank in range(self.plan.layout.world_size):
            if rank in self.ranks:
                health.loss_per_timeout[rank] = 150.0
            elif any(top.rail(rank) == top.rail(r) for r in self.ranks):
                health.paused[rank] = 0.02


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
