"""Every fault of a job of days, as data: what it does to the job, and who must say so.

A fault without a rule is told as an episode of the history alone. Decoys cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from tracekit.simulate.history.draft import (
    RANKS_PER_HOST,
    Draft,
    Failure,
    Pressure,
    Restart,
    SlowDisk,
)

FAILURES = ("raise", "memory", "kill", "exit")
STALL_S = 2400.0
"""How long a whole job stands still where a host's disk or memory stops it."""


class Struck(Struct, frozen=True):
    """Where and when a fault is, in steps of the job."""

    first_step: int
    last_step: int
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    episodes: tuple[dict[str, Any], ...] = ()
    """What stands out in the history by it, with the numbers that a reader would check."""


class HistoryFault(Struct, frozen=True):
    """One kind of fault."""

    name: str
    summary: str
    apply: Callable[[Draft, float], Struck]
    strength_name: str
    unit: str
    strengths: tuple[float, ...]
    """From weak to strong; the middle one is the default."""
    rules: tuple[str, ...]
    """One of these must be reported, at the fault's place; none: the history tells it."""
    symptoms: tuple[str, ...] = ()
    needs_trace: bool = False

    @property
    def strength(self) -> float:
        """The default strength."""
        return self.strengths[len(self.strengths) // 2]


class HistoryDecoy(Struct, frozen=True):
    """What looks like a fault and costs nothing."""

    name: str
    summary: str
    apply: Callable[[Draft], tuple[str, ...]]
    """Its hosts; none where it is of no host."""
    forbidden: tuple[str, ...] = field(default=())


def _periodic(draft: Draft, lost_ratio: float) -> Struck:
    rng = draft.rng
    period = int(rng.integers(draft.steps_count // 100, draft.steps_count // 15))
    extra_s = lost_ratio / (1 - lost_ratio) * period * draft.usual_s
    phase = (None, "save", "evaluate")[int(rng.integers(3))]
    if phase == "save":
        draft.noise = replace(draft.noise, save_every=0)
    draft.every(period, extra_s, phase)
    told = {"kind": "periodic", "period_count": period}
    return Struck(period + 1, draft.steps_count, episodes=(told,))


def _drift(draft: Draft, per_day_ratio: float) -> Struck:
    draft.drift_per_day += per_day_ratio
    told = {"kind": "drift", "per_day_ratio": per_day_ratio}
    return Struck(1, draft.steps_count, episodes=(told,))


def _restart(draft: Draft, back_steps: int, gap_s: float, failure: Failure | None = None,
             factor: float = 1.0) -> dict[str, Any]:  # fmt: skip
    """A restart in a part of its own, and what the history must say of it."""
    first, last = draft.slot()
    step = int(draft.rng.integers(first + (last - first) // 3, last))
    back_steps = min(back_steps, step - 1)
    draft.restarts.append(Restart(step, back_steps, gap_s, failure, factor))
    return {"kind": "restart", "last_step": step, "repeated_count": back_steps}


def _few(draft: Draft) -> int:
    """Steps that a restart repeats at little cost: about a quarter of a per cent of the job."""
    return int(draft.rng.integers(20, max(40, draft.steps_count // 400)))


def _restarts(draft: Draft, lost_ratio: float) -> Struck:
    count = int(draft.rng.integers(2, 6))
    lost_steps = lost_ratio / (1 - lost_ratio) * draft.steps_count / count
    told = []
    for _ in range(count):
        gap_s = float(draft.rng.uniform(120, 420))
        back = max(10, round(lost_steps - gap_s / draft.usual_s))
        told.append(_restart(draft, back, gap_s))
    return Struck(1, draft.steps_count, episodes=tuple(told))


def _slow_startup(draft: Draft, gap_s: float) -> Struck:
    told = []
    for _ in range(int(draft.rng.integers(1, 4))):
        spread = float(np.exp(0.1 * draft.rng.standard_normal()))
        told.append(_restart(draft, int(draft.rng.integers(20, 400)), gap_s * spread))
    return Struck(1, draft.steps_count, episodes=tuple(told))


def _failure(draft: Draft, _count: float) -> Struck:
    rng = draft.rng
    rank = int(rng.integers(draft.ranks_count))
    failure = Failure(rank, FAILURES[int(rng.integers(len(FAILURES)))])
    host = draft.hosts[rank // RANKS_PER_HOST]
    if rng.random() < 0.5:
        draft.end = failure
        return Struck(draft.steps_count, draft.steps_count, (rank,), (host,))
    told = _restart(draft, int(rng.integers(20, 400)), float(rng.uniform(120, 420)), failure)
    return Struck(told["last_step"], told["last_step"], (rank,), (host,), (told,))


def _lacking(*resources: str) -> Callable[[Draft, float], Struck]:
    def apply(draft: Draft, factor: float) -> Struck:
        rng = draft.rng
        host = draft.hosts[int(rng.integers(len(draft.hosts)))]
        resource = resources[int(rng.integers(len(resources)))]
        first, last = draft.slot()
        is_stall = rng.random() < 0.3
        if is_stall:
            first = last = int(rng.integers(first + 50, last - 50))
            draft.extra_s[first] += STALL_S
            lost_ratio = STALL_S / (STALL_S + draft.usual_s)
        else:
            first += int(rng.integers(0, (last - first) // 4))
            draft.factor[first : last + 1] *= factor
            lost_ratio = 1 - 1 / factor
        waited = min(0.97, lost_ratio + float(rng.uniform(0.03, 0.25)))
        draft.pressures.append(Pressure(host, resource, first, last, waited))
        if resource == "io":
            draft.disks.append(SlowDisk(host, first, last, 8.0))
        told = {"kind": "stall" if is_stall else "slow", "first_step": first, "last_step": last}
        return Struck(first, last, (), (host,), (told,))

    return apply


def _stall(draft: Draft, stall_s: float) -> Struck:
    first, last = draft.slot()
    step = int(draft.rng.integers(first + 50, last - 50))
    draft.extra_s[step] += stall_s
    told = {"kind": "stall", "first_step": step, "last_step": step, "lost_s": stall_s}
    return Struck(step, step, episodes=(told,))


def _swap(draft: Draft, factor: float) -> Struck:
    told = _restart(draft, _few(draft), 300.0, None, factor)
    changed = {"kind": "swap", "first_step": told["last_step"] + 1, "factor": factor}
    return Struck(told["last_step"], draft.steps_count, episodes=(told, changed))


def _restarted(draft: Draft, count: float) -> Struck:
    told = [
        _restart(draft, _few(draft), float(draft.rng.uniform(120, 300)))
        for _ in range(round(count))
    ]
    return Struck(1, draft.steps_count, episodes=tuple(told))


def _profiled(draft: Draft, _ratio: float) -> Struck:
    return Struck(1, draft.steps_count)  # whoever writes the trace knows which steps it touches


FAULTS: tuple[HistoryFault, ...] = (
    HistoryFault("periodic-stall", "stalls at one distance in steps", _periodic,
                 "lost_ratio", "ratio", (0.02, 0.05, 0.15), ("periodic-stall",)),
    HistoryFault("step-drift", "steps grow from day to day", _drift,
                 "per_day_ratio", "ratio", (0.002, 0.005, 0.02), ("step-drift",)),
    HistoryFault("restart-loss", "restarts repeat many steps", _restarts,
                 "lost_ratio", "ratio", (0.02, 0.05, 0.15), ("restart-loss",)),
    HistoryFault("slow-startup", "restarts take long to their first step", _slow_startup,
                 "gap_s", "s", (900.0, 2400.0, 7200.0), ("slow-startup",), ("restart-loss",)),
    HistoryFault("first-failure", "one process ends a launch, the others follow", _failure,
                 "ranks_count", "count", (1.0,), ("first-failure",), ("restart-loss",)),
    HistoryFault("cpu-throttled", "a host gives its ranks too little CPU for a while",
                 _lacking("quota", "cpu"), "step_ratio", "ratio", (1.1, 1.3, 1.8),
                 ("cpu-throttled",)),
    HistoryFault("memory-pressure", "a host is short of memory for a while", _lacking("memory"),
                 "step_ratio", "ratio", (1.1, 1.3, 1.8), ("memory-pressure",)),
    HistoryFault("slow-storage", "a host's storage is slow for a while", _lacking("io"),
                 "step_ratio", "ratio", (1.1, 1.3, 1.8), ("slow-storage",)),
    HistoryFault("profiler-overhead", "the profiled steps take longer than all others", _profiled,
                 "step_ratio", "ratio", (1.1, 1.25, 1.6), ("profiler-overhead",),
                 needs_trace=True),
    HistoryFault("long-stall", "the job stands still once", _stall, "stall_s", "s",
                 (120.0, 2400.0), ()),
    HistoryFault("host-swap", "a restart brings a slower host", _swap, "step_ratio", "ratio",
                 (1.03, 1.05, 1.2), ()),
    HistoryFault("restarts", "the job is restarted, at little cost", _restarted, "restarts_count",
                 "count", (2.0,), ()),
)  # fmt: skip
"""In the order of ``tracekit simulate --list``."""


def _host(draft: Draft) -> str:
    return draft.hosts[int(draft.rng.integers(len(draft.hosts)))]


def _busy(draft: Draft) -> tuple[str, ...]:
    host = _host(draft)
    draft.pressures.append(Pressure(host, "busy", 1, draft.steps_count, 0.97))
    return (host,)


def _steady(draft: Draft) -> tuple[str, ...]:
    host = _host(draft)
    draft.pressures.append(Pressure(host, "cpu", 1, draft.steps_count, 0.5))
    return (host,)


def _elsewhen(draft: Draft) -> tuple[str, ...]:
    host = _host(draft)
    first, last = draft.slot()
    draft.pressures.append(Pressure(host, "memory", first, last, 0.6))
    return (host,)


def _everywhere(draft: Draft) -> tuple[str, ...]:
    first, last = draft.slot()
    draft.pressures += [Pressure(host, "io", first, last, 0.6) for host in draft.hosts]
    return draft.hosts


def _idle(draft: Draft) -> tuple[str, ...]:
    """Where the job is slow by a host of its own, or at any time."""
    known = [p for p in draft.pressures if p.resource != "busy"]
    first, last = (known[0].first_step, known[0].last_step) if known else draft.slot()
    host = "spare-7"
    draft.strangers.append(host)
    draft.pressures += [Pressure(host, r, first, last, 0.9) for r in ("cpu", "memory", "io")]
    return (host,)


def _disk(draft: Draft) -> tuple[str, ...]:
    host = _host(draft)
    draft.disks.append(SlowDisk(host, *draft.slot(), 15.0))
    return (host,)


def _caught(draft: Draft) -> tuple[str, ...]:
    step = int(draft.rng.integers(100, draft.steps_count - 100))
    draft.caught.append((step, int(draft.rng.integers(draft.ranks_count))))
    return ()


_LACKS = ("cpu-throttled", "memory-pressure", "slow-storage")
DECOYS: tuple[HistoryDecoy, ...] = (
    HistoryDecoy("busy-host", "a host whose CPUs are all in use, and whose tasks wait for none",
                 _busy, ("cpu-throttled",)),
    HistoryDecoy("steady-pressure", "a host whose tasks always wait for a CPU", _steady,
                 ("cpu-throttled",)),
    HistoryDecoy("pressure-elsewhen", "a host short of memory while the job is as fast as ever",
                 _elsewhen, ("memory-pressure",)),
    HistoryDecoy("pressure-everywhere", "all hosts wait for storage, and the job is as fast as "
                 "ever", _everywhere, ("slow-storage",)),
    HistoryDecoy("idle-host", "a host under pressure that is not the job's", _idle, _LACKS),
    HistoryDecoy("slow-disk", "a slow disk that nobody waits for", _disk, ("slow-storage",)),
    HistoryDecoy("caught-exception", "an exception that the program catches and prints", _caught,
                 ("first-failure",)),
)  # fmt: skip

BY_NAME = {f.name: f for f in FAULTS}
DECOYS_BY_NAME = {d.name: d for d in DECOYS}
