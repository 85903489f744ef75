"""A replay as the JSON of ``tracekit whatif --format json`` and as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import to_builtins

from tracekit.whatif.metrics import (
    MAX_SIMULATION_ERROR_RATIO,
    CauseResult,
    PipelineMetrics,
    Share,
    WhatIf,
)

SCHEMA_VERSION = 1
_METHODS = {
    "twin ranks": "observed difference to other ranks",
    "twin steps": "observed difference to other steps",
    "counter share": "counters",
    "recorded time": "the time that was recorded",
}


def to_dict(whatif: WhatIf) -> dict[str, Any]:
    """Keys are a public contract. Null: the figures of a refused replay, and what only a pipeline's
    operations or only collectives have, where the replay is of the others.

    ``step_s`` is the job's step: ``causes`` are of it, with ``replayed_s`` beside it where a replay
    says so. All other times are the replay's own, ``t_base_s`` what it is of, as measured.
    """
    is_believed = whatif.refused is None

    def kept(value: Any) -> Any:
        return value if is_believed else None

    content = {
        "schema_version": SCHEMA_VERSION,
        "method": whatif.method,
        "slowdown": kept(whatif.slowdown),
        "waste_ratio": kept(whatif.waste_ratio),
        "step_s": whatif.step_s,
        "t_base_s": whatif.t_base_s,
        "t_no_delay_s": kept(whatif.t_no_delay_s),
        "t_ideal_s": kept(whatif.t_ideal_s),
        # Where nothing could be replayed nothing was missed.
        "simulation_error_ratio": None
        if math.isnan(whatif.t_no_delay_s)
        else whatif.simulation_error_ratio,
        "base_over_no_delay": whatif.base_over_no_delay,
        "max_simulation_error_ratio": MAX_SIMULATION_ERROR_RATIO,
        "refused": whatif.refused,
        "slowdown_by_optype": kept(whatif.slowdown_by_optype),
        "slowdown_by_rank": kept(_texted(whatif.slowdown_by_rank)),
        "saved_s_per_step_by_rank": kept(_texted(whatif.saved_s_by_rank)),
        **_of_pipeline(whatif.pipeline, is_believed),
        "causes": _causes(whatif.causes, is_believed),
        "per_step": [
            {
                "step": step,
                "t_base_s": times.base_s,
                "t_no_delay_s": kept(times.no_delay_s),
                "t_ideal_s": kept(times.ideal_s),
                "slowdown": kept(times.slowdown),
                **_step_of_pipeline(whatif.pipeline, step, is_believed),
            }
            for step, times in whatif.per_step.items()
        ],
        "steps_count": len(whatif.steps),
        "dropped_steps": list(whatif.dropped_steps),
        "matched_calls_count": whatif.calls_count,
        "unmatched_calls_count": whatif.unmatched_count,
    }
    plain = _plain(content)
    assert isinstance(plain, dict)  # noqa: S101 - for the type checker
    return plain


_BELIEVED = (
    "slowdown_by_stage", "slowdown_by_dp", "heat_map", "m_w", "m_s", "no_pp_comm", "no_dp_comm",
    "ideal_by_optype_s",
)  # fmt: skip
_MEASURED = (
    "unplaced_s_by_optype", "unplaced_s_by_stage", "verdict", "statistics", "symptoms", "ranks",
)  # fmt: skip


def _of_pipeline(metrics: PipelineMetrics | None, is_believed: bool) -> dict[str, Any]:
    if metrics is None:
        return dict.fromkeys((*_BELIEVED, *_MEASURED))
    judgement = to_builtins(metrics.judgement)
    content = {
        "symptoms": judgement.pop("symptoms"),
        "verdict": judgement,
        "unplaced_s_by_optype": metrics.unplaced_by_optype_s,
        "unplaced_s_by_stage": _texted(metrics.unplaced_by_stage_s),
        "statistics": to_builtins(metrics.statistics),
        "ranks": [[rank if rank >= 0 else None for rank in row] for row in metrics.ranks],
    }
    if not is_believed:
        return content | dict.fromkeys(_BELIEVED)
    return content | {
        "slowdown_by_stage": _texted(metrics.slowdown_by_stage),
        "slowdown_by_dp": _texted(metrics.slowdown_by_dp),
        "heat_map": _heat_map(metrics),
        "m_w": _share(metrics.m_w),
        "m_s": _share(metrics.m_s),
        "no_pp_comm": to_builtins(metrics.no_pp_comm),
        "no_dp_comm": to_builtins(metrics.no_dp_comm),
        "ideal_by_optype_s": metrics.ideal_by_optype_s,
    }


def _step_of_pipeline(
    metrics: PipelineMetrics | None, step: int, is_believed: bool
) -> dict[str, Any]:
    if metrics is None or not is_believed:
        return {"slowdown_by_stage": None, "slowdown_by_dp": None}
    by_stage, by_dp = metrics.slowdown_by_stage_per_step, metrics.slowdown_by_dp_per_step
    return {
        "slowdown_by_stage": {str(s): by_step[step] for s, by_step in by_stage.items()},
        "slowdown_by_dp": {str(d): by_step[step] for d, by_step in by_dp.items()},
    }


def observed(causes: Iterable[CauseResult]) -> list[CauseResult]:
    """Those whose cost diagnose knows without this replay: they stand where it is refused."""
    return [c for c in causes if c.finding is not None]


def _causes(causes: Sequence[CauseResult], believed: bool) -> list[dict[str, Any]] | None:
    if believed:
        return [to_builtins(c) for c in causes]
    return [to_builtins(c) for c in observed(causes)] or None


def _texted(values: dict[int, float]) -> dict[str, float]:
    return {str(k): v for k, v in values.items()}


def _share(share: Share) -> dict[str, Any]:
    content: dict[str, Any] = to_builtins(share)
    content["ranks"] = list(share.ranks)
    return content


def _heat_map(metrics: PipelineMetrics) -> list[dict[str, Any]]:
    return [
        {"stage": stage, "dp_rank": dp, "rank": rank, "slowdown": metrics.slowdown_of(stage, dp)}
        for stage, row in zip(metrics.stages, metrics.ranks, strict=True)
        for dp, rank in zip(metrics.dp_ranks, row, strict=True)
        if rank >= 0
    ]


def _plain(value: Any) -> Any:
    """What JSON can hold: text keys, no NaN, no infinity."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_text(whatif: WhatIf) -> str:
    """At most a screen: what is lost, what each named cause costs, where it sits."""
    job = whatif.pipeline
    lines = [] if job is None else [f"VERDICT   {job.judgement.sentence}"]
    steps = f"{len(whatif.steps)} step" + "s" * (len(whatif.steps) != 1)
    if whatif.refused is not None:
        lines += [
            f"REFUSED   {whatif.refused}",
            f"          measured {whatif.step_s:.4f} s a step{_covered(whatif)} over {steps}",
            *(f"CAUSE     {_cause(c, whatif)}" for c in observed(whatif.causes)),
        ]
        return "\n".join(lines) + "\n"
    alike = "operations of a type" if job is not None else "peers and all equal calls"
    lines.append(
        f"STEP      {whatif.step_s:.4f} s measured{_covered(whatif)},"
        f" {whatif.t_no_delay_s:.4f} replayed (error {whatif.simulation_error_ratio:.1%}),"
        f" {whatif.t_ideal_s:.4f} if all {alike} took the same"
    )
    if whatif.dropped_steps:
        steps += f", {len(whatif.dropped_steps)} left out"
    if whatif.calls_count is not None:
        steps += f"; {whatif.calls_count} matched calls, "
        steps += f"{whatif.unmatched_count} others count as own time"
    lost = f": {whatif.waste_ratio:.1%} of the time is lost" if job is not None else ""
    lines.append(f"SLOWDOWN  {whatif.slowdown:.4f}x{lost}   ({steps})")
    lines += [f"CAUSE     {_cause(c, whatif)}" for c in whatif.causes]
    by_type = "   ".join(
        f"{name} {value:.4f}"
        for name, value in sorted(whatif.slowdown_by_optype.items(), key=lambda i: -i[1])[:4]
    )
    if job is None:
        lines += [*_rank_lines(whatif), f"BY TYPE   {by_type}"]
        return "\n".join(lines) + "\n"
    named = {c.cause for c in whatif.causes}
    for cause in (job.no_pp_comm, job.no_dp_comm):
        if cause.cause not in named:
            lines.append(f"CAUSE     {_cause(cause, whatif)}")
    lines.append(f"BY TYPE   {by_type}")
    for share, name in ((job.m_w, "slowest ranks"), (job.m_s, "last stage")):
        if share.remove is not None and share.add is not None:
            who = f"rank {', '.join(map(str, share.ranks))}" if share.ranks else f"{share.stage}"
            lines.append(
                f"SHARE     {name} ({who}): {_part(share.remove)} of the loss goes with them,"
                f" {_part(share.add)} comes with them alone"
            )
    lines += ["", *_heat_lines(job)]
    return "\n".join(lines) + "\n"


def _rank_lines(whatif: WhatIf, count: int = 8) -> list[str]:
    """The slowest ranks."""
    slowest = sorted(whatif.slowdown_by_rank.items(), key=lambda i: (-i[1], i[0]))[:count]
    lines = ["BY RANK   alone in an ideal job, and saved without it"]
    for rank, value in slowest:
        saved = whatif.saved_s_by_rank.get(rank)
        gain = f"   {saved:+.4f} s a step" if saved is not None else ""
        lines.append(f"  rank {rank:<6}{value:8.4f}x{gain}")
    return lines


def _part(ratio: float) -> str:
    """A share of the loss, in words for people.

    The ideal job is made of the peers' means: without the slowest, ranks that are faster than the
    mean stay so, and the job may lose even less than none. Nobody loses more than all.
    """
    return f"{min(max(ratio, 0.0), 1.0):.2f}"


def _covered(whatif: WhatIf) -> str:
    """What of the job's step is replayed, where that is not all of it."""
    step, replayed = f"{whatif.step_s:.4f}", f"{whatif.t_base_s:.4f}"
    if step == replayed:
        return ""
    what = "in the steps replayed" if whatif.pipeline is None else "from first to last operation"
    part = whatif.t_base_s / whatif.step_s
    # Of steps that overlap the operations last longer than a step: no share of it.
    return f", {replayed} {what}" + (f" ({part:.1%} of it)" if part <= 1 else "")


def _cause(result: CauseResult, whatif: WhatIf) -> str:
    """Before, after and the difference, all of the job's step; of which replay, where it is not the
    one above, or of which finding, by which method and between what bounds."""
    before, method = whatif.step_s, whatif.method
    cause = result.of_step(before)
    share = cause.saved_s_per_step / before if before > 0 else 0.0
    text = f"{cause.cause}: {before:.4f} s a step becomes {cause.t_s:.4f}"
    text += f" ({-cause.saved_s_per_step:+.4f} s, {-share:+.1%})" if abs(share) >= 5e-4 else ""
    if cause.low_s_per_step is not None and cause.high_s_per_step is not None:
        low, high = cause.low_s_per_step, cause.high_s_per_step
        text += f"; {low:.4f} to {high:.4f} s less by {_METHODS.get(cause.method, cause.method)}"
    if cause.finding is not None:
        text += f", the cost of {cause.finding}"
    if cause.against:
        text += f"; against: {'; '.join(cause.against)}"
    if cause.method == method or cause.low_s_per_step is not None or cause.finding is not None:
        return text
    return f"{text}; of the whole step, by {cause.method}, error {cause.simulation_error_ratio:.1%}"


def _heat_lines(metrics: PipelineMetrics, columns: int = 12) -> list[str]:
    """Stages down, replicas across; the slowest replicas where there are many."""
    replicas = sorted(metrics.dp_ranks, key=lambda d: -metrics.slowdown_by_dp[d])[:columns]
    replicas.sort()
    more = len(metrics.dp_ranks) - len(replicas)
    title = f" ({more} faster replicas not shown)" if more else ""
    lines = [f"SLOWDOWN BY STAGE AND REPLICA{title}"]
    lines.append("          " + " ".join(f"{f'dp{d}':>7}" for d in replicas))
    for stage in metrics.stages:
        cells = " ".join(f"{metrics.slowdown_of(stage, d):7.3f}" for d in replicas)
        lines.append(f"  stage {stage:<3}{cells}")
    return lines
