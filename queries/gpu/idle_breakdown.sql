-- Why devices and streams were idle between operations: waiting for the host, or for each other.
--
-- Idle time that the host causes is cured on the host, whatever the kernels look like. A pause ends
-- with the next operation: where that was launched after the pause began, the host was late
-- (host_wait); else, a short pause is the cost of starting a kernel (kernel_wait); the rest is
-- other (dependencies, launches that were not recorded). Rows without a stream are the device as a
-- whole: pauses of all its streams at once.
--
-- reads: gpu_op
-- grain: attempt, rank, device, stream
-- asked: report
-- param: kernel_wait_ns BIGINT = 30000 : Pauses shorter than this are kernel_wait, in ns.
--     HolisticTraceAnalysis says 30 ns and compares that 30 with microseconds: 30000 gives its
--     figures.
-- param: pause_ns BIGINT = 1000000 : Waits for the host from this long on are host_pause too, in
--     ns: a launch takes microseconds, so the host did something else.
-- column: rank INTEGER : Global rank.
-- column: device INTEGER : Device ordinal.
-- column: stream BIGINT : Stream; null for the device as a whole.
-- column: idle_count BIGINT : Pauses.
-- column: idle_ns BIGINT : Time of all pauses; the sum of the next three.
-- column: host_wait_ns BIGINT : Pauses that end with an operation launched after they began.
-- column: host_pause_ns BIGINT : The part of host_wait_ns in long waits.
-- column: kernel_wait_ns BIGINT : Other pauses, shorter than the parameter.
-- column: other_ns BIGINT : All other pauses.
-- column: host_wait_ratio DOUBLE : host_wait_ns / idle_ns; null without a pause.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- source: get_idle_time_breakdown of HolisticTraceAnalysis, for pauses after all that came before.
WITH
    lanes AS (
        SELECT
            attempt,
            rank,
            capture_id,
            device,
            unnest(CASE WHEN stream IS NULL THEN [NULL] ELSE [stream, NULL] END) AS stream,
            start_ns,
            start_ns + dur_ns AS end_ns,
            launch_start_ns
        FROM gpu_op
    ),
    operations AS (
        SELECT
            attempt,
            rank,
            device,
            stream,
            launch_start_ns,
            start_ns,
            max(end_ns) OVER (
                PARTITION BY hash(attempt, rank, capture_id, device, stream)
                -- Of operations that start together, the earliest launched ends the pause.
                ORDER BY start_ns, launch_start_ns NULLS LAST, end_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS idle_since_ns
        FROM lanes
    ),
    pauses AS (
        SELECT
            attempt,
            rank,
            device,
            stream,
            start_ns - idle_since_ns AS idle_ns,
            CASE
                WHEN launch_start_ns > idle_since_ns THEN 'host_wait'
                WHEN start_ns - idle_since_ns < $kernel_wait_ns THEN 'kernel_wait'
                ELSE 'other'
            END AS cause,
            -- The first operation has no pause before it, and still makes its lane a row.
            coalesce(start_ns > idle_since_ns, FALSE) AS is_pause
        FROM operations
    ),
    totals AS (
        SELECT
            attempt,
            rank,
            device,
            stream,
            count(*) FILTER (WHERE is_pause) AS idle_count,
            coalesce(sum(idle_ns) FILTER (WHERE is_pause), 0) AS idle_ns,
            coalesce(sum(idle_ns) FILTER (WHERE is_pause AND cause = 'host_wait'), 0)
                AS host_wait_ns,
            coalesce(
                sum(idle_ns) FILTER (
                    WHERE is_pause AND cause = 'host_wait' AND idle_ns >= $pause_ns
                ),
                0
            ) AS host_pause_ns,
            coalesce(sum(idle_ns) FILTER (WHERE is_pause AND cause = 'kernel_wait'), 0)
                AS kernel_wait_ns
        FROM pauses
        GROUP BY attempt, rank, device, stream
    )
SELECT
    rank,
    device,
    stream,
    idle_count,
    CAST(idle_ns AS BIGINT) AS idle_ns,
    CAST(host_wait_ns AS BIGINT) AS host_wait_ns,
    CAST(host_pause_ns AS BIGINT) AS host_pause_ns,
    CAST(kernel_wait_ns AS BIGINT) AS kernel_wait_ns,
    CAST(idle_ns - host_wait_ns - kernel_wait_ns AS BIGINT) AS other_ns,
    host_wait_ns / nullif(idle_ns, 0) AS host_wait_ratio,
    attempt
FROM totals
ORDER BY attempt, rank, device NULLS FIRST, stream NULLS FIRST;
