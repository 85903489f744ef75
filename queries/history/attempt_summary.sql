-- Each start of the training loop: which steps it did, how long they took, and what lay before it.
--
-- A job of weeks is started many times: the time between the last step before and the first one
-- after, and the steps done again, are what a restart costs.
--
-- reads: logged_step, log_event
-- needs: logged_step
-- grain: start_number
-- column: start_number INTEGER : Start of the training loop, from 1.
-- column: first_step BIGINT : First step that it reports.
-- column: last_step BIGINT : Last one.
-- column: steps_count BIGINT : Steps that its lines stand for.
-- column: start_ns BIGINT : When its first line was printed; null without a clock.
-- column: end_ns BIGINT : When its last line was printed; null without a clock.
-- column: p50_ns DOUBLE : Median of its steps; null where nothing says.
-- column: gap_ns BIGINT : From the last line before it to its first; null for the first start, and
--     without a clock.
-- column: repeated_count BIGINT : Steps that it did again; null for the first start.
-- column: source_id INTEGER : File of its first line.
-- column: place BIGINT : Its first line.
-- column: load_ns BIGINT : From the first line to the last that tells of loading a checkpoint,
--     between the start before and its first line in its file; null where fewer than two state a
--     time.
WITH
    starts AS (
        SELECT
            start_number,
            -- A bar that begins stands at the step before its first.
            min(if(steps_count = 0, step + 1, step)) AS first_step,
            max(step) AS last_step,
            CAST(sum(steps_count) AS BIGINT) AS steps_count,
            min(end_ns) AS start_ns,
            max(end_ns) AS end_ns,
            quantile_cont(dur_ns, 0.5) AS p50_ns,
            arg_min(source_id, step) AS source_id,
            arg_min(place, step) AS place,
            max(place) AS last_place
        FROM logged_step
        GROUP BY start_number
    ),
    loads AS (
        SELECT
            start_number,
            if(count(*) > 1, CAST(max(time_ns) - min(time_ns) AS BIGINT), NULL) AS load_ns
        FROM (
            SELECT
                start_number,
                source_id,
                place,
                lag(last_place) OVER (PARTITION BY source_id ORDER BY start_number) AS before_place
            FROM starts
        ) AS starts
        JOIN log_event AS event
            ON event.source_id = starts.source_id
            AND event.place < starts.place
            AND event.place > coalesce(starts.before_place, 0)
        WHERE event.code = 'checkpoint-load' AND event.time_ns IS NOT NULL
        GROUP BY start_number
    )
SELECT
    start_number,
    first_step,
    last_step,
    steps_count,
    start_ns,
    end_ns,
    p50_ns,
    -- greatest() of a null is the other.
    if(before_ns IS NULL, NULL, greatest(start_ns - before_ns, 0)) AS gap_ns,
    if(before_step IS NULL, NULL, greatest(before_step - first_step + 1, 0)) AS repeated_count,
    source_id,
    place,
    load_ns
FROM (
    SELECT
        *,
        lag(end_ns) OVER in_order AS before_ns,
        lag(last_step) OVER in_order AS before_step
    FROM starts
    LEFT JOIN loads USING (start_number)
    WINDOW in_order AS (ORDER BY start_number)
)
ORDER BY start_number;
