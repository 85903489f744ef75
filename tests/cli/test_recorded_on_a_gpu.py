"""What is said of the jobs of fixtures/cuda, which were recorded with CUDA and NCCL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Tracekit
from soaks import soak

CUDA = Path(__file__).resolve().parents[2] / "fixtures" / "cuda"
STALLED = ["four-ddp-input-rank1", "four-fsdp-input-rank0"]
_known: dict[str, dict[str, Any]] = {}


def _told(tracekit: Tracekit, folder: str) -> dict[str, Any]:
    """The report, which is the same for whoever asks."""
    if folder not in _known:
        _known[folder] = json.loads(tracekit("diagnose", CUDA / folder, "--format", "json").out)
    return _known[folder]


def test_the_rank_that_does_not_join_is_named_and_nobody_else(tracekit: Tracekit) -> None:
    findings = _told(tracekit, "hang")["findings"]
    hangs = [f for f in findings if f["rule"] == "collective-hang"]
    assert [f["scope"]["ranks"] for f in hangs] == [[2]]
    assert {rank for f in findings for rank in f["scope"]["ranks"]} == {2}


def test_an_input_stall_costs_what_the_twin_measured(tracekit: Tracekit) -> None:
    truth = json.loads((CUDA / "one-input-every4" / "truth.json").read_text())
    measured_s = truth["profiled_step_s"] - truth["healthy_profiled_step_s"]
    first = _told(tracekit, "one-input-every4")["findings"][0]
    assert first["rule"] == "dataloader-stall"
    assert first["impact"]["s_per_step"] == pytest.approx(measured_s, rel=0.25)


def test_a_pause_of_every_fourth_step_is_told_with_its_cost_and_its_place(
    tracekit: Tracekit,
) -> None:
    """The loop sleeps 100 ms of every fourth step, between backward and the optimizer."""
    (first,) = _told(tracekit, "one-pause-every4")["findings"]
    assert first["rule"] == "host-pause"
    assert first["impact"]["s_per_step"] == pytest.approx(0.100 / 4, rel=0.05)
    assert "between backward and optimizer" in first["summary"]


def test_what_only_a_profiled_job_waits_for_is_called_possible(tracekit: Tracekit) -> None:
    """Without the profiler a step takes 11.1 ms, 10.8 of which the GPU computes."""
    (found,) = _told(tracekit, "one-healthy")["findings"]
    assert (found["rule"], found["confidence"]["level"]) == ("launch-bound", "possible")
    assert found["impact"]["low_s_per_step"] == 0


@pytest.mark.parametrize("folder", soak(STALLED, fast=1))
def test_nobody_innocent_is_named(tracekit: Tracekit, folder: str) -> None:
    culprit = json.loads((CUDA / folder / "truth.json").read_text())["who"]
    named = [f["scope"]["ranks"] for f in _told(tracekit, folder)["findings"]]
    assert all(ranks in ([], [culprit], [0, 1, 2, 3]) for ranks in named)


@pytest.mark.parametrize("folder", soak(STALLED, fast=1))
def test_steps_of_hosts_that_run_ahead_are_as_long_as_without_the_profiler(
    tracekit: Tracekit, folder: str
) -> None:
    """The queue hides the stall: with it and without, a step takes as long to a hundredth."""
    truth = json.loads((CUDA / folder / "truth.json").read_text())
    told = _told(tracekit, folder)
    assert told["verdict"]["kind"] == "inherent"
    (job,) = (
        row
        for row in json.loads(
            tracekit("query", "step_time_summary", CUDA / folder, "--format", "json").out
        )
        if row["rank"] is None
    )
    assert job["mean_ns"] / 1e9 == pytest.approx(truth["plain_step_s"], rel=0.05)
    assert job["max_ns"] < 1.15 * job["p50_ns"]


def test_some_steps_of_a_host_that_runs_ahead_lose_no_kernel(tracekit: Tracekit) -> None:
    """While the device works off step 9 its host launches step 10, which is not asked for."""
    folder = CUDA / "four-ddp-input-rank1"
    assert tracekit("query", "lost_kernels", folder, "--steps", "5-9", "--format", "json").out in (
        "[]\n", ""
    )  # fmt: skip
    told = tracekit("diagnose", folder, "--steps", "5-9", "--format", "json").out
    assert json.loads(told)["verdict"]["kind"] == "inherent"


def test_a_card_alone_accuses_nobody(tracekit: Tracekit) -> None:
    assert _told(tracekit, "telemetry")["findings"] == []


def test_both_forms_of_dmon_are_read(tracekit: Tracekit) -> None:
    inputs = _told(tracekit, "telemetry")["inputs"]
    status = {Path(i["path"]).name: (i["status"], i["rows"] > 0) for i in inputs}
    assert status["dmon.csv"] == status["dmon.txt"] == ("ok", True)
