-- How evenly an all-to-all deals out work: what each member receives, and computes on it.
--
-- The evidence of hot-expert. Compute that lies between one all-to-all of a group and the next is
-- compared position by position: experts' work stands in some positions (between dispatch and
-- combine), attention's in others. Where the members' times differ, by max over mean of 1.2 or
-- more, a position is uneven. A slow GPU is slow in all positions and outside, a hot expert only
-- where its tokens are. Steady steps only; on one stream, so work of another microbatch that runs
-- meanwhile counts too.
--
-- reads: collective, collective_match, comm_group, step, gpu_op, host_op, annotation
-- needs: collective, collective_match
-- grain: attempt, group_id, rank
-- asked: with all_to_all
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: rank INTEGER : Global rank.
-- column: kind VARCHAR : ep, ...; null where it cannot be told.
-- column: received_bytes BIGINT : What its all-to-alls delivered; null where a size is not known.
-- column: received_ratio DOUBLE : received_bytes over the members' mean.
-- column: uneven_compute_ns BIGINT : Compute in uneven positions.
-- column: uneven_ratio DOUBLE : uneven_compute_ns over the median of the other members; null
--     without an uneven position.
-- column: other_compute_ns BIGINT : Compute of its steps outside those positions.
-- column: other_ratio DOUBLE : The same over the median of the other members.
-- column: positions_count BIGINT : Positions of a step.
-- column: uneven_positions_count BIGINT : Of them uneven.
-- column: steps_count BIGINT : Steady steps.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- source: Diagnosis D13.
WITH
    steady AS (
        SELECT attempt, rank, capture_id, file_step, start_ns, end_ns
        FROM step
        WHERE NOT coalesce(is_warmup, FALSE) AND NOT coalesce(is_partial, FALSE)
    ),
    exchanges AS MATERIALIZED (
        SELECT
            capture_key(c.attempt, c.rank, c.capture_id) AS key,
            m.group_id,
            c.step,
            c.out_bytes,
            c.start_ns + c.dur_ns AS start_ns,
            row_number() OVER in_step AS position,
            lead(c.start_ns) OVER in_step AS end_ns
        FROM collective AS c
        INNER JOIN collective_match AS m USING (source_id, place)
        INNER JOIN steady AS s
            ON
                s.attempt = c.attempt
                AND s.rank = c.rank
                AND s.capture_id = c.capture_id
                AND s.file_step = c.step
        WHERE c.op = 'all_to_all' AND m.is_trusted AND m.group_id IS NOT NULL
        WINDOW in_step AS (
            PARTITION BY c.attempt, c.rank, c.capture_id, m.group_id, c.step
            ORDER BY m.call_index, c.start_ns
        )
    ),
    busy_ranks AS (SELECT DISTINCT attempt_of(key) AS attempt, rank_of(key) AS rank FROM exchanges),
    -- Ranks without an all-to-all need no timeline.
    own_gpu_ops AS (FROM gpu_op SEMI JOIN busy_ranks USING (attempt, rank)),
    own_host_ops AS (
        FROM host_op
        SEMI JOIN busy_ranks USING (attempt, rank)
        ANTI JOIN own_gpu_ops USING (attempt, rank)
    ),
    compute AS (
        SELECT capture_key(attempt, rank, capture_id) AS key, start_ns, end_ns
        FROM rank_work('own_gpu_ops', 'own_host_ops')
        WHERE class = 'compute'
    ),
    stretches AS MATERIALIZED (SELECT key, start_ns, end_ns FROM merged_intervals('compute')),
    spans AS MATERIALIZED (
        SELECT key, start_ns, end_ns FROM exchanges WHERE end_ns > start_ns
        UNION ALL
        SELECT capture_key(attempt, rank, capture_id), start_ns, end_ns
        FROM steady
        SEMI JOIN busy_ranks USING (attempt, rank)
    ),
    moments AS (
        SELECT key, start_ns AS time_ns FROM spans
        UNION ALL
        SELECT key, end_ns FROM spans
    ),
    covered AS MATERIALIZED (
        SELECT key, time_ns, covered_ns FROM covered_before('stretches', 'moments')
    ),
    gaps AS MATERIALIZED (
        SELECT
            e.key,
            e.group_id,
            e.position,
            b.covered_ns - a.covered_ns AS compute_ns
        FROM exchanges AS e
        INNER JOIN covered AS a ON a.key = e.key AND a.time_ns = e.start_ns
        INNER JOIN covered AS b ON b.key = e.key AND b.time_ns = e.end_ns
        WHERE e.end_ns > e.start_ns
    ),
    totals AS (
        SELECT
            attempt_of(key) AS attempt,
            rank_of(key) AS rank,
            group_id,
            position,
            sum(compute_ns) AS compute_ns
        FROM gaps
        GROUP BY key, group_id, position
    ),
    positions AS (
        SELECT
            attempt,
            group_id,
            position,
            count(*) > 1 AND max(compute_ns) >= 1.2 * avg(compute_ns) AS is_uneven
        FROM totals
        GROUP BY attempt, group_id, position
    ),
    by_rank AS (
        SELECT
            attempt,
            group_id,
            rank,
            sum(compute_ns) FILTER (is_uneven) AS uneven_compute_ns,
            count(DISTINCT position) AS positions_count,
            count(DISTINCT position) FILTER (is_uneven) AS uneven_positions_count
        FROM totals
        INNER JOIN positions USING (attempt, group_id, position)
        GROUP BY attempt, group_id, rank
    ),
    steps_compute AS (
        SELECT
            s.attempt,
            s.rank,
            sum(b.covered_ns - a.covered_ns) AS compute_ns,
            count(*) AS steps_count
        FROM steady AS s
        INNER JOIN covered AS a
            ON a.key = capture_key(s.attempt, s.rank, s.capture_id) AND a.time_ns = s.start_ns
        INNER JOIN covered AS b
            ON b.key = capture_key(s.attempt, s.rank, s.capture_id) AND b.time_ns = s.end_ns
        GROUP BY s.attempt, s.rank
    ),
    received AS (
        SELECT
            attempt_of(key) AS attempt,
            rank_of(key) AS rank,
            group_id,
            if(count(out_bytes) = count(*), CAST(sum(out_bytes) AS BIGINT), NULL) AS received_bytes
        FROM exchanges
        GROUP BY attempt_of(key), rank_of(key), group_id
    ),
    loads AS (
        SELECT
            r.attempt,
            r.group_id,
            r.rank,
            r.received_bytes,
            CAST(coalesce(b.uneven_compute_ns, 0) AS BIGINT) AS uneven_compute_ns,
            CAST(
                greatest(0, c.compute_ns - coalesce(b.uneven_compute_ns, 0)) AS BIGINT
            ) AS other_compute_ns,
            coalesce(b.positions_count, 0) AS positions_count,
            coalesce(b.uneven_positions_count, 0) AS uneven_positions_count,
            coalesce(c.steps_count, 0) AS steps_count
        FROM received AS r
        LEFT JOIN by_rank AS b USING (attempt, group_id, rank)
        LEFT JOIN steps_compute AS c USING (attempt, rank)
    ),
    peers AS (
        SELECT
            a.attempt,
            a.group_id,
            a.rank,
            median(CAST(b.uneven_compute_ns AS DOUBLE)) AS uneven_ns,
            median(CAST(b.other_compute_ns AS DOUBLE)) AS other_ns
        FROM loads AS a
        INNER JOIN loads AS b USING (attempt, group_id)
        WHERE a.rank <> b.rank
        GROUP BY a.attempt, a.group_id, a.rank
    ),
    means AS (
        SELECT
            attempt,
            group_id,
            if(count(received_bytes) = count(*), avg(received_bytes), NULL) AS mean_bytes
        FROM loads
        GROUP BY attempt, group_id
    )
SELECT
    l.group_id,
    l.rank,
    g.kind,
    l.received_bytes,
    l.received_bytes / nullif(m.mean_bytes, 0) AS received_ratio,
    l.uneven_compute_ns,
    if(l.uneven_positions_count > 0, l.uneven_compute_ns / nullif(p.uneven_ns, 0), NULL)
        AS uneven_ratio,
    l.other_compute_ns,
    l.other_compute_ns / nullif(p.other_ns, 0) AS other_ratio,
    l.positions_count,
    l.uneven_positions_count,
    l.steps_count,
    l.attempt
FROM loads AS l
LEFT JOIN peers AS p USING (attempt, group_id, rank)
LEFT JOIN means AS m USING (attempt, group_id)
LEFT JOIN comm_group AS g ON g.attempt = l.attempt AND g.group_id = l.group_id
ORDER BY l.attempt, l.group_id, l.rank;
