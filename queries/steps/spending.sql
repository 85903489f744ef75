-- What each rank spends a mean step on, by name: every moment under what was innermost then.
--
-- Two runs of one job differ in what a step holds and in how long each part takes: rows of the same
-- path and name are the same part. On the host the parts sum to the step, as in excess; kernels and
-- copies count whole, and communication of the device is left out.
--
-- reads: annotation, collective, gpu_op, host_op, step
-- grain: attempt, rank, timeline, kind, path, name
-- param: min_ratio DOUBLE = 0.0 : Least time, over the rank's mean step, of a row.
-- column: rank INTEGER : Global rank.
-- column: timeline VARCHAR : host or device.
-- column: kind VARCHAR : operator, call, wait, range, pause or between; on the device kernel or
--     copy.
-- column: path VARCHAR : Ranges around it, outermost first, with / between them.
-- column: name VARCHAR : Of the operator, call or kernel; what a pause lies between.
-- column: own_ns DOUBLE : Time of a mean steady step.
-- column: calls_count DOUBLE : Calls, or stretches, of a mean steady step.
-- column: longest_ns BIGINT : The longest single stretch in any step.
-- column: steps_count BIGINT : Steady steps in which it is.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    rank_steps AS (
        SELECT attempt, rank, count(*) AS steps_count, avg(dur_ns) AS step_ns
        FROM step
        WHERE NOT coalesce(is_warmup, FALSE) AND NOT coalesce(is_partial, FALSE)
        GROUP BY attempt, rank
    )
SELECT
    spent.rank,
    timeline,
    kind,
    path,
    name,
    sum(spent_ns) / any_value(steps_count) AS own_ns,
    sum(calls_count) / any_value(steps_count) AS calls_count,
    max(longest_ns) AS longest_ns,
    count(*) AS steps_count,
    spent.attempt
FROM time_spent() AS spent
JOIN rank_steps ON rank_steps.attempt = spent.attempt AND rank_steps.rank = spent.rank
GROUP BY spent.attempt, spent.rank, timeline, kind, path, name
HAVING sum(spent_ns) >= $min_ratio * any_value(steps_count) * any_value(step_ns)
ORDER BY spent.attempt, spent.rank, timeline, kind, path, name;
