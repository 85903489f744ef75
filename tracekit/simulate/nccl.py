"""Writes what NCCL logs of a simulated job: one file a process, in the words of release 2.27.

What NCCL decided (its wiring) follows from the topology; each fault changes the causes of that, as
data here, and the lines follow. Where the job hangs, PyTorch's watchdog adds its words to the job's
own output.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from tracekit.simulate import program as p
from tracekit.simulate.effects import Effect
from tracekit.simulate.job import Plan, StepRecord
from tracekit.simulate.kineto import GroupNames
from tracekit.simulate.noise import generator
from tracekit.simulate.records import Operation

DETAILS = ("none", "info", "coll")
"""Nothing; what NCCL_DEBUG=INFO says of setting up; every call besides."""
VERSION = "2.27.5+cuda12.9"
TIMEOUT_MS = 600_000
_WATCHDOG_OPS = {
    "all_reduce": "ALLREDUCE",
    "all_gather": "_ALLGATHER_BASE",
    "reduce_scatter": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL_BASE",
    "broadcast": "BROADCAST",
    "send": "SEND",
    "recv": "RECV",
}
_CALLS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
}
_DTYPES = {"BFloat16": 9, "Float": 7, "Half": 6, "Long": 4, "Byte": 1}


class Wiring(Struct):
    """What NCCL finds and decides, before any group is made."""

    network: str = "IB"
    has_gpudirect: bool = True
    no_gpudirect_why: str = ""
    """``module`` (no peer memory), ``far`` (PCIe) or empty."""
    no_network_why: str = ""
    """``device``, ``library`` or ``setting``."""
    shm_hosts: set[str] = field(default_factory=set)
    """Hosts whose GPUs do not reach each other directly."""
    nics: dict[int, int] = field(default_factory=dict)
    """By rank: the device that it uses where that is not its own."""
    max_channels: int | None = None
    environment: dict[int, dict[str, str]] = field(default_factory=dict)
    """By rank."""
    late_s: dict[int, float] = field(default_factory=dict)
    is_lazy: bool = False
    """Whether a thread of its own makes the connections, so that their lines name no group."""
    has_edges: bool = True
    """Whether connections are logged (NCCL_DEBUG_SUBSYS)."""

    def set(self, ranks: Iterable[int], name: str, value: str) -> None:
        """A variable in the environment of ranks."""
        for rank in ranks:
            self.environment.setdefault(rank, {})[name] = value


def _sockets(wiring: Wiring, effect: Effect, rng: np.random.Generator) -> None:
    wiring.network = "Socket"
    wiring.has_gpudirect = False
    wiring.no_network_why = ("device", "library", "setting")[int(rng.integers(3))]
    if wiring.no_network_why == "setting":
        wiring.set(range(effect.plan.layout.world_size), "NCCL_IB_DISABLE", "1")


def _no_gpudirect(wiring: Wiring, effect: Effect, rng: np.random.Generator) -> None:
    wiring.has_gpudirect = False
    wiring.no_gpudirect_why = ("module", "far")[int(rng.integers(2))]


def _shared_memory(wiring: Wiring, effect: Effect, rng: np.random.Generator) -> None:
    wiring.shm_hosts.add(effect.host)
    if rng.random() < 0.5:  # else a container without the other GPUs' IPC: nothing says so
        wiring.set(effect.ranks, "NCCL_P2P_DISABLE", "1")


def _one_nic(wiring: Wiring, effect: Effect, rng: np.random.Generator) -> None:
    wiring.nics = dict.fromkeys(effect.ranks, 0)


def _few_channels(wiring: Wiring, effect: Effect, rng: np.random.Generator) -> None:
    wiring.max_channels = 2
    wiring.set(range(effect.plan.layout.world_size), "NCCL_MAX_NCHANNELS", "2")


def _other_setting(wiring: Wiring, effect: Effect, rng: np.random.Generator) -> None:
    wiring.set(range(effect.plan.layout.world_size), "NCCL_IB_QPS_PER_CONNECTION", "4")
    wiring.set(effect.ranks, "NCCL_IB_QPS_PER_CONNECTION", "1")


def _late(wiring: Wiring, effect: Effect, rng: np.random.Generator) -> None:
    wiring.late_s = {r: ns / 1e9 for r, ns in effect.late_init_ns.items()}


CAUSES: dict[str, Callable[[Wiring, Effect, np.random.Generator], None]] = {
    "nccl-socket-fallback": _sockets,
    "no-gpudirect": _no_gpudirect,
    "shm-instead-of-p2p": _shared_memory,
    "wrong-nic": _one_nic,
    "channel-collapse": _few_channels,
    "config-mismatch": _other_setting,
    "init-straggler": _late,
}
"""What each fault changes; the others show in the topology itself, or not at all."""


def wiring_of(
    plan: Plan, faults: Iterable[tuple[str, Effect]], decoys: Iterable[str] = ()
) -> Wiring:
    """The wiring of a job with these faults."""
    wiring = Wiring()
    everyone = range(plan.layout.world_size)
    wiring.set(everyone, "NCCL_DEBUG", "INFO")
    wiring.set(everyone, "NCCL_SOCKET_IFNAME", "eth0")
    for name, effect in faults:
        if name in CAUSES:
            CAUSES[name](wiring, effect, generator(plan.seed, "nccl", name))
    wiring.is_lazy = bool(generator(plan.seed, "nccl", "connect").random() < 0.5)
    if not wiring.is_lazy:
        wiring.set(everyone, "NCCL_RUNTIME_CONNECT", "0")
    if "missing-gpudirect-lines" in decoys:
        wiring.has_edges = False
    return wiring


class Group(Struct, frozen=True, dict=True):
    """A communicator."""

    role: str
    members: tuple[int, ...]
    ident: str
    index: int
    hosts: tuple[tuple[int, ...], ...]
    """Members by machine."""

    @cached_property
    def _rings(self) -> dict[int, list[int]]:
        return {}

    @cached_property
    def places(self) -> dict[int, int]:
        """Each member's rank in it."""
        return {rank: i for i, rank in enumerate(self.members)}

    def ring(self, channel: int) -> list[int]:
        """Ranks in the order of a channel's ring: each machine is entered at another GPU."""
        ring = self._rings.get(channel)
        if ring is None:
            ring = self._rings[channel] = []
            for members in self.hosts:
                turn = channel % len(members)
                ring += [*members[turn:], *members[:turn]]
        return ring


def groups_of(plan: Plan) -> list[Group]:
    """All communicators, the world's first, in the order in which they are made."""
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}
    for role in plan.layout.roles:
        for rank in range(plan.layout.world_size):
            members = plan.layout.group(rank, role)
            if len(members) > 1 and (role, members) not in groups:
                text = f"{plan.name}/{plan.seed}/{role}/{members}".encode()
                ident = f"0x{zlib.crc32(text):08x}{zlib.adler32(text):08x}"
                by_host: dict[int, list[int]] = {}
                for member in members:
                    by_host.setdefault(plan.topology.host_index(member), []).append(member)
                hosts = tuple(tuple(h) for h in by_host.values())
                groups[role, members] = Group(role, members, ident, len(groups), hosts)
    return list(groups.values())


class Log:
    """The log of one process, which drives one rank."""

    def __init__(
        self, path: Path, plan: Plan, rank: int, wiring: Wiring, groups: Sequence[Group],
        detail: str, host: str,
    ) -> None:  # fmt: skip
        self.path = path
        self.plan = plan
        self.top = plan.topology
        self.rank = rank
        self.wiring = wiring
        self.groups = [g for g in groups if rank in g.members]
        self.detail = detail
        self.host = host
        self.pid = 20_000 + rank
        self.local = self.top.local(rank)
        self._by_key = {(g.role, g.members): g for g in self.groups}
        self._noise = generator(plan.seed, "nccl-times", rank)
        with path.open("w", encoding="ascii") as file:
            file.write("".join(f"{line}\n" for line in self._start()))

    def _say(self, text: str, thread: int = 0) -> str:
        return f"{self.host}:{self.pid}:{self.pid + 300 + thread} [{self.local}] NCCL INFO {text}"

    def _start(self) -> Iterator[str]:
        say = self._say
        address = f"10.0.{self.top.host_index(self.rank)}.1<0>"
        yield say(f"Bootstrap: Using eth0:{address}")
        for name, value in sorted(self.wiring.environment.get(self.rank, {}).items()):
            yield say(f"{name} set by environment to {value}.")
        yield say("cudaDriverVersion 12090")
        if self.rank == 0:
            yield say(f"NCCL version {VERSION}")
        yield say("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.")
        yield from self._network(address)
        for group in self.groups:
            yield from self._group(group)

    def _network(self, address: str) -> Iterator[str]:
        say, wiring, count = self._say, self.wiring, self.top.gpus_per_host
        if wiring.network == "Socket":
            if wiring.no_network_why == "library":
                yield say("Failed to open libibverbs.so[.1]")
            elif wiring.no_network_why == "device":
                yield say("NET/IB : No device found.")
            yield say(f"NET/Socket : Using [0]eth0:{address}")
        else:
            nics = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(count))
            yield say(f"NET/IB : Using {nics} [RO]; OOB eth0:{address}")
            speed = int(self.top.nic_bytes_per_s * 8 / 1e6)
            for i in range(count):
                yield say(f"NET/IB : Made virtual device [{i}] name=mlx5_{i} speed={speed} ndevs=1")
            state = "Disabled" if wiring.no_gpudirect_why == "module" else "Enabled"
            why = " (no module)" if wiring.no_gpudirect_why == "module" else ""
            for i in range(count):
                yield say(f"NET/IB : GPU Direct RDMA {state} for HCA {i} 'mlx5_{i}'{why}")
        yield say(f"Initialized NET plugin {wiring.network}")
        yield say(f"Assigned NET plugin {wiring.network} to comm")
        yield say(f"Using network {wiring.network}")

    # --- a communicator ------------------------------------------------------------------------

    def pointer(self, group: Group) -> str:
        """Its address in this process."""
        return f"0x55b6{self.rank:04x}{group.index:04x}"

    def _group(self, group: Group) -> Iterator[str]:
        say, members = self._say, group.members
        place, size = group.places[self.rank], len(members)
        hosts = group.hosts
        here = next(h for h in hosts if self.rank in h)
        at = self.pointer(group)
        head = (
            f"ncclCommInitRankConfig comm {at} rank {place} nranks {size} cudaDev {self.local} "
            f"nvmlDev {self.local} busId {self._bus(self.local)} commId {group.ident}"
        )
        yield say(f"{head} - Init START")
        waited = self._bootstrap_s(group)
        yield say(
            f"Bootstrap timings total {waited + 0.004:.6f} (create 0.000041, send 0.000165, "
            f"recv {waited:.6f}, ring 0.001200, delay 0.000000)"
        )
        yield say(
            f"comm {at} rank {place} nRanks {size} nNodes {len(hosts)} localRanks {len(here)} "
            f"localRank {here.index(self.rank)} MNNVL 0"
        )
        rings, bandwidth = self._rings(hosts)
        yield from self._topology(here, len(hosts), rings, bandwidth)
        channels = self.channels(hosts)
        yield say(
            f"{channels} coll channels, {channels} collnet channels, 0 nvls channels, "
            f"{channels} p2p channels, 2 p2p channels per peer"
        )
        yield say(f"{head} - Init COMPLETE")
        yield say(
            f"Init timings - ncclCommInitRankConfig: rank {place} nranks {size} total "
            f"{waited + 0.62:.2f} (kernels 0.21, alloc 0.18, bootstrap {waited:.2f}, allgathers "
            f"0.01, topo 0.09, graphs 0.02, connections 0.08, rest 0.03)"
        )
        if self.wiring.has_edges:
            yield from self._edges(group, hosts, channels)
            gdr = int(self.wiring.has_gpudirect)
            pxn = int(len(hosts) > 1 and len(here) > 1)
            yield say(f"Connected all rings, use ring PXN {pxn} GDR {gdr}")

    def _bootstrap_s(self, group: Group) -> float:
        """How long it waits for the others: all for the latest, who waits for nobody."""
        usual = 0.05 + 0.02 * float(self._noise.random())
        if group.role != "world":
            return usual
        latest = max(self.wiring.late_s.values(), default=0.0)
        return usual + latest - self.wiring.late_s.get(self.rank, 0.0)

    @staticmethod
    def _bus(local: int) -> str:
        return f"{0x17 + 0x11 * local:x}000"

    def _rings(self, hosts: Sequence[Sequence[int]]) -> tuple[int, float]:
        """Rings that the search finds, and the bandwidth of each in GB/s."""
        if len(hosts) > 1:
            return min(len(h) for h in hosts), self.top.nic_bytes_per_s / 1e9
        nvlink = self.top.gpu.nvlink_bytes_per_s / 1e9
        return 12, nvlink * 0.8 / 12

    def channels(self, hosts: Sequence[Sequence[int]]) -> int:
        """Channels that a communicator uses."""
        count = 2 * self._rings(hosts)[0]
        most = self.wiring.max_channels
        return count if most is None else min(count, most)

    def _topology(
        self, here: Sequence[int], hosts_count: int, rings: int, bandwidth: float
    ) -> Iterator[str]:
        say = self._say
        has_nvlink = len(here) > 1
        most = self.top.gpu.nvlink_bytes_per_s / 1e9 if has_nvlink else 24.0
        yield say(f"=== System : maxBw {most:.1f} totalBw {most:.1f} ===")
        for rank in here:
            local = self.top.local(rank)
            paths = [
                f"GPU/0-{self._bus(self.top.local(other))} "
                + ("(0/5000.0/LOC)" if other == rank else f"(1/{most:.1f}/NVL)")
                for other in here
            ]
            yield say(f"GPU/0-{self._bus(local)} :{' '.join(paths)} ")
        inside = "NVL" if has_nvlink else "LOC"
        outside = "PIX" if hosts_count > 1 else inside
        yield say(
            f"Pattern 4, crossNic 0, nChannels {rings}, bw {bandwidth:.6f}/{bandwidth:.6f}, type "
            f"{inside}/{outside}, sameChannels 1"
        )
        if self.wiring.no_gpudirect_why == "far" and hosts_count > 1:
            yield say(
                f"GPU Direct RDMA Disabled for GPU {self.rank} / HCA {self.local} (distance 8 > 5)"
            )

    # --- connections ---------------------------------------------------------------------------

    def _edges(self, group: Group, hosts: Sequence[Sequence[int]], channels: int) -> Iterator[str]:
        """Both neighbours in the ring of each channel."""
        place = group.places
        for channel in range(channels):
            ring = group.ring(channel)
            at = ring.index(self.rank)
            before, after = ring[at - 1], ring[(at + 1) % len(ring)]
            for start, end in ((before, self.rank), (self.rank, after)):
                way = self._way(start, end, channel, hosts)
                if way is None:
                    continue
                yield self._say(
                    f"Channel {channel:02d}/0 : {place[start]}[{self.top.local(start)}] -> "
                    f"{place[end]}[{self.top.local(end)}] {way}",
                    int(self.wiring.is_lazy),
                )

    def _way(
        self, start: int, end: int, channel: int, hosts: Sequence[Sequence[int]]
    ) -> str | None:
        """How the line of a connection ends; None where this side prints none."""
        if self.top.host_index(start) == self.top.host_index(end):
            if start != self.rank:
                return None  # within a machine the sender prints
            if self.top.host(start) in self.wiring.shm_hosts:
                return "via SHM/direct/direct"
            return "via P2P/CUMEM/read"
        direction = "send" if start == self.rank else "receive"
        if self.wiring.network == "Socket":
            return f"[{direction}] via NET/Socket/0"
        nic, proxy = self._nic(start, end, channel, hosts)
        direct = "/GDRDMA" if self.wiring.has_gpudirect else ""
        through = f"({proxy})" if proxy is not None and direction == "send" else ""
        return f"[{direction}] via NET/IB/{nic}{through}{direct}"

    def _nic(
        self, start: int, end: int, channel: int, hosts: Sequence[Sequence[int]]
    ) -> tuple[int, int | None]:
        """The device at this side, and the rank whose it is where that is another's (PXN)."""
        if self.rank in self.wiring.nics:
            return self.wiring.nics[self.rank], None
        if start != self.rank:
            return self.top.rail(self.rank), None
        # The ring leaves a machine on the rail on which it enters the next one.
        here = next(h for h in hosts if start in h)
        proxy = here[channel % len(here)]
        place = [r for h in hosts for r in h].index(proxy)
        return self.top.rail(proxy), place if proxy != start else None

    # --- calls ---------------------------------------------------------------------------------

    def add(self, record: StepRecord) -> None:
        """The calls of a step, where they are logged."""
        if self.detail != "coll":
            return
        calls = [o for o in record.operations if isinstance(o.spec, p.Collective)]
        calls.sort(key=lambda o: o.launch)
        with self.path.open("a", encoding="ascii") as file:
            for call in calls:
                spec = call.spec
                name = _CALLS.get(spec.op)
                group = self._by_key.get((spec.role, self.plan.layout.group(self.rank, spec.role)))
                if name is None or group is None:
                    continue
                count, _ = _counts(spec.op, call.size_bytes, spec.dtype, len(group.members))
                if spec.op == "reduce_scatter":
                    count //= len(group.members)
                line = self._say(
                    f"{name}: opCount {call.sequence or 0:x} sendbuff 0x7f0000000000 recvbuff "
                    f"0x7f0000100000 count {count} datatype {_DTYPES[spec.dtype]} op 0 root 0 comm "
                    f"{self.pointer(group)} [nranks={len(group.members)}] stream 0x55b600000007"
                )
                file.write(f"{line}\n")


def _counts(op: str, size_bytes: int, dtype: str, size: int) -> tuple[int, int]:
    """Elements in and out of one rank."""
    elements = size_bytes // p.ELEMENT_BYTES[dtype]
    if op == "all_gather":
        return elements // size, elements
    return (elements, elements // size) if op == "reduce_scatter" else (elements, elements)


class JobOutput:
    """What a job that hangs prints: its watchdogs, ten minutes later."""

    def __init__(self, plan: Plan, names: GroupNames) -> None:
        self.plan = plan
        self.names = names
        self._stuck: dict[int, list[Operation]] = {}

    def add(self, record: StepRecord) -> None:
        """A step of a rank: of a whole one nothing is kept, or it would stay for the next."""
        stuck = [o for o in record.operations if o.transfer is not None and o.end < 0]
        if stuck:
            self._stuck[record.rank] = stuck

    def lines(self) -> Iterator[str]:
        """A time-out and the progress of each rank that waits."""
        for rank, stuck in sorted(self._stuck.items()):
            first = min(stuck, key=lambda o: (o.launch, o.correlation))
            same = [o for o in stuck if o.spec.role == first.spec.role]
            yield from self._rank(rank, first, max(o.sequence or 0 for o in same))

    def _rank(self, rank: int, call: Any, enqueued: int) -> Iterator[str]:
        spec = call.spec
        members = self.plan.layout.group(rank, spec.role)
        is_message = isinstance(spec, p.Message)
        op = ("send" if spec.is_send else "recv") if is_message else spec.op
        count_in, count_out = _counts(op, call.size_bytes, spec.dtype, len(members))
        name = self.names.name(spec.role, members)
        group = (
            f"[PG ID {name} PG GUID {name}({self.plan.layout.description(spec.role)}) Rank "
            f"{members.index(rank)}]"
        )
        number = call.sequence or 0
        yield (
            f"[rank{rank}]:[E721 02:51:{7 + rank % 50:02d}.104 ProcessGroupNCCL.cpp:629] {group} "
            f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, "
            f"OpType={_WATCHDOG_OPS[op]}, NumelIn={count_in}, NumelOut={count_out}, "
            f"Timeout(ms)={TIMEOUT_MS}) ran for {TIMEOUT_MS + 17 + rank} milliseconds before "
            f"timing out."
        )
        yield (
            f"[rank{rank}]:[E721 02:51:{7 + rank % 50:02d}.105 ProcessGroupNCCL.cpp:2168] {group} "
            f"failure detected by watchdog at work sequence id: {number} PG status: last enqueued "
            f"work: {enqueued}, last completed work: {number - 1}"
        )
