-- How much of each rank's device time was computation, other work, and nothing.
--
-- The first look at a slow rank: too much idle time points to the host, too much other work to
-- communication or copies. Times are unions over all streams; captures are added up.
--
-- reads: gpu_op
-- grain: attempt, rank
-- column: rank INTEGER : Global rank.
-- column: span_ns BIGINT : From the first start to the last end; the sum of the next three.
-- column: compute_ns BIGINT : Time with computation running.
-- column: noncompute_ns BIGINT : Time with other device work and no computation running.
-- column: idle_ns BIGINT : Time with nothing running.
-- column: compute_ratio DOUBLE : compute_ns / span_ns; null where the span is empty.
-- column: noncompute_ratio DOUBLE : noncompute_ns / span_ns.
-- column: idle_ratio DOUBLE : idle_ns / span_ns.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- source: get_temporal_breakdown of HolisticTraceAnalysis.
WITH
    operations AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            class,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM gpu_op
    ),
    compute AS (SELECT key, start_ns, end_ns FROM operations WHERE class = 'compute'),
    spans AS (
        SELECT key, max(end_ns) - min(start_ns) AS span_ns FROM operations GROUP BY key
    ),
    rank_times AS (
        SELECT
            attempt_of(key) AS attempt,
            rank_of(key) AS rank,
            CAST(sum(span_ns) AS BIGINT) AS span_ns,
            CAST(sum(coalesce(compute_time.busy_ns, 0)) AS BIGINT) AS compute_ns,
            CAST(sum(coalesce(any_time.busy_ns, 0)) AS BIGINT) AS busy_ns
        FROM spans
        LEFT JOIN busy_time('compute') AS compute_time USING (key)
        LEFT JOIN busy_time('operations') AS any_time USING (key)
        GROUP BY attempt_of(key), rank_of(key)
    )
SELECT
    rank,
    span_ns,
    compute_ns,
    busy_ns - compute_ns AS noncompute_ns,
    span_ns - busy_ns AS idle_ns,
    compute_ns / nullif(span_ns, 0) AS compute_ratio,
    (busy_ns - compute_ns) / nullif(span_ns, 0) AS noncompute_ratio,
    (span_ns - busy_ns) / nullif(span_ns, 0) AS idle_ratio,
    attempt
FROM rank_times
ORDER BY attempt, rank;
