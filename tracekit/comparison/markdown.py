"""A comparison as Markdown, to paste into a ticket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracekit.comparison.model import Comparison
from tracekit.comparison.tables import tables
from tracekit.comparison.text import side_words, step_words
from tracekit.report.markdown import escaped


def to_markdown(comparison: Comparison) -> str:
    """The whole comparison, everything included, with a final newline."""
    lines = [
        f"# {escaped(comparison.verdict.change.capitalize())}",
        "",
        escaped(comparison.verdict.sentence),
        "",
        f"- Baseline: {escaped(side_words(comparison.baseline))}",
        f"- Candidate: {escaped(side_words(comparison.candidate))}",
    ]
    lines += [f"- Step: {escaped(text)}" for text in step_words(comparison)]
    for table in tables(comparison):
        lines += ["", f"## {table.title}", "", *_table(table.head, table.rows)]
        lines += ["", table.note] if table.note else []
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *body]
