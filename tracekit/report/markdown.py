"""The report as Markdown, to paste into a ticket."""

from __future__ import annotations

import re

from tracekit.findings import Finding
from tracekit.report.finding_words import (
    cost_words,
    evidence_words,
    price_words,
    sure_words,
)
from tracekit.report.job_words import beyond_words, sum_words, title_parts
from tracekit.report.model import Report
from tracekit.report.text import more_commands
from tracekit.report.unchecked import unchecked_by_need
from tracekit.target import COMMAND
from tracekit.wording import plural, safe

MAX_ROWS = 12
"""Rows that a ticket shows unfolded."""
MAX_EVIDENCE = 6


def to_markdown(report: Report) -> str:
    """The whole report, everything included, with a final newline."""
    document, notes = report.document, report.notes
    title, *about = title_parts(document, notes)
    lines = [f"# {escaped(title)}", ""]
    lines += [f"- {escaped(line)}" for line in ("; ".join(about), *notes.data_lines)]
    lines += [""]
    lines += [f"**Verdict: {document.verdict.kind.replace('_', ' ')}.** "]
    lines[-1] += escaped(document.verdict.sentence)
    if notes.next_step:
        lines += ["", f"Next: {_prose(notes.next_step)}"]
    if document.step_budget:
        words = f"{sum_words(document)}. {beyond_words(document)}".rstrip()
        lines += ["", f"Step: {escaped(words)}"]
    for i, finding in enumerate(document.findings, 1):
        lines += ["", *_finding(report, finding, i)]
    if document.findings:
        lines += ["", "## More", "", *(f"- {_code(c)}" for c in more_commands(report))]
    if document.not_checked:
        table = ["| rules | needs | capture |", "|---|---|---|"]
        table += [
            f"| {', '.join(rules)} | {escaped(needs)} | {_prose(capture, in_cell=True)} |"
            for rules, needs, capture in unchecked_by_need(document)
        ]
        count = plural(len({n.rule for n in document.not_checked}), "rule")
        lines += ["", "## Not checked", "", *_folded(table, count)]
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
    evidence = [f"- Evidence: {escaped(evidence_words(e))}" for e in finding.evidence]
    lines += evidence[:MAX_EVIDENCE]
    if evidence[MAX_EVIDENCE:]:
        count = len(evidence) - MAX_EVIDENCE
        lines += ["", *_details(f"{count} more of the evidence", evidence[MAX_EVIDENCE:]), ""]
    for word, texts in (
        ("Confirm", finding.confirm),
        ("Act", finding.remedy),
        ("Capture", finding.next_capture),
    ):
        lines += [f"- {word}: {_prose(text)}" for text in texts]
    return lines


def _folded(table: list[str], summary: str) -> list[str]:
    """A table, folded where it is long: a ticket is scrolled, not turned."""
    _, _, *rows = table
    return table if len(rows) <= MAX_ROWS else _details(summary, table)


def _details(summary: str, lines: list[str]) -> list[str]:
    """Lines behind a triangle; Markdown inside needs the empty lines around it."""
    return [f"<details><summary>{summary}</summary>", "", *lines, "", "</details>"]


def _prose(text: str, *, in_cell: bool = False) -> str:
    """A sentence of ours, escaped, with its commands as code: whoever pastes one finds its end."""
    parts, end = [], 0
    for command in COMMAND.finditer(text):
        code = _code(command[0])
        parts += [
            escaped(text[end : command.start()]),
            code.replace("|", r"\|") if in_cell else code,
        ]
        end = command.end()
    return "".join([*parts, escaped(text[end:])])


def _code(text: str) -> str:
    """Text as it is, between more backticks than it has in a row."""
    shown = safe(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def escaped(text: str) -> str:
    """Text in which no foreign name can start a tag, a link, a mention, a table cell or a line.

    ``@name`` would call people, ``#12`` link another ticket and a bare address become a link. No
    backslash stops these three: a character of no width does.
    """
    shown = safe(re.sub(r"\s+", " ", text))
    shown = re.sub(r"([\\`*_{}\[\]<>|#~$&!])", r"\\\1", shown)
    shown = re.sub(r"([@#])(?=\w)", "\\1\u2060", shown)
    shown = re.sub(r"(?i)\b(https?|ftp)://", "\\1:\u2060//", shown)
    shown = re.sub(r"(?i)\bwww\.(?=\w)", "www\u2060.", shown)
    # What would begin a list, a quotation or a rule stands only where a line begins.
    return re.sub(r"^(\d+)([.)])(?!\d)", r"\1\\\2", re.sub(r"^([-+=:])", r"\\\1", shown))
