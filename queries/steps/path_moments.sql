-- What each rank had done by every moment at which the critical path may reach or leave it.
--
-- The path of a step runs from the rank that ends it last back to its start, over whoever was
-- waited for. Between two moments of a rank the differences of these columns say what the path went
-- through, exactly; the rest of the time the rank was idle. Moments are the ends of steps, of the
-- job's steps, of ranges of the training loop and of calls that something waited for.
--
-- reads: annotation, collective, collective_match, comm_group, clock_offset, clock_pair, gpu_op,
--     host_op, step, pipeline_op
-- grain: attempt, rank, capture_id, time_ns
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: time_ns BIGINT : Moment, on the job's clock.
-- column: compute_ns BIGINT : Time with computation running until then.
-- column: exposed_comm_ns BIGINT : Time with communication and no computation running.
-- column: memory_ns BIGINT : Time with copies or other device work and neither of the two.
WITH
    windows AS MATERIALIZED (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            attempt,
            capture_id,
            step,
            is_partial,
            start_ns,
            end_ns
        FROM step_windows()
        WHERE start_ns IS NOT NULL
    ),
    captures AS (SELECT DISTINCT key, attempt, capture_id FROM windows),
    job_windows AS (
        SELECT attempt, capture_id, max(start_ns) AS start_ns, max(end_ns) AS end_ns
        FROM windows
        WHERE NOT is_partial
        GROUP BY attempt, capture_id, step
    ),
    waited AS MATERIALIZED (
        SELECT capture_key(attempt, rank, capture_id) AS key, * FROM path_calls()
    ),
    moments AS MATERIALIZED (
        SELECT key, unnest([start_ns, end_ns]) AS time_ns FROM windows
        UNION
        SELECT key, unnest([job_windows.start_ns, job_windows.end_ns])
        FROM job_windows
        JOIN captures USING (attempt, capture_id)
        UNION
        SELECT key, unnest([start_ns, exposed_start_ns, end_ns]) FROM waited
        UNION
        SELECT capture_key(attempt, holder_rank, capture_id), holder_start_ns
        FROM waited
        WHERE holder_rank IS NOT NULL
        UNION
        SELECT capture_key(attempt, rank, capture_id), unnest([start_ns, end_ns])
        FROM path_ranges()
    ),
    -- Layers are the low bits of a capture's key, each holding the one before: 1 computation,
    -- 2 that or communication, 3 anything at all.
    class_rows AS (
        SELECT
            capture_key(attempt, rank, capture_id)
            + CASE class WHEN 'compute' THEN 1 WHEN 'communication' THEN 2 ELSE 3 END AS key,
            start_ns,
            end_ns
        FROM rank_work('gpu_op', 'host_op')
        WHERE class <> 'blocked' OR class IS NULL
    ),
    class_stretches AS MATERIALIZED (
        SELECT key, start_ns, end_ns FROM merged_intervals('class_rows')
    ),
    layers AS (
        SELECT key & -16 AS key, key & 15 AS class, start_ns, end_ns FROM class_stretches
    ),
    layer_rows AS (
        SELECT key + layer AS key, start_ns, end_ns
        FROM layers
        JOIN range(1, 4) AS numbers (layer) ON layer >= class
    ),
    layer_stretches AS (
        SELECT key, start_ns, end_ns FROM merged_intervals('layer_rows')
    ),
    edges AS (
        SELECT key + layer AS key, time_ns
        FROM moments
        CROSS JOIN range(1, 4) AS numbers (layer)
    ),
    covered AS (
        SELECT key & -16 AS key, key & 15 AS layer, time_ns, covered_ns
        FROM covered_before('layer_stretches', 'edges')
    ),
    sums AS (
        SELECT
            key,
            time_ns,
            max(covered_ns) FILTER (layer = 1) AS compute_ns,
            max(covered_ns) FILTER (layer = 2) AS either_ns,
            max(covered_ns) FILTER (layer = 3) AS busy_ns
        FROM covered
        GROUP BY key, time_ns
    )
SELECT
    attempt_of(key) AS attempt,
    rank_of(key) AS rank,
    capture_id_of(key) AS capture_id,
    time_ns,
    compute_ns,
    either_ns - compute_ns AS exposed_comm_ns,
    busy_ns - either_ns AS memory_ns
FROM sums
WHERE key IN (SELECT key FROM captures)
ORDER BY attempt_of(key), rank_of(key), capture_id_of(key), time_ns;
