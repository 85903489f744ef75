-- Where in the job's history the traces lie, and whether its steps there are like the others.
--
-- A trace of steps that are faster than the job's median cannot show why the job is slow. The
-- place is told by time where traces and log have clocks that count from the epoch, else by the
-- numbers of steps, which some profilers count from their own start.
--
-- reads: logged_step, run, step, source_context, clock
-- needs: logged_step
-- asked: report
-- grain: attempt
-- column: attempt INTEGER : Attempt of the traces.
-- column: placed_by VARCHAR : time, or number of the step.
-- column: first_step BIGINT : First step of the log that the traces touch.
-- column: last_step BIGINT : Last one.
-- column: p50_ns DOUBLE : Median of these steps, as the log tells; null where it does not.
-- column: job_p50_ns DOUBLE : Median of all steps of the log.
-- column: touched_count BIGINT : Steps of the lines that the traces touch: more than are profiled
--     where a line stands for several, or the log's clock has whole seconds.
-- column: traced_count BIGINT : Steps of the traces, of the rank that has most; null where nothing
--     marks any.
WITH
    told AS (
        SELECT
            line.step,
            line.end_ns,
            line.steps_count,
            line.dur_ns,
            line.wall_ns,
            clock.basis = 'epoch' AS is_epoch
        FROM logged_step AS line
        LEFT JOIN source_context AS context USING (source_id)
        LEFT JOIN clock USING (clock_id)
    ),
    of_job AS (
        SELECT quantile_cont(dur_ns, 0.5) AS p50_ns, bool_or(coalesce(is_epoch, false)) AS is_epoch
        FROM told
    ),
    by_time AS (
        SELECT
            run.attempt,
            'time' AS placed_by,
            min(told.step) AS first_step,
            max(told.step) AS last_step,
            quantile_cont(told.dur_ns, 0.5) AS p50_ns,
            CAST(sum(told.steps_count) AS BIGINT) AS touched_count
        FROM run
        JOIN told
            ON told.is_epoch
            AND told.end_ns >= run.start_ns
            AND told.end_ns - coalesce(told.wall_ns, 0) <= run.end_ns
        GROUP BY run.attempt
    ),
    numbered AS (
        SELECT attempt, min(step) AS first_step, max(step) AS last_step
        FROM step
        WHERE step IS NOT NULL
        GROUP BY attempt
    ),
    by_number AS (
        SELECT
            numbered.attempt,
            'number' AS placed_by,
            min(told.step) AS first_step,
            max(told.step) AS last_step,
            quantile_cont(told.dur_ns, 0.5) AS p50_ns,
            CAST(sum(told.steps_count) AS BIGINT) AS touched_count
        FROM numbered
        JOIN told
            ON told.step >= numbered.first_step
            AND told.step - told.steps_count < numbered.last_step
        WHERE NOT (SELECT is_epoch FROM of_job)
        GROUP BY numbered.attempt
    ),
    traced AS (
        SELECT attempt, max(steps_count) AS steps_count
        FROM (
            SELECT attempt, rank, count(*) AS steps_count
            FROM step
            WHERE step IS NOT NULL
            GROUP BY attempt, rank
        )
        GROUP BY attempt
    ),
    placed AS (
        FROM by_time
        UNION ALL
        FROM by_number
    )
SELECT
    placed.attempt,
    placed.placed_by,
    placed.first_step,
    placed.last_step,
    placed.p50_ns,
    of_job.p50_ns AS job_p50_ns,
    placed.touched_count,
    traced.steps_count AS traced_count
FROM placed
LEFT JOIN traced USING (attempt)
CROSS JOIN of_job
ORDER BY placed.attempt;
