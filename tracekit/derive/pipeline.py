"""Microbatch operations of pipeline stages: from timer files, or found in traces.

In a trace a microbatch is a range that the framework named (or, where it named none, what lies
between the messages of a stage: see ``unnamed``). The range of an operation includes waiting for
its input, so its start and end are taken from the work inside it: the kernels that it launched, or
on a rank without a GPU the first and the last operator that is not communication.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracekit.correction import Correction, corrected, corrected_sql
from tracekit.derive.operation_names import BACKWARD, FORWARD, RangeName, is_part, read_name
from tracekit.derive.pipeline_stages import group_places, placed, places_of_ranks
from tracekit.derive.stage import relations
from tracekit.derive.unnamed import Operation, find_operations
from tracekit.schema import table
from tracekit.store import arrow_table
from tracekit.wording import safe

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.derive.placement.timer_jobs import TimerJob
    from tracekit.job import JobDescription


def derive_pipeline(
    con: duckdb.DuckDBPyConnection,
    context: pa.Table,
    steps: pa.Table,
    job: JobDescription | None,
    notes: list[str],
    rank_rows: Sequence[Mapping[str, Any]] = (),
    corrections: Mapping[int, Correction] | None = None,
    matches: pa.Table | None = None,
    filled: Collection[str] = ("annotation",),
    has_messages: bool | None = None,
    timers: TimerJob | None = None,
) -> pa.Table:
    """The rows of ``pipeline_op``, on the job's clock.

    ``context`` holds source_id, attempt, rank, capture_id of the sources that are a rank's own
    trace; ``steps`` the rows of ``step`` on the sources' own clocks; ``rank_rows`` the rows of
    ``rank``, whose coordinates count where no range names its stage; ``corrections`` how the
    sources' clocks are corrected; ``matches`` the rows of ``collective_match``, for traces that
    name no microbatch but send and receive; ``filled`` the source tables that may have rows;
    ``has_messages`` whether any rank sends or receives, where that is known; ``timers`` the
    files of timers that are the job's. What a reader should know is appended to ``notes``.
    """
    from tracekit import arrays

    corrections = corrections or {}
    context = _with_corrections(context, corrections)
    known = {int(r["rank"]): int(r["pp_rank"]) for r in rank_rows if r.get("pp_rank") is not None}

    schema = table("pipeline_op").arrow_schema()
    rows = ranges = schema.empty_table()
    if timers is not None:
        rows = _from_timers(con, timers)
    if "annotation" in filled:
        ranges = _from_ranges(con, context, steps, job, known, notes, has_messages)
    if rows.num_rows and ranges.num_rows:
        notes.append("pipeline operations: timer files are used, named ranges of traces are not")
    rows = rows if rows.num_rows else ranges
    if not rows.num_rows and matches is not None:
        rows = _from_messages(con, context, steps, matches, job, corrections, notes)
    return arrays.shaped(rows, schema)


def _with_corrections(context: pa.Table, corrections: Mapping[int, Correction]) -> pa.Table:
    """The context with the correction of each source's clock."""
    import pyarrow as pa

    applied = [corrections.get(s, Correction()) for s in context["source_id"].to_pylist()]
    types = (pa.int64(), pa.float64(), pa.int64())
    for name, kind in zip(Correction._fields, types, strict=True):
        values = [getattr(correction, name) for correction in applied]
        context = context.append_column(name, pa.array(values, kind))
    return context


def fill_coordinates(
    rank_rows: Sequence[Mapping[str, Any]], operations: pa.Table
) -> list[dict[str, Any]]:
    """The ranks; those without a stage with the one that their pipeline operations show."""
    rows = [dict(row) for row in rank_rows]
    if not operations.num_rows:  # to group no rows, too, Arrow imports what takes 0.03 s
        return rows
    coordinates = {
        (row["attempt"], row["rank"]): row["pp_rank"]
        for row in operations.select(["attempt", "rank", "pp_rank"]).group_by(
            ["attempt", "rank", "pp_rank"]
        ).aggregate([]).to_pylist()
    }  # fmt: skip
    # Known for some ranks only, it would set them apart from the others.
    if all(r.get("pp_rank") is None and (r["attempt"], r["rank"]) in coordinates for r in rows):
        for row in rows:
            row["pp_rank"] = coordinates[row["attempt"], row["rank"]]
            row["coordinates_source"] = row.get("coordinates_source") or "behaviour"
    return rows


_TIMERS = """
SELECT CAST($attempt AS INTEGER) AS attempt, global_rank AS rank, 0 AS capture_id, dp_rank,
       pp_rank, step, operation, sequence, microbatch, chunk, global_chunk, start_ns, end_ns,
       NULL AS compute_ns
FROM pipeline_timer
WHERE list_contains($sources, source_id)
QUALIFY row_number() OVER (
    PARTITION BY global_rank, step, operation, sequence ORDER BY source_id, place) = 1
ORDER BY step, rank, start_ns, operation, sequence
"""


def _from_timers(con: duckdb.DuckDBPyConnection, timers: TimerJob) -> pa.Table:
    params = {"attempt": timers.attempt, "sources": sorted(timers.source_ids)}
    return arrow_table(con, _TIMERS, params)


# --- traces ---------------------------------------------------------------------------------------

_NAMES = """
SELECT DISTINCT a.name FROM annotation a JOIN derive_context USING (source_id)
WHERE NOT coalesce(a.is_gpu_twin, false) AND a.name IS NOT NULL
  AND regexp_matches(a.name, '(?i)^PP:|f(or)?wa?r?d|b(ack)?wa?r?d|weight|wgrad|^[FBW]+[0-9]+[.]')
"""

# Ranges with the step that they begin in. Nested ranges of one name family (a forward inside
# backward's recomputation) would count twice: only outermost ones are kept.
_RANGES = """
WITH named AS (
    SELECT c.attempt, c.rank, c.capture_id, a.source_id, a.place, a.thread, a.start_ns,
           a.start_ns + a.dur_ns AS end_ns, n.operation, n.stage, n.microbatch,
           max(a.start_ns + a.dur_ns) OVER (
               PARTITION BY a.source_id, a.thread ORDER BY a.start_ns, a.dur_ns DESC
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS open_until_ns
    FROM annotation a
    JOIN derive_context c USING (source_id)
    JOIN derive_name n USING (name)
    WHERE NOT coalesce(a.is_gpu_twin, false) AND a.start_ns IS NOT NULL AND a.dur_ns IS NOT NULL
)
SELECT n.* EXCLUDE (open_until_ns), s.step,
       contains(n.operation, 'compute') AS is_compute
FROM named n ASOF JOIN derive_step s
  ON n.source_id = s.source_id AND n.start_ns >= s.start_ns
WHERE n.start_ns < s.end_ns AND (open_until_ns IS NULL OR n.start_ns >= open_until_ns)
"""

# The work inside a compute range. Kernels count by when they were launched. Where the backward runs
# on a thread of its own, its range on the main thread holds the receive that it waits for and no
# operator. Where there is none at all, as in the first stage's gradients of its input, which nobody
# asks for, the work begins when that receive ends.
_EXTENTS = """
WITH ranges AS (SELECT source_id, place, start_ns, end_ns, thread, operation FROM derive_range
                WHERE is_compute),
gpu AS (
    SELECT r.source_id, r.place, min(g.start_ns) AS start_ns,
           max(g.start_ns + g.dur_ns) AS end_ns, CAST(sum(g.dur_ns) AS BIGINT) AS compute_ns
    FROM gpu_op g ASOF JOIN ranges r
      ON g.source_id = r.source_id AND g.launch_start_ns >= r.start_ns
    WHERE g.launch_start_ns < r.end_ns AND g.class = 'compute'
    GROUP BY r.source_id, r.place
), work AS (
    SELECT source_id, thread, start_ns, start_ns + dur_ns AS end_ns FROM host_op
    WHERE category = 'operator' AND source_id NOT IN (SELECT source_id FROM gpu)
      AND NOT regexp_matches(name, '^(c10d::|gloo:|nccl:|record_param_comms|aten::empty)')
), own AS (
    SELECT r.source_id, r.place, min(w.start_ns) AS start_ns, max(w.end_ns) AS end_ns,
           CAST(NULL AS BIGINT) AS compute_ns
    FROM work w ASOF JOIN ranges r
      ON w.source_id = r.source_id AND w.thread = r.thread AND w.start_ns >= r.start_ns
    WHERE w.end_ns <= r.end_ns
    GROUP BY r.source_id, r.place
), elsewhere AS (
    SELECT r.source_id, r.place, min(w.start_ns) AS start_ns, max(w.end_ns) AS end_ns,
           CAST(NULL AS BIGINT) AS compute_ns
    FROM work w ASOF JOIN
         (SELECT * FROM ranges ANTI JOIN own USING (source_id, place)
          WHERE operation = 'backward-compute') r
      ON w.source_id = r.source_id AND w.start_ns >= r.start_ns
    WHERE w.end_ns <= r.end_ns
    GROUP BY r.source_id, r.place
), received AS (
    SELECT source_id, start_ns + dur_ns AS end_ns FROM collective
    WHERE op = 'recv' AND timeline = 'host' AND source_id NOT IN (SELECT source_id FROM gpu)
), bare AS (
    SELECT r.source_id, r.place, c.end_ns AS start_ns, r.end_ns,
           CAST(NULL AS BIGINT) AS compute_ns
    FROM (SELECT * FROM ranges ANTI JOIN own USING (source_id, place)
          ANTI JOIN elsewhere USING (source_id, place)) r
         ASOF JOIN received c ON r.source_id = c.source_id AND r.end_ns >= c.end_ns
    WHERE c.end_ns > r.start_ns
)
FROM gpu UNION ALL FROM own UNION ALL FROM elsewhere UNION ALL FROM bare
"""

# Sources that name forwards and backwards, two of each or more: without pipeline stages, steps
# that gather the gradients of several microbatches.
_REPEATED = """
SELECT a.source_id FROM annotation a JOIN derive_name n USING (name)
WHERE NOT coalesce(a.is_gpu_twin, false) AND contains(n.operation, 'compute')
GROUP BY a.source_id
HAVING count(*) FILTER (n.operation = 'forward-compute') > 1
   AND count(*) FILTER (n.operation = 'backward-compute') > 1
LIMIT 1
"""

# A transfer belongs to the range that posted it, else a send to the compute before it and a
# receive to the compute after it. On the host a receive that was posted early is recorded until
# somebody asks for it: it is waited for only from the end of the compute before. The weights' part
# of a backward sends and receives nothing.
_TRANSFERS = """
WITH moved AS (
    SELECT c.source_id, c.place, c.start_ns, c.start_ns + c.dur_ns AS end_ns, c.op,
           c.timeline = 'host' AS is_host,
           -- Kernels run long after they were asked for, ranges are the host's.
           if(c.timeline = 'host', c.start_ns, coalesce(c.enqueue_ns, c.start_ns)) AS asked_ns
    FROM collective c
    WHERE c.op IN ('send', 'recv') AND c.start_ns IS NOT NULL AND c.dur_ns IS NOT NULL
      AND c.source_id IN (SELECT source_id FROM derive_range)
), before AS (
    SELECT m.*, r.operation AS before_operation, r.end_ns AS before_end_ns
    FROM moved m ASOF LEFT JOIN
         (SELECT * FROM derive_range WHERE operation <> 'weight-compute') r
      ON m.source_id = r.source_id AND m.asked_ns >= r.start_ns
), around AS (
    SELECT b.*, r.operation AS after_operation
    FROM before b ASOF LEFT JOIN
         (SELECT * FROM derive_range WHERE is_compute AND operation <> 'weight-compute') r
      ON b.source_id = r.source_id AND b.asked_ns <= r.start_ns
)
SELECT a.source_id, a.op, a.end_ns, a.is_host, s.step, CASE
    WHEN op = 'recv' AND before_end_ns > a.asked_ns THEN before_operation
    WHEN op = 'recv' THEN after_operation
    ELSE before_operation END AS near_operation,
    CASE WHEN a.op = 'recv' AND a.is_host
        THEN greatest(a.start_ns, coalesce(e.end_ns, a.start_ns)) ELSE a.start_ns END AS start_ns
FROM around a
ASOF JOIN derive_step s ON a.source_id = s.source_id AND a.asked_ns >= s.start_ns
ASOF LEFT JOIN derive_extent e ON a.source_id = e.source_id AND a.end_ns >= e.end_ns
WHERE a.asked_ns < s.end_ns
"""

_OPS = f"""
WITH compute AS (
    SELECT r.source_id, r.attempt, r.rank, r.capture_id, r.step, r.operation, r.microbatch, r.stage,
           coalesce(e.start_ns, r.start_ns) AS start_ns, coalesce(e.end_ns, r.end_ns) AS end_ns,
           e.compute_ns, false AS is_host
    FROM derive_range r LEFT JOIN derive_extent e USING (source_id, place)
    WHERE r.is_compute
), transfer AS (
    SELECT c.source_id, c.attempt, c.rank, c.capture_id, t.step,
           split_part(t.near_operation, '-', 1) || '-' || t.op AS operation,
           NULL AS microbatch, NULL AS stage, t.start_ns, t.end_ns, NULL AS compute_ns, t.is_host
    FROM derive_transfer t JOIN derive_context c USING (source_id)
    WHERE t.near_operation IS NOT NULL AND (SELECT max(pp_rank) FROM derive_coordinate) > 0
), everything AS (
    SELECT * FROM compute UNION ALL SELECT * FROM transfer
), numbered AS (
    SELECT e.* EXCLUDE (start_ns, end_ns), k.pp_rank, k.dp_rank,
           {corrected_sql("e.start_ns", "c")} AS start_ns,
           {corrected_sql("e.end_ns", "c")} AS end_ns,
           row_number() OVER (
               PARTITION BY e.attempt, e.capture_id, e.rank, e.step, e.operation
               ORDER BY e.start_ns, e.end_ns) - 1 AS sequence,
           dense_rank() OVER (
               PARTITION BY e.attempt, e.rank, e.stage IS NULL ORDER BY e.stage) - 1 AS chunk
    FROM everything e
    JOIN derive_coordinate k USING (rank)
    JOIN derive_context c ON e.source_id = c.source_id
), ended AS (
    -- An asynchronous send on the host ends when somebody asks for it: the receive tells when
    -- the data had arrived.
    SELECT n.*, CASE WHEN n.is_host AND ends_with(n.operation, 'send')
        THEN greatest(n.start_ns, coalesce(p.end_ns, n.start_ns)) ELSE n.end_ns END AS done_ns
    FROM numbered n LEFT JOIN numbered p
      ON n.is_host AND n.attempt = p.attempt AND n.capture_id = p.capture_id
     AND n.step = p.step AND n.dp_rank = p.dp_rank AND n.sequence = p.sequence
     AND p.operation = replace(n.operation, 'send', 'recv')
     AND ends_with(n.operation, 'send')
     AND p.pp_rank = n.pp_rank + CASE WHEN starts_with(n.operation, 'f') THEN 1 ELSE -1 END
)
SELECT attempt, rank, capture_id, dp_rank, pp_rank, step, operation, sequence,
       CASE WHEN contains(operation, 'compute') THEN coalesce(microbatch, sequence) END
           AS microbatch,
       CASE WHEN contains(operation, 'compute') THEN chunk END AS chunk,
       CASE WHEN contains(operation, 'compute') THEN coalesce(stage, pp_rank) END AS global_chunk,
       start_ns, done_ns AS end_ns, compute_ns
FROM ended
QUALIFY row_number() OVER (
    PARTITION BY attempt, capture_id, rank, step, operation, sequence ORDER BY done_ns) = 1
ORDER BY attempt, capture_id, step, rank, start_ns, operation, sequence
"""  # noqa: S608 - what is put in is our own


def _from_ranges(
    con: duckdb.DuckDBPyConnection,
    context: pa.Table,
    steps: pa.Table,
    job: JobDescription | None,
    known: Mapping[int, int],
    notes: list[str],
    has_messages: bool | None,
) -> pa.Table:
    import pyarrow as pa

    empty = table("pipeline_op").arrow_schema().empty_table()
    with relations(con, derive_context=context, derive_step=steps) as named:
        seen = [str(n) for (n,) in con.execute(_NAMES).fetchall()]
        names = {n: operation for n in seen if (operation := read_name(n))}
        if not names:
            return empty
        parts = sorted(n for n in seen if is_part(n))
        if parts:
            notes.append(
                f"pipeline: ranges such as {safe(parts[0])} name several chunks or parts a rank,"
                " but not their stages: no bubble is measured"
            )
            return empty
        may_have_stages = _may_have_stages(con, names.values(), job, known, has_messages)
        operations = {
            "name": pa.array(names, pa.string()),
            "operation": pa.array([n.operation for n in names.values()], pa.string()),
            "stage": pa.array([n.stage for n in names.values()], pa.int32()),
            "microbatch": pa.array([n.microbatch for n in names.values()], pa.int64()),
        }
        named.add("derive_name", pa.table(operations))
        if not may_have_stages and not con.execute(_REPEATED).fetchall():
            return empty
        named.make("derive_range", _RANGES)
        named.make("derive_extent", _EXTENTS)
        named.make("derive_transfer", _TRANSFERS)
        coordinates = places_of_ranks(con, job, known, notes)
        if not coordinates:
            return empty
        places = {
            "rank": pa.array([c.rank for c in coordinates], pa.int32()),
            "pp_rank": pa.array([c.stage for c in coordinates], pa.int32()),
            "dp_rank": pa.array([c.replica for c in coordinates], pa.int32()),
        }
        named.add("derive_coordinate", pa.table(places))
        return arrow_table(con, _OPS)


def _may_have_stages(
    con: duckdb.DuckDBPyConnection,
    names: Iterable[RangeName],
    job: JobDescription | None,
    known: Mapping[int, int],
    has_messages: bool | None,
) -> bool:
    """Whether anything could tell one stage from another: most traces with a forward have none."""
    if known or any(n.stage is not None for n in names) or (job and job.parallelism.pp):
        return True
    if has_messages is None:
        # All of it: a result that is not read to its end keeps the connection from other work.
        asked = con.execute("FROM collective WHERE op IN ('send', 'recv') LIMIT 1")
        has_messages = bool(asked.fetchall())
    if has_messages:
        return True
    return bool(group_places(con)["pp"])


def _from_messages(
    con: duckdb.DuckDBPyConnection,
    context: pa.Table,
    steps: pa.Table,
    matches: pa.Table,
    job: JobDescription | None,
    corrections: Mapping[int, Correction],
    notes: list[str],
) -> pa.Table:
    """Operations of traces that name none (see ``unnamed``)."""
    import numpy as np
    import pyarrow as pa

    schema = table("pipeline_op").arrow_schema()
    with relations(con, derive_context=context, derive_step=steps, derive_match=matches):
        operations, stages = find_operations(con, notes, _stated_lines(job, context))
        groups = group_places(con) if operations else {}
    if not operations:
        return schema.empty_table()
    replicas = {c.rank: c.replica for c in placed(stages, groups, job, 1 + max(stages.values()))}
    places = {
        (row["capture_id"], row["rank"]): row
        for row in context.to_pylist()
        if row["rank"] is not None
    }

    source_ids = np.array([places[o.capture, o.rank]["source_id"] for o in operations], np.int64)
    starts, ends = (
        corrected(np.array(times, np.int64), source_ids, corrections).tolist()
        for times in ([o.start_ns for o in operations], [o.end_ns for o in operations])
    )
    # A send on the host ends when somebody asks for it: the receive tells when the data was there.
    received = {
        (*_wire(o, stage=o.stage), replicas[o.rank]): end_ns
        for o, end_ns in zip(operations, ends, strict=True)
        if o.operation.endswith("recv")
    }
    listed = []
    for operation, start_ns, own_end_ns in zip(operations, starts, ends, strict=True):
        end_ns = own_end_ns
        if operation.is_host and operation.operation.endswith("send"):
            ahead = 1 if operation.operation.startswith("forward") else -1
            wire = _wire(operation, stage=operation.stage + ahead)
            end_ns = max(start_ns, received.get((*wire, replicas[operation.rank]), start_ns))
        place = places[operation.capture, operation.rank]
        is_compute = operation.operation in (FORWARD, BACKWARD)
        listed.append(
            {
                "attempt": place["attempt"],
                "rank": operation.rank,
                "capture_id": operation.capture,
                "dp_rank": replicas[operation.rank],
                "pp_rank": operation.stage,
                "step": operation.step,
                "operation": operation.operation,
                "sequence": operation.sequence,
                "microbatch": operation.sequence if is_compute else None,
                "chunk": 0 if is_compute else None,
                "global_chunk": operation.stage if is_compute else None,
                "start_ns": start_ns,
                "end_ns": end_ns,
                "compute_ns": None,
            }
        )
    listed.sort(
        key=lambda r: (r["attempt"], r["capture_id"], r["step"], r["rank"], r["start_ns"],
                       r["operation"], r["sequence"])
    )  # fmt: skip
    notes.append(
        f"pipeline: {1 + max(stages.values())} stages, microbatches found from messages and"
        " kernels: the traces name none"
    )
    return pa.Table.from_pylist(listed, schema)


def _wire(operation: Operation, stage: int) -> tuple[int, int, str, int, int]:
    """What a message and its other end have in common; ``stage`` receives it."""
    way = operation.operation.partition("-")[0]
    return operation.capture, operation.step, way, operation.sequence, stage


def _stated_lines(job: JobDescription | None, context: pa.Table) -> list[list[int]]:
    """The ranks of each pipeline in the order of its stages, as job.toml lays them out: stages are
    blocks of ranks. Empty where it does not say."""
    if job is None or job.parallelism.pp is None:
        return []
    pp = job.parallelism.pp
    world = job.world_size or len(set(context["rank"].to_pylist()) - {None})
    if pp < 2 or world % pp:
        return []
    block = world // pp
    return [[first + stage * block for stage in range(pp)] for first in range(block)]
