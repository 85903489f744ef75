-- What ranks of FSDP2 gather of its shards between the end of a backward pass and the next forward.
--
-- FSDP2 gathers parameters for forward and backward passes, inside ranges of its own. What goes
-- over the same communicators after a backward pass is more: whole tensors for a norm, for a log,
-- for a state dict. What an optimizer gathers inside its step it needs, and is left out.
--
-- reads: annotation, collective
-- needs: annotation, collective
-- grain: attempt, rank
-- asked: with all_gather
-- column: rank INTEGER : Global rank.
-- column: updates_count BIGINT : Steps of optimizers.
-- column: gathering_count BIGINT : Of the stretches between these, before the first and after the
--     last, those with such gathers.
-- column: calls_count BIGINT : Such gathers.
-- column: given_bytes BIGINT : What the rank gives to them; null where that is not known of some.
-- column: given_ratio DOUBLE : Of what it gives to all gathers over these communicators, 0..1;
--     null likewise.
-- column: spent_ratio DOUBLE : Their time, of that of all gathers over these communicators, 0..1.
-- column: span_ns BIGINT : From the first to the end of the last, of a mean stretch that has them.
-- column: source_id INTEGER : Source of the first of them.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    ranges AS (
        SELECT
            attempt,
            rank,
            capture_id,
            start_ns,
            start_ns + dur_ns AS end_ns,
            CASE
                WHEN starts_with(name, 'FSDP::all_gather') THEN 'gather'
                WHEN starts_with(name, 'Optimizer.step#') THEN 'update'
                WHEN name = 'FSDP::root_pre_forward' THEN 'forward'
                ELSE 'backward'
            END AS kind
        FROM annotation
        WHERE
            rank IS NOT NULL
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND (
                starts_with(name, 'Optimizer.step#')
                OR name IN ('FSDP::root_pre_forward', 'FSDP::root_post_backward_callback')
                OR (starts_with(name, 'FSDP::all_gather') AND NOT contains(name, 'copy_out'))
            )
    ),
    gathers AS (
        SELECT
            g.*,
            coalesce(g.handed_ns < within.end_ns, FALSE) AS is_own,
            passes.kind = 'backward' AS is_after,
            update.start_ns AS update_ns,
            coalesce(g.handed_ns < update.end_ns, FALSE) AS is_updating
        FROM handed_over('all_gather') AS g
        ASOF LEFT JOIN (FROM ranges WHERE kind = 'gather') AS within
            ON
                within.attempt = g.attempt
                AND within.rank = g.rank
                AND within.capture_id = g.capture_id
                AND within.start_ns <= g.handed_ns
        ASOF LEFT JOIN (FROM ranges WHERE kind IN ('forward', 'backward')) AS passes
            ON
                passes.attempt = g.attempt
                AND passes.rank = g.rank
                AND passes.capture_id = g.capture_id
                AND passes.start_ns <= g.handed_ns
        ASOF LEFT JOIN (FROM ranges WHERE kind = 'update') AS update
            ON
                update.attempt = g.attempt
                AND update.rank = g.rank
                AND update.capture_id = g.capture_id
                AND update.start_ns <= g.handed_ns
    ),
    shards AS (
        SELECT DISTINCT attempt, rank, coalesce(group_id, '') AS comm FROM gathers WHERE is_own
    ),
    judged AS (
        SELECT
            gathers.*,
            coalesce(is_after AND NOT is_own AND NOT is_updating, FALSE) AS is_more
        FROM gathers
        SEMI JOIN shards
            ON
                shards.attempt = gathers.attempt
                AND shards.rank = gathers.rank
                AND shards.comm = coalesce(gathers.group_id, '')
    ),
    stretches AS (
        SELECT
            attempt,
            rank,
            capture_id,
            update_ns,
            count(*) FILTER (is_more) AS calls_count,
            count(*) = count(in_bytes) AS is_sized,
            sum(in_bytes) FILTER (is_more) AS given_bytes,
            sum(in_bytes) AS all_bytes,
            sum(dur_ns) FILTER (is_more) AS spent_ns,
            sum(dur_ns) AS all_ns,
            max(handed_ns + dur_ns) FILTER (is_more) - min(handed_ns) FILTER (is_more) AS span_ns,
            min({'handed_ns': handed_ns, 'source_id': source_id, 'place': place})
                FILTER (is_more) AS first_call
        FROM judged
        GROUP BY attempt, rank, capture_id, update_ns
    ),
    sums AS (
        SELECT
            attempt,
            rank,
            count(*) FILTER (calls_count > 0) AS gathering_count,
            CAST(sum(calls_count) AS BIGINT) AS calls_count,
            bool_and(is_sized) AS is_sized,
            CAST(sum(given_bytes) AS BIGINT) AS given_bytes,
            CAST(sum(all_bytes) AS BIGINT) AS all_bytes,
            sum(spent_ns) / nullif(sum(all_ns), 0) AS spent_ratio,
            CAST(avg(span_ns) AS BIGINT) AS span_ns,
            min(first_call) AS first_call
        FROM stretches
        GROUP BY attempt, rank
        HAVING sum(calls_count) > 0
    ),
    updates AS (
        SELECT attempt, rank, count(*) AS updates_count
        FROM ranges
        WHERE kind = 'update'
        GROUP BY attempt, rank
    )
SELECT
    rank,
    updates_count,
    gathering_count,
    calls_count,
    if(is_sized, given_bytes, NULL) AS given_bytes,
    if(is_sized, given_bytes / nullif(all_bytes, 0), NULL) AS given_ratio,
    spent_ratio,
    span_ns,
    first_call.source_id AS source_id,
    first_call.place AS place,
    attempt
FROM sums
JOIN updates USING (attempt, rank)
ORDER BY attempt, rank
