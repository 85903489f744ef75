-- How long each pipeline stage of each replica stood idle in a step, beside what it cannot avoid.
--
-- The window is the replica's: from its first forward to its last backward. Gradient reduction
-- and the optimizer lie outside. bubble_ratio is idle over window, bubble_overhead_ratio idle
-- over busy; they are never the same number. A stage is busy while one of its operations is
-- under way, from the operation's first to its last kernel: what an operation waits for in between
-- (tensor parallelism, the gathers of FSDP, launches) is communication that nothing hides, not
-- bubble; what it waits for before its first kernel is idle time. Busy is the mean of the stage's
-- ranks, which do the same work (tensor parallel). Theory is GPipe's, 1F1B's and the interleaved
-- schedule's; where weight gradients run apart it is ZB-H1's, (p-1)(F + B - W), with the replica's
-- mean times of forward F, backward for inputs B and weight part W: with all alike a third.
--
-- reads: pipeline_op, step
-- needs: pipeline_op
-- grain: attempt, capture_id, replica, stage, step
-- asked: report
-- column: replica INTEGER : Data coordinate.
-- column: stage INTEGER : Pipeline coordinate.
-- column: step BIGINT : Step.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: window_ns BIGINT : First forward to last backward of the replica.
-- column: busy_ns BIGINT : Forward, backward and weight computation of the stage.
-- column: bubble_ratio DOUBLE : Idle over window.
-- column: bubble_overhead_ratio DOUBLE : Idle over busy; null where nothing ran.
-- column: expected_bubble_ratio DOUBLE : (p-1) / (v m + p-1); with weight parts apart the next
--     over one more than itself.
-- column: expected_bubble_overhead_ratio DOUBLE : (p-1) / (v m); with weight parts apart times
--     (F + B - W) / (F + B + W).
-- column: stages_count BIGINT : p, stages that were seen in the step.
-- column: microbatches_count BIGINT : m, forwards of a chunk.
-- column: chunks_count BIGINT : v, model chunks of a stage.
-- column: is_warmup BOOLEAN : Before the job is steady, or cut by the window.
WITH
    compute AS (
        SELECT
            attempt,
            capture_id,
            step,
            dp_rank AS replica,
            pp_rank AS stage,
            rank,
            operation,
            coalesce(chunk, 0) AS chunk,
            start_ns,
            end_ns
        FROM pipeline_op
        WHERE operation IN ('forward-compute', 'backward-compute', 'weight-compute')
    ),
    windows AS (
        SELECT
            attempt,
            capture_id,
            step,
            replica,
            max(end_ns) - min(start_ns) AS window_ns,
            count(DISTINCT stage) AS stages_count,
            avg(end_ns - start_ns) FILTER (operation = 'forward-compute') AS forward_ns,
            avg(end_ns - start_ns) FILTER (operation = 'backward-compute') AS backward_ns,
            avg(end_ns - start_ns) FILTER (operation = 'weight-compute') AS weight_ns
        FROM compute
        GROUP BY ALL
    ),
    stages AS (
        SELECT
            attempt,
            capture_id,
            step,
            replica,
            stage,
            CAST(sum(end_ns - start_ns) / count(DISTINCT rank) AS BIGINT) AS busy_ns,
            count(*) FILTER (WHERE operation = 'forward-compute')
            // count(DISTINCT rank) // count(DISTINCT chunk) AS microbatches_count,
            count(DISTINCT chunk) AS chunks_count
        FROM compute
        GROUP BY ALL
    ),
    theory AS (
        SELECT
            *,
            CAST(stages_count - 1 AS DOUBLE)
            * if(
                weight_ns > 0,
                greatest(0, forward_ns + backward_ns - weight_ns)
                / (forward_ns + backward_ns + weight_ns),
                1.0
            )
            / nullif(microbatches_count * chunks_count, 0) AS expected_bubble_overhead_ratio
        FROM stages
        INNER JOIN windows USING (attempt, capture_id, step, replica)
    )
SELECT
    replica,
    stage,
    step,
    attempt,
    capture_id,
    window_ns,
    busy_ns,
    (window_ns - busy_ns) / nullif(CAST(window_ns AS DOUBLE), 0) AS bubble_ratio,
    (window_ns - busy_ns) / nullif(CAST(busy_ns AS DOUBLE), 0) AS bubble_overhead_ratio,
    expected_bubble_overhead_ratio / (1 + expected_bubble_overhead_ratio) AS expected_bubble_ratio,
    expected_bubble_overhead_ratio,
    stages_count,
    microbatches_count,
    chunks_count,
    unsteady.step IS NOT NULL AS is_warmup
FROM theory
LEFT JOIN unsteady_steps() AS unsteady USING (attempt, capture_id, step)
ORDER BY attempt, capture_id, step, replica, stage;
