-- Stretches of the job's history.

-- lost_stretches: Stalls and slow stretches of a log with clocks, those that lost most time.
--
-- With the time of the whole log, beside which they stand out. None where a file of it has times
-- without a known zero: nothing of other files can be laid beside it.
--
-- param: most_count BIGINT : How many at most.
-- reads: job_episode, logged_step, source_context, clock
-- columns: kind VARCHAR, first_step BIGINT, last_step BIGINT, start_ns BIGINT, end_ns BIGINT,
--     lost_ns BIGINT, usual_ns BIGINT, dur_ns BIGINT, log_start_ns BIGINT, log_end_ns BIGINT
CREATE OR REPLACE MACRO lost_stretches(most_count) AS TABLE
WITH
    of_log AS (
        SELECT
            min(line.end_ns - coalesce(line.wall_ns, 0)) AS log_start_ns,
            max(line.end_ns) AS log_end_ns,
            bool_and(coalesce(clock.basis, 'none') = 'epoch') AS is_epoch
        FROM logged_step AS line
        LEFT JOIN source_context AS context USING (source_id)
        LEFT JOIN clock USING (clock_id)
    )
SELECT
    kind, first_step, last_step, start_ns, end_ns, lost_ns, usual_ns, dur_ns,
    CAST(log_start_ns AS BIGINT) AS log_start_ns,
    CAST(log_end_ns AS BIGINT) AS log_end_ns
FROM job_episode
CROSS JOIN of_log
WHERE kind IN ('stall', 'slow') AND end_ns > start_ns AND is_epoch
QUALIFY row_number() OVER (ORDER BY lost_ns DESC NULLS LAST, first_step, kind, last_step)
    <= most_count;
