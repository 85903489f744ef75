"""Telemetry of twelve ways to use two nodes, as a collector writes it ten times a second.

Written from how such jobs behave (what computes when, what is sent when), with no look at what
detects it: step times that wander, one long step in forty, a warm-up of idle and compiling, a tail,
a gap of each collector, one that starts late, and a clock that is off.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TICK_S = 0.01
INTERVAL_S = 0.1
START_S = 1_784_601_666
NVLINK, PORT, PCIE = 300e9, 45e9, 50e9
"""What a GPU's NVLinks, a port and a GPU's PCIe carry one way, bytes/s."""
LAYOUTS = (
    "dp", "accumulation", "fsdp", "offload", "hsdp", "tp", "tp_pp", "ep_dp", "idle", "split",
    "serving", "mixed",
)  # fmt: skip
GPU_COUNTERS = ("sm", "nvlink_tx", "nvlink_rx", "pcie_tx", "pcie_rx")
HEADERS = {
    "sm": "sm_active_pct", "nvlink_tx": "nvlink_tx_bytes_s", "nvlink_rx": "nvlink_rx_bytes_s",
    "pcie_tx": "pcie_tx_bytes_s", "pcie_rx": "pcie_rx_bytes_s",
}  # fmt: skip


@dataclass
class Truth:
    """What a job does, to judge what is said of it."""

    layout: str
    periods_s: dict[int, float]
    """By node: the mean step; none where nothing repeats."""
    microbatches: int = 1
    offset_s: float = 0.0
    """How far node 1's clock is ahead of node 0's."""
    work_s: tuple[float, float] = (0.0, 0.0)
    """When the work begins and ends, of node 0's clock, after the first reading."""


@dataclass
class Node:
    """What the devices of a node do, each tick."""

    gpus: dict[str, Floats]
    """By counter: a row a GPU."""
    ports: dict[str, Floats]
    """tx and rx: a row a port."""
    rng: np.random.Generator = field(repr=False)

    @classmethod
    def idle(cls, gpus: int, ports: int, ticks: int, rng: np.random.Generator) -> Node:
        return cls(
            {c: np.zeros((gpus, ticks)) for c in GPU_COUNTERS},
            {d: np.zeros((ports, ticks)) for d in ("tx", "rx")},
            rng,
        )


def jobs_steps(step_s: float, span_s: float, rng: np.random.Generator) -> Floats:
    """When steps begin: they wander by a hundredth, and one in forty takes half as long again."""
    count = int(span_s / step_s)
    durs = step_s * (1 + 0.012 * rng.normal(size=count))
    durs[rng.random(count) < 1 / 40] *= 1.5
    edges = np.concatenate([[0.0], np.cumsum(durs)])
    return edges[edges <= span_s]


class Phases:
    """The phase of each tick within its step, 0..1; outside of the work NaN."""

    def __init__(self, begin_s: float, edges: Floats, ticks: int) -> None:
        times = np.arange(ticks) * TICK_S - begin_s
        at = np.searchsorted(edges, times, "right") - 1
        inside = (at >= 0) & (at < len(edges) - 1)
        safe = at.clip(0, len(edges) - 2)
        phase = (times - edges[safe]) / np.diff(edges)[safe]
        self.phase = np.where(inside, phase, np.nan)
        self.step = np.where(inside, at, -1)

    def within(self, low: float, high: float) -> NDArray[np.bool_]:
        return (self.phase >= low) & (self.phase < high)

    def working(self) -> NDArray[np.bool_]:
        return self.step >= 0


def flicker(ticks: int, rng: np.random.Generator, spread: float = 0.1) -> Floats:
    """What layers make of a level: it wanders from one twentieth of a second to the next."""
    coarse = 1 + spread * rng.normal(size=ticks // 5 + 2)
    return np.clip(np.repeat(coarse, 5)[:ticks], 0, None)


def warm_up(node: Node, begin: int, rng: np.random.Generator) -> None:
    """Loading, then bursts of compiling and autotuning as they come, GPU by GPU."""
    at = int(begin * 0.4)
    while at < begin:
        long = int(rng.exponential(1.5) / TICK_S) + 5
        gpu = rng.integers(0, len(node.gpus["sm"]))
        node.gpus["sm"][gpu, at : min(at + long, begin)] = rng.uniform(0.2, 1.0)
        at += int(rng.exponential(1.2) / TICK_S) + 1
    load = slice(int(begin * 0.1), int(begin * 0.3))
    node.gpus["pcie_rx"][:, load] = 4e9


def train(layout: str, nodes: list[Node], phases: Phases, gpus: slice, micro: int) -> None:
    """Let one job run on the GPUs of these nodes."""
    rng = nodes[0].rng
    on = phases.working()
    ticks = len(on)
    for number, node in enumerate(nodes):
        sm, up, down = node.gpus["sm"], node.gpus["nvlink_tx"], node.gpus["nvlink_rx"]
        out, into = node.gpus["pcie_tx"], node.gpus["pcie_rx"]
        level = 0.85 * flicker(ticks, node.rng, 0.05)
        if layout in ("dp", "hsdp", "ep_dp", "split", "mixed"):
            sm[gpus] = np.where(phases.within(0, 0.68), level, np.where(on, 0.35, 0.0))
        elif layout == "accumulation":
            inner = (phases.phase / 0.9 * micro) % 1.0
            busy = phases.within(0, 0.9) & (inner < 0.85)
            sm[gpus] = np.where(busy, level, np.where(on, 0.25, 0.0))
        elif layout in ("fsdp", "tp"):
            sm[gpus] = np.where(phases.within(0, 0.9), level, np.where(on, 0.15, 0.0))
        elif layout == "offload":
            sm[gpus] = np.where(phases.within(0, 0.55), level, 0.0)
            out[gpus] = np.where(phases.within(0.57, 0.72), 0.7 * PCIE, 0.0)
            into[gpus] = np.where(phases.within(0.84, 0.98), 0.7 * PCIE, 0.0)
        elif layout == "tp_pp":
            first = phases.within(0.0, 0.3) | phases.within(0.72, 1.0)
            busy = first if number == 0 else phases.within(0.2, 0.8)
            sm[gpus] = np.where(busy, level, 0.0)
        if layout in ("fsdp", "hsdp", "tp"):
            rate = np.where(phases.within(0, 0.93), 0.3 * NVLINK * flicker(ticks, rng), 0.0)
            up[gpus] = down[gpus] = rate
        elif layout == "tp_pp":
            up[gpus] = down[gpus] = np.where(sm[gpus] > 0.3, 0.35 * NVLINK, 0.0)
        elif layout in ("dp", "split", "mixed"):
            up[gpus] = down[gpus] = np.where(phases.within(0.66, 0.95), 0.3 * NVLINK, 0.0)
        elif layout == "accumulation":
            up[gpus] = down[gpus] = np.where(phases.within(0.88, 0.98), 0.3 * NVLINK, 0.0)
    if len(nodes) < 2:
        return
    one_way = np.zeros(ticks)
    other = np.zeros(ticks)
    if layout in ("dp", "mixed"):
        one_way = np.where(phases.within(0.62, 0.96), 0.6 * PORT, 0.0)
    elif layout == "accumulation":
        one_way = np.where(phases.within(0.87, 0.98), 0.7 * PORT, 0.0)
    elif layout == "hsdp":
        one_way = np.where(phases.within(0.6, 0.92), 0.5 * PORT, 0.0)
    elif layout == "offload":
        one_way = np.where(phases.within(0.3, 0.56), 0.5 * PORT, 0.0)
    elif layout == "fsdp":
        one_way = np.where(phases.within(0, 0.93), 0.55 * PORT * flicker(ticks, rng), 0.0)
    elif layout == "ep_dp":
        one_way = np.where(phases.within(0, 0.66), 0.3 * PORT * flicker(ticks, rng), 0.0)
        one_way = np.where(phases.within(0.66, 0.95), 0.75 * PORT, one_way)
    elif layout == "tp_pp":
        one_way = np.where(phases.within(0.15, 0.31), 0.12 * PORT, 0.0)
        other = np.where(phases.within(0.68, 0.84), 0.12 * PORT, 0.0)
    if layout != "tp_pp":
        # Rings go both ways; what a step sends differs a little from the next.
        one_way = one_way * (1 + 0.05 * rng.normal(size=phases.step.max() + 2))[phases.step]
        other = one_way
    for sender, receiver, rate in ((0, 1, one_way), (1, 0, other)):
        nodes[sender].ports["tx"] += rate
        nodes[receiver].ports["rx"] += rate


def serve(node: Node, on: NDArray[np.bool_]) -> None:
    """Requests as they come; a batch takes as long as its longest answer."""
    rng, ticks = node.rng, len(on)
    for gpu in range(len(node.gpus["sm"])):
        at = 0
        while at < ticks:
            at += int(rng.exponential(0.8) / TICK_S) + 1
            long = int(rng.gamma(2.0, 0.8) / TICK_S) + 5
            node.gpus["sm"][gpu, at : at + long] = rng.uniform(0.3, 0.7)
            node.gpus["pcie_rx"][gpu, at : at + 3] = 2e9
            at += long
        node.gpus["sm"][gpu] *= on


def make(
    layout: str,
    folder: Path,
    seed: int,
    *,
    gpus: int = 4,
    ports: int = 4,
    span_s: float = 200.0,
    step_s: float | None = None,
) -> Truth:
    """Write the files of one job; its truth. ``step_s``: how long a step is; drawn otherwise."""
    rng = np.random.default_rng([seed, LAYOUTS.index(layout)])
    drawn_s = float(rng.uniform(0.9, 3.6))
    step_s = drawn_s if step_s is None else step_s
    begin_s, end_s = float(rng.uniform(20, 70)), float(rng.uniform(5, 15))
    ticks = int((begin_s + span_s + end_s) / TICK_S)
    count = 1 if layout == "tp" else 2
    nodes = [
        Node.idle(gpus, ports, ticks, np.random.default_rng([seed, LAYOUTS.index(layout), n]))
        for n in range(count)
    ]
    truth = Truth(layout, {}, work_s=(begin_s, begin_s + span_s))
    truth.offset_s = float(rng.uniform(-2.5, 2.5)) if count == 2 else 0.0
    half = slice(0, gpus // 2) if layout == "split" else slice(0, gpus)
    jobs = [[n] for n in nodes] if layout in ("mixed", "split") else [nodes]
    if layout not in ("idle", "serving"):
        for at, job in enumerate(jobs):
            own_s = step_s if at == 0 or layout != "mixed" else step_s * rng.uniform(1.15, 1.7)
            edges = jobs_steps(own_s, span_s, rng)
            for node in job:
                warm_up(node, int(begin_s / TICK_S), node.rng)
            micro = int(rng.integers(3, 9)) if layout == "accumulation" else 1
            train(layout, job, Phases(begin_s, edges, ticks), half, micro)
            truth.microbatches = micro
            for node in job:
                number = next(i for i, n in enumerate(nodes) if n is node)
                truth.periods_s[number] = float(np.median(np.diff(edges)))
    elif layout == "serving":
        times = np.arange(ticks) * TICK_S
        for node in nodes:
            serve(node, (times > begin_s) & (times < begin_s + span_s))
    for number, node in enumerate(nodes):
        ahead_s = truth.offset_s if number else 0.0
        late_s = float(rng.uniform(5, 25)) if number else 0.0
        _write(node, folder, number, ahead_s, late_s)
    return truth


def _write(node: Node, folder: Path, number: int, ahead_s: float, late_s: float) -> None:
    rng = node.rng
    ticks = node.gpus["sm"].shape[1]
    power = np.empty_like(node.gpus["sm"])
    smooth = np.exp(-np.arange(60) * TICK_S / 0.12)
    for gpu, row in enumerate(node.gpus["sm"]):
        kernel = smooth / smooth.sum()
        power[gpu] = 120 + 560 * np.convolve(row, kernel)[:ticks]
    times = np.arange(late_s + INTERVAL_S, ticks * TICK_S - INTERVAL_S, INTERVAL_S)
    times = times + np.abs(rng.normal(0, 0.002, len(times)))
    gap_s = float(rng.uniform(0.3, 0.8)) * ticks * TICK_S
    times = times[(times < gap_s) | (times > gap_s + rng.uniform(2, 6))]
    at = times / TICK_S

    def mean(rows: Floats) -> Floats:
        sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
        place = np.arange(sums.shape[1])
        ends = np.array([np.interp(at, place, s) for s in sums])
        begins = np.array([np.interp(at - INTERVAL_S / TICK_S, place, s) for s in sums])
        return np.asarray((ends - begins) * TICK_S / INTERVAL_S)

    stamps = [f"{START_S + t + ahead_s:.3f}" for t in times.tolist()]
    names, columns = [], []
    for counter, header in HEADERS.items():
        read = mean(node.gpus[counter])
        scale = 100.0 if counter == "sm" else 1.0
        noise = 0.004 * scale if counter == "sm" else 3e7
        read = np.clip(scale * read + noise * rng.normal(size=read.shape), 0, None)
        for gpu, row in enumerate(read):
            names.append(f"gpu{gpu}_{header}")
            columns.append([f"{v:.2f}" if counter == "sm" else f"{v:.0f}" for v in row])
    for gpu, row in enumerate(power):
        names.append(f"gpu{gpu}_power_w")
        shown = row[at.astype(int)] + 4 * rng.normal(size=len(at))
        columns.append([f"{v:.1f}" for v in shown])
    _csv(folder / f"node{number}_gpu.csv", stamps, names, columns)
    names, columns = [], []
    for way in ("tx", "rx"):
        read = mean(node.ports[way])
        for port, row in enumerate(read):
            names.append(f"ib{port}_{way}_bytes_s")
            columns.append([f"{max(v + 2e6 * rng.normal() + 1e6, 0):.0f}" for v in row])
    _csv(folder / f"node{number}_ib.csv", stamps, names, columns)


def _csv(path: Path, stamps: list[str], names: list[str], columns: list[list[str]]) -> None:
    lines = [",".join(["timestamp", *names])]
    lines += [",".join(cells) for cells in zip(stamps, *columns, strict=True)]
    path.write_text("\n".join(lines) + "\n")
