-- How many bytes of buffers replicas broadcast before each forward pass.
--
-- DistributedDataParallel sends its module's buffers from the first rank to the others inside its
-- forward, before anything is computed: with running means a few kilobytes, with masks and tables
-- that are buffers without need megabytes. A broadcast counts for a forward if the host hands it
-- over within its range.
--
-- reads: annotation, collective
-- needs: annotation, collective
-- grain: attempt, rank
-- asked: with broadcast
-- column: rank INTEGER : Global rank.
-- column: forwards_count BIGINT : Forward passes that begin with such broadcasts.
-- column: calls_count BIGINT : Broadcasts in all of them.
-- column: sent_bytes BIGINT : Their bytes; null where some are not known.
-- column: sent_ratio DOUBLE : Of all bytes that the rank broadcasts, 0..1; null likewise.
-- column: source_id INTEGER : Source of the first of these forwards.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    forwards AS (
        SELECT
            attempt, rank, capture_id, source_id, place, start_ns, start_ns + dur_ns AS end_ns
        FROM annotation
        WHERE
            rank IS NOT NULL
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND name = 'DistributedDataParallel.forward'
    ),
    calls AS (
        SELECT
            b.attempt,
            b.rank,
            b.message_bytes,
            if(
                b.handed_ns < f.end_ns,
                {'start_ns': f.start_ns, 'source_id': f.source_id, 'place': f.place},
                NULL
            ) AS forward
        FROM handed_over('broadcast') AS b
        ASOF LEFT JOIN forwards AS f
            ON
                f.attempt = b.attempt
                AND f.rank = b.rank
                AND f.capture_id = b.capture_id
                AND f.start_ns <= b.handed_ns
    ),
    sums AS (
        SELECT
            attempt,
            rank,
            count(DISTINCT forward) AS forwards_count,
            count(forward) AS calls_count,
            count(*) = count(message_bytes) AS is_sized,
            CAST(sum(message_bytes) FILTER (forward IS NOT NULL) AS BIGINT) AS sent_bytes,
            CAST(sum(message_bytes) AS BIGINT) AS all_bytes,
            min(forward) AS first_forward
        FROM calls
        GROUP BY attempt, rank
        HAVING count(forward) > 0
    )

SELECT
    rank,
    forwards_count,
    calls_count,
    if(is_sized, sent_bytes, NULL) AS sent_bytes,
    if(is_sized, sent_bytes / nullif(all_bytes, 0), NULL) AS sent_ratio,
    first_forward.source_id AS source_id,
    first_forward.place AS place,
    attempt
FROM sums
ORDER BY attempt, rank
