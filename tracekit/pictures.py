"""From an open run to figures and to the page of a report: which queries these need, asked once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from tracekit.dashboards import chart, charts, drawn
from tracekit.dashboards.drawing import NotDrawn, attempted
from tracekit.errors import InputError, QueryError

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

    from tracekit.answers import Answers
    from tracekit.dashboards.drawing import Chart, Drawing, Listing, Rows, Table
    from tracekit.findings import Finding
    from tracekit.job import JobDescription
    from tracekit.report.model import Report

ROWS_AT_A_TIME = 10_000


def rows_for(
    answers: Answers,
    names: Iterable[str],
    filled: Collection[str],
    description: JobDescription | None = None,
    findings: Sequence[Finding] = (),
) -> tuple[Rows, Mapping[str, NotDrawn]]:
    """Rows by query, and why there are none where a query failed.

    ``filled`` names the tables that have rows: what can find nothing is not planned. Of many GPUs
    only the series are kept that a figure draws.
    """
    from tracekit import catalog, traffic
    from tracekit.dashboards.device_figures import named_links

    filled = answers.with_domains(filled)
    rows: dict[str, Sequence[Mapping[str, Any]]] = dict.fromkeys(names, ())
    failed: dict[str, NotDrawn] = {}

    def asked_of(name: str) -> Sequence[Mapping[str, Any]]:
        if name == "gpu_series":
            series = catalog.run(answers.con([catalog.find(name)]), name)
            return TableRows(_of_accused(series, findings))
        links = named_links(findings)
        if name == "port_steps" and links:
            con = answers.con([catalog.find(name)])
            return TableRows(catalog.run(con, name, links="\n".join(links)))
        answered = answers.long(name)  # half of a page's queries a diagnosis has asked
        rows = answered if isinstance(answered, list) else TableRows(answered)
        return list(traffic.beside(rows, description)) if name == "traffic" else rows

    asked = [n for n in rows if not catalog.finds_nothing(catalog.find(n), filled)]
    with answers.sharing(asked):
        for name in asked:
            answer = attempted(partial(asked_of, name))
            if isinstance(answer, NotDrawn):
                failed[name] = NotDrawn(f"query {name}: {answer.why}")
            else:
                rows[name] = answer
    return rows, failed


class TableRows(Sequence[Mapping[str, Any]]):
    """Rows of an Arrow table, made when they are asked for: a million pairs of ranks as objects
    would take a gigabyte."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for batch in self._table.to_batches(max_chunksize=ROWS_AT_A_TIME):
            yield from batch.to_pylist()

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._table.slice(range(len(self))[index], 1).to_pylist()[0]


def _of_accused(series: pa.Table, findings: Sequence[Finding]) -> pa.Table:
    """Series of the GPUs that are drawn; the range over all GPUs stands in each of their rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tracekit.dashboards.device_figures import accused

    if not series.num_rows:
        return series
    gpus = series.group_by(["gpu_id", "rank", "away_ratio"]).aggregate([]).to_pylist()
    chosen = pa.array(accused(gpus, findings), pa.string())
    return series.filter(pc.is_in(series.column("gpu_id"), value_set=chosen))


def plot(
    answers: Answers,
    name: str,
    filled: Collection[str],
    description: JobDescription | None = None,
    findings: Sequence[Finding] = (),
) -> Figure:
    """One figure by its name. UsageError for a name that is not there, InputError without rows,
    QueryError where these could not be asked."""
    wanted = chart(name)
    rows, failed = rows_for(answers, wanted.queries, filled, description, findings)
    drawing = drawn(wanted, rows, findings)
    if drawing is None:
        for left_out in failed.values():
            raise QueryError(f"{name} cannot be drawn: {left_out.why}")
        raise InputError(
            f"nothing to draw for {name}: it needs {wanted.needs}",
            hint="tracekit plot --list says what each figure shows",
        )
    return drawing.figure


def expect_page(answers: Answers, filled: Collection[str]) -> None:
    """What a diagnosis derives and the page's figures need as well is then derived once."""
    from tracekit import catalog

    filled = answers.with_domains(filled)
    asked = dict.fromkeys(q for c in charts() for q in c.queries if q != "gpu_series")
    answers.expect(q for q in asked if not catalog.finds_nothing(catalog.find(q), filled))


def page(
    answers: Answers,
    report: Report,
    filled: Collection[str],
    description: JobDescription | None = None,
) -> str:
    """The report as one page with every figure that the run has rows for."""
    from tracekit.dashboards.listing import LISTINGS
    from tracekit.report.html import to_html

    ranks_count = len(report.document.run.ranks)
    listings = [t for t in LISTINGS if t.max_ranks is None or ranks_count <= t.max_ranks]
    wanted = dict.fromkeys([q for c in charts() for q in c.queries] + [t.query for t in listings])
    rows, failed = rows_for(answers, wanted, filled, description, report.findings)
    answers.save()

    def drawing(wanted: Chart) -> Drawing | NotDrawn | None:
        made = attempted(lambda: drawn(wanted, rows, report.findings))
        return made or next((failed[q] for q in wanted.queries if q in failed), None)

    def table(wanted: Listing) -> Table | NotDrawn | None:
        return failed.get(wanted.query) or attempted(lambda: wanted.make(rows[wanted.query]))

    return to_html(report, [(c, drawing(c)) for c in charts()], [(t, table(t)) for t in listings])
