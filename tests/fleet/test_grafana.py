"""Dashboard and alerts: current, about metrics that there are, and answered by Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from fleet_nights import Fleet, day_of
from tracekit.dashboards import grafana
from tracekit.fleet import metrics
from tracekit.fleet.night import judged
from tracekit.fleet.rollup import Rolled

METRIC = re.compile(r"tracekit_\w+")
ALERTS = grafana.FOLDER / "alerts.yml"
EXPRESSIONS = {
    p["title"]: p["targets"][0]["expr"] for p in json.loads(grafana.dashboard())["panels"]
}
"""What the dashboard asks Prometheus, by the panel's title."""
NOON_S = int(datetime.fromisoformat(day_of(30)).replace(tzinfo=UTC).timestamp()) + 12 * 3600
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus"
)


def test_the_committed_dashboard_is_what_its_generator_writes() -> None:
    assert grafana.FILE.read_text() == grafana.dashboard(), "python -m tracekit.dashboards.grafana"


def test_dashboard_and_alerts_ask_for_metrics_that_there_are() -> None:
    asked = {m for e in EXPRESSIONS.values() for m in METRIC.findall(e)}
    assert asked == set(metrics.HELP)
    assert set(METRIC.findall(ALERTS.read_text())) < set(metrics.HELP)


def test_panels_fill_the_width_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(grafana.dashboard())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not cells & taken
        taken |= cells
    assert len(taken) == grafana.WIDTH * sum(height for _, height in grafana.ROWS)


def test_grafanas_own_models_lose_nothing_of_the_dashboard() -> None:
    """A key that is none of Grafana's, or at the wrong place, would be gone."""
    library = "grafana_foundation_sdk"
    models = pytest.importorskip(f"{library}.models.dashboard", reason=f"pip install {library}")
    import_module(f"{library}.cog.plugins").register_default_plugins()
    encoder = import_module(f"{library}.cog.encoder").JSONEncoder

    def is_kept(ours: Any, theirs: Any) -> bool:
        if isinstance(ours, dict):
            return all(k in theirs and is_kept(v, theirs[k]) for k, v in ours.items())
        if isinstance(ours, list):
            return len(ours) == len(theirs) and all(map(is_kept, ours, theirs))
        return bool(ours == theirs)

    said = json.loads(grafana.dashboard())

    def read(document: Any) -> Any:
        return json.loads(json.dumps(models.Dashboard.from_json(document), cls=encoder))

    assert is_kept(said, read(said))
    said["panels"][0]["targets"][0]["expression"] = "up"
    assert not is_kept(said, read(said))


def _promtool(*words: str | Path) -> str:
    program = shutil.which("promtool")
    assert program is not None
    done = subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus with thirty nights, the last of them scraped at noon."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs Prometheus: apt-get install prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    fleet = Fleet(1)
    history = folder / "history.om"
    history.write_text(metrics.history(fleet, day_of(1), day_of(30)))  # type: ignore[arg-type]  # as the store
    night = judged(fleet, day_of(30), Rolled())  # type: ignore[arg-type]  # as the store
    scraped = folder / "scraped.om"
    scraped.write_text(_scraped(metrics.current(night)))
    for file in (history, scraped):
        _promtool("tsdb", "create-blocks-from", "openmetrics", file, folder / "data")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    (folder / "prometheus.yml").write_text(f"rule_files: ['{ALERTS}']\n")
    words = [
        program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(300):
                try:
                    urllib.request.urlopen(f"{address}/-/ready", timeout=2).close()  # noqa: S310 - loopback
                except OSError:
                    time.sleep(0.1)
                else:
                    break
            yield address
        finally:
            process.terminate()


def _scraped(text: str) -> str:
    """What node-exporter's textfile is once it is scraped."""

    def stamped(found: re.Match[str]) -> str:
        labels = f"{found[2]}," if found[2] else ""
        return f'{found[1]}{{{labels}instance="login:9100",job="node"}} {found[3]} {NOON_S}'

    return re.sub(r"^(tracekit_\w+)(?:\{(.*)\})? (\S+)$", stamped, text, flags=re.MULTILINE)


def _asked(address: str, path: str, **query: object) -> list[dict[str, Any]]:
    url = f"{address}/api/v1/{path}?{urlencode(query)}"
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - loopback
        said = json.loads(answer.read())
    assert said["status"] == "success"
    rows: list[dict[str, Any]] = said["data"]["result"]
    return rows


@pytest.mark.parametrize("title", EXPRESSIONS)
def test_every_panel_gets_data_from_prometheus(title: str, prometheus: str) -> None:
    panel = next(p for p in json.loads(grafana.dashboard())["panels"] if p["title"] == title)
    expr = panel["targets"][0]["expr"]
    if panel["type"] == "timeseries":
        start = NOON_S - 29 * 86400
        rows = _asked(prometheus, "query_range", query=expr, start=start, end=NOON_S, step=86400)
        metric = METRIC.findall(expr)[0]
        told = metrics.history(Fleet(1), day_of(1), day_of(30))  # type: ignore[arg-type]  # as the store
        dates = {line.split()[-1] for line in told.splitlines() if line.startswith(metric)}
        assert len({at for r in rows for at, _ in r["values"]}) == len(dates) > 20
    else:
        rows = _asked(prometheus, "query", query=expr, time=NOON_S + 60)
        assert rows
    if title == "Runs":
        assert [r["value"][1] for r in rows] == ["40"]
    if title == "Runs a night":  # of which one lost half
        assert [v for _, v in rows[0]["values"]].count("20") == 1
    if title == "Runs with a finding":
        assert {r["metric"]["name"] for r in rows} == {"h13", "leaf3:h27"}
    if title == "Last night":
        assert [float(r["value"][1]) for r in rows] == [12 * 3600 + 60]


@needs_promtool
def test_the_alerts_are_rules_and_fire_when_they_should(tmp_path: Path) -> None:
    assert "SUCCESS: 4 rules found" in _promtool("check", "rules", ALERTS)
    tests = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1h",
        "tests": [
            {
                "interval": "1h",
                "input_series": [
                    # The night of day 0 until the end; the offender leaves after a day.
                    {"series": 'tracekit_night_timestamp_seconds{instance="a"}', "values": "0x100"},
                    {"series": "tracekit_runs_failed", "values": "0x47 3x52"},
                    {
                        "series": 'tracekit_regression_slower_ratio{family="f",'
                        'change="nccl_version 1 2",since="2026-06-25"}',
                        "values": "0.04x100",
                    },
                    {
                        "series": 'tracekit_offender_bad_runs{kind="host",name="h13"}',
                        "values": "5x24 stale",
                    },
                ],
                "alert_rule_test": [
                    _expected("TracekitNightMissing", "60h", None),
                    _expected(
                        "TracekitNightMissing",
                        "61h",
                        {"severity": "warning"},
                        "No night was rolled up for 2d 13h 0m 0s.",
                        "See the log of the timer that runs tracekit rollup.",
                    ),
                    _expected("TracekitRunsFailed", "47h", None),
                    _expected(
                        "TracekitRunsFailed",
                        "48h",
                        {"severity": "info"},
                        "3 runs could not be diagnosed.",
                        "tracekit rollup names each with its reason, and tries again the next "
                        "night.",
                    ),
                    _expected(
                        "TracekitJobsSlower",
                        "1h",
                        {
                            "severity": "warning",
                            "family": "f",
                            "change": "nccl_version 1 2",
                            "since": "2026-06-25",
                        },
                        "Family f takes 4% longer a step since 2026-06-25.",
                        "Changed at that date: nccl_version 1 2.",
                    ),
                    _expected(
                        "TracekitOffender",
                        "24h",
                        {"severity": "warning", "kind": "host", "name": "h13"},
                        "host h13: findings in 5 runs, far more than on others.",
                        "tracekit rollup and tracekit site name the runs and their reports.",
                    ),
                    _expected("TracekitOffender", "26h", None),
                ],
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(json.dumps(tests))  # JSON is YAML
    assert "SUCCESS" in _promtool("test", "rules", tmp_path / "tests.yml")


def _expected(
    name: str, at: str, labels: dict[str, str] | None, summary: str = "", description: str = ""
) -> dict[str, Any]:
    said = {"summary": summary, "description": description}
    fires = [] if labels is None else [{"exp_labels": labels, "exp_annotations": said}]
    return {"eval_time": at, "alertname": name, "exp_alerts": fires}
