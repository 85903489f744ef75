-- How long each step of each rank waited for its GPU, and how long the GPU idled for it after.
--
-- The evidence of sync-stall. Waiting inside a synchronising call costs nothing by itself: the GPU
-- works meanwhile. What costs is that no work was queued behind it. Without the call the host
-- would have been ahead by the time it waited, so the idle time after the call would shrink by
-- that, and by no more: exposed_ns is the smaller of the two, summed over the calls. A call that
-- found the GPU idle already waited for nothing and counts for nothing. Idle time inside a fetch,
-- a collection, a save, a compilation or an allocation is left to those. Only threads that launch
-- work on the GPU are seen, where launches were recorded.
--
-- reads: host_op, gpu_op, step, annotation
-- needs: host_op
-- grain: attempt, rank, capture_id, step
-- param: over VARCHAR = 'steps' | 'windows' : 'windows': where nothing marks steps, the two
--     halves (0, 1) of what each capture shows of the device, from first launch to last end.
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: step BIGINT : Job-level step; steps without such a call are absent.
-- column: stall_ns BIGINT : Time of the step inside synchronising calls; their union.
-- column: exposed_ns BIGINT : GPU idle time that these calls caused.
-- column: ranges_count BIGINT : Synchronising calls that begin in the step.
-- column: longest_ns BIGINT : The longest of them.
-- column: source_id INTEGER : Source of the longest.
-- column: place BIGINT : Place of the longest in its source.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    launch_threads AS (
        SELECT DISTINCT source_id, launch_thread AS thread
        FROM gpu_op
        WHERE launch_thread IS NOT NULL
    ),
    sources_with_launches AS (SELECT DISTINCT source_id FROM launch_threads),
    calls AS MATERIALIZED (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            source_id,
            place,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM host_op
        WHERE
            rank IS NOT NULL
            AND dur_ns > 0
            AND (
                (category IN ('runtime', 'driver') AND name IN (
                    'cudaDeviceSynchronize', 'cudaStreamSynchronize', 'cudaEventSynchronize',
                    'cudaMemcpy', 'cuCtxSynchronize', 'cuStreamSynchronize', 'cuEventSynchronize',
                    'hipDeviceSynchronize', 'hipStreamSynchronize', 'hipEventSynchronize',
                    'hipMemcpy', 'hipMemcpyWithStream'
                ))
                OR (category = 'operator' AND name IN ('aten::item', 'aten::_local_scalar_dense'))
            )
            AND (
                source_id NOT IN (SELECT source_id FROM sources_with_launches)
                OR EXISTS (
                    SELECT 1 FROM launch_threads
                    WHERE launch_threads.source_id = host_op.source_id
                        AND launch_threads.thread = host_op.thread
                )
            )
    ),
    gaps AS MATERIALIZED (
        SELECT
            key,
            end_ns AS start_ns,
            lead(start_ns) OVER (PARTITION BY key ORDER BY start_ns) AS end_ns
        FROM device_stretches()
        WHERE layer = 0
        QUALIFY end_ns IS NOT NULL
    ),
    caused_gaps AS MATERIALIZED (
        -- The GPU ran dry while the host waited in the call: the call was still open.
        SELECT
            gaps.key,
            gaps.start_ns,
            gaps.end_ns,
            gaps.start_ns - calls.start_ns AS waited_ns
        FROM gaps
        ASOF JOIN calls ON gaps.key = calls.key AND gaps.start_ns > calls.start_ns
        WHERE calls.end_ns >= gaps.start_ns AND gaps.end_ns IS NOT NULL
    ),
    other_stalls AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM annotation
        WHERE
            (
                domain IN ('python_input', 'python_gc', 'checkpoint')
                OR (domain = 'user' AND contains(name, '(dynamo_timed)'))
            )
            AND NOT coalesce(is_gpu_twin, FALSE)
        UNION ALL
        SELECT
            capture_key(attempt, rank, capture_id),
            start_ns,
            start_ns + dur_ns
        FROM host_op
        WHERE
            category IN ('runtime', 'driver')
            AND name IN (
                'cudaMalloc', 'cudaFree', 'cuMemCreate', 'cuMemUnmap', 'hipMalloc', 'hipFree'
            )
    ),
    other_stretches AS (
        SELECT key, start_ns, end_ns FROM merged_intervals('other_stalls')
    ),
    -- Few gaps are another's in part: only these are cut.
    shared_gaps AS MATERIALIZED (
        SELECT gaps.key, gaps.start_ns, gaps.end_ns
        FROM caused_gaps AS gaps
        ASOF JOIN other_stretches AS others
            ON gaps.key = others.key AND gaps.end_ns > others.start_ns
        WHERE others.end_ns > gaps.start_ns
    ),
    own_parts AS (
        SELECT gaps.key, gaps.start_ns, sum(pieces.end_ns - pieces.start_ns) AS own_ns
        FROM difference_intervals('shared_gaps', 'other_stretches') AS pieces
        ASOF JOIN shared_gaps AS gaps
            ON gaps.key = pieces.key AND pieces.start_ns >= gaps.start_ns
        GROUP BY gaps.key, gaps.start_ns
    ),
    gap_times AS (
        SELECT
            gaps.key,
            gaps.start_ns,
            least(
                waited_ns,
                if(shared_gaps.key IS NULL, gaps.end_ns - gaps.start_ns, coalesce(own_ns, 0))
            ) AS exposed_ns
        FROM caused_gaps AS gaps
        LEFT JOIN shared_gaps USING (key, start_ns)
        LEFT JOIN own_parts USING (key, start_ns)
    ),
    step_keys AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            step,
            start_ns,
            end_ns
        FROM judged_steps($over)
    ),
    step_gaps AS (
        SELECT key, step, sum(exposed_ns) AS exposed_ns
        FROM gap_times
        JOIN step_keys USING (key)
        WHERE gap_times.start_ns >= step_keys.start_ns AND gap_times.start_ns < step_keys.end_ns
        GROUP BY key, step
    ),
    step_calls AS (
        SELECT
            key,
            step,
            count(*) FILTER (calls.start_ns >= step_keys.start_ns) AS ranges_count,
            max(calls.end_ns - calls.start_ns) AS longest_ns,
            arg_min(
                {'source_id': source_id, 'place': place},
                {
                    'shortness_ns': calls.start_ns - calls.end_ns,
                    'source_id': source_id,
                    'place': place
                }
            ) AS longest
        FROM calls
        JOIN step_keys USING (key)
        WHERE calls.start_ns < step_keys.end_ns AND calls.end_ns > step_keys.start_ns
        GROUP BY key, step
    ),
    step_intervals AS (
        SELECT
            {'key': key, 'step': step} AS key,
            greatest(calls.start_ns, step_keys.start_ns) AS start_ns,
            least(calls.end_ns, step_keys.end_ns) AS end_ns
        FROM calls
        JOIN step_keys USING (key)
        WHERE calls.start_ns < step_keys.end_ns AND calls.end_ns > step_keys.start_ns
    )
SELECT
    rank_of(step_calls.key) AS rank,
    capture_id_of(step_calls.key) AS capture_id,
    step_calls.step AS step,
    waiting.busy_ns AS stall_ns,
    CAST(coalesce(step_gaps.exposed_ns, 0) AS BIGINT) AS exposed_ns,
    ranges_count,
    longest_ns,
    longest.source_id AS source_id,
    longest.place AS place,
    attempt_of(step_calls.key) AS attempt
FROM step_calls
JOIN busy_time('step_intervals') AS waiting
    ON waiting.key.key = step_calls.key AND waiting.key.step = step_calls.step
LEFT JOIN step_gaps ON step_gaps.key = step_calls.key AND step_gaps.step = step_calls.step
ORDER BY attempt, rank, capture_id, step;
