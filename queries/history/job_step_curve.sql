-- How long the job's steps took over its history, in at most some hundreds of stretches to draw.
--
-- A log of weeks has millions of lines and a picture a thousand columns. Each stretch keeps its
-- shortest and its longest line, so that no stall fades away.
--
-- reads: logged_step
-- needs: logged_step
-- grain: stretch
-- param: stretches BIGINT = 600 : How many at most.
-- param: outlier_steps DOUBLE = 0.5 : Median steps that a line takes more where something lies
--     between its steps.
-- column: stretch BIGINT : From 0, in the order of the logs.
-- column: start_number INTEGER : Start of the training loop, from 1; of the first line of it.
-- column: first_step BIGINT : Step of its first line.
-- column: last_step BIGINT : Step of its last line.
-- column: lines_count BIGINT : Lines in it that tell how long a step took.
-- column: start_ns BIGINT : When its first line was printed; null without a clock.
-- column: min_ns BIGINT : Shortest step, or mean of a line's steps.
-- column: p50_ns DOUBLE : Median over its lines.
-- column: mean_ns DOUBLE : Mean: what a clock of whole seconds tells of shorter steps.
-- column: max_ns BIGINT : Longest.
-- column: steps_count BIGINT : Steps that its lines stand for.
-- column: step_ns DOUBLE : Mean of a step without what lies between steps.
-- column: between_ns DOUBLE : Mean, a step, of what lies between (saves, evaluations, stalls): by
--     the clock beyond what the log states, and of lines that take outlier_steps more
--     than the median what is beyond it. Whole seconds of a clock cancel out over a stretch.
WITH
    timed AS (
        SELECT
            start_number,
            step,
            end_ns,
            dur_ns,
            steps_count,
            coalesce(wall_ns / nullif(steps_count, 0), dur_ns) AS taken_ns,
            -- Of a clock of whole seconds a line may be two of them too long.
            bool_and(coalesce(wall_ns % 1000000000 = 0, true)) OVER () AS is_coarse,
            row_number() OVER (ORDER BY start_number, step) - 1 AS line,
            count(*) OVER () AS lines_count
        FROM logged_step
        WHERE dur_ns IS NOT NULL
    ),
    placed AS (
        SELECT
            start_number,
            step,
            end_ns,
            dur_ns,
            line,
            steps_count,
            taken_ns,
            if(is_coarse, 3000000000, 0) AS slack_ns,
            -- All but the last have as many lines: means of them weigh alike.
            line // CAST(ceil(lines_count / $stretches) AS BIGINT) AS stretch
        FROM timed
    ),
    parted AS (
        SELECT
            *,
            quantile_cont(dur_ns, 0.5) OVER (PARTITION BY stretch) AS usual_ns,
            (1 + $outlier_steps) * usual_ns + slack_ns / nullif(steps_count, 0) AS most_ns,
            if(dur_ns > most_ns, usual_ns, dur_ns) AS step_ns
        FROM placed
    )
SELECT
    stretch,
    min(start_number) AS start_number,
    arg_min(step, line) AS first_step,
    arg_max(step, line) AS last_step,
    count(*) AS lines_count,
    arg_min(end_ns, line) AS start_ns,
    min(dur_ns) AS min_ns,
    quantile_cont(dur_ns, 0.5) AS p50_ns,
    avg(dur_ns) AS mean_ns,
    max(dur_ns) AS max_ns,
    CAST(sum(steps_count) AS BIGINT) AS steps_count,
    sum(step_ns * steps_count) / nullif(sum(steps_count), 0) AS step_ns,
    sum((taken_ns - step_ns) * steps_count) / nullif(sum(steps_count), 0) AS between_ns
FROM parted
GROUP BY stretch
ORDER BY stretch;
