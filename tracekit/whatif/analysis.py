"""What a job would have taken: the published straggler metrics, causes that a user names.

S is the replayed time over the ideal one, where every operation of a type takes the same time.
S of a group (type, stage, replica) is the ideal job with the original times of that group put
back, over the ideal job. S of a rank is the smaller of its stage's and its replica's: two
replays an axis instead of one a rank.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from tracekit.whatif import operations as o
from tracekit.whatif.causes import Cause, changed_work
from tracekit.whatif.metrics import (
    MAX_SIMULATION_ERROR_RATIO,
    CauseResult,
    PipelineMetrics,
    Share,
    StepTimes,
    WhatIf,
    error_ratio,
    ratio,
)
from tracekit.whatif.operations import Floats, Mask, Operations
from tracekit.whatif.replay import Replay, prepare
from tracekit.whatif.statistics import describe
from tracekit.whatif.symptoms import judge
from tracekit.wording import listed, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

WORST_RANKS_RATIO = 0.03
"""Share of the ranks that M_W repairs."""

PP_COMM = {
    o.FORWARD_SEND: "forward-pp-comm",
    o.FORWARD_RECV: "forward-pp-comm",
    o.BACKWARD_SEND: "backward-pp-comm",
    o.BACKWARD_RECV: "backward-pp-comm",
}
"""Both sides of a transfer are one thing to repair."""


def analyse(operations: Operations, causes: Sequence[Cause] = ()) -> WhatIf:
    """Replay a job in all the ways that the metrics need.

    Raises InputError where there is nothing to replay, UsageError where a cause names nothing.
    """
    replay = prepare(operations)
    work, ideal = replay.work_s, np.broadcast_to(replay.ideal_s, replay.work_s.shape)
    (original,) = replay.run([work], delays=[replay.delay_s])
    shifted = original - replay.base_s
    groups = _optype_groups(replay)
    by_type = [np.where(mask[:, None, None], work, ideal) for mask in groups.values()]
    by_stage = [
        np.where(replay.ops_where(stage=s)[:, None, None], work, ideal) for s in replay.stages
    ]
    by_dp = []
    for position in range(len(replay.dp_ranks)):
        with_replica = ideal.copy()
        with_replica[:, :, position] = work[:, :, position]
        by_dp.append(with_replica)
    no_pp, no_dp = work.copy(), work.copy()
    no_pp[replay.ops_where(optypes=o.P2P)] = 0.0
    no_dp[replay.ops_where(optypes=(o.PARAMS_GATHER, o.GRADS_SCATTER, o.SEPARATE_REDUCE))] = 0.0
    named = [changed_work(replay, cause) for cause in causes]
    times = replay.run([work, ideal, no_pp, no_dp, *by_type, *by_stage, *by_dp, *named])
    no_delay, ideal_t, *rest = times
    t_ideal = float(ideal_t.mean())
    type_t = dict(zip(groups, rest[2:], strict=False))
    first = 2 + len(groups)
    stage_t = dict(zip(replay.stages, rest[first:], strict=False))
    dp_t = dict(zip(replay.dp_ranks, rest[first + len(stage_t) :], strict=False))
    named_t = rest[first + len(stage_t) + len(dp_t) :]
    stage_s = {s: ratio(float(t.mean()), t_ideal) for s, t in stage_t.items()}
    dp_s = {d: ratio(float(t.mean()), t_ideal) for d, t in dp_t.items()}
    m_w, m_s = _shares(replay, stage_s, dp_s, float(no_delay.mean()), t_ideal)

    base_s, now_s = float(replay.base_s.mean()), float(no_delay.mean())
    error = error_ratio(base_s, now_s)
    is_believed = error <= MAX_SIMULATION_ERROR_RATIO
    unplaced = ({}, {}) if is_believed else _unplaced(replay, original)

    def result(text: str, t: Floats) -> CauseResult:
        mean = float(t.mean())
        return CauseResult(
            text,
            mean,
            ratio(now_s, mean),
            now_s - mean,
            simulation_error_ratio=error,
            replayed_s=mean,
        )

    def per_step(t: Floats) -> dict[int, float]:
        return dict(zip(replay.steps, t.tolist(), strict=True))

    metrics = PipelineMetrics(
        ranks=tuple(tuple(row) for row in replay.ranks.tolist()),
        stages=tuple(replay.stages),
        dp_ranks=tuple(replay.dp_ranks),
        ideal_by_optype_s=replay.ideal_by_type,
        slowdown_by_stage=stage_s,
        slowdown_by_dp=dp_s,
        slowdown_by_stage_per_step={s: per_step(t / ideal_t) for s, t in stage_t.items()},
        slowdown_by_dp_per_step={d: per_step(t / ideal_t) for d, t in dp_t.items()},
        m_w=m_w,
        m_s=m_s,
        no_pp_comm=result("remove comm=pp", rest[0]),
        no_dp_comm=result("remove comm=dp", rest[1]),
        judgement=judge(
            replay, ratio(now_s, t_ideal), stage_s, m_s.remove, is_believed=is_believed
        ),
        statistics=describe(replay),
        replay_error_s=float(np.abs(shifted - shifted.mean()).max()) if len(shifted) > 1 else 0.0,
        unplaced_by_optype_s=unplaced[0],
        unplaced_by_stage_s=unplaced[1],
    )
    measured = (replay.base_s, no_delay, ideal_t)
    return WhatIf(
        method="pipeline",
        steps=tuple(replay.steps),
        dropped_steps=tuple(replay.dropped_steps),
        t_base_s=base_s,
        t_no_delay_s=now_s,
        t_ideal_s=t_ideal,
        per_step={
            s: StepTimes(*times)
            for s, *times in zip(replay.steps, *(t.tolist() for t in measured), strict=True)
        },
        slowdown_by_optype={g: ratio(float(t.mean()), t_ideal) for g, t in type_t.items()},
        slowdown_by_rank=metrics.slowdown_by_rank,
        causes=tuple(result(c.text, t) for c, t in zip(causes, named_t, strict=True)),
        refused=None if is_believed else _refusal(error, base_s - now_s, metrics),
        pipeline=metrics,
    )


def _refusal(error: float, lost_s: float, metrics: PipelineMetrics) -> str:
    """Why the replay is not believed, and before which operations the time passes that it cannot
    place."""
    text = (
        f"the replay misses the measured step time by {error:.1%}"
        f" (limit {MAX_SIMULATION_ERROR_RATIO:.0%}): something that was not recorded takes time"
    )
    by_type, by_stage = (
        sorted(((s, k) for k, s in unplaced.items() if s > 0), key=lambda e: (-e[0], str(e[1])))
        for unplaced in (metrics.unplaced_by_optype_s, metrics.unplaced_by_stage_s)
    )
    if not by_type:
        return text
    what = listed([f"{seconds(s)} before {k}" for s, k in by_type[:3]])
    where = f", most on stage {by_stage[0][1]}" if by_stage and len(metrics.stages) > 1 else ""
    return f"{text}; {seconds(lost_s)} a step pass between operations: {what}{where}"


def saved_evenly_s(replay: Replay) -> float | None:
    """Seconds a step that go if each kind of computation takes as long on every stage, and no less
    in all; None where the replay is not believed."""

    def evenly(_: int, means: Mapping[int, float]) -> float:
        return sum(means.values()) / len(replay.stages)

    return _saved_by_stages_s(replay, evenly)


def beyond_other_stages_s(replay: Replay, stage: int) -> float:
    """Seconds a step that a stage's computations take beyond those of the median other stage."""
    times = {
        s: float(replay.work_s[replay.ops_where(optypes=o.COMPUTE, stage=s)].sum(axis=0).mean())
        for s in replay.stages
    }
    of_stage = times.pop(stage)
    return of_stage - float(np.median(list(times.values()))) if times else 0.0


def saved_by_stage_s(replay: Replay, stage: int) -> float | None:
    """Seconds a step that go if a stage's computations take what they take on the median of the
    other stages: the stage does less, and nobody does more. Each operation takes what that of the
    same chunk and place in the order of its kind takes there, so that what stood still in one of
    them goes from that one; where stages differ in their operations, all of a kind are longer by
    one factor. None where no other stage computes, or the replay is not believed."""
    changed = replay.work_s.copy()
    for optype in o.COMPUTE:
        rows = {s: _in_order(replay, optype, s) for s in replay.stages}
        others = [r for s, r in rows.items() if s != stage and len(r)]
        own = rows.get(stage, [])
        if not len(own) or not others:
            continue
        if all(len(r) == len(own) for r in others):
            changed[own] = np.median(np.stack([replay.work_s[r] for r in others]), axis=0)
        else:
            usual_s = float(np.median([replay.work_s[r].mean() for r in others]))
            changed[own] *= usual_s / (float(replay.work_s[own].mean()) or 1.0)
    return _saved_s(replay, changed)


def _in_order(replay: Replay, optype: str, stage: int) -> list[int]:
    """A stage's operations of a kind, by chunk and sequence."""
    found = [op for op in replay.template.ops if op.optype == optype and op.stage == stage]
    return [op.index for op in sorted(found, key=lambda op: (op.chunk, op.sequence))]


def saved_like_replicas_s(
    replay: Replay, stage: int, dp_rank: int, least_s: float = 0.0
) -> float | None:
    """Seconds a step that go if a stage computes in one replica as the median other one does, each
    operation of each step by itself: what stood still in one of them goes from that one. None where
    there is no other, where it does not take ``least_s`` longer in a mean step, or where the replay
    is not believed."""
    if len(replay.dp_ranks) < 2 or stage not in replay.stages or dp_rank not in replay.dp_ranks:
        return None
    at = replay.dp_ranks.index(dp_rank)
    mask = replay.ops_where(optypes=o.COMPUTE, stage=stage)
    by_replica = replay.work_s[mask]
    usual = np.median(np.delete(by_replica, at, axis=2), axis=2)
    if float((by_replica[:, :, at] - usual).sum(axis=0).mean()) < least_s:
        return None
    changed = replay.work_s.copy()
    changed[mask, :, at] = usual
    return _saved_s(replay, changed)


def saved_by_even_lengths_s(replay: Replay) -> float | None:
    """Seconds a step that go if the microbatches of a step are alike: each kind of computation of a
    chunk takes its mean over the step's microbatches and replicas, so that no less is done in all;
    None where the replay is not believed."""
    alike: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for op in replay.template.ops:
        if op.optype in o.COMPUTE:
            alike[op.optype, op.stage, op.chunk].append(op.index)
    changed = replay.work_s.copy()
    for ops in alike.values():
        changed[ops] = changed[ops].mean(axis=(0, 2), keepdims=True)
    return _saved_s(replay, changed)


def _saved_by_stages_s(
    replay: Replay, target_s: Callable[[int, Mapping[int, float]], float]
) -> float | None:
    """Seconds a step that go with other means by stage, of each kind of computation."""
    changed = replay.work_s.copy()
    for optype in o.COMPUTE:
        masks = {s: replay.ops_where(optypes=(optype,), stage=s) for s in replay.stages}
        means = {s: float(changed[mask].mean()) for s, mask in masks.items() if mask.any()}
        means = {s: mean for s, mean in means.items() if mean > 0}
        for stage, mean in means.items():
            changed[masks[stage]] *= target_s(stage, means) / mean
    return _saved_s(replay, changed)


def _saved_s(replay: Replay, changed: Floats) -> float | None:
    """Seconds a step that go with other work; None where the replay is not believed."""
    now, then = (float(t.mean()) for t in replay.run([replay.work_s, changed]))
    if error_ratio(float(replay.base_s.mean()), now) > MAX_SIMULATION_ERROR_RATIO:
        return None
    return now - then


def _unplaced(replay: Replay, original: Floats) -> tuple[dict[str, float], dict[int, float]]:
    """Seconds a step that go if operations of a type, or of a stage, are launched at once.

    ``original``: the steps with all launch delays. Delays of several groups may hide each other.
    """
    masks = [
        *(replay.ops_where(optypes=(t,)) for t in replay.ideal_by_type),
        *(replay.ops_where(stage=s) for s in replay.stages),
    ]
    delays = [np.where(m[:, None, None], 0.0, replay.delay_s) for m in masks]
    times = replay.run([replay.work_s] * len(delays), delays=delays)
    saved = [float((original - t).mean()) for t in times]
    return (
        dict(zip(replay.ideal_by_type, saved, strict=False)),
        dict(zip(replay.stages, saved[len(replay.ideal_by_type) :], strict=True)),
    )


def _optype_groups(replay: Replay) -> dict[str, Mask]:
    names: dict[str, list[str]] = {}
    for optype in replay.ideal_by_type:
        names.setdefault(PP_COMM.get(optype, optype), []).append(optype)
    return {
        group: replay.ops_where(optypes=optypes).reshape(-1) for group, optypes in names.items()
    }


def _shares(
    replay: Replay,
    stage_s: Mapping[int, float],
    dp_s: Mapping[int, float],
    t_no_delay: float,
    t_ideal: float,
) -> tuple[Share, Share]:
    """M_W of the slowest ranks and M_S of the last stage."""
    work, ideal = replay.work_s, np.broadcast_to(replay.ideal_s, replay.work_s.shape)
    cells = [
        (-min(stage_s[stage], dp_s[dp]), int(replay.ranks[i, j]), stage, j)
        for i, stage in enumerate(replay.stages)
        for j, dp in enumerate(replay.dp_ranks)
        if replay.ranks[i, j] >= 0
    ]
    chosen = sorted(cells)[: math.ceil(WORST_RANKS_RATIO * len(cells))]
    worst = np.zeros(work.shape, dtype=np.bool_)
    for _, _, stage, position in chosen:
        worst[:, :, position] |= replay.ops_where(stage=stage)[:, None]
    last_stage = replay.stages[-1]
    last = np.broadcast_to(replay.ops_where(stage=last_stage)[:, None, None], work.shape)
    times = replay.run(
        [
            np.where(worst, ideal, work),
            np.where(worst, work, ideal),
            np.where(last, ideal, work),
            np.where(last, work, ideal),
        ]
    )
    t = [float(replayed.mean()) for replayed in times]
    lost = t_no_delay - t_ideal

    def share(t_remove: float, t_add: float) -> tuple[float | None, float | None]:
        if lost <= 0:
            return None, None
        return (t_no_delay - t_remove) / lost, (t_add - t_ideal) / lost

    return (
        Share(*share(t[0], t[1]), t[0], t[1], ranks=tuple(rank for _, rank, _, _ in chosen)),
        Share(*share(t[2], t[3]), t[2], t[3], stage=last_stage),
    )
