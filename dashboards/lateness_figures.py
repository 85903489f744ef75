"""Figures of who was late: by step, by stage and replica, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tracekit.dashboards import heat, look
from tracekit.dashboards.drawing import Drawing, Rows
from tracekit.dashboards.step_figures import job_steps, step_labels, whole_steps
from tracekit.wording import plural, ranks_phrase, seconds, share

if TYPE_CHECKING:
    from tracekit.findings import Finding

LEAST_TOP_RATIO = 0.05
"""The colours reach at least to this share of a step (of the window): noise must not look like a
fire. What costs less than it is no major finding."""
LEAST_LATE_RATIO = 0.001
"""Of the steps' time: of less waiting than this a map is blank."""
LEAST_TOP_TIMES = 1.3
"""The same of a rank that computes longer than the median one."""
MAX_SUMMED = 2048
"""Rows and columns of a matrix of pairs before several share one: its square is kept in memory."""
MAX_MATRIX = 96
"""Ranks of a matrix of pairs; of more, several share a row and a column."""


def late_ranks(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """Rank by step: for how long the others waited for that rank by its own doing, with nothing to
    compute meanwhile."""
    del findings
    late = rows["late_steps"]
    whole = whole_steps(rows["step_breakdown"])
    keys = sorted({(r["capture_id"], r["step"]) for r in (*whole, *late)})
    ranks = sorted({r["rank"] for r in (*whole, *late)})
    total = sum(r["exposed_gap_ns"] or 0 for r in late)
    if not total or not keys:
        return None
    row_of = {rank: i for i, rank in enumerate(ranks)}
    column_of = {key: i for i, key in enumerate(keys)}
    values = np.zeros((len(ranks), len(keys)))
    for r in late:
        values[row_of[r["rank"]], column_of[r["capture_id"], r["step"]]] += r["exposed_gap_ns"] or 0
    usual = float(np.median([r["dur_ns"] for r in whole])) if whole else 0.0
    window = sum(length for length, _ in job_steps(whole).values())
    if total < LEAST_LATE_RATIO * window:
        return None
    most = max(float(values.max()), LEAST_TOP_RATIO * usual)
    divisor, unit = look.time_unit(most)
    cells, down, across = heat.folded(values / divisor, look.MAX_ROWS, look.MAX_COLUMNS)

    figure = look.new_figure(min(4.6, max(1.9, 1.1 + 0.2 * len(cells))))
    axes = figure.add_subplot()
    heat.draw(axes, cells, unit=f"waited for [{unit}]", most=most / divisor)
    axes.set_yticks(*look.row_ticks([str(r) for r in ranks[::down]]))
    axes.set_xticks(*look.some_ticks(step_labels(keys[::across])))
    axes.set_ylabel("rank" if down == 1 else f"rank (the worst of each {down})")
    axes.set_xlabel("step" if across == 1 else f"step (the worst of each {across})")

    sums = values.sum(axis=1)
    worst = int(np.argmax(sums))
    says = (
        f"{plural(len(ranks), 'rank')} over {plural(len(keys), 'step')}. The others waited most "
        f"for rank {ranks[worst]}: {seconds(float(sums[worst]) / 1e9)} in all, of "
        f"{seconds(total / 1e9)} for all ranks; it was waited for in "
        f"{plural(int((values[worst] > 0).sum()), 'step')}."
    )
    if window:
        says += f" That is {share(float(sums[worst]) / window)} of the steps' time."
    return Drawing(figure, says)


def stage_replicas(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """Stage by replica of a pipeline: how much longer each rank computes than the median one.

    A hot cell is a slow rank, a hot row a stage with more to do, a hot column a replica's data or
    host.
    """
    del findings
    placed = rows["pipeline_heat_map"]
    if not placed:
        return None
    stages = sorted({r["stage"] for r in placed})
    replicas = sorted({r["replica"] for r in placed})
    values = np.full((len(stages), len(replicas)), np.nan)
    members: dict[tuple[int, int], list[int]] = {}
    for r in placed:
        members.setdefault((r["stage"], r["replica"]), []).append(r["rank"])
        if r["ratio"] is not None:
            # As the cells show it: what reads 1.00 is as pale as what is.
            at = stages.index(r["stage"]), replicas.index(r["replica"])
            values[at] = np.fmax(values[at], round(r["ratio"], 2))
    if np.isnan(values).all():
        return None
    cells, down, across = heat.folded(values, look.MAX_ROWS, look.MAX_COLUMNS)

    figure = look.new_figure(min(6.0, max(1.8, 1.1 + 0.28 * len(cells))))
    axes = figure.add_subplot()
    heat.draw(
        axes,
        cells,
        unit="times the median rank",
        least=1.0,
        most=max(float(np.nanmax(cells)), LEAST_TOP_TIMES),
        numbers="{:.2f}",
    )
    axes.set_yticks(*look.row_ticks([str(s) for s in stages[::down]]))
    axes.set_xticks(*look.some_ticks([str(s) for s in replicas[::across]]))
    axes.set_ylabel("stage" if down == 1 else f"stage (the worst of each {down})")
    axes.set_xlabel("replica" if across == 1 else f"replica (the worst of each {across})")
    most = max((r for r in placed if r["ratio"] is not None), key=lambda r: float(r["ratio"]))
    together = members[most["stage"], most["replica"]]
    says = f"{plural(len(stages), 'stage')} by {plural(len(replicas), 'replica')}. "
    if len(together) == 1:
        says += (
            f"Rank {most['rank']} (stage {most['stage']}, replica {most['replica']}) computes "
            f"longest: {most['ratio']:.2f} times the median rank."
        )
    else:
        says += (
            f"Stage {most['stage']} of replica {most['replica']} takes longest: "
            f"{most['ratio']:.2f} times the median rank. Which of its "
            f"{ranks_phrase(sorted(together), ()).lower()} is to blame does not show here: they "
            "wait for each other meanwhile."
        )
    return Drawing(figure, says)


def bubbles(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """For which share of a replica's window each stage is idle, beside what its schedule cannot
    avoid: the median of the steady steps, a point for each replica."""
    del findings
    shares: dict[tuple[int, int], list[float]] = {}
    theory: list[float] = []
    for r in rows["bubble"]:
        if not r["is_warmup"] and r["bubble_ratio"] is not None:
            shares.setdefault((r["stage"], r["replica"]), []).append(r["bubble_ratio"])
            if r["expected_bubble_ratio"] is not None:
                theory.append(r["expected_bubble_ratio"])
    if not shares:
        return None
    stages = sorted({stage for stage, _ in shares})
    points = sorted((s, d, 100 * float(np.median(v))) for (s, d), v in shares.items())
    middles = {s: float(np.median([v for stage, _, v in points if stage == s])) for s in stages}

    figure = look.new_figure(2.5)
    axes = figure.add_subplot()
    place = {stage: i for i, stage in enumerate(stages)}
    axes.bar(
        range(len(stages)), [middles[s] for s in stages], 0.86, color=look.PALETTE["grey"],
        label="idle",
    )  # fmt: skip
    count = len({d for _, d, _ in points})
    if count > 1:
        axes.plot(
            [place[s] for s, _, _ in points], [v for _, _, v in points], linestyle="none",
            marker="o", markersize=3.5, markeredgewidth=0, color=look.PALETTE["blue"],
            label=f"each of {plural(count, 'replica')}",
        )  # fmt: skip
    expected = 100 * float(np.median(theory)) if theory else None
    if expected is not None:
        axes.axhline(
            expected, color=look.PALETTE["green"], linewidth=1.5, linestyle=(0, (4, 3)),
            label=f"unavoidable with this schedule: {expected:.3g} %",
        )  # fmt: skip
    axes.set_xlim(-0.6, len(stages) - 0.4)
    axes.set_ylim(0, max(5.0, 1.08 * max(expected or 0.0, *(v for _, _, v in points))))
    axes.set_xticks(*look.some_ticks([str(s) for s in stages]))
    axes.set_xlabel("stage")
    axes.set_ylabel("idle share of the window [%]")
    look.grid(axes)
    look.legend(figure, 3)
    least, most = (pick(middles, key=lambda s: middles[s]) for pick in (min, max))
    says = (
        f"{plural(len(stages), 'stage')}. Stage {most} is idle most, for {middles[most]:.3g} % of "
        f"its replica's window, stage {least} least, for {middles[least]:.3g} %."
    )
    if expected is not None:
        says += f" The schedule cannot avoid {expected:.3g} %."
    return Drawing(figure, says)


def delay_matrix(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """Late rank by waiting rank: who waited for whom, over all groups.

    A dark row is a rank that all others wait for; a single dark cell is a link or a pair.
    """
    del findings
    pairs = rows["delay_matrix"]
    seen = {r["rank"] for r in rows["step_breakdown"]}
    for r in pairs:
        seen.update((r["late_rank"], r["waiting_rank"]))
    ranks = sorted(seen)
    together = max(1, -(-len(ranks) // MAX_SUMMED))
    place = {rank: i // together for i, rank in enumerate(ranks)}
    count = -(-len(ranks) // together)
    values = np.zeros((count, count))
    for r in pairs:
        values[place[r["late_rank"]], place[r["waiting_rank"]]] += r["own_wait_ns"] or 0
    if not values.any():
        return None
    window = sum(r["dur_ns"] for r in rows["step_breakdown"] if r["rank"] == ranks[0])
    most = max(float(values.max()), LEAST_TOP_RATIO * window)
    divisor, unit = look.time_unit(most)
    cells, down, _ = heat.folded(values / divisor, MAX_MATRIX, MAX_MATRIX)

    size = min(4.6, max(2.2, 1.2 + 0.2 * len(cells)))
    figure = look.new_figure(size, min(look.WIDTH_INCHES, size + 1.0))
    axes = figure.add_subplot()
    heat.draw(axes, cells, unit=f"waiting [{unit}]", most=most / divisor)
    labels = [str(r) for r in ranks[:: down * together]]
    axes.set_yticks(*look.row_ticks(labels, 16))
    axes.set_xticks(*look.some_ticks(labels, 60))
    down *= together
    several = "" if down == 1 else f" (the worst of each {down})"
    axes.set_ylabel(f"late rank{several}")
    axes.set_xlabel(f"waiting rank{several}")
    worst = int(np.argmax(values.sum(axis=1)))
    waiting = int((values[worst] > 0).sum())
    last = min(len(ranks), (worst + 1) * together) - 1
    who = ranks_phrase(ranks[worst * together : last + 1], ()).lower()
    whose, summed = ("its", f"the {plural(waiting, 'rank')}") if together == 1 else ("their", "all")
    says = (
        f"{plural(len(ranks), 'rank')}. Most waiting was for {who}, by {whose} own doing: "
        f"{seconds(float(values[worst].sum()) / 1e9)} summed over {summed} that waited. "
        "Waiting while they computed counts here too."
    )
    return Drawing(figure, says)
