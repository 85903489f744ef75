-- Which ranks delayed the others in each step by their own doing, and what that cost.
--
-- The evidence of late-rank, slow-gpu and slow-host: a fault is there in many steps, noise is
-- everywhere a little. Parts as in straggler, by step.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair, gpu_op, host_op,
--     annotation, step
-- needs: collective, collective_match, comm_group
-- grain: attempt, capture_id, step, rank
-- column: rank INTEGER : Rank that the others waited for.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: step BIGINT : Step in which they waited; waiting outside steps is left out.
-- column: own_wait_ns BIGINT : Waiting that was its own doing, summed over the waiting ranks.
-- column: own_gap_ns BIGINT : That of the last to wait for it in each collective.
-- column: exposed_gap_ns BIGINT : The part of that in which that rank computed nothing: the cost.
-- column: late_count BIGINT : Collectives that waited for it.
-- column: longest_ns BIGINT : Longest own wait of one call.
-- column: source_id INTEGER : Source of that call.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    waits AS MATERIALIZED (
        FROM inflicted_waits()
    ),
    numbered AS (
        SELECT
            waits.*,
            coalesce(by_file.step, by_time.step) AS job_step
        FROM waits
        LEFT JOIN step AS by_file
            ON by_file.attempt = waits.attempt
            AND by_file.capture_id = waits.capture_id
            AND by_file.rank = waits.rank
            AND by_file.file_step = waits.step
        ASOF LEFT JOIN step AS by_time
            ON by_time.attempt = waits.attempt
            AND by_time.capture_id = waits.capture_id
            AND by_time.rank = waits.rank
            AND by_time.start_ns <= waits.start_ns
        WHERE by_file.step IS NOT NULL OR waits.start_ns < by_time.end_ns
    )
SELECT
    holder_rank AS rank,
    capture_id,
    job_step AS step,
    CAST(sum(own_ns) AS BIGINT) AS own_wait_ns,
    CAST(coalesce(sum(own_ns) FILTER (is_second), 0) AS BIGINT) AS own_gap_ns,
    CAST(sum(gap_ns) AS BIGINT) AS exposed_gap_ns,
    count(DISTINCT instance_id) AS late_count,
    max(own_ns) AS longest_ns,
    arg_max(
        {'source_id': source_id, 'place': place},
        {'own_ns': own_ns, 'source_id': source_id, 'place': place}
    ).source_id AS source_id,
    arg_max(
        {'source_id': source_id, 'place': place},
        {'own_ns': own_ns, 'source_id': source_id, 'place': place}
    ).place AS place,
    attempt
FROM numbered
GROUP BY attempt, capture_id, job_step, holder_rank
ORDER BY attempt, capture_id, step, rank;
