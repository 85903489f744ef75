"""A comparison as one page, with the look and the safety of a report's."""

from __future__ import annotations

from typing import Any

from tracekit.comparison.model import Change, Comparison
from tracekit.comparison.tables import Table, tables
from tracekit.comparison.text import side_words, step_words

_KINDS: dict[Change, str] = {
    "slower": "culprit",
    "faster": "inherent",
    "no significant change": "inherent",
    "not comparable": "unexplained",
}
"""Which verdict of a report has the colour of a change."""
_NUMBERS = frozenset({"difference", "may lie", "baseline", "candidate", "change", "calls", "times"})
_WORDS = frozenset({"Findings", "Configuration"})
"""Tables whose columns of those names hold words, not amounts."""


def to_html(comparison: Comparison) -> str:
    """The whole comparison as a page, with a final newline."""
    from tracekit.report.html import render

    verdict = comparison.verdict
    return render(
        "compare.html.j2",
        title=f"{verdict.change.capitalize()}: two runs beside each other",
        sides=[
            ("Baseline", side_words(comparison.baseline)),
            ("Candidate", side_words(comparison.candidate)),
        ],
        kind=_KINDS[verdict.change],
        change=verdict.change,
        sentence=verdict.sentence,
        step=step_words(comparison),
        tables=[_shown(table) for table in tables(comparison)],
    )


def _shown(table: Table) -> dict[str, Any]:
    def kind(title: str) -> str:
        if title in _NUMBERS and table.title not in _WORDS:
            return "n"
        return "text" if title in ("what it says", "why") else "path" if title == "what" else ""

    columns = [(title.capitalize(), kind(title)) for title in table.head]
    return {"title": table.title, "columns": columns, "rows": table.rows, "note": table.note}
