"""Causes that took the same time of the log are counted once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tracekit.findings import Confidence, Finding, Impact, Scope, Severity, When
from tracekit.report.finding_words import price_words, sure_words
from tracekit.report.judgement import ReportThresholds
from tracekit.report.shared_time import counted_once


def finding(name: str, lost_s: float | None, minutes: tuple[int, int] | None) -> Finding:
    def at(minute: int) -> str:
        return f"2026-07-21T10:{minute:02d}:00Z"

    return Finding(
        id=name,
        rule=name.partition("/")[0],
        severity=Severity.MINOR,
        confidence=Confidence(level="likely", basis="counters and the log agree in time"),
        summary="It was slow.",
        owner="platform",
        scope=Scope(),
        when=When() if minutes is None else When(start_utc=at(minutes[0]), end_utc=at(minutes[1])),
        impact=Impact(
            s_per_step=lost_s,
            step_ratio=0.1,
            per="job",
            method="recorded time",
            low_s_per_step=lost_s,
            high_s_per_step=lost_s,
        ),
        evidence=(),
    )


STORAGE = finding("slow-storage/a", 120.0, (10, 20))


@pytest.mark.parametrize(
    "other",
    [
        finding("memory-pressure/a", 120.0, None),  # what is lost is known to the ns
        finding("cpu-throttled/b", 90.0, (10, 20)),
        finding("cpu-throttled/b", 90.0, (11, 19)),  # four fifths
        finding("cpu-throttled/b", 90.0, (8, 20)),
    ],
)
def test_of_two_that_took_the_same_time_each_cost_that_at_most(other: Finding) -> None:
    first, second = counted_once([STORAGE, other], ReportThresholds())
    for told, before in ((first, STORAGE), (second, other)):
        lost_s = before.impact.s_per_step
        impact = told.impact
        assert (impact.low_s_per_step, impact.s_per_step) == (0.0, lost_s)
        assert impact.high_s_per_step == lost_s
        assert price_words(told).startswith("<")
    assert f"Against: {other.id} took the same time of the log" in sure_words(first)
    assert f"Against: {STORAGE.id} took the same time of the log" in sure_words(second)


@pytest.mark.parametrize(
    "other",
    [
        finding("cpu-throttled/b", 90.0, (11, 18)),  # just below four fifths
        finding("cpu-throttled/b", 90.0, (20, 30)),
        finding("cpu-throttled/b", 90.0, None),
        finding("cpu-throttled/b", None, (10, 20)),
        replace(finding("late-rank/b", 120.0, (10, 20)), explained_by=(STORAGE.id,)),
        replace(
            finding("slow-host/b", 120.0, (10, 20)), impact=Impact(s_per_step=120.0, step_ratio=0.1)
        ),
    ],
)
def test_what_took_other_time_or_is_of_steps_keeps_its_cost(other: Finding) -> None:
    findings = [STORAGE, other]
    assert counted_once(findings, ReportThresholds()) == findings
    assert price_words(STORAGE) == "2 min"


def test_how_much_of_the_time_is_the_same_can_be_set() -> None:
    other = finding("cpu-throttled/b", 90.0, (11, 18))
    first, _ = counted_once([STORAGE, other], ReportThresholds(min_shared_time_ratio=0.7))
    assert first.counter_evidence


def test_of_three_each_names_both_others() -> None:
    others = [finding(f"{rule}/b", 120.0, None) for rule in ("cpu-throttled", "memory-pressure")]
    first, *_ = counted_once([STORAGE, *others], ReportThresholds())
    (against,) = first.counter_evidence
    assert against.name.startswith("cpu-throttled/b, memory-pressure/b took the same time")
    assert (against.value, against.unit, against.query) == (120.0, "s", "slow_episode")
