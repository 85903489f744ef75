-- Stretches of the job's history.

-- lost_stretches: Stalls and slow stretches of a log with clocks, those that lost most time.
--
-- With the time of the whole log, beside which they stand out, and from what its times count: from
-- the epoch, or all in local time, beside which files in local time can be laid as if all were of
-- one zone. None where its files differ in that, or count from elsewhere.
--
-- param: most_count BIGINT : How many at most.
-- reads: job_episode, logged_step, source_context, clock
-- columns: kind VARCHAR, first_step BIGINT, last_step BIGINT, start_ns BIGINT, end_ns BIGINT,
--     lost_ns BIGINT, usual_ns BIGINT, dur_ns BIGINT, log_start_ns BIGINT, log_end_ns BIGINT,
--     basis VARCHAR
CREATE OR REPLACE MACRO lost_stretches(most_count) AS TABLE
WITH
    of_log AS (
        SELECT
            min(line.end_ns - coalesce(line.wall_ns, 0)) AS log_start_ns,
            max(line.end_ns) AS log_end_ns,
            min(coalesce(clock.basis, 'none')) AS basis,
            max(coalesce(clock.basis, 'none')) AS other_basis
        FROM logged_step AS line
        LEFT JOIN source_context AS context USING (source_id)
        LEFT JOIN clock USING (clock_id)
    )
SELECT
    kind, first_step, last_step, start_ns, end_ns, lost_ns, usual_ns, dur_ns,
    CAST(log_start_ns AS BIGINT) AS log_start_ns,
    CAST(log_end_ns AS BIGINT) AS log_end_ns,
    basis
FROM job_episode
CROSS JOIN of_log
WHERE
    kind IN ('stall', 'slow')
    AND end_ns > start_ns
    AND basis IN ('epoch', 'local')
    AND basis = other_basis
QUALIFY row_number() OVER (ORDER BY lost_ns DESC NULLS LAST, first_step, kind, last_step)
    <= most_count;
