"""The fleet in Grafana: ``fleet.json`` is what this writes, ``alerts.yml`` are Prometheus' rules.

    python -m tracekit.dashboards.grafana

Plain JSON and no library: fourteen panels of three kinds in one file that changes once a year are
less to keep than a dependency whose every version belongs to one of Grafana. Metrics are those of
``tracekit rollup``: trends ask the samples that ``--openmetrics`` gave each night, which bear no
``instance``; the state of the last night comes from the textfile that node-exporter reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FILE = FOLDER / "fleet.json"

WIDTH = 24
JOULES_PER_KILOWATT_HOUR = 3_600_000
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

Panel = dict[str, Any]


def _of_nights(metric: str, by: str) -> str:
    """A metric's value of each night, on that day."""
    return f'max by ({by}) (last_over_time({metric}{{instance=""}}[1d]))'


def _panel(kind: str, title: str, says: str, expr: str, unit: str, **more: Any) -> Panel:
    """A panel with one query; ``unit`` as Grafana names it."""
    target = {"datasource": DATASOURCE, "expr": expr, "refId": "A", **more.pop("target", {})}
    return {
        "type": kind,
        "title": title,
        "description": says,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit, **more.pop("defaults", {})}, "overrides": []},
        "targets": [target],
        **more,
    }


def _stat(title: str, says: str, expr: str, unit: str = "short") -> Panel:
    return _panel("stat", title, says, expr, unit, target={"instant": True})


def _trend(title: str, says: str, expr: str, unit: str, legend: str, is_sum: bool = False) -> Panel:
    drawn: dict[str, Any] = {"drawStyle": "bars" if is_sum else "line", "showPoints": "always"}
    if is_sum:
        drawn |= {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 60}
    return _panel(
        "timeseries",
        title,
        says,
        expr,
        unit,
        interval="1d",
        defaults={"custom": {**drawn, "spanNulls": False}, "min": 0},
        target={"legendFormat": legend, "interval": "1d"},
    )


def _table(title: str, says: str, expr: str, unit: str, names: dict[str, str]) -> Panel:
    hidden = {"Time": True, "__name__": True, "instance": True, "job": True}
    shown = {"renameByName": {**names, "Value": title}, "excludeByName": hidden}
    return _panel(
        "table",
        title,
        says,
        expr,
        unit,
        target={"instant": True, "format": "table"},
        transformations=[{"id": "organize", "options": shown}],
    )


LOST = "tracekit_lost_gpu_hours_per_day"
ENERGY = "tracekit_lost_energy_joules_per_day"


def _night() -> list[Panel]:
    """The last night in numbers."""
    return [
        _stat("Runs", "Of the last night.", "max(tracekit_runs)"),
        _stat(
            "Runs that failed",
            "Could not be diagnosed: tracekit rollup names each with its reason.",
            "max(tracekit_runs_failed)",
        ),
        _stat(
            "Runs without steps",
            "Nothing marks steps in them.",
            "max(tracekit_runs_without_steps)",
        ),
        _stat(
            "GPU-hours lost",
            "Part of the last night's GPU-hours that causes take, the floor apart.",
            f"sum(max by (cause) ({LOST})) / max(tracekit_gpu_hours_per_day)",
            "percentunit",
        ),
        _stat(
            "Last night",
            "How long ago its date began (UTC): more than two days, and a rollup is missing.",
            "time() - max(tracekit_night_timestamp_seconds)",
            "s",
        ),
    ]


def _lost() -> list[Panel]:
    """What causes take of the GPUs."""
    return [
        _trend(
            "GPU-hours a day lost, by cause",
            "What each cause takes while it lasts, a bar a night.",
            f"topk(12, {_of_nights(LOST, 'cause')})",
            "short",
            "{{cause}}",
            is_sum=True,
        )
    ]


def _worth() -> list[Panel]:
    """What that is in energy and money, and where the time of logs went."""
    return [
        _trend(
            "Energy a day lost, by cause",
            "Of the runs whose GPUs' power was sampled, a bar a night.",
            f"topk(12, {_of_nights(ENERGY, 'cause')}) / {JOULES_PER_KILOWATT_HOUR}",
            "kwatth",
            "{{cause}}",
            is_sum=True,
        ),
        _trend(
            "Money a day lost, by cause",
            "Of the runs that have a price, a bar a night; in the currency of the price.",
            f"topk(12, {_of_nights('tracekit_lost_amount_per_day', 'cause, currency')})",
            "short",
            "{{cause}} {{currency}}",
            is_sum=True,
        ),
        _trend(
            "GPU-hours of training logs, by what they went into",
            "Of the runs that have a log, from its first line to its last, a bar a night.",
            _of_nights("tracekit_logged_gpu_hours", "part"),
            "short",
            "{{part}}",
            is_sum=True,
        ),
    ]


def _lengths() -> list[Panel]:
    """How long steps are, and how many runs there were."""
    return [
        _trend(
            "Step, by family of jobs",
            "Median over a night's runs of the mean step.",
            _of_nights("tracekit_step_seconds", "family, job"),
            "s",
            "{{job}} {{family}}",
        ),
        _trend(
            "Runs a night",
            "A night far below the others has lost files.",
            _of_nights("tracekit_runs", ""),
            "short",
            "runs",
        ),
    ]


def _standing() -> list[Panel]:
    """Who is slower, who stands out, and what cost most: as tables."""
    return [
        _table(
            "Slower by",
            "Families that got slower than their own trailing four weeks, and still are.",
            "max by (family, change, since) (tracekit_regression_slower_ratio)",
            "percentunit",
            {"family": "Family", "change": "Changed at that date", "since": "Since"},
        ),
        _table(
            "Runs with a finding",
            "Hosts, GPUs, ports and racks that stand out among their like, for as often as "
            "each was used.",
            "max by (kind, name) (tracekit_offender_bad_runs)",
            "short",
            {"kind": "Kind", "name": "Name"},
        ),
        _table(
            "GPU-hours a day",
            "What the last night lost, by cause.",
            f"sort_desc(max by (cause) ({LOST}))",
            "short",
            {"cause": "Cause"},
        ),
    ]


ROWS = ((_night, 4), (_lost, 9), (_worth, 9), (_lengths, 9), (_standing, 9))
"""Rows of panels, from the top, each with its height in Grafana's units."""


def _placed() -> list[Panel]:
    placed: list[Panel] = []
    top = 0
    for made, height in ROWS:
        row = made()
        edges = [round(i * WIDTH / len(row)) for i in range(len(row) + 1)]
        for panel, left, right in zip(row, edges, edges[1:], strict=False):
            at = {"x": left, "y": top, "w": right - left, "h": height}
            placed.append({"id": len(placed) + 1, **panel, "gridPos": at})
        top += height
    return placed


def dashboard() -> str:
    """The dashboard as JSON that Grafana (9 or later) imports; it asks for the data source."""
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource"}
    said = {
        "uid": "tracekit-fleet",
        "title": "tracekit: fleet",
        "tags": ["tracekit"],
        "schemaVersion": 37,
        "editable": True,
        "timezone": "utc",
        "time": {"from": "now-30d", "to": "now"},
        "refresh": "",
        "templating": {"list": [{**source, "query": "prometheus"}]},
        "annotations": {"list": []},
        "panels": _placed(),
    }
    return json.dumps(said, indent=1) + "\n"
