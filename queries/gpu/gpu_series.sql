-- What each level of each GPU was over time, beside the range of the same level over all GPUs.
--
-- Shows whether a GPU was hot, slow or thirsty all along, or just when steps were slow. A moment is
-- as long as readings are apart, and at least a moments_count-th of the time, so that a day is as
-- many rows as a minute.
--
-- reads: gpu_sample, gpu, run, clock
-- needs: gpu_sample
-- grain: attempt, counter, gpu_id, start_ns
-- param: counters VARCHAR = 'sm_clock,gpu_temperature,power,sm_active' : Canonical names, with
--     commas between them.
-- param: moments_count BIGINT = 160 : Most moments.
-- param: slack_ns BIGINT = 30000000000 : How far the job's window is widened on both sides.
-- column: counter VARCHAR : Canonical name.
-- column: unit VARCHAR : Unit of the values.
-- column: gpu_id VARCHAR : GPU, as in gpu_counters.
-- column: host VARCHAR : Its host; null where unknown.
-- column: gpu_index INTEGER : NVML index; null where unknown.
-- column: rank INTEGER : Rank that uses it; null where nothing says so.
-- column: start_ns BIGINT : Start of the moment, on the samples' clock.
-- column: moment_ns BIGINT : Its length.
-- column: mean_value DOUBLE : Mean of the samples in it.
-- column: samples_count BIGINT : How many these are.
-- column: gpus_count BIGINT : GPUs with a sample in it.
-- column: low_value DOUBLE : Least mean over all GPUs.
-- column: median_value DOUBLE : Median of the means.
-- column: high_value DOUBLE : Largest.
-- column: away_ratio DOUBLE : How far the GPU is from the median in this range: mean over its
--     counters and moments, 0..1; null where all are always equal.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
WITH
    readings AS MATERIALIZED (
        SELECT attempt, gpu_id, counter, unit, time_ns, value
        FROM gpu_readings($slack_ns)
        WHERE
            kind = 'gauge'
            AND value IS NOT NULL
            AND time_ns IS NOT NULL
            AND list_contains(string_split($counters, ','), counter)
    ),
    intervals AS (
        SELECT
            attempt,
            min(time_ns) AS first_ns,
            max(time_ns) AS last_ns,
            (max(time_ns) - min(time_ns)) / nullif(count(*) - 1, 0) AS interval_ns
        FROM readings
        GROUP BY attempt, gpu_id, counter
    ),
    moments AS (
        SELECT
            attempt,
            min(first_ns) AS origin_ns,
            CAST(ceil(greatest(
                1,
                coalesce(median(interval_ns), 0),
                (max(last_ns) - min(first_ns) + 1) / $moments_count
            )) AS BIGINT) AS moment_ns
        FROM intervals
        GROUP BY attempt
    ),
    means AS (
        SELECT
            readings.attempt,
            readings.counter,
            readings.gpu_id,
            min(readings.unit) AS unit,
            moments.origin_ns
            + (readings.time_ns - moments.origin_ns) // moments.moment_ns * moments.moment_ns
                AS start_ns,
            moments.moment_ns,
            avg(readings.value) AS mean_value,
            count(*) AS samples_count
        FROM readings
        JOIN moments ON moments.attempt IS NOT DISTINCT FROM readings.attempt
        GROUP BY ALL
    ),
    named AS (
        SELECT attempt, gpu_id, min(host) AS host, min(gpu_index) AS gpu_index, min(rank) AS rank
        FROM gpu
        GROUP BY attempt, gpu_id
    ),
    beside AS (
        SELECT
            attempt, counter, gpu_id, unit, start_ns, moment_ns, mean_value, samples_count,
            count(*) OVER together AS gpus_count,
            min(mean_value) OVER together AS low_value,
            median(mean_value) OVER together AS median_value,
            max(mean_value) OVER together AS high_value
        FROM means
        WINDOW together AS (PARTITION BY attempt, counter, start_ns)
    )
SELECT
    beside.counter,
    beside.unit,
    beside.gpu_id,
    named.host,
    named.gpu_index,
    named.rank,
    beside.start_ns,
    beside.moment_ns,
    beside.mean_value,
    beside.samples_count,
    beside.gpus_count,
    beside.low_value,
    beside.median_value,
    beside.high_value,
    avg(
        abs(beside.mean_value - beside.median_value)
        / nullif(beside.high_value - beside.low_value, 0)
    ) OVER (PARTITION BY beside.attempt, beside.gpu_id) AS away_ratio,
    beside.attempt
FROM beside
JOIN named
    ON named.attempt IS NOT DISTINCT FROM beside.attempt
    AND named.gpu_id = beside.gpu_id
ORDER BY beside.attempt, beside.counter, beside.gpu_id, beside.start_ns;
