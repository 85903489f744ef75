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
    inside AS (
        SELECT
            f.attempt,
            f.rank,
            f.source_id,
            f.place,
            b.message_bytes,
            {'start_ns': f.start_ns, 'source_id': f.source_id, 'place': f.place} AS forward
        FROM handed_over('broadcast') AS b
        ASOF JOIN forwards AS f
            ON
                f.attempt = b.attempt
                AND f.rank = b.rank
                AND f.capture_id = b.capture_id
                AND f.start_ns <= b.handed_ns
        WHERE b.handed_ns < f.end_ns
    )

SELECT
    rank,
    count(DISTINCT forward) AS forwards_count,
    count(*) AS calls_count,
    if(count(*) = count(message_bytes), CAST(sum(message_bytes) AS BIGINT), NULL) AS sent_bytes,
    struct_extract(min(forward), 'source_id') AS source_id,
    struct_extract(min(forward), 'place') AS place,
    attempt
FROM inside
GROUP BY attempt, rank
ORDER BY attempt, rank
