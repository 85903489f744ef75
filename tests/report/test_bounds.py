"""What a finding about NCCL's transports can cost at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracekit.findings import Finding, Impact, Scope, Severity, When, confidence_from, impact_of
from tracekit.report.bounds import bounded

MakeJob = Callable[..., Any]


def finding(rule: str, severity: Severity, impact: Impact | None = None) -> Finding:
    return Finding(
        id=f"{rule}/x", rule=rule, severity=severity, confidence=confidence_from(["log"], "a log"),
        summary="It is so.", owner="platform", scope=Scope(), when=When(), evidence=(),
        impact=impact or Impact(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("comm_ms", "severity"),
    [
        (0, Severity.NOTE),
        (1, Severity.MINOR),
        (4, Severity.MINOR),
        (15, Severity.MAJOR),
        (80, Severity.MAJOR),
    ],
)
def test_no_more_than_the_communication_that_nothing_hides(
    comm_ms: int, severity: Severity, make_job: MakeJob
) -> None:
    facts = make_job(comm_ms=comm_ms).facts()
    (found,) = bounded([finding("nccl-socket-fallback", Severity.MAJOR)], facts)
    assert found.impact.at_most_s_per_step == pytest.approx(comm_ms / 1e3)
    assert found.impact.s_per_step is None
    assert found.severity is severity


def test_a_known_cost_and_other_rules_are_left_alone(make_job: MakeJob) -> None:
    known = finding("no-gpudirect", Severity.MAJOR, impact_of(0.05, 0.1, 4))
    other = finding("config-mismatch", Severity.MINOR)
    assert bounded([known, other], make_job(comm_ms=10).facts()) == [known, other]


def test_without_steps_there_is_no_bound(make_job: MakeJob) -> None:
    job = make_job()
    job.rows["step_breakdown"] = []
    given = finding("no-gpudirect", Severity.MAJOR)
    assert bounded([given], job.facts()) == [given]
