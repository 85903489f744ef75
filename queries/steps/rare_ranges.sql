-- Ranges of the training loop that fewer than half of the steps have: an evaluation, a save.
--
-- Where the profiler wrote the range for the device too,
-- device_ns is the time that the device spent on what was launched in it: what the step takes
-- longer for it, while the host may have waited there for work of the steps before. Steady steps
-- only; the longest range of a name and step stands for it.
--
-- reads: annotation, host_op, step
-- needs: annotation
-- asked: report where slow
-- grain: attempt, rank, capture_id, step, name
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: step BIGINT : Job-level step in which it begins.
-- column: name VARCHAR : Name, its numbers starred.
-- column: range_ns BIGINT : How long it lasts on the host.
-- column: device_ns BIGINT : From the first to the last operation that was launched in it; null
--     where the trace does not say.
-- column: steps_count BIGINT : Steady steps of the rank with a range of the name.
-- column: judged_steps_count BIGINT : Steady steps of the rank.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Place in it.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    steps AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            step,
            start_ns,
            end_ns,
            count(*) OVER (PARTITION BY attempt, rank) AS judged_steps_count
        FROM step
        WHERE NOT coalesce(is_warmup, FALSE) AND NOT coalesce(is_partial, FALSE)
    ),
    ranges AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            name,
            start_ns,
            end_ns - start_ns AS range_ns,
            source_id,
            place,
            row_number() OVER (PARTITION BY source_id, name ORDER BY start_ns, place) AS number
        FROM path_ranges()
    ),
    twins AS (
        SELECT
            source_id,
            regexp_replace(name, '[0-9]+', '*', 'g') AS name,
            dur_ns AS device_ns,
            row_number() OVER (
                PARTITION BY source_id, regexp_replace(name, '[0-9]+', '*', 'g')
                ORDER BY start_ns, place
            ) AS number,
            count(*) OVER (
                PARTITION BY source_id, regexp_replace(name, '[0-9]+', '*', 'g')
            ) AS twins_count
        FROM annotation
        WHERE is_gpu_twin AND domain <> 'profiler_step'
    ),
    -- A range that launched nothing has no twin: then which is whose is not known.
    paired AS (
        SELECT
            ranges.*,
            if(
                twins_count = count(*) OVER (PARTITION BY ranges.source_id, ranges.name),
                device_ns,
                NULL
            ) AS device_ns
        FROM ranges
        LEFT JOIN twins USING (source_id, name, number)
    ),
    placed AS (
        SELECT paired.*, step, judged_steps_count
        FROM paired
        ASOF JOIN steps ON steps.key = paired.key AND steps.start_ns <= paired.start_ns
        WHERE paired.start_ns < steps.end_ns
        QUALIFY row_number() OVER (
            PARTITION BY paired.key, step, name ORDER BY range_ns DESC, place
        ) = 1
    ),
    counted AS (
        SELECT
            *,
            count(*) OVER (PARTITION BY attempt_of(key), rank_of(key), name) AS steps_count
        FROM placed
    )
SELECT
    rank_of(key) AS rank,
    capture_id_of(key) AS capture_id,
    step,
    name,
    range_ns,
    device_ns,
    steps_count,
    judged_steps_count,
    source_id,
    place,
    attempt_of(key) AS attempt
FROM counted
WHERE 2 * steps_count < judged_steps_count
ORDER BY attempt, rank, capture_id, step, range_ns DESC, name;
