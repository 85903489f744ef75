"""What counters alone say, judged on jobs that work through queues (``queued_jobs``).

What a statement says is held against what the devices did, measured in their own pieces of work: a
statement may be missing, and none may be wrong. No threshold was chosen on these seeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import queued_jobs
from queued_jobs import Truth

import tracekit
from soaks import examples, soak

NAMES = {"network": "port", "nvlink": "nvlink", "pcie": "pcie"}
RESOLVED = {"dp", "accumulation", "offload", "hsdp", "split"}
"""Whose step shows in what is sampled every 0.1 s, whatever their layers do."""
TOLD = {"accumulation": {"bursts_network", "bursts_nvlink"},
        "offload": {"offload"}, "hsdp": {"throughout_nvlink"}, "split": {"load"}}  # fmt: skip
"""What is plain enough, at ten readings a step, that silence would be a fault."""
SEEDS = soak(
    [(layout, seed) for seed in (301, 302, 303) for layout in queued_jobs.LAYOUTS],
    # Bursts that are told; two jobs in one, test_counter_statements has as well.
    fast=[("accumulation", 301)],
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def asked(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with tracekit.open([folder]) as run:
        (step, *_) = run.query("activity_steps").to_dicts()
        return step, run.query("counter_statements").to_dicts()


def is_true(said: dict[str, Any], truth: Truth) -> bool:
    """Whether a statement holds for what the devices did."""
    kind, number = said["kind"], said["value"]
    nodes = [n for n in range(truth.nodes) if f"node{n}" in said["scope"]]
    way, _, name = kind.partition("_")
    if way in ("bursts", "stretch", "throughout"):
        ratios = [truth.most_ratio(NAMES[name], node) for node in nodes]
        if way == "stretch":  # of the time, and none in a fifth of it and more
            return bool(min(ratios) >= 0.3 and max(ratios) <= 0.7)
        return bool(max(ratios) <= 0.5 if way == "bursts" else min(ratios) >= 0.55)
    if kind == "clock_offset":
        return bool(abs(number - truth.offset_s) <= max(3 * said["error"], 0.03))
    if kind == "in_turn":
        return bool(np.corrcoef(truth.busy(0, 0), truth.busy(1, 0))[0, 1] < -0.2)
    if kind == "offload":
        return all(truth.idle_copies(node, 0) >= 0.5 for node in nodes)
    if kind == "load":
        means = [truth.busy(n, g).mean() for n in range(truth.nodes) for g in range(truth.gpus)]
        return bool(max(means) - min(means) >= 0.1)
    if kind == "independent":
        return len(truth.periods_s) == 2
    return kind == "ports" and bool(number <= 1.1)  # all GPUs send alike, and none is apart


@pytest.mark.parametrize(("layout", "seed"), SEEDS)
@pytest.mark.slow  # another job through the same lines
def test_periods_and_statements_are_right_or_missing(
    layout: str, seed: int, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    truth = queued_jobs.make(layout, folder, seed, gpus=examples(2, 4))
    step, said = asked(folder)
    assert not [row for row in said if not is_true(row, truth)]
    if truth.periods_s and min(truth.periods_s) >= 1.0:
        assert {row["kind"] for row in said} >= TOLD.get(layout, set())
    assert step["verdict"] == "steps" or layout not in RESOLVED
    if step["verdict"] == "steps":
        assert len(truth.periods_s) == 1
        # No counter tells a microbatch from a step.
        true_s = {p / m for p in truth.periods_s for m in (1, truth.microbatches)}
        assert min(abs(step["period_ns"] / 1e9 / t - 1) for t in true_s) <= 0.02


@pytest.mark.parametrize("seed", soak([311, 312, 313], fast=[]))
def test_steps_faster_than_four_readings_are_refused(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    queued_jobs.make("dp", folder, seed, step_s=0.2, span_s=90)
    step, said = asked(folder)
    assert step["verdict"] == "none"
    assert {row["kind"] for row in said} <= {"ports", "clock_offset"}


def test_an_exchange_begins_when_its_last_member_has_come() -> None:
    cluster = queued_jobs.Cluster(np.random.default_rng(1))

    def program(seconds: float) -> queued_jobs.Program:
        yield queued_jobs.Work(seconds, 1.0)
        yield queued_jobs.Meet(("all",), 2, 150e9, 0.0)
        yield queued_jobs.Step()

    for gpu, seconds in enumerate((1.0, 3.0)):
        cluster.start(0.0, program(seconds), (0, gpu))
    cluster.run(10.0)
    (sent,) = cluster.channels[0, "nvlink_tx", 0].pieces
    assert sent[0] == pytest.approx(3.0, rel=0.1)
    assert sent[1] - sent[0] == pytest.approx(1.06, abs=0.07)
    assert cluster.steps[0, 0] == cluster.steps[0, 1] == [sent[1]]
    moved = cluster.channels[0, "nvlink_tx", 0].total()(np.array([0.0, 10.0]))
    assert moved.tolist() == pytest.approx([0.0, 150e9])
