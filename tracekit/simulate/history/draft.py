"""What is to happen in a job of days, before chance has its part."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
RANKS_PER_HOST = 8
MAX_HICCUP = 6.0
"""What takes longer, in usual steps, is a stall and no noise."""


class Noise(Struct, frozen=True):
    """How a healthy job's steps vary."""

    sigma_ratio: float = 0.015
    """From step to step, normal."""
    tail_ratio: float = 0.001
    """Share of steps with a hiccup."""
    tail_steps: float = 1.0
    """Mean length of a hiccup in usual steps; lengths are exponential, up to ``MAX_HICCUP``."""
    wander_ratio: float = 0.002
    """From hour to hour: neighbours, warmth, data."""
    daily_ratio: float = 0.001
    """Amplitude over a day."""
    long_ratio: float = 0.0
    """Share of steps with a longer sequence."""
    long_factor: float = 1.25
    """How much longer these take."""
    save_every: int = 2000
    """Steps between checkpoints; 0: none."""
    save_steps: float = 8.0
    """How long a save takes, in usual steps."""
    evaluate_every: int = 0
    evaluate_steps: float = 20.0


class Failure(Struct, frozen=True):
    """Why a launch ended."""

    rank: int
    kind: str
    """raise, memory (of the GPU), kill (a signal) or exit (a code)."""


class Restart(Struct, frozen=True):
    """The job stops behind a step and goes on behind an earlier one."""

    step: int
    back_steps: int
    gap_s: float
    failure: Failure | None = None
    factor: float = 1.0
    """How much longer steps take from then on: another host, other data."""


class Pressure(Struct, frozen=True):
    """Tasks of a host wait, or are busy, from one step to another."""

    host: str
    resource: str
    """cpu, memory, io or quota (of the job's control group)."""
    first_step: int
    last_step: int
    ratio: float


class SlowDisk(Struct, frozen=True):
    """Requests to a host's disk take longer."""

    host: str
    first_step: int
    last_step: int
    factor: float


class Draft(Struct):
    """A job that faults and decoys write themselves into. Steps count from 1."""

    steps_count: int
    usual_s: float
    hosts: tuple[str, ...]
    noise: Noise
    rng: np.random.Generator
    factor: Floats = field(default_factory=lambda: np.ones(1))
    """By step (0 is none): how much longer it takes."""
    extra_s: Floats = field(default_factory=lambda: np.zeros(1))
    """By step: time before it."""
    phases: dict[int, str] = field(default_factory=dict)
    """What the log says before a step: save or evaluate."""
    drift_per_day: float = 0.0
    restarts: list[Restart] = field(default_factory=list)
    end: Failure | None = None
    pressures: list[Pressure] = field(default_factory=list)
    disks: list[SlowDisk] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """Hosts with counters that are not the job's."""
    caught: list[tuple[int, int]] = field(default_factory=list)
    """Step and rank of exceptions that a program catches and prints."""
    _slots: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.factor = np.ones(self.steps_count + 1)
        self.extra_s = np.zeros(self.steps_count + 1)
        self._slots = self.rng.permutation(np.arange(1, SLOTS - 1)).tolist()

    @property
    def ranks_count(self) -> int:
        """World size."""
        return RANKS_PER_HOST * len(self.hosts)

    def slot(self) -> tuple[int, int]:
        """First and last step of a part of the job in which nothing else is wrong."""
        at = self._slots.pop()
        size = self.steps_count // SLOTS
        return at * size + 1, (at + 1) * size

    def every(self, period: int, extra_s: float, phase: str | None, sigma: float = 0.1) -> None:
        """Time between steps at one distance; the log may say what for."""
        for step in range(period + 1, self.steps_count + 1, period):
            self.extra_s[step] += extra_s * float(np.exp(sigma * self.rng.standard_normal()))
            if phase is not None:
                self.phases[step] = phase


SLOTS = 20
"""Parts of a job of which each may have one thing wrong; the first and the last have none."""
