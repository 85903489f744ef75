"""From an open run to one side of a comparison: which queries to run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from tracekit.comparison.calls import called
from tracekit.comparison.path import NOBODY, Paths
from tracekit.comparison.sides import RunRows
from tracekit.errors import QueryError
from tracekit.rules.steps import Steps

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.answers import Answers
    from tracekit.report.model import Report

ROWS = (
    "step_breakdown",
    "step_time",
    "job_step_time",
    "job_ranks",
    "job_step_curve",
    "path_ranges",
    "overlap",
    "stage_balance",
    "traffic",
    "exposed_comm_by_op",
    "group_bandwidth",
    "gpu_counters",
    "port_counters",
    "nccl_comms",
    "nccl_choices",
    "nccl_topology",
    "environment",
)
"""Queries whose rows a comparison reads."""
BY_PATH = {"self_time": {"by_path": True, "min_ratio": 0.0}}
"""Queries asked otherwise than as they stand: rows of one path and name are the same part."""
COLUMNS = ("path_moments", "path_calls", "step_calls")
"""Queries of which it reads columns: they have a row a call and rank."""


def run_rows(answers: Answers, report: Report, filled: Collection[str]) -> RunRows:
    """One run of a side: its rows, of the attempt that its report is about.

    ``filled`` names the tables that have rows. A query that fails is recorded as unavailable.
    """
    from tracekit import catalog

    attempt = report.document.run.attempt
    filled = answers.with_domains(filled)
    asked = [
        name
        for name in (*ROWS, *BY_PATH, *COLUMNS)
        if not catalog.finds_nothing(catalog.find(name), filled)
    ]
    rows: dict[str, list[dict[str, Any]]] = {}
    tables: dict[str, pa.Table] = {}
    unavailable: dict[str, str] = {}
    with answers.sharing(asked):
        several = [answers.each([name for name in asked if name in ROWS])]
        several += [answers.each([n], given) for n, given in BY_PATH.items() if n in asked]
        for name, answer in chain.from_iterable(several):
            if isinstance(answer, QueryError):
                unavailable[name] = answer.message.splitlines()[0]
            else:
                rows[name] = [r for r in answer if r.get("attempt") in (None, attempt)]
        for name in COLUMNS:
            if name in asked:
                try:
                    table = catalog.run(answers.con([catalog.find(name)]), name)
                    tables[name] = _of_attempt(table, attempt)
                except QueryError as error:
                    unavailable[name] = error.message.splitlines()[0]
    moments, calls, called_ = (tables.get(name) for name in COLUMNS)
    return RunRows(
        id=report.document.run.id,
        document=report.document,
        steps=Steps.from_rows(rows.get("step_breakdown", ()), rows.get("step_time", ())),
        paths=None if moments is None else _paths(moments, calls, rows),
        called={} if called_ is None else called(_rows_of(called_)),
        rows=rows,
        unavailable=unavailable,
    )


def _of_attempt(table: pa.Table, attempt: int) -> pa.Table:
    """Rows of an attempt."""
    import pyarrow.compute as pc

    return table.filter(pc.equal(table.column("attempt"), attempt))


def _rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a long table, a batch at a time."""
    for batch in table.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _paths(
    moments: pa.Table, calls: pa.Table | None, rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Paths:
    import pyarrow.compute as pc

    columns = {name: moments.column(name).to_numpy() for name in moments.column_names}
    called: dict[str, Any] = {"rank": [], "capture_id": []}
    if calls is not None:
        stand_ins = {"holder_rank": NOBODY, "holder_start_ns": 0, "error_ns": 0, "op": "unknown"}
        for name in calls.column_names:
            column = calls.column(name)
            if name in stand_ins:
                column = pc.fill_null(column, stand_ins[name])
            called[name] = column.to_pylist() if name == "op" else column.to_numpy()
    measured = {int(r["rank"]): r["measured_on"] for r in rows.get("step_breakdown", ())}
    return Paths.from_columns(
        columns,
        called,
        rows.get("path_ranges", ()),
        [rank for rank, on in measured.items() if on != "gpu"],
    )
