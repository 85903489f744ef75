"""What a finding from NCCL's logs can cost at most, where no peer shows what it does cost.

A transport that all groups share has no peer that is better off. It can cost no more than the
communication that nothing hides: no estimate, so the cost itself stays unknown. A benchmark on the
same machines does not bound it further: it may have run over the same fault.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tracekit.findings import Finding, severity_of
from tracekit.rules import rule
from tracekit.rules.base import Facts


def bounded(findings: Sequence[Finding], facts: Facts) -> list[Finding]:
    """The findings, with the most that those about NCCL's transports can cost.

    One that can cost less than a severity asks for is not worth it.
    """
    if not any(_is_open(f) for f in findings):
        return list(findings)
    step_ns = facts.steps.step_ns if len(facts.steps) else 0.0
    # Of the rank that has most: another may hide what this one cannot.
    exposed = [parts.exposed_comm for parts in facts.steps.rank_means.values()]
    if step_ns <= 0 or not exposed:
        return list(findings)
    most_ns = max(exposed)
    return [
        _with_bound(f, most_ns / 1e9, most_ns / step_ns) if _is_open(f) else f for f in findings
    ]


def _is_open(finding: Finding) -> bool:
    return rule(finding.rule).bound == "communication" and finding.impact.s_per_step is None


def _with_bound(finding: Finding, most_s: float, ratio: float) -> Finding:
    return replace(
        finding,
        severity=severity_of(ratio, cap=finding.severity),
        impact=replace(finding.impact, at_most_s_per_step=most_s),
    )
