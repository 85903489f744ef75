"""A history on disk: the log, the hosts' counters, job.toml and the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracekit.errors import UsageError
from tracekit.simulate.folder import list_files, make_folder
from tracekit.simulate.history import faults, launcher, lines
from tracekit.simulate.history.draft import RANKS_PER_HOST, Draft, Noise
from tracekit.simulate.history.hosts import write_hosts
from tracekit.simulate.history.timeline import Timeline, timeline
from tracekit.simulate.noise import generator
from tracekit.simulate.scenario import EPOCH_NS, Request, prepare, write
from tracekit.simulate.words import parted
from tracekit.version import __version__
from tracekit.wording import listed

LOG = "train.log"
PROFILED_STEPS = 10
PROFILED_RANKS = 2
MIN_STEPS = 2000
DECOY_CHANCE = 0.25


class HistoryRequest(Struct, frozen=True):
    """What to simulate."""

    scenario: str
    """A fault of days, or several joined by ``+``; a strength may follow: ``step-drift:0.01``.
    ``healthy-days``: nothing is wrong."""
    seed: int = 0
    steps_count: int = 0
    """0: 20,000 to 60,000, from the seed."""
    days: float = 0.0
    """How long a healthy job would take; 0: 1.5 to 4, from the seed."""
    hosts_count: int = 4
    format: str = ""
    """Whose log; empty: from the seed."""
    lines_every: int = 0
    """Steps between lines; 0: 1, 5 or 10, from the seed."""
    noise: Noise | None = None
    """None: from the seed."""
    decoys: tuple[str, ...] | None = None
    """None: by chance, from the seed."""
    interval_s: float = 60.0
    """Time between two readings of the hosts' counters."""


HEALTHY = "healthy-days"


def is_history(scenario: str) -> bool:
    """Whether a scenario is one of days; UsageError where it is of both kinds."""
    names = {word.strip().partition(":")[0] for word in scenario.split("+")}
    ours = names & {HEALTHY, *faults.BY_NAME}
    if ours and ours != names:
        raise UsageError(
            f"{listed(sorted(ours))} and {listed(sorted(names - ours))} are of different jobs",
            hint="one is of days and the other of a dozen steps: simulate them apart",
        )
    return bool(ours)


def write_history(request: HistoryRequest, output: Path, *, force: bool = False) -> dict[str, Any]:
    """Write the job's files into ``output``; returns the truth, which is in truth.json too."""
    kinds = parted(request.scenario, faults.BY_NAME, (HEALTHY,))
    known, every, draft = _job(request)
    trace = next((_Trace.of(request, s) for kind, s in kinds if kind.needs_trace), None)
    if trace is None:
        make_folder(output, force)
    else:
        every, draft = 1, replace(draft, usual_s=trace.write(output, force), hosts=trace.hosts)
    told = [(kind, strength, kind.apply(draft, strength)) for kind, strength in kinds]
    decoys = _decoys(request, draft, {kind.name for kind, _ in kinds})
    noise = draft.noise
    if noise.save_every:
        draft.every(noise.save_every, noise.save_steps * draft.usual_s, "save")
    if noise.evaluate_every:
        draft.every(noise.evaluate_every, noise.evaluate_steps * draft.usual_s, "evaluate")
    times, epoch_ns = timeline(draft), EPOCH_NS
    if trace is not None:
        times, epoch_ns = trace.placed(times)
    job = _Job(draft, times, known, every, epoch_ns)
    (output / LOG).write_text("".join(f"{line}\n" for line in job.log()))
    ahead = write_hosts(draft, times, request.seed, epoch_ns, request.interval_s, output)
    with (output / "job.toml").open("a") as stream:
        stream.write(_job_toml(request, draft, known, is_known=trace is not None))
    truth = _truth(request, draft, told, decoys) | {
        "history": {
            "format": known.name, "lines_every": every, "usual_s": draft.usual_s,
            "job_s": float(times.end_s[-1]), "host_clock_offset_s": ahead,
            "saves_every": noise.save_every, "evaluates_every": noise.evaluate_every,
        }
    }  # fmt: skip
    (output / "truth.json").write_text(json.dumps(truth, indent=2) + "\n")
    list_files(output)
    return truth


def _job(request: HistoryRequest) -> tuple[lines.LogFormat, int, Draft]:
    """A healthy job as request and seed have it: whose log, steps a line, and what is to happen."""
    rng = generator(request.seed, "history", "job")
    names = sorted(lines.BY_NAME)
    drawn = (
        int(rng.integers(20_000, 60_000)), float(rng.uniform(1.5, 4)),
        names[int(rng.integers(len(names)))], (1, 5, 10)[int(rng.integers(3))],
    )  # fmt: skip
    noise = request.noise or Noise(
        sigma_ratio=float(rng.uniform(0.005, 0.03)),
        tail_ratio=float(rng.uniform(0, 0.003)),
        tail_steps=float(rng.uniform(0.5, 4)),
        wander_ratio=float(rng.uniform(0.0005, 0.003)),
        daily_ratio=float(rng.uniform(0, 0.003)),
        long_ratio=float(rng.choice([0.0, 0.0, 0.2])),
        save_every=int(rng.choice([0, 1000, 2500])),
        save_steps=float(rng.uniform(1, 6)),
        evaluate_every=int(rng.choice([0, 0, 5000])),
        evaluate_steps=float(rng.uniform(5, 20)),
    )
    steps_count = request.steps_count or drawn[0]
    usual_s = (request.days or drawn[1]) * 86_400 / steps_count
    if steps_count < MIN_STEPS or request.hosts_count < 1:
        raise UsageError(f"a job of days has at least {MIN_STEPS:,} steps and 1 host")
    hosts = tuple(f"trainer-{n:02d}" for n in range(request.hosts_count))
    known = lines.BY_NAME[request.format or drawn[2]]
    own = generator(request.seed, "history", request.scenario)
    draft = Draft(steps_count, usual_s, hosts, noise, own)
    return known, request.lines_every or drawn[3], draft


def _decoys(
    request: HistoryRequest, draft: Draft, present: set[str]
) -> list[tuple[faults.HistoryDecoy, tuple[str, ...]]]:
    chance = generator(request.seed, "history", "decoys")
    drawn = [d.name for d in faults.DECOYS if chance.random() < DECOY_CHANCE]
    names = drawn if request.decoys is None else request.decoys
    found = []
    for name in names:
        decoy = faults.DECOYS_BY_NAME.get(name)
        if decoy is None:
            known = ", ".join(faults.DECOYS_BY_NAME)
            raise UsageError(f"there is no decoy {name!r}", hint=f"decoys: {known}")
        # Who waits for storage, by a fault and by a decoy, would be one host in two ways.
        if not (present & set(decoy.forbidden) and name != "idle-host"):
            found.append((decoy, decoy.apply(draft)))
    return found


class _Job(Struct, frozen=True):
    draft: Draft
    times: Timeline
    format: lines.LogFormat
    every: int
    epoch_ns: int

    def log(self) -> Iterator[str]:
        """The job's output, with each launch's end."""
        draft, times = self.draft, self.times
        restarts = sorted(draft.restarts, key=lambda r: r.step)
        edges = np.flatnonzero(np.diff(times.attempt, prepend=-1)).tolist()
        for number, (first, end) in enumerate(pairwise([*edges, len(times.step)])):
            if number:
                yield self._between(self.format.load, first, int(times.step[first]) - 1)
            yield from self._launch(first, end)
            failure = restarts[number].failure if number < len(restarts) else draft.end
            if failure is not None:
                at_ns = self.epoch_ns + round(float(times.end_s[end - 1]) * 1e9) + 2 * 10**9
                yield from launcher.failed(failure, draft.hosts, at_ns, draft.rng)

    def _launch(self, first: int, end: int) -> Iterator[str]:
        draft, times = self.draft, self.times
        caught: dict[int, list[int]] = {}
        for step, rank in draft.caught:
            caught.setdefault(step, []).append(rank)
        since = first
        losses = (
            1.7 + 5 / np.sqrt(times.step[first:end]) + 0.02 * draft.rng.standard_normal(end - first)
        )
        for at in range(first, end):
            step = int(times.step[at])
            phase = draft.phases.get(step)
            if phase is not None and at > first:
                words = self.format.save if phase == "save" else self.format.evaluate
                yield self._between(words, at - 1, step - 1)
            for rank in caught.get(step, ()):
                yield from launcher.caught(rank)
            if step % self.every:
                continue
            taken = times.dur_s[since : at + 1]
            since = at + 1
            yield self.format.step(
                lines.Told(
                    self._ns(at), step, draft.steps_count, float(taken.mean()), float(taken[-1]),
                    float(losses[at - first]),
                )
            )  # fmt: skip

    def _between(self, words: str, at: int, step: int) -> str:
        return lines.between(words, self._ns(at), step)

    def _ns(self, at: int) -> int:
        return self.epoch_ns + round(float(self.times.end_s[at]) * 1e9)


class _Trace(Struct, frozen=True):
    """A profile of a few steps, in the middle of the job's, which its profiler made longer."""

    request: Request
    ratio: float

    @classmethod
    def of(cls, request: HistoryRequest, ratio: float) -> _Trace:
        return cls(
            Request("none", PROFILED_RANKS, request.seed, steps_count=PROFILED_STEPS, decoys=(),
                    nccl="none", layers=2),
            ratio,
        )  # fmt: skip

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(prepare(self.request).plan.topology.hosts)

    def write(self, output: Path, force: bool) -> float:
        """Write it; the job's usual step, in seconds."""
        truth = write(self.request, output, force=force)
        of_ranks: list[float] = truth["measured"]["step_s"]
        return fmean(of_ranks) / self.ratio

    def placed(self, times: Timeline) -> tuple[Timeline, int]:
        """The timeline with its longer steps, and when the job began."""
        middle = len(times.step) // 2
        dur_s = times.dur_s.copy()
        dur_s[middle : middle + PROFILED_STEPS] *= self.ratio
        longer = np.cumsum(dur_s - times.dur_s)
        placed = replace(times, dur_s=dur_s, end_s=times.end_s + longer)
        return placed, EPOCH_NS - round(float(placed.end_s[middle - 1]) * 1e9)


def _job_toml(
    request: HistoryRequest, draft: Draft, known: lines.LogFormat, *, is_known: bool
) -> str:
    """What a user would know: who is where, and the zone of times that name none."""
    rows = [] if is_known else [f'name = "{request.scenario}-{request.seed}"']
    if known.is_local:
        rows += ["", "[[source]]", f'path = "{LOG}"', 'timezone = "UTC"']
    if not is_known:
        for rank in range(draft.ranks_count):
            host = draft.hosts[rank // RANKS_PER_HOST]
            rows += ["", "[[rank]]", f"rank = {rank}", f'host = "{host}"']
    return "".join(f"{row}\n" for row in rows)


def _truth(
    request: HistoryRequest,
    draft: Draft,
    told: Sequence[tuple[faults.HistoryFault, float, faults.Struck]],
    decoys: Sequence[tuple[faults.HistoryDecoy, tuple[str, ...]]],
) -> dict[str, Any]:
    def where(ranks: Sequence[int], hosts: Sequence[str]) -> dict[str, Any]:
        return {
            "ranks": list(ranks), "hosts": list(hosts), "stages": [], "links": [], "groups": [],
        }  # fmt: skip

    return {
        "schema_version": 1,
        "name": f"{request.scenario.replace(':', '-').replace('+', '-and-')}-{request.seed}",
        "origin": "simulated",
        "producer": {"tracekit": __version__, "scenario": request.scenario},
        "seed": request.seed,
        "world_size": draft.ranks_count,
        "steps": {"first": 1, "last": draft.steps_count},
        "faults": [
            {
                "fault": kind.name,
                "where": where(struck.ranks, struck.hosts),
                "first_step": struck.first_step,
                "last_step": struck.last_step,
                "strength": {"name": kind.strength_name, "value": strength, "unit": kind.unit},
                "expected_rules": list(kind.rules),
                "symptom_rules": list(kind.symptoms),
                "episodes": list(struck.episodes),
            }
            for kind, strength, struck in told
        ],
        "decoys": [
            {
                "decoy": decoy.name,
                "where": where((), hosts),
                "forbidden_rules": list(decoy.forbidden),
            }
            for decoy, hosts in decoys
        ],
    }
