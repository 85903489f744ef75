"""What moved between two sides, by class, rank, stage, operator, kernel, collective and counter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from tracekit.comparison.model import FindingChange, Moved, MovedPart
from tracekit.comparison.sides import RunRows
from tracekit.findings import Finding
from tracekit.rules.steps import SAME_RATIO

MIN_PART_RATIO = 0.001
"""Share of the step from which the change of an operator or kernel is listed."""
SAME_COST_RATIO = 0.25
"""Findings of both sides whose costs differ by more have changed, as methods that do disagree."""

Figures = Mapping[str, float]
Runs = Sequence[RunRows]


def classes(baseline: Runs, candidate: Runs) -> tuple[Moved, ...]:
    """How a mean rank's step divides; without steps, its window, as shares of it."""
    has_steps = all(len(run.steps) for run in (*baseline, *candidate))
    figures, unit = (_of_steps, "s") if has_steps else (_of_windows, "ratio")
    return _moved(_mean(baseline, figures), _mean(candidate, figures), unit, is_all=True)


def _of_steps(run: RunRows) -> Figures:
    means = list(run.steps.rank_means.values())
    if not means:
        return {}
    named = {
        "compute": fmean(m.compute for m in means),
        "communication not hidden": fmean(m.exposed_comm for m in means),
        "copies": fmean(m.memory for m in means),
        "idle": fmean(m.idle for m in means),
    }
    return {name: ns / 1e9 for name, ns in named.items()}


def _of_windows(run: RunRows) -> Figures:
    rows = run.of("overlap")
    span_ns = sum(int(r["span_ns"]) for r in rows)
    if span_ns <= 0:
        return {}
    columns = (("compute", "compute_ns"), ("communication not hidden", "exposed_comm_ns"))
    named = {name: sum(int(r[column]) for r in rows) / span_ns for name, column in columns}
    return {**named, "idle": sum(int(r["idle_ns"]) for r in rows) / span_ns}


def ranks(baseline: Runs, candidate: Runs) -> tuple[Moved, ...]:
    """What each rank did itself in a mean step, whose step all ranks share: the largest change
    first."""
    return _by_change(
        _moved(_mean(baseline, _own_of_ranks), _mean(candidate, _own_of_ranks), "s", SAME_RATIO)
    )


def _own_of_ranks(run: RunRows) -> Figures:
    return {
        f"rank {rank}, but communication": (m.compute + m.memory + m.idle) / 1e9
        for rank, m in run.steps.rank_means.items()
    }


def stages(baseline: Runs, candidate: Runs) -> tuple[Moved, ...]:
    """What a microbatch takes each stage of a pipeline."""
    return _moved(_mean(baseline, _of_stages), _mean(candidate, _of_stages), "s", SAME_RATIO)


def _of_stages(run: RunRows) -> Figures:
    return {
        f"stage {row['stage']}, {name} of a microbatch": float(row[column]) / 1e9
        for row in run.of("stage_balance")
        for name, column in (("forward", "forward_ns"), ("backward", "backward_ns"))
        if row[column] is not None
    }


def collectives(baseline: Runs, candidate: Runs) -> tuple[Moved, ...]:
    """What a rank sends in a step: calls and bytes by kind of group and operation."""
    calls = _moved(_mean(baseline, _calls), _mean(candidate, _calls), "count", SAME_RATIO)
    sent = _moved(_mean(baseline, _bytes), _mean(candidate, _bytes), "bytes", SAME_RATIO)
    exposed = _moved(_mean(baseline, _exposed), _mean(candidate, _exposed), "ratio", SAME_RATIO)
    return (*calls, *sent, *exposed)


def _calls(run: RunRows) -> Figures:
    return {f"{_group(r)}, calls a step": float(r["calls_per_step"]) for r in run.of("traffic")}


def _bytes(run: RunRows) -> Figures:
    return {
        f"{_group(r)}, sent a step": float(r["bytes_per_step"])
        for r in run.of("traffic")
        if r["bytes_per_step"] is not None
    }


def _group(row: Mapping[str, object]) -> str:
    return f"{row['op']} of {row['group_kind'] or 'an unknown group'}"


def _exposed(run: RunRows) -> Figures:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in run.of("exposed_comm_by_op"):
        sums[str(row["op"])][0] += float(row["exposed_comm_ns"])
        sums[str(row["op"])][1] += float(row["comm_ns"])
    return {f"{op}, share not hidden": a / b for op, (a, b) in sums.items() if b}


def groups(baseline: Runs, candidate: Runs) -> tuple[Moved, ...]:
    """The transfer of each communicator by operation and size, waiting left out."""
    before, after = _mean(baseline, _transfers), _mean(candidate, _transfers)
    return _by_change(_moved(before, after, "s", SAME_RATIO))


def _transfers(run: RunRows) -> Figures:
    return {
        f"{row['op']} of {row['message_bytes']} bytes in {row['group_id']}, transfer": (
            float(row["transfer_p50_ns"]) / 1e9
        )
        for row in run.of("group_bandwidth")
        if row["transfer_p50_ns"] is not None
    }


def counters(baseline: Runs, candidate: Runs) -> tuple[Moved, ...]:
    """Counters of GPUs (the median GPU's median) and of ports (what all grew by a second)."""
    before, after = _counters(baseline), _counters(candidate)
    return tuple(
        Moved(
            name=name,
            unit=unit,
            baseline=before.get((name, unit)),
            candidate=after.get((name, unit)),
        )
        for name, unit in sorted({*before, *after})
        if _has_moved(before.get((name, unit)), after.get((name, unit)), SAME_RATIO)
    )


def _counters(runs: Runs) -> dict[tuple[str, str], float]:
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        by_name: dict[tuple[str, str], list[float]] = defaultdict(list)
        for row in run.of("gpu_counters"):
            if row["p50_value"] is not None:
                by_name[f"GPU {row['counter']}", str(row["unit"])].append(float(row["p50_value"]))
        for key, readings in by_name.items():
            values[key].append(sorted(readings)[len(readings) // 2])
        grown: dict[tuple[str, str], float] = defaultdict(float)
        for row in run.of("port_counters"):
            seconds_s = float(row["step_covered_ns"] or 0) / 1e9
            if row["step_growth"] is not None and seconds_s > 0:
                way = f" {row['direction']}" if row["direction"] else ""
                rate = float(row["step_growth"]) / seconds_s
                grown[f"ports' {row['counter']}{way}", f"{row['unit']}/s"] += rate
        for key, value in grown.items():
            values[key].append(value)
    return {key: fmean(readings) for key, readings in values.items()}


# ---------------------------------------------------------------- parts by name


def operators(baseline: Runs, candidate: Runs, step_s: float) -> tuple[MovedPart, ...]:
    """Operators, ranges and pauses of the host, the largest change first."""
    return _parts(baseline, candidate, step_s, "host")


def kernels(baseline: Runs, candidate: Runs, step_s: float) -> tuple[MovedPart, ...]:
    """Kernels and copies, likewise; communication is left out."""
    return _parts(baseline, candidate, step_s, "device")


_Key = tuple[str, str, str]


def _parts(baseline: Runs, candidate: Runs, step_s: float, timeline: str) -> tuple[MovedPart, ...]:
    before, after = _spent(baseline, timeline), _spent(candidate, timeline)
    parts = [
        MovedPart(
            kind=kind,
            path=path,
            name=name,
            baseline_s=before[kind, path, name][0],
            candidate_s=after[kind, path, name][0],
            baseline_calls_count=before[kind, path, name][1],
            candidate_calls_count=after[kind, path, name][1],
        )
        for kind, path, name in {*before, *after}
    ]
    parts = [p for p in parts if abs(p.candidate_s - p.baseline_s) >= MIN_PART_RATIO * step_s > 0]
    return tuple(
        sorted(parts, key=lambda p: (-abs(p.candidate_s - p.baseline_s), p.path, p.name, p.kind))
    )


def _spent(runs: Runs, timeline: str) -> Mapping[_Key, tuple[float, float]]:
    """Seconds and calls of a mean rank's mean step by kind, path and name."""
    sums: dict[_Key, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for run in runs:
        count = len({row["rank"] for row in run.of("self_time")}) * len(runs)
        for row in run.of("self_time"):
            if row["timeline"] == timeline:
                key = (str(row["kind"]), str(row["path"]), str(row["name"]))
                spent_s, calls = sums[key]
                sums[key] = (
                    spent_s + float(row["self_ns"]) / 1e9 / count,
                    calls + float(row["calls_count"]) / count,
                )
    return sums


# ---------------------------------------------------------------- findings


def findings(baseline: Runs, candidate: Runs) -> tuple[FindingChange, ...]:
    """Findings that one side alone has, then those of both with another cost."""
    before, after = _found(baseline), _found(candidate)
    changes = [_finding(name, before.get(name), after.get(name)) for name in {*before, *after}]
    return tuple(
        sorted(
            (c for c in changes if c is not None),
            key=lambda c: (
                ("new", "gone", "changed").index(c.change),
                c.is_explained,
                -abs((c.candidate_s or 0.0) - (c.baseline_s or 0.0)),
                c.id,
            ),
        )
    )


def _found(runs: Runs) -> dict[str, Finding]:
    """Findings by id, of the last run that has each."""
    return {f.id: f for run in runs for f in run.document.findings}


def _finding(name: str, before: Finding | None, after: Finding | None) -> FindingChange | None:
    told = after or before
    assert told is not None  # noqa: S101  # one side has it
    base_s = before.impact.s_per_step if before is not None else None
    other_s = after.impact.s_per_step if after is not None else None
    is_in_both = before is not None and after is not None
    if is_in_both and not _has_moved(base_s, other_s, SAME_COST_RATIO):
        return None
    return FindingChange(
        id=name,
        rule=told.rule,
        change="gone" if after is None else "new" if before is None else "changed",
        severity=told.severity.value,
        summary=told.summary,
        baseline_s=base_s,
        candidate_s=other_s,
        is_explained=bool(told.explained_by),
    )


# ---------------------------------------------------------------- shared


def _mean(runs: Runs, figures: Callable[[RunRows], Figures]) -> dict[str, float]:
    """Each figure's mean over the runs that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for name, value in figures(run).items():
            values[name].append(value)
    return {name: fmean(of_runs) for name, of_runs in values.items()}


def _moved(
    before: Figures, after: Figures, unit: str, least: float = 0.0, *, is_all: bool = False
) -> tuple[Moved, ...]:
    """What moved, in the order in which the sides have it."""
    return tuple(
        Moved(name=name, unit=unit, baseline=before.get(name), candidate=after.get(name))
        for name in dict.fromkeys((*before, *after))
        if is_all or _has_moved(before.get(name), after.get(name), least)
    )


def _by_change(rows: Sequence[Moved]) -> tuple[Moved, ...]:
    return tuple(
        sorted(rows, key=lambda r: (-abs((r.candidate or 0.0) - (r.baseline or 0.0)), r.name))
    )


def _has_moved(before: float | None, after: float | None, least: float) -> bool:
    """Whether the two differ by this share of the larger, or one is not there."""
    if before is None or after is None:
        return before is not after
    return abs(after - before) > least * max(abs(before), abs(after))
