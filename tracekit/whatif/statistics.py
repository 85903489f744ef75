"""The measured job in numbers, before any replay: steps, idle time, waiting and transfer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from tracekit.whatif import operations as o
from tracekit.whatif.replay import GROUPED, Replay

OUTLIER_Z = 3.5
Z_OF_MAD = 0.6745
"""MAD of a normal distribution in standard deviations."""


class Waiting(Struct, frozen=True):
    """How the recorded time of an operation type divides. Means, in seconds."""

    duration_s: float
    wait_s: float
    """Until the last member of its group had started."""
    transfer_s: float


class LastArriver(Struct, frozen=True):
    """How often each replica starts a synchronising operation last, and by how much."""

    count_by_dp: Mapping[int, int]
    instances_count: int
    mean_gap_ratio: float
    """Mean gap between the last and the one before it, as a share of the mean step."""


class Statistics(Struct, frozen=True):
    """Of the steps that were replayed."""

    step_cv_ratio: float | None
    step_p50_s: float
    step_p95_s: float
    step_p99_s: float | None
    """Null under 20 steps."""
    step_mad_s: float
    outlier_steps: tuple[int, ...]
    """|0.6745 (x - median) / MAD| above 3.5."""
    microbatches_count: int
    idle_ratio_by_stage: Mapping[int, float]
    """Idle share of the window from the first forward to the last backward of the replica."""
    expected_idle_ratio: float | None
    """(p-1) / (v m + p - 1), what GPipe and 1F1B cannot avoid; null where backwards are split."""
    waiting_by_optype: Mapping[str, Waiting]
    last_arriver_by_optype: Mapping[str, LastArriver]


def describe(replay: Replay) -> Statistics:
    """The statistics of a prepared job."""
    base = replay.base_s
    p50, p95, p99 = (float(v) for v in np.quantile(base, [0.5, 0.95, 0.99]))
    mad = float(np.median(np.abs(base - p50)))
    outliers: tuple[int, ...] = ()
    if mad > 0 and len(base) >= 8:
        z = Z_OF_MAD * (base - p50) / mad
        outliers = tuple(s for s, v in zip(replay.steps, z, strict=True) if abs(v) > OUTLIER_Z)
    chunks = max((op.chunk for op in replay.template.ops), default=0) + 1
    forwards = [op for op in replay.template.ops if op.optype == o.FORWARD]
    microbatches = len([op for op in forwards if op.stage == replay.stages[0]]) // chunks
    p = len(replay.stages)
    is_split = any(op.optype == o.WEIGHT for op in replay.template.ops)
    return Statistics(
        step_cv_ratio=float(base.std(ddof=1) / base.mean()) if len(base) > 1 else None,
        step_p50_s=p50,
        step_p95_s=p95,
        step_p99_s=p99 if len(base) >= 20 else None,
        step_mad_s=mad,
        outlier_steps=outliers,
        microbatches_count=microbatches,
        idle_ratio_by_stage=_idle(replay),
        expected_idle_ratio=(p - 1) / (chunks * microbatches + p - 1)
        if microbatches and not is_split
        else None,
        waiting_by_optype=_waiting(replay),
        last_arriver_by_optype={
            t: last for t in (o.GRADS_SCATTER, o.PARAMS_GATHER) if (last := _last(replay, t))
        },
    )


def _idle(replay: Replay) -> dict[int, float]:
    compute = replay.ops_where(optypes=o.COMPUTE)
    if not compute.any():
        return {}
    window = replay.end_s[compute].max(axis=0) - replay.start_s[compute].min(axis=0)
    idle = {}
    for stage in replay.stages:
        busy = replay.work_s[replay.ops_where(optypes=o.COMPUTE, stage=stage)].sum(axis=0)
        idle[stage] = 1 - float(busy.sum() / window.sum()) if window.sum() > 0 else 0.0
    return idle


def _waiting(replay: Replay) -> dict[str, Waiting]:
    waiting = {}
    for optype in sorted(set(replay.ideal_by_type) & GROUPED):
        rows = replay.ops_where(optypes=(optype,))
        duration = float((replay.end_s - replay.start_s)[rows].mean())
        transfer = float(replay.work_s[rows].mean())
        waiting[optype] = Waiting(duration, duration - transfer, transfer)
    return waiting


def _last(replay: Replay, optype: str) -> LastArriver | None:
    if len(replay.dp_ranks) < 2:
        return None
    starts = replay.start_s[replay.ops_where(optypes=(optype,))]
    if starts.size == 0:
        return None
    last = starts.argmax(axis=-1)
    ordered = np.sort(starts, axis=-1)
    gap = float((ordered[..., -1] - ordered[..., -2]).mean())
    counts = np.bincount(last.ravel(), minlength=len(replay.dp_ranks)).tolist()
    return LastArriver(
        dict(zip(replay.dp_ranks, counts, strict=True)),
        int(last.size),
        gap / float(replay.base_s.mean()),
    )
