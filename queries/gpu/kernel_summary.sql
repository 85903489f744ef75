-- How often each device operation ran and how long it took.
--
-- Shows where device time goes, and what grew between two runs. Durations are of single
-- operations: several run at once, so their sum may exceed the time that passed.
--
-- reads: gpu_op
-- grain: attempt, rank, class, name
-- asked: report
-- column: rank INTEGER : Global rank.
-- column: class VARCHAR : compute, communication, memory or other.
-- column: name VARCHAR : Name as the producer wrote it.
-- column: calls_count BIGINT : Operations.
-- column: total_ns BIGINT : Sum of their durations; not time that passed.
-- column: mean_ns DOUBLE : Mean duration.
-- column: p50_ns DOUBLE : Median duration (linear between two).
-- column: max_ns BIGINT : Longest.
-- column: attempt INTEGER : Attempt of the job, from 1.
SELECT
    rank,
    class,
    name,
    count(*) AS calls_count,
    CAST(sum(dur_ns) AS BIGINT) AS total_ns,
    avg(dur_ns) AS mean_ns,
    quantile_cont(dur_ns, 0.5) AS p50_ns,
    max(dur_ns) AS max_ns,
    attempt
FROM gpu_op
GROUP BY attempt, rank, class, name
ORDER BY attempt, rank, total_ns DESC, class, name;
