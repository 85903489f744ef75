"""Findings about how the whole job is made: nobody's fault, priced per step."""

from __future__ import annotations

from tracekit.findings import (
    Confidence,
    Evidence,
    Finding,
    Scope,
    Severity,
    finding_id,
    impact_of,
    severity_of,
)
from tracekit.rules.base import Facts


def job_finding(
    facts: Facts,
    rule: str,
    scope: Scope,
    cost_s: float,
    summary: str,
    *,
    cap: Severity,
    confidence: Confidence,
    evidence: tuple[Evidence, ...],
    confirm: tuple[str, ...],
    remedy: tuple[str, ...],
    next_capture: tuple[str, ...] = (),
) -> Finding:
    """The finding of a rule that looks at the mean steady step of the whole job.

    ``cost_s``: seconds a step that would be saved. ``cap``: its severity at most.
    """
    steps = facts.steps
    impact = impact_of(cost_s, steps.step_ns / 1e9, facts.gpus_count)
    return Finding(
        id=finding_id(rule, scope, facts.ranks),
        rule=rule,
        severity=severity_of(impact.step_ratio, cap=cap),
        confidence=confidence,
        summary=summary,
        owner="framework",
        scope=scope,
        when=facts.when(steps.keys),
        impact=impact,
        evidence=evidence,
        confirm=confirm,
        remedy=remedy,
        next_capture=next_capture,
    )
