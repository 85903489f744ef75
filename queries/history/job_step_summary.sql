-- How long the job's steps took over its whole history, as its training logs tell.
--
-- A profile shows seconds of a job that runs for days: this is what they stand beside. Where a log
-- states means over several steps, so are these: a slow one among them hardly shows.
--
-- reads: job_step, logged_step, source_context, clock
-- needs: logged_step
-- asked: report
-- grain: source_id
-- column: steps_count BIGINT : Steps that the logs tell of, each once a start.
-- column: lines_count BIGINT : Lines that tell of them.
-- column: starts_count INTEGER : Starts of the training loop; each but the first is a restart.
-- column: first_step BIGINT : Lowest number of a step.
-- column: last_step BIGINT : Highest number of a step.
-- column: total_steps_count BIGINT : Steps that the job will have; null where no log says.
-- column: epoch_steps_count BIGINT : Steps of an epoch, as lines say or, where steps are counted on
--     over the job, as an epoch's first lines lie apart; null where no line tells of epochs.
-- column: start_ns BIGINT : When the first line was printed; null without a clock.
-- column: end_ns BIGINT : When the last line was printed; null without a clock.
-- column: is_epoch BOOLEAN : Whether these times are UTC, not some zone's.
-- column: mean_ns DOUBLE : Mean of a step; null where nothing says.
-- column: p50_ns DOUBLE : Median of a step.
-- column: p99_ns DOUBLE : 99th percentile of a step; null under 100 lines.
-- column: max_ns BIGINT : Longest step, or mean of a line's steps.
-- column: clock_ns BIGINT : The least that its times can tell, where they are whole seconds; null:
--     less, or they state how long steps took.
-- column: steps_per_line DOUBLE : Steps that a line stands for, in the median.
-- column: format VARCHAR : Program whose lines they are.
-- column: source_id INTEGER : File that tells most of them.
WITH
    files AS (
        SELECT source_id, count(*) AS lines_count
        FROM logged_step
        GROUP BY source_id
    ),
    main AS (
        SELECT f.source_id, clock.basis = 'epoch' AS is_epoch
        FROM files AS f
        LEFT JOIN source_context AS context USING (source_id)
        LEFT JOIN clock USING (clock_id)
        ORDER BY f.lines_count DESC, f.source_id
        LIMIT 1
    ),
    said AS (
        SELECT
            any_value(format ORDER BY format) AS format,
            max(total_steps_count) AS total_steps_count,
            max(total_steps_count) FILTER (WHERE epoch IS NOT NULL) AS epoch_steps_count,
            count(dur_ns) > 0 AS states_times
        FROM job_step
        WHERE source_id IN (SELECT source_id FROM main)
    ),
    turns AS (
        SELECT quantile_disc(steps_count, 0.5) AS epoch_steps_count
        FROM (
            SELECT lead(first_step) OVER (ORDER BY epoch) - first_step AS steps_count
            FROM (
                SELECT epoch, min(step) AS first_step
                FROM job_step
                WHERE epoch IS NOT NULL AND source_id IN (SELECT source_id FROM main)
                GROUP BY epoch
            )
        )
        HAVING count(steps_count) >= 2 AND min(steps_count) > 0
    ),
    summed AS (
        SELECT
            sum(steps_count) AS steps_count,
            count(*) AS lines_count,
            max(start_number) AS starts_count,
            -- A bar that begins stands at the step before its first.
            min(if(steps_count = 0, step + 1, step)) AS first_step,
            max(step) AS last_step,
            min(end_ns) AS start_ns,
            max(end_ns) AS end_ns,
            sum(CAST(dur_ns AS DOUBLE) * steps_count)
            / sum(steps_count) FILTER (WHERE dur_ns IS NOT NULL) AS mean_ns,
            quantile_cont(dur_ns, 0.5) AS p50_ns,
            if(count(dur_ns) >= 100, quantile_cont(dur_ns, 0.99), NULL) AS p99_ns,
            max(dur_ns) AS max_ns,
            if(
                count(dur_ns) >= 20
                AND bool_and(CAST(dur_ns * steps_count AS BIGINT) % 1000000000 = 0),
                1000000000, NULL
            ) AS clock_ns,
            quantile_cont(steps_count, 0.5) AS steps_per_line
        FROM logged_step
        HAVING count(*) > 0
    )
SELECT
    CAST(summed.steps_count AS BIGINT) AS steps_count,
    summed.lines_count,
    summed.starts_count,
    summed.first_step,
    summed.last_step,
    said.total_steps_count,
    coalesce(said.epoch_steps_count, turns.epoch_steps_count) AS epoch_steps_count,
    summed.start_ns,
    summed.end_ns,
    coalesce(main.is_epoch, false) AS is_epoch,
    summed.mean_ns,
    summed.p50_ns,
    summed.p99_ns,
    summed.max_ns,
    CAST(if(said.states_times, NULL, summed.clock_ns) AS BIGINT) AS clock_ns,
    summed.steps_per_line,
    said.format,
    main.source_id
FROM summed
CROSS JOIN main
CROSS JOIN said
LEFT JOIN turns ON true
ORDER BY main.source_id;
