"""What a rule may say when one of its queries failed: that it did not look, and nobody new."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from tracekit.findings import Finding
from tracekit.rules.base import Facts, Rule, RuleOutcome

Run = Callable[[Rule, Facts], RuleOutcome]


def accused(outcome: RuleOutcome) -> set[tuple[str, object]]:
    """All that the findings of an outcome name, and those that name nothing."""
    return {one for f in outcome.findings for one in _named(f)}


def _named(finding: Finding) -> set[tuple[str, object]]:
    scope = finding.scope
    kinds = ("ranks", "hosts", "devices", "links", "switches")
    return {(k, one) for k in kinds for one in getattr(scope, k)} or {("rule", finding.rule)}


def says_how_its_cost_was_got(finding: Finding) -> None:
    """A cost has a method, bounds around it, and of a replay by how much it misses the step."""
    impact = finding.impact
    if impact.s_per_step is None:
        return
    low_s, high_s = impact.low_s_per_step, impact.high_s_per_step
    assert impact.method is not None, f"{finding.id}: by which method?"
    assert low_s is not None and high_s is not None, f"{finding.id}: between what?"
    assert low_s <= impact.s_per_step * (1 + 1e-9), finding.id
    assert impact.s_per_step <= high_s * (1 + 1e-9), finding.id
    is_replay = impact.method == "replay"
    assert (impact.replay_error_ratio is not None) == is_replay, f"{finding.id}: how far off?"
    _shows_what_disagrees(finding)


def _shows_what_disagrees(finding: Finding) -> None:
    """What another method says of the same cost stands against it, if it is off by a quarter.

    Of a rank that is late alone the other method is the delay that was seen, which the finding has
    as evidence."""
    impact = finding.impact
    if len(finding.scope.ranks) != 1 or impact.joint_ranks or not impact.s_per_step:
        return
    against = [e.value for e in finding.counter_evidence if e.unit == "s"]
    for seen in finding.evidence:
        is_delay = seen.query == "late_steps" and seen.name.startswith("exposed delay by")
        if is_delay and abs(seen.value - impact.s_per_step) > 0.25 * impact.s_per_step * (1 + 1e-6):
            assert seen.value in against, f"{finding.id} costs {impact.s_per_step}, not {seen}"


def ask_with_each_query_failed(run: Run, rule: Rule, facts: Facts, outcome: RuleOutcome) -> None:
    """Fails where the rule then says "fine" without a word, or accuses somebody new; and where a
    cost does not say how it was got and between what bounds it lies."""
    for finding in outcome.findings:
        says_how_its_cost_was_got(finding)
    if not facts.unavailable.keys().isdisjoint(rule.reads):
        return
    for query in rule.reads:
        broken = replace(
            facts,
            rows={q: rows for q, rows in facts.rows.items() if q != query},
            unavailable={**facts.unavailable, query: "out of memory"},
        )
        after = run(rule, broken)
        where = f"{rule.name} without {query}"
        assert any(query in n.needs for n in after.not_checked), f"{where} says nothing of it"
        new = accused(after) - accused(outcome)
        assert not new, f"{where} accuses {sorted(map(str, new))}"
