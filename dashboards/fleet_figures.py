"""Figures of a fleet: how a family of jobs went over the nights, and what the nights lost.

Legends are on the right: a phone shows the last nights first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from tracekit.dashboards import look
from tracekit.dashboards.drawing import Drawing, Row
from tracekit.wording import plural, seconds

MAX_CAUSES = 6
"""Causes with a colour of their own, those that cost most."""
DATE_CHARS = 75
"""Characters of dates that fit below an axis with room between them."""
_CAUSES = ("red", "orange", "sky", "pink", "green", "blue")


def trend(runs: Sequence[Row], changed: str | None = None) -> Drawing | None:
    """Mean steps of a family's runs (``date``, ``step_s``, ``is_placed``: whether a machine or link
    cost some of it) over the nights; ``changed`` is the date on which it got slower."""
    dates = sorted({r["date"] for r in runs})
    if not dates:
        return None
    figure = look.new_figure(2.2)
    axes = figure.add_subplot()
    divisor, unit = look.time_unit(max(r["step_s"] for r in runs) * 1e9)
    for is_placed, colour, label in (
        (False, "blue", "a run"),
        (True, "orange", "a run that a machine or link slowed"),
    ):
        shown = [r for r in runs if bool(r["is_placed"]) is is_placed]
        if shown:
            axes.plot(
                [dates.index(r["date"]) for r in shown],
                [r["step_s"] * 1e9 / divisor for r in shown],
                linestyle="none",
                marker="o",
                markersize=3.5,
                color=look.PALETTE[colour],
                label=label,
            )
    if changed in dates:
        axes.axvline(dates.index(changed) - 0.5, color=look.PALETTE["red"], linewidth=1)
    axes.set_xticks(*look.some_ticks([day[5:] for day in dates], DATE_CHARS))
    axes.set_xlim(-0.6, len(dates) - 0.4)
    axes.set_ylabel(f"mean step [{unit}]")
    look.grid(axes)
    look.legend(figure, 2, is_right=True)
    means_s = [r["step_s"] for r in runs]
    says = (
        f"{plural(len(runs), 'run')} from {dates[0]} to {dates[-1]}: {seconds(min(means_s))} to "
        f"{seconds(max(means_s))}, median {seconds(median(means_s))}."
    )
    if changed in dates:
        says += f" Slower since {changed} (line)."
    return Drawing(figure, says)


def losses(parts: Sequence[Row], nights: Iterable[str]) -> Drawing | None:
    """GPU-hours a day that each cause takes (``date``, ``cause``, ``gpu_hours_per_day``), over all
    nights, those that lost nothing too."""
    dates = sorted({*nights, *(p["date"] for p in parts)})
    total: dict[str, float] = {}
    for part in parts:
        total[part["cause"]] = total.get(part["cause"], 0.0) + part["gpu_hours_per_day"]
    causes = sorted(total, key=lambda c: (-total[c], c))
    if not causes:
        return None
    figure = look.new_figure(2.4)
    axes = figure.add_subplot()
    below = [0.0] * len(dates)
    shown = causes[:MAX_CAUSES]
    for cause, colour in [*zip(shown, _CAUSES, strict=False), ("others", "grey")]:
        of_it = set(causes[MAX_CAUSES:]) if colour == "grey" else {cause}
        if not of_it:
            continue
        heights = [0.0] * len(dates)
        for part in parts:
            if part["cause"] in of_it:
                heights[dates.index(part["date"])] += part["gpu_hours_per_day"]
        places = range(len(dates))
        axes.bar(places, heights, 0.86, bottom=below, color=look.PALETTE[colour], label=cause)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    axes.set_xticks(*look.some_ticks([day[5:] for day in dates], DATE_CHARS))
    axes.set_ylabel("GPU-hours a day")
    look.grid(axes)
    look.legend(figure, 4, is_right=True)
    says = f"{look.shown_name(causes[0])} costs most, {dates[0]} to {dates[-1]}."
    return Drawing(figure, says)


def place_runs(
    runs: Sequence[Row], nights: Iterable[str], since: str | None = None
) -> Drawing | None:
    """Runs on one host, GPU or port a night, with and without a finding on it (``date``,
    ``is_bad``), over all nights of the fleet; ``since`` is the date from which on it offends."""
    dates = sorted({*nights, *(r["date"] for r in runs)})
    if not runs:
        return None
    from matplotlib.ticker import MaxNLocator

    figure = look.new_figure(2.0)
    axes = figure.add_subplot()
    places = {day: i for i, day in enumerate(dates)}
    below = [0] * len(dates)
    for is_bad, colour, label in (
        (True, "orange", "with a finding on it"),
        (False, "grey", "without"),
    ):
        heights = [0] * len(dates)
        for run in runs:
            heights[places[run["date"]]] += bool(run["is_bad"]) is is_bad
        if any(heights):
            fill = look.PALETTE[colour]
            axes.bar(range(len(dates)), heights, 0.86, bottom=below, color=fill, label=label)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    if since in places:
        axes.axvline(places[since] - 0.5, color=look.PALETTE["red"], linewidth=1)
    axes.set_xticks(*look.some_ticks([day[5:] for day in dates], DATE_CHARS))
    axes.set_xlim(-0.6, len(dates) - 0.4)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_ylabel("runs a night")
    look.grid(axes)
    look.legend(figure, 2, is_right=True)
    bad = sorted(r["date"] for r in runs if r["is_bad"])
    says = f"Findings on it in {len(bad)} of {plural(len(runs), 'run')}"
    if bad:
        says += f", {bad[0]}" + (f" to {bad[-1]}" if bad[-1] != bad[0] else "")
    says += "."
    if since in places:
        says += f" Most unlike before since {since} (line)."
    return Drawing(figure, says)
