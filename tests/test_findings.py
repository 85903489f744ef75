"""Severity, confidence, impact, ids and order: by definition."""

from __future__ import annotations

import pytest

from tracekit.findings import (
    Confidence,
    Evidence,
    EvidenceRow,
    Finding,
    Impact,
    Scope,
    Severity,
    When,
    confidence_from,
    finding_id,
    impact_of,
    ordered,
    severity_of,
)


@pytest.mark.parametrize(
    ("ratio", "severity"),
    [
        (None, Severity.NOTE),
        (0.0099, Severity.NOTE),
        (0.01, Severity.MINOR),
        (0.0499, Severity.MINOR),
        (0.05, Severity.MAJOR),
        (0.1999, Severity.MAJOR),
        (0.20, Severity.CRITICAL),
    ],
)
def test_severity_follows_the_impact(ratio: float | None, severity: Severity) -> None:
    assert severity_of(ratio) is severity


def test_a_cap_lowers_and_a_least_raises_up_to_it() -> None:
    assert severity_of(0.5, cap=Severity.MINOR) is Severity.MINOR
    assert severity_of(0.001, cap=Severity.MINOR) is Severity.NOTE
    assert severity_of(None, least=Severity.CRITICAL) is Severity.CRITICAL
    assert severity_of(0.5, cap=Severity.MINOR, least=Severity.MAJOR) is Severity.MINOR


def test_confidence_counts_kinds_of_evidence_and_is_never_certain() -> None:
    assert confidence_from(["host ranges", "host ranges"], "b").level == "possible"
    assert confidence_from(["host ranges", "GPU timeline"], "b").level == "likely"
    four = confidence_from(["host ranges", "GPU timeline", "peers", "log"], "b")
    assert four == Confidence(level="likely", basis="b")


def test_evidence_has_its_number_and_its_threshold_in_one_unit() -> None:
    place = (EvidenceRow(source="a.log", place="line 3"),)
    late = Evidence.seconds("late", 2_500_000_000, 500_000_000, "straggler", place)
    assert late == Evidence("late", 2.5, "s", threshold=0.5, query="straggler", rows=place)
    many = Evidence.count("packets", 7, 3, "port_counters")
    assert many == Evidence("packets", 7.0, "count", threshold=3.0, query="port_counters")
    assert isinstance(many.value, float) and isinstance(many.threshold, float)
    half = Evidence.ratio("share", 0.5, 0.1, "overlap")
    assert half == Evidence("share", 0.5, "ratio", threshold=0.1, query="overlap")


def test_evidence_that_was_held_against_nothing_has_no_threshold() -> None:
    for make in (Evidence.seconds, Evidence.count, Evidence.ratio):
        assert make("as it is", 1, None, "overlap").threshold is None


def test_impact_is_the_whole_jobs_hours() -> None:
    # DESIGN's example: 0.84 of 3.10 s on 64 GPUs are 416 GPU-hours a day.
    impact = impact_of(0.84, 3.10, 64)
    assert impact.gpu_hours_per_day == pytest.approx(416, abs=0.5)
    assert impact_of(0.84, 3.10, None).gpu_hours_per_day is None
    assert impact_of(0.84, 0.0, 64) == Impact(s_per_step=0.84)


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        (Scope(ranks=(3,)), "r/3"),
        (Scope(ranks=(0, 1, 2, 3)), "r/all"),
        (Scope(ranks=(0, 1)), "r/0-1"),
        (Scope(hosts=("h1",)), "r/h1"),
        (Scope(hosts=("h1",), links=("sw:1",)), "r/sw:1"),
        (Scope(), "r/all"),
    ],
)
def test_ids_name_the_scope(scope: Scope, name: str) -> None:
    assert finding_id("r", scope, range(4)) == name


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        (Scope(ranks=(3,), hosts=("h1",)), "r/3"),
        (Scope(ranks=(0, 1), hosts=("h1",), devices=("h1 GPU 3",)), "r/h1-GPU-3"),
        (Scope(ranks=(0, 1), hosts=("h1",)), "r/h1"),
        (Scope(hosts=("h1", "h2")), "r/several"),
    ],
)
def test_what_counters_measure_is_named_by_its_only_place(scope: Scope, name: str) -> None:
    assert finding_id("r", scope, range(2), is_counted=True) == name


def test_the_id_of_many_scattered_ranks_stays_short_and_tells_them_apart() -> None:
    odd = finding_id("r", Scope(ranks=tuple(range(1, 999, 2))), range(1000))
    assert odd.startswith("r/1+498-")
    assert len(odd) < 30
    assert odd != finding_id("r", Scope(ranks=(*range(1, 997, 2), 998)), range(1000))


def finding(name: str, severity: Severity, cost: float | None) -> Finding:
    return Finding(
        id=name,
        rule="r",
        severity=severity,
        confidence=Confidence(level="possible", basis=""),
        summary="",
        owner="model",
        scope=Scope(),
        when=When(),
        impact=Impact(s_per_step=cost),
        evidence=(),
    )


def test_order_is_verdict_severity_impact_with_unknown_last() -> None:
    verdict = finding("verdict", Severity.MINOR, 0.1)
    unknown = finding("unknown", Severity.MAJOR, None)
    small = finding("small", Severity.MAJOR, 0.1)
    large = finding("large", Severity.MAJOR, 0.2)
    found = ordered([unknown, small, verdict, large], "verdict")
    assert [f.id for f in found] == ["verdict", "large", "small", "unknown"]
