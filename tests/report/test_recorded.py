"""Recorded jobs against their ground truth, from raw files to the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracekit import api
from tracekit.report import Report
from tracekit.rules import RULES

RECORDED = Path(__file__).parents[2] / "fixtures" / "recorded"
CASES = sorted(p.parent.name for p in RECORDED.glob("*/truth.json"))
BUILT = {rule.name for rule in RULES}


def diagnosed(case: str, tmp_path: Path) -> tuple[Report, dict[str, Any]]:
    truth: dict[str, Any] = json.loads((RECORDED / case / "truth.json").read_text())
    with api.ingest([RECORDED / case], run=tmp_path / "run") as run:
        return run.diagnose(), truth


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_job_is_told_as_it_was(case: str, tmp_path: Path) -> None:
    report, truth = diagnosed(case, tmp_path)
    found = {f.rule: f for f in report.findings}
    explicable = set(truth["inherent_rules"])
    for fault in truth["faults"]:
        named = (*fault["expected_rules"], *fault["allowed_rules"])
        for rule in set(fault["expected_rules"]) & BUILT:
            assert list(found[rule].scope.ranks) == fault["where"]["ranks"]
            assert found[rule].severity.value in ("major", "critical")
            # A finer cause that the truth allows may lead, and must be of the same ranks.
            led = next(f for f in report.findings if f.id == report.verdict.finding)
            assert led.rule in named
            assert led.scope.ranks == found[rule].scope.ranks
        explicable |= {
            *fault["expected_rules"],
            *fault["allowed_rules"],
            *fault["symptom_rules"],
        }
        if not set(fault["expected_rules"]) & BUILT:
            # No rule for it yet: it must not pass for a healthy job.
            assert report.verdict.kind == "unexplained"
            (rank,) = fault["where"]["ranks"]
            assert f"ank {rank} seems to hold up the others" in report.verdict.sentence
    assert set(found) <= explicable
    if not truth["faults"]:
        assert report.verdict.kind == "inherent"
        assert report.verdict.sentence.startswith("Nothing to fix")


@pytest.mark.parametrize(
    "case", ["ddp-checkpoint", "ddp-dataloader-stall", "ddp-gc-pause", "ddp-gc-pause-stacks"]
)
def test_the_cost_is_what_the_recorder_measured(case: str, tmp_path: Path) -> None:
    report, truth = diagnosed(case, tmp_path)
    (fault,) = truth["faults"]
    per_step = fault["measured"]["value"] * len(fault["steps"]) / report.document.run.steps_count
    assert report.findings[0].impact.s_per_step == pytest.approx(per_step, rel=0.05)
    budget = {p.finding: p.s_per_step for p in report.document.step_budget}
    assert budget[report.findings[0].id] == pytest.approx(per_step, rel=0.05)
