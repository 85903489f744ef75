-- How much of their time the job's steps waited for input, as its training log states it.
--
-- Programs print the wait of a step beside its length. Of running means the last of each epoch is
-- taken, since it holds all steps, also those that no line tells, but of a single epoch what lies
-- behind its first line; elsewhere the lines are weighted by the steps that they stand for, without
-- the first of a start and of an epoch. That is where the workers of a loader begin. It is the wait
-- of the rank that prints: others may wait more or less.
--
-- reads: job_step, logged_step
-- needs: logged_step
-- grain: source_id
-- column: format VARCHAR : Program whose lines they are.
-- column: steps_count BIGINT : Steps that the means hold.
-- column: lines_count BIGINT : Lines that state a wait.
-- column: step_ns DOUBLE : Mean step.
-- column: input_wait_ns DOUBLE : Mean wait for input of a step.
-- column: input_wait_ratio DOUBLE : Share of the step that is.
-- column: first_wait_ratio DOUBLE : Share of all waiting that is in the first steps of epochs; null
--     where no line tells of them, or the means leave them out.
-- column: place BIGINT : Line that waits longest of those that state a wait.
-- column: longest_wait_ns BIGINT : How long a step, or the mean of its steps, waited there.
-- column: source_id INTEGER : File that tells most of them.
WITH
    stated AS (
        SELECT
            told.source_id,
            said.format,
            told.place,
            told.start_number,
            coalesce(said.epoch, -1) AS epoch,
            said.step,
            told.steps_count,
            told.dur_ns,
            said.input_wait_ns,
            said.running_dur_ns,
            said.running_input_wait_ns
        FROM logged_step AS told
        JOIN job_step AS said USING (source_id, place)
        WHERE said.input_wait_ns IS NOT NULL
    ),
    main AS (
        SELECT source_id
        FROM stated
        GROUP BY source_id
        ORDER BY count(*) DESC, source_id
        LIMIT 1
    ),
    each_epoch AS (
        SELECT
            -- Counted from 0 or from 1, whichever the program does.
            max(step) + 1 AS last_count,
            min(step) + 1 AS first_count,
            arg_max(running_dur_ns, place) AS last_step_ns,
            arg_min(running_dur_ns, place) AS first_step_ns,
            arg_max(running_input_wait_ns, place) AS last_wait_ns,
            arg_min(running_input_wait_ns, place) AS first_wait_ns,
            min_by(input_wait_ns, place) FILTER (WHERE step <= 1) AS begin_ns,
            count(*) OVER () = 1 AS is_alone
        FROM stated
        WHERE
            source_id IN (SELECT source_id FROM main)
            AND running_dur_ns IS NOT NULL
            AND running_input_wait_ns IS NOT NULL
        GROUP BY start_number, epoch
    ),
    epochs AS (
        SELECT
            last_count - if(is_alone, first_count, 0) AS steps_count,
            CAST(last_count AS DOUBLE) * last_step_ns
            - if(is_alone, CAST(first_count AS DOUBLE) * first_step_ns, 0) AS spent_ns,
            CAST(last_count AS DOUBLE) * last_wait_ns
            - if(is_alone, CAST(first_count AS DOUBLE) * first_wait_ns, 0) AS waited_ns,
            if(is_alone, NULL, begin_ns) AS begin_ns
        FROM each_epoch
    ),
    later AS (
        SELECT
            *,
            row_number() OVER (PARTITION BY start_number, epoch ORDER BY place) AS line_number
        FROM stated
        WHERE source_id IN (SELECT source_id FROM main) AND running_input_wait_ns IS NULL
    ),
    summed AS (
        SELECT
            sum(steps_count) AS steps_count,
            sum(spent_ns) AS spent_ns,
            sum(waited_ns) AS waited_ns,
            sum(begin_ns) AS first_ns
        FROM epochs
        UNION ALL
        SELECT
            sum(steps_count),
            sum(CAST(steps_count AS DOUBLE) * dur_ns),
            sum(CAST(steps_count AS DOUBLE) * input_wait_ns),
            NULL
        FROM later
        WHERE line_number > 1 AND dur_ns > 0
    ),
    whole AS (
        SELECT
            sum(steps_count) AS steps_count,
            sum(spent_ns) AS spent_ns,
            sum(waited_ns) AS waited_ns,
            sum(first_ns) AS first_ns
        FROM summed
    ),
    lines AS (
        SELECT
            any_value(format ORDER BY place) AS format,
            count(*) AS lines_count,
            arg_max(place, (input_wait_ns, -place)) AS place,
            max(input_wait_ns) AS longest_wait_ns
        FROM stated
        WHERE source_id IN (SELECT source_id FROM main)
    )
SELECT
    lines.format,
    CAST(whole.steps_count AS BIGINT) AS steps_count,
    lines.lines_count,
    whole.spent_ns / whole.steps_count AS step_ns,
    greatest(whole.waited_ns, 0) / whole.steps_count AS input_wait_ns,
    greatest(least(whole.waited_ns / whole.spent_ns, 1), 0) AS input_wait_ratio,
    if(whole.waited_ns > 0, whole.first_ns / whole.waited_ns, NULL) AS first_wait_ratio,
    lines.place,
    lines.longest_wait_ns,
    main.source_id
FROM main
CROSS JOIN whole
CROSS JOIN lines
WHERE whole.spent_ns > 0
ORDER BY main.source_id;
