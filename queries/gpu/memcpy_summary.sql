-- Copies and sets of each rank by kind: how many, how much, how fast.
--
-- Large HtoD copies point to offloading or to an input that arrives late; many small DtoH copies to
-- values read back step by step.
--
-- reads: gpu_op
-- grain: attempt, rank, category, copy_kind
-- asked: report
-- column: rank INTEGER : Global rank.
-- column: category VARCHAR : memcpy or memset.
-- column: copy_kind VARCHAR : HtoD, DtoH, DtoD, HtoH, PtoP; null for sets and where unknown.
-- column: calls_count BIGINT : Operations.
-- column: total_bytes BIGINT : Bytes of those that state them; null where none does.
-- column: busy_ns BIGINT : Time with at least one running (a union).
-- column: mean_ns DOUBLE : Mean duration.
-- column: max_ns BIGINT : Longest.
-- column: bytes_per_s DOUBLE : Bytes over the durations of the operations that state them; null
--     where there is none, or no time.
-- column: pageable_ratio DOUBLE : Of total_bytes, from or to host memory that is not pinned, as
--     names say it; null where there are no bytes.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    copies AS (
        SELECT
            {
                'attempt': attempt,
                'rank': rank,
                'category': category,
                'copy_kind': coalesce(copy_kind, '')
            } AS key,
            start_ns,
            start_ns + dur_ns AS end_ns,
            dur_ns,
            transfer_bytes,
            contains(lower(name), 'pageable') AS is_pageable
        FROM gpu_op
        WHERE category IN ('memcpy', 'memset')
    ),
    totals AS (
        SELECT
            key,
            count(*) AS calls_count,
            CAST(sum(transfer_bytes) AS BIGINT) AS total_bytes,
            avg(dur_ns) AS mean_ns,
            max(dur_ns) AS max_ns,
            sum(dur_ns) FILTER (WHERE transfer_bytes IS NOT NULL) AS transfer_ns,
            sum(transfer_bytes) FILTER (WHERE is_pageable) AS pageable_bytes
        FROM copies
        GROUP BY key
    )
SELECT
    key.rank AS rank,
    key.category AS category,
    nullif(key.copy_kind, '') AS copy_kind,
    calls_count,
    total_bytes,
    coalesce(busy_ns, 0) AS busy_ns,
    mean_ns,
    max_ns,
    total_bytes * 1e9 / nullif(transfer_ns, 0) AS bytes_per_s,
    coalesce(pageable_bytes, 0) / nullif(total_bytes, 0) AS pageable_ratio,
    key.attempt AS attempt
FROM totals
LEFT JOIN busy_time('copies') USING (key)
ORDER BY key.attempt, key.rank, key.category, key.copy_kind;
