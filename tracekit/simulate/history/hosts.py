"""What hosts counted in the job's days, in the files that ``tracekit capture`` collects.

Pressure, a control group's quota and disks as the kernel has them, vmstat's table; each host's
readings on its own clock, which is a little off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tracekit.simulate.history.draft import Draft, Floats, SlowDisk
from tracekit.simulate.history.lines import rfc3339
from tracekit.simulate.history.timeline import Timeline
from tracekit.simulate.noise import generator

FOLDER = "tracekit-capture"
GROUP = "/sys/fs/cgroup/job.slice/cpu.stat"
PERIODS_PER_S = 10
_USUAL = {"cpu": 0.06, "memory": 0.001, "io": 0.01, "quota": 0.002, "busy": 0.45}
_PSI = ("cpu", "io", "memory")


def write_hosts(draft: Draft, times: Timeline, seed: int, epoch_ns: int, interval_s: float,
                output: Path) -> dict[str, float]:  # fmt: skip
    """Files of all hosts; by host what its clock is ahead, in seconds."""
    ahead: dict[str, float] = {}
    for host in (*draft.hosts, *draft.strangers):
        rng = generator(seed, "history", "host", host)
        ahead[host] = float(rng.normal(0, 0.2))
        folder = output / FOLDER / host
        folder.mkdir(parents=True, exist_ok=True)
        ends_s = np.arange(float(rng.uniform(1, interval_s)), times.end_s[-1], interval_s)
        stamps = [epoch_ns + round((t + ahead[host]) * 1e9) for t in ends_s.tolist()]
        shares = {name: _share(draft, times, host, name, ends_s, rng) for name in _USUAL}
        (folder / "pressure.txt").write_text("".join(_pressure(stamps, shares, interval_s)))
        slow = [d for d in draft.disks if d.host == host]
        disk = _disk(times, slow, ends_s, interval_s, rng)
        (folder / "storage.txt").write_text("".join(_diskstats(stamps, disk)))
        (folder / "vmstat.txt").write_text("".join(_vmstat(stamps, shares)))
    return ahead


def _share(draft: Draft, times: Timeline, host: str, name: str, ends_s: Floats,
           rng: np.random.Generator) -> Floats:  # fmt: skip
    """Share of each interval in which tasks waited (busy: in which CPUs were in use)."""
    usual = _USUAL[name] * float(rng.uniform(0.5, 1.5))
    share = usual * rng.uniform(0.7, 1.3, len(ends_s))
    for pressure in draft.pressures:
        if pressure.host != host or pressure.resource != name:
            continue
        begin_s, end_s = times.when(pressure.first_step, pressure.last_step)
        began_s = np.concatenate([[0.0], ends_s[:-1]])
        inside_s = np.minimum(ends_s, end_s) - np.maximum(began_s, begin_s)
        inside = np.clip(inside_s / np.maximum(ends_s - began_s, 1e-9), 0, 1)
        level = pressure.ratio * rng.uniform(0.95, 1.03, len(ends_s))
        share = share * (1 - inside) + np.minimum(level, 0.99) * inside
    return np.asarray(share, float)


def _pressure(stamps: Sequence[int], shares: dict[str, Floats], interval_s: float) -> Iterator[str]:
    totals = {n: np.cumsum(shares[n] * interval_s * 1e6).astype(int).tolist() for n in _PSI}
    periods = round(PERIODS_PER_S * interval_s)
    throttled = np.cumsum(np.rint(shares["quota"] * periods)).astype(int).tolist()
    for at, stamp in enumerate(stamps):
        lines = [rfc3339(stamp)]
        for name in _PSI:
            average = f"{100 * shares[name][at]:.2f}"
            words = f"avg10={average} avg60={average} avg300={average}"
            lines.append(f"/proc/pressure/{name}:some {words} total={totals[name][at]}")
            if name != "cpu":
                full = totals[name][at] // 2
                lines.append(f"/proc/pressure/{name}:full {words} total={full}")
        lines += [
            f"{GROUP}:nr_periods {periods * (at + 1)}",
            f"{GROUP}:nr_throttled {throttled[at]}",
            f"{GROUP}:throttled_usec {throttled[at] * 30_000}",
        ]
        yield "\n".join(lines) + "\n"


def _disk(times: Timeline, slow: Sequence[SlowDisk], ends_s: Floats, interval_s: float,
          rng: np.random.Generator) -> dict[str, list[int]]:  # fmt: skip
    """Running counts of the disk with the data: reads, their sectors and milliseconds."""
    reads = rng.poisson(40 * interval_s, len(ends_s)).astype(float)
    await_ms = 0.6 * rng.uniform(0.8, 1.2, len(ends_s))
    for disk in slow:
        begin_s, end_s = times.when(disk.first_step, disk.last_step)
        await_ms = np.where(
            (ends_s > begin_s) & (ends_s <= end_s), await_ms * disk.factor, await_ms
        )
    return {
        "reads": np.cumsum(reads).astype(int).tolist(),
        "sectors": np.cumsum(reads * 512).astype(int).tolist(),
        "ms": np.cumsum(reads * await_ms).astype(int).tolist(),
    }


def _diskstats(stamps: Sequence[int], disk: dict[str, list[int]]) -> Iterator[str]:
    for at, stamp in enumerate(stamps):
        reads, sectors, ms = (disk[n][at] for n in ("reads", "sectors", "ms"))
        yield (
            f"{rfc3339(stamp)}\n 259       0 nvme0n1 {reads} 0 {sectors} {ms} 0 0 0 0 0 {ms} {ms} "
            "0 0 0 0 0 0\n"
        )


def _vmstat(stamps: Sequence[int], shares: dict[str, Floats]) -> Iterator[str]:
    yield (
        "procs -----------memory---------- ---swap-- -----io---- -system-- ------cpu----- "
        "-----timestamp-----\n"
        " r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st"
        "                 UTC\n"
    )
    for stamp, busy, waits in zip(stamps, shares["busy"], shares["io"], strict=True):
        at = datetime.fromtimestamp(stamp // 10**9, tz=UTC)
        us = min(99, round(100 * busy))
        wa = min(100 - us, round(50 * waits))
        yield (
            f"{round(64 * busy):2d}  0      0 93160912  11196 1152816    0    0  1481  2742  529 "
            f" 930 {us:2d}  0 {100 - us - wa:2d} {wa:2d}  0 {at:%Y-%m-%d %H:%M:%S}\n"
        )
