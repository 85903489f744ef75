"""The report as Markdown, to paste into a ticket."""

from __future__ import annotations

import re

from tracekit.findings import Finding
from tracekit.report.model import Report
from tracekit.report.text import (
    cost_words,
    evidence_words,
    price_words,
    sum_words,
    sure_words,
    title_words,
)
from tracekit.wording import safe


def to_markdown(report: Report) -> str:
    """The whole report, everything included, with a final newline."""
    document, notes = report.document, report.notes
    lines = [f"# {escaped(title_words(document, notes))}", ""]
    lines += [f"- {escaped(line)}" for line in notes.data_lines]
    lines += [""] if notes.data_lines else []
    lines += [f"**Verdict: {document.verdict.kind.replace('_', ' ')}.** "]
    lines[-1] += escaped(document.verdict.sentence)
    if notes.next_step:
        lines += ["", f"Next: {escaped(notes.next_step)}."]
    if document.step_budget:
        lines += ["", f"Step: {escaped(sum_words(document))}."]
    for i, finding in enumerate(document.findings, 1):
        lines += ["", *_finding(report, finding, i)]
    if document.not_checked:
        lines += ["", "## Not checked", "", "| rule | needs | capture |", "|---|---|---|"]
        lines += [
            f"| {n.rule} | {escaped(n.needs)} | {escaped(n.capture or '')} |"
            for n in document.not_checked
        ]
    return "\n".join(lines) + "\n"


def _finding(report: Report, finding: Finding, number: int) -> list[str]:
    cost = finding.impact.s_per_step
    price = f", {price_words(finding)} a {finding.impact.per}" if cost is not None else ""
    lines = [
        f"## F{number} {escaped(finding.id)} ({finding.severity.value}{price})",
        "",
        escaped(finding.summary),
        "",
        f"- Cost: {escaped(cost_words(report.document, finding))}",
        f"- Sure: {escaped(sure_words(finding))}",
    ]
    for word, names in (("Explains", finding.explains), ("Explained by", finding.explained_by)):
        if names:
            lines.append(f"- {word}: {escaped(', '.join(names))}")
    lines += [f"- Evidence: {escaped(evidence_words(e))}" for e in finding.evidence]
    for word, texts in (
        ("Confirm", finding.confirm),
        ("Act", finding.remedy),
        ("Capture", finding.next_capture),
    ):
        lines += [f"- {word}: {escaped(text)}" for text in texts]
    return lines


def escaped(text: str) -> str:
    """Text in which no foreign name can start a tag, a link, a table cell or a line."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", safe(re.sub(r"\s+", " ", text)))
