-- Mean, spread, quantiles and outliers of step times, for the job and for each rank.
--
-- Says whether steps are slow throughout or only some of them. Warm-up and partial steps are left
-- out. A step of the job lasts from the moment when the last rank begins it to that when the last
-- rank begins the next, so that all steps add up to the time that passed; all costs are shares of
-- its mean. Of a rank it lasts to its own next step. Of a pipeline with timers of operations and no
-- marks of steps, only the job's are known. The steps of all captures of an attempt count together.
--
-- reads: step, pipeline_op
-- grain: attempt, rank
-- asked: report
-- column: rank INTEGER : Global rank; null for the job.
-- column: steps_count BIGINT : Steps that count.
-- column: mean_ns DOUBLE : Mean duration.
-- column: std_ns DOUBLE : Sample standard deviation (n - 1); null under two steps.
-- column: cv_ratio DOUBLE : std_ns / mean_ns; null where either is missing or the mean is 0.
-- column: p50_ns DOUBLE : Median; quantiles interpolate linearly (type 7).
-- column: p95_ns DOUBLE : 95th percentile.
-- column: p99_ns DOUBLE : 99th percentile; null under 20 steps.
-- column: max_ns BIGINT : Longest.
-- column: outliers_count BIGINT : Steps with |z| > 3.5, z = 0.6745 (x - median) / MAD, or over
--     IQR / 1.349 where the MAD is 0; none where both are 0; null under 8 steps.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- source: modified z-score of Iglewicz and Hoaglin (1993).
WITH
    durations AS (
        SELECT attempt, rank, dur_ns
        FROM step_windows()
        WHERE NOT is_warmup AND NOT is_partial
        UNION ALL
        SELECT attempt, NULL, dur_ns FROM job_steps()
    ),
    centred AS (
        SELECT
            attempt,
            rank,
            dur_ns,
            dur_ns - quantile_cont(dur_ns, 0.5) OVER (PARTITION BY attempt, rank) AS from_median_ns
        FROM durations
    ),
    summaries AS (
        SELECT
            attempt,
            rank,
            count(*) AS steps_count,
            avg(dur_ns) AS mean_ns,
            stddev_samp(dur_ns) AS std_ns,
            quantile_cont(dur_ns, 0.5) AS p50_ns,
            quantile_cont(dur_ns, 0.95) AS p95_ns,
            quantile_cont(dur_ns, 0.99) AS p99_ns,
            max(dur_ns) AS max_ns,
            -- 0.6745 and 1.349 make both scales the standard deviation of normal data.
            coalesce(
                nullif(quantile_cont(abs(from_median_ns), 0.5) / 0.6745, 0),
                nullif((quantile_cont(dur_ns, 0.75) - quantile_cont(dur_ns, 0.25)) / 1.349, 0)
            ) AS scale_ns
        FROM centred
        GROUP BY attempt, rank
    ),
    outliers AS (
        SELECT
            centred.attempt,
            centred.rank,
            count(*) FILTER (WHERE abs(from_median_ns) / scale_ns > 3.5) AS outliers_count
        FROM centred
        INNER JOIN summaries
            ON
                centred.attempt = summaries.attempt
                AND centred.rank IS NOT DISTINCT FROM summaries.rank
        GROUP BY centred.attempt, centred.rank
    )
SELECT
    summaries.rank,
    steps_count,
    mean_ns,
    std_ns,
    std_ns / nullif(mean_ns, 0) AS cv_ratio,
    p50_ns,
    p95_ns,
    CASE WHEN steps_count >= 20 THEN p99_ns END AS p99_ns,
    max_ns,
    CASE WHEN steps_count >= 8 THEN outliers_count END AS outliers_count,
    summaries.attempt
FROM summaries
INNER JOIN outliers
    ON
        summaries.attempt = outliers.attempt
        AND summaries.rank IS NOT DISTINCT FROM outliers.rank
ORDER BY summaries.attempt, summaries.rank NULLS FIRST;
