"""slow-startup: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest
from logged_rules import SECOND, Row, asked, episode, says_what_it_needs

from tracekit.rules.base import RuleOutcome


def starts(*gaps_s: float | None) -> list[Row]:
    return [
        {"start_number": n, "first_step": n, "start_ns": n, "end_ns": n, "source_id": 0, "place": n,
         "gap_ns": None if gap is None else round(gap * SECOND), "load_ns": None}
        for n, gap in enumerate((None, *gaps_s), 1)
    ]  # fmt: skip


def of(rows: list[Row], *, restarts: int = 9) -> RuleOutcome:
    told = [episode("restart", 9, first_step=n) for n in range(2, restarts + 1)]
    return asked("slow-startup", *told, attempt_summary=rows)


@pytest.mark.parametrize(
    ("gaps", "is_told"),
    [((601,), True), ((600,), False), ((100, 900, 900), True), ((100, 100, 900), False)],
)
def test_the_usual_time_without_steps_counts(gaps: tuple[float, ...], is_told: bool) -> None:
    assert bool(of(starts(*gaps)).findings) == is_told


def test_it_says_how_long_and_where() -> None:
    (found,) = of(starts(1201, 1201)).findings
    assert "first one after it 20 min pass (2 restarts, 2.8 % of the job)" in found.summary
    assert found.evidence[0].rows


@pytest.mark.parametrize(
    ("loads_s", "says"), [((300, 500), "6.67 min"), ((300, None), "5 min"), ((None, None), None)]
)
def test_how_long_the_checkpoint_takes_to_load_is_said(
    loads_s: tuple[int | None, ...], says: str | None
) -> None:
    rows = starts(1201, 1201)
    for row, load_s in zip(rows[1:], loads_s, strict=True):
        row["load_ns"] = None if load_s is None else load_s * SECOND
    (found,) = of(rows).findings
    assert ("Loading the checkpoint takes" in found.summary) is (says is not None)
    assert says is None or f"takes {says} of it, by the log." in found.summary
    rows = starts(1201, 1201, 1201)
    rows[1]["load_ns"] = 300 * SECOND  # of one start in three
    assert "Loading" not in of(rows).findings[0].summary


def test_a_job_that_somebody_started_again_much_later_waited_for_nobody() -> None:
    assert not of(starts(14_401)).findings
    assert of(starts(14_400)).findings


def test_a_start_behind_the_job_s_end_is_another_job_s() -> None:
    assert of(starts(900), restarts=2).findings
    assert not of(starts(900), restarts=1).findings


def test_one_start_and_starts_without_a_clock_are_fine_and_no_log_is_lacking() -> None:
    for rows in (starts(), starts(None)):
        outcome = of(rows)
        assert (outcome.findings, outcome.not_checked) == ((), ())
    says_what_it_needs("slow-startup")
