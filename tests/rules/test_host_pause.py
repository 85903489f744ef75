"""host-pause: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest
from late_jobs import MakeJob, late_job, part

from excess_rules import MORE, PAUSE, PAUSED, SLOWER, facts_of
from tracekit.findings import Severity
from tracekit.rules.base import RuleOutcome


def test_a_rank_that_stands_still_is_named_with_the_place(make_job: MakeJob) -> None:
    (found,) = PAUSE.run(facts_of(make_job, PAUSED)).findings
    assert found.scope.ranks == (2,)
    assert found.severity is Severity.CRITICAL
    assert "code there that no range names" in found.summary


def test_a_pause_that_moves_about_comes_from_outside(make_job: MakeJob) -> None:
    moving = [part("pause", f"between a and b{i}", ms=6, steps=(i,)) for i in range(1, 5)]
    (found,) = PAUSE.run(facts_of(make_job, *moving)).findings
    assert "the place changes" in found.summary


@pytest.mark.parametrize(
    "row",
    [
        part("pause", "between a and b", ms=12),  # under half
        part("range", path="sleep"),  # a range says what it is
        part("pause", "between a and b", path="save_checkpoint"),
        SLOWER,
        MORE,
    ],
    ids=["half", "range", "checkpoint", "slower", "more"],
)
def test_what_is_no_pause(make_job: MakeJob, row: dict[str, Any]) -> None:
    assert PAUSE.run(facts_of(make_job, row)) == RuleOutcome()


def test_a_pause_that_delays_nobody_is_silent(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 4})
    job.rows["excess"] = [PAUSED]
    assert PAUSE.run(job.facts()) == RuleOutcome()
