"""What collectors of counters share: the job's activity, everybody's health, who is where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from tracekit.simulate.activity import Activity, Floats
from tracekit.simulate.health import Health
from tracekit.simulate.job import Plan
from tracekit.simulate.kineto import HostClock
from tracekit.simulate.noise import generator

CAPTURE = "tracekit-capture"
"""Folder of what is collected on a host, as the script of ``tracekit capture`` names it."""


class Telemetry(Struct, frozen=True):
    """Everything that a writer of counters needs to know."""

    plan: Plan
    activity: Activity
    health: Sequence[Health]
    """Of each captured step."""
    clocks: dict[str, HostClock]
    epoch_ns: int
    interval_s: float
    host_name: Callable[[int], str]
    """The host (or pod) that a rank believes to run on."""
    decoys: frozenset[str]
    rail: Callable[[int], int]
    """The NIC that a rank's traffic takes."""

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.plan.layout.world_size)

    def local(self, rank: int) -> int:
        """A rank's index on its machine."""
        return self.plan.topology.local(rank)

    def generator(self, *purpose: object) -> np.random.Generator:
        """Randomness of a purpose."""
        return generator(self.plan.seed, "counters", *purpose)

    def ticks(self, *who: object) -> Floats:
        """A collector's moments on the true clock: its own phase, and a little late each time."""
        rng = self.generator("ticks", *who)
        phase = float(rng.random()) * self.interval_s
        ticks = self.activity.ticks(self.interval_s, phase)
        late: Floats = np.minimum(rng.exponential(0.004, len(ticks)), 0.05) * self.interval_s * 1e9
        moments: Floats = ticks + late
        return moments

    def stamps(self, ticks: Floats, host: str | None = None) -> list[int]:
        """The same as a host's clock reads them, ns since the epoch; a switch's clock is true."""
        clock = self.clocks.get(host or "", HostClock())
        return [self.epoch_ns + clock.read(int(t)) for t in ticks]

    def of_steps(self, value: Callable[[Health], float]) -> Floats:
        """A number of each captured step's health."""
        return np.array([value(health) for health in self.health], float)

    def folder(self, output: Path, host: str) -> Path:
        """Where what is collected on a host is kept."""
        path = output / CAPTURE / host
        path.mkdir(parents=True, exist_ok=True)
        return path


def whole(values: Floats, base: float = 0.0) -> list[int]:
    """Readings of a counter that had ``base`` when it was first looked at."""
    return [int(v) for v in np.floor(values + base)]
