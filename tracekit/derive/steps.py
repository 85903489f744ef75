"""Training steps from the profiler's own markers (``ProfilerStep#N``).

``is_partial``: the step is cut. By the window (it reaches beyond it by more than 1 % of
itself), or because the profiler stopped in it (the last step of a file, under a tenth of the
median of the others), or because the file breaks off: then its last step is, and every step
with less than 90 % of the operations that the file's steps have in the median. Operations are
those of the GPU and the collectives of host threads; profilers write them thread by thread, so
that a file which breaks off may have lost those of most steps. The median therefore counts as no
less than half of what one step in ten reaches, and half the median of the job's whole files.

``is_warmup`` is decided for the job, so that all ranks agree: T_n is the longest complete step
n over the ranks of a capture. See ``warmup_count``.

``paced_start_ns`` and ``paced_end_ns``: a host that launches and never waits runs ahead of its
device until something makes it wait (a full queue, a loss that is printed every tenth step). Its
markers then last a tenth of what a step takes, or five times as long, and say nothing of the job.
The device works at the job's pace: a step lasts from when all that was launched before it is done
to when all that it launched is.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tracekit.derive.stage import relations
from tracekit.store import arrow_table

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

WARMUP_RATIO = 1.10
"""A warm-up step is slower than the steady median by more than this."""
BACK_RATIO = 0.75
"""Of what a step is longer: saves and pauses of one kind differ by a quarter in length; a first
step that compiles or allocates is several times as long as what comes back."""
WARMUP_WINDOW = 5
"""Steps of the rolling median."""
WARMUP_SHARE = 3
"""At most one step in so many is warm-up: a longer slow start is a change, not a warm-up."""

_STEPS = """
WITH marker AS (
    -- One row a step of a file: GPU twins are left out, repeated markers count once.
    SELECT source_id, step, start_ns, start_ns + dur_ns AS end_ns, dur_ns
    FROM annotation
    WHERE domain = 'profiler_step' AND NOT coalesce(is_gpu_twin, false)
      AND step IS NOT NULL AND start_ns IS NOT NULL AND dur_ns IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY source_id, step ORDER BY dur_ns DESC, start_ns, place) = 1
), gpu AS (
    SELECT source_id, step, min(start_ns) AS gpu_start_ns, max(start_ns + dur_ns) AS gpu_end_ns,
           count(*) AS operations,
           sum(dur_ns) FILTER (class = 'compute') AS compute_ns
    FROM gpu_op WHERE step IS NOT NULL AND start_ns IS NOT NULL AND dur_ns IS NOT NULL
    GROUP BY source_id, step
), host AS (
    SELECT source_id, step, count(*) AS operations
    FROM collective WHERE step IS NOT NULL AND timeline = 'host'
    GROUP BY source_id, step
), placed AS (
    SELECT c.attempt, c.rank, c.capture_id, m.*, g.gpu_start_ns, g.gpu_end_ns, g.compute_ns,
           s.window_start_ns, s.window_end_ns,
           coalesce(s.is_truncated_start, false) AS is_truncated_start,
           coalesce(s.is_truncated_end, false) AS is_truncated_end,
           coalesce(g.operations, 0) + coalesce(h.operations, 0) AS operations,
           row_number() OVER (PARTITION BY source_id ORDER BY m.start_ns DESC, step DESC) = 1
               AS is_last,
           count(*) OVER (PARTITION BY source_id) AS siblings
    FROM marker m
    JOIN derive_context c USING (source_id)
    JOIN source s USING (source_id)
    LEFT JOIN gpu g USING (source_id, step)
    LEFT JOIN host h USING (source_id, step)
), whole AS (
    SELECT attempt, median(operations) AS operations
    FROM placed WHERE NOT is_truncated_end GROUP BY attempt
), usual AS (
    SELECT source_id, median(dur_ns) FILTER (NOT is_last) AS dur_ns,
           greatest(
               median(p.operations), 0.5 * quantile_disc(p.operations, 0.9),
               0.5 * coalesce(any_value(w.operations), 0)) AS operations
    FROM placed p LEFT JOIN whole w USING (attempt)
    GROUP BY source_id
)
SELECT p.attempt, p.rank, p.capture_id, p.step, p.source_id, p.start_ns, p.end_ns, p.dur_ns,
       p.gpu_start_ns, p.gpu_end_ns, p.compute_ns,
       coalesce(
           p.window_start_ns - p.start_ns > 0.01 * p.dur_ns
           OR p.end_ns - p.window_end_ns > 0.01 * p.dur_ns, false)
       OR coalesce(p.is_truncated_start AND p.start_ns <= p.window_start_ns, false)
       OR (p.is_truncated_end AND (p.is_last OR p.operations < 0.9 * u.operations))
       OR (p.is_last AND p.siblings > 1 AND p.dur_ns < 0.1 * u.dur_ns) AS is_partial
FROM placed p JOIN usual u USING (source_id)
ORDER BY p.attempt, p.rank, p.capture_id, p.step
"""

AHEAD_RATIO = 0.1
"""Of the time of all steps, in which markers and device part them differently: behind its host a
device is always, and by about as much in every step."""
EVEN_RATIO = 0.5
"""Of the scatter of the markers, in that of the device's steps: more, and the device has uneven
steps itself, or what some step launched is no part of its pace (a copy that a save left)."""
BUSY_RATIO = 0.9
"""Of the device's steps, in kernels that compute: a device that never waits sets the pace, however
uneven its own steps are (an evaluation, longer inputs)."""
AHEAD_COUNT = 3
"""Steps behind another one that show it."""

_PACED = f"""
WITH done AS (
    SELECT *,
           max(gpu_end_ns) OVER (
               capture ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS done_ns,
           lag(step) OVER capture IS NOT DISTINCT FROM step - 1 AS follows,
           CASE lead(step) OVER capture WHEN step + 1 THEN lead(start_ns) OVER capture
               ELSE end_ns END - start_ns AS host_ns
    FROM derive_step
    WINDOW capture AS (PARTITION BY attempt, rank, capture_id ORDER BY step)
), lasted AS (
    SELECT *, lag(done_ns) OVER (PARTITION BY attempt, rank, capture_id ORDER BY step) AS before_ns
    FROM done
), moved AS (
    SELECT attempt, rank, host_ns, done_ns - before_ns AS device_ns, compute_ns
    FROM lasted WHERE follows
), ranks AS (
    SELECT attempt, rank,
           count(*) >= {AHEAD_COUNT} AND count(device_ns) = count(*)
           AND sum(abs(device_ns - host_ns)) >= {AHEAD_RATIO} * sum(host_ns)
           AND (stddev_pop(device_ns) <= {EVEN_RATIO} * stddev_pop(host_ns)
                OR sum(compute_ns) >= {BUSY_RATIO} * sum(device_ns)
                    AND sum(compute_ns) <= sum(device_ns)) AS is_ahead
    FROM moved GROUP BY attempt, rank
), ahead AS (
    -- Most ranks: where one is, the others wait for it in collectives.
    SELECT attempt FROM ranks GROUP BY attempt HAVING 2 * count(*) FILTER (is_ahead) >= count(*)
)
SELECT attempt, rank, capture_id, step, source_id, start_ns, end_ns, dur_ns, gpu_start_ns,
       gpu_end_ns, is_partial,
       if(is_paced, if(follows, before_ns, start_ns), NULL) AS paced_start_ns,
       if(is_paced, done_ns, NULL) AS paced_end_ns
FROM (
    SELECT *, done_ns IS NOT NULL AND attempt IN (FROM ahead) AS is_paced FROM lasted
)
ORDER BY attempt, rank, capture_id, step
"""  # noqa: S608  # its constants are ours

_LONGEST = """
SELECT attempt, capture_id, list(step ORDER BY step), list(longest ORDER BY step)
FROM (SELECT attempt, capture_id, step, max(coalesce(paced_end_ns - paced_start_ns, dur_ns))
          AS longest
      FROM derive_paced WHERE NOT is_partial GROUP BY ALL)
GROUP BY attempt, capture_id ORDER BY attempt, capture_id
"""


def warmup_count(durations: Sequence[float]) -> int:
    """How many of the first steps are warm-up; durations in order, in any unit.

    The steady median is that of the last half. The limit is 1.10 times it, or it plus three
    times the scaled median absolute deviation (1.4826 MAD) of that half if that is more: where
    steps scatter, the first is nothing special. k is the first step at which the median of five
    steps is within the limit, moved on over steps that are themselves beyond it. If k is more
    than a third of the steps, this is no warm-up and 0 is returned. Nor is a step one that a later
    step equals (within a tenth), or comes within a quarter of, counted from the steady median: it
    is not the beginning that makes such steps long, but what comes back, and a fault that struck
    the first step too must not be thrown out with it.

    With five steps or fewer only the first can be one: when there are three or more, and it is over
    1.10 times each of the others.
    """
    n = len(durations)
    if n < 3:
        return 0
    if n <= WARMUP_WINDOW:
        first, rest = durations[0], durations[1:]
        return int(first > WARMUP_RATIO * max(rest))
    late = durations[n // 2 :]
    steady = statistics.median(late)
    scatter = 1.4826 * statistics.median(abs(d - steady) for d in late)
    limit = max(WARMUP_RATIO * steady, steady + 3 * scatter)
    most = n // WARMUP_SHARE
    k = 0
    while k <= most and statistics.median(durations[k : k + WARMUP_WINDOW]) > limit:
        k += 1
    while k <= most and durations[k] > limit:
        k += 1
    if k > most:
        return 0
    while k and _comes_back(durations[k - 1], max(durations[k:]), steady):
        k -= 1
    return k


def _comes_back(first: float, later: float, steady: float) -> bool:
    """Whether what made an early step long makes the longest later one so too."""
    return first <= WARMUP_RATIO * later or later - steady >= BACK_RATIO * (first - steady)


def warm_steps(
    longest: Mapping[tuple[int, int], Mapping[int, float]],
) -> set[tuple[int, int, int]]:
    """Attempt, capture and number of warm-up steps.

    ``longest``: by attempt and capture, the duration of each step on the rank that took longest.
    """
    return {
        (*key, number)
        for key, durations in longest.items()
        for number in sorted(durations)[: warmup_count([durations[n] for n in sorted(durations)])]
    }


def derive_steps(con: duckdb.DuckDBPyConnection, context: pa.Table) -> pa.Table:
    """The rows of ``step``. ``context`` holds source_id, attempt, rank, capture_id of the
    sources that are a rank's own trace."""
    import pyarrow as pa

    from tracekit import arrays
    from tracekit.schema import table

    with relations(con, derive_context=context) as named:
        steps = arrow_table(con, _STEPS)
        named.add("derive_step", steps)
        steps = arrow_table(con, _PACED)
        named.add("derive_paced", steps)
        longest = con.execute(_LONGEST).fetchall()
    warm = warm_steps({(a, c): dict(zip(numbers, d, strict=True)) for a, c, numbers, d in longest})
    keys = zip(*(steps[c].to_pylist() for c in ("attempt", "capture_id", "step")), strict=True)
    count = steps.num_rows
    columns = {name: steps[name] for name in steps.column_names}
    columns["file_step"] = columns["step"]
    columns["is_warmup"] = pa.array([k in warm for k in keys], pa.bool_())
    columns["step_source"] = pa.array(["annotation"] * count, pa.string())
    return arrays.shaped(columns, table("step").arrow_schema())
