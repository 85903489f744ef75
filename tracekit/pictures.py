"""From an open run to figures and to the page of a report: which queries these need, asked once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracekit.dashboards import chart, charts, drawn
from tracekit.errors import InputError, QueryError

if TYPE_CHECKING:
    import duckdb
    from matplotlib.figure import Figure

    from tracekit.dashboards.drawing import Rows
    from tracekit.findings import Finding
    from tracekit.job import JobDescription
    from tracekit.report.model import Report


def rows_for(
    con: duckdb.DuckDBPyConnection,
    names: Iterable[str],
    filled: Collection[str],
    description: JobDescription | None = None,
) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by query; a query that fails gives none: its figure then says what it needs.

    ``filled`` names the tables that have rows: what can find nothing is not planned.
    """
    from tracekit import catalog, traffic

    filled = catalog.with_domains(con, filled)
    rows: dict[str, list[Mapping[str, Any]]] = {name: [] for name in names}
    asked = [n for n in rows if not catalog.finds_nothing(catalog.find(n), filled)]
    with catalog.shared(con, asked):
        for name in asked:
            try:
                rows[name] = catalog.run(con, name).to_pylist()
            except QueryError:
                rows[name] = []
    if "traffic" in rows:
        rows["traffic"] = list(traffic.beside(rows["traffic"], description))
    return rows


def plot(
    con: duckdb.DuckDBPyConnection,
    name: str,
    filled: Collection[str],
    description: JobDescription | None = None,
    findings: Sequence[Finding] = (),
) -> Figure:
    """One figure by its name. UsageError for a name that is not there, InputError without rows."""
    wanted = chart(name)
    drawing = drawn(wanted, rows_for(con, wanted.queries, filled, description), findings)
    if drawing is None:
        raise InputError(
            f"nothing to draw for {name}: it needs {wanted.needs}",
            hint="tracekit plot --list says what each figure shows",
        )
    return drawing.figure


def page(
    con: duckdb.DuckDBPyConnection,
    report: Report,
    filled: Collection[str],
    description: JobDescription | None = None,
) -> str:
    """The report as one page with every figure that the run has rows for."""
    from tracekit.dashboards.work_tables import kernels
    from tracekit.report.html import to_html

    names = dict.fromkeys(query for c in charts() for query in c.queries)
    rows: Rows = rows_for(con, [*names, "kernel_summary"], filled, description)
    drawings = [(c, drawn(c, rows, report.findings)) for c in charts()]
    tables = [t for t in (kernels(rows["kernel_summary"]),) if t is not None]
    return to_html(report, drawings, tables)
