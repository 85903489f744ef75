"""One fault seen by two instruments is one finding: the root's name, both kinds of evidence."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tracekit.findings import Finding, Scope, finding_id, severity_of
from tracekit.rules import ports, rule
from tracekit.rules.busiest import is_counters_alone
from tracekit.rules.outcome import UNPROVED


def fold(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with those that another rule ``absorbs`` merged into its own.

    The root keeps its name, summary, owner, remedy and what it confirms; it takes the trace's
    ranks, steps and impact where it has none of its own. Two independent instruments make it
    likely, and its severity is that of the impact. A finding whose files no real sample proved
    absorbs nothing: it stays a note beside the other.
    """
    # By place in the list: two findings may be equal, and one that was taken in is there no more.
    left = dict(enumerate(findings))
    for place, root in enumerate(findings):
        absorbs = rule(root.rule).absorbs
        if not absorbs or is_unproved(root):
            continue
        for index, other in enumerate(findings):
            if (
                {place, index} <= left.keys()
                and index != place
                and rule(other.rule).sees in absorbs
                and _is_same(root, left[index], [*left.values()])
            ):
                left[place] = merge(left[place], left.pop(index))
    return list(left.values())


def is_unproved(finding: Finding) -> bool:
    """Whether it rests on files in a format that no real sample proved."""
    return any(e.name == UNPROVED for e in finding.counter_evidence)


def _is_same(root: Finding, other: Finding, findings: Sequence[Finding]) -> bool:
    """Whether both sit in the same place; by the host only if nothing else there is like them.

    A slow group names no member: it is the same as what is wrong with one of them.
    """
    if other.scope.devices and other.scope.devices == root.scope.devices:
        return True
    if other.scope.groups and not other.scope.ranks:
        return bool(set(root.scope.ranks) & set(other.candidates.ranks))
    if not other.scope.ranks or (root.scope.steps and not _meet(root.scope, other.scope)):
        return False
    if root.scope.ranks:
        return set(other.scope.ranks) <= set(root.scope.ranks)
    if len(root.scope.hosts) != 1 or other.scope.hosts != root.scope.hosts:
        return False
    rivals = [
        f
        for f in findings
        if f.rule in (root.rule, other.rule) and f.scope.hosts == root.scope.hosts
    ]
    return len(rivals) == 2 and len(other.scope.ranks) == 1 and len(root.scope.devices) <= 1


def _meet(scope: Scope, other: Scope) -> bool:
    return not other.steps or any(a <= d and c <= b for a, b in scope.steps for c, d in other.steps)


def merge(root: Finding, other: Finding) -> Finding:
    """The root with the other's evidence, and its ranks and impact where the root has none."""
    ranks = root.scope.ranks or other.scope.ranks
    how = root.scope.identity_source if root.scope.ranks else "behaviour"
    scope = replace(
        root.scope,
        ranks=ranks,
        hosts=root.scope.hosts or other.scope.hosts,
        steps=root.scope.steps or other.scope.steps,
        identity_source=how or other.scope.identity_source,
    )
    impact = root.impact if root.impact.s_per_step is not None else other.impact
    severity = max(
        root.severity, other.severity, severity_of(impact.step_ratio), key=lambda s: s.weight
    )
    agreed = replace(
        root.confidence,
        level="likely",
        basis=f"counters and traces agree: {root.confidence.basis}",
    )
    # The same instrument once more, or the log's word, in which no trace has a part.
    is_alike = ports.is_counters_alone(other.evidence) or rule(root.rule).needs_traces
    if is_alike or root.impact.per == "job":
        agreed = root.confidence
    elif is_counters_alone(other.evidence):  # and here it is the GPU's
        agreed = replace(
            root.confidence, basis=f"{root.confidence.basis}; its peers wait and it does not"
        )
    return replace(
        root,
        id=root.id if root.scope.ranks else finding_id(root.rule, scope, ()),
        severity=severity,
        confidence=agreed,
        scope=scope,
        when=root.when if root.when.start_utc else other.when,
        impact=impact,
        evidence=(*root.evidence, *other.evidence),
        counter_evidence=(*root.counter_evidence, *other.counter_evidence),
        candidates=root.candidates if not scope.ranks else other.candidates,
        rules_out=(*root.rules_out, *other.rules_out),
    )
