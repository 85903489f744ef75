"""The figure of a job's whole history, as its training logs tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tracekit.dashboards import look
from tracekit.dashboards.drawing import Drawing, Row, Rows
from tracekit.wording import listed, plural, seconds

if TYPE_CHECKING:
    from tracekit.findings import Finding

CUT_RATIO = 1.5
"""The axis ends at this many times the slowest stretch's median, and what is longer is a mark at
its end: a stall of minutes would press all other steps to the floor."""
MIN_TICKS = 20
"""Ticks of a clock that a mean of steps shorter than one needs, to be right to a tenth or so."""
EPISODES = {
    "slow": ("slow stretch", "slow stretches", "orange"),
    "fast": ("fast stretch", "fast stretches", "green"),
    "risen": ("lasting rise", "lasting rises", "grey"),
    "stall": ("stall", "stalls", "red"),
    "restart": ("restart", "restarts", "pink"),
}
"""What is marked, one and several, and how; periods and drifts have no place of their own."""


def history(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """How long the steps of the whole job took, with what stands out in it."""
    del findings
    curve = rows["job_step_curve"]
    is_coarse = bool(curve) and float(np.median([r["p50_ns"] for r in curve])) == 0
    if is_coarse:  # most steps began in the second in which the one before did
        curve = _neighbours(curve)
    if not curve:
        return None
    lows, middles, highs = (
        np.array([r[name] for r in curve], dtype=float) for name in ("min_ns", "p50_ns", "max_ns")
    )
    usual = float(np.median(middles))
    divisor, unit = look.time_unit(usual)
    places = np.arange(len(curve))

    figure = look.new_figure(2.7)
    axes = figure.add_subplot()
    episodes = [e for e in rows["slow_episode"] if e["kind"] in EPISODES]
    marked: set[str] = set()
    for episode in episodes:
        name, _, colour = EPISODES[episode["kind"]]
        inside = [
            i for i, r in enumerate(curve)
            if r["first_step"] <= episode["last_step"] and r["last_step"] >= episode["first_step"]
        ]  # fmt: skip
        if inside:
            axes.axvspan(
                inside[0] - 0.5, inside[-1] + 0.5, color=look.PALETTE[colour], alpha=0.35,
                linewidth=0, label=None if name in marked else name,
            )  # fmt: skip
            marked.add(name)
    together = any(r["lines_count"] > 1 for r in curve)
    if together and not is_coarse:
        axes.fill_between(
            places, lows / divisor, highs / divisor, color=look.PALETTE["sky"], alpha=0.5,
            linewidth=0, label="shortest to longest line",
        )  # fmt: skip
    axes.plot(
        places, middles / divisor, color=look.PALETTE["blue"], linewidth=1.2,
        marker="o" if len(curve) == 1 else None,
        label="mean of neighbours" if is_coarse else "median of neighbours" if together
        else "a step",
    )  # fmt: skip
    longest = float(highs.max())
    top = 1.08 * longest
    if longest > CUT_RATIO * float(middles.max()):
        top = CUT_RATIO * float(middles.max())
        beyond = places[highs > top]
        axes.plot(
            beyond, np.full(len(beyond), 0.97 * top / divisor), linestyle="none", marker="^",
            markersize=7, markeredgewidth=0, color=look.PALETTE["red"],
            label=f"longer, up to {seconds(longest / 1e9)}",
        )  # fmt: skip
    axes.set_ylim(0, top / divisor)
    axes.set_xlim(-0.5, len(curve) - 0.5)
    axes.set_xticks(*look.some_ticks([f"{r['first_step']:,}" for r in curve], 80))
    axes.set_xlabel("step of the job, as its log counts")
    axes.set_ylabel(f"step time [{unit}]")
    look.grid(axes)
    look.legend(figure, 4)

    peak = curve[int(np.argmax(highs))]
    span = f"{peak['first_step']:,}"
    if peak["last_step"] != peak["first_step"]:
        span += f" to {peak['last_step']:,}"
    lines_count = sum(r["lines_count"] for r in curve)
    says = (
        f"{plural(lines_count, 'line')} of training logs, steps {curve[0]['first_step']:,} to "
        f"{max(r['last_step'] for r in curve):,}; "
    )
    if is_coarse:
        says += (
            f"most are shorter than the log's clock tells, so means of neighbours are drawn: at "
            f"most {seconds(longest / 1e9)}, in steps {span}."
        )
    else:
        says += (
            f"the median is {seconds(usual / 1e9)}, the longest {seconds(longest / 1e9)} at step "
            f"{span}."
        )
    counts = {kind: sum(e["kind"] == kind for e in episodes) for kind in EPISODES}
    told = [f"{n:,} {EPISODES[k][n > 1]}" for k, n in counts.items() if n]
    if told:
        says += f" {listed(told)} {'stands' if len(episodes) == 1 else 'stand'} out."
    return Drawing(figure, says)


def _neighbours(curve: Sequence[Row]) -> list[Row]:
    """Stretches of a log whose clock tells less than its steps take, so far together that each has
    MIN_TICKS of that clock or more: a mean of fewer says little. None where that leaves one."""
    tick_ns = min((r["max_ns"] for r in curve if r["max_ns"]), default=0)
    groups: list[list[Row]] = [[]]
    for r in curve:
        groups[-1].append(r)
        if sum(g["mean_ns"] * g["lines_count"] for g in groups[-1]) >= MIN_TICKS * tick_ns:
            groups.append([])
    if len(groups) > 1:  # what is left over is too short for a mean of its own
        rest = groups.pop()
        groups[-1] += rest
    if not tick_ns or len(groups) < 2:
        return []
    return [_together(group) for group in groups]


def _together(group: Sequence[Row]) -> Row:
    """Neighbouring stretches as one, of which nothing but the mean is known."""
    lines_count = sum(r["lines_count"] for r in group)
    mean_ns = sum(r["mean_ns"] * r["lines_count"] for r in group) / lines_count
    return {
        **group[0], "last_step": group[-1]["last_step"], "lines_count": lines_count,
        "min_ns": mean_ns, "p50_ns": mean_ns, "max_ns": mean_ns,
    }  # fmt: skip
