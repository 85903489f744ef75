-- Every call of steady steps, in order: operators, ranges, and what they launched on the device.
--
-- Two runs differ in what they call; compare builds the tree of calls of a step from these rows and
-- matches it with that of another run. Of each pipeline stage (of the job, where there is none) the
-- lowest rank that has steady steps, and of its steps as many as have max_calls calls together.
-- Calls of the training loop's thread, of autograd's, and of threads that launch work on a device.
-- A device operation stands where it was launched. Numbers in names of ranges are starred, so that
-- a range has one name in all steps; so are hashes of compiled graphs.
--
-- reads: annotation, gpu_op, host_op, rank, step
-- grain: source_id, place
-- param: max_calls BIGINT = 200000 : Most calls of a rank over all its steps; none where one step
--     has more.
-- column: rank INTEGER : Global rank.
-- column: stage INTEGER : Its pipeline stage; null without.
-- column: step BIGINT : Job-level step.
-- column: thread INTEGER : 0 the training loop's, others in the order in which they first call.
-- column: kind VARCHAR : operator, range, or on the device kernel (copies too) or communication.
-- column: name VARCHAR : Name.
-- column: start_ns BIGINT : Start on the host; of a device operation that of its launch.
-- column: end_ns BIGINT : End on the host; of a device operation equal to start_ns.
-- column: device_ns BIGINT : Duration on the device; null of what the host does.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Place in it.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    windows AS (
        SELECT
            attempt,
            rank,
            capture_id,
            step,
            capture_key(attempt, rank, capture_id) AS key,
            pp_rank AS stage,
            start_ns,
            end_ns,
            NOT is_warmup AND NOT is_partial AS is_steady
        FROM step_windows()
        LEFT JOIN (SELECT attempt, rank, pp_rank FROM rank) USING (attempt, rank)
    ),
    chosen AS (
        SELECT attempt, min(rank) AS rank
        FROM windows
        WHERE is_steady
        GROUP BY attempt, stage
    ),
    loops AS (FROM loop_threads()),
    workers AS (
        SELECT source_id, launch_thread AS thread
        FROM gpu_op
        WHERE launch_thread IS NOT NULL
        UNION
        SELECT source_id, thread
        FROM host_op
        WHERE starts_with(name, 'autograd::engine')
        UNION
        FROM loops
    ),
    events AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            source_id,
            place,
            thread,
            start_ns,
            start_ns + dur_ns AS end_ns,
            CAST(NULL AS BIGINT) AS device_ns,
            'operator' AS kind,
            regexp_replace(name, 'CompiledFxGraph \S+', 'CompiledFxGraph *') AS name
        FROM host_op
        SEMI JOIN chosen USING (attempt, rank)
        SEMI JOIN workers USING (source_id, thread)
        WHERE category = 'operator'
        UNION ALL
        SELECT
            capture_key(attempt, rank, capture_id),
            source_id,
            place,
            thread,
            start_ns,
            start_ns + dur_ns,
            NULL,
            'range',
            regexp_replace(
                regexp_replace(name, ', (seq|op_id|sizes|input_op_ids) = .*', ''),
                '[0-9]+', '*', 'g'
            )
        FROM annotation
        SEMI JOIN chosen USING (attempt, rank)
        SEMI JOIN loops USING (source_id, thread)
        WHERE
            domain NOT IN ('profiler_step', 'collective', 'python_gc')
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND dur_ns > 0
        UNION ALL
        SELECT
            capture_key(attempt, rank, capture_id),
            source_id,
            place,
            launch_thread,
            launch_start_ns,
            launch_start_ns,
            dur_ns,
            if(class = 'communication', class, 'kernel'),
            name
        FROM gpu_op
        SEMI JOIN chosen USING (attempt, rank)
        WHERE launch_start_ns IS NOT NULL
    ),
    stepped AS (
        SELECT
            windows.attempt,
            windows.rank,
            windows.capture_id,
            windows.step,
            windows.stage,
            events.source_id,
            events.place,
            events.thread,
            events.kind,
            events.name,
            events.start_ns,
            events.end_ns,
            events.device_ns
        FROM events
        ASOF JOIN windows ON windows.key = events.key AND windows.start_ns <= events.start_ns
        WHERE events.start_ns < windows.end_ns AND windows.is_steady
    ),
    steps AS (
        SELECT
            attempt,
            rank,
            capture_id,
            step,
            sum(count(*)) OVER (
                PARTITION BY attempt, rank ORDER BY capture_id, step
            ) AS calls_count
        FROM stepped
        GROUP BY attempt, rank, capture_id, step
    ),
    threads AS (
        SELECT
            source_id,
            thread,
            row_number() OVER (
                PARTITION BY source_id ORDER BY loops.thread IS NULL, min(start_ns), thread
            ) - 1 AS number
        FROM stepped
        LEFT JOIN loops USING (source_id, thread)
        GROUP BY source_id, thread, loops.thread
    )
SELECT
    rank,
    stage,
    step,
    CAST(number AS INTEGER) AS thread,
    kind,
    name,
    start_ns,
    end_ns,
    device_ns,
    source_id,
    place,
    attempt
FROM stepped
SEMI JOIN (FROM steps WHERE calls_count <= $max_calls) AS kept
    USING (attempt, rank, capture_id, step)
JOIN threads USING (source_id, thread)
ORDER BY
    attempt, rank, source_id, step, number, start_ns, end_ns DESC, device_ns NULLS FIRST, place;
