"""recompile: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from stall_rules import MakeJob, look


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
