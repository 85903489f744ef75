"""Figures of steps: how long each took, and where a rank's time goes in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.dashboards import look
from tracekit.dashboards.drawing import Drawing, Row, Rows
from tracekit.wording import plural, seconds, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tracekit.findings import Finding

Key = tuple[int, int]
"""Capture and step."""

MAX_LANES = 6
"""Findings whose steps are marked."""
PARTS = (
    ("compute_ns", "computing", "blue"),
    ("exposed_comm_ns", "communication not hidden", "orange"),
    ("memory_ns", "copies", "pink"),
    ("idle_ns", "idle", "grey"),
)
MUCH_LESS_RATIO = 0.8
"""A rank that waits less than this share of what the median one does is named."""
MAX_BARS = 96
"""Ranks with a bar of their own; of more, one of several stands for them."""


def step_labels(keys: Sequence[Key]) -> list[str]:
    """Names of steps on an axis: with their capture where there are several."""
    captures = {capture for capture, _ in keys}
    if len(captures) > 1:
        return [f"{capture}:{step}" for capture, step in keys]
    return [str(step) for _, step in keys]


def whole_steps(rows: Sequence[Row]) -> list[Row]:
    """The steps that the window does not cut."""
    return [r for r in rows if not r["is_partial"]]


def job_steps(rows: Sequence[Row]) -> dict[Key, tuple[int, bool]]:
    """How long the job took for each whole step, and whether it was warm-up; in order.

    As the query step_time_summary has it: from the moment when the last rank begins the step to
    that when the last rank begins the next; where a rank has no clock, as long as on the slowest.
    """
    by_step: dict[Key, list[Row]] = {}
    for row in whole_steps(rows):
        by_step.setdefault((row["capture_id"], row["step"]), []).append(row)
    lasted: dict[Key, tuple[int, bool]] = {}
    for key, group in sorted(by_step.items()):
        starts: list[Any] = [r.get("start_ns") for r in group]
        if any(start is None for start in starts):
            length = max(int(r["dur_ns"]) for r in group)
        else:
            length = max(r["start_ns"] + r["dur_ns"] for r in group) - max(starts)
        lasted[key] = (length, any(r["is_warmup"] for r in group))
    return lasted


def step_times(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """The length of each step of the job, the range over its ranks, and the steps of findings."""
    breakdown = rows["step_breakdown"]
    lasted = job_steps(breakdown)
    if len(lasted) < 2:
        return None  # a point is no figure; where its time goes stands in the next one
    keys = list(lasted)
    ranks: dict[Key, list[int]] = {key: [] for key in keys}
    for row in whole_steps(breakdown):
        ranks[row["capture_id"], row["step"]].append(row["dur_ns"])
    steady = [length for length, is_warmup in lasted.values() if not is_warmup]
    usual = float(np.median(steady)) if steady else None
    longest = max(*(length for length, _ in lasted.values()), *(max(r) for r in ranks.values()))
    divisor, unit = look.time_unit(longest)
    marked = [f for f in findings if f.scope.steps][:MAX_LANES]

    figure = look.new_figure(2.5 + 0.17 * len(marked))
    heights = [0.17 * len(marked), 2.0] if marked else [1.0]
    *above, axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    places = np.arange(len(keys))
    count = len({r["rank"] for r in breakdown})
    if count > 1:
        axes.fill_between(
            places,
            [min(ranks[k]) / divisor for k in keys],
            [max(ranks[k]) / divisor for k in keys],
            color=look.PALETTE["sky"], alpha=0.45, linewidth=0, step=None,
            label=f"fastest to slowest of {plural(count, 'rank')}",
        )  # fmt: skip
    values = [lasted[k][0] / divisor for k in keys]
    axes.plot(
        places, values, color=look.PALETTE["blue"], marker="o" if len(keys) <= 80 else None,
        markersize=3.5, label="the job's step",
    )  # fmt: skip
    warm = [i for i, k in enumerate(keys) if lasted[k][1]]
    if warm:
        axes.plot(
            warm, [values[i] for i in warm], linestyle="none", marker="o", markersize=5.5,
            markerfacecolor="none", markeredgecolor=look.PALETTE["muted"], label="warm-up",
        )  # fmt: skip
    if usual is not None:
        axes.axhline(
            usual / divisor, color=look.PALETTE["muted"], linewidth=1, linestyle=(0, (4, 3)),
            label=f"median {seconds(usual / 1e9)}",
        )  # fmt: skip
    if above:
        _lanes(above[0], keys, findings, marked)
    axes.set_ylim(0, longest / divisor * 1.08)
    axes.set_xlim(-0.5, len(keys) - 0.5)
    axes.set_xticks(*look.some_ticks(step_labels(keys)))
    axes.set_xlabel("step" if len({c for c, _ in keys}) == 1 else "capture:step")
    axes.set_ylabel(f"step time [{unit}]")
    look.grid(axes)
    look.legend(figure, 4)

    slowest = max(lasted, key=lambda k: lasted[k][0])
    says = plural(len(keys), "step")
    if usual is not None:
        says += f", {len(steady)} of them judged; the median is {seconds(usual / 1e9)}"
    says += f". The longest is step {slowest[1]} with {seconds(lasted[slowest][0] / 1e9)}."
    return Drawing(figure, says)


def _lanes(
    axes: Axes, keys: Sequence[Key], findings: Sequence[Finding], marked: Sequence[Finding]
) -> None:
    """A line over the steps of each finding, above the plot."""
    labels = {f.id: f"F{i}" for i, f in enumerate(findings, 1)}
    for lane, finding in enumerate(marked):
        inside = [
            i for i, (_, step) in enumerate(keys)
            if any(first <= step <= last for first, last in finding.scope.steps)
        ]  # fmt: skip
        for first, last in _runs(inside):
            axes.plot(
                [first - 0.35, last + 0.35], [lane, lane], color=look.PALETTE["red"],
                linewidth=4, solid_capstyle="butt",
            )  # fmt: skip
    axes.set_yticks(range(len(marked)), [labels[f.id] for f in marked])
    axes.set_ylim(len(marked) - 0.5, -0.5)
    axes.set_xlim(-0.5, len(keys) - 0.5)
    axes.set_xticks([])
    axes.tick_params(length=0, labelcolor=look.PALETTE["mark"])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place - 1:
            runs[-1] = (runs[-1][0], place)
        else:
            runs.append((place, place))
    return runs


def mean_parts(rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """Where a mean steady step of each rank goes, in ns, by rank."""
    sums: dict[int, list[Any]] = {}
    for row in whole_steps(rows):
        if not row["is_warmup"]:
            entry = sums.setdefault(row["rank"], [0, *(0 for _ in PARTS)])
            entry[0] += 1
            for i, (column, _, _) in enumerate(PARTS, 1):
                entry[i] += row[column]
    return {
        rank: {column: entry[i] / entry[0] for i, (column, _, _) in enumerate(PARTS, 1)}
        for rank, entry in sorted(sums.items())
    }


def rank_time(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """Where a mean step of each rank goes: a bar a rank; of many, the oddest of several."""
    del findings
    parts = mean_parts(rows["step_breakdown"])
    if not parts:
        return None
    ranks = list(parts)
    table = np.array([[parts[r][column] for column, _, _ in PARTS] for r in ranks])
    shown, together = odd_ones(table, MAX_BARS)
    divisor, unit = look.time_unit(float(table.sum(axis=1).max()))

    figure = look.new_figure(2.7)
    axes = figure.add_subplot()
    places = np.arange(len(shown))
    base = np.zeros(len(shown))
    for i, (_, name, colour) in enumerate(PARTS):
        heights = table[shown, i] / divisor
        if heights.max() < 0.001 * table.sum(axis=1).max() / divisor:
            continue
        axes.bar(places, heights, 0.86, bottom=base, color=look.PALETTE[colour], label=name)
        base += heights
    axes.set_xlim(-0.6, len(shown) - 0.4)
    axes.set_xticks(*look.some_ticks([str(ranks[i]) for i in shown]))
    axes.set_xlabel("rank" if together == 1 else f"rank (of each {together}, the least usual)")
    axes.set_ylabel(f"time of a mean step [{unit}]")
    look.grid(axes)
    look.legend(figure, 4)

    middle = np.median(table, axis=0)
    total = middle.sum() or 1.0
    words = [
        f"{name} {share(float(middle[i] / total))}"
        for i, (_, name, _) in enumerate(PARTS)
        if middle[i] / total >= 0.0005
    ]
    least = int(np.argmin(table[:, 1]))
    whose = f"Rank {ranks[0]}" if len(ranks) == 1 else f"The median of {len(ranks):,} ranks"
    says = f"{whose}: {', '.join(words)}."
    if table[least, 1] < MUCH_LESS_RATIO * middle[1]:
        says += f" Rank {ranks[least]} has least communication that nothing hides."
    if any(r["measured_on"] == "host" for r in rows["step_breakdown"]):
        says += " Seen from the host: no GPU operations were recorded."
    return Drawing(figure, says)


def odd_ones(table: np.ndarray[Any, np.dtype[np.float64]], limit: int) -> tuple[list[int], int]:
    """Rows to show and how many each stands for: all, or of each so many neighbours the one that
    is farthest from the median row. A mean of several would hide the one that is at fault."""
    together = max(1, -(-len(table) // limit))
    distance = np.abs(table - np.median(table, axis=0)).sum(axis=1)
    starts = range(0, len(table), together)
    return [s + int(np.argmax(distance[s : s + together])) for s in starts], together
