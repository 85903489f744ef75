-- How long the longest stage of each replica computed in each step.
--
-- Replicas meet at the end of the step: what the longest of them takes beyond their mean is lost
-- by all others. That is the price of microbatches of unequal length. Steady steps only.
--
-- reads: pipeline_op, step
-- needs: pipeline_op
-- grain: attempt, capture_id, step
-- column: step BIGINT : Step.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: replicas_count BIGINT : Replicas that were seen.
-- column: longest_ns DOUBLE : Computation of the longest replica's longest stage.
-- column: mean_ns DOUBLE : Mean over replicas of their longest stage.
-- column: longest_replica INTEGER : Which replica it was.
WITH
    ranks AS (
        SELECT
            attempt,
            capture_id,
            step,
            dp_rank AS replica,
            rank,
            sum(coalesce(compute_ns, end_ns - start_ns)) AS compute_ns
        FROM pipeline_op
        ANTI JOIN unsteady_steps() AS unsteady USING (attempt, capture_id, step)
        WHERE operation IN ('forward-compute', 'backward-compute', 'weight-compute')
        GROUP BY ALL
    ),
    replicas AS (
        SELECT
            attempt,
            capture_id,
            step,
            replica,
            max(compute_ns) AS compute_ns
        FROM ranks
        GROUP BY ALL
    )
SELECT
    step,
    attempt,
    capture_id,
    count(*) AS replicas_count,
    CAST(max(compute_ns) AS DOUBLE) AS longest_ns,
    avg(compute_ns) AS mean_ns,
    arg_max(replica, compute_ns) AS longest_replica
FROM replicas
GROUP BY attempt, capture_id, step
ORDER BY attempt, capture_id, step;
