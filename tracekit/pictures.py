"""From an open run to figures and to the page of a report: which queries these need, asked once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from tracekit.dashboards import chart, charts, drawn
from tracekit.errors import InputError, QueryError

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

    from tracekit.answers import Answers
    from tracekit.dashboards.drawing import Rows
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
) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Rows by query; a query that fails gives none: its figure then says what it needs.

    ``filled`` names the tables that have rows: what can find nothing is not planned. Of many GPUs
    only the series are kept that a figure draws.
    """
    from tracekit import catalog, traffic

    filled = answers.with_domains(filled)
    rows: dict[str, Sequence[Mapping[str, Any]]] = dict.fromkeys(names, ())
    asked = [n for n in rows if not catalog.finds_nothing(catalog.find(n), filled)]
    with answers.sharing(asked):
        for name in asked:
            try:
                found = catalog.run(answers.con([catalog.find(name)]), name)
            except QueryError:
                continue
            if name == "gpu_series":
                found = _of_accused(found, findings)
            rows[name] = TableRows(found)
    if "traffic" in rows:
        rows["traffic"] = list(traffic.beside(rows["traffic"], description))
    return rows


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
    """One figure by its name. UsageError for a name that is not there, InputError without rows."""
    wanted = chart(name)
    drawing = drawn(
        wanted, rows_for(answers, wanted.queries, filled, description, findings), findings
    )
    if drawing is None:
        raise InputError(
            f"nothing to draw for {name}: it needs {wanted.needs}",
            hint="tracekit plot --list says what each figure shows",
        )
    return drawing.figure


def page(
    answers: Answers,
    report: Report,
    filled: Collection[str],
    description: JobDescription | None = None,
) -> str:
    """The report as one page with every figure that the run has rows for."""
    from tracekit.dashboards.work_tables import MAX_SELF_TIME_RANKS, kernels, parts
    from tracekit.report.html import to_html

    names = dict.fromkeys(query for c in charts() for query in c.queries)
    wanted = [*names, "kernel_summary"]
    if len(report.document.run.ranks) <= MAX_SELF_TIME_RANKS:
        wanted.append("self_time")
    rows: Rows = rows_for(answers, wanted, filled, description, report.findings)
    drawings = [(c, drawn(c, rows, report.findings)) for c in charts()]
    tables = [parts(rows.get("self_time", ())), kernels(rows["kernel_summary"])]
    return to_html(report, drawings, [t for t in tables if t is not None])
