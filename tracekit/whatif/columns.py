"""Which scenarios a replay of collectives runs side by side, and what comes out of them.

Column 0 is the job as measured and column 1 the ideal one. Then comes the ideal job with one thing
put back: all ranks' own time, the transfers of each kind, the own time of one rank each. Last come
the causes that the user named, which change the job as measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from tracekit.whatif.calls import Call, class_of
from tracekit.whatif.causes import Cause
from tracekit.whatif.metrics import CauseResult, StepTimes, WhatIf, error_ratio
from tracekit.whatif.operations import Floats

MIN_SLOWDOWN, MAX_REMOVED_RANKS = 1.02, 8
"""The job without one rank is replayed for the worst ranks that slow it down by this much."""


class Replayed(Struct):
    """What is known of the captures that were replayed, in their order."""

    steps: list[int]
    dropped: list[int]
    calls: list[Call]
    base_ns: list[float]
    """Measured length of each step."""
    unmatched_count: int

    @property
    def base_s(self) -> float:
        """Mean measured step."""
        return float(np.mean(self.base_ns)) / 1e9

    @property
    def kinds(self) -> list[str]:
        return sorted({class_of(c) for c in self.calls})


class Columns:
    """The columns of one replay.

    ``excess_ns``: by rank its own time beyond its peers'. The ``most`` ranks with the most of it
    are put back one by one. ``causes``: those that are a column.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        excess_ns: Mapping[int, float],
        most: int,
        causes: Sequence[Cause],
    ) -> None:
        self.kinds, self.causes = kinds, causes
        self.ranks = sorted(excess_ns)
        worst = sorted(self.ranks, key=lambda r: (-excess_ns[r], r))[:most]
        self.groups = ["own", *kinds]
        self.single = sorted(worst)
        self.first_rank = 2 + len(self.groups)
        self.first_cause = self.first_rank + len(self.single)
        self.count = self.first_cause + len(causes)

    @property
    def is_own_measured(self) -> dict[int, npt.NDArray[np.bool_]]:
        """By rank, the columns in which its own time is the measured one."""
        is_measured = {}
        for rank in self.ranks:
            chosen = np.ones(self.count, np.bool_)
            chosen[1 : self.first_cause] = False
            chosen[2] = True
            is_measured[rank] = chosen
        for column, rank in enumerate(self.single, start=self.first_rank):
            is_measured[rank][column] = True
        return is_measured

    @property
    def transfers(self) -> dict[str, tuple[Floats, Floats]]:
        """By kind, how much of the measured and of the ideal transfer counts in each column."""
        shares = {}
        for column, kind in enumerate(self.kinds, start=3):
            measured = np.ones(self.count)
            measured[1 : self.first_cause] = 0.0
            measured[column] = 1.0
            shares[kind] = measured, 1.0 - measured
        return shares

    def result(
        self,
        times: Floats,
        job: Replayed,
        causes: Sequence[Cause],
        without: Callable[[Cause], float],
        without_rank: Callable[[int], float] | None,
        *,
        method: str,
        refused: str | None,
    ) -> WhatIf:
        """The metrics. ``times``: (steps, columns), in s.

        ``without`` replays a cause that has no column, ``without_rank`` the job with one rank doing
        what its peers do, both in seconds a step; None where nobody asks for that.
        """
        mean = times.mean(axis=0)
        t_now, t_ideal = float(mean[0]), float(mean[1])
        alone = {r: float(mean[self.first_rank + i]) / t_ideal for i, r in enumerate(self.single)}
        worst = sorted(
            (r for r in self.single if alone[r] >= MIN_SLOWDOWN), key=lambda r: (-alone[r], r)
        )
        took = {c: float(mean[self.first_cause + i]) for i, c in enumerate(self.causes)}
        took |= {c: without(c) for c in causes if c not in took}
        error = error_ratio(job.base_s, t_now)
        return WhatIf(
            method=method,
            steps=tuple(job.steps),
            dropped_steps=tuple(job.dropped),
            t_base_s=job.base_s,
            t_no_delay_s=t_now,
            t_ideal_s=t_ideal,
            slowdown_by_rank=alone,
            saved_s_by_rank={
                r: t_now - without_rank(r) for r in worst[:MAX_REMOVED_RANKS] if without_rank
            },
            slowdown_by_optype={g: float(mean[2 + i]) / t_ideal for i, g in enumerate(self.groups)},
            per_step={
                s: StepTimes(b / 1e9, float(row[0]), float(row[1]))
                for s, b, row in zip(job.steps, job.base_ns, times, strict=True)
            },
            causes=tuple(
                CauseResult(
                    c.text,
                    took[c],
                    t_now / took[c],
                    t_now - took[c],
                    method,
                    error,
                    replayed_s=took[c],
                )
                for c in causes
            ),
            calls_count=sum(len(c.starts) for c in job.calls),
            unmatched_count=job.unmatched_count,
            refused=refused,
        )
