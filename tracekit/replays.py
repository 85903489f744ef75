"""From the views of an open run to a what-if replay.

A pipeline is replayed by its operations; a job without one, or whose pipeline replay is refused,
by its matched collectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from tracekit.errors import InputError
from tracekit.whatif import (
    Cause,
    CollectiveReplay,
    Layout,
    WhatIf,
    analyse,
    from_pipeline_rows,
)

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_STEADY_PIPELINE = """
SELECT p.* FROM pipeline_op p WHERE NOT EXISTS (
    SELECT 1 FROM step s
    WHERE s.attempt = p.attempt AND s.capture_id = p.capture_id AND s.step = p.step
      AND (s.is_warmup OR s.is_partial))
"""

_CALLS = """
SELECT c.capture_id, c.rank, if(m.is_trusted, m.instance_id, NULL) AS instance_id, c.op,
       m.group_id, g.kind, g.members_count, c.root, c.message_bytes, c.timeline, c.start_ns,
       c.start_ns + c.dur_ns AS end_ns
FROM collective c
LEFT JOIN collective_match m USING (source_id, place)
LEFT JOIN comm_group g ON g.attempt = c.attempt AND g.group_id = m.group_id
WHERE c.rank IS NOT NULL AND c.start_ns IS NOT NULL AND c.dur_ns IS NOT NULL
ORDER BY c.capture_id, c.start_ns, c.rank, c.source_id, c.place
"""

_STALLS = """
WITH work AS MATERIALIZED (
    SELECT capture_key(attempt, rank, capture_id) AS key, class, start_ns, end_ns
    FROM rank_work('gpu_op', 'host_op', 'collective', 'annotation')
    WHERE class IN ('compute', 'communication', 'blocked') AND rank IS NOT NULL
), waiting AS (
    SELECT key, start_ns, end_ns FROM work WHERE class <> 'compute'
), computing AS (
    SELECT key, start_ns, end_ns FROM work WHERE class = 'compute'
)
SELECT capture_id_of(key) AS capture_id, rank_of(key) AS rank, start_ns, end_ns
FROM difference_intervals('waiting', 'computing')
ORDER BY capture_id, rank, start_ns
"""

_STEPS = """
WITH windows AS (
    SELECT capture_id, rank, step, is_warmup, is_partial, start_ns,
           CASE lead(step) OVER capture
               WHEN step + 1 THEN lead(start_ns) OVER capture
               ELSE start_ns + dur_ns END AS end_ns
    FROM step WINDOW capture AS (PARTITION BY rank, capture_id ORDER BY start_ns, step)
)
SELECT capture_id, rank, step, start_ns, end_ns FROM windows
WHERE NOT coalesce(is_warmup, false) AND NOT coalesce(is_partial, false)
ORDER BY capture_id, rank, step
"""


def replay_pipeline(
    con: duckdb.DuckDBPyConnection, dp: int | None = None, causes: Sequence[Cause] = ()
) -> WhatIf:
    """Replay the pipeline's operations; InputError where the run holds none."""
    rows = con.sql(_STEADY_PIPELINE).to_arrow_table()
    return analyse(from_pipeline_rows(rows, Layout(dp=dp)), causes)


def replay_of_calls(con: duckdb.DuckDBPyConnection) -> CollectiveReplay:
    """The matched collectives, ready to be replayed.

    InputError where none are matched in steady steps. Macros must be loaded, and the connection
    must show one attempt.
    """
    stages = con.sql("SELECT rank, pp_rank FROM rank WHERE pp_rank IS NOT NULL").fetchall()
    return CollectiveReplay(
        con.sql(_CALLS).to_arrow_table(),
        con.sql(_STALLS).to_arrow_table(),
        con.sql(_STEPS).to_arrow_table(),
        {int(r): int(s) for r, s in stages},
    )


def believed_calls(con: duckdb.DuckDBPyConnection) -> CollectiveReplay | None:
    """The matched collectives, if their replay gives the measured time back."""
    try:
        found = replay_of_calls(con)
        return None if found.refused else found
    except InputError:
        return None


class RankReplay:
    """What the step would take without some ranks' delays; prepared when it is first asked.

    Answers None where there is nothing to replay or the replay is refused.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con

    @cached_property
    def _replay(self) -> CollectiveReplay | None:
        return believed_calls(self._con)

    @cached_property
    def _slowdowns(self) -> Mapping[int, float]:
        return self._replay.analyse().slowdown_by_rank if self._replay is not None else {}

    def saved_ns(self, ranks: Sequence[int]) -> float | None:
        """ns a step that would be saved if these ranks did what their peers do."""
        replay = self._replay
        if replay is None or not set(ranks) <= set(replay.ranks):
            return None
        return (replay.step_s - replay.step_s_without(ranks)) * 1e9

    def slowdown(self, rank: int) -> float | None:
        """The ideal step with only this rank's delays, over the ideal step."""
        return self._slowdowns.get(rank)


def has_pipeline(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether the run holds pipeline operations."""
    rows = con.execute("SELECT count(*) FROM pipeline_op").fetchall()
    return bool(rows[0][0])


def with_slowdowns(con: duckdb.DuckDBPyConnection, rows: pa.Table) -> pa.Table:
    """Rows of the query straggler with slowdown_ratio by replay, where it can be replayed."""
    import pyarrow as pa

    if "slowdown_ratio" not in rows.column_names or not rows.num_rows:
        return rows
    replay = RankReplay(con)
    values = [replay.slowdown(rank) for rank in rows.column("rank").to_pylist()]
    position = rows.column_names.index("slowdown_ratio")
    return rows.set_column(position, "slowdown_ratio", pa.array(values, pa.float64()))
