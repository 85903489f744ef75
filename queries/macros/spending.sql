-- What the time of each step of each rank went into, by name.

-- loop_threads: The thread of each source that runs the training loop.
--
-- The one that marks steps; without marks, the one with most calls.
--
-- reads: annotation, host_op
-- columns: source_id INTEGER, thread BIGINT
CREATE OR REPLACE MACRO loop_threads() AS TABLE
WITH
    thread_calls AS (
        SELECT source_id, thread, TRUE AS has_steps, count(*) AS calls_count
        FROM annotation
        WHERE domain = 'profiler_step' AND NOT coalesce(is_gpu_twin, FALSE)
        GROUP BY source_id, thread
        UNION ALL
        SELECT source_id, thread, FALSE, count(*)
        FROM host_op
        GROUP BY source_id, thread
    )
SELECT
    source_id,
    arg_max(
        thread, {'has_steps': has_steps, 'calls_count': calls_count, 'thread': thread}
    ) AS thread
FROM thread_calls
GROUP BY source_id;

-- time_spent_of: As time_spent, of the ranks from one to another.
--
-- It needs memory for all events of these ranks, which sharing.shared bounds by asking for a few
-- ranks at a time: what a rank did depends on no other.
--
-- param: first_rank INTEGER : The lowest rank.
-- param: last_rank INTEGER : The highest rank.
-- reads: annotation, collective, gpu_op, host_op, step
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, step BIGINT, timeline VARCHAR,
--     kind VARCHAR, path VARCHAR, name VARCHAR, spent_ns BIGINT, calls_count BIGINT,
--     longest_ns BIGINT, source_id INTEGER, place BIGINT
CREATE OR REPLACE MACRO time_spent_of(first_rank, last_rank) AS TABLE
WITH
    windows AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            step,
            start_ns,
            end_ns,
            NOT is_warmup AND NOT is_partial AS is_steady
        FROM step_windows()
    ),
    limits AS (
        SELECT CAST(avg(end_ns - start_ns) / 100 AS BIGINT) AS pause_ns FROM windows
    ),
    loop_threads AS (FROM loop_threads()),
    worker_threads AS (
        SELECT DISTINCT source_id, thread
        FROM collective
        ANTI JOIN loop_threads USING (source_id, thread)
        WHERE timeline = 'host'
    ),
    events AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            source_id,
            place,
            thread,
            start_ns,
            start_ns + dur_ns AS end_ns,
            if(domain = 'collective', 'wait', 'range') AS kind,
            CASE
                WHEN domain = 'collective' THEN name
                ELSE regexp_replace(
                    regexp_replace(name, ', (seq|op_id|sizes|input_op_ids) = .*', ''),
                    '[0-9]+', '*', 'g'
                )
            END AS name
        FROM annotation
        SEMI JOIN loop_threads USING (source_id, thread)
        WHERE
            domain <> 'profiler_step'
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND dur_ns > 0
            AND rank BETWEEN first_rank AND last_rank
        UNION ALL
        SELECT
            capture_key(attempt, rank, capture_id),
            source_id,
            place,
            thread,
            start_ns,
            start_ns + dur_ns,
            CASE
                WHEN
                    ends_with(name, 'Synchronize')
                    OR name IN ('cudaMemcpy', 'hipMemcpy', 'hipMemcpyWithStream')
                    OR regexp_matches(name, '^(c10d::|_?c10d_functional::|record_param_comms)')
                    THEN 'wait'
                WHEN category = 'operator' THEN 'operator'
                ELSE 'call'
            END,
            name
        FROM host_op
        ANTI JOIN worker_threads USING (source_id, thread)
        LEFT JOIN loop_threads AS loops USING (source_id, thread)
        WHERE
            dur_ns > 0
            AND rank BETWEEN first_rank AND last_rank
            AND (loops.thread IS NOT NULL OR category = 'operator')
    ),
    names AS (
        SELECT kind, name, row_number() OVER (ORDER BY kind, name) AS name_id
        FROM (SELECT DISTINCT kind, name FROM events)
    ),
    threads AS (SELECT DISTINCT key, source_id, thread FROM events),
    -- change opens one (1), closes one (-1) or does neither (0, a step's border).
    edges AS (
        SELECT
            key,
            source_id,
            thread,
            unnest([start_ns, end_ns]) AS time_ns,
            unnest([1, -1]) AS change,
            unnest([-end_ns, -start_ns]) AS tie_ns,
            unnest([place, -place]) AS tie,
            kind = 'range' AS is_range,
            name_id,
            place
        FROM events
        JOIN names USING (kind, name)
        UNION ALL
        SELECT DISTINCT key, source_id, thread, time_ns, 0, 0, 0, FALSE, NULL, NULL
        FROM (SELECT key, unnest([start_ns, end_ns]) AS time_ns FROM windows)
        JOIN threads USING (key)
    ),
    -- The running total is how many are open.
    depths AS (
        SELECT
            key,
            source_id,
            thread,
            time_ns,
            change,
            is_range,
            name_id,
            place,
            sum(change) OVER sweep AS depth,
            sum(if(is_range, change, 0)) OVER sweep AS range_depth,
            row_number() OVER sweep AS number,
            lead(time_ns) OVER sweep - time_ns AS spent_ns,
            lead({'change': change, 'name_id': name_id, 'place': place}) OVER sweep AS following
        FROM edges
        WINDOW sweep AS (
            PARTITION BY key, source_id, thread ORDER BY time_ns, change, tie_ns, tie
        )
    ),
    -- Innermost after an edge is what was opened last at that depth.
    innermost AS (
        SELECT
            key,
            source_id,
            time_ns,
            spent_ns,
            change,
            name_id AS edge_id,
            following,
            thread,
            place AS edge_place,
            depth > 0 AS is_inside,
            last_value(
                if(change = 1, {'name_id': name_id, 'place': place}, NULL) IGNORE NULLS
            ) OVER (
                PARTITION BY key, source_id, thread, depth
                ORDER BY number ROWS UNBOUNDED PRECEDING
            ) AS inner_event,
            if(
                range_depth > 0,
                last_value(if(change = 1 AND is_range, place, NULL) IGNORE NULLS) OVER (
                    PARTITION BY key, source_id, thread, range_depth
                    ORDER BY number ROWS UNBOUNDED PRECEDING
                ),
                NULL
            ) AS range_place
        FROM depths
    ),
    opened_ranges AS (
        SELECT
            {'key': key, 'source_id': source_id, 'thread': thread, 'depth': range_depth} AS layer,
            {'key': key, 'source_id': source_id, 'thread': thread, 'depth': range_depth - 1}
                AS outer_layer,
            {'key': key, 'source_id': source_id, 'thread': thread, 'depth': range_depth - 2}
                AS outermost_layer,
            key,
            source_id,
            place,
            number,
            name
        FROM depths
        JOIN names USING (name_id)
        WHERE change = 1 AND is_range
    ),
    paths AS (
        SELECT
            opened.key,
            opened.source_id,
            opened.place AS range_place,
            concat_ws('/', outermost.name, around.name, opened.name) AS path
        FROM opened_ranges AS opened
        ASOF LEFT JOIN opened_ranges AS around
            ON around.layer = opened.outer_layer AND around.number <= opened.number
        ASOF LEFT JOIN opened_ranges AS outermost
            ON outermost.layer = opened.outermost_layer AND outermost.number <= opened.number
    ),
    stretches AS (
        SELECT
            innermost.key,
            innermost.source_id,
            time_ns,
            spent_ns,
            change,
            edge_id,
            following,
            range_place,
            if(is_inside, inner_event.place, edge_place) AS place,
            coalesce(kind, 'range') AS kind,
            if(kind = 'range', NULL, name) AS name,
            coalesce(kind, 'range') = 'range' AND loops.thread IS NOT NULL AND spent_ns >= pause_ns
                AS is_pause
        FROM innermost
        CROSS JOIN limits
        LEFT JOIN loop_threads AS loops
            ON loops.source_id = innermost.source_id AND loops.thread = innermost.thread
        LEFT JOIN names ON is_inside AND names.name_id = inner_event.name_id
        WHERE spent_ns IS NOT NULL AND (is_inside OR loops.thread IS NOT NULL)
    ),
    pauses AS (
        SELECT
            stretches.key,
            stretches.source_id,
            stretches.place,
            range_place,
            time_ns,
            time_ns + spent_ns AS end_ns,
            -- From its own start to its own end.
            change = 1 AND following.change = -1 AND following.place = stretches.place AS is_whole,
            CASE change WHEN 1 THEN 'the start of ' WHEN 0 THEN 'the step''s start' ELSE '' END
            || coalesce(edge.name, '') AS after_name,
            CASE following.change
                WHEN 1 THEN '' WHEN 0 THEN 'the step''s end' ELSE 'the end of '
            END
            || coalesce(next_edge.name, '') AS before_name
        FROM stretches
        LEFT JOIN names AS edge ON edge.name_id = stretches.edge_id
        LEFT JOIN names AS next_edge ON next_edge.name_id = following.name_id
        WHERE is_pause
    ),
    host_calls AS (
        SELECT capture_key(attempt, rank, capture_id) AS key, start_ns + dur_ns AS end_ns
        FROM collective
        ANTI JOIN gpu_op USING (attempt, rank)
        WHERE timeline = 'host'
    ),
    -- Who waits for a call goes on after its end.
    resumed AS MATERIALIZED (
        SELECT pauses.*, greatest(time_ns, coalesce(host_calls.end_ns, time_ns)) AS resumed_ns
        FROM pauses
        ASOF LEFT JOIN host_calls
            ON host_calls.key = pauses.key AND host_calls.end_ns <= pauses.end_ns
    ),
    other_threads AS (
        SELECT key, start_ns, end_ns
        FROM events
        ANTI JOIN loop_threads USING (source_id, thread)
    ),
    other_work AS (
        SELECT key, start_ns, end_ns FROM merged_intervals('other_threads')
    ),
    moments AS (
        SELECT key, unnest([resumed_ns, end_ns]) AS time_ns FROM resumed
    ),
    covered AS MATERIALIZED (
        SELECT key, time_ns, covered_ns FROM covered_before('other_work', 'moments')
    ),
    host_parts AS (
        SELECT
            key,
            time_ns,
            if(kind = 'range', 'between', kind) AS kind,
            range_place,
            name,
            spent_ns,
            CAST(change = 1 OR kind = 'range' AS INTEGER) AS calls_count,
            source_id,
            place
        FROM stretches
        WHERE NOT is_pause
        UNION ALL
        SELECT key, time_ns, 'wait', range_place, NULL, resumed_ns - time_ns, 1, source_id, place
        FROM resumed
        WHERE resumed_ns > time_ns
        UNION ALL
        SELECT
            resumed.key,
            resumed_ns,
            if(is_whole, 'range', 'pause'),
            range_place,
            if(is_whole, NULL, 'between ' || after_name || ' and ' || before_name),
            end_ns - resumed_ns - (at_end.covered_ns - at_start.covered_ns),
            1,
            source_id,
            place
        FROM resumed
        JOIN covered AS at_start
            ON at_start.key = resumed.key AND at_start.time_ns = resumed_ns
        JOIN covered AS at_end
            ON at_end.key = resumed.key AND at_end.time_ns = resumed.end_ns
    ),
    parts AS (
        SELECT
            host_parts.key,
            time_ns,
            'host' AS timeline,
            kind,
            coalesce(path, '') AS path,
            coalesce(name, '') AS name,
            spent_ns,
            calls_count,
            host_parts.source_id,
            place
        FROM host_parts
        LEFT JOIN paths USING (key, source_id, range_place)
        UNION ALL
        SELECT
            capture_key(attempt, rank, capture_id),
            start_ns,
            'device',
            if(category = 'kernel', 'kernel', 'copy'),
            '',
            name,
            dur_ns,
            1,
            source_id,
            place
        FROM gpu_op
        WHERE class <> 'communication' AND rank BETWEEN first_rank AND last_rank
    ),
    step_parts AS (
        SELECT
            parts.key,
            step,
            timeline,
            kind,
            path,
            name,
            sum(spent_ns) AS spent_ns,
            sum(calls_count) AS calls_count,
            max(spent_ns) AS longest_ns,
            arg_min(
                {'source_id': source_id, 'place': place},
                {'shortness_ns': -spent_ns, 'source_id': source_id, 'place': place}
            ) AS longest
        FROM parts
        ASOF JOIN windows ON windows.key = parts.key AND windows.start_ns <= parts.time_ns
        WHERE parts.time_ns < windows.end_ns AND is_steady
        GROUP BY parts.key, step, timeline, kind, path, name
    )
SELECT
    attempt_of(key) AS attempt,
    rank_of(key) AS rank,
    capture_id_of(key) AS capture_id,
    step,
    timeline,
    kind,
    path,
    name,
    CAST(spent_ns AS BIGINT) AS spent_ns,
    CAST(calls_count AS BIGINT) AS calls_count,
    CAST(longest_ns AS BIGINT) AS longest_ns,
    longest.source_id AS source_id,
    longest.place AS place
FROM step_parts
WHERE spent_ns > 0;

-- time_spent: What each rank did in each steady step, each moment under what was innermost then.
--
-- On the host, every moment of the thread that runs the training loop (the one that marks steps;
-- without marks, the one with most calls) belongs to what began last and has not ended, so these
-- parts sum to the step. kind is operator (the framework's), call (runtime or driver), wait (a call
-- that blocks, or communication), range (nothing recorded inside it), pause (nothing recorded for a
-- hundredth of a mean step or longer, named for what it lies between) or between (shorter such
-- stretches). Operators of other threads (autograd's) count beside it and are taken off its pauses.
-- On a rank without a GPU a pause up to the end of a collective within it is a wait, as in
-- host_work. On the device kernel and copy count whole; communication is left out.
--
-- path has the ranges around it, outermost first, the innermost three; numbers in their names are
-- starred, so that a range has one name in all steps; so goes what PyTorch's emit_nvtx appends.
--
-- reads: annotation, collective, gpu_op, host_op, step
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, step BIGINT, timeline VARCHAR,
--     kind VARCHAR, path VARCHAR, name VARCHAR, spent_ns BIGINT, calls_count BIGINT,
--     longest_ns BIGINT, source_id INTEGER, place BIGINT
CREATE OR REPLACE MACRO time_spent() AS TABLE
SELECT
    attempt,
    rank,
    capture_id,
    step,
    timeline,
    kind,
    path,
    name,
    spent_ns,
    calls_count,
    longest_ns,
    source_id,
    place
FROM time_spent_of(0, 2147483647);
