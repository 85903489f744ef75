-- How many slices a timeline of each step would draw: what must be cut when it is too large.
--
-- Host ranges belong to the step of their rank that began last before them. What began before a
-- rank's first step belongs to none and is counted under a null step.
--
-- reads: step, gpu_op, sync_op, host_op, annotation, collective
-- grain: capture_id, step, rank
-- column: capture_id INTEGER : Capture window, from 0.
-- column: step BIGINT : Job-level step; null for what lies before the first.
-- column: rank INTEGER : Global rank.
-- column: device_count BIGINT : Device operations, collectives on the host, and named ranges.
-- column: host_count BIGINT : Operators and runtime calls.
-- column: start_ns BIGINT : First start.
-- column: last_start_ns BIGINT : Last start.
WITH
    starts AS (
        SELECT capture_id, rank, source_id, start_ns, FALSE AS is_host FROM step
        UNION ALL
        SELECT capture_id, rank, source_id, start_ns, FALSE FROM gpu_op
        UNION ALL
        SELECT capture_id, rank, source_id, start_ns, FALSE FROM sync_op
        UNION ALL
        SELECT capture_id, rank, source_id, start_ns, FALSE
        FROM collective
        WHERE gpu_op_place IS NULL
        UNION ALL
        SELECT capture_id, rank, source_id, start_ns, FALSE
        FROM annotation
        WHERE domain <> 'profiler_step' AND NOT coalesce(is_gpu_twin, FALSE)
        UNION ALL
        SELECT capture_id, rank, source_id, start_ns, TRUE FROM host_op
    ),
    placed AS (
        SELECT starts.capture_id, starts.rank, starts.start_ns, is_host, step
        FROM starts
        ASOF LEFT JOIN (SELECT source_id, start_ns, max(step) AS step FROM step GROUP BY ALL) AS s
            ON s.source_id = starts.source_id AND s.start_ns <= starts.start_ns
        WHERE starts.start_ns IS NOT NULL AND starts.rank IS NOT NULL
    )
SELECT
    capture_id,
    step,
    rank,
    count(*) FILTER (NOT is_host) AS device_count,
    count(*) FILTER (is_host) AS host_count,
    min(start_ns) AS start_ns,
    max(start_ns) AS last_start_ns
FROM placed
GROUP BY capture_id, step, rank
ORDER BY capture_id, step, rank;
