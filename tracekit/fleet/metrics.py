"""What nights say as metrics: with timestamps for Prometheus' store, without for node-exporter.

Sources: OpenMetrics 1.0 (timestamps in seconds, families in one piece, ``# EOF``), as ``promtool
tsdb create-blocks-from openmetrics`` reads it; the textfile collector of node-exporter reads the
same without timestamps, which it refuses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from statistics import median
from typing import Any

from tracekit.fleet.night import Logged, Loss, Night, logged, losses
from tracekit.fleet.nights import Price
from tracekit.fleet.store import FleetStore
from tracekit.wording import safe

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[str, Mapping[tuple[Labels, str | None], float]]
"""Values by metric, and by labels and date."""

HELP = {
    "tracekit_runs": "Runs of a date.",
    "tracekit_runs_without_steps": "Runs of a date in which nothing marks steps.",
    "tracekit_runs_failed": "Runs that the last rollup could not diagnose.",
    "tracekit_step_seconds": "Median over a date's runs of the mean step, of a family of jobs.",
    "tracekit_gpu_hours_per_day": "GPUs of a date's runs times 24 hours.",
    "tracekit_lost_gpu_hours_per_day": "What a cause takes of them while it lasts.",
    "tracekit_lost_energy_joules_per_day": "The same as energy, of runs with known power.",
    "tracekit_lost_amount_per_day": "The same in money, of runs that have a price.",
    "tracekit_logged_gpu_hours": "What a date's training logs span, by what the time went into.",
    "tracekit_regression_slower_ratio": "By how much families of jobs are slower than before.",
    "tracekit_offender_bad_runs": "Runs with a finding on a place that stands out.",
    "tracekit_night_timestamp_seconds": "Midnight (UTC) of the date that the last rollup judged.",
}
"""Every metric, with its unit in its name; all are gauges."""


def history(
    store: FleetStore,
    since: str | None = None,
    until: str | None = None,
    price: Price | None = None,
    prices: Mapping[str, Price | None] | None = None,
) -> str:
    """One sample a series and date, at the date's midnight (UTC).

    Money is by ``prices``, what it was on a date, else by ``price``: what was told of a night does
    not change with a later price. None: what jobs' descriptions stated.
    """
    prices = prices or {}
    samples: dict[str, dict[tuple[Labels, str | None], float]] = defaultdict(dict)
    steps: dict[tuple[Labels, str | None], list[float]] = defaultdict(list)
    for job in store.rows("job", since, until):
        day = job["date"]
        runs = samples["tracekit_runs"]
        runs[(), day] = runs.get(((), day), 0) + 1
        without = samples["tracekit_runs_without_steps"]
        without[(), day] = without.get(((), day), 0) + (not job["steps_count"])
        if job["family"] is not None and job["step_mean_s"] is not None:
            labels = (("family", job["family"]), ("job", job["job_name"] or ""))
            steps[labels, day].append(job["step_mean_s"])
    samples["tracekit_step_seconds"] = {key: median(values) for key, values in steps.items()}
    budget: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for part in store.rows("budget", since, until):
        budget[part["date"]].append(part)
    for day, parts in budget.items():
        hours = sum(p["gpu_hours_per_day"] for p in parts)
        samples["tracekit_gpu_hours_per_day"][(), day] = hours
        for name, points in _lost(losses(parts, prices.get(day, price)), day).items():
            samples[name] |= points
    goodput: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in store.rows("goodput", since, until):
        goodput[row["date"]].append(row)
    for day, rows in goodput.items():
        samples["tracekit_logged_gpu_hours"] |= _logged(logged(rows), day)
    return _text(samples)


def _lost(found: Iterable[Loss], day: str | None) -> Samples:
    """What causes take of a date."""
    hours: dict[tuple[Labels, str | None], float] = {}
    energy: dict[tuple[Labels, str | None], float] = {}
    money: dict[tuple[Labels, str | None], float] = {}
    for loss in found:
        labels = (("cause", loss.cause),)
        hours[labels, day] = loss.gpu_hours_per_day
        if loss.energy_joules_per_day is not None:
            energy[labels, day] = loss.energy_joules_per_day
        for one in loss.amounts:
            money[(*labels, ("currency", one.currency or "")), day] = one.amount_per_day
    return {
        "tracekit_lost_gpu_hours_per_day": hours,
        "tracekit_lost_energy_joules_per_day": energy,
        "tracekit_lost_amount_per_day": money,
    }


def _logged(parts: Iterable[Logged], day: str | None) -> dict[tuple[Labels, str | None], float]:
    return {((("part", p.part),), day): p.gpu_hours for p in parts}


def current(night: Night) -> str:
    """The last night, without timestamps; for a file that node-exporter reads."""
    midnight = _midnight_s(night.date)
    quality = night.quality
    samples: dict[str, Mapping[tuple[Labels, str | None], float]] = {
        "tracekit_runs": {((), None): quality.jobs_count},
        "tracekit_runs_without_steps": {((), None): len(quality.without_steps)},
        "tracekit_runs_failed": {((), None): len(night.rolled.failed)},
        "tracekit_gpu_hours_per_day": {((), None): night.gpu_hours_per_day},
        **_lost(night.losses, None),
        "tracekit_logged_gpu_hours": _logged(night.logged, None),
        "tracekit_regression_slower_ratio": {
            (
                (("change", " ".join(r.change or ())), ("family", f.family), ("since", f.date)),
                None,
            ): (f.slower_ratio)
            for r in night.regressions
            for f in r.families
        },
        "tracekit_offender_bad_runs": {
            ((("kind", o.kind), ("name", o.name)), None): o.bad_count for o in night.offenders
        },
        "tracekit_night_timestamp_seconds": {((), None): midnight},
    }
    return _text(samples)


def _midnight_s(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp())


def _text(samples: Samples) -> str:
    lines: list[str] = []
    for name, told in HELP.items():
        points = samples.get(name)
        if not points:
            continue
        lines += [f"# HELP {name} {told}", f"# TYPE {name} gauge"]
        for labels, day in sorted(points, key=lambda key: (key[0], key[1] or "")):
            at = f" {_midnight_s(day)}" if day is not None else ""
            lines.append(f"{name}{_labels(labels)} {points[labels, day]:.10g}{at}")
    return "\n".join([*lines, "# EOF"]) + "\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    told = ",".join(f'{name}="{_value(value)}"' for name, value in labels)
    return f"{{{told}}}" if told else ""


def _value(value: str) -> str:
    return safe(value).replace("\\", "\\\\").replace('"', '\\"')
