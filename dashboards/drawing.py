"""What a figure is made from and what comes out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from tracekit.errors import QueryError, TracekitError, where_raised

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracekit.findings import Finding

T = TypeVar("T")
Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""Rows by the query that gave them."""


class Drawing(Struct, frozen=True):
    """A figure, and what it shows in words: for who cannot see it, and for who has no time to."""

    figure: Figure
    says: str


class NotDrawn(Struct, frozen=True):
    """Why something of a page could not be made, other than that there is nothing to show."""

    why: str


def attempted(make: Callable[[], T]) -> T | NotDrawn:
    """What it makes. A query that failed, or a bug of ours, must not cost the reader the page."""
    try:
        return make()
    except QueryError as error:
        return NotDrawn(error.message.splitlines()[0])
    except TracekitError:
        raise
    except Exception as error:
        if os.environ.get("TRACEKIT_DEBUG"):
            raise
        return NotDrawn(f"a bug of tracekit, please report it: {where_raised(error)}")


SECTIONS = {
    "steps": "Steps",
    "lateness": "Who was late",
    "communication": "Communication",
    "work": "What takes the time",
    "devices": "Devices",
}
"""Parts of a page by name, in order, with their titles."""


class Table(Struct, frozen=True):
    """A table of a page: columns of (title, kind), where the kind is ``n`` for numbers, ``text``
    for sentences, ``name`` or ``path`` for code, or empty. A cell is text, or (text, what it is
    sorted by)."""

    name: str
    section: str
    caption: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Any]]


class Listing(Struct, frozen=True):
    """A named table of a page: its title and section, the query it reads, and the function from
    that query's rows to the table, or to None where they hold nothing."""

    name: str
    title: str
    section: str
    query: str
    make: Callable[[Sequence[Row]], Table | None]
    max_ranks: int | None = None
    """Ranks up to which a page asks for it; None: however many."""


Draw = Callable[[Rows, "Sequence[Finding]"], "Drawing | None"]


class Chart(Struct, frozen=True):
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
