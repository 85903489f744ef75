-- Launches of device work whose work is in no table: kernels that the profiler lost.
--
-- A buffer that overflowed, a profiler that counted instead of tracing, a file without its device
-- half: the host is seen launching and the device seems idle. Who waits, who is late and how much
-- runs on such a rank cannot be said. Launches that a graph captures run with the graph and are
-- left out where the calls around the capture were recorded. Kineto waits for the device before it
-- stops; Nsight Systems does not, so of its captures as many launches after the last one that has
-- work as a device's queue holds are work that had not ended. So are as many of any capture that
-- goes on for long after its last launch: it shows a job that stands still, in calls that do not
-- end. Ranks without a loss are not listed.
--
-- reads: host_op, gpu_op, source
-- needs: host_op
-- grain: attempt, rank
-- asked: report
-- param: queue_count BIGINT = 1024 : Launches that a device's queue holds.
-- param: still_ns BIGINT = 30000000000 : Silence after the last launch that no working job has.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: rank INTEGER : Global rank.
-- column: launches_count BIGINT : Launches of kernels and graphs with a correlation.
-- column: lost_count BIGINT : Those of them without an operation on a device.
-- column: lost_ratio DOUBLE : The same over launches_count, 0..1; 1 where the device half is gone.
WITH launch_calls AS (
    -- A runtime call and the driver call inside it may share a correlation: one launch.
    SELECT attempt, rank, source_id, correlation, min(thread) AS thread, min(start_ns) AS start_ns
    FROM host_op
    WHERE
        category IN ('runtime', 'driver')
        AND correlation IS NOT NULL
        AND rank IS NOT NULL
        AND regexp_matches(
            name, '^(cuda|cu|hip)\w*(LaunchKernel|LaunchCooperativeKernel|GraphLaunch)'
        )
    GROUP BY attempt, rank, source_id, correlation
),

capture_marks AS (
    SELECT
        source_id,
        thread,
        start_ns,
        regexp_matches(name, 'StreamBeginCapture') AS is_capturing
    FROM host_op
    WHERE
        contains(name, 'Capture')  -- cheaper than a pattern, and few have it
        AND regexp_matches(name, '^(cuda|cu|hip)StreamBeginCapture|^(cuda|cu|hip)StreamEndCapture')
),

launches AS (
    SELECT l.attempt, l.rank, l.source_id, l.correlation, l.start_ns
    FROM launch_calls AS l
    ASOF LEFT JOIN capture_marks AS m
        ON l.source_id = m.source_id AND l.thread = m.thread AND l.start_ns >= m.start_ns
    WHERE NOT coalesce(m.is_capturing, FALSE)
),

worked AS (
    SELECT DISTINCT source_id, correlation FROM gpu_op WHERE correlation IS NOT NULL
),

placed AS (
    SELECT
        l.attempt,
        l.rank,
        l.source_id,
        l.start_ns,
        w.correlation IS NULL AS is_lost,
        max(l.start_ns) FILTER (w.correlation IS NOT NULL) OVER (
            PARTITION BY l.source_id, l.rank
        ) AS last_worked_ns
    FROM launches AS l
    LEFT JOIN worked AS w ON l.source_id = w.source_id AND l.correlation = w.correlation
),

counted AS (
    SELECT
        attempt,
        rank,
        source_id,
        count(*) AS launches_count,
        count(*) FILTER (is_lost) AS lost_count,
        count(*) FILTER (is_lost AND start_ns > last_worked_ns) AS tail_count,
        max(start_ns) AS last_ns
    FROM placed
    GROUP BY attempt, rank, source_id
),

judged AS (
    SELECT
        c.attempt,
        c.rank,
        c.launches_count,
        c.lost_count
        - CASE
            -- Other streams may have gone on for a while after the first that stands.
            WHEN s.window_end_ns - c.last_ns >= $still_ns AND c.lost_count <= $queue_count
                THEN c.lost_count
            WHEN s.kind = 'nsys' AND c.tail_count <= $queue_count THEN c.tail_count
            ELSE 0
        END AS lost_count
    FROM counted AS c
    INNER JOIN source AS s ON c.source_id = s.source_id
)

SELECT
    attempt,
    rank,
    CAST(sum(launches_count) AS BIGINT) AS launches_count,
    CAST(sum(lost_count) AS BIGINT) AS lost_count,
    sum(lost_count) / sum(launches_count) AS lost_ratio
FROM judged
GROUP BY attempt, rank
HAVING sum(lost_count) > 0
ORDER BY attempt, rank;
