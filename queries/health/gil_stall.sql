-- How long each step of each rank waited for Python's interpreter lock, and how much nothing hid.
--
-- The evidence of gil-contention. Operators and calls give the lock (GIL) up while they run and
-- take it again. Where another thread of the process holds it, CPython waits for its switch
-- interval (5 ms) before it asks for it, and again each time that a third thread is faster. Then
-- stretches between two events (that begin or end on a thread that marks steps or launches) are a
-- little more than 5 ms long, or 10, 15 or 20, at one place as at another. Handing over takes up to
-- 12 % more; of stretches of random lengths a third would be so long. What an operator does without
-- another inside is no stretch, and what ends with a collective waited for that.
--
-- Rows are of ranks that have such stretches. At a place (the name of the event that follows) where
-- half of those of half an interval to four and a half are such, all longer ones are waits.
--
-- reads: host_op, annotation, step, gpu_op, collective
-- needs: host_op
-- grain: attempt, rank, capture_id, step
-- param: interval_ns BIGINT = 5000000 : The switch interval (sys.getswitchinterval).
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: step BIGINT : Job-level step; steps without such a wait are absent.
-- column: stall_ns BIGINT : Time of the step in such waits; their union.
-- column: exposed_ns BIGINT : The part of it that nothing hid.
-- column: ranges_count BIGINT : Waits that reach into the step.
-- column: longest_ns BIGINT : The longest of them, whole.
-- column: source_id INTEGER : Source of the longest.
-- column: place BIGINT : Place of the event that follows it.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: switches_count BIGINT : Stretches of the rank that are 1 to 4 intervals long.
-- column: stretches_count BIGINT : All its stretches of half an interval to four and a half.
-- column: names_count BIGINT : Different names of events that follow the former.
WITH
    threads AS (
        FROM loop_threads()
        UNION
        SELECT source_id, launch_thread
        FROM gpu_op
        WHERE launch_thread IS NOT NULL
    ),
    events AS (
        SELECT host_op.*, start_ns + dur_ns AS end_ns, FALSE AS is_range
        FROM host_op
        SEMI JOIN threads USING (source_id, thread)
        UNION ALL BY NAME
        SELECT annotation.*, start_ns + dur_ns AS end_ns, TRUE AS is_range
        FROM annotation
        SEMI JOIN threads USING (source_id, thread)
        WHERE NOT coalesce(is_gpu_twin, FALSE)
    ),
    -- A quarter of an interval at a time, so that few rows are sorted: each stretch of half an
    -- interval has one in which nothing begins or ends.
    moments AS (
        SELECT
            source_id,
            thread,
            unnest([start_ns, end_ns]) AS time_ns
        FROM events
        WHERE rank IS NOT NULL
    ),
    lively AS (
        SELECT
            source_id,
            thread,
            time_ns // greatest($interval_ns // 4, 1) AS quarter,
            min(time_ns) AS first_ns,
            max(time_ns) AS last_ns
        FROM moments
        GROUP BY source_id, thread, quarter
    ),
    quiet AS (
        SELECT
            source_id,
            thread,
            last_ns AS start_ns,
            lead(first_ns) OVER along AS end_ns
        FROM lively
        WINDOW along AS (PARTITION BY source_id, thread ORDER BY quarter)
        QUALIFY lead(first_ns) OVER along - last_ns >= 0.5 * $interval_ns
    ),
    -- Two joins and not one with OR, which would compare each stretch with every event.
    next_events AS (
        SELECT events.*, quiet.start_ns AS quiet_start_ns, quiet.end_ns AS quiet_end_ns
        FROM events
        JOIN quiet
            ON quiet.source_id = events.source_id
            AND quiet.thread = events.thread
            AND quiet.end_ns = events.start_ns
        UNION ALL
        SELECT events.*, quiet.start_ns, quiet.end_ns
        FROM events
        JOIN quiet
            ON quiet.source_id = events.source_id
            AND quiet.thread = events.thread
            AND quiet.end_ns = events.end_ns
    ),
    followed AS (
        SELECT
            source_id,
            thread,
            quiet_start_ns AS start_ns,
            quiet_end_ns AS end_ns,
            arg_min(
                {
                    'place': place,
                    'name': name,
                    'attempt': attempt,
                    'rank': rank,
                    'capture_id': capture_id
                },
                {'place': place, 'is_range': is_range}
            ) AS event,
            bool_or(next_events.start_ns = quiet_start_ns AND NOT is_range) AS is_whole
        FROM next_events
        GROUP BY source_id, thread, quiet_start_ns, quiet_end_ns
    ),
    host_calls AS (
        SELECT capture_key(attempt, rank, capture_id) AS key, start_ns + dur_ns AS end_ns
        FROM collective
        WHERE timeline = 'host'
    ),
    stretches AS (
        SELECT
            capture_key(event.attempt, event.rank, event.capture_id) AS key,
            source_id,
            thread,
            event,
            followed.start_ns,
            followed.end_ns - followed.start_ns AS dur_ns,
            dur_ns <= 4.5 * $interval_ns AS is_short,
            is_short
            AND dur_ns >= $interval_ns
            AND dur_ns % $interval_ns <= 0.12 * (dur_ns - dur_ns % $interval_ns) AS is_switch
        FROM followed
        ASOF LEFT JOIN host_calls
            ON host_calls.key = capture_key(event.attempt, event.rank, event.capture_id)
            AND host_calls.end_ns <= followed.end_ns
        WHERE NOT is_whole AND coalesce(host_calls.end_ns <= followed.start_ns, TRUE)
    ),
    ranks AS (
        SELECT
            event.attempt AS attempt,
            event.rank AS rank,
            count(*) FILTER (is_switch) AS switches_count,
            count(*) FILTER (is_short) AS stretches_count,
            count(DISTINCT event.name) FILTER (is_switch) AS names_count
        FROM stretches
        GROUP BY event.attempt, event.rank
        HAVING switches_count > 0
    ),
    waits AS (
        SELECT
            source_id,
            event.place AS place,
            event.attempt AS attempt,
            event.rank AS rank,
            event.capture_id AS capture_id,
            thread,
            start_ns,
            dur_ns,
            'gil' AS domain,
            CAST(NULL AS BOOLEAN) AS is_gpu_twin
        FROM stretches
        WHERE dur_ns >= $interval_ns
        WINDOW of_name AS (PARTITION BY event.attempt, event.rank, event.name)
        QUALIFY
            count_if(is_switch) OVER of_name >= 0.5 * count_if(is_short) OVER of_name
            AND bool_or(is_switch) OVER of_name
    )
SELECT stalls.*, switches_count, stretches_count, names_count
FROM host_stalls(
    'waits', 'gil', [], ['compute', 'communication', 'memory', 'other'], 'steps'
) AS stalls
JOIN ranks USING (attempt, rank)
ORDER BY attempt, rank, capture_id, step;
