"""What pages of a site share: their frame, their names, links between them, figures in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.fleet.night import Night
from tracekit.target import Target
from tracekit.wording import plural, safe

if TYPE_CHECKING:
    from tracekit.fleet.reports import Reports

Row = Mapping[str, Any]

MAX_ROWS = 2_000
"""Rows of a table of places or runs: the worst, or the last, come first."""
PAGES = (
    ("index.html", "Fleet"),
    ("runs.html", "Runs"),
    ("hosts.html", "Hosts"),
    ("gpus.html", "GPUs"),
    ("links.html", "Ports"),
)


def page(title: str, night: Night, sections: Sequence[Mapping[str, Any]]) -> str:
    """A page of sections, of which those that hold nothing are left out: columns without rows are
    nothing."""
    from tracekit.report.html import render

    empty = {"texts": (), "figure": None, "links": (), "rows": ()}
    about = f"{plural(night.quality.jobs_count, 'run')} on {night.date}; four weeks until then"
    shown = [{**empty, "columns": (), **s} for s in sections if any(s.get(part) for part in empty)]
    return render("site.html.j2", title=title, about=about, pages=PAGES, sections=shown)


def figure(drawing: Any, name: str) -> dict[str, Any] | None:
    """A drawing as a page shows it."""
    from markupsafe import Markup

    from tracekit.dashboards import look

    if drawing is None:
        return None
    svg = Markup(look.inline_svg(drawing.figure, name))  # noqa: S704 - look made it, escaped
    return {"says": drawing.says, "svg": svg}


def linked(target: str | None, text: str) -> str:
    """A cell that leads to a page of the site, or its text alone."""
    from markupsafe import Markup

    return Markup('<a href="{}">{}</a>').format(target, text) if target else text


def report_of(
    run: str, what: str, reports: Reports, lake: Path | str
) -> tuple[list[str], list[tuple[str, str]]]:
    """How a reader comes to a run's report: texts, or links to its page."""
    if run in reports.pages:
        return [], [(reports.pages[run], f"{what}: {safe(run)}")]
    command = Target((f"{lake}/runs/{run}",)).command("diagnose")
    why = f" (no page: {safe(reports.missing[run])})" if run in reports.missing else ""
    return [f"{what}{why}: {command}"], []


def page_name(kind: str, name: str) -> str:
    """The file of a family's or a place's page: names from files do not name files."""
    return f"{kind}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}.html"
