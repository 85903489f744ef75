"""One finding whole: its numbers, where they are recorded, and all that it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.findings import Evidence, Finding
from tracekit.report.finding_words import (
    bench_words,
    cost_words,
    evidence_words,
    sure_words,
)
from tracekit.report.model import Report
from tracekit.report.page import Page
from tracekit.wording import ranges


def show_finding(report: Report, finding: Finding, width: int = 110) -> str:
    """The finding as text, with a final newline."""
    page = Page(width=width, color=False)
    page.title(f"{finding.id}   {finding.severity.value}   owner: {finding.owner}")
    page.blank()
    page.say("SAYS", finding.summary)
    page.say("WHERE", _where(finding))
    if finding.when.start_utc and finding.when.end_utc:
        page.say("WHEN", f"{finding.when.start_utc} to {finding.when.end_utc}")
    page.say("COST", cost_words(report.document, finding))
    page.say("SURE", sure_words(finding))
    if finding.confidence.bench:
        page.say("BENCH", bench_words(finding))
    if finding.explains:
        page.say("EXPLAINS", ", ".join(finding.explains))
    if finding.explained_by:
        page.say("BECAUSE", ", ".join(finding.explained_by))
    if finding.candidates.ranks or finding.candidates.hosts:
        who = ranges(finding.candidates.ranks) or ", ".join(finding.candidates.hosts)
        page.say("MAYBE", f"{who}: {finding.candidates.why or 'not captured'}")
    page.blank()
    _evidence_rows(page, "EVIDENCE", finding.evidence)
    _evidence_rows(page, "AGAINST", finding.counter_evidence)
    page.blank()
    _each(page, "CONFIRM", finding.confirm)
    _each(page, "ACT", finding.remedy)
    _each(page, "CAPTURE", finding.next_capture)
    queries = dict.fromkeys(e.query for e in finding.evidence if e.query)
    more = [*(report.target.command("query", query) for query in queries)]
    for i, command in enumerate([*more, f"tracekit explain {finding.rule}"]):
        page.commands("MORE" if i == 0 else "", [command])
    return page.text(None)


def _where(finding: Finding) -> str:
    scope = finding.scope
    noun = "rank" if len(scope.ranks) == 1 else "ranks"
    words = [f"{noun} {ranges(scope.ranks)}"] if scope.ranks else []
    named = {
        "hosts": scope.hosts,
        "devices": scope.devices,
        "links": scope.links,
        "groups": scope.groups,
        "switches": scope.switches,
        "racks": scope.racks,
    }
    words += [f"{noun} {', '.join(names)}" for noun, names in named.items() if names]
    if scope.steps:
        spans = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in scope.steps)
        words.append(f"steps {spans}")
    if scope.identity_source:
        words.append(f"(identity from {scope.identity_source})")
    return "   ".join(words) or "the whole job"


def _evidence_rows(page: Page, label: str, evidence: Sequence[Evidence]) -> None:
    for i, entry in enumerate(evidence):
        page.say(label if i == 0 else "", evidence_words(entry))
        for row in entry.rows:
            page.say("", f"{row.source}  at {row.place}", lead="   ")


def _each(page: Page, label: str, lines: Sequence[str]) -> None:
    for i, line in enumerate(lines):
        page.say(label if i == 0 else "", line)
