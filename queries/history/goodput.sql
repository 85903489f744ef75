-- Where the job's time went by its training log: in steps, in stalls, in restarts.
--
-- The parts add up to the time from the first to the last line, and what the job stood still behind
-- that until it was ended. What happens before the first line of the first start is in no log.
--
-- reads: logged_step, job_episode, run
-- needs: logged_step
-- grain: part
-- param: gpus_count INTEGER = 0 : GPUs of the job, for GPU-hours; 0: the traces' ranks.
-- column: part VARCHAR : productive (steps at the usual level), slow (what slow stretches take
--     more), periodic (stalls at one distance: checkpoints, evaluations), stalled (other stalls,
--     and silence before the end),
--     repeated (steps done again), down (no step at restarts).
-- column: spent_ns BIGINT : Time in it.
-- column: spent_ratio DOUBLE : Share of the whole time.
-- column: gpu_hours DOUBLE : All GPUs' hours in it; null where their number is unknown.
WITH
    whole AS (
        SELECT
            coalesce(
                max(end_ns) - min(end_ns),
                CAST(sum(CAST(dur_ns AS DOUBLE) * steps_count) AS BIGINT)
            ) + coalesce((SELECT sum(lost_ns) FROM job_episode WHERE kind = 'silence'), 0)
                AS spent_ns
        FROM logged_step
    ),
    lost AS (
        SELECT
            kind,
            CAST(sum(lost_ns) AS BIGINT) AS lost_ns,
            CAST(sum(CAST(repeated_count AS DOUBLE) * usual_ns) AS BIGINT) AS again_ns
        FROM job_episode
        WHERE lost_ns > 0 AND EXISTS (SELECT 1 FROM logged_step)
        GROUP BY kind
    ),
    parts AS (
        SELECT kind AS part, lost_ns AS spent_ns FROM lost WHERE kind IN ('slow', 'periodic')
        UNION ALL
        SELECT 'stalled', sum(lost_ns) FROM lost WHERE kind IN ('stall', 'silence')
        UNION ALL
        SELECT 'repeated', least(again_ns, lost_ns) FROM lost WHERE kind = 'restart'
        UNION ALL
        SELECT 'down', greatest(lost_ns - again_ns, 0) FROM lost WHERE kind = 'restart'
    ),
    told AS (
        FROM parts
        UNION ALL
        SELECT 'productive', greatest(spent_ns - (SELECT coalesce(sum(spent_ns), 0) FROM parts), 0)
        FROM whole
        WHERE spent_ns IS NOT NULL
    ),
    gpus AS (
        SELECT coalesce(nullif($gpus_count, 0), (SELECT max(world_size) FROM run)) AS gpus_count
    )
SELECT
    told.part,
    CAST(told.spent_ns AS BIGINT) AS spent_ns,
    told.spent_ns / nullif(sum(told.spent_ns) OVER (), 0) AS spent_ratio,
    told.spent_ns * gpus.gpus_count / 3.6e12 AS gpu_hours
FROM told
CROSS JOIN gpus
WHERE told.spent_ns > 0
ORDER BY told.part;
