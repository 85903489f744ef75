"""What people look at: figures and pages built from query rows.

A figure is a function from rows of named queries to a Matplotlib figure. ``CHARTS`` lists them;
nothing here opens a database, and Matplotlib is imported when the first one is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.dashboards.drawing import Chart, Drawing, Rows
    from tracekit.findings import Finding


def charts() -> tuple[Chart, ...]:
    """Every figure, in the order in which a page shows them."""
    from tracekit.dashboards.listing import CHARTS

    return CHARTS


def chart(name: str) -> Chart:
    """The figure of that name. UsageError for one that is not there."""
    by_name = {c.name: c for c in charts()}
    if name not in by_name:
        near = get_close_matches(name, by_name, 1)
        hint = f"did you mean {near[0]}?" if near else "tracekit plot --list"
        raise UsageError(f"there is no figure {name!r}", hint=hint)
    return by_name[name]


def drawn(wanted: Chart, rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """The figure in the one look; None where the rows hold nothing to draw."""
    from tracekit.dashboards import look

    with look.style():
        return wanted.draw(rows, findings)
