"""Microbatch operations of pipeline stages: from timer files, or found in traces.

In a trace a microbatch is a range that the framework named (or, where it named none, what lies
between the messages of a stage: see ``unnamed``): torch pipelining (``PP:0F3``,
``Forward 3``), Megatron (``forward-compute``, ``weight_grad``, ``W3.0``), DeepSpeed
(``_exec_forward_pass``) or the loop's own ``pp_fwd mb3``. The range of an operation includes
waiting for its input, so its start and end are taken from the work inside it: the kernels that it
launched, or on a rank without a GPU the first and the last operator that is not communication.

Which stage a rank is, in order of trust: the stage in the range's name, a process group that is
named for the pipeline, the job description, and the order in which ranks begin their first
forward (the first and the last stage send and receive half as often as the others).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.correction import Correction, corrected, corrected_sql
from tracekit.derive.infer import group_dimension
from tracekit.derive.stage import relations
from tracekit.derive.unnamed import Operation, find_operations
from tracekit.schema import table
from tracekit.store import arrow_table
from tracekit.wording import plural, safe

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.derive.timer_jobs import TimerJob
    from tracekit.job import JobDescription

FORWARD, BACKWARD, WEIGHT = "forward-compute", "backward-compute", "weight-compute"
_TORCH_COMPUTE = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}
_TORCH = re.compile(r"PP:(\d+)(?:(SEND|RECV)_)?(F|B|I|W)(\d+)")
_NUMBERED = re.compile(
    r"(?:pp[_ -]?)?(f(?:or)?wa?r?d|b(?:ack)?wa?r?d)[_ -]*(?:pass|step|compute)?[_ :-]*"
    r"(?:mb|micro_?batch)?[_ :#-]*(\d+)",
    re.IGNORECASE,
)
_UNNUMBERED = re.compile(
    r"(?:[\w.]*\.)?_?(?:exec_)?(forward|backward)(?:[-_](?:compute|step|pass))?", re.IGNORECASE
)
# The weights' part of a split backward.
_WEIGHT = re.compile(
    r"(?:[\w.]*\.)?_?(?:exec_)?"
    r"(?:weight[-_]?grad(?:ient)?s?|wgrad|weight[-_]compute|"
    r"b(?:ack)?wa?r?d[-_](?:weights?|wgrad|dw))(?:[-_](?:compute|step|pass))?"
    r"(?:[_ :-]*(?:mb|micro_?batch)[_ :#-]*(\d+))?|Weight (\d+)",
    re.IGNORECASE,
)
# Zero-bubble Megatron: kind and microbatch, then chunk and part of the sequence.
_CHUNKED = re.compile(r"(F|BW?|W)(\d+)\.(\d+)(?:\.(\d+))?")
_CHUNKED_KINDS = {"F": FORWARD, "B": BACKWARD, "BW": BACKWARD, "W": WEIGHT}


@dataclass(frozen=True, slots=True)
class RangeName:
    """What the name of a range says of a pipeline operation."""

    operation: str
    stage: int | None = None
    microbatch: int | None = None


def read_name(name: str) -> RangeName | None:
    """What a range's name says; None where it is no pipeline operation."""
    torch = _TORCH.fullmatch(name)
    if torch:
        stage, direction, kind, microbatch = torch.groups()
        if direction is None:
            return RangeName(_TORCH_COMPUTE[kind], int(stage), int(microbatch))
        word = {"F": "forward", "B": "backward"}.get(kind)
        if word is None:
            return None
        return RangeName(f"{word}-{direction.lower()}", int(stage), int(microbatch))
    weight = _WEIGHT.fullmatch(name)
    if weight:
        microbatch = weight[1] or weight[2]
        return RangeName(WEIGHT, None, int(microbatch) if microbatch else None)
    chunked = _CHUNKED.fullmatch(name)
    if chunked:
        return (
            None if _is_part(name) else RangeName(_CHUNKED_KINDS[chunked[1]], None, int(chunked[2]))
        )
    numbered = _NUMBERED.fullmatch(name)
    if numbered:
        return RangeName(_kind(numbered[1]), None, int(numbered[2]))
    unnumbered = _UNNUMBERED.fullmatch(name)
    return RangeName(_kind(unnumbered[1])) if unnumbered else None


def _is_part(name: str) -> bool:
    """Whether a range is one of several chunks or parts: which stage that is, it does not say."""
    chunked = _CHUNKED.fullmatch(name)
    return chunked is not None and any(int(part) for part in chunked.groups()[2:] if part)


def _kind(word: str) -> str:
    return FORWARD if word[:1].lower() == "f" else BACKWARD


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
    import pyarrow as pa

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
    return pa.table([rows[f.name].cast(f.type) for f in schema], schema=schema)


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
# operator.
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
)
SELECT * FROM gpu UNION ALL SELECT * FROM own UNION ALL SELECT * FROM elsewhere
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

# Steps with two forwards or more and a backward to each, of all steps with ranges.
_ACCUMULATED = """
SELECT count(*) FILTER (forwards = backwards AND forwards > 1), count(*) FROM (
    SELECT source_id, step,
           count(*) FILTER (operation = 'forward-compute') AS forwards,
           count(*) FILTER (operation = 'backward-compute') AS backwards
    FROM derive_range WHERE is_compute GROUP BY source_id, step)
"""
MIN_ACCUMULATED_RATIO = 0.9
"""Of the steps: a window may cut the first and the last."""

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
        names = {n: found for n in seen if (found := read_name(n))}
        if not names:
            return empty
        parts = sorted(n for n in seen if _is_part(n))
        if parts:
            notes.append(
                f"pipeline: ranges such as {safe(parts[0])} name several chunks or parts a rank,"
                " but not their stages: no bubble is measured"
            )
            return empty
        may_have_stages = _may_have_stages(con, names.values(), job, known, has_messages)
        operations = {
            "name": list(names),
            "operation": [n.operation for n in names.values()],
            "stage": pa.array([n.stage for n in names.values()], pa.int32()),
            "microbatch": pa.array([n.microbatch for n in names.values()], pa.int64()),
        }
        named.add("derive_name", pa.table(operations))
        if not may_have_stages and not con.execute(_REPEATED).fetchall():
            return empty
        named.make("derive_range", _RANGES)
        named.make("derive_extent", _EXTENTS)
        named.make("derive_transfer", _TRANSFERS)
        coordinates = _coordinates(con, job, known, notes)
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
    return bool(_group_places(con.execute(_GROUPS).fetchall())["pp"])


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
        groups = _group_places(con.execute(_GROUPS).fetchall()) if operations else {}
    if not operations:
        return schema.empty_table()
    replicas = {c.rank: c.replica for c in _placed(stages, groups, job, 1 + max(stages.values()))}
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


# --- which stage a rank is ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A rank's place in the pipeline."""

    rank: int
    stage: int
    replica: int
    pp: int


_BEHAVIOUR = f"""
WITH transfers AS (
    SELECT source_id, count(*) AS transfers FROM derive_transfer GROUP BY source_id
), firsts AS (
    SELECT source_id, r.attempt, r.capture_id, r.step,
           min({corrected_sql("coalesce(e.start_ns, r.start_ns)", "c")}) AS start_ns
    FROM derive_range r
    JOIN derive_context c USING (source_id)
    LEFT JOIN derive_extent e USING (source_id, place)
    WHERE r.operation = 'forward-compute' GROUP BY ALL
), lags AS (
    SELECT source_id, median(start_ns - first_ns) AS lag_ns
    FROM (SELECT *, min(start_ns) OVER (PARTITION BY attempt, capture_id, step) AS first_ns
          FROM firsts)
    GROUP BY source_id
)
SELECT c.rank, coalesce(max(t.transfers), 0), min(l.lag_ns)
FROM derive_context c JOIN lags l USING (source_id) LEFT JOIN transfers t USING (source_id)
WHERE c.rank IS NOT NULL GROUP BY c.rank ORDER BY c.rank
"""  # noqa: S608 - what is put in is our own

_STAGES = """
SELECT rank, min(stage), count(DISTINCT stage) FROM derive_range WHERE stage IS NOT NULL
GROUP BY rank ORDER BY rank
"""

_GROUPS = """
SELECT c.rank, g.name, g.description, g.ranks FROM process_group g
JOIN derive_context c USING (source_id)
WHERE g.is_ranks_complete AND len(g.ranks) > 1 AND list_contains(g.ranks, c.rank)
"""


def _coordinates(
    con: duckdb.DuckDBPyConnection,
    job: JobDescription | None,
    known: Mapping[int, int],
    notes: list[str],
) -> list[Coordinate]:
    """The stage and replica of every rank with microbatches; none where this is no pipeline."""
    behaviour = con.execute(_BEHAVIOUR).fetchall()
    ranks = [int(rank) for rank, _, _ in behaviour]
    groups = _group_places(con.execute(_GROUPS).fetchall())
    stages, pp = _stages(con, ranks, groups, behaviour, job, known, notes)
    if pp < 2 and _is_one_stage(con, groups, behaviour, job):
        return _placed(dict.fromkeys(ranks, 0), groups, job, 1)
    return _placed(stages, groups, job, pp) if pp > 1 else []


def _is_one_stage(
    con: duckdb.DuckDBPyConnection,
    groups: Mapping[str, Mapping[int, tuple[int, int]]],
    behaviour: Sequence[tuple[int, int, float]],
    job: JobDescription | None,
) -> bool:
    """Whether this is no pipeline, and its steps are made of several microbatches."""
    stated = job.parallelism.pp if job is not None else None
    is_stated = stated == 1
    if (stated or 1) > 1 or any(size > 1 for _, size in groups["pp"].values()):
        return False
    if not is_stated and any(transfers for _, transfers, _ in behaviour):
        return False
    whole, every = con.execute(_ACCUMULATED).fetchall()[0]
    return bool(every and whole >= MIN_ACCUMULATED_RATIO * every)


def _placed(
    stages: Mapping[int, int],
    groups: Mapping[str, Mapping[int, tuple[int, int]]],
    job: JobDescription | None,
    pp: int,
) -> list[Coordinate]:
    """The replica of every rank: pipelines in order, each replica as wide as tp.

    Pipelines are told by their group, which names members without a trace too; else by the place in
    the stage, where stages are blocks of ranks; else ranks of a stage are counted.
    """
    tp = job.parallelism.tp if job and job.parallelism.tp else None
    world = job.world_size if job is not None and job.world_size else 0
    block = world // pp if world and world % pp == 0 else 0
    first = groups.get("first", {})
    firsts = sorted({first[r][0] for r in stages if r in first})
    result = []
    by_stage: dict[int, list[int]] = {}
    for rank in sorted(stages):
        by_stage.setdefault(stages[rank], []).append(rank)
    if pp > 1 and all(r in first for r in stages):
        places = {r: firsts.index(first[r][0]) for r in stages}
    elif pp > 1 and block and all(r // block == stage for r, stage in stages.items()):
        places = {r: r % block for r in stages}
    else:
        places = {r: i for members in by_stage.values() for i, r in enumerate(members)}
    for stage, members in by_stage.items():
        width = tp or max((groups["tp"][r][1] for r in members if r in groups["tp"]), default=1)
        result += [Coordinate(r, stage, places[r] // width, pp) for r in members]
    return result


def _group_places(rows: Iterable[Sequence[Any]]) -> dict[str, dict[int, tuple[int, int]]]:
    """Per dimension: rank -> its index within its group, and the group's size; under "first" the
    smallest member of its pipeline instead of the index."""
    places: dict[str, dict[int, tuple[int, int]]] = {"pp": {}, "tp": {}, "first": {}}
    for rank, name, description, ranks in rows:
        dimension = group_dimension(name, description)
        if dimension in ("pp", "tp"):
            places[dimension][rank] = (sorted(ranks).index(rank), len(ranks))
        if dimension == "pp":
            places["first"][rank] = (min(ranks), len(ranks))
    return places


def _stages(
    con: duckdb.DuckDBPyConnection,
    ranks: list[int],
    groups: dict[str, dict[int, tuple[int, int]]],
    behaviour: Sequence[tuple[int, int, float]],
    job: JobDescription | None,
    known: Mapping[int, int],
    notes: list[str],
) -> tuple[dict[int, int], int]:
    """Stage by rank, and the number of stages (0: unknown)."""
    named = {int(rank): (int(stage), int(chunks)) for rank, stage, chunks in _rows(con, _STAGES)}
    if named and set(named) == set(ranks):
        # A looped rank holds stages s, s + p, ...; a V-shaped one s and 2p - 1 - s: both the
        # smallest is its place.
        return {r: stage for r, (stage, _) in named.items()}, len({s for s, _ in named.values()})
    stated = job.parallelism.pp if job is not None else None
    if groups["pp"] and set(groups["pp"]) >= set(ranks):
        return {r: groups["pp"][r][0] for r in ranks}, max(n for _, n in groups["pp"].values())
    transfers = {rank: count for rank, count, _ in behaviour}
    if stated is None and not any(transfers.values()):
        return {}, 0
    world = job.world_size if job is not None and job.world_size else len(ranks)
    if stated is not None:
        if stated < 2 or world % stated or max(ranks) >= world:
            return {}, 0
        return {r: r // (world // stated) for r in ranks}, stated
    if set(known) >= set(ranks):
        return {r: known[r] for r in ranks}, len({known[r] for r in ranks})
    return _by_behaviour(behaviour, notes)


def _rows(con: duckdb.DuckDBPyConnection, statement: str) -> list[tuple[Any, ...]]:
    return con.execute(statement).fetchall()


def _by_behaviour(
    behaviour: Sequence[tuple[int, int, float]], notes: list[str]
) -> tuple[dict[int, int], int]:
    """Stages from who sends how often and who begins when."""
    counts = [count for _, count, _ in behaviour]
    edge = min(counts)
    edges = [c for c in counts if c < 1.25 * edge] if max(counts) >= 1.5 * edge else counts
    replicas = len(edges) // 2
    if edge == 0 or replicas == 0 or len(counts) % replicas:
        notes.append("pipeline: the traces name microbatches, and which rank is which stage"
                     " cannot be told; [parallelism] pp in job.toml would")  # fmt: skip
        return {}, 0
    pp = len(counts) // replicas
    in_order = [rank for rank, _, _ in sorted(behaviour, key=lambda b: (b[2], b[0]))]
    stages = {rank: position // replicas for position, rank in enumerate(in_order)}
    notes.append(
        f"pipeline: {pp} stages of {plural(replicas, 'rank')}, inferred from the order of first "
        "forwards"
    )
    return stages, pp
