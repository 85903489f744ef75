-- Stretches of steps of about the same length: when the job became slower or faster.
--
-- A mean over a window in which something changed describes neither half. Steps are the job's, as
-- in step_time_summary. Each stretch is cut in two where that explains most of the scatter, as long
-- as both parts have three steps, their means differ by a tenth, and the difference is far beyond
-- the scatter. Single long steps are no change: cuts are sought in the running median of five
-- steps. A short bump that ends again is an episode, and may be missed.
--
-- reads: step, pipeline_op
-- grain: attempt, capture_id, segment
-- param: min_shift_ratio DOUBLE = 0.1 : Difference of two means, over the smaller one.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: segment BIGINT : Which stretch, from 0.
-- column: first_step BIGINT : Its first step.
-- column: last_step BIGINT : Its last step.
-- column: steps_count BIGINT : Steps in it; warm-up and cut ones are left out.
-- column: mean_ns DOUBLE : Their mean.
-- column: p50_ns DOUBLE : Their median.
-- column: shift_ratio DOUBLE : p50_ns over that of the stretch before, less 1; null for the first.
-- column: start_ns BIGINT : First start of its first step.
-- source: Diagnosis 3.1; binary segmentation (Scott and Knott 1974).
WITH RECURSIVE
    timed AS (
        SELECT attempt, capture_id, step, dur_ns, start_ns
        FROM job_steps()
        WHERE dur_ns > 0
    ),
    numbered AS (
        SELECT
            *,
            row_number() OVER (PARTITION BY attempt, capture_id ORDER BY step) AS i,
            median(CAST(dur_ns AS DOUBLE)) OVER (
                PARTITION BY attempt, capture_id ORDER BY step
                ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING
            ) AS smooth_ns
        FROM timed
    ),
    segments AS (
        SELECT attempt, capture_id, min(i) AS low, max(i) AS high, FALSE AS is_final
        FROM numbered
        GROUP BY attempt, capture_id
        UNION ALL
        SELECT attempt, capture_id, part.low, part.high, part.is_final
        FROM (
            SELECT
                attempt,
                capture_id,
                unnest(
                    if(
                        cut IS NULL,
                        [{'low': low, 'high': high, 'is_final': TRUE}],
                        [
                            {'low': low, 'high': cut, 'is_final': FALSE},
                            {'low': cut + 1, 'high': high, 'is_final': FALSE}
                        ]
                    )
                ) AS part
            FROM (
                SELECT
                    attempt,
                    capture_id,
                    low,
                    high,
                    arg_max(i, {'gain': gain, 'earlier': -i}) FILTER (gain IS NOT NULL) AS cut
                FROM (
                    SELECT
                        *,
                        if(
                            i - low >= 2
                            AND high - i >= 3
                            AND abs(right_ns - left_ns)
                            >= $min_shift_ratio * least(left_ns, right_ns)
                            -- Running medians of five are alike, so that errors count for more:
                            -- eight of them, where three would do for independent ones.
                            AND (right_ns - left_ns) ** 2
                            > 64 * greatest(0, left_scatter + right_scatter) / (high - low)
                            * (1 / (i - low + 1) + 1 / (high - i)),
                            (right_ns - left_ns) ** 2 * (i - low + 1) * (high - i),
                            NULL
                        ) AS gain
                    FROM (
                        SELECT
                            s.attempt,
                            s.capture_id,
                            s.low,
                            s.high,
                            n.i,
                            avg(n.smooth_ns) OVER sofar AS left_ns,
                            avg(n.smooth_ns) OVER rest AS right_ns,
                            coalesce(var_pop(n.smooth_ns) OVER sofar, 0) * (n.i - s.low + 1)
                                AS left_scatter,
                            coalesce(var_pop(n.smooth_ns) OVER rest, 0) * (s.high - n.i)
                                AS right_scatter
                        FROM segments AS s
                        JOIN numbered AS n
                            ON n.attempt = s.attempt
                            AND n.capture_id = s.capture_id
                            AND n.i BETWEEN s.low AND s.high
                        WHERE NOT s.is_final
                        WINDOW
                            sofar AS (
                                PARTITION BY s.attempt, s.capture_id, s.low ORDER BY n.i
                                ROWS UNBOUNDED PRECEDING
                            ),
                            rest AS (
                                PARTITION BY s.attempt, s.capture_id, s.low ORDER BY n.i
                                ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
                            )
                    )
                )
                GROUP BY attempt, capture_id, low, high
            )
        )
    ),
    described AS (
        SELECT
            s.attempt,
            s.capture_id,
            s.low,
            min(step) AS first_step,
            max(step) AS last_step,
            count(*) AS steps_count,
            avg(dur_ns) AS mean_ns,
            quantile_cont(CAST(dur_ns AS DOUBLE), 0.5) AS p50_ns,
            min(start_ns) AS start_ns
        FROM segments AS s
        JOIN numbered AS n
            ON n.attempt = s.attempt AND n.capture_id = s.capture_id AND n.i BETWEEN low AND high
        WHERE is_final
        GROUP BY s.attempt, s.capture_id, s.low
    )
SELECT
    attempt,
    capture_id,
    row_number() OVER capture - 1 AS segment,
    first_step,
    last_step,
    steps_count,
    mean_ns,
    p50_ns,
    p50_ns / lag(p50_ns) OVER capture - 1 AS shift_ratio,
    start_ns
FROM described
WINDOW capture AS (PARTITION BY attempt, capture_id ORDER BY low)
ORDER BY attempt, capture_id, segment;
