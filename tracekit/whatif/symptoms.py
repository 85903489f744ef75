"""What the operations say beside the replay: peers, stages, correlation; and the verdict.

Peers are the same operations at the same stage on other replicas: stages do different work by
design, replicas do not. Medians, so that one bad step or replica does not move the yardstick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from tracekit.whatif import operations as o
from tracekit.whatif.operations import Floats
from tracekit.whatif.replay import Replay

Kind = Literal["slow_rank", "stage_imbalance", "sequence_imbalance", "unexplained", "healthy"]

MIN_PEER_RATIO = 1.10
MIN_STEPS_RATIO = 0.80
MIN_STAGE_RATIO = 1.10
MIN_STAGE_SHARE = 0.5
MIN_CORRELATION = 0.95
MIN_FORWARD_CV = 0.10
STRAGGLING = 1.1
"""S above this is a straggling job in the published study."""


class Symptoms(Struct, frozen=True):
    """The numbers that tell causes apart."""

    peer_ratio_by_rank: Mapping[int, float]
    """Median over steps of a rank's compute over the median of the other replicas' at its stage."""
    stage_ratio_forward: Mapping[int, float]
    stage_ratio_backward: Mapping[int, float]
    correlation_by_rank: Mapping[int, float]
    """Of the forward and the backward of a microbatch."""
    forward_cv_by_rank: Mapping[int, float]
    max_peer_ratio_forward: float | None
    max_peer_ratio_backward: float | None


class Judgement(Struct, frozen=True):
    """What kind of job this is, whom it points at, and the numbers behind it."""

    kind: Kind
    sentence: str
    symptoms: Symptoms
    ranks: tuple[int, ...] = ()
    stage: int | None = None
    dp_rank: int | None = None


def judge(
    replay: Replay,
    slowdown: float,
    stage_s: Mapping[int, float],
    m_s: float | None,
    is_believed: bool = True,
) -> Judgement:
    """The most specific explanation that the operations support.

    A rank that is slower than its peers comes before an imbalance of stages, however small its
    part: it is broken, the imbalance is how the job was laid out.
    """
    peers, peer_steps = _peer_ratios(replay)
    symptoms = _symptoms(replay, peers)
    if peers is not None and peer_steps is not None:
        slow = (peers >= MIN_PEER_RATIO) & (peer_steps >= MIN_STEPS_RATIO)
        if slow.any():
            i, j = np.unravel_index(int(np.where(slow, peers, 0).argmax()), peers.shape)
            rank = int(replay.ranks[i, j])
            return Judgement(
                "slow_rank",
                f"Rank {rank} (stage {replay.stages[i]}, replica {replay.dp_ranks[j]}) computes "
                f"{peers[i, j]:.2f}x as long as its peers at the same stage.",
                symptoms,
                ranks=(rank,),
                stage=replay.stages[i],
                dp_rank=replay.dp_ranks[j],
            )
    if not is_believed:
        return Judgement(
            "unexplained",
            "No rank stands out from its peers; the replay is refused, so no more is claimed.",
            symptoms,
        )
    ratios = (symptoms.stage_ratio_forward, symptoms.stage_ratio_backward)
    stage = _uneven_stage(ratios, stage_s, m_s, replay.stages[-1])
    if stage is not None:
        return Judgement(
            "stage_imbalance",
            f"Stage {stage} computes {max(r.get(stage, 0.0) for r in ratios):.2f}x as long as "
            f"the {'other' if len(replay.stages) == 2 else 'median'} stage.",
            symptoms,
            ranks=tuple(int(r) for r in replay.ranks[replay.stages.index(stage)] if r >= 0),
            stage=stage,
        )
    takes = f"The job takes {slowdown:.2f}x its ideal time."
    if not slowdown > STRAGGLING:
        return Judgement("healthy", takes, symptoms)
    correlation, cv = symptoms.correlation_by_rank, symptoms.forward_cv_by_rank
    uneven = [
        r for r in correlation if correlation[r] >= MIN_CORRELATION and cv[r] >= MIN_FORWARD_CV
    ]
    if uneven and 2 * len(uneven) >= len(correlation):
        typical = float(np.median([correlation[r] for r in uneven]))
        return Judgement(
            "sequence_imbalance",
            "Microbatches differ in length: forward and backward vary together "
            f"(correlation {typical:.3f}).",
            symptoms,
            ranks=tuple(sorted(uneven)),
        )
    return Judgement("unexplained", takes, symptoms)


def _symptoms(replay: Replay, peers: Floats | None) -> Symptoms:
    correlation, cv = _correlation(replay)
    known = np.argwhere(replay.ranks >= 0)
    return Symptoms(
        peer_ratio_by_rank={}
        if peers is None
        else {int(replay.ranks[i, j]): float(peers[i, j]) for i, j in known},
        stage_ratio_forward=_stage_ratios(replay, o.FORWARD),
        stage_ratio_backward=_stage_ratios(replay, o.BACKWARD),
        correlation_by_rank=correlation,
        forward_cv_by_rank=cv,
        max_peer_ratio_forward=max_peer_ratio(replay, o.FORWARD),
        max_peer_ratio_backward=max_peer_ratio(replay, o.BACKWARD),
    )


def _typed(replay: Replay, optype: str, stage: int) -> Floats:
    """Work of a stage's operations of a type: (operation, step, replica)."""
    return np.asarray(replay.work_s[replay.ops_where(optypes=(optype,), stage=stage)])


def _compute_by_step(replay: Replay) -> Floats:
    """Compute of each rank and step: (stage, step, replica)."""
    return np.stack(
        [replay.work_s[replay.ops_where(optypes=o.COMPUTE, stage=s)].sum(axis=0)
         for s in replay.stages]
    )  # fmt: skip


def _peer_ratios(replay: Replay) -> tuple[Floats | None, Floats | None]:
    """Compute over that of the other replicas at the stage: median over steps (stage, replica),
    and the share of steps in which it is at least MIN_PEER_RATIO. None without replicas."""
    if len(replay.dp_ranks) < 2:
        return None, None
    compute = _compute_by_step(replay)
    ratios = np.empty_like(compute)
    for j in range(len(replay.dp_ranks)):
        others = np.median(np.delete(compute, j, axis=2), axis=2)
        ratios[:, :, j] = np.divide(
            compute[:, :, j], others, out=np.ones_like(others), where=others > 0
        )
    return np.median(ratios, axis=1), (ratios >= MIN_PEER_RATIO).mean(axis=1)


def max_peer_ratio(replay: Replay, optype: str) -> float | None:
    """The largest mean of a rank over the median of its stage's; None without replicas."""
    if len(replay.dp_ranks) < 2:
        return None
    largest = 0.0
    for stage in replay.stages:
        work = _typed(replay, optype, stage)
        if work.size:
            means = work.mean(axis=(0, 1))
            middle = float(np.median(means))
            largest = max(largest, float(means.max()) / middle if middle > 0 else 0.0)
    return largest or None


def _stage_ratios(replay: Replay, optype: str) -> dict[int, float]:
    """Mean of each stage over the median stage's; of two stages over the other's."""
    means = {}
    for stage in replay.stages:
        work = _typed(replay, optype, stage)
        if work.size:
            means[stage] = float(work.mean())
    if not means:
        return {}
    times = list(means.values())
    middles = {s: sum(times) - v if len(times) == 2 else np.median(times) for s, v in means.items()}
    return {s: v / float(middles[s]) if middles[s] > 0 else 1.0 for s, v in means.items()}


def _uneven_stage(
    ratios: Sequence[Mapping[int, float]],
    stage_s: Mapping[int, float],
    m_s: float | None,
    last_stage: int,
) -> int | None:
    """The stage that computes longer than the others and is what holds the job up."""
    if len(stage_s) < 2:
        return None
    stage = max(stage_s, key=lambda s: (stage_s[s], -s))
    ratio = max(by_stage.get(stage, 0.0) for by_stage in ratios)
    # Adding the stage alone to the ideal job shows any stage's part; M_S only the last one's.
    holds = stage_s[stage] >= MIN_STAGE_RATIO or (
        stage == last_stage and m_s is not None and m_s >= MIN_STAGE_SHARE and stage_s[stage] > 1.05
    )
    return stage if ratio >= MIN_STAGE_RATIO and holds else None


def _correlation(replay: Replay) -> tuple[dict[int, float], dict[int, float]]:
    """Per rank: correlation of forward and backward of a microbatch, and the forward's CV.

    Per rank, because one slow rank raises the pooled value. Both are over the job's own steps;
    the k-th forward belongs to the k-th backward of the same microbatch and chunk.
    """
    ops = replay.template.ops
    correlation: dict[int, float] = {}
    cv: dict[int, float] = {}
    for i, stage in enumerate(replay.stages):
        forward = sorted(
            (op for op in ops if op.stage == stage and op.optype == o.FORWARD),
            key=lambda op: (op.chunk, op.sequence),
        )
        backward = sorted(
            (op for op in ops if op.stage == stage and op.optype == o.BACKWARD),
            key=lambda op: (op.chunk, op.sequence),
        )
        if not forward or len(forward) != len(backward):
            continue
        f = replay.work_s[[op.index for op in forward]]
        b = replay.work_s[[op.index for op in backward]]
        for j in range(len(replay.dp_ranks)):
            x, y = f[:, :, j].ravel(), b[:, :, j].ravel()
            rank = int(replay.ranks[i, j])
            if rank < 0 or len(x) < 3 or x.mean() <= 0:
                continue
            cv[rank] = float(x.std(ddof=1) / x.mean())
            flat = x.std() <= 0 or y.std() <= 0
            correlation[rank] = 0.0 if flat else float(np.corrcoef(x, y)[0, 1])
    return correlation, cv
