"""Telemetry of jobs whose devices work through queues, as a collector of its own pace writes it.

Nothing here is a wave: each rank is a program (and, where it overlaps, a second one for its
communication) that asks for work and for exchanges; an exchange begins when its last member has
come, and lasts as long as its bytes and its links say. Ports count words of four bytes, shares are
whole percent, power lags; a collector's ticks come late, are lost, stop for a while, begin late on
one node, and its clock is off and drifts. What is true of a job is measured in what its devices did
and not in what was written.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LAYOUTS = (
    "dp", "accumulation", "fsdp", "offload", "hsdp", "tp", "tp_pp", "ep_dp", "idle", "split",
    "serving", "mixed",
)  # fmt: skip
START_S = 1_790_000_000.0
NVLINK, PORT, PCIE = 150e9, 22e9, 24e9
"""What reaches the application one way, bytes/s."""
WAITING = 0.14
"""SM activity of a communication kernel that spins."""


class Work(NamedTuple):
    """Compute for some time."""

    seconds: float
    level: float


class Copy(NamedTuple):
    """Bytes between the host and the GPU, while SMs are idle."""

    bytes: float
    into: bool


class Meet(NamedTuple):
    """An exchange among members; each of them sends and receives so many bytes."""

    name: tuple[object, ...]
    members_count: int
    nvlink_bytes: float
    port_bytes: float
    """Of the GPU's own port."""
    receives: tuple[bool, bool] = (True, True)
    """Whether this one sends, and whether it receives."""


class Tell(NamedTuple):
    """Let others of the name go on."""

    name: tuple[object, ...]


class Until(NamedTuple):
    """Wait for that without a kernel."""

    name: tuple[object, ...]


class Step(NamedTuple):
    """A step begins here."""


Asked = Work | Copy | Meet | Tell | Until | Step
Program = Generator[Asked, None, None]
Rank = tuple[int, int]
"""Node, GPU."""


class Channel:
    """What one device did of one thing: pieces with a rate, which may overlap."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, float, float]] = []

    def add(self, start: float, end: float, rate: float) -> None:
        if end > start:
            self.pieces.append((start, end, rate))

    def total(self) -> Callable[[Floats], Floats]:
        """What has come together up to a moment."""
        if not self.pieces:
            return lambda at: np.zeros(len(at))
        rows = np.array(self.pieces)
        edges = np.concatenate([rows[:, 0], rows[:, 1]])
        change = np.concatenate([rows[:, 2], -rows[:, 2]])
        order = np.argsort(edges, kind="stable")
        edges, rate = edges[order], np.cumsum(change[order])
        sums = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(edges))])
        return lambda at: np.interp(at, edges, sums)

    def mean(self, at: Floats, width: float) -> Floats:
        """The mean of the time before each moment."""
        total = self.total()
        return (total(at) - total(at - width)) / width


@dataclass
class Cluster:
    """Its channels, and the queue of what happens next."""

    rng: np.random.Generator
    channels: dict[tuple[int, str, int], Channel] = field(
        default_factory=lambda: defaultdict(Channel)
    )
    """By node, counter and number."""
    steps: dict[Rank, list[float]] = field(default_factory=lambda: defaultdict(list))
    _queue: list[tuple[float, int, Program, Rank]] = field(default_factory=list)
    _met: dict[tuple[object, ...], list[tuple[float, Program, Rank, Meet]]] = field(
        default_factory=dict
    )
    _told: dict[tuple[object, ...], int] = field(default_factory=lambda: defaultdict(int))
    _until: dict[tuple[object, ...], list[tuple[float, Program, Rank]]] = field(
        default_factory=dict
    )
    _count: int = 0

    def start(self, at: float, program: Program, rank: Rank) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at, self._count, program, rank))

    def run(self, end: float) -> None:
        """Let everything happen until then; who waits at the end waits."""
        while self._queue:
            now, _, program, rank = heapq.heappop(self._queue)
            if now < end:
                self._next(now, program, rank)

    def add(self, rank: Rank, counter: str, start: float, end: float, rate: float) -> None:
        self.channels[rank[0], counter, rank[1]].add(start, end, rate)

    def _next(self, now: float, program: Program, rank: Rank) -> None:
        asked = next(program, None)
        if isinstance(asked, Work):
            end = now + asked.seconds * float(np.exp(0.03 * self.rng.normal()))
            self.add(rank, "sm", now, end, asked.level * self.rng.uniform(0.92, 1.0))
            self.start(end, program, rank)
        elif isinstance(asked, Copy):
            end = now + asked.bytes / PCIE * self.rng.uniform(1.0, 1.1)
            name = "pcie_rx" if asked.into else "pcie_tx"
            self.add(rank, name, now, end, asked.bytes / (end - now))
            self.start(end, program, rank)
        elif isinstance(asked, Meet):
            self._meet(now, program, rank, asked)
        elif isinstance(asked, Tell):
            self._told[asked.name] += 1
            for since, waiting, other in self._until.pop(asked.name, []):
                self.start(max(since, now), waiting, other)
            self.start(now, program, rank)
        elif isinstance(asked, Until):
            if self._told[asked.name]:
                self.start(now, program, rank)
            else:
                self._until.setdefault(asked.name, []).append((now, program, rank))
        elif isinstance(asked, Step):
            self.steps[rank].append(now)
            self.start(now, program, rank)

    def _meet(self, now: float, program: Program, rank: Rank, asked: Meet) -> None:
        come = self._met.setdefault(asked.name, [])
        come.append((now, program, rank, asked))
        if len(come) < asked.members_count:
            return
        del self._met[asked.name]
        slowest = max(max(m.nvlink_bytes / NVLINK, m.port_bytes / PORT) for _, _, _, m in come)
        end = now + 40e-6 + slowest * self.rng.uniform(1.0, 1.12)
        for since, waiting, other, meet in come:
            self.add(other, "sm", since, end, WAITING)
            for link, amount in (("nvlink", meet.nvlink_bytes), ("port", meet.port_bytes)):
                for way, does in zip(("tx", "rx"), meet.receives, strict=True):
                    if does and amount:
                        self.add(other, f"{link}_{way}", now, end, amount / (end - now))
            self.start(end, waiting, other)


# --- what the ranks of each layout do -------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One job on some GPUs."""

    layout: str
    name: str
    ranks: tuple[Rank, ...]
    step_s: float
    """About how long a step is."""
    layers: int
    microbatches: int
    pauses: frozenset[int]
    """Steps before which it stops for a checkpoint or an evaluation."""
    pause_s: float

    @property
    def nodes(self) -> int:
        return len({node for node, _ in self.ranks})


def begins(job: Job, at: int, number: int) -> Iterator[Asked]:
    """What comes before a step: the first are slow, a few wait for a checkpoint."""
    if number in job.pauses:
        yield Meet((job.name, at, "pause"), len(job.ranks), 1e3, 0.0)
        yield Work(job.pause_s, 0.0)
    yield Step()


def bucketed(job: Job, rank: Rank, share: float, nvlink: bool) -> Program:
    """The second queue of a rank: gradients of each layer, when the backward pass has them."""
    at = 0
    across = share * job.step_s * PORT / job.layers if job.nodes > 1 else 0.0
    within = share * job.step_s * NVLINK / job.layers if nvlink else 0.0
    while True:
        for layer in range(job.layers):
            yield Until((job.name, rank, at, "gradient", layer))
            yield Meet((job.name, at, "reduce", layer), len(job.ranks), within, across)
        yield Tell((job.name, rank, at, "reduced"))
        at += 1


def data_parallel(job: Job, rank: Rank) -> Program:
    """Forward, backward with overlapped gradients, optimizer; microbatches before the last one."""
    at = 0
    piece = job.step_s / job.microbatches * 0.62 / job.layers
    while True:
        yield from begins(job, at, at)
        slow = 3.0 if at < 3 else 1.0
        for micro in range(job.microbatches):
            for _ in range(job.layers):
                yield Work(slow * piece / 3, 0.9)
            for layer in range(job.layers):
                yield Work(slow * piece * 2 / 3, 0.95)
                if micro == job.microbatches - 1:
                    yield Tell((job.name, rank, at, "gradient", layer))
            yield Work(0.02 * job.step_s / job.microbatches, 0.05)
        yield Until((job.name, rank, at, "reduced"))
        yield Work(0.06 * job.step_s, 0.55)
        at += 1


def sharded(job: Job, rank: Rank) -> Program:
    """FSDP or HSDP: parameters of each layer are gathered before it, gradients scattered behind."""
    at = 0
    is_hybrid = job.layout == "hsdp"
    count = len(job.ranks) if not is_hybrid else len({g for n, g in job.ranks})
    group = () if not is_hybrid else (rank[0],)
    piece = job.step_s * (0.62 if is_hybrid else 0.7) / job.layers / 3
    within = 0.5 * piece * NVLINK
    across = 0.0 if is_hybrid else 0.75 * piece * PORT
    while True:
        yield from begins(job, at, at)
        slow = 3.0 if at < 3 else 1.0
        for way, parts in (("forward", 1), ("backward", 2)):
            for layer in range(job.layers):
                yield Meet((job.name, at, way, layer, *group), count, within, across)
                yield Work(slow * piece * parts, 0.9)
                if parts == 2:
                    yield Meet((job.name, at, "scatter", layer, *group), count, within, across)
                    if is_hybrid:
                        yield Tell((job.name, rank, at, "gradient", layer))
        if is_hybrid:
            yield Until((job.name, rank, at, "reduced"))
        yield Work(0.07 * job.step_s, 0.5)
        at += 1


def offloaded(job: Job, rank: Rank) -> Program:
    """Gradients go to the host, whose optimizer works, and parameters come back."""
    at = 0
    piece = job.step_s * 0.5 / job.layers
    moved = 0.16 * job.step_s * PCIE
    while True:
        yield from begins(job, at, at)
        slow = 3.0 if at < 3 else 1.0
        for _ in range(job.layers):
            yield Work(slow * piece / 3, 0.9)
        for layer in range(job.layers):
            yield Work(slow * piece * 2 / 3, 0.95)
            yield Tell((job.name, rank, at, "gradient", layer))
        yield Until((job.name, rank, at, "reduced"))
        yield Copy(moved, into=False)
        yield Work(0.1 * job.step_s, 0.0)
        yield Copy(moved, into=True)
        at += 1


def tensor_parallel(job: Job, rank: Rank) -> Program:
    """All-reduces within the node twice a layer, forward and backward."""
    at = 0
    piece = job.step_s * 0.6 / job.layers / 6
    count = len(job.ranks)
    while True:
        yield from begins(job, at, at)
        slow = 3.0 if at < 3 else 1.0
        for way, parts in (("forward", 1), ("backward", 2)):
            for layer in range(job.layers):
                for half in range(2):
                    yield Work(slow * piece * parts, 0.9)
                    yield Meet((job.name, at, way, layer, half), count, 0.5 * piece * NVLINK, 0.0)
        yield Work(0.06 * job.step_s, 0.5)
        at += 1


def pipelined(job: Job, rank: Rank) -> Program:
    """Two stages, one a node, all microbatches forward and then backward; tensors split within."""
    node, gpu = rank
    at = 0
    count = len({g for _, g in job.ranks})
    piece = job.step_s * 0.8 / (job.microbatches + 1) / 3
    while True:
        yield from begins(job, at, at)
        for way, parts, first in (("forward", 1, 0), ("backward", 2, 1)):
            for micro in range(job.microbatches):
                handed = (job.name, at, way, micro, gpu)
                if node != first:
                    yield Until(("come", *handed))
                for part in range(4):
                    yield Work(parts * piece * 0.7 / 4, 0.9)
                    name = (job.name, at, way, micro, part, node)
                    yield Meet(name, count, 0.06 * piece * NVLINK, 0.0)
                if node == first:
                    yield Tell(("to send", *handed))
        yield Meet((job.name, at, "end"), len(job.ranks), 1e3, 1e3)
        yield Work(0.05 * job.step_s, 0.5)
        at += 1


def handing_on(job: Job, rank: Rank) -> Program:
    """The second queue of a stage: activations forward, their gradients backward."""
    node, gpu = rank
    at = 0
    small = 0.04 * job.step_s / (job.microbatches + 1) * PORT
    while True:
        for way, first in (("forward", 0), ("backward", 1)):
            for micro in range(job.microbatches):
                handed = (job.name, at, way, micro, gpu)
                if node == first:
                    yield Until(("to send", *handed))
                yield Meet(("moved", *handed), 2, 0.0, small, (node == first, node != first))
                yield Tell(("come", *handed))
        at += 1


def experts(job: Job, rank: Rank) -> Program:
    """Tokens to experts of all nodes and back, in each layer, and gradients at the end."""
    at = 0
    piece = job.step_s * 0.5 / job.layers / 3
    count = len(job.ranks)
    while True:
        yield from begins(job, at, at)
        slow = 3.0 if at < 3 else 1.0
        for way, parts in (("forward", 1), ("backward", 2)):
            for layer in range(job.layers):
                yield Work(slow * piece * parts * 0.6, 0.9)
                yield Meet((job.name, at, way, layer, 0), count, 0.0, 0.3 * parts * piece * PORT)
                yield Work(slow * piece * parts * 0.4, 0.85)
                yield Meet((job.name, at, way, layer, 1), count, 0.0, 0.3 * parts * piece * PORT)
        yield Meet((job.name, at, "reduce"), count, 0.0, 0.12 * job.step_s * PORT)
        yield Work(0.05 * job.step_s, 0.5)
        at += 1


def serving(cluster: Cluster, rank: Rank) -> Program:
    """Batches of requests: a long prefill, then tokens until the longest answer is done."""
    rng = cluster.rng
    while True:
        yield Work(float(rng.exponential(0.7)), 0.0)
        yield Copy(float(rng.uniform(1e6, 4e7)), into=True)
        yield Work(float(rng.uniform(0.05, 0.4)), 0.9)
        yield Work(float(rng.gamma(2.0, 0.9)), float(rng.uniform(0.2, 0.5)))


def warm_up(cluster: Cluster, rank: Rank, until: float) -> None:
    """Weights are loaded, then kernels are compiled and tried, on each GPU as it comes."""
    rng = cluster.rng
    now = float(rng.uniform(0.05, 0.15)) * until
    load = float(rng.uniform(0.1, 0.3)) * until
    cluster.add(rank, "pcie_rx", now, now + load, float(rng.uniform(2e9, 6e9)))
    now += load
    while True:
        now += float(rng.lognormal(-0.3, 0.8))
        end = now + float(rng.lognormal(-1.2, 1.0))
        if end > until:
            return
        cluster.add(rank, "sm", now, end, float(rng.uniform(0.2, 1.0)))
        now = end


PROGRAMS: dict[str, Callable[[Job, Rank], Program]] = {
    "dp": data_parallel, "accumulation": data_parallel, "fsdp": sharded, "hsdp": sharded,
    "offload": offloaded, "tp": tensor_parallel, "tp_pp": pipelined, "ep_dp": experts,
    "split": data_parallel, "mixed": data_parallel,
}  # fmt: skip
PARTS = 12
"""Of a step, in which traffic is told: what comes in every layer flows all through it."""
SHARES = {"dp": 0.3, "split": 0.25, "mixed": 0.3, "accumulation": 0.1, "hsdp": 0.28,
          "offload": 0.2}  # fmt: skip
"""Of a step: how long its gradients take to reduce, overlapped or not."""


@dataclass
class Truth:
    """A job as it was, to judge what is said of it."""

    layout: str
    periods_s: tuple[float, ...]
    """The median step of each job; none where nothing repeats."""
    microbatches: int
    offset_s: float
    """How far node 1's clock is ahead of node 0's in the middle."""
    cluster: Cluster = field(repr=False)
    gpus: int = 4
    nodes: int = 2
    work_s: tuple[float, float] = (0.0, 0.0)

    def steps(self, rank: Rank) -> Floats:
        """When the steps of a rank began."""
        return np.array(self.cluster.steps.get(rank, []))

    def most_ratio(self, counter: str, node: int, most: float = 0.8) -> float:
        """Share of the mean step that holds most of what a node's devices moved."""
        starts = self.steps((node, 0))
        durs = np.diff(starts)
        usual = np.flatnonzero(durs <= 1.3 * np.median(durs))
        phase = np.linspace(0, 1, PARTS + 1)
        moments = starts[usual, None] + phase * durs[usual, None]
        moved = np.zeros(PARTS)
        for (at, name, _), channel in self.cluster.channels.items():
            if at == node and name in (f"{counter}_tx", f"{counter}_rx"):
                total = channel.total()
                moved += np.diff(total(moments.ravel()).reshape(moments.shape)).sum(axis=0)
        assert moved.sum() > 0
        filled = np.cumsum(np.sort(moved)[::-1]) / moved.sum()
        full = int(np.searchsorted(filled, most))
        before = float(filled[full - 1]) if full else 0.0
        return float(full + (most - before) / max(float(filled[full]) - before, 1e-9)) / PARTS

    def rate(self, counter: str, node: int) -> float:
        """Mean bytes/s of a node, both ways, while it works."""
        low, high = self.work_s
        ends = np.array([low, high])
        return float(
            sum(
                np.diff(channel.total()(ends))[0]
                for (at, name, _), channel in self.cluster.channels.items()
                if at == node and name in (f"{counter}_tx", f"{counter}_rx")
            )
            / (high - low)
        )

    def busy(self, node: int, gpu: int, width: float = 0.1) -> Floats:
        """SM activity through the work."""
        at = np.arange(self.work_s[0], self.work_s[1], width)
        return self.cluster.channels[node, "sm", gpu].mean(at, width)

    def idle_copies(self, node: int, gpu: int) -> float:
        """Share of PCIe bytes, of the work, that move while SMs are idle."""
        at = np.arange(self.work_s[0], self.work_s[1], 0.1)
        moved = sum(
            self.cluster.channels[node, f"pcie_{way}", gpu].mean(at, 0.1) for way in ("tx", "rx")
        )
        idle = self.busy(node, gpu) < 0.2
        return float(np.sum(moved * idle) / max(np.sum(moved), 1e-9))


def make(
    layout: str, folder: Path, seed: int, *, step_s: float | None = None, span_s: float = 200.0,
    interval_s: float = 0.1, gpus: int = 4,
) -> Truth:  # fmt: skip
    """Run a job and write what its collectors read; its truth."""
    rng = np.random.default_rng([77, seed, LAYOUTS.index(layout)])
    cluster = Cluster(rng)
    begin, tail = float(rng.uniform(25, 75)), float(rng.uniform(4, 14))
    end = begin + span_s
    nodes = 1 if layout == "tp" else 2
    ranks = [(node, gpu) for node in range(nodes) for gpu in range(gpus)]
    jobs: list[Job] = []
    if layout == "serving":
        for rank in ranks:
            cluster.start(begin, serving(cluster, rank), rank)
    elif layout != "idle":
        own_s = float(np.exp(rng.uniform(np.log(0.8), np.log(3.8)))) if step_s is None else step_s
        whose = [[r for r in ranks if layout != "split" or (r[0] == 0 and r[1] < gpus // 2)]]
        if layout == "mixed":
            whose = [[r for r in ranks if r[0] == node] for node in range(nodes)]
        for at, members in enumerate(whose):
            long_s = own_s * (float(rng.uniform(1.2, 1.8)) if at else 1.0)
            micro = int(rng.integers(4, 9)) if layout in ("accumulation",) else 1
            micro = int(rng.integers(2, 5)) if layout == "tp_pp" else micro
            first = int(rng.integers(12, 20))
            pauses = {first + i * int(rng.integers(30, 60)) for i in range(2)}
            jobs.append(Job(layout, f"job {at}", tuple(members), long_s, int(rng.integers(6, 17)),
                            micro, frozenset(pauses), float(rng.uniform(1, 7))))  # fmt: skip
    for job in jobs:
        for rank in job.ranks:
            warm_up(cluster, rank, begin)
            late = float(rng.uniform(0, 0.2))
            cluster.start(begin + late, PROGRAMS[layout](job, rank), rank)
            if layout in SHARES:
                nvlink = layout != "hsdp" and layout != "offload"
                cluster.start(begin, bucketed(job, rank, SHARES[layout], nvlink), rank)
            if layout == "tp_pp":
                cluster.start(begin, handing_on(job, rank), rank)
    cluster.run(end)
    cut = {
        key: [(a, min(b, end), r) for a, b, r in channel.pieces if a < end]
        for key, channel in cluster.channels.items()
    }
    for key, pieces in cut.items():
        cluster.channels[key].pieces = pieces
    offset_s = float(rng.uniform(-2.5, 2.5)) if nodes > 1 else 0.0
    periods = tuple(float(np.median(np.diff(cluster.steps[job.ranks[0]]))) for job in jobs)
    truth = Truth(layout, periods, jobs[0].microbatches if jobs else 1, offset_s, cluster, gpus,
                  nodes, (begin, end))  # fmt: skip
    for node in range(nodes):
        _collect(truth, folder, node, end + tail, interval_s, rng)
    return truth


# --- what collectors write ------------------------------------------------------------------------


def _moments(begin: float, end: float, interval: float, rng: np.random.Generator) -> Floats:
    """When a collector reads: late by a little, sometimes by much, and not at all for a while."""
    planned = np.arange(begin, end, interval * float(rng.uniform(0.998, 1.002)))
    late = rng.gamma(1.0, 0.02 * interval, len(planned))
    stalls = rng.random(len(planned)) < 0.005
    late[stalls] += interval * rng.uniform(0.5, 2.5, int(stalls.sum()))
    moments = planned + late
    # Who is late has no time for the reading that was due meanwhile.
    moments = moments[
        np.concatenate([[True], np.diff(np.maximum.accumulate(moments)) > 0.3 * interval])
    ]
    gap = float(rng.uniform(0.25, 0.85)) * end
    is_read: NDArray[np.bool_] = (moments < gap) | (moments > gap + float(rng.uniform(2, 7)))
    return np.asarray(moments[is_read])


def _collect(
    truth: Truth, folder: Path, node: int, end: float, interval: float, rng: np.random.Generator
) -> None:
    begin = 0.3 + (float(rng.uniform(4, 24)) if node else 0.0)
    drift = float(rng.uniform(-20e-6, 20e-6))
    for what in ("gpu", "ib"):
        at = _moments(begin + float(rng.uniform(0, interval)), end, interval, rng)
        ahead = (truth.offset_s if node else 0.0) + drift * (at - end / 2)
        stamps = START_S + at + ahead
        columns = (_of_gpus if what == "gpu" else _of_ports)(truth, node, at, interval, rng)
        lines = [",".join(["timestamp", *columns])]
        cells = [np.char.mod("%.3f", stamps).tolist(), *columns.values()]
        lines += [",".join(row) for row in zip(*cells, strict=True)]
        (folder / f"{what}_node{node}.csv").write_text("\n".join(lines) + "\n")


def _of_gpus(
    truth: Truth, node: int, at: Floats, interval: float, rng: np.random.Generator
) -> dict[str, list[str]]:
    columns = {}
    for gpu in range(truth.gpus):
        behind = at - float(rng.uniform(0, 0.3)) * interval
        active = truth.cluster.channels[node, "sm", gpu].mean(behind, interval)
        columns[f"gpu{gpu}_sm_active_pct"] = _whole(np.clip(100 * active, 0, 100))
        # The sensor averages by itself, and draws what it draws.
        drawn = truth.cluster.channels[node, "sm", gpu].mean(behind, 1.5 * 0.1)
        board = float(rng.uniform(0.985, 1.015))
        columns[f"gpu{gpu}_power_w"] = _whole(
            board * (95 + 560 * drawn) + rng.normal(0, 3, len(at))
        )
        for counter in ("nvlink_tx", "nvlink_rx", "pcie_tx", "pcie_rx"):
            rate = truth.cluster.channels[node, counter, gpu].mean(behind, interval)
            columns[f"gpu{gpu}_{counter}_mb_s"] = _whole(rate / 1e6 + rng.exponential(3, len(at)))
    return columns


def _of_ports(
    truth: Truth, node: int, at: Floats, interval: float, rng: np.random.Generator
) -> dict[str, list[str]]:
    columns = {}
    for gpu in range(truth.gpus):
        for way in ("tx", "rx"):
            total = truth.cluster.channels[node, f"port_{way}", gpu].total()(at)
            # Subnet management and ssh, beside a counter that began long ago.
            total = total + float(rng.uniform(0, 1e15)) + 3e5 * at
            columns[f"mlx5_{gpu}_{way}_bytes"] = np.char.mod(
                "%d", (total // 4 * 4).astype(np.int64)
            ).tolist()
    return columns


def _whole(values: Floats) -> list[str]:
    return [str(value) for value in np.rint(values).astype(np.int64).tolist()]
