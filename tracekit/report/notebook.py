"""What a notebook shows of a report: short, and every foreign name escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracekit.report.finding_words import cost_words, price_per, scope_words, sure_words
from tracekit.report.job_words import beyond_words, sum_words, title_words
from tracekit.report.model import Report
from tracekit.wording import LEFT, escaped, pairs, plural

MAX_ROWS = 10


def report_html(report: Report) -> str:
    """The verdict, what it costs and what to do, the findings, and how to see the rest."""
    document = report.document
    cause = next((f for f in document.findings if f.id == document.verdict.finding), None)
    rows = [("Verdict", document.verdict.sentence)]
    if cause is not None:
        rows += [("Cost", cost_words(document, cause)), ("Sure", sure_words(cause))]
        rows += [("Do", text) for text in (*cause.confirm[:1], *cause.remedy[:2])]
    elif report.notes.next_step:
        rows.append(("Do", report.notes.next_step))
    if document.step_budget:
        rows.append(("Step", f"{sum_words(document)}. {beyond_words(document)}".rstrip()))
    if document.not_checked:
        count = plural(len({n.rule for n in document.not_checked}), "rule")
        rows.append(("Not checked", f"{count}: .document.not_checked"))
    finding_rows = [
        (f"F{i}", f.severity.value, f.rule, scope_words(f), price_per(f))
        for i, f in enumerate(document.findings[:MAX_ROWS], 1)
    ]
    parts = [f"<p><b>{escaped(title_words(document, report.notes))}</b></p>", pairs(rows)]
    if finding_rows:
        parts.append(table(("", "severity", "rule", "where", "cost"), finding_rows))
    left = len(document.findings) - len(finding_rows)
    parts += [f"<p>{plural(left, 'more finding')}: .findings</p>"] if left else []
    return "\n".join(parts)


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a line of names."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in names)
    body = "</tr>\n<tr>".join(
        "".join(f'<td style="{LEFT}">{escaped(cell)}</td>' for cell in row) for row in rows
    )
    return f"<table><tr>{head}</tr>\n<tr>{body}</tr></table>"
