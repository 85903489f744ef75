"""What a figure is made from and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracekit.findings import Finding

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""Rows by the query that gave them."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure, and what it shows in words: for who cannot see it, and for who has no time to."""

    figure: Figure
    says: str


SECTIONS = {
    "steps": "Steps",
    "lateness": "Who was late",
    "communication": "Communication",
    "work": "Operators and kernels",
    "devices": "Devices",
}
"""Parts of a page by name, in order, with their titles."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page: columns of (title, kind), where the kind is ``n`` for numbers, ``text``
    for sentences, ``name`` or ``path`` for code, or empty. A cell is text, or (text, what it is
    sorted by)."""

    name: str
    section: str
    caption: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Any]]


Draw = Callable[[Rows, "Sequence[Finding]"], "Drawing | None"]


@dataclass(frozen=True, slots=True)
class Chart:
    """A named figure: what it is called, the queries it reads, and the function that draws it.

    ``draw`` is given the rows of these queries and the findings in the order of the report (empty
    where nobody asked for a diagnosis), and gives None where the rows hold nothing to draw;
    ``needs`` then says what is missing.
    """

    name: str
    title: str
    section: str
    queries: tuple[str, ...]
    draw: Draw
    needs: str
    marks_findings: bool = False
