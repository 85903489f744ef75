"""What a replay found, whichever front end it was: of each cause, each step and the job.

Times are means over steps, in seconds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from tracekit.whatif.statistics import Statistics
    from tracekit.whatif.symptoms import Judgement

MAX_SIMULATION_ERROR_RATIO = 0.05
"""Replays that miss the measured time by more are refused (as the published study discards)."""


class Share(Struct, frozen=True):
    """How much of the slowdown goes with a group, and how much it brings alone; may leave 0..1."""

    remove: float | None
    add: float | None
    t_remove_s: float
    t_add_s: float
    ranks: tuple[int, ...] = ()
    stage: int | None = None


class CauseResult(Struct, frozen=True):
    """One cause that the user named, taken out of the job."""

    cause: str
    t_s: float
    """The step without it: see ``WhatIf.causes`` for which step."""
    speedup_ratio: float
    saved_s_per_step: float
    """Against the same replay with the cause in it."""
    method: str = "pipeline"
    """Which front end says so: pipeline, streams or collectives; of a cause that diagnose names,
    the method of its cost."""
    simulation_error_ratio: float = 0.0
    """Of that replay."""
    low_s_per_step: float | None = None
    high_s_per_step: float | None = None
    """Between what bounds ``saved_s_per_step`` may lie."""
    finding: str | None = None
    """Whose cost it is, by its id; None: what the replay says of the selector."""
    against: tuple[str, ...] = ()
    """What speaks against that finding, or says another cost."""
    replayed_s: float | None = None
    """The replay's own step without it; None where no replay of the cause says what it costs."""

    def of_step(self, step_s: float) -> CauseResult:
        """The same gain, taken from a step of this length; never more than all of it."""
        saved_s = min(self.saved_s_per_step, step_s)
        left_s = step_s - saved_s
        return replace(
            self,
            t_s=left_s,
            speedup_ratio=step_s / left_s if left_s > 0 else math.inf,
            saved_s_per_step=saved_s,
        )


class StepTimes(NamedTuple):
    """One step in s: measured, replayed and ideal."""

    base_s: float
    no_delay_s: float
    ideal_s: float

    @property
    def slowdown(self) -> float:
        """The replayed step over the ideal one; NaN where that takes no time."""
        return ratio(self.no_delay_s, self.ideal_s)


class PipelineMetrics(Struct, frozen=True):
    """What the published method says of a pipeline beside what is said of every job."""

    ranks: tuple[tuple[int, ...], ...]
    """Global rank by stage (outer) and replica (inner)."""
    stages: tuple[int, ...]
    dp_ranks: tuple[int, ...]
    ideal_by_optype_s: dict[str, float]
    slowdown_by_stage: dict[int, float]
    slowdown_by_dp: dict[int, float]
    slowdown_by_stage_per_step: dict[int, dict[int, float]]
    slowdown_by_dp_per_step: dict[int, dict[int, float]]
    m_w: Share
    m_s: Share
    no_pp_comm: CauseResult
    """As published: of the replayed step."""
    no_dp_comm: CauseResult
    judgement: Judgement
    statistics: Statistics
    replay_error_s: float = 0.0
    """Largest difference of a step replayed with its original delays; checks the dependencies."""
    unplaced_by_optype_s: dict[str, float] = field(default_factory=dict)
    """What a step would save if operations of a type began as soon as they could; only of a replay
    that is refused."""
    unplaced_by_stage_s: dict[int, float] = field(default_factory=dict)

    def slowdown_of(self, stage: int, dp_rank: int) -> float:
        """S of a rank, estimated from its stage and its replica."""
        return min(self.slowdown_by_stage[stage], self.slowdown_by_dp[dp_rank])

    @property
    def slowdown_by_rank(self) -> dict[int, float]:
        """S of each rank that was recorded."""
        return {
            rank: self.slowdown_of(stage, dp)
            for stage, row in zip(self.stages, self.ranks, strict=True)
            for dp, rank in zip(self.dp_ranks, row, strict=True)
            if rank >= 0
        }


class WhatIf(Struct, frozen=True):
    """Everything that a replay says."""

    method: str
    """Its front end: ``pipeline`` by named operations, ``streams`` where launches and streams are
    known, else ``collectives``."""
    steps: tuple[int, ...]
    dropped_steps: tuple[int, ...]
    t_base_s: float
    """What is replayed, as measured: of a pipeline from the first operation of a step, which is no
    receive, to its last."""
    t_no_delay_s: float
    t_ideal_s: float
    per_step: dict[int, StepTimes]
    slowdown_by_optype: dict[str, float]
    """The ideal job with the times of one type of operation put back, over the ideal job; without
    a pipeline of computing and waiting (``own``) and of the transfers of a kind."""
    slowdown_by_rank: dict[int, float]
    """The same with the times of one rank; of a pipeline the smaller of its stage's and its
    replica's."""
    saved_s_by_rank: dict[int, float] = field(default_factory=dict)
    """Seconds a step saved if this one rank did what its peers do; the worst ranks only."""
    causes: tuple[CauseResult, ...] = ()
    """Of the job's step where that is known (see ``of_job``), else of the replayed one."""
    refused: str | None = None
    """Why the replay must not be believed; None where it may."""
    calls_count: int | None = None
    """Of matched collectives; None of a pipeline's operations."""
    unmatched_count: int | None = None
    pipeline: PipelineMetrics | None = None
    job_step_s: float | None = None
    """The job's mean steady step, as everywhere else; None: only the replay is known."""

    def of_job(self, job_step_s: float | None) -> WhatIf:
        """The same of a job whose step is known: what each cause saves is taken from that step."""
        step_s = job_step_s or self.t_base_s
        return replace(
            self, job_step_s=step_s, causes=tuple(c.of_step(step_s) for c in self.causes)
        )

    @property
    def step_s(self) -> float:
        """The job's step, from which causes are taken; without one what is replayed of it."""
        return self.job_step_s or self.t_base_s

    @property
    def slowdown(self) -> float:
        """S: the replayed job over the ideal one."""
        return ratio(self.t_no_delay_s, self.t_ideal_s)

    @property
    def waste_ratio(self) -> float:
        """Share of the time that the ideal job would not have needed."""
        return 1 - 1 / self.slowdown if self.slowdown > 0 else 0.0

    @property
    def base_over_no_delay(self) -> float:
        """Measured time over replayed time: 1 where launch delays cost nothing."""
        return ratio(self.t_base_s, self.t_no_delay_s)

    @property
    def simulation_error_ratio(self) -> float:
        """How far the replay of what was measured is from what was measured."""
        return error_ratio(self.t_base_s, self.t_no_delay_s)


def ratio(a: float, b: float) -> float:
    """NaN where there is nothing to divide by."""
    return a / b if b > 0 else math.nan


def error_ratio(base_s: float, replayed_s: float) -> float:
    """How far a replay is from the measured time; 0 where it takes none."""
    return abs(base_s / replayed_s - 1) if replayed_s > 0 else 0.0
