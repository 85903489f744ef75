-- How long each rank of the pipeline computes, against its peers and against all: the heat map.
--
-- Peers are the other replicas at the same stage: stages do different work by design. One hot
-- cell is a slow rank, a hot row (one stage) an imbalance, a hot column (one replica) its data
-- or its host. Steady steps only.
--
-- reads: pipeline_op, step
-- needs: pipeline_op
-- grain: attempt, rank
-- shows: device
-- param: slow_ratio DOUBLE = 1.1 : Computation of a step over its peers' that makes it a slow one.
-- column: rank INTEGER : Global rank.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: stage INTEGER : Pipeline coordinate (row).
-- column: replica INTEGER : Data coordinate (column).
-- column: compute_ns DOUBLE : Computation of a step, mean.
-- column: peer_ratio DOUBLE : Median over steps of its computation over its peers' median; null
--     without peers.
-- column: ratio DOUBLE : Its computation over the median rank's.
-- column: slow_steps_ratio DOUBLE : Share of steps that are slow.
-- column: steps_count BIGINT : Steps.
WITH
    rank_steps AS (
        SELECT
            attempt,
            capture_id,
            step,
            pp_rank AS stage,
            dp_rank AS replica,
            rank,
            sum(end_ns - start_ns) AS compute_ns
        FROM pipeline_op
        ANTI JOIN unsteady_steps() AS unsteady USING (attempt, capture_id, step)
        WHERE operation IN ('forward-compute', 'backward-compute', 'weight-compute')
        GROUP BY ALL
    ),
    gathered AS (
        SELECT
            *,
            list(compute_ns) OVER peers AS all_ns,
            list(replica) OVER peers AS replicas
        FROM rank_steps
        WINDOW peers AS (PARTITION BY attempt, capture_id, step, stage)
    ),
    compared AS (
        SELECT
            * EXCLUDE (all_ns, replicas),
            compute_ns / nullif(list_aggregate(
                [ns FOR ns, i IN all_ns IF replicas[i] <> replica], 'median'
            ), 0) AS step_ratio
        FROM gathered
    )
SELECT
    rank,
    attempt,
    stage,
    replica,
    avg(compute_ns) AS compute_ns,
    median(step_ratio) AS peer_ratio,
    avg(compute_ns) / median(avg(compute_ns)) OVER (PARTITION BY attempt) AS ratio,
    avg(CASE WHEN step_ratio >= $slow_ratio THEN 1.0 WHEN step_ratio IS NOT NULL THEN 0.0 END)
        AS slow_steps_ratio,
    count(*) AS steps_count
FROM compared
GROUP BY attempt, rank, stage, replica
ORDER BY attempt, stage, replica, rank;
