-- Whether the forward and the backward of a microbatch grow together, on each rank.
--
-- Sequences of unequal length make both longer; a pause of the host makes only the forward
-- longer. By rank, because one slow rank raises the value that is pooled over all. Steady steps.
--
-- reads: pipeline_op, step
-- needs: pipeline_op
-- grain: attempt, rank
-- column: rank INTEGER : Global rank.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: stage INTEGER : Pipeline coordinate.
-- column: replica INTEGER : Data coordinate.
-- column: correlation_ratio DOUBLE : Pearson's, over microbatches; null where one does not vary.
-- column: forward_cv_ratio DOUBLE : Standard deviation of the forward over its mean.
-- column: backward_cv_ratio DOUBLE : The same of the backward.
-- column: microbatches_count BIGINT : Pairs over all steps.
-- column: longest_steps_ratio DOUBLE : Share of steps in which it computed longest of its stage.
WITH
    compute AS (
        SELECT
            attempt, rank, pp_rank, dp_rank, capture_id, step, chunk, microbatch, sequence,
            operation, coalesce(compute_ns, end_ns - start_ns) AS busy_ns
        FROM pipeline_op
        ANTI JOIN unsteady_steps() AS unsteady USING (attempt, capture_id, step)
        WHERE operation IN ('forward-compute', 'backward-compute')
    ),
    pairs AS (
        SELECT
            attempt,
            rank,
            pp_rank AS stage,
            dp_rank AS replica,
            capture_id,
            step,
            coalesce(chunk, 0) AS chunk,
            coalesce(microbatch, sequence) AS microbatch,
            CAST(sum(busy_ns) FILTER (WHERE operation = 'forward-compute') AS DOUBLE)
                AS forward_ns,
            CAST(sum(busy_ns) FILTER (WHERE operation = 'backward-compute') AS DOUBLE)
                AS backward_ns
        FROM compute
        GROUP BY ALL
        HAVING forward_ns IS NOT NULL AND backward_ns IS NOT NULL
    ),
    totals AS (
        SELECT
            attempt,
            rank,
            stage,
            capture_id,
            step,
            sum(forward_ns + backward_ns) AS compute_ns
        FROM pairs
        GROUP BY ALL
    ),
    longest AS (
        SELECT
            attempt,
            rank,
            avg(CASE WHEN compute_ns = largest_ns THEN 1.0 ELSE 0.0 END) AS longest_steps_ratio
        FROM (
            SELECT
                *,
                max(compute_ns) OVER (PARTITION BY attempt, capture_id, step, stage) AS largest_ns
            FROM totals
        )
        GROUP BY ALL
    )
SELECT
    rank,
    attempt,
    stage,
    replica,
    CASE
        WHEN stddev_samp(forward_ns) > 0 AND stddev_samp(backward_ns) > 0
            THEN corr(forward_ns, backward_ns)
    END AS correlation_ratio,
    stddev_samp(forward_ns) / nullif(avg(forward_ns), 0) AS forward_cv_ratio,
    stddev_samp(backward_ns) / nullif(avg(backward_ns), 0) AS backward_cv_ratio,
    count(*) AS microbatches_count,
    any_value(longest_steps_ratio) AS longest_steps_ratio
FROM pairs
INNER JOIN longest USING (attempt, rank)
GROUP BY attempt, rank, stage, replica
ORDER BY attempt, rank;
