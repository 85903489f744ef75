-- How long compiling stopped each step of each rank, and how much nothing hid.
--
-- The evidence of recompile: ranges of torch.compile (dynamo_timed) on the thread that runs the
-- steps, which newer versions record as operators. What compiled code does when it runs has other
-- names and does not count. Compiling costs nothing while the GPU still has work queued.
--
-- reads: annotation, host_op, step, gpu_op, collective
-- grain: attempt, rank, capture_id, step
-- param: over VARCHAR = 'steps' | 'windows' : 'windows': where nothing marks steps, the two
--     halves (0, 1) of what each capture shows of the device, from first launch to last end.
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: step BIGINT : Job-level step; steps without such a range are absent.
-- column: stall_ns BIGINT : Time of the step inside such ranges; their union.
-- column: exposed_ns BIGINT : The part of it that nothing hid.
-- column: ranges_count BIGINT : Ranges that reach into the step; nested ones count too.
-- column: longest_ns BIGINT : The longest of them, whole.
-- column: source_id INTEGER : Source of the longest.
-- column: place BIGINT : Place of the longest in its source.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    marks AS (
        SELECT annotation.* REPLACE (
            if(domain = 'user' AND contains(name, '(dynamo_timed)'), 'compile', domain) AS domain
        )
        FROM annotation
        UNION ALL BY NAME
        SELECT
            source_id,
            place,
            attempt,
            rank,
            capture_id,
            thread,
            start_ns,
            dur_ns,
            'compile' AS domain
        FROM host_op
        WHERE category = 'operator' AND suffix(name, '(dynamo_timed)')
    )
FROM host_stalls(
    'marks', 'compile', ['checkpoint'], ['compute', 'communication', 'memory', 'other'], $over
)
ORDER BY attempt, rank, capture_id, step;
