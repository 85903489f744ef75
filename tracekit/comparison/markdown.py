"""A comparison as Markdown, to paste into a ticket."""

from __future__ import annotations

from tracekit.comparison.model import Comparison
from tracekit.comparison.tables import Table, tables, title
from tracekit.comparison.text import side_parts, step_parts
from tracekit.report.markdown import escaped


def to_markdown(comparison: Comparison) -> str:
    """The whole comparison, everything included, with a final newline."""
    lines = [
        f"# {escaped(title(comparison))}",
        "",
        escaped(comparison.verdict.sentence),
        "",
        f"- Baseline: {escaped(': '.join(side_parts(comparison.baseline)))}",
        f"- Candidate: {escaped(': '.join(side_parts(comparison.candidate)))}",
    ]
    lines += [f"- Step: {escaped('; '.join(parts))}" for parts in step_parts(comparison)]
    for table in tables(comparison):
        lines += ["", f"## {table.title}", "", *_table(table)]
        lines += ["", table.note] if table.note else []
    return "\n".join(lines) + "\n"


def _table(table: Table) -> list[str]:
    body = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in table.rows]
    rule = "|".join("---:" if name in table.amounts else "---" for name in table.head)
    return [f"| {' | '.join(table.head)} |", f"|{rule}|", *body]
