"""Recorded decoding by tensor parallelism: nobody marks a step, and faults are named anyway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import samples

DECODING = Path(__file__).parents[1] / "fixtures" / "decoding"
CLOSE = 0.25
GRAVE = ("major", "critical")


def truth(case: str) -> dict[str, object]:
    """What was measured, and what was done to the job."""
    read: dict[str, object] = json.loads((DECODING / case / "truth.json").read_text())
    return read


@pytest.mark.parametrize("case", ["healthy", "slow-rank", "pause"])
@pytest.mark.slow  # another job through the same lines
def test_a_token_is_the_step_and_takes_what_was_measured(case: str) -> None:
    report = samples.diagnosis(DECODING / case)
    step = report.document.metrics.step_time
    assert step is not None
    assert 1000 * step.mean_s == pytest.approx(truth(case)["token_ms"], rel=0.02)
    assert any("a step is what they repeat" in line for line in report.notes.data_lines)


@pytest.mark.parametrize("case", ["slow-rank", "pause"])
def test_the_fault_is_named_and_costs_what_it_was_measured_to(case: str) -> None:
    document = samples.diagnosis(DECODING / case).document
    faults: Any = truth(case)["faults"]
    (fault,) = faults
    verdict = next(f for f in document.findings if f.id == document.verdict.finding)
    assert verdict.rule in fault["expected_rules"]
    assert list(verdict.scope.ranks) == fault["where"]["ranks"]
    assert verdict.impact.s_per_step is not None
    assert 1000 * verdict.impact.s_per_step == pytest.approx(fault["measured_cost_ms"], rel=CLOSE)
    accused = {r for f in document.findings if f.severity in GRAVE for r in f.scope.ranks}
    assert accused == set(fault["where"]["ranks"])


def test_nobody_is_accused_where_nothing_was_done() -> None:
    document = samples.diagnosis(DECODING / "healthy").document
    assert document.verdict.finding is None
    assert not [f.id for f in document.findings if f.severity in GRAVE]
