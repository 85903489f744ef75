"""Jobs of days: what they leave behind is what their truth says, and readers find it there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accuracy.histories import Case, is_told, judge
from soaks import soak
from tracekit import api
from tracekit.cli import main
from tracekit.errors import UsageError
from tracekit.simulate.history import DECOYS, FAULTS, HistoryRequest, is_history, write_history
from tracekit.simulate.history.draft import Draft, Noise, Restart
from tracekit.simulate.history.lines import BY_NAME
from tracekit.simulate.history.timeline import timeline
from tracekit.simulate.noise import generator

QUIET = Noise(0.0, 0.0, wander_ratio=0.0, daily_ratio=0.0, save_every=0)
SMALL: dict[str, Any] = {"steps_count": 4000, "days": 1.2, "hosts_count": 2, "interval_s": 600.0}


def run(*arguments: str) -> int:
    try:
        return int(main(list(arguments)) or 0)
    except SystemExit as ended:
        return int(ended.code or 0)


def draft(steps_count: int = 2000, **more: Any) -> Draft:
    return Draft(steps_count, 2.0, ("trainer-00",), QUIET, generator(1, "test"), **more)


def test_a_quiet_job_takes_what_its_steps_take() -> None:
    times = timeline(draft())
    assert times.step.tolist() == list(range(1, 2001))
    assert np.allclose(times.dur_s[1:], 2.0)
    assert np.allclose(np.diff(times.end_s), 2.0)


def test_a_restart_repeats_steps_after_its_gap() -> None:
    job = draft()
    job.restarts.append(Restart(1000, 100, 300.0, factor=1.5))
    times = timeline(job)
    assert len(times.step) == 2100
    assert times.step[999:1001].tolist() == [1000, 901]
    assert times.end_s[1000] - times.end_s[999] == pytest.approx(300 + times.dur_s[1000])
    assert np.allclose(times.dur_s[1001:], 3.0)


def test_a_drift_is_growth_a_day_of_the_first_step() -> None:
    job = draft()
    job.drift_per_day = 0.1
    days = 4000 / 86_400
    assert timeline(job).dur_s[-1] == pytest.approx(2.0 * (1 + 0.1 * days))


def test_every_fault_costs_time_and_no_decoy_does() -> None:
    """But for one that ends the job, and for one that only the trace shows."""
    quiet_s = timeline(draft(8000)).end_s[-1]
    for fault in FAULTS:
        job = draft(8000)
        struck = fault.apply(job, fault.strength)
        assert 1 <= struck.first_step <= struck.last_step <= job.steps_count, fault.name
        is_longer = timeline(job).end_s[-1] > quiet_s
        assert is_longer == (job.end is None and not fault.needs_trace), fault.name
    for decoy in DECOYS:
        job = draft(8000)
        assert {*decoy.apply(job)} <= {*job.hosts, *job.strangers}, decoy.name
        assert timeline(job).end_s[-1] == pytest.approx(quiet_s, rel=1e-3), decoy.name


def test_the_same_request_writes_the_same_files(tmp_path: Path) -> None:
    request = HistoryRequest("cpu-throttled+first-failure", 3, **SMALL)
    for name in ("one", "two"):
        write_history(request, tmp_path / name)
    one, two = (
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*")
         if p.is_file()}
        for n in ("one", "two")
    )  # fmt: skip
    assert one == two


@pytest.mark.parametrize("name", soak(sorted(BY_NAME), fast=["megatron"]))
def test_every_format_is_read_with_its_saves_and_restarts(name: str, tmp_path: Path) -> None:
    request = HistoryRequest("slow-startup:900", 5, format=name, lines_every=5, decoys=(),
                             noise=Noise(save_every=500), **SMALL)  # fmt: skip
    truth = write_history(request, tmp_path / "job")
    with api.ingest([tmp_path / "job"], run=tmp_path / "run") as made:
        lines = made.sql("SELECT count(*) AS n, max(step) AS last FROM job_step")
        saves = made.sql("SELECT count(*) AS n FROM log_event WHERE code = 'checkpoint-save'")
        restarts = [r for r in made.query("slow_episode").to_dicts() if r["kind"] == "restart"]
        assert made.sql("SELECT count(*) AS n FROM host_sample")["n"][0] > 0
    assert (lines["n"][0], lines["last"][0]) == (_steps_count(tmp_path / "job"), 4000)
    assert saves["n"][0] >= 7
    for expected in truth["faults"][0]["episodes"]:
        assert any(is_told(expected, row, truth["history"]) for row in restarts)


def _steps_count(folder: Path) -> int:
    marks = ("elapsed time per iteration", "mfu", "skipped=", "completed step: ")
    lines = (folder / "train.log").read_text().splitlines()
    return sum(any(mark in line for mark in marks) for line in lines)


@pytest.mark.parametrize(
    "words",
    soak(
        ["periodic-stall:0.05", "step-drift:0.02", "restart-loss:0.05", "slow-startup:2400",
         "first-failure", "memory-pressure:1.3", "profiler-overhead:1.6"],
        fast=["periodic-stall:0.05", "memory-pressure:1.3"],
    ),
)  # fmt: skip
def test_each_kind_is_named_at_its_place_and_nothing_else(words: str) -> None:
    """One job a kind; tests/accuracy/histories.py asks many."""
    said = judge(Case(words, HistoryRequest(words, 1250, steps_count=8000, days=2.0,
                                            hosts_count=2, interval_s=300.0)))  # fmt: skip
    assert (said.error, said.missed, said.wrong) == (None, (), ())


def test_the_judge_sees_what_is_missing_and_what_is_said_besides() -> None:
    history = {"lines_every": 10, "job_s": 86_400.0, "usual_s": 1.0}
    row = {
        "kind": "slow", "first_step": 1003, "last_step": 1990, "dur_ns": 11, "usual_ns": 10,
        "period_count": None, "lost_ns": 10**9, "per_day_ratio": None, "repeated_count": None,
    }  # fmt: skip
    expected = {"kind": "slow", "first_step": 1000, "last_step": 2000}
    assert is_told(expected, row, history)
    assert not is_told(expected | {"first_step": 500}, row, history)
    assert not is_told(expected | {"kind": "stall"}, row, history)
    drift = row | {"kind": "drift", "per_day_ratio": 0.004}
    assert is_told({"kind": "drift", "per_day_ratio": 0.0042}, drift, history)
    assert not is_told({"kind": "drift", "per_day_ratio": 0.008}, drift, history)


def test_jobs_of_days_and_of_steps_do_not_mix(tmp_path: Path) -> None:
    assert is_history("step-drift+long-stall") and not is_history("slow-gpu")
    with pytest.raises(UsageError, match="different jobs"):
        is_history("step-drift+slow-gpu")
    with pytest.raises(UsageError, match="no decoy"):
        write_history(HistoryRequest("step-drift", decoys=("idle",), **SMALL), tmp_path / "job")


def test_the_command_writes_one_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("simulate", "first-failure", "-o", str(tmp_path / "job"), "--steps", "4000")
    assert run(*arguments) == 0
    truth = json.loads((tmp_path / "job" / "truth.json").read_text())
    (fault,) = truth["faults"]
    assert f"rank {fault['where']['ranks'][0]}" in capsys.readouterr().err
    assert run("simulate", "--list") == 0
    listed = capsys.readouterr().out
    assert all(f.name in listed for f in FAULTS)
