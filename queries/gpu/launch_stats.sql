-- How each rank's launches kept up with its device.
--
-- A device that always finds work in its queue is not held up by its host. The queue delay says how
-- long operations lay in the queue; the launch-bound share how many found it empty, because their
-- launch began only after everything before on their stream had ended.
--
-- reads: gpu_op, host_op
-- grain: attempt, rank
-- column: rank INTEGER : Global rank.
-- column: ops_count BIGINT : Device operations.
-- column: launched_count BIGINT : Those whose launch was recorded; the rest counts in nothing
--     below.
-- column: launch_p50_ns DOUBLE : Median duration of the launch call.
-- column: queue_delay_mean_ns DOUBLE : Mean time from the end of the launch call to the start of
--     the operation, at least 0.
-- column: queue_delay_p50_ns DOUBLE : Median of the same.
-- column: queue_delay_max_ns BIGINT : Longest of the same.
-- column: launch_bound_count BIGINT : Operations launched after their stream had run empty.
-- column: launch_bound_ratio DOUBLE : launch_bound_count over those that have a predecessor on
--     their stream; null without any.
-- column: short_count BIGINT : Operations that ran shorter than their own launch call.
-- column: short_ratio DOUBLE : short_count / launched_count; null without any.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: operators_count BIGINT : Operators that the profiler recorded on the rank's host.
-- column: calls_count BIGINT : CUDA or HIP calls that it did; each record takes time of the host.
-- source: get_cuda_kernel_launch_stats of HolisticTraceAnalysis for short operations and the delay.
WITH
    operations AS (
        SELECT
            attempt,
            rank,
            launch_start_ns,
            launch_end_ns - launch_start_ns AS launch_ns,
            greatest(start_ns - launch_end_ns, 0) AS queue_delay_ns,
            dur_ns,
            max(start_ns + dur_ns) OVER (
                PARTITION BY hash(attempt, rank, capture_id, device, stream)
                ORDER BY start_ns, launch_start_ns NULLS LAST, dur_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS stream_empty_ns
        FROM gpu_op
    ),
    totals AS (
        SELECT
            attempt,
            rank,
            count(*) AS ops_count,
            count(launch_start_ns) AS launched_count,
            quantile_cont(launch_ns, 0.5) AS launch_p50_ns,
            avg(queue_delay_ns) FILTER (WHERE launch_start_ns IS NOT NULL) AS queue_delay_mean_ns,
            quantile_cont(queue_delay_ns, 0.5) FILTER (WHERE launch_start_ns IS NOT NULL)
                AS queue_delay_p50_ns,
            max(queue_delay_ns) FILTER (WHERE launch_start_ns IS NOT NULL) AS queue_delay_max_ns,
            count(*) FILTER (WHERE launch_start_ns > stream_empty_ns) AS launch_bound_count,
            count(*) FILTER (WHERE launch_start_ns IS NOT NULL AND stream_empty_ns IS NOT NULL)
                AS followers_count,
            count(*) FILTER (WHERE dur_ns < launch_ns) AS short_count
        FROM operations
        GROUP BY attempt, rank
    ),
    recorded AS (
        SELECT
            attempt,
            rank,
            count(*) FILTER (WHERE category = 'operator') AS operators_count,
            count(*) FILTER (WHERE category IN ('runtime', 'driver')) AS calls_count
        FROM host_op
        GROUP BY attempt, rank
    )
SELECT
    rank,
    ops_count,
    launched_count,
    launch_p50_ns,
    queue_delay_mean_ns,
    queue_delay_p50_ns,
    queue_delay_max_ns,
    launch_bound_count,
    launch_bound_count / nullif(followers_count, 0) AS launch_bound_ratio,
    short_count,
    short_count / nullif(launched_count, 0) AS short_ratio,
    attempt,
    coalesce(operators_count, 0) AS operators_count,
    coalesce(calls_count, 0) AS calls_count
FROM totals
LEFT JOIN recorded USING (attempt, rank)
ORDER BY attempt, rank;
