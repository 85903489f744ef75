"""Every fault, as data: what it is, how strong, where it can be, the rule that must find it.

``needs`` names writers that do not exist yet: without them the files cannot show the fault, so the
accuracy bench reports it as missing.
"""

from __future__ import annotations

from msgspec import Struct

from tracekit.simulate import effects as e

WRITERS = ("kineto", "nsys", "nccl", "dcgm", "nic", "switch")
"""Formats that the simulator writes today."""

DENSE = ("ddp", "fsdp", "zero1", "tp4-sp-m2", "pp4-m8")
"""Layouts of faults that can happen to any job."""
FIRST_DENSE = ("ddp", "fsdp")
ACROSS_HOSTS = ("ddp", "fsdp")

_KINETO = ("kineto",)
_NCCL = ("kineto", "nccl")
_DCGM = ("kineto", "dcgm")
_NIC = ("kineto", "nic")
_SWITCH = ("kineto", "nic", "switch")


class Fault(Struct, frozen=True):
    """One kind of fault."""

    name: str
    summary: str
    effect: e.EffectType
    strength_name: str
    unit: str
    strengths: tuple[float, ...]
    """From weak to strong; the middle one is the default."""
    rules: tuple[str, ...]
    """One of these must be reported, at the fault's place."""
    allowed: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    layouts: tuple[str, ...] = DENSE
    steps: str = "all"
    """all, window (half of them in a row), some (every third), one."""
    needs: tuple[str, ...] = _KINETO
    """Formats without which the files cannot show it."""
    is_network: bool = False
    """Whether the job must have several hosts and a network that it depends on."""
    is_of_host: bool = False
    """Whether it strikes a whole host, so that there must be others to compare it with."""
    is_hang: bool = False
    steps_count: int = 12
    """Captured steps that it takes to show: a correlation needs many."""
    interval_s: float = 1.0
    """Time between readings of a counter, likewise: twice a step."""

    @property
    def strength(self) -> float:
        """The default strength."""
        return self.strengths[len(self.strengths) // 2]

    @property
    def missing_writers(self) -> tuple[str, ...]:
        """Formats that it needs and that are not written yet."""
        return tuple(w for w in self.needs if w not in WRITERS)


_LATE = ("late-rank", "exposed-communication")
_WIRE = ("exposed-communication", "late-rank", "latency-bound-communication", "traffic-mismatch")

FAULTS: tuple[Fault, ...] = (
    Fault("slow-gpu", "one GPU computes slower than its peers", e.SlowGpu,
          "compute_ratio", "ratio", (1.12, 1.3, 1.7), ("slow-gpu",), ("late-rank",), _LATE),
    Fault("thermal-throttle", "one GPU is hot and clocks down for a while", e.ThermalThrottle,
          "compute_ratio", "ratio", (1.15, 1.4, 1.7), ("thermal-throttle",), ("slow-gpu",), _LATE,
          steps="window", needs=_DCGM),
    Fault("power-brake", "a host's power supply brakes all its GPUs", e.PowerBrake,
          "compute_ratio", "ratio", (1.15, 1.3, 1.6), ("power-brake",), ("slow-gpu",), _LATE,
          needs=_DCGM, is_of_host=True),
    Fault("gpu-memory-fault", "a GPU's memory reports uncorrectable errors (XID)", e.MemoryFault,
          "compute_ratio", "ratio", (1.1, 1.2, 1.4), ("gpu-memory-fault",), ("slow-gpu",), _LATE,
          needs=_DCGM),
    Fault("slow-host", "a busy host launches late", e.SlowHost,
          "host_cost_ratio", "ratio", (6.0, 10.0, 20.0), ("slow-host",), ("late-rank",),
          (*_LATE, "launch-bound"), layouts=("ddp",), is_of_host=True),
    Fault("dataloader-stall", "the input of one rank is late", e.DataloaderStall,
          "extra_s_per_step", "s", (0.02, 0.06, 0.2), ("dataloader-stall",), (), _LATE,
          steps="window"),
    Fault("gc-pause", "Python collects garbage on one rank", e.GcPause,
          "pause_s", "s", (0.1, 0.25, 0.5), ("gc-pause",), (), _LATE, steps="some"),
    Fault("checkpoint-stall", "all ranks save inside the loop", e.CheckpointStall,
          "save_s", "s", (0.2, 0.6, 2.0), ("checkpoint-stall",), (), (), steps="some"),
    Fault("recompile", "a changed shape compiles the model again", e.Recompile,
          "compile_s", "s", (0.3, 1.0, 3.0), ("recompile",), (), ("launch-bound",), steps="some"),
    Fault("launch-bound", "kernels too short for the host to keep up", e.LaunchBound,
          "host_cost_ratio", "ratio", (1.0, 1.5, 3.0), ("launch-bound",), (), (),
          layouts=("ddp", "fsdp")),
    Fault("sync-stall", "a value is read off the device in every layer", e.SyncStall,
          "host_s_per_layer", "s", (0.001, 0.003, 0.006), ("sync-stall",), ("launch-bound",), (),
          layouts=("ddp",)),
    Fault("allocator-stall", "one rank's allocator frees and asks again", e.AllocatorStall,
          "stall_s", "s", (0.02, 0.05, 0.15), ("allocator-stall",), ("sync-stall",), _LATE,
          layouts=FIRST_DENSE),
    Fault("stage-imbalance", "one stage has more layers", e.StageImbalance,
          "layers_ratio", "ratio", (1.34, 1.5, 2.0), ("stage-imbalance",), (),
          ("excess-bubble", *_LATE), layouts=("pp4-m8", "pp2-m8-titan", "pp4-gpipe-m8")),
    Fault("sequence-imbalance", "microbatches of different length", e.SequenceImbalance,
          "length_log_sigma", "ratio", (0.15, 0.3, 0.5), ("sequence-imbalance",), (), _LATE,
          layouts=("ddp-m4", "fsdp-m4", "pp4-m8")),
    Fault("hot-expert", "one rank's experts get more tokens", e.HotExpert,
          "load_ratio", "ratio", (1.5, 2.0, 3.0), ("hot-expert",), (), _LATE,
          layouts=("ep8", "ep4")),
    Fault("link-degraded", "one NIC has lost bandwidth", e.TrainedDown,
          "bandwidth_ratio", "ratio", (0.5, 0.3, 0.15), ("link-degraded",), (), _WIRE,
          layouts=("tp4-sp-m2", "tp2-zero1", "ddp"), needs=_NIC, is_network=True),
    Fault("packet-loss", "transfers over one NIC time out now and then", e.PacketLoss,
          "loss_ratio", "ratio", (0.05, 0.15, 0.4), ("packet-loss",), ("link-degraded",), _WIRE,
          layouts=ACROSS_HOSTS, needs=_NIC, is_network=True),
    Fault("nic-error", "a cable damages packets, which are sent again", e.NicError,
          "bandwidth_ratio", "ratio", (0.7, 0.5, 0.3), ("nic-error",), ("link-degraded",), _WIRE,
          layouts=ACROSS_HOSTS, needs=_NIC, is_network=True),
    Fault("gpu-contention", "somebody else's program computes on one GPU", e.GpuContention,
          "compute_ratio", "ratio", (1.15, 1.4, 1.8), ("gpu-contention",), ("slow-gpu",), _LATE,
          needs=_DCGM),
    Fault("tensor-group-spans-hosts", "a tensor-parallel group is wider than NVLink",
          e.TensorGroupSpansHosts, "hosts_per_group", "count", (2.0,),
          ("tensor-group-spans-hosts",), (), _WIRE, layouts=("tp8-sp", "tp8-pp2-m4")),
    Fault("cross-rail", "NICs are bound in another order, rings leave their rails", e.CrossRail,
          "spine_oversubscription", "ratio", (2.0, 3.0, 4.0), ("cross-rail-traffic",), (), _WIRE,
          layouts=ACROSS_HOSTS, needs=_NCCL, is_network=True),
    Fault("collective-hang", "one rank never joins a collective", e.CollectiveHang,
          "ranks_count", "count", (1.0,), ("collective-hang",), (), (), layouts=FIRST_DENSE,
          steps="one", is_hang=True),
    Fault("collective-mismatch", "one rank calls a collective with another size",
          e.CollectiveMismatch, "ranks_count", "count", (1.0,), ("collective-mismatch",),
          ("collective-hang",), (), layouts=FIRST_DENSE, steps="one", is_hang=True),
    Fault("storage-interference", "reads share the network of one host for a while",
          e.StorageInterference, "bandwidth_ratio", "ratio", (0.5, 0.3, 0.2),
          ("storage-interference",), ("link-degraded",), _WIRE, layouts=ACROSS_HOSTS,
          steps="window", needs=_SWITCH, is_network=True),
    Fault("init-straggler", "one rank comes late to its initialisation", e.LateStart,
          "late_s", "s", (15.0, 60.0, 300.0), ("init-straggler",), (), _LATE, layouts=FIRST_DENSE,
          needs=_NCCL),
    Fault("nvlink-fault", "a GPU's NVLink has lost lanes", e.BrokenNvlink,
          "bandwidth_ratio", "ratio", (0.5, 0.3, 0.15), ("nvlink-fault",), ("link-degraded",),
          _WIRE, layouts=("tp8-sp", "tp4-sp-m2"), needs=_DCGM),
    Fault("pcie-degraded", "a GPU's PCIe link has fewer lanes", e.PcieDegraded,
          "bandwidth_ratio", "ratio", (0.5, 0.3, 0.15), ("pcie-degraded",), ("link-degraded",),
          _WIRE, layouts=ACROSS_HOSTS, needs=_DCGM, is_network=True),
    Fault("pfc-storm", "a slow receiver's pause frames hold up the fabric", e.SlowReceiver,
          "bandwidth_ratio", "ratio", (0.5, 0.3, 0.15), ("pfc-storm", "slow-receiver"),
          ("link-degraded",), _WIRE, layouts=ACROSS_HOSTS, needs=_SWITCH, is_network=True),
    Fault("ecn-congestion", "marks slow the senders of a shared fabric", e.SharedFabric,
          "bandwidth_ratio", "ratio", (0.7, 0.5, 0.3), ("ecn-congestion",), (), _WIRE,
          layouts=ACROSS_HOSTS, needs=_SWITCH, is_network=True, steps_count=42,
          interval_s=0.05),
    Fault("incast", "many send to one at once", e.Incast,
          "bandwidth_ratio", "ratio", (0.5, 0.3, 0.15), ("incast",), ("link-degraded",),
          (*_WIRE, "pfc-storm"),  # a full queue pauses who sends
          layouts=("ep8", "ep4"), needs=_SWITCH, is_network=True),
    Fault("ecmp-collision", "two flows share one uplink", e.EcmpCollision,
          "bandwidth_ratio", "ratio", (0.6, 0.5, 0.4), ("ecmp-collision",), ("link-degraded",),
          _WIRE, layouts=ACROSS_HOSTS, needs=_SWITCH, is_network=True),
    Fault("nccl-socket-fallback", "NCCL fell back to sockets", e.SlowLinksEverywhere,
          "bandwidth_ratio", "ratio", (0.25, 0.15, 0.1), ("nccl-socket-fallback",), (), _WIRE,
          layouts=ACROSS_HOSTS, needs=_NCCL, is_network=True),
    Fault("no-gpudirect", "transfers bounce through host memory", e.SlowLinksEverywhere,
          "bandwidth_ratio", "ratio", (0.6, 0.5, 0.4), ("no-gpudirect",), (), _WIRE,
          layouts=ACROSS_HOSTS, needs=_NCCL, is_network=True),
    Fault("shm-instead-of-p2p", "GPUs of a host talk through shared memory", e.SlowNvlinkOfHost,
          "bandwidth_ratio", "ratio", (0.1, 0.05, 0.03), ("shm-instead-of-p2p",), (), _WIRE,
          layouts=("tp8-sp", "tp4-sp-m2"), needs=_NCCL),
    Fault("wrong-nic", "ranks of one host share a NIC that is not theirs", e.SlowLinksOfHost,
          "bandwidth_ratio", "ratio", (0.5, 0.25, 0.125), ("wrong-nic",), ("link-degraded",),
          _WIRE, layouts=ACROSS_HOSTS, needs=_NCCL, is_network=True),
    Fault("channel-collapse", "NCCL uses far fewer channels", e.SlowLinksEverywhere,
          "bandwidth_ratio", "ratio", (0.5, 0.3, 0.2), ("channel-collapse",), (), _WIRE,
          layouts=ACROSS_HOSTS, needs=_NCCL, is_network=True),
    Fault("config-mismatch", "one rank's environment differs", e.SlowLink,
          "bandwidth_ratio", "ratio", (0.6, 0.4, 0.2), ("config-mismatch",), ("link-degraded",),
          _WIRE, layouts=ACROSS_HOSTS, needs=_NCCL, is_network=True),
)  # fmt: skip
"""In the order of ``tracekit simulate --list``."""


class Decoy(Struct, frozen=True):
    """What looks like a fault and costs (next to) nothing."""

    name: str
    summary: str
    forbidden: tuple[str, ...]
    needs: tuple[str, ...] = _KINETO

    @property
    def counters(self) -> frozenset[str]:
        """Counters (gpu, net) that it is in whenever those are written; empty: by chance."""
        kinds = {"dcgm": "gpu", "nic": "net", "switch": "net"}
        return frozenset(kinds[n] for n in self.needs if n in kinds)

    @property
    def missing_writers(self) -> tuple[str, ...]:
        """Formats that it needs and that are not written yet."""
        return tuple(w for w in self.needs if w not in WRITERS)


DECOYS: tuple[Decoy, ...] = (
    Decoy("hidden-wait", "one rank is late to the first buckets and makes it up: all is hidden",
          ("slow-gpu", "late-rank", "gpu-outlier")),
    Decoy("profiler-overhead", "the first captured step launches slower, on every rank",
          ("slow-host", "launch-bound", "late-rank")),
    Decoy("warm-up-step", "the first captured step compiles",
          ("recompile", "slow-host", "late-rank", "launch-bound")),
    Decoy("one-gpu-pods", "every rank names a host of its own, and all are one machine",
          ("tensor-group-spans-hosts", "slow-host")),
    Decoy("missing-rank", "one rank's file is missing", ("collective-hang", "slow-gpu")),
    Decoy("software-power-cap", "every GPU reports its power cap",
          ("power-brake", "thermal-throttle"), _DCGM),
    Decoy("latched-xid", "an old XID is still shown", ("gpu-memory-fault",), _DCGM),
    Decoy("usual-pause-frames", "pause frames in every step", ("pfc-storm",), _SWITCH),
    Decoy("counter-reset", "a counter begins again at zero", ("packet-loss", "nic-error"), _NIC),
    Decoy("missing-gpudirect-lines", "no log line names GPUDirect", ("no-gpudirect",), _NCCL),
)  # fmt: skip

BY_NAME = {f.name: f for f in FAULTS}
DECOYS_BY_NAME = {d.name: d for d in DECOYS}
HEALTHY = ("none", "healthy")
