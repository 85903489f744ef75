"""The numbers of a report that no finding carries: the run, its steps, its metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracekit.report.model import Metrics, Overlap, RankShares, RunInfo, StepTime, Traffic, Window
from tracekit.rules.base import Facts, Row
from tracekit.rules.low_mfu import waterfall
from tracekit.rules.pipeline import ScheduleBubble
from tracekit.rules.steps import utc
from tracekit.wording import runs


def metrics(facts: Facts, bubble: ScheduleBubble | None) -> Metrics:
    """Time of a step, overlap, bubble, utilisation and traffic; null where nothing tells."""
    used = waterfall(facts)
    return Metrics(
        step_time=_step_time(facts),
        overlap=_overlap(facts),
        bubble=_bubble(bubble),
        mfu=used.to_dict() if used is not None else None,
        traffic=_traffic(facts),
    )


def run_info(facts: Facts) -> RunInfo:
    """Which run it is: its window, steps, ranks and hosts."""
    job = facts.job
    spans = [s for key in facts.steps.keys if (s := facts.steps.span_ns(key)) is not None]
    start = job.start_ns if job.start_ns is not None else min((s for s, _ in spans), default=None)
    end = job.end_ns if job.end_ns is not None else max((e for _, e in spans), default=None)
    has_window = start is not None and end is not None
    return RunInfo(
        id=job.run_id or "run",
        attempt=job.attempt,
        window=Window(
            start_utc=utc(start) if start is not None and job.is_epoch else None,
            end_utc=utc(end) if end is not None and job.is_epoch else None,
        ),
        step_range=runs(key.step for key in facts.steps.keys),
        ranks=facts.ranks,
        world_size=job.world_size,
        hosts=tuple(sorted(set(job.hosts.values()))),
        steps_count=len(facts.steps),
        window_s=(end - start) / 1e9
        if has_window and end is not None and start is not None
        else None,
    )


def shares(facts: Facts) -> RankShares | None:
    """What the median rank does with its step; None where that is not known."""
    steps = facts.steps
    parts, rank = steps.median_parts, steps.median_rank
    if parts is None or rank is None or parts.dur <= 0 or facts.hidden_ranks:
        return None
    row = next(ranks[rank] for ranks in steps.by_key.values() if rank in ranks)
    return RankShares(
        rank=rank,
        compute_ratio=parts.compute / parts.dur,
        exposed_comm_ratio=parts.exposed_comm / parts.dur,
        memory_ratio=parts.memory / parts.dur,
        idle_ratio=parts.idle / parts.dur,
        is_host_side=row.is_host_side,
    )


def _step_time(facts: Facts) -> StepTime | None:
    row = next((r for r in facts.of("step_time_summary") if r["rank"] is None), None)
    if row is None or not row["steps_count"] or row["mean_ns"] is None:
        return None
    return StepTime(
        steps_count=int(row["steps_count"]),
        mean_s=row["mean_ns"] / 1e9,
        std_s=_s(row["std_ns"]),
        cv_ratio=row["cv_ratio"],
        p50_s=row["p50_ns"] / 1e9,
        p95_s=_s(row["p95_ns"]),
        p99_s=_s(row["p99_ns"]),
        max_s=row["max_ns"] / 1e9,
        outliers_count=row["outliers_count"],
    )


def _s(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e9


def _overlap(facts: Facts) -> Overlap | None:
    rows = facts.of("overlap")
    if not rows or any(row["comm_ns"] is None for row in rows):
        return None
    comm, overlap = _total(rows, "comm_ns"), _total(rows, "overlap_ns")
    sides = {str(row["measured_on"]) for row in rows}
    return Overlap(
        compute_s=_total(rows, "compute_ns") / 1e9,
        comm_s=comm / 1e9,
        overlap_s=overlap / 1e9,
        exposed_comm_s=_total(rows, "exposed_comm_ns") / 1e9,
        overlap_ratio=overlap / comm if comm else None,
        measured_on=sides.pop() if len(sides) == 1 else "gpu and host",
    )


def _bubble(bubble: ScheduleBubble | None) -> dict[str, Any] | None:
    if bubble is None:
        return None
    return {
        "bubble_ratio": bubble.bubble_ratio,
        "bubble_overhead_ratio": bubble.bubble_overhead_ratio,
        "expected_bubble_ratio": bubble.expected_bubble_ratio,
        "expected_bubble_overhead_ratio": bubble.expected_bubble_overhead_ratio,
        "window_s": bubble.window_ns / 1e9,
        "expected_s_per_step": bubble.allowed_ns / 1e9,
        "stages_count": bubble.stages_count,
        "microbatches_count": bubble.microbatches_count,
        "chunks_count": bubble.chunks_count,
    }


def _traffic(facts: Facts) -> tuple[Traffic, ...]:
    names = Traffic.__struct_fields__
    contents: list[dict[str, Any]] = [
        {name: row.get(name) for name in names} for row in facts.of("traffic")
    ]
    return tuple(Traffic(**content) for content in contents)


def _total(rows: Iterable[Row], column: str) -> int:
    return sum(int(row[column] or 0) for row in rows)
