-- How long the job's steps took over its history, in at most some hundreds of stretches to draw.
--
-- A log of weeks has millions of lines and a picture a thousand columns. Each stretch keeps its
-- shortest and its longest line, so that no stall fades away.
--
-- reads: logged_step
-- needs: logged_step
-- grain: stretch
-- param: stretches BIGINT = 600 : How many at most.
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
WITH
    timed AS (
        SELECT
            start_number,
            step,
            end_ns,
            dur_ns,
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
            -- With fewer lines than stretches, each line is one.
            line * least(lines_count, $stretches) // lines_count AS stretch
        FROM timed
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
    max(dur_ns) AS max_ns
FROM placed
GROUP BY stretch
ORDER BY stretch;
