-- Device time in CUDA graphs that were recorded as a whole.
--
-- Nsight Systems records a launched graph as one piece unless it was told otherwise: its kernels,
-- collectives included, are in no table. What computes, what communicates and who is late cannot
-- be said of such time. Ranks without it are not listed.
--
-- reads: gpu_op
-- grain: attempt, rank
-- asked: report
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: rank INTEGER : Global rank.
-- column: graphs_count BIGINT : Launches of graphs that were recorded whole.
-- column: hidden_ns BIGINT : Sum of their durations.
-- column: hidden_ratio DOUBLE : The same over the sum of all operations' durations, 0..1.
SELECT
    attempt,
    rank,
    count(*) FILTER (category = 'graph') AS graphs_count,
    CAST(coalesce(sum(dur_ns) FILTER (category = 'graph'), 0) AS BIGINT) AS hidden_ns,
    coalesce(sum(dur_ns) FILTER (category = 'graph'), 0) / nullif(sum(dur_ns), 0) AS hidden_ratio
FROM gpu_op
WHERE rank IS NOT NULL
GROUP BY attempt, rank
HAVING count(*) FILTER (category = 'graph') > 0
ORDER BY attempt, rank;
