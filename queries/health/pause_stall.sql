-- How long each step's GPU idled while its host recorded nothing, and where the host stood then.
--
-- The evidence of host-pause in every step. Between two events (a call or operator that begins or
-- ends, on a thread that launches or that marks the steps) nothing is known of the host: it runs
-- code that no range names, or is not run at all. Such a stretch costs what the GPU idles in it,
-- up to the launch of what then begins; where no launch was recorded nothing is known.
-- Shorter ones than pause_ns are how long a program takes from call to call. Time inside a fetch, a
-- collection, a save, a compilation, a call of the driver or a communication is left to these.
--
-- reads: host_op, gpu_op, step, annotation
-- needs: host_op
-- grain: attempt, rank, capture_id, step
-- param: over VARCHAR = 'steps' | 'windows' : 'windows': where nothing marks steps, the two
--     halves (0, 1) of what each capture shows of the device, from first launch to last end.
-- param: pause_ns BIGINT = 1000000 : Least idle time, and least stretch, that is a pause.
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: step BIGINT : Job-level step; steps without such a stretch are absent.
-- column: stall_ns BIGINT : Time of the step in such stretches.
-- column: exposed_ns BIGINT : GPU idle time in them.
-- column: ranges_count BIGINT : Stretches that begin in the step.
-- column: longest_ns BIGINT : The longest idle time in one.
-- column: kind VARCHAR : Where most of exposed_ns lies: range (inside a named one), operator or
--     between (two events).
-- column: name VARCHAR : Name of that range or operator, or what it lies between.
-- column: part_ns BIGINT : The part of exposed_ns that lies there.
-- column: source_id INTEGER : Source of the event that the longest begins with.
-- column: place BIGINT : Place of that event.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    threads AS (
        SELECT source_id, launch_thread AS thread
        FROM gpu_op
        WHERE launch_thread IS NOT NULL
        UNION
        SELECT source_id, thread
        FROM annotation
        WHERE domain = 'profiler_step' AND NOT coalesce(is_gpu_twin, FALSE)
    ),
    gpu_work AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            start_ns,
            start_ns + dur_ns AS end_ns,
            launch_start_ns
        FROM gpu_op
    ),
    idle AS (
        SELECT
            key,
            end_ns AS start_ns,
            lead(start_ns) OVER (PARTITION BY key ORDER BY start_ns) AS end_ns
        FROM device_stretches()
        WHERE layer = 0
        QUALIFY lead(start_ns) OVER (PARTITION BY key ORDER BY start_ns) - end_ns >= $pause_ns
    ),
    -- What was launched before the device idled waited for something else than the host.
    gaps AS MATERIALIZED (
        SELECT idle.key, idle.start_ns, min(launch_start_ns) AS end_ns
        FROM idle
        JOIN gpu_work ON gpu_work.key = idle.key AND gpu_work.start_ns = idle.end_ns
        GROUP BY idle.key, idle.start_ns
        HAVING min(launch_start_ns) - idle.start_ns >= $pause_ns
    ),
    events AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            source_id,
            place,
            if(category IN ('runtime', 'driver'), 'call', 'operator') AS kind,
            name,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM host_op
        SEMI JOIN threads USING (source_id, thread)
        WHERE rank IS NOT NULL AND key IN (SELECT key FROM gaps)
        UNION ALL
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            source_id,
            place,
            CASE
                WHEN domain IN ('python_input', 'python_gc', 'checkpoint') THEN 'other'
                WHEN contains(name, '(dynamo_timed)') THEN 'other'
                WHEN domain = 'profiler_step' THEN 'step'
                WHEN domain = 'module' THEN 'around'
                ELSE 'range'
            END,
            name,
            start_ns,
            start_ns + dur_ns
        FROM annotation
        SEMI JOIN threads USING (source_id, thread)
        WHERE
            rank IS NOT NULL
            AND key IN (SELECT key FROM gaps)
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND source_id IN (SELECT DISTINCT source_id FROM host_op)
    ),
    moments AS (
        SELECT key, unnest([start_ns, end_ns]) AS time_ns
        FROM events
    ),
    -- Half a pause at a time, so that few rows are sorted: moments that are a pause apart lie in
    -- different halves (of which the one around 0 is twice as long).
    lively AS (
        SELECT
            key,
            time_ns // greatest($pause_ns // 2, 1) AS half,
            min(time_ns) AS first_ns,
            max(time_ns) AS last_ns
        FROM moments
        GROUP BY key, half
    ),
    stretches AS (
        SELECT key, last_ns AS start_ns, lead(first_ns) OVER along AS end_ns
        FROM lively
        WINDOW along AS (PARTITION BY key ORDER BY half)
        QUALIFY lead(first_ns) OVER along - last_ns >= $pause_ns
    ),
    -- Of a stretch and a gap that share time one begins in the other.
    quiet AS MATERIALIZED (
        SELECT
            key,
            start_ns,
            end_ns,
            greatest(start_ns, gap_start_ns) AS idle_since_ns,
            least(end_ns, gap_end_ns) - greatest(start_ns, gap_start_ns) AS idle_ns
        FROM (
            SELECT stretches.*, gaps.start_ns AS gap_start_ns, gaps.end_ns AS gap_end_ns
            FROM gaps
            ASOF JOIN stretches
                ON gaps.key = stretches.key AND gaps.start_ns >= stretches.start_ns
            UNION ALL
            SELECT stretches.*, gaps.start_ns, gaps.end_ns
            FROM stretches
            ASOF JOIN gaps ON gaps.key = stretches.key AND stretches.start_ns > gaps.start_ns
        )
        WHERE idle_ns >= $pause_ns
    ),
    ends AS (
        SELECT key, start_ns AS time_ns FROM quiet
        UNION
        SELECT key, end_ns FROM quiet
    ),
    -- What begins and ends at one moment is one edge; it has the name of what ends.
    edges AS (
        SELECT
            key,
            time_ns,
            min({
                'is_start': is_start,
                'place': place,
                'source_id': source_id,
                'kind': kind,
                'name': name
            }) AS event
        FROM (
            SELECT events.* EXCLUDE (start_ns, end_ns), start_ns AS time_ns, TRUE AS is_start
            FROM events
            SEMI JOIN ends ON ends.key = events.key AND ends.time_ns = events.start_ns
            UNION ALL
            SELECT events.* EXCLUDE (start_ns, end_ns), end_ns, FALSE
            FROM events
            SEMI JOIN ends ON ends.key = events.key AND ends.time_ns = events.end_ns
        )
        GROUP BY key, time_ns
    ),
    silent AS MATERIALIZED (
        SELECT
            quiet.*,
            first_edge.event.source_id AS source_id,
            first_edge.event.place AS place,
            if(
                first_edge.event.kind = 'step',
                'the step''s start',
                if(first_edge.event.is_start, 'the start of ', '') || first_edge.event.name
            ) AS after_name,
            if(
                last_edge.event.kind = 'step',
                'the step''s end',
                if(last_edge.event.is_start, '', 'the end of ') || last_edge.event.name
            ) AS before_name
        FROM quiet
        JOIN edges AS first_edge
            ON first_edge.key = quiet.key AND first_edge.time_ns = quiet.start_ns
        JOIN edges AS last_edge
            ON last_edge.key = quiet.key AND last_edge.time_ns = quiet.end_ns
    ),
    -- Around a stretch lie few of these, at the other ends of the trace thousands. So each is found
    -- by where it lies in pieces of time that are a little longer than it is: one or two.
    long_events AS (
        SELECT
            key,
            kind,
            name,
            start_ns,
            end_ns,
            CAST(1 AS BIGINT) << (CAST(floor(log2(end_ns - start_ns)) AS INTEGER) + 1) AS piece_ns
        FROM events
        WHERE end_ns - start_ns >= greatest($pause_ns, 1)
    ),
    long_pieces AS (
        SELECT long_events.*, start_ns // piece_ns AS piece
        FROM long_events
        UNION ALL
        SELECT long_events.*, end_ns // piece_ns
        FROM long_events
        WHERE end_ns // piece_ns <> start_ns // piece_ns
    ),
    silent_pieces AS (
        SELECT silent.*, piece_ns, silent.start_ns // piece_ns AS piece
        FROM silent
        JOIN (SELECT DISTINCT key, piece_ns FROM long_events) AS lengths USING (key)
    ),
    surrounded AS (
        SELECT
            silent_pieces.key,
            silent_pieces.start_ns,
            silent_pieces.idle_since_ns,
            bool_or(
                long_pieces.kind IN ('other', 'call')
                OR long_pieces.name = 'record_param_comms'
                OR starts_with(long_pieces.name, 'c10d::')
            ) AS is_explained,
            max_by(
                {'kind': long_pieces.kind, 'name': long_pieces.name},
                {
                    'start_ns': long_pieces.start_ns,
                    'shortness_ns': -long_pieces.end_ns,
                    'name': long_pieces.name
                }
            ) FILTER (long_pieces.kind IN ('range', 'operator')) AS inside
        FROM silent_pieces
        JOIN long_pieces
            ON long_pieces.key = silent_pieces.key
            AND long_pieces.piece_ns = silent_pieces.piece_ns
            AND long_pieces.piece = silent_pieces.piece
            AND long_pieces.start_ns <= silent_pieces.start_ns
            AND long_pieces.end_ns >= silent_pieces.end_ns
        GROUP BY silent_pieces.key, silent_pieces.start_ns, silent_pieces.idle_since_ns
    ),
    placed AS (
        SELECT
            silent.*,
            coalesce(inside.kind, 'between') AS kind,
            coalesce(inside.name, 'between ' || after_name || ' and ' || before_name) AS name
        FROM silent
        LEFT JOIN surrounded USING (key, start_ns, idle_since_ns)
        WHERE NOT coalesce(is_explained, FALSE)
    ),
    step_keys AS (
        SELECT capture_key(attempt, rank, capture_id) AS key, step, start_ns, end_ns
        FROM judged_steps($over)
    ),
    step_parts AS (
        SELECT
            placed.key,
            step,
            kind,
            name,
            sum(idle_ns) AS exposed_ns,
            sum(placed.end_ns - placed.start_ns) AS stall_ns,
            count(*) AS ranges_count,
            max(idle_ns) AS longest_ns,
            arg_min(
                {'source_id': source_id, 'place': place},
                {'shortness_ns': -idle_ns, 'source_id': source_id, 'place': place}
            ) AS longest
        FROM placed
        ASOF JOIN step_keys
            ON step_keys.key = placed.key AND step_keys.start_ns <= placed.idle_since_ns
        WHERE placed.idle_since_ns < step_keys.end_ns
        GROUP BY placed.key, step, kind, name
    )
SELECT
    rank_of(key) AS rank,
    capture_id_of(key) AS capture_id,
    step,
    CAST(sum(stall_ns) AS BIGINT) AS stall_ns,
    CAST(sum(exposed_ns) AS BIGINT) AS exposed_ns,
    CAST(sum(ranges_count) AS BIGINT) AS ranges_count,
    max(longest_ns) AS longest_ns,
    arg_min(kind, {'shortness_ns': -exposed_ns, 'name': name}) AS kind,
    arg_min(name, {'shortness_ns': -exposed_ns, 'name': name}) AS name,
    CAST(max(exposed_ns) AS BIGINT) AS part_ns,
    arg_min(longest, {'shortness_ns': -longest_ns, 'longest': longest}).source_id AS source_id,
    arg_min(longest, {'shortness_ns': -longest_ns, 'longest': longest}).place AS place,
    attempt_of(key) AS attempt
FROM step_parts
GROUP BY key, step
ORDER BY attempt, rank, capture_id, step;
