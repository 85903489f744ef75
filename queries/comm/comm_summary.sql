-- Collectives and point-to-point operations of each rank by operation and size.
--
-- Shows what the job sends and in which pieces. Durations include waiting for the other members, so
-- no bandwidth follows from them.
--
-- reads: collective
-- grain: attempt, rank, op, message_bytes, group_size, timeline
-- asked: report
-- column: rank INTEGER : Global rank.
-- column: op VARCHAR : all_reduce, all_gather, ...; null where the trace does not tell.
-- column: message_bytes BIGINT : Total size as nccl-tests defines it; null where unknowable.
-- column: group_size INTEGER : Members of the group; null when unknown.
-- column: timeline VARCHAR : device (kernels) or host (worker threads).
-- column: calls_count BIGINT : Operations.
-- column: total_ns BIGINT : Sum of their durations; several may run at once.
-- column: mean_ns DOUBLE : Mean duration.
-- column: p50_ns DOUBLE : Median duration (linear between two).
-- column: min_ns BIGINT : Shortest: nearest to the bare transfer.
-- column: max_ns BIGINT : Longest.
-- column: attempt INTEGER : Attempt of the job, from 1.
SELECT
    rank,
    op,
    message_bytes,
    group_size,
    timeline,
    count(*) AS calls_count,
    CAST(sum(dur_ns) AS BIGINT) AS total_ns,
    avg(dur_ns) AS mean_ns,
    quantile_cont(dur_ns, 0.5) AS p50_ns,
    min(dur_ns) AS min_ns,
    max(dur_ns) AS max_ns,
    attempt
FROM collective
GROUP BY attempt, rank, op, message_bytes, group_size, timeline
ORDER BY attempt, rank, op, message_bytes, group_size, timeline;
