"""What a process asked of its host alone: the launches of a rank that has no device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.derive.periods import Launches

if TYPE_CHECKING:
    import duckdb

    from tracekit.derive.periods import Bools

# Of the thread that trains: where the optimizer steps, else where most collectives are called. A
# call of a collective may stand within an operator, as those of DDP stand within the backward pass.
_OPERATORS = """
WITH operators AS (
    SELECT place, start_ns, start_ns + dur_ns AS end_ns, coalesce(name, '') AS name, input_dims,
           thread, regexp_matches(name, '^_?c10d(_functional)?::') AS is_call
    FROM host_op
    WHERE source_id = $source_id AND category = 'operator'
      AND start_ns IS NOT NULL AND dur_ns IS NOT NULL AND thread IS NOT NULL
), updating AS (
    SELECT thread, count(*) AS updates FROM annotation
    WHERE source_id = $source_id AND NOT coalesce(is_gpu_twin, false)
      AND regexp_matches(name, '^Optimizer[.]step\\b')
    GROUP BY thread
), main AS (
    SELECT thread FROM operators LEFT JOIN updating USING (thread)
    GROUP BY thread
    ORDER BY coalesce(any_value(updates), 0) DESC, count(*) FILTER (is_call) DESC, count(*) DESC,
             thread
    LIMIT 1
)
SELECT place, start_ns, end_ns, name, is_call,
       if(is_call, dense_rank() OVER (ORDER BY is_call, name, input_dims), 0) AS sized_call,
       if(is_call, dense_rank() OVER (ORDER BY is_call, name), 0) AS call
FROM operators JOIN main USING (thread)
"""


def host_launches(con: duckdb.DuckDBPyConnection, source_id: int) -> Launches:
    """Outermost operators and calls of collectives of the thread that trains, in order of their
    start; which are the optimizer's is not marked."""
    import numpy as np

    rows = con.sql(_OPERATORS, params={"source_id": source_id}).to_arrow_table()
    is_call = rows["is_call"].to_numpy(zero_copy_only=False).astype(np.bool_)
    keys = [rows[c].to_numpy() for c in ("place", "end_ns", "start_ns")]
    order = np.lexsort([keys[0], -keys[1], keys[2]])
    start, end = keys[2][order], keys[1][order]
    before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end))[: len(end)]
    kept = order[(start >= before) | is_call[order]]
    codes = rows["name"].combine_chunks().dictionary_encode().indices.to_numpy()[kept]
    at, done = keys[2][kept], keys[1][kept]
    none: Bools = np.zeros(len(kept), np.bool_)
    return Launches(
        at=at,
        done=done,
        start=at,
        end=done,
        name=codes.astype(np.int64),
        thread=np.zeros(len(kept), np.int64),
        is_input=none,
        is_compute=~is_call[kept],
        is_update=none,
        calls=tuple(rows[c].to_numpy()[kept] for c in ("sized_call", "call")),
        is_by_range=False,
        is_host=True,
    )
