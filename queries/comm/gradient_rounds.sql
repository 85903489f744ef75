-- How often replicas reduce their gradients to one update: after which forward passes.
--
-- Gradients that several backward passes add up need to be reduced after the last one only. A round
-- lasts from one forward of DistributedDataParallel, or of the root of FSDP (either generation), to
-- the next or to the optimizer's step; what it reduces is what the host hands over meanwhile. Where
-- each round reduces as much as the last, gradients are reduced once a round. Updates that the
-- capture cuts are left out.
--
-- reads: annotation, collective, gpu_op, host_op
-- needs: annotation, collective
-- grain: attempt, rank
-- asked: with all_reduce or reduce_scatter
-- column: rank INTEGER : Global rank.
-- column: updates_count BIGINT : Updates that were looked at.
-- column: rounds_count BIGINT : Rounds of each; of the one with fewest.
-- column: wrapper VARCHAR : DistributedDataParallel, FullyShardedDataParallel or FSDP2, as its
--     forwards are called.
-- column: calls_count BIGINT : All-reduces and reduce-scatters of a round; the fewest.
-- column: least_calls_ratio DOUBLE : Fewest calls of a round over the most of its update; the worst
--     update's.
-- column: least_bytes_ratio DOUBLE : The same of bytes; null where some are not known.
-- column: steps_count BIGINT : Steps of optimizers among these updates: more than one each where
--     several optimizers step one after another, as for models of their own.
-- column: copies_ns BIGINT : Time of a mean update in the wrapper's own copies around the calls, on
--     the host; null on a rank with GPU operations, where it only launches them.
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
            CASE name
                WHEN 'DistributedDataParallel.forward' THEN 'DistributedDataParallel'
                -- The root alone moves its inputs.
                WHEN 'FullyShardedDataParallel._to_kwargs' THEN 'FullyShardedDataParallel'
                WHEN 'FSDP::root_pre_forward' THEN 'FSDP2'
            END AS wrapper,
            wrapper IS NULL AS is_update
        FROM annotation
        WHERE
            rank IS NOT NULL
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND (
                name IN (
                    'DistributedDataParallel.forward', 'FullyShardedDataParallel._to_kwargs',
                    'FSDP::root_pre_forward'
                )
                OR starts_with(name, 'Optimizer.step#')
            )
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
    rank_steps AS (
        SELECT attempt, rank, CAST(sum(last_update - 1) AS BIGINT) AS steps_count
        FROM last_updates
        WHERE last_update > 0
        GROUP BY attempt, rank
    ),
    rounds AS (
        SELECT ordered.*
        FROM ordered
        JOIN last_updates USING (attempt, rank, capture_id)
        WHERE NOT is_update AND updates_before BETWEEN 1 AND last_update - 1
    ),
    placed AS (
        SELECT
            m.attempt,
            m.rank,
            m.capture_id,
            m.start_ns,
            count(*) AS calls_count,
            if(count(*) = count(r.message_bytes), sum(r.message_bytes), NULL) AS sent_bytes
        FROM (
            FROM handed_over('all_reduce')
            UNION ALL
            FROM handed_over('reduce_scatter')
        ) AS r
        ASOF JOIN ordered AS m
            ON
                m.attempt = r.attempt
                AND m.rank = r.rank
                AND m.capture_id = r.capture_id
                AND m.start_ns <= r.handed_ns
        GROUP BY m.attempt, m.rank, m.capture_id, m.start_ns
    ),
    updates AS (
        SELECT
            attempt,
            rank,
            capture_id,
            updates_before,
            count(*) AS rounds_count,
            min(wrapper) AS wrapper,
            min(coalesce(calls_count, 0)) AS calls_count,
            min(coalesce(calls_count, 0)) / max(calls_count) AS least_calls_ratio,
            -- A round without calls sends nothing; one with calls of unknown size may send all.
            if(
                count(sent_bytes) = count(calls_count),
                min(coalesce(sent_bytes, 0)) / nullif(max(sent_bytes), 0),
                NULL
            ) AS least_bytes_ratio,
            min({'start_ns': start_ns, 'source_id': source_id, 'place': place}) AS first_round
        FROM rounds
        LEFT JOIN placed USING (attempt, rank, capture_id, start_ns)
        GROUP BY attempt, rank, capture_id, updates_before
        HAVING max(calls_count) > 0
    ),
    -- Gradients that are divided and put into a bucket, and taken out of it again.
    copies AS (
        SELECT m.attempt, m.rank, m.capture_id, m.updates_before, sum(c.dur_ns) AS copies_ns
        FROM host_op AS c
        ASOF JOIN ordered AS m
            ON
                m.attempt = c.attempt
                AND m.rank = c.rank
                AND m.capture_id = c.capture_id
                AND m.start_ns <= c.start_ns
        WHERE
            c.category = 'operator'
            AND c.name IN (
                'torch::distributed::reducer::mul_out',
                'torch.distributed.ddp.reducer::copy_bucket_to_grad',
                'fsdp::chunk_cat'
            )
        GROUP BY m.attempt, m.rank, m.capture_id, m.updates_before
    ),
    gpu_ranks AS (
        SELECT DISTINCT attempt, rank, TRUE AS has_gpu FROM gpu_op
    )

SELECT
    rank,
    count(*) AS updates_count,
    min(rounds_count) AS rounds_count,
    min(wrapper) AS wrapper,
    min(calls_count) AS calls_count,
    min(least_calls_ratio) AS least_calls_ratio,
    if(count(*) = count(least_bytes_ratio), min(least_bytes_ratio), NULL) AS least_bytes_ratio,
    any_value(steps_count) AS steps_count,
    if(
        bool_or(has_gpu), NULL, CAST(round(sum(coalesce(copies_ns, 0)) / count(*)) AS BIGINT)
    ) AS copies_ns,
    struct_extract(min(first_round), 'source_id') AS source_id,
    struct_extract(min(first_round), 'place') AS place,
    attempt
FROM updates
JOIN rank_steps USING (attempt, rank)
LEFT JOIN copies USING (attempt, rank, capture_id, updates_before)
LEFT JOIN gpu_ranks USING (attempt, rank)
GROUP BY attempt, rank
ORDER BY attempt, rank
