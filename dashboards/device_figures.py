"""Figures of counters over time, with the slow steps marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.dashboards import look
from tracekit.dashboards.drawing import Drawing, Row, Rows
from tracekit.dashboards.step_figures import job_steps, step_labels
from tracekit.wording import plural, some

if TYPE_CHECKING:
    from tracekit.findings import Finding

SLOW_RATIO = 1.05
"""Steps of this many times the median step are marked; as in the query slow_steps."""
SHOWN_COUNTERS = 4
"""Counters of ports with a panel."""
MAX_MARKED_STEPS = 80
"""Steps of a line that have a dot each."""
MIN_MOMENTS = 2
"""Times of samples without which nothing is drawn over time."""
SHOWN_GPUS = 3
"""GPUs with a line of their own."""
LINES = ("red", "blue", "green")
UNNAMED_LINES = ("blue",)
"""Of a GPU that no finding is about."""
SCALES = {"Hz": (1e6, "MHz"), "0..1": (0.01, "%"), "degrees Celsius": (1.0, "°C")}
NANOSECONDS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
NAMES = {
    "sm_clock": "SM clock", "gpu_temperature": "temperature", "power": "power",
    "sm_active": "SM active",
}  # fmt: skip


def slow_spans(breakdown: Sequence[Row]) -> list[tuple[int, int]]:
    """First and last moment of each steady step that took SLOW_RATIO of the median one."""
    steady = {k: length for k, (length, is_warmup) in job_steps(breakdown).items() if not is_warmup}
    if not steady:
        return []
    bar = SLOW_RATIO * float(np.median(list(steady.values())))
    begun: dict[Any, int] = {}
    for row in breakdown:
        key = (row["capture_id"], row["step"])
        if row.get("start_ns") is not None:
            begun[key] = max(begun.get(key, row["start_ns"]), row["start_ns"])
    return [(begun[k], begun[k] + steady[k]) for k in steady if steady[k] > bar and k in begun]


def accused(gpus: Sequence[Row], findings: Sequence[Finding]) -> list[str]:
    """GPUs to draw: those of findings that counters gave evidence for, in their order; without any
    the one that is farthest from the median of all. ``gpus`` have gpu_id, rank and away_ratio."""
    chosen = _named(gpus, findings)
    if not chosen:
        farthest = min(gpus, key=lambda r: (-(r["away_ratio"] or 0.0), r["gpu_id"]))
        return [farthest["gpu_id"]]
    return chosen[:SHOWN_GPUS]


def _named(gpus: Sequence[Row], findings: Sequence[Finding]) -> list[str]:
    chosen: dict[str, None] = {}
    of_rank = {r["rank"]: r["gpu_id"] for r in gpus if r["rank"] is not None}
    known = {r["gpu_id"] for r in gpus}
    for finding in findings:
        if any((e.query or "").startswith("gpu_") for e in finding.evidence):
            chosen |= dict.fromkeys(g for g in finding.scope.devices if g in known)
            chosen |= dict.fromkeys(of_rank[r] for r in finding.scope.ranks if r in of_rank)
    return list(chosen)


def gpu_levels(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """Clock, temperature, power and activity of the accused GPUs over time, within the range of all
    GPUs; slow steps are shaded."""
    series = rows["gpu_series"]
    if len({r["start_ns"] for r in series}) < MIN_MOMENTS:
        return None
    counters = [c for c in NAMES if any(r["counter"] == c for r in series)]
    gpus = accused(series, findings)
    is_named = bool(_named(series, findings))
    slow = slow_spans(rows["step_breakdown"])
    origin = min(r["start_ns"] for r in series)
    end = max(r["start_ns"] + r["moment_ns"] for r in series)
    slow = [(a, b) for a, b in slow if b > origin and a < end]

    figure = look.new_figure(0.75 + 1.15 * len(counters))
    panels = figure.subplots(len(counters), 1, sharex=True, squeeze=False)[:, 0]
    labels = _labels(series, gpus)
    for axes, counter in zip(panels, counters, strict=True):
        samples = [r for r in series if r["counter"] == counter]
        divisor, unit = SCALES.get(samples[0]["unit"] or "", (1.0, samples[0]["unit"] or ""))
        for first, last in slow:
            axes.axvspan(
                (first - origin) / 1e9, (last - origin) / 1e9, color=look.PALETTE["orange"],
                alpha=0.3, linewidth=0, label="slow steps" if first == slow[0][0] else None,
            )  # fmt: skip
        spread = sorted({(r["start_ns"], r["low_value"], r["high_value"]) for r in samples})
        several = max(r["gpus_count"] for r in samples)
        if several > 1:
            axes.fill_between(
                [(t - origin) / 1e9 for t, _, _ in spread],
                [low / divisor for _, low, _ in spread],
                [high / divisor for _, _, high in spread],
                color=look.PALETTE["sky"], alpha=0.4, linewidth=0, label="range of all GPUs",
            )  # fmt: skip
            middle = {r["start_ns"]: r["median_value"] / divisor for r in samples}
            axes.plot(
                [(t - origin) / 1e9 for t in sorted(middle)],
                [middle[t] for t in sorted(middle)],
                color=look.PALETTE["muted"], linewidth=1, linestyle=(0, (4, 3)), label="median GPU",
            )  # fmt: skip
        for gpu, colour in zip(gpus, LINES if is_named else UNNAMED_LINES, strict=False):
            gpu_samples = [r for r in samples if r["gpu_id"] == gpu]
            axes.plot(
                [(r["start_ns"] - origin) / 1e9 for r in gpu_samples],
                [r["mean_value"] / divisor for r in gpu_samples],
                color=look.PALETTE[colour], label=labels[gpu],
                marker="o" if len(gpu_samples) == 1 else None,
            )  # fmt: skip
        axes.set_ylabel(f"{NAMES[counter]} [{unit}]")
        look.grid(axes)
    panels[-1].set_xlabel("time since the first sample [s]")
    figure.align_ylabels(list(panels))
    handles, names = panels[0].get_legend_handles_labels()
    look.legend(figure, 4, handles, names)

    count = max(r["gpus_count"] for r in series)
    told = [f"{labels[g]}: {_words(series, g, counters)}" for g in gpus]
    says = f"{plural(count, 'GPU')}. {'. '.join(told)}."
    if count > 1 and not is_named:
        says += " No finding is about it: it is the one farthest from the others."
    if slow:
        says += f" {plural(len(slow), 'slow step')} in that time."
    return Drawing(figure, says)


def _labels(series: Sequence[Row], gpus: Sequence[str]) -> dict[str, str]:
    """What a GPU is called: its rank where that is known, else its host and index, else itself."""
    labels = {}
    for gpu in gpus:
        row = next(r for r in series if r["gpu_id"] == gpu)
        words = [row["host"]] if row["host"] else []
        words += [f"GPU {row['gpu_index']}"] if row["gpu_index"] is not None else []
        name = " ".join(words) or gpu
        labels[gpu] = look.shown_name(
            f"rank {row['rank']} ({name})" if row["rank"] is not None else name
        )
    return labels


def _words(series: Sequence[Row], gpu: str, counters: Sequence[str]) -> str:
    """Usual value of each counter of a GPU, beside that of all."""
    parts = []
    for counter in counters:
        samples = [r for r in series if r["counter"] == counter and r["gpu_id"] == gpu]
        if not samples:
            continue
        divisor, unit = SCALES.get(samples[0]["unit"] or "", (1.0, samples[0]["unit"] or ""))
        usual = float(np.median([r["mean_value"] for r in samples])) / divisor
        all_of_them = float(np.median([r["median_value"] for r in samples])) / divisor
        parts.append(
            f"{NAMES[counter]} {look.number(usual)} {unit} (median GPU {look.number(all_of_them)})"
        )
    return some(parts, len(parts))


def named_links(findings: Sequence[Finding]) -> list[str]:
    """Links that findings are about, as ``node:port``, in their order."""
    return list(dict.fromkeys(link for f in findings for link in f.scope.links))


def port_growth(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """What counters of ports grew by in each step, below the length of the steps: those of the
    findings' links first, then those that the query puts first."""
    series: dict[tuple[str, str, str], list[Row]] = {}
    for r in rows["port_steps"]:
        series.setdefault((r["node"] or "", r["port"] or "", r["counter"]), []).append(r)
    lasted = {k: n for k, (n, is_warmup) in job_steps(rows["step_breakdown"]).items()}
    keys = sorted(
        {(r["capture_id"], r["step"]) for grown in series.values() for r in grown} & lasted.keys()
    )
    if not keys:
        return None
    named = set(named_links(findings))
    chosen = sorted(
        series, key=lambda s: (f"{s[0]}:{s[1]}" not in named, series[s][0]["place_count"])
    )[:SHOWN_COUNTERS]
    place = {key: i for i, key in enumerate(keys)}

    figure = look.new_figure(1.7 + 0.95 * len(chosen))
    panels = figure.subplots(len(chosen) + 1, 1, sharex=True, squeeze=False)[:, 0]
    divisor, unit = look.time_unit(max(lasted[k] for k in keys))
    panels[0].plot(
        range(len(keys)), [lasted[k] / divisor for k in keys], color=look.PALETTE["blue"],
        marker="o" if len(keys) <= MAX_MARKED_STEPS else None, markersize=3,
    )  # fmt: skip
    panels[0].set_ylabel(f"step [{unit}]")
    panels[0].set_ylim(0, 1.1 * max(lasted[k] for k in keys) / divisor)
    for axes, name in zip(panels[1:], chosen, strict=True):
        grown = [r for r in series[name] if (r["capture_id"], r["step"]) in place]
        divisor, unit = _scale(grown)
        is_named = f"{name[0]}:{name[1]}" in named
        axes.bar(
            [place[r["capture_id"], r["step"]] for r in grown],
            [(r["growth"] or 0.0) / divisor for r in grown], 0.8,
            color=look.PALETTE["red" if is_named else "blue"],
        )  # fmt: skip
        verdict = grown[0]["verdict"] if grown else None
        said = f" ({verdict})" if verdict in ("cause", "symptom") else ""
        axes.set_title(look.shown_name(" ".join(filter(None, name)), 70) + said, fontsize=9)
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
    for axes in panels:
        look.grid(axes)
    panels[-1].set_xticks(*look.some_ticks(step_labels(keys)))
    panels[-1].set_xlabel("step" if len({c for c, _ in keys}) == 1 else "capture:step")
    figure.align_ylabels(list(panels))

    told = []
    for name in chosen:
        grown = series[name]
        most = max(grown, key=lambda r: float(r["growth"] or 0.0))
        divisor, unit = _scale(grown)
        told.append(
            f"{look.shown_name(' '.join(filter(None, name)), 70)}: most in step "
            f"{most['step']} ({look.number((most['growth'] or 0.0) / divisor)} {unit})"
        )
    says = f"{plural(len(keys), 'step')}. {'; '.join(told)}."
    if not any(f"{node}:{port}" in named for node, port, _ in chosen):
        says += " No finding is about a link of these."
    left = len(series) - len(chosen)
    if left:
        says += f" {plural(left, 'more counter')} in the query."
    return Drawing(figure, says)


def _scale(grown: Sequence[Row]) -> tuple[float, str]:
    """What to divide a counter's growth by, and the unit that it then has."""
    most = max((float(r["growth"] or 0.0) for r in grown), default=0.0)
    unit = grown[0]["unit"] if grown else None
    if unit == "bytes":
        return look.byte_unit(most)
    if unit in NANOSECONDS:
        divisor, word = look.time_unit(most * NANOSECONDS[unit])
        return divisor / NANOSECONDS[unit], word
    return 1.0, unit or "counts"
