"""The steady steps of a job, as the rules see them: which count, how long one is, who is typical.

A step of the job lasts from the moment when the last rank begins it to that when the last rank
begins the next (docs/steps.md): all costs are shares of its mean.

Steady means neither warm-up nor cut short (by the window, or with a file that breaks off). Steps
are keyed by attempt and capture as well, so nothing is averaged across restarts or compared
between two captures.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

SAME_RATIO = 0.01
"""Ranks whose mean step differs by less from the job's take as long as it does: an effect of 1 %
is the least that is called one."""


class StepKey(NamedTuple):
    """A job-level step of one capture of one attempt."""

    attempt: int
    capture_id: int
    step: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> StepKey:
        """The step that a query's row is of."""
        return cls(int(row["attempt"]), int(row["capture_id"]), int(row["step"]))

    @property
    def following(self) -> StepKey:
        """The step after it, if it was captured."""
        return self._replace(step=self.step + 1)


class RankStep(Struct, frozen=True):
    """One rank's steady step and how its time went.

    compute, exposed_comm, memory and idle add up to the duration.
    """

    rank: int
    key: StepKey
    dur_ns: int
    compute_ns: int
    exposed_comm_ns: int
    memory_ns: int
    idle_ns: int
    comm_ns: int
    is_host_side: bool
    start_ns: int | None = None
    """Null where the rank has no clock."""


class Parts(NamedTuple):
    """Mean parts of a rank's steady step, in ns."""

    dur: float
    compute: float
    exposed_comm: float
    memory: float
    idle: float


def utc(time_ns: int) -> str:
    """ISO 8601 UTC with microseconds; exact integer arithmetic until the last digit."""
    whole_s, rest_ns = divmod(time_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(whole_s, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest_ns // 1000:06d}Z"


class Steps(Struct, frozen=True, dict=True):
    """The steady steps by key and rank."""

    by_key: Mapping[StepKey, Mapping[int, RankStep]]
    spans: Mapping[StepKey, tuple[int, int]]
    warmup_keys: frozenset[StepKey]
    partial_count: int
    inferred_ranks: tuple[int, ...] = ()
    """Ranks whose steps nothing marked: from one update of the parameters to the next, or what they
    repeat without one."""
    repeating_ranks: tuple[int, ...] = ()
    """Those of the latter."""
    is_paced: bool = False
    """Whether hosts run ahead of their devices, so that steps are what launches take on these."""

    @classmethod
    def from_rows(
        cls, breakdown: Iterable[Mapping[str, Any]], times: Iterable[Mapping[str, Any]]
    ) -> Steps:
        """From the rows of the queries step_breakdown and step_time."""
        by_key: dict[StepKey, dict[int, RankStep]] = {}
        warmup: set[StepKey] = set()
        partial_count = 0
        for row in breakdown:
            key = _key(row)
            if row.get("is_warmup"):
                warmup.add(key)
            elif row.get("is_partial"):
                partial_count += 1
            elif row["dur_ns"] > 0:
                step = _rank_step(row, key)
                by_key.setdefault(key, {})[step.rank] = step
        # A step that is warm-up on one rank makes all others wait: not steady on any.
        steady = {k: by_key[k] for k in sorted(by_key) if k not in warmup}
        spans: dict[StepKey, tuple[int, int]] = {}
        by_capture = {(k.capture_id, k.step): k for k in steady}
        inferred: set[int] = set()
        repeating: set[int] = set()
        is_paced = False
        for row in times:
            is_paced |= bool(row.get("is_paced"))
            if row.get("is_inferred"):
                inferred.add(int(row["rank"]))
            if row.get("is_repetition"):
                repeating.add(int(row["rank"]))
            moments = by_capture.get((int(row["capture_id"] or 0), int(row["step"])))
            if moments is not None and row["start_ns"] is not None:
                start, end = int(row["start_ns"]), int(row["start_ns"]) + int(row["dur_ns"])
                first, last = spans.get(moments, (start, end))
                spans[moments] = (min(first, start), max(last, end))
        ranks = tuple(sorted(inferred)), tuple(sorted(repeating))
        return cls(steady, spans, frozenset(warmup), partial_count, *ranks, is_paced)

    def only(self, keys: Iterable[StepKey]) -> Steps:
        """Some of the steady steps."""
        kept = set(keys)
        return replace(self, by_key={k: v for k, v in self.by_key.items() if k in kept})

    @property
    def keys(self) -> list[StepKey]:
        """All steady steps in order."""
        return list(self.by_key)

    def __len__(self) -> int:
        return len(self.by_key)

    def span_ns(self, key: StepKey) -> tuple[int, int] | None:
        """Earliest start and latest end of the step over its ranks."""
        return self.spans.get(key)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that have a steady step."""
        return tuple(sorted({rank for ranks in self.by_key.values() for rank in ranks}))

    @cached_property
    def common_keys(self) -> list[StepKey]:
        """Steady steps that every one of those ranks has."""
        everybody = len(self.ranks)
        return [key for key, ranks in self.by_key.items() if len(ranks) == everybody]

    @cached_property
    def rank_means(self) -> dict[int, Parts]:
        """Each rank's mean parts over its steady steps."""
        rows: dict[int, list[RankStep]] = {}
        for ranks in self.by_key.values():
            for rank, row in ranks.items():
                rows.setdefault(rank, []).append(row)
        return {rank: _mean_parts(steps) for rank, steps in sorted(rows.items())}

    @cached_property
    def median_rank(self) -> int | None:
        """Of the ranks whose mean step is the job's, the one with the lower median of them (the
        lowest rank among equals); where no rank's is, the one that is nearest.

        A real rank, so its parts add up to its step, which medians of parts would not.
        """
        if not self.rank_means:
            return None
        apart = {r: abs(p.dur - self.step_ns) for r, p in self.rank_means.items()}
        alike = [r for r, ns in apart.items() if ns < SAME_RATIO * self.step_ns]
        if not alike:
            return min(apart, key=lambda r: (apart[r], r))
        by_dur = sorted(alike, key=lambda r: (self.rank_means[r].dur, r))
        middle = self.rank_means[by_dur[(len(by_dur) - 1) // 2]].dur
        return min(r for r in by_dur if self.rank_means[r].dur == middle)

    @cached_property
    def median_parts(self) -> Parts | None:
        """The job's mean step, divided as that of the median rank is."""
        if self.median_rank is None:
            return None
        means = self.rank_means[self.median_rank]
        return Parts(*(part * self.step_ns / means.dur for part in means))

    @cached_property
    def step_ns(self) -> float:
        """Length of the job's mean steady step; 0 without steps."""
        return fmean(self.job_durs_ns) if self.by_key else 0.0

    def mean_error_ns(self, affected: Collection[StepKey] = ()) -> float:
        """Two standard errors of the mean step: what no cost is known better than; 0 of one step.

        Of a fault in some steps (``affected``) these and the others scatter each about their own
        mean: that they differ is the cost, and no doubt of it.
        """
        groups: dict[bool, list[float]] = {True: [], False: []}
        for key, dur in self._durs_ns.items():
            groups[key in affected].append(dur)
        parts = [durs for durs in groups.values() if durs]
        if len(self) <= len(parts):
            parts = [self.job_durs_ns]
        free = len(self) - len(parts)
        if free < 1:
            return 0.0
        squares = sum((dur - fmean(durs)) ** 2 for durs in parts for dur in durs)
        return 2 * math.sqrt(squares / free / len(self))

    def longer_than_others_ns(
        self, affected: Collection[StepKey], least_count: int
    ) -> float | None:
        """How much longer a mean step is than those which are not affected, nor follow one that is,
        since what a rank does behind its last call makes others wait in the next: that is asked
        where ``least_count`` are left. None where fewer than that are not affected at all.
        """
        hit = {*affected, *(key.following for key in affected)}
        for without in (hit, affected):
            others = [dur for key, dur in self._durs_ns.items() if key not in without]
            if len(others) >= least_count:
                return self.step_ns - fmean(others)
        return None

    def job_dur_ns(self, key: StepKey) -> float:
        """How long the job took for the step: from the last rank's start to the last rank's end,
        which is the start of the next; where a rank has no clock, as long as the slowest rank."""
        return self._durs_ns[key]

    @cached_property
    def _durs_ns(self) -> dict[StepKey, float]:
        return {key: self._dur_ns(ranks.values()) for key, ranks in self.by_key.items()}

    @cached_property
    def longest_ns(self) -> dict[StepKey, int]:
        """Of each step how long the slowest rank took for it."""
        return {k: max(row.dur_ns for row in ranks.values()) for k, ranks in self.by_key.items()}

    @staticmethod
    def _dur_ns(ranks: Collection[RankStep]) -> float:
        starts = [row.start_ns for row in ranks if row.start_ns is not None]
        if len(starts) < len(ranks):
            return max(row.dur_ns for row in ranks)
        ends = (row.start_ns + row.dur_ns for row in ranks if row.start_ns is not None)
        return max(ends) - max(starts)

    @cached_property
    def job_durs_ns(self) -> list[float]:
        """The job's duration of each steady step, in order."""
        return list(self._durs_ns.values())

    def exposed_comm_ns(self, key: StepKey, rank: int) -> int:
        """A rank's exposed communication in a step and the one after it.

        Two steps, because a GPU runs behind its host: peers may show their waiting one step
        later than the host that caused it.
        """
        rows = (self.by_key.get(k, {}).get(rank) for k in (key, key.following))
        return sum(row.exposed_comm_ns for row in rows if row is not None)

    @cached_property
    def is_coupled(self) -> bool:
        """Whether any rank communicates at all: only then can one be seen to wait for another."""
        return any(row.comm_ns > 0 for ranks in self.by_key.values() for row in ranks.values())


def _key(row: Mapping[str, Any]) -> StepKey:
    return StepKey(int(row.get("attempt") or 1), int(row.get("capture_id") or 0), int(row["step"]))


def _rank_step(row: Mapping[str, Any], key: StepKey) -> RankStep:
    return RankStep(
        rank=int(row["rank"]),
        key=key,
        dur_ns=int(row["dur_ns"]),
        compute_ns=int(row["compute_ns"] or 0),
        exposed_comm_ns=int(row["exposed_comm_ns"] or 0),
        memory_ns=int(row["memory_ns"] or 0),
        idle_ns=int(row["idle_ns"] or 0),
        comm_ns=int(row["comm_ns"] or 0),
        is_host_side=row.get("measured_on") != "gpu",
        start_ns=None if row.get("start_ns") is None else int(row["start_ns"]),
    )


def _mean_parts(steps: Sequence[RankStep]) -> Parts:
    count = len(steps)
    return Parts(
        dur=sum(s.dur_ns for s in steps) / count,
        compute=sum(s.compute_ns for s in steps) / count,
        exposed_comm=sum(s.exposed_comm_ns for s in steps) / count,
        memory=sum(s.memory_ns for s in steps) / count,
        idle=sum(s.idle_ns for s in steps) / count,
    )
