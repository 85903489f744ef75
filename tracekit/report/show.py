"""One finding whole: every number, every query, every place in the raw files."""

from __future__ import annotations

from tracekit.findings import Evidence, Finding
from tracekit.report.model import Report
from tracekit.wording import safe


def show_finding(report: Report, finding: Finding, run: str) -> str:
    """The finding as text; ``run`` is what the reader would type to query further."""
    lines = [
        f"{finding.id}  {finding.severity.value}, {finding.confidence.level} "
        f"({finding.confidence.basis})",
        finding.summary,
        "",
        *_scope(finding),
        *_impact(finding),
        "",
        "EVIDENCE",
    ]
    for evidence in finding.evidence:
        lines += _evidence(evidence, run)
    if finding.counter_evidence:
        lines += ["", "AGAINST"]
        for evidence in finding.counter_evidence:
            lines += _evidence(evidence, run)
    for title, texts in (
        ("RULED OUT", finding.rules_out),
        ("EXPLAINS", finding.explains),
        ("EXPLAINED BY", finding.explained_by),
        ("CONFIRM", finding.confirm),
        ("ACT", finding.remedy),
        ("CAPTURE NEXT", finding.next_capture),
    ):
        if texts:
            lines += ["", title, *(f"  {text}" for text in texts)]
    lines += ["", f"MORE      tracekit explain {finding.rule}"]
    return "\n".join(safe(line) for line in lines) + "\n"


def _scope(finding: Finding) -> list[str]:
    scope = finding.scope
    lines = []
    for name, values in (
        ("ranks", scope.ranks),
        ("hosts", scope.hosts),
        ("devices", scope.devices),
        ("links", scope.links),
        ("groups", scope.groups),
        ("rails", scope.rails),
        ("switches", scope.switches),
        ("racks", scope.racks),
    ):
        if values:
            lines.append(f"{name:<9} {', '.join(str(v) for v in values)}")
    if scope.steps:
        ranges = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in scope.steps)
        lines.append(f"{'steps':<9} {ranges}")
    if scope.identity_source:
        lines.append(f"{'identity':<9} from {scope.identity_source}")
    if finding.when.start_utc:
        lines.append(f"{'when':<9} {finding.when.start_utc} to {finding.when.end_utc}")
    return lines


def _impact(finding: Finding) -> list[str]:
    impact = finding.impact
    parts = []
    if impact.s_per_step is not None:
        parts.append(f"{impact.s_per_step:.6g} s a step")
    if impact.step_ratio is not None:
        parts.append(f"{impact.step_ratio:.1%} of the step")
    if impact.gpu_hours_per_day is not None:
        parts.append(f"{impact.gpu_hours_per_day:.4g} GPU-hours a day")
    return [f"{'impact':<9} {', '.join(parts) if parts else 'unknown'}"]


def _evidence(evidence: Evidence, run: str) -> list[str]:
    threshold = f"  (threshold {evidence.threshold:.6g})" if evidence.threshold is not None else ""
    lines = [f"  {evidence.name}: {evidence.value:.6g} {evidence.unit}{threshold}"]
    if evidence.query:
        params = "".join(f" --param {k}={v}" for k, v in evidence.params.items() if v is not None)
        lines.append(f"    tracekit query {run} {evidence.query}{params}")
    lines += [f"    {row.source}  {row.place}" for row in evidence.rows]
    return lines
