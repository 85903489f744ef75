-- How much longer each pipeline stage computes than the others: than the median of them.
--
-- Stages wait for the longest of them in every microbatch. A stage is held against the others,
-- itself not among them: of two stages against the other one. It counts with the lower median of
-- its ranks, so that one slow GPU does not pass for a heavy stage (of two ranks the faster one
-- counts). Steady steps only.
--
-- reads: pipeline_op, step
-- needs: pipeline_op
-- grain: attempt, stage
-- asked: report
-- column: stage INTEGER : Pipeline coordinate.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: ranks INTEGER[] : Ranks of the stage.
-- column: forward_ns DOUBLE : Forward computation of a microbatch.
-- column: backward_ns DOUBLE : Backward computation of a microbatch, its weight part included.
-- column: compute_ns DOUBLE : Both.
-- column: forward_ratio DOUBLE : Over the median of the other stages.
-- column: backward_ratio DOUBLE : Over the median of the other stages.
-- column: compute_ratio DOUBLE : Over the median of the other stages.
-- column: steps_count BIGINT : Steps that were compared.
-- column: slow_steps_count BIGINT : Steps in which it computed 1.1 times what they did, or more.
-- column: microbatches_count DOUBLE : Microbatches a step, chunks counted apart.
-- column: replicas_count BIGINT : Replicas that were seen.
-- column: stages_count BIGINT : Stages that were seen.
WITH
    rank_steps AS (
        SELECT
            attempt,
            capture_id,
            step,
            pp_rank AS stage,
            dp_rank,
            rank,
            count(*) FILTER (WHERE operation = 'forward-compute') AS microbatches,
            sum(end_ns - start_ns) FILTER (WHERE operation = 'forward-compute')
            / CAST(nullif(microbatches, 0) AS DOUBLE) AS forward_ns,
            sum(end_ns - start_ns) FILTER (WHERE operation <> 'forward-compute')
            / CAST(nullif(microbatches, 0) AS DOUBLE) AS backward_ns
        FROM pipeline_op
        ANTI JOIN unsteady_steps() AS unsteady USING (attempt, capture_id, step)
        WHERE operation IN ('forward-compute', 'backward-compute', 'weight-compute')
        GROUP BY ALL
    ),
    stage_steps AS (
        SELECT
            attempt,
            capture_id,
            step,
            stage,
            quantile_disc(forward_ns, 0.5) AS forward_ns,
            quantile_disc(backward_ns, 0.5) AS backward_ns,
            quantile_disc(coalesce(forward_ns, 0) + coalesce(backward_ns, 0), 0.5) AS compute_ns
        FROM rank_steps
        GROUP BY ALL
    ),
    judged AS (
        SELECT
            *,
            median(compute_ns) OVER (
                PARTITION BY attempt, capture_id, step
                ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW
            ) AS others_ns
        FROM stage_steps
    ),
    stages AS (
        SELECT
            attempt,
            stage,
            avg(forward_ns) AS forward_ns,
            avg(backward_ns) AS backward_ns,
            avg(compute_ns) AS compute_ns,
            count(*) AS steps_count,
            count(*) FILTER (WHERE compute_ns >= 1.1 * others_ns) AS slow_steps_count
        FROM judged
        GROUP BY ALL
    ),
    members AS (
        SELECT
            attempt,
            stage,
            list(DISTINCT rank ORDER BY rank) AS ranks,
            avg(microbatches) AS microbatches_count,
            count(DISTINCT dp_rank) AS replicas_count
        FROM rank_steps
        GROUP BY ALL
    )
SELECT
    stage,
    attempt,
    ranks,
    forward_ns,
    backward_ns,
    compute_ns,
    forward_ns / coalesce(median(forward_ns) OVER others, forward_ns) AS forward_ratio,
    backward_ns / coalesce(median(backward_ns) OVER others, backward_ns) AS backward_ratio,
    compute_ns / coalesce(median(compute_ns) OVER others, compute_ns) AS compute_ratio,
    steps_count,
    slow_steps_count,
    microbatches_count,
    replicas_count,
    count(*) OVER (PARTITION BY attempt) AS stages_count
FROM stages
INNER JOIN members USING (attempt, stage)
WINDOW
    others AS (
        PARTITION BY attempt
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW
    )
ORDER BY attempt, stage;
