"""Trace and counter evidence of one cause are one finding, under the root's name."""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace

from tracekit.findings import (
    Candidates,
    Evidence,
    Finding,
    Impact,
    Scope,
    Severity,
    When,
    confidence_from,
)
from tracekit.report.fold import fold
from tracekit.rules import RULES
from tracekit.rules.outcome import UNPROVED


def finding(rule: str, where: str, severity: Severity, **scope: object) -> Finding:
    return Finding(
        id=f"{rule}/{where}",
        rule=rule,
        severity=severity,
        confidence=confidence_from(["counters"], "one"),
        summary=f"{rule} at {where}.",
        owner="hardware",
        scope=Scope(**scope),  # type: ignore[arg-type]  # the tests give what they need
        when=When(),
        impact=Impact(),
        evidence=(Evidence(name=rule, value=1.0, unit="ratio"),),
    )


HOT = finding("thermal-throttle", "3", Severity.MINOR, ranks=(3,), hosts=("h",), devices=("g",))
SLOW = replace(
    finding("slow-gpu", "3", Severity.MINOR, ranks=(3,), hosts=("h",), steps=((1, 9),)),
    impact=Impact(s_per_step=0.8, step_ratio=0.27),
)


def test_a_slow_rank_with_a_throttled_clock_is_one_thermal_problem() -> None:
    (found,) = fold([SLOW, HOT])
    assert found.rule == "thermal-throttle"
    assert found.id == "thermal-throttle/3"
    assert found.summary == HOT.summary
    assert found.severity is Severity.CRITICAL  # by what it costs
    assert found.impact == SLOW.impact
    assert found.confidence.level == "likely"
    assert [e.name for e in found.evidence] == ["thermal-throttle", "slow-gpu"]
    assert found.scope.steps == ((1, 9),)


@pytest.mark.parametrize(
    ("query", "level"), [("port_levels", "possible"), ("group_bandwidth", "likely")]
)
def test_two_readings_of_a_port_are_one_instrument(query: str, level: str) -> None:
    """A port that drops and runs at a low speed has said both itself; a slow group is another."""
    evidence = (Evidence(name="speed", value=7.5e6, unit="bytes/s", query=query),)
    drops = finding("packet-loss", "1", Severity.NOTE, ranks=(1,), hosts=("h",))
    slow = replace(
        finding("link-degraded", "1", Severity.NOTE, ranks=(1,), hosts=("h",)), evidence=evidence
    )
    (found,) = fold([drops, slow])
    assert found.rule == "packet-loss"
    assert found.confidence.level == level
    assert found.confidence.basis.startswith("counters and traces agree") is (level == "likely")


def test_what_was_taken_in_takes_nothing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is absorbed and absorbs itself: its turn comes when it is there no more."""
    rules = {r.name: r for r in RULES}
    rules["slow-gpu"] = replace(rules["slow-gpu"], absorbs=("lateness",))
    rules["late-rank"] = replace(rules["late-rank"], sees="lateness")
    monkeypatch.setattr(sys.modules[fold.__module__], "rule", rules.__getitem__)
    late = replace(SLOW, id="late-rank/3", rule="late-rank")
    assert [f.rule for f in fold([HOT, SLOW, late])] == ["thermal-throttle", "late-rank"]
    assert [f.rule for f in fold([SLOW, late])] == ["slow-gpu"]


def test_two_equal_findings_stay_two() -> None:
    (first, second) = fold([HOT, HOT, SLOW])
    assert len(first.evidence) == 2
    assert second == HOT


def test_another_rank_s_fault_stays_its_own() -> None:
    other = replace(SLOW, id="slow-gpu/4", scope=replace(SLOW.scope, ranks=(4,)))
    assert fold([HOT, other]) == [HOT, other]


def test_rules_that_see_other_faults_are_not_merged() -> None:
    late = replace(SLOW, id="late-rank/3", rule="late-rank")
    assert fold([HOT, late]) == [HOT, late]


def test_a_gpu_of_unknown_rank_is_the_only_slow_rank_s_of_its_host_by_behaviour() -> None:
    unknown = replace(HOT, id="thermal-throttle/g", scope=replace(HOT.scope, ranks=()))
    (found,) = fold([unknown, SLOW])
    assert found.scope.ranks == (3,)
    assert found.scope.identity_source == "behaviour"
    assert found.id == "thermal-throttle/3"


def test_with_two_slow_ranks_on_the_host_nothing_tells_whose_gpu_it_is() -> None:
    unknown = replace(HOT, id="thermal-throttle/g", scope=replace(HOT.scope, ranks=()))
    second = replace(SLOW, id="slow-gpu/4", scope=replace(SLOW.scope, ranks=(4,)))
    assert fold([unknown, SLOW, second]) == [unknown, SLOW, second]


def test_two_hot_gpus_on_the_host_neither() -> None:
    hot = [
        replace(HOT, id=f"thermal-throttle/{g}", scope=replace(HOT.scope, ranks=(), devices=(g,)))
        for g in ("g", "k")
    ]
    assert fold([*hot, SLOW]) == [*hot, SLOW]


def test_a_finding_of_an_unproved_format_absorbs_nothing() -> None:
    weak = replace(HOT, counter_evidence=(Evidence(name=UNPROVED, value=1.0, unit="count"),))
    assert fold([weak, SLOW]) == [weak, SLOW]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_order_of_findings_does_not_matter(order: tuple[int, int]) -> None:
    both = (HOT, SLOW)
    assert fold([both[i] for i in order]) == fold([HOT, SLOW])


GROUP = replace(
    finding("link-degraded", "g", Severity.MINOR, groups=("g",)),
    candidates=Candidates(ranks=(1, 3, 5)),
    impact=Impact(s_per_step=0.8, step_ratio=0.27),
)


def test_a_slow_group_is_what_is_wrong_with_one_of_its_members() -> None:
    loss = finding("packet-loss", "3", Severity.MINOR, ranks=(3,), hosts=("h",))
    (found,) = fold([loss, GROUP])
    assert (found.rule, found.scope.ranks) == ("packet-loss", (3,))
    assert found.impact == GROUP.impact
    elsewhere = replace(loss, id="packet-loss/4", scope=replace(loss.scope, ranks=(4,)))
    assert fold([elsewhere, GROUP]) == [elsewhere, GROUP]
