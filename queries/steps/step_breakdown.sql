-- Where the time of each step of each rank went; the parts sum to the step.
--
-- The ground of the step budget: every nanosecond of a step is computation, communication that
-- nothing hides, copies that nothing hides, or idle. A step's window runs from its start on the
-- host to the start of the next step, or to its own end where the next step is not there. GPU work
-- is clipped to that window, so what a step launches late counts in the step during which it ran.
--
-- reads: step, gpu_op, host_op, collective, annotation
-- grain: attempt, rank, capture_id, step
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
WITH
    gpu_captures AS (
        SELECT DISTINCT attempt, rank, capture_id FROM gpu_op
    ),
    windows AS MATERIALIZED (
        SELECT
            {'attempt': attempt, 'rank': rank, 'capture_id': capture_id} AS key,
            step,
            coalesce(is_warmup, FALSE) AS is_warmup,
            coalesce(is_partial, FALSE) AS is_partial,
            start_ns,
            -- The next step counts only if it is the next in number: there may be a hole.
            CASE lead(step) OVER capture
                WHEN step + 1 THEN lead(start_ns) OVER capture
                ELSE start_ns + dur_ns
            END AS end_ns
        FROM step
        WINDOW capture AS (PARTITION BY attempt, rank, capture_id ORDER BY start_ns, step)
    ),
    blocking_calls AS (
        SELECT attempt, rank, capture_id, 'blocked' AS class, start_ns, start_ns + dur_ns AS end_ns
        FROM host_op
        SEMI JOIN gpu_captures USING (attempt, rank, capture_id)
        WHERE
            category IN ('runtime', 'driver')
            AND regexp_matches(name, 'Synchronize$|^(cuda|hip)Memcpy(WithStream)?$')
    ),
    work AS (
        SELECT attempt, rank, capture_id, class, start_ns, end_ns
        FROM rank_work('gpu_op', 'host_op', 'collective', 'annotation')
        UNION ALL
        SELECT attempt, rank, capture_id, class, start_ns, end_ns FROM blocking_calls
    ),
    class_rows AS (
        SELECT
            {
                'capture': {'attempt': attempt, 'rank': rank, 'capture_id': capture_id},
                'layer': class
            } AS key,
            start_ns,
            end_ns
        FROM work
    ),
    class_stretches AS MATERIALIZED (
        SELECT key, start_ns, end_ns FROM merged_intervals('class_rows')
    ),
    -- Each layer holds the one before, so differences of their times are the parts of a step.
    layer_rows AS (
        SELECT
            {
                'capture': key.capture,
                'layer': unnest(
                    CASE key.layer
                        WHEN 'blocked' THEN ['blocked']
                        WHEN 'compute' THEN ['compute', 'compute_or_comm', 'anything']
                        WHEN 'communication' THEN ['comm', 'compute_or_comm', 'anything']
                        ELSE ['anything']
                    END
                )
            } AS key,
            start_ns,
            end_ns
        FROM class_stretches
    ),
    layers AS (
        SELECT unnest(['compute', 'comm', 'compute_or_comm', 'anything', 'blocked']) AS layer
    ),
    edges AS (
        SELECT {'capture': key, 'layer': layer} AS key, unnest([start_ns, end_ns]) AS time_ns
        FROM windows
        CROSS JOIN layers
    ),
    distinct_edges AS (
        SELECT DISTINCT key, time_ns FROM edges
    ),
    covered AS MATERIALIZED (
        SELECT key, time_ns, covered_ns FROM covered_before('layer_rows', 'distinct_edges')
    ),
    step_layers AS (
        SELECT
            windows.key,
            step,
            at_start.key.layer AS layer,
            at_end.covered_ns - at_start.covered_ns AS layer_ns
        FROM windows
        INNER JOIN covered AS at_start
            ON at_start.key.capture = windows.key AND at_start.time_ns = windows.start_ns
        INNER JOIN covered AS at_end
            ON at_end.key = at_start.key AND at_end.time_ns = windows.end_ns
    ),
    step_times AS (
        SELECT
            key,
            step,
            max(layer_ns) FILTER (WHERE layer = 'compute') AS compute_ns,
            max(layer_ns) FILTER (WHERE layer = 'comm') AS comm_ns,
            max(layer_ns) FILTER (WHERE layer = 'compute_or_comm') AS compute_or_comm_ns,
            max(layer_ns) FILTER (WHERE layer = 'anything') AS busy_ns,
            max(layer_ns) FILTER (WHERE layer = 'blocked') AS host_blocked_ns
        FROM step_layers
        GROUP BY key, step
    )
SELECT
    windows.key.rank AS rank,
    windows.key.attempt AS attempt,
    windows.key.capture_id AS capture_id,
    windows.step,
    is_warmup,
    is_partial,
    windows.end_ns - windows.start_ns AS dur_ns,
    compute_ns,
    comm_ns,
    compute_or_comm_ns - compute_ns AS exposed_comm_ns,
    busy_ns - compute_or_comm_ns AS memory_ns,
    windows.end_ns - windows.start_ns - busy_ns AS idle_ns,
    host_blocked_ns,
    CASE WHEN gpu_captures.rank IS NULL THEN 'host' ELSE 'gpu' END AS measured_on
FROM windows
INNER JOIN step_times USING (key, step)
LEFT JOIN gpu_captures
    ON
        gpu_captures.attempt = windows.key.attempt
        AND gpu_captures.rank = windows.key.rank
        AND gpu_captures.capture_id = windows.key.capture_id
ORDER BY windows.key.attempt, windows.key.rank, windows.key.capture_id, windows.step;
