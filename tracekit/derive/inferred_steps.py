"""Rows of ``step`` for sources that mark none: what was launched, and when its steps began."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tracekit.derive.host_launches import host_launches
from tracekit.derive.periods import MIN_EQUAL, Cell, Launches, cells, repetitions
from tracekit.derive.step_numbers import align

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.derive.matching import Matched
    from tracekit.derive.periods import Bools, Ints

FIRST_NS = 1_000
"""A first step begins this long before its first launch, as those of markers begin before it."""

UPDATE = re.compile(
    r"(?i)adam|lamb(?!da)|(?<![a-z])sgd|adagrad|adafactor|rmsprop|(?<![a-z])(?:lion|muon)(?![a-z])"
    r"|optimizer|addcdiv|multi_tensor_apply.*(?:PointwiseOp|TernaryOp)"
)
"""Kernels of optimizers: fused ones by their names, others by the division that ends Adam."""

# Names and calls as numbers: a kernel's name may be as long as all else that is read of its launch.
# A name's is its hash of 64 bits, which takes a third of the time of a join with all names; of a
# million distinct ones any two are equal in one trace of thirty million.
_LAUNCHES = """
WITH calls AS (
    SELECT gpu_op_place AS place,
           coalesce(op, '?') || '/' || coalesce(group_id, 'stream ' || stream, '?') AS call,
           message_bytes
    FROM collective WHERE source_id = $source_id AND gpu_op_place IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY gpu_op_place ORDER BY place) = 1
), numbered AS (
    SELECT place, CAST(dense_rank() OVER (ORDER BY call) AS INTEGER) AS call,
           CAST(if(message_bytes IS NULL, 0, dense_rank() OVER (ORDER BY call, message_bytes))
               AS INTEGER) AS sized_call
    FROM calls
)
SELECT g.place, g.launch_start_ns AS at, coalesce(g.launch_end_ns, g.launch_start_ns) AS done,
       g.start_ns, g.start_ns + g.dur_ns AS end_ns, hash(coalesce(g.name, '')) AS name,
       coalesce(g.launch_thread, -1) AS thread, coalesce(g.copy_kind = 'HtoD', false) AS is_input,
       coalesce(g.class = 'compute', false) AS is_compute,
       coalesce(c.call, 0) AS call, coalesce(c.sized_call, 0) AS sized_call
FROM gpu_op g
LEFT JOIN numbered c USING (place)
WHERE g.source_id = $source_id AND g.launch_start_ns IS NOT NULL
  AND g.start_ns IS NOT NULL AND g.dur_ns IS NOT NULL
"""

_WORK = """
SELECT hash(coalesce(name, '')) AS code, coalesce(name, '') AS name, count(*) FROM gpu_op
WHERE source_id = $source_id AND launch_start_ns IS NOT NULL
  AND start_ns IS NOT NULL AND dur_ns IS NOT NULL
GROUP BY coalesce(name, '')
"""

_TELLS = """
(SELECT 1 FROM annotation
 WHERE source_id = $source_id AND regexp_matches(name, '^Optimizer[.]step\\b') LIMIT 1)
UNION ALL (SELECT 1 FROM collective WHERE source_id = $source_id LIMIT 1)
UNION ALL (
    SELECT 1 WHERE NOT EXISTS (FROM gpu_op WHERE source_id = $source_id)
)
"""

_UPDATES = """
SELECT DISTINCT start_ns, start_ns + dur_ns AS end_ns FROM annotation
WHERE source_id = $source_id AND NOT coalesce(is_gpu_twin, false)
  AND start_ns IS NOT NULL AND dur_ns IS NOT NULL
  AND regexp_matches(name, '^Optimizer[.]step\\b')
"""


def infer_steps(
    con: duckdb.DuckDBPyConnection,
    context: pa.Table,
    marked: pa.Table,
    matched: Matched,
) -> pa.Table | None:
    """Rows of ``step`` for the sources that mark none; None where there are none.

    ``context``: source_id, attempt, rank, capture_id; ``marked``: the steps of markers. Equal
    steps have equal numbers on all ranks, which ``matched`` collectives tell.
    """
    known: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in marked.to_pylist():
        known[row["source_id"]].append(row)
    placed = {
        row["source_id"]: (row["attempt"], row["capture_id"], row["rank"])
        for row in context.to_pylist()
        if row["rank"] is not None
    }
    steps: dict[int, list[dict[str, Any]]] = {}
    for source_id in sorted(placed.keys() - known.keys()):
        work = con.execute(_WORK, {"source_id": source_id}).fetchall()
        if not _may_repeat(con, source_id, {name: count for _, name, count in work}):
            continue
        launches = _read(con, source_id, {code: name for code, name, _ in work})
        if not len(launches):
            launches = _of_host(con, source_id)
        listed = _steps_of(launches, source_id)
        if listed:
            steps[source_id] = listed
    if not steps:
        return None
    align(steps, known, placed, matched)
    by_step: dict[tuple[int, int, int, int], dict[str, Any]] = {}
    for source_id, listed in steps.items():
        attempt, capture, rank = placed[source_id]
        for row in listed:
            row |= {"attempt": attempt, "capture_id": capture, "rank": rank}
            # A second source of a rank in one capture may show the same step again.
            by_step.setdefault((attempt, rank, capture, row["step"]), row)
    rows = [by_step[k] for k in sorted(by_step)]
    return _table(rows)


def _may_repeat(
    con: duckdb.DuckDBPyConnection, source_id: int, launched: Mapping[str, int]
) -> bool:
    """Whether there may be updates enough, or collectives that are repeated: of a device that
    infers alone no launch needs to be read. ``launched``: how often each kernel was."""
    if con.execute(_TELLS, {"source_id": source_id}).fetchall():
        return True
    return sum(count for name, count in launched.items() if UPDATE.search(name)) >= MIN_EQUAL


def _read(con: duckdb.DuckDBPyConnection, source_id: int, names: Mapping[int, str]) -> Launches:
    """What a source launched; ``names``: of kernels, by their hashes."""
    import numpy as np

    table = con.sql(_LAUNCHES, params={"source_id": source_id}).to_arrow_table()
    columns = dict(zip(table.column_names, table.columns, strict=True))
    del table
    # Not ORDER BY: a run's connections do not keep the order of what they hand over.
    order = np.lexsort([columns[c].to_numpy() for c in ("place", "start_ns", "at")])
    del columns["place"]

    def taken(name: str) -> Any:
        """One column in order; it is not held twice."""
        return columns.pop(name).to_numpy()[order]

    codes, used = _by_appearance(taken("name"))
    listed = [names[code] for code in used.tolist()]
    at = taken("at")
    by_range = _is_in_update(con, source_id, at)
    is_by_range = bool(by_range.any())
    named = np.array([bool(UPDATE.search(n)) for n in listed], np.bool_)
    update = by_range if is_by_range else named[codes] if len(listed) else by_range
    calls = []
    for column in ("sized_call", "call"):
        first, numbers = _by_appearance(taken(column))
        calls.append(np.where(numbers == 0, 0, np.arange(1, len(numbers) + 1))[first])
    if (calls[0] != 0).sum() != (calls[1] != 0).sum():
        calls = calls[1:]  # sizes of some are unknown
    return Launches(
        at=at,
        done=taken("done"),
        start=taken("start_ns"),
        end=taken("end_ns"),
        name=codes,
        thread=taken("thread"),
        is_input=taken("is_input"),
        is_compute=taken("is_compute"),
        is_update=update,
        calls=tuple(calls),
        is_by_range=is_by_range,
    )


def _of_host(con: duckdb.DuckDBPyConnection, source_id: int) -> Launches:
    """What a rank that has no device asked of its host, and which of it is the optimizer's."""
    launches = host_launches(con, source_id)
    update = _is_in_update(con, source_id, launches.at)
    return replace(launches, is_update=update, is_by_range=bool(update.any()))


def _is_in_update(con: duckdb.DuckDBPyConnection, source_id: int, at: Ints) -> Bools:
    """Whether the last call of an optimizer that had begun at a moment had not ended.

    An ASOF join would sort launches with all their columns: twice the memory of all else.
    """
    import numpy as np

    calls = con.execute(_UPDATES, {"source_id": source_id}).fetchall()
    if not calls:
        return np.zeros(len(at), np.bool_)
    start, end = np.array(sorted(calls), np.int64).T
    last = np.searchsorted(start, at, side="right") - 1
    is_inside: Bools = (last >= 0) & (at < end[np.maximum(last, 0)])
    return is_inside


def _by_appearance(numbers: Ints) -> tuple[Ints, Ints]:
    """Each number as the ordinal of its first appearance, and the numbers in that order."""
    import numpy as np

    values, first, at = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    ordinals = np.empty(len(order), np.int64)
    ordinals[order] = np.arange(len(order))
    return ordinals[at], values[order]


def _steps_of(launches: Launches, source_id: int) -> list[dict[str, Any]]:
    """By the updates of the parameters; where there is none, by what is repeated."""
    if launches.is_update.any():
        said_by = "optimizer" if launches.is_by_range else "period"
        return _rows(launches, source_id, cells(launches), said_by)
    return _rows(launches, source_id, repetitions(launches), "repetition")


def _rows(
    launches: Launches, source_id: int, cells: Sequence[Cell], said_by: str
) -> list[dict[str, Any]]:
    """One step follows another without a gap: waiting for input belongs to the step after it."""
    rows = []
    for cell in cells:
        first, last = cell.first, cell.last
        start = int(launches.at[0]) - FIRST_NS if first == 0 else _border(launches, first)
        end = _border(launches, last + 1)
        of_device = launches.start[first : last + 1], launches.end[first : last + 1]
        rows.append(
            {
                "source_id": source_id,
                "step": cell.number,
                "file_step": cell.number,
                "start_ns": start,
                "end_ns": end,
                "dur_ns": end - start,
                "gpu_start_ns": None if launches.is_host else int(of_device[0].min()),
                "gpu_end_ns": None if launches.is_host else int(of_device[1].max()),
                "is_partial": False,
                "step_source": said_by,
            }
        )
    return rows


def _border(launches: Launches, following: int) -> int:
    """Between a launch and the one before it: at the end of that call, where it ended by then.

    Threads may launch at the same moment; then it is in the middle of the two starts, so that
    rounding on another clock moves no launch across.
    """
    before = int(launches.done[following - 1])
    if following == len(launches):
        return max(before, int(launches.at[-1]) + 1)
    at = int(launches.at[following])
    since = int(launches.at[following - 1])
    return before if since < before < at else (since + at + 1) // 2


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of ``step``, with the warm-up of each capture."""
    import pyarrow as pa

    from tracekit.derive.steps import warm_steps
    from tracekit.schema import table

    longest: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for row in rows:
        capture = longest[row["attempt"], row["capture_id"]]
        capture[row["step"]] = max(capture.get(row["step"], 0), row["dur_ns"])
    warm = warm_steps(longest)
    for row in rows:
        row["is_warmup"] = (row["attempt"], row["capture_id"], row["step"]) in warm
    schema = table("step").arrow_schema()
    return pa.table([pa.array([r.get(f.name) for r in rows], f.type) for f in schema], schema)
