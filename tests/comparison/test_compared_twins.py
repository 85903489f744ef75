"""Recorded pairs set beside each other: the fault leads, and the parts add up to the difference."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
import samples

from accuracy.twins import TWINS, Truths
from soaks import soak
from tracekit.cli import app as cli
from tracekit.comparison.build import compare
from tracekit.comparison.model import Comparison
from tracekit.comparison.sides import RunRows

Rows = Callable[[str], RunRows]
TRUTHS = Truths().by_name
CAUSES = {
    "ddp-input-stall": ("input", (3,)),
    "ddp-slow-compute": ("compute", (2,)),
    "ddp-starved-link": ("transfer", (1,)),
    "ddp-periodic-checkpoint": ("checkpoint", ()),
    "hsdp-pause": ("idle", (0,)),
    "moe-hot-expert": ("compute", (1,)),
    "pp-uneven-stage": ("compute", (2,)),
    "tp-throttled-cpu": ("compute", (3,)),
}
"""What the largest contribution of a pair must be: its cause, and whose."""
PROVED = [name for name in CAUSES if name != "hsdp-pause"]
HEALTHY = [
    f"ddp-{name}-healthy"
    for name in ("slow-compute", "input-stall", "periodic-checkpoint", "two-faults")
]
"""One job, recorded four times."""
FIRST = ("ddp-input-stall", "ddp-starved-link")


@pytest.fixture(scope="module")
def compared_run() -> Rows:
    """Rows of a recorded twin by its name."""

    @functools.cache
    def rows(name: str) -> RunRows:
        with samples.opened(TWINS / name) as run:
            return run.compared()

    return rows


def between(rows: Rows, baseline: str, candidate: str) -> Comparison:
    return compare([rows(baseline)], [rows(candidate)])


@pytest.mark.parametrize("name", soak(CAUSES, fast=FIRST[:1]))
@pytest.mark.slow  # another job through the same lines
def test_the_fault_is_the_largest_part_and_makes_nine_tenths_of_the_difference(
    compared_run: Rows, name: str
) -> None:
    found = between(compared_run, f"{name}-healthy", name)
    assert found.step is not None
    first = found.attribution[0]
    assert (first.cause, first.ranks) == CAUSES[name]
    assert 0.9 <= first.difference.difference_s / found.step.difference_s <= 1.1
    cost_s = TRUTHS[name]["twin"]["measured_cost_ms"] / 1e3
    assert found.step.difference_s == pytest.approx(cost_s, rel=0.01)


@pytest.mark.parametrize("name", soak(PROVED, fast=FIRST[:1]))
def test_the_difference_is_significant_and_the_fault_is_a_new_finding(
    compared_run: Rows, name: str
) -> None:
    found = between(compared_run, f"{name}-healthy", name)
    assert found.verdict.change == "slower"
    assert found.exceeds(0.03)
    assert found.attribution[0].findings
    assert set(found.attribution[0].findings) <= {f.id for f in found.findings if f.change == "new"}


@pytest.mark.parametrize(
    "name", soak([*CAUSES, "ddp-two-faults", "fsdp-starved-link"], fast=FIRST[:1])
)
def test_the_parts_add_up_and_swapped_sides_turn_their_signs(compared_run: Rows, name: str) -> None:
    there = between(compared_run, f"{name}-healthy", name)
    back = between(compared_run, name, f"{name}-healthy")
    assert there.step is not None
    assert back.step is not None
    parts = {(c.cause, c.ranks, c.operation): c.difference for c in there.attribution}
    turned = {(c.cause, c.ranks, c.operation): c.difference for c in back.attribution}
    assert sum(d.difference_s for d in parts.values()) == pytest.approx(there.step.difference_s)
    assert back.step.difference_s == pytest.approx(-there.step.difference_s)
    assert back.step.low_s == pytest.approx(-(there.step.high_s or 0))
    for key, part in parts.items():
        assert turned[key].difference_s == pytest.approx(-part.difference_s, abs=1e-12)
        assert turned[key].low_s == pytest.approx(-(part.high_s or 0), abs=1e-12)
    assert not back.exceeds(0)
    new = {f.id for f in there.findings if f.change == "new"}
    assert {f.id for f in back.findings if f.change == "gone"} == new


@pytest.mark.slow  # its pair is diagnosed for itself in test_twins.py
def test_of_two_faults_both_are_named(compared_run: Rows) -> None:
    found = between(compared_run, "ddp-two-faults-healthy", "ddp-two-faults")
    named = [(c.cause, c.ranks) for c in found.attribution[:2]]
    assert named == [("input", (3,)), ("compute", (1,))]


@pytest.mark.slow  # its pair is for this test alone
def test_too_few_slow_steps_are_said_to_prove_nothing_and_still_told(compared_run: Rows) -> None:
    found = between(compared_run, "hsdp-pause-healthy", "hsdp-pause")
    assert found.verdict.change == "no significant change"
    assert not found.exceeds(0.03)
    assert "rank 0 stands idle" in found.verdict.sentence
    assert "in 2 of 10 steps" in found.verdict.sentence


@pytest.mark.parametrize(
    ("one", "other"),
    soak(list(itertools.permutations(HEALTHY, 2)), fast=[(HEALTHY[0], HEALTHY[1])]),
)
def test_one_healthy_job_recorded_twice_has_no_significant_change(
    compared_run: Rows, one: str, other: str
) -> None:
    found = between(compared_run, one, other)
    assert found.verdict.change == "no significant change"
    assert not found.exceeds(0)


def called(
    capsys: pytest.CaptureFixture[str], baseline: str, candidate: str, *more: str
) -> tuple[int, dict[str, Any]]:
    """The command's exit code and its JSON, from the files on."""
    sides = ("--baseline", str(TWINS / baseline), "--candidate", str(TWINS / candidate))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setenv("TRACEKIT_CACHE_DIR", f"{os.environ[samples.FOLDER]}/cache")
        cli.main(["compare", *sides, "--format", "json", *more])
    return int(str(ended.value.code)), json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", soak(PROVED, fast=FIRST[:1]))
def test_the_command_names_the_fault_and_fails(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, change = called(capsys, f"{name}-healthy", name, "--fail-above", "3%")
    assert code == 1
    first = change["attribution"][0]
    assert (first["cause"], tuple(first["ranks"])) == CAUSES[name]
    share = first["difference"]["difference_s"] / change["step"]["difference_s"]
    assert 0.9 <= share <= 1.1


@pytest.mark.slow  # another job through the same lines
def test_the_command_passes_a_healthy_job_recorded_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, change = called(capsys, *HEALTHY[:2], "--fail-above", "0%")
    assert (code, change["verdict"]["change"]) == (0, "no significant change")


def test_several_runs_of_a_side_count_as_runs(compared_run: Rows) -> None:
    runs = [compared_run(name) for name in HEALTHY[:2]]
    found = compare(runs, [compared_run("ddp-input-stall")])
    assert found.verdict.change == "slower"
    assert found.baseline.steps_count == 24
    assert found.step is not None
    assert "over runs" in found.step.method
    assert (found.attribution[0].cause, found.attribution[0].ranks) == ("input", (3,))


def test_a_run_against_itself_has_moved_nothing_at_all(compared_run: Rows) -> None:
    found = between(compared_run, "ddp-input-stall", "ddp-input-stall")
    assert found.verdict.sentence.startswith("No change")
    assert found.step is not None
    assert found.step.difference_s == 0
    assert {c.difference.difference_s for c in found.attribution} == {0}
    assert [m for m in found.classes if m.baseline != m.candidate] == []
    lists = (
        found.ranks, found.stages, found.operators, found.kernels, found.collectives,
        found.groups, found.counters, found.calls, found.configuration, found.findings,
    )  # fmt: skip
    assert [rows for rows in lists if rows] == []
    assert found.not_compared == ()
