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

-- time_spent_of: As time_spent, of some ranks' steps that begin from one moment to another.
--
-- It needs memory for all events of these, which sharing.shared bounds by asking for a few ranks at
-- a time, and of one with many events for a few steps: what a rank did in a step depends on no
-- other, and on nothing that ended before it or begins after it.
--
-- param: first_rank INTEGER : The lowest rank.
-- param: last_rank INTEGER : The highest rank.
-- param: first_ns BIGINT : The first moment at which such a step may begin.
-- param: last_ns BIGINT : When such steps have begun and ended; one that begins then is none.
-- reads: annotation, collective, gpu_op, host_op, step
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, step BIGINT, timeline VARCHAR,
--     kind VARCHAR, path VARCHAR, name VARCHAR, spent_ns BIGINT, calls_count BIGINT,
--     longest_ns BIGINT, source_id INTEGER, place BIGINT
CREATE OR REPLACE MACRO time_spent_of(first_rank, last_rank, first_ns, last_ns) AS TABLE
WITH
    windows AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            step,
            start_ns,
            end_ns,
            NOT is_warmup AND NOT is_partial AND start_ns >= first_ns AND start_ns < last_ns
                AS is_steady
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
            -- A send lasts until somebody asks for it, whatever its thread does meanwhile.
            AND NOT (domain = 'collective' AND ends_with(name, ':send'))
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND dur_ns > 0
            AND rank BETWEEN first_rank AND last_rank
            AND start_ns <= last_ns
            AND start_ns + dur_ns >= first_ns
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
            AND start_ns <= last_ns
            AND start_ns + dur_ns >= first_ns
            AND (loops.thread IS NOT NULL OR category = 'operator')
    ),
    -- Numbers of ranges are below 0.
    names AS (
        SELECT
            kind,
            name,
            if(kind = 'range', -1, 1) * row_number() OVER (ORDER BY kind, name) AS name_id
        FROM (SELECT DISTINCT kind, name FROM events)
    ),
    threads AS (
        SELECT
            key,
            source_id,
            thread,
            loops.thread IS NOT NULL AS is_loop,
            CAST(row_number() OVER (ORDER BY key, source_id, thread) AS INTEGER) AS thread_id
        FROM (SELECT DISTINCT key, source_id, thread FROM events)
        LEFT JOIN loop_threads AS loops USING (source_id, thread)
    ),
    -- From here on names and threads are numbers: what is sorted is narrow.
    numbered AS (
        SELECT
            thread_id,
            name_id,
            start_ns,
            end_ns,
            place
        FROM events
        JOIN names USING (kind, name)
        JOIN threads
            ON threads.key = events.key
            AND threads.source_id = events.source_id
            AND threads.thread IS NOT DISTINCT FROM events.thread
    ),
    borders AS (
        SELECT DISTINCT thread_id, time_ns
        FROM (SELECT key, unnest([start_ns, end_ns]) AS time_ns FROM windows)
        JOIN threads USING (key)
    ),
    -- change opens one (1), closes one (-1) or does neither (0, a step's border). At one moment
    -- (turn) what is open closes, the shortest first, then steps begin and end, then what begins
    -- opens, the longest first. Keys of a sort are cheap up to 32 bytes.
    edges AS (
        SELECT
            thread_id,
            unnest([start_ns, end_ns]) AS time_ns,
            unnest([1, -1]) AS change,
            unnest([1, -1]) * (4611686018427387904 - (end_ns - start_ns)) AS turn,
            unnest([place, -place]) AS tie,
            name_id < 0 AS is_milestone,
            name_id,
            place
        FROM numbered
        UNION ALL
        SELECT thread_id, time_ns, 0, 0, 0, TRUE, NULL, NULL
        FROM borders
    ),
    sweep AS (
        SELECT
            thread_id,
            time_ns,
            change,
            name_id,
            place,
            row_number() OVER along AS number,
            -- Two running totals in one: how many are open, and how many milestones there were. It
            -- is a DOUBLE because integers add up half as fast.
            CAST(sum(change + if(is_milestone, 1048576e0, 0e0)) OVER along AS BIGINT) AS totals,
            lead(time_ns) OVER along - time_ns AS spent_ns,
            lead(change) OVER along AS next_change
        FROM edges
        WINDOW along AS (PARTITION BY thread_id ORDER BY time_ns, turn, tie)
    ),
    depths AS (
        SELECT
            thread_id,
            time_ns,
            change,
            name_id,
            place,
            number,
            totals & 1048575 AS depth,
            totals >> 20 AS milestone,
            spent_ns,
            next_change
        FROM sweep
    ),
    -- Innermost after an edge is what was opened last at that depth. What is opened just before an
    -- edge that closes is so after no other edge: only another opening leads to that depth again.
    innermost AS (
        SELECT
            thread_id,
            time_ns,
            change,
            name_id AS edge_id,
            number,
            milestone,
            spent_ns,
            last_value(if(change = 1, name_id, NULL) IGNORE NULLS) OVER layer AS name_id,
            last_value(if(change = 1, place, NULL) IGNORE NULLS) OVER layer AS place
        FROM depths
        WHERE depth > 0 AND NOT (change = 1 AND next_change = -1)
        WINDOW layer AS (
            PARTITION BY thread_id, depth ORDER BY number ROWS UNBOUNDED PRECEDING
        )
        UNION ALL
        SELECT
            thread_id,
            time_ns,
            change,
            name_id,
            number,
            milestone,
            spent_ns,
            if(change = 1, name_id, NULL),
            place
        FROM depths
        WHERE depth = 0 OR (change = 1 AND next_change = -1)
    ),
    -- Ranges' edges and steps' borders alone, of which there are few, and what comes before all.
    milestones AS (
        SELECT
            thread_id,
            time_ns,
            change,
            name_id,
            CAST(sum(change) OVER along AS BIGINT) AS depth,
            row_number() OVER along - 1 AS milestone
        FROM (
            SELECT thread_id, time_ns, change, turn, tie, name_id FROM edges WHERE is_milestone
            UNION ALL
            SELECT thread_id, -9223372036854775807, 0, 0, 0, NULL FROM threads
        )
        WINDOW along AS (PARTITION BY thread_id ORDER BY time_ns, turn, tie)
    ),
    opened_ranges AS (
        SELECT
            {'thread_id': thread_id, 'depth': depth} AS layer,
            {'thread_id': thread_id, 'depth': depth - 1} AS outer_layer,
            {'thread_id': thread_id, 'depth': depth - 2} AS outermost_layer,
            milestone,
            name
        FROM milestones
        JOIN names USING (name_id)
        WHERE change = 1
    ),
    opened_paths AS (
        SELECT
            opened.layer,
            opened.milestone,
            concat_ws('/', outermost.name, around.name, opened.name) AS path
        FROM opened_ranges AS opened
        ASOF LEFT JOIN opened_ranges AS around
            ON around.layer = opened.outer_layer AND around.milestone <= opened.milestone
        ASOF LEFT JOIN opened_ranges AS outermost
            ON
                outermost.layer = opened.outermost_layer
                AND outermost.milestone <= opened.milestone
    ),
    -- What is around and which step it is from each milestone to the next.
    settings AS (
        SELECT
            milestones.thread_id,
            milestones.milestone,
            if(depth = 0, '', path) AS path,
            if(time_ns < windows.end_ns AND is_steady, step, NULL) AS step,
            lead(time_ns) OVER along AS next_ns,
            lead(if(time_ns < windows.end_ns AND is_steady, step, NULL)) OVER along AS next_step
        FROM milestones
        JOIN threads USING (thread_id)
        ASOF LEFT JOIN opened_paths AS opened
            ON opened.layer = {'thread_id': milestones.thread_id, 'depth': depth}
            AND opened.milestone <= milestones.milestone
        ASOF LEFT JOIN windows
            ON windows.key = threads.key AND windows.start_ns <= milestones.time_ns
        WINDOW along AS (PARTITION BY milestones.thread_id ORDER BY milestones.milestone)
    ),
    stretches AS (
        SELECT
            thread_id,
            time_ns,
            spent_ns,
            change,
            edge_id,
            number,
            milestone,
            name_id,
            place,
            coalesce(name_id, -1) < 0 AS is_bare,
            is_bare AND is_loop AND spent_ns >= pause_ns AS is_pause
        FROM innermost
        CROSS JOIN limits
        JOIN threads USING (thread_id)
        WHERE spent_ns IS NOT NULL AND (name_id IS NOT NULL OR is_loop)
    ),
    -- Added up as numbers, before they have names. The longest is told by one number, the least:
    -- of the lowest place, or of none.
    sums AS (
        SELECT
            thread_id,
            milestone,
            name_id,
            if(spent_ns > 0, NULL, time_ns) AS moment_ns,
            sum(spent_ns) AS spent_ns,
            count(*) FILTER (change = 1 OR is_bare) AS calls_count,
            max(spent_ns) AS longest_ns,
            min(
                coalesce(place, 9223372036854775807) - spent_ns * 9223372036854775808
            ) + max(spent_ns) * 9223372036854775808 AS longest_place
        FROM stretches
        WHERE NOT is_pause
        GROUP BY thread_id, milestone, name_id, moment_ns
    ),
    pauses AS (
        SELECT
            threads.key,
            threads.source_id,
            stretches.place,
            path,
            stretches.time_ns,
            stretches.time_ns + stretches.spent_ns AS end_ns,
            step,
            next_ns,
            next_step,
            -- From its own start to its own end.
            stretches.change = 1 AND following.change = -1 AND following.place = stretches.place
                AS is_whole,
            CASE stretches.change
                WHEN 1 THEN 'the start of ' WHEN 0 THEN 'the step''s start' ELSE ''
            END
            || coalesce(edge.name, '') AS after_name,
            CASE following.change
                WHEN 1 THEN '' WHEN 0 THEN 'the step''s end' ELSE 'the end of '
            END
            || coalesce(next_edge.name, '') AS before_name
        FROM stretches
        JOIN threads USING (thread_id)
        JOIN settings USING (thread_id, milestone)
        JOIN depths AS following
            ON following.thread_id = stretches.thread_id
            AND following.number = stretches.number + 1
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
        FROM numbered
        JOIN threads USING (thread_id)
        WHERE NOT is_loop
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
            if(moment_ns = next_ns, next_step, step) AS step,
            if(coalesce(kind, 'range') = 'range', 'between', kind) AS kind,
            path,
            if(kind = 'range', NULL, name) AS name,
            spent_ns,
            calls_count,
            longest_ns,
            source_id,
            CAST(nullif(longest_place, 9223372036854775807) AS BIGINT) AS place
        FROM sums
        JOIN threads USING (thread_id)
        LEFT JOIN names USING (name_id)
        JOIN settings USING (thread_id, milestone)
        UNION ALL
        SELECT
            key,
            step,
            'wait',
            path,
            NULL,
            resumed_ns - time_ns,
            1,
            resumed_ns - time_ns,
            source_id,
            place
        FROM resumed
        WHERE resumed_ns > time_ns
        UNION ALL
        SELECT
            resumed.key,
            if(resumed_ns = next_ns, next_step, step),
            if(is_whole, 'range', 'pause'),
            path,
            if(is_whole, NULL, 'between ' || after_name || ' and ' || before_name),
            end_ns - resumed_ns - (at_end.covered_ns - at_start.covered_ns) AS spent_ns,
            1,
            spent_ns,
            source_id,
            place
        FROM resumed
        JOIN covered AS at_start
            ON at_start.key = resumed.key AND at_start.time_ns = resumed_ns
        JOIN covered AS at_end
            ON at_end.key = resumed.key AND at_end.time_ns = resumed.end_ns
    ),
    device_work AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            start_ns AS time_ns,
            category = 'kernel' AS is_kernel,
            name,
            dur_ns AS spent_ns,
            source_id,
            place
        FROM gpu_op
        WHERE
            class <> 'communication'
            AND rank BETWEEN first_rank AND last_rank
            AND start_ns BETWEEN first_ns AND last_ns
    ),
    device_parts AS (
        SELECT
            work.key,
            step,
            is_kernel,
            name,
            source_id,
            sum(spent_ns) AS spent_ns,
            count(*) AS calls_count,
            max(spent_ns) AS longest_ns,
            min(
                coalesce(place, 9223372036854775807) - spent_ns * 9223372036854775808
            ) + max(spent_ns) * 9223372036854775808 AS longest_place
        FROM device_work AS work
        ASOF JOIN windows ON windows.key = work.key AND windows.start_ns <= work.time_ns
        WHERE work.time_ns < windows.end_ns AND is_steady
        GROUP BY work.key, step, is_kernel, name, source_id
    ),
    parts AS (
        SELECT
            key,
            step,
            'host' AS timeline,
            kind,
            path,
            coalesce(name, '') AS name,
            spent_ns,
            calls_count,
            longest_ns,
            source_id,
            place
        FROM host_parts
        WHERE step IS NOT NULL
        UNION ALL
        SELECT
            key,
            step,
            'device',
            if(is_kernel, 'kernel', 'copy'),
            '',
            coalesce(name, ''),
            spent_ns,
            calls_count,
            longest_ns,
            source_id,
            CAST(nullif(longest_place, 9223372036854775807) AS BIGINT)
        FROM device_parts
    ),
    step_parts AS (
        SELECT
            key,
            step,
            timeline,
            kind,
            path,
            name,
            sum(spent_ns) AS spent_ns,
            sum(calls_count) AS calls_count,
            max(longest_ns) AS longest_ns,
            arg_min(
                {'source_id': source_id, 'place': place},
                {'shortness_ns': -longest_ns, 'source_id': source_id, 'place': place}
            ) AS longest
        FROM parts
        GROUP BY key, step, timeline, kind, path, name
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
FROM time_spent_of(0, 2147483647, -9223372036854775807, 9223372036854775807);
