-- Where the time of each step of each rank went; the parts sum to the step.
--
-- The ground of the step budget: every nanosecond of a step is computation, communication that
-- nothing hides, copies that nothing hides, or idle. A step's window runs from its start on the
-- host to the start of the next step, or to its own end where the next step is not there. GPU work
-- is clipped to that window, so what a step launches late counts in the step during which it ran.
--
-- reads: step, gpu_op, host_op, collective, annotation
-- grain: attempt, rank, capture_id, step
-- asked: report
-- param: over VARCHAR = 'steps' | 'windows' : 'windows': where nothing marks steps, the two
--     halves (0, 1) of what each capture shows of the device, from first launch to last end.
-- column: rank INTEGER : Global rank.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: step BIGINT : Job-level step.
-- column: is_warmup BOOLEAN : Before the job is steady.
-- column: is_partial BOOLEAN : Cut by the window.
-- column: dur_ns BIGINT : Length of the step's window in ns: the sum of compute_ns,
--     exposed_comm_ns, memory_ns and idle_ns.
-- column: compute_ns BIGINT : Time with computation running.
-- column: comm_ns BIGINT : Time with communication running, hidden or not.
-- column: exposed_comm_ns BIGINT : Time with communication and no computation running.
-- column: memory_ns BIGINT : Time with copies or other device work and neither of the two.
-- column: idle_ns BIGINT : Time with nothing running.
-- column: host_blocked_ns BIGINT : Time with a host thread blocked: in a synchronising or copying
--     runtime call, or without GPU operations waiting for a collective. It runs beside the parts.
-- column: measured_on VARCHAR : gpu, or host where the rank has no GPU operations.
-- column: start_ns BIGINT : Start of the window, on the job's clock.
WITH
    gpu_ranks AS (
        SELECT DISTINCT attempt, rank FROM gpu_op
    ),
    windows AS MATERIALIZED (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            step,
            is_warmup,
            is_partial,
            start_ns,
            end_ns
        FROM step_windows()
        WHERE $over = 'steps'
        UNION ALL
        SELECT capture_key(attempt, rank, capture_id), step, FALSE, FALSE, start_ns, end_ns
        FROM window_halves()
        WHERE $over = 'windows'
    ),
    blocking_calls AS (
        SELECT attempt, rank, capture_id, 'blocked' AS class, start_ns, start_ns + dur_ns AS end_ns
        FROM host_op
        SEMI JOIN gpu_ranks USING (attempt, rank)
        WHERE
            category IN ('runtime', 'driver')
            AND (
                ends_with(name, 'Synchronize')
                OR name IN ('cudaMemcpy', 'hipMemcpy', 'hipMemcpyWithStream')
            )
    ),
    -- Layers are the low bits of a capture's key: 1 computation, 2 communication, 3 either of the
    -- two, 4 anything at all, 5 the host blocked.
    host_rows AS (
        SELECT
            capture_key(attempt, rank, capture_id)
            + CASE class WHEN 'compute' THEN 1 WHEN 'communication' THEN 2 ELSE 5 END AS key,
            start_ns,
            end_ns
        FROM (
            SELECT attempt, rank, capture_id, class, start_ns, end_ns
            FROM host_work('gpu_op', 'host_op')
            UNION ALL
            SELECT attempt, rank, capture_id, class, start_ns, end_ns FROM blocking_calls
        )
    ),
    host_stretches AS MATERIALIZED (
        SELECT key, start_ns, end_ns FROM merged_intervals('host_rows')
    ),
    class_stretches AS (
        SELECT key + layer AS key, start_ns, end_ns
        FROM device_stretches()
        WHERE layer IN (1, 2)
        UNION ALL
        SELECT key, start_ns, end_ns FROM host_stretches WHERE key & 15 <> 5
    ),
    either AS (
        SELECT (key & -16) + 3 AS key, start_ns, end_ns FROM class_stretches
    ),
    either_stretches AS MATERIALIZED (
        SELECT key, start_ns, end_ns FROM merged_intervals('either')
    ),
    layer_stretches AS (
        SELECT key, start_ns, end_ns FROM class_stretches
        UNION ALL
        SELECT key, start_ns, end_ns FROM either_stretches
        UNION ALL
        SELECT key + 4, start_ns, end_ns FROM device_stretches() WHERE layer = 0
        UNION ALL
        SELECT key + 1, start_ns, end_ns
        FROM either_stretches
        ANTI JOIN gpu_ranks
            ON gpu_ranks.attempt = attempt_of(key) AND gpu_ranks.rank = rank_of(key)
        UNION ALL
        SELECT key, start_ns, end_ns FROM host_stretches WHERE key & 15 = 5
    ),
    edges AS (
        SELECT key + layer AS key, unnest([start_ns, end_ns]) AS time_ns
        FROM windows
        CROSS JOIN range(1, 6) AS layers (layer)
    ),
    covered AS MATERIALIZED (
        SELECT key, time_ns, covered_ns FROM covered_before('layer_stretches', 'edges')
    ),
    step_layers AS (
        SELECT
            windows.key,
            step,
            at_start.key & 15 AS layer,
            at_end.covered_ns - at_start.covered_ns AS layer_ns
        FROM windows
        INNER JOIN covered AS at_start
            ON at_start.key & -16 = windows.key AND at_start.time_ns = windows.start_ns
        INNER JOIN covered AS at_end
            ON at_end.key = at_start.key AND at_end.time_ns = windows.end_ns
    ),
    -- Each layer but the host's holds the one before: differences are the parts of a step.
    step_times AS (
        SELECT
            key,
            step,
            max(layer_ns) FILTER (WHERE layer = 1) AS compute_ns,
            max(layer_ns) FILTER (WHERE layer = 2) AS comm_ns,
            max(layer_ns) FILTER (WHERE layer = 3) AS either_ns,
            max(layer_ns) FILTER (WHERE layer = 4) AS busy_ns,
            max(layer_ns) FILTER (WHERE layer = 5) AS host_blocked_ns
        FROM step_layers
        GROUP BY key, step
    )
SELECT
    rank_of(windows.key) AS rank,
    attempt_of(windows.key) AS attempt,
    capture_id_of(windows.key) AS capture_id,
    windows.step,
    is_warmup,
    is_partial,
    windows.end_ns - windows.start_ns AS dur_ns,
    compute_ns,
    comm_ns,
    either_ns - compute_ns AS exposed_comm_ns,
    busy_ns - either_ns AS memory_ns,
    windows.end_ns - windows.start_ns - busy_ns AS idle_ns,
    host_blocked_ns,
    CASE WHEN gpu_ranks.rank IS NULL THEN 'host' ELSE 'gpu' END AS measured_on,
    windows.start_ns
FROM windows
INNER JOIN step_times USING (key, step)
LEFT JOIN gpu_ranks
    ON gpu_ranks.attempt = attempt_of(windows.key) AND gpu_ranks.rank = rank_of(windows.key)
ORDER BY attempt_of(windows.key), rank_of(windows.key), capture_id_of(windows.key), windows.step;
