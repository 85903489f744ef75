"""A comparison as one page, with the look and the safety of a report's."""

from __future__ import annotations

from typing import Any

from tracekit.comparison.model import Change, Comparison
from tracekit.comparison.tables import Table, tables, title
from tracekit.comparison.text import side_parts, step_parts

_KINDS: dict[Change, str] = {
    "slower": "culprit",
    "faster": "inherent",
    "no significant change": "inherent",
    "not comparable": "unexplained",
}
"""Which verdict of a report has the colour of a change."""
_OF_CALLS = frozenset({"Calls", "Operators and ranges", "Kernels and copies"})
"""Tables of which what moved is a program's name, and no words of ours."""


def to_html(comparison: Comparison) -> str:
    """The whole comparison as a page, with a final newline."""
    from tracekit.report.html import render

    verdict = comparison.verdict
    return render(
        "compare.html.j2",
        title=title(comparison),
        sides=[
            ("Baseline", ": ".join(side_parts(comparison.baseline))),
            ("Candidate", ": ".join(side_parts(comparison.candidate))),
        ],
        kind=_KINDS[verdict.change],
        change=verdict.change,
        sentence=verdict.sentence,
        step=["; ".join(parts) for parts in step_parts(comparison)],
        tables=[_shown(table) for table in tables(comparison)],
    )


def _shown(table: Table) -> dict[str, Any]:
    def kind(name: str) -> str:
        if name in table.amounts:
            return "n"
        if name == "what" and table.title in _OF_CALLS:
            return "path"
        return "text" if name in ("what it says", "why") else ""

    columns = [(name.capitalize(), kind(name)) for name in table.head]
    return {"title": table.title, "columns": columns, "rows": table.rows, "note": table.note}
