-- Which operations the exposed communication of each rank belongs to.
--
-- Says which collective to hide first. Where several run at once, the time counts once, for the one
-- that started first (then the longer one), so the parts sum to the rank's communication and to its
-- exposed communication exactly as overlap states them.
--
-- reads: gpu_op, host_op, collective, annotation
-- grain: attempt, rank, op
-- column: rank INTEGER : Global rank.
-- column: op VARCHAR : all_reduce, all_gather, ...; unknown where the trace does not tell.
-- column: calls_count BIGINT : Operations.
-- column: comm_ns BIGINT : Time with communication running, as counted for this operation.
-- column: exposed_comm_ns BIGINT : The part of it in which the rank computed nothing.
-- column: exposed_ratio DOUBLE : exposed_comm_ns / comm_ns; null where comm_ns is 0.
-- column: measured_on VARCHAR : gpu, or host where the rank has no GPU operations.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    work AS MATERIALIZED (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            measured_on,
            op,
            start_ns,
            end_ns,
            source_id,
            place
        FROM rank_work('gpu_op', 'host_op')
        WHERE class = 'communication'
    ),
    compute_stretches AS (
        SELECT key, start_ns, end_ns
        FROM rank_compute()
    ),
    kernel_ops AS (
        SELECT source_id, gpu_op_place AS place, any_value(op ORDER BY op) AS op
        FROM collective
        WHERE gpu_op_place IS NOT NULL
        GROUP BY source_id, gpu_op_place
    ),
    communication AS (
        SELECT
            key,
            measured_on,
            coalesce(work.op, kernel_ops.op, 'unknown') AS op,
            start_ns,
            end_ns
        FROM work
        LEFT JOIN kernel_ops USING (source_id, place)
    ),
    -- An operation counts from where all that started before it have ended.
    pieces AS (
        SELECT
            key,
            measured_on,
            op,
            greatest(
                start_ns,
                coalesce(
                    max(end_ns) OVER (
                        PARTITION BY key ORDER BY start_ns, end_ns DESC, op
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                    ),
                    start_ns
                )
            ) AS start_ns,
            end_ns
        FROM communication
    ),
    counted AS (
        SELECT key, measured_on, op, start_ns, greatest(start_ns, end_ns) AS end_ns FROM pieces
    ),
    edges AS (
        SELECT key, start_ns AS time_ns FROM counted
        UNION
        SELECT key, end_ns FROM counted
    ),
    covered AS MATERIALIZED (
        SELECT key, time_ns, covered_ns FROM covered_before('compute_stretches', 'edges')
    ),
    op_times AS (
        SELECT
            attempt_of(counted.key) AS attempt,
            rank_of(counted.key) AS rank,
            counted.measured_on,
            counted.op,
            count(*) AS calls_count,
            CAST(sum(end_ns - start_ns) AS BIGINT) AS comm_ns,
            CAST(sum(at_end.covered_ns - at_start.covered_ns) AS BIGINT) AS hidden_ns
        FROM counted
        INNER JOIN covered AS at_start
            ON at_start.key = counted.key AND at_start.time_ns = counted.start_ns
        INNER JOIN covered AS at_end
            ON at_end.key = counted.key AND at_end.time_ns = counted.end_ns
        GROUP BY attempt_of(counted.key), rank_of(counted.key), counted.measured_on, counted.op
    )
SELECT
    rank,
    op,
    calls_count,
    comm_ns,
    comm_ns - hidden_ns AS exposed_comm_ns,
    (comm_ns - hidden_ns) / nullif(comm_ns, 0) AS exposed_ratio,
    measured_on,
    attempt
FROM op_times
ORDER BY attempt, rank, exposed_comm_ns DESC, op;
