-- How long each step of each rank was in calls that allocate or free device memory.
--
-- The evidence of allocator-stall. A caching allocator makes such calls in its first steps only;
-- later ones mean that it gives blocks back and asks for others. Freeing waits for the device: that
-- part is hidden and does not count.
--
-- reads: host_op, annotation, step, gpu_op, collective
-- needs: host_op
-- grain: attempt, rank, capture_id, step
-- param: over VARCHAR = 'steps' | 'windows' : 'windows': where nothing marks steps, the two
--     halves (0, 1) of what each capture shows of the device, from first launch to last end.
-- param: between_ns BIGINT = 50000 : Most between two calls that are right behind each other.
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: step BIGINT : Job-level step; steps without such a call are absent.
-- column: stall_ns BIGINT : Time of the step inside such calls; their union.
-- column: exposed_ns BIGINT : The part of it that nothing hid.
-- column: ranges_count BIGINT : Calls that reach into the step.
-- column: longest_ns BIGINT : The longest of them, whole.
-- column: source_id INTEGER : Source of the longest.
-- column: place BIGINT : Place of the longest in its source.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: freed_run_count BIGINT : Most blocks given back one right behind the other.
WITH
    loop_threads AS (
        SELECT source_id, min(thread) AS thread
        FROM annotation
        WHERE domain = 'profiler_step' AND NOT coalesce(is_gpu_twin, FALSE)
        GROUP BY source_id
    ),
    marks AS (
        SELECT
            attempt, rank, capture_id, domain, source_id, place, thread, start_ns, dur_ns,
            is_gpu_twin
        FROM annotation
        WHERE domain IN ('profiler_step', 'checkpoint')
        UNION ALL
        -- The backward's thread allocates too, so a call counts on whatever thread it was made.
        SELECT
            attempt,
            rank,
            capture_id,
            'allocator',
            source_id,
            place,
            coalesce(loop_threads.thread, host_op.thread),
            start_ns,
            dur_ns,
            FALSE
        FROM host_op
        LEFT JOIN loop_threads USING (source_id)
        WHERE
            category IN ('runtime', 'driver')
            AND name IN (
                'cudaMalloc', 'cudaFree', 'cudaHostAlloc', 'cudaFreeHost', 'cudaMallocHost',
                'cuMemAlloc_v2', 'cuMemFree_v2', 'cuMemCreate', 'cuMemMap', 'cuMemSetAccess',
                'cuMemUnmap', 'cuMemRelease', 'hipMalloc', 'hipFree', 'hipHostMalloc', 'hipHostFree'
            )
    ),
    -- Between tensors that go one by one a program runs; a cache that is emptied only frees.
    frees AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            start_ns,
            coalesce(
                start_ns - lag(start_ns + dur_ns) OVER along > $between_ns, TRUE
            ) AS is_new_run
        FROM host_op
        WHERE
            category IN ('runtime', 'driver')
            AND name IN ('cudaFree', 'cuMemFree_v2', 'cuMemUnmap', 'hipFree')
        WINDOW along AS (PARTITION BY source_id, thread ORDER BY start_ns, place)
    ),
    runs AS (
        SELECT
            key,
            start_ns,
            sum(CAST(is_new_run AS INTEGER)) OVER (PARTITION BY key ORDER BY start_ns) AS run
        FROM frees
    ),
    run_lengths AS (
        SELECT key, min(start_ns) AS start_ns, count(*) AS freed_count
        FROM runs
        GROUP BY key, run
    ),
    step_runs AS (
        SELECT run_lengths.key, step, max(freed_count) AS freed_run_count
        FROM run_lengths
        ASOF JOIN (
            SELECT capture_key(attempt, rank, capture_id) AS key, step, start_ns, end_ns
            FROM judged_steps($over)
        ) AS steps
            ON steps.key = run_lengths.key AND steps.start_ns <= run_lengths.start_ns
        WHERE run_lengths.start_ns < steps.end_ns
        GROUP BY run_lengths.key, step
    )
SELECT
    rank,
    capture_id,
    stalls.step AS step,
    stall_ns,
    exposed_ns,
    ranges_count,
    longest_ns,
    source_id,
    place,
    attempt,
    coalesce(freed_run_count, 0) AS freed_run_count
FROM host_stalls(
    'marks', 'allocator', ['checkpoint'], ['compute', 'communication', 'memory', 'other'], $over
) AS stalls
LEFT JOIN step_runs
    ON step_runs.key = capture_key(attempt, rank, capture_id) AND step_runs.step = stalls.step
ORDER BY attempt, rank, capture_id, step;
