"""profiler-overhead: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest
from logged_rules import SECOND, Row, asked, episode, says_what_it_needs

from tracekit.findings import Severity


def window(ratio: float, touched: int = 11) -> list[Row]:
    return [
        {"attempt": 1, "placed_by": "time", "first_step": 100, "last_step": 110,
         "p50_ns": ratio * SECOND, "job_p50_ns": 1.0 * SECOND,
         "touched_count": touched, "traced_count": 10}
    ]  # fmt: skip


@pytest.mark.parametrize(("ratio", "is_told"), [(1.06, True), (1.04, False), (0.9, False)])
def test_profiled_steps_that_are_longer_are_told_as_a_note(ratio: float, is_told: bool) -> None:
    found = asked("profiler-overhead", profiled_window=window(ratio)).findings
    assert [f.severity for f in found] == ([Severity.NOTE] if is_told else [])


@pytest.mark.parametrize(("first", "is_told"), [(110, False), (111, True)])
def test_a_slow_stretch_of_the_log_is_no_profiler_s(first: int, is_told: bool) -> None:
    row = episode("slow", 50, first_step=first, last_step=200)
    found = asked("profiler-overhead", row, profiled_window=window(1.2)).findings
    assert bool(found) == is_told


def test_without_profiled_steps_in_the_log_it_says_so() -> None:
    outcome = asked("profiler-overhead")
    assert not outcome.findings
    assert "that tells of the profiled steps" in outcome.not_checked[0].needs
    says_what_it_needs("profiler-overhead")


@pytest.mark.parametrize(("touched", "is_checked"), [(20, True), (21, False)])
def test_where_most_lines_are_of_other_steps_nothing_can_be_told(
    touched: int, is_checked: bool
) -> None:
    outcome = asked("profiler-overhead", profiled_window=window(1.0, touched))
    assert not outcome.findings
    assert bool(outcome.not_checked) != is_checked
    assert asked("profiler-overhead", profiled_window=window(1.06, touched)).findings
