-- What a mean step of each rank goes into, by name: operators, calls, ranges, kernels.
--
-- Each moment of the training loop's thread belongs to what was innermost then, so nothing is
-- counted twice and its parts sum to the step; operators of other threads (autograd's) and device
-- work stand beside it. Steady steps only. excess sets the same parts beside those of other ranks;
-- compare sets them, by path, beside those of another run.
--
-- reads: annotation, collective, gpu_op, host_op, step
-- asked: report where idle
-- grain: attempt, rank, timeline, kind, path, name
-- param: min_ratio DOUBLE = 0.001 : Least share of the rank's mean step of a row.
-- param: by_path BOOLEAN = FALSE : Whether what is in different ranges is told apart.
-- column: rank INTEGER : Global rank.
-- column: timeline VARCHAR : host or device (without communication).
-- column: kind VARCHAR : On the host operator, call, wait, range (nothing recorded inside it),
--     pause or between (nothing recorded, long and short); on the device kernel or copy.
-- column: path VARCHAR : Ranges around it, outermost first, with / between them; empty unless asked
--     for.
-- column: name VARCHAR : Of the operator, call, range or kernel; what a pause lies between.
-- column: self_ns DOUBLE : Time of a mean step.
-- column: self_ratio DOUBLE : Over the rank's mean step.
-- column: calls_count DOUBLE : Calls, or stretches, of a mean step.
-- column: longest_ns BIGINT : The longest stretch.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    rank_steps AS (
        SELECT attempt, rank, count(*) AS steps_count, avg(dur_ns) AS step_ns
        FROM step_windows()
        WHERE NOT is_warmup AND NOT is_partial
        GROUP BY attempt, rank
    ),
    spent AS (
        SELECT
            attempt,
            rank,
            timeline,
            kind,
            if($by_path, path, '') AS path,
            name,
            sum(spent_ns) AS spent_ns,
            sum(calls_count) AS calls_count,
            max(longest_ns) AS longest_ns
        FROM time_spent()
        GROUP BY ALL
    )
SELECT
    spent.rank,
    spent.timeline,
    spent.kind,
    spent.path,
    spent.name,
    spent.spent_ns / rank_steps.steps_count AS self_ns,
    spent.spent_ns / rank_steps.steps_count / nullif(rank_steps.step_ns, 0) AS self_ratio,
    spent.calls_count / rank_steps.steps_count AS calls_count,
    spent.longest_ns,
    spent.attempt
FROM spent
JOIN rank_steps USING (attempt, rank)
WHERE spent.spent_ns >= $min_ratio * rank_steps.step_ns * rank_steps.steps_count
ORDER BY
    spent.attempt, spent.rank, spent.timeline DESC, self_ns DESC, spent.kind, spent.path,
    spent.name;
