-- How often replicas reduce their gradients to one update: after which forward passes.
--
-- Gradients that several backward passes add up need to be reduced after the last one only.
-- A round lasts from one forward of DistributedDataParallel to the next or to the optimizer's step;
-- what it reduces is what the host hands over meanwhile. Where each round reduces as much as the
-- last, gradients are reduced once a round. Updates that the capture cuts are left out.
--
-- reads: annotation, collective
-- needs: annotation, collective
-- grain: attempt, rank
-- asked: with all_reduce
-- column: rank INTEGER : Global rank.
-- column: updates_count BIGINT : Updates that were looked at.
-- column: rounds_count BIGINT : Rounds of each; of the one with fewest.
-- column: calls_count BIGINT : All-reduces of a round; the fewest.
-- column: least_ratio DOUBLE : Least of a round over the most of its update, of calls and, where
--     they are known, of bytes; the worst update's.
-- column: source_id INTEGER : Source of the first of these forwards.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    marks AS (
        SELECT
            attempt,
            rank,
            capture_id,
            start_ns,
            source_id,
            place,
            starts_with(name, 'Optimizer.step#') AS is_update
        FROM annotation
        WHERE
            rank IS NOT NULL
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND (name = 'DistributedDataParallel.forward' OR starts_with(name, 'Optimizer.step#'))
    ),
    ordered AS MATERIALIZED (
        SELECT marks.*, count(*) FILTER (WHERE is_update) OVER in_order AS updates_before
        FROM marks
        WINDOW in_order AS (
            PARTITION BY attempt, rank, capture_id ORDER BY start_ns, place
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        )
    ),
    -- Before the first update, and behind the last, a part may be missing.
    last_updates AS (
        SELECT attempt, rank, capture_id, max(updates_before) AS last_update
        FROM ordered
        GROUP BY attempt, rank, capture_id
    ),
    rounds AS (
        SELECT ordered.*
        FROM ordered
        JOIN last_updates USING (attempt, rank, capture_id)
        WHERE NOT is_update AND updates_before BETWEEN 1 AND last_update - 1
    ),
    reductions AS (
        SELECT
            attempt,
            rank,
            capture_id,
            coalesce(enqueue_ns, start_ns) AS start_ns,
            message_bytes
        FROM collective
        WHERE op = 'all_reduce' AND rank IS NOT NULL
    ),
    placed AS (
        SELECT
            m.attempt,
            m.rank,
            m.capture_id,
            m.start_ns,
            count(*) AS calls_count,
            sum(r.message_bytes) AS sent_bytes
        FROM reductions AS r
        ASOF JOIN ordered AS m
            ON
                m.attempt = r.attempt
                AND m.rank = r.rank
                AND m.capture_id = r.capture_id
                AND m.start_ns <= r.start_ns
        GROUP BY m.attempt, m.rank, m.capture_id, m.start_ns
    ),
    updates AS (
        SELECT
            attempt,
            rank,
            capture_id,
            updates_before,
            count(*) AS rounds_count,
            min(coalesce(calls_count, 0)) AS calls_count,
            least(
                min(coalesce(calls_count, 0)) / max(coalesce(calls_count, 0)),
                coalesce(min(coalesce(sent_bytes, 0)) / nullif(max(sent_bytes), 0), 1)
            ) AS least_ratio,
            arg_min(
                {'source_id': source_id, 'place': place},
                {'start_ns': start_ns, 'source_id': source_id, 'place': place}
            ) AS first_round,
            min({'start_ns': start_ns, 'source_id': source_id, 'place': place}) AS first_of
        FROM rounds
        LEFT JOIN placed USING (attempt, rank, capture_id, start_ns)
        GROUP BY attempt, rank, capture_id, updates_before
        HAVING max(calls_count) > 0
    )

SELECT
    rank,
    count(*) AS updates_count,
    min(rounds_count) AS rounds_count,
    min(calls_count) AS calls_count,
    min(least_ratio) AS least_ratio,
    arg_min(first_round.source_id, first_of) AS source_id,
    arg_min(first_round.place, first_of) AS place,
    attempt
FROM updates
GROUP BY attempt, rank
ORDER BY attempt, rank
