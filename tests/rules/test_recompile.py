"""recompile: when it fires, when just not, and what exempts."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

from stall_rules import MakeJob, look
from tracekit import api

COMPILED = Path(__file__).resolve().parents[2] / "fixtures" / "compiled"


@pytest.mark.parametrize(("steps", "count"), [([3, 6, 9], 1), ([3, 9], 0)])
def test_a_model_that_is_compiled_again_three_times_is_named(
    steps: list[int], count: int, make_job: MakeJob
) -> None:
    """Twice is an accident: neither three episodes nor a fifth of the steps."""
    job = make_job(steps_count=12).stall("compile_stall", [2], steps, 30)
    findings = look("recompile", job).findings
    assert len(findings) == count
    for finding in findings:
        assert finding.id == "recompile/2"
        assert finding.summary.startswith("Rank 2 compiles the model again")
        assert finding.remedy[0].startswith("pad inputs to a few lengths")


def test_a_recorded_job_that_compiles_again_is_priced_as_it_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its README has what each step took; its twin, compiled once, compiles nothing again."""
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path))
    readme = (COMPILED / "recompiled" / "README.md").read_text()
    (steps,) = (line for line in readme.splitlines() if line.startswith("| steps, ms |"))
    took_ms = [float(word) for word in re.findall(r"\d+\.\d", steps)]
    lost_s = (sum(took_ms) / len(took_ms) - median(took_ms)) / 1e3
    with api.open(COMPILED / "recompiled") as run:
        (found,) = run.diagnose(select=["recompile"]).findings
    assert found.scope.steps == ((8, 8), (11, 11))
    assert found.impact.s_per_step == pytest.approx(lost_s, rel=0.02)
    with api.open(COMPILED / "compiled") as run:
        assert not run.diagnose(select=["recompile"]).findings
