-- How fast each GPU ran in slow stretches of the job and at other times, and what memory it held.
--
-- What counters say of a day hides what held a clock for an hour. The times of the log and
-- of the counters count from the epoch, or both are local ones.
--
-- reads: job_episode, logged_step, source_context, gpu_sample, gpu, run, clock
-- needs: job_episode, gpu_sample
-- grain: kind, first_step, last_step, gpu_id
-- param: episodes_count BIGINT = 3 : Most slow stretches, those that lost most time.
-- column: kind VARCHAR : slow, as in slow_episode.
-- column: first_step BIGINT : First step of it.
-- column: last_step BIGINT : Last step of it.
-- column: start_ns BIGINT : When it began.
-- column: end_ns BIGINT : When it ended.
-- column: lost_ns BIGINT : How much longer it took than as many usual steps.
-- column: usual_ns BIGINT : How long steps take otherwise.
-- column: dur_ns BIGINT : How long its steps take.
-- column: gpu_id VARCHAR : GPU: UUID, else host and address, else host and index.
-- column: host VARCHAR : Its host; null where unknown.
-- column: gpu_index INTEGER : NVML index; null where unknown.
-- column: pci VARCHAR : PCI address; null where unknown.
-- column: rank INTEGER : Rank that uses it; null where nothing says so.
-- column: rank_source VARCHAR : Where the rank came from.
-- column: host_ranks INTEGER[] : Ranks of its host; null where unknown.
-- column: alike VARCHAR : The same for GPUs that it may be compared with.
-- column: samples_count BIGINT : Readings of its clock within the stretch.
-- column: mean_hz DOUBLE : Their mean.
-- column: usual_samples_count BIGINT : Readings at other times of the log.
-- column: usual_mean_hz DOUBLE : Their mean; null without any.
-- column: use_ratio DOUBLE : Mean utilisation within the stretch; null where it is not told.
-- column: more_memory_bytes DOUBLE : Median memory in use within the stretch beyond the most at
--     other times; null where that is not told for a time after the stretch.
-- column: source_id INTEGER : File of the first reading within it.
-- column: place BIGINT : Its place in that file.
WITH
    episodes AS MATERIALIZED (FROM lost_stretches(12) WHERE kind = 'slow'),
    worst AS MATERIALIZED (
        FROM episodes
        QUALIFY row_number() OVER (ORDER BY lost_ns DESC NULLS LAST, first_step, last_step)
            <= $episodes_count
    ),
    of_log AS (SELECT DISTINCT log_start_ns, log_end_ns, basis FROM episodes),
    readings AS (
        SELECT
            readings.gpu_id, readings.counter, readings.value, readings.time_ns,
            readings.source_id, readings.place
        FROM gpu_readings(0) AS readings
        JOIN clock USING (clock_id)
        JOIN of_log
            ON of_log.basis = clock.basis
            AND readings.time_ns BETWEEN of_log.log_start_ns AND of_log.log_end_ns
        WHERE readings.counter IN ('sm_clock', 'gpu_utilisation', 'memory_used')
    ),
    -- Of each GPU what it did in no stretch at all, and in each of the worst.
    otherwise AS (
        SELECT
            readings.gpu_id,
            count(*) FILTER (counter = 'sm_clock') AS samples_count,
            avg(value) FILTER (counter = 'sm_clock') AS mean_hz,
            max(value) FILTER (counter = 'memory_used') AS memory_bytes,
            max(time_ns) FILTER (counter = 'memory_used') AS last_memory_ns
        FROM readings
        WHERE
            NOT EXISTS (
                FROM episodes
                WHERE readings.time_ns BETWEEN episodes.start_ns AND episodes.end_ns
            )
        GROUP BY readings.gpu_id
    ),
    within AS (
        SELECT
            worst.kind, worst.first_step, worst.last_step, readings.gpu_id,
            any_value(worst.start_ns) AS start_ns,
            any_value(worst.end_ns) AS end_ns,
            any_value(worst.lost_ns) AS lost_ns,
            any_value(worst.usual_ns) AS usual_ns,
            any_value(worst.dur_ns) AS dur_ns,
            count(*) FILTER (counter = 'sm_clock') AS samples_count,
            avg(value) FILTER (counter = 'sm_clock') AS mean_hz,
            avg(value) FILTER (counter = 'gpu_utilisation') AS use_ratio,
            median(value) FILTER (counter = 'memory_used') AS memory_bytes,
            min((readings.time_ns, source_id, place)) FILTER (counter = 'sm_clock') AS spot
        FROM readings
        JOIN worst ON readings.time_ns BETWEEN worst.start_ns AND worst.end_ns
        GROUP BY worst.kind, worst.first_step, worst.last_step, readings.gpu_id
    )
SELECT
    within.kind,
    within.first_step,
    within.last_step,
    within.start_ns,
    within.end_ns,
    within.lost_ns,
    within.usual_ns,
    within.dur_ns,
    within.gpu_id,
    names.host,
    names.gpu_index,
    names.pci,
    names.rank,
    names.rank_source,
    names.host_ranks,
    names.alike,
    within.samples_count,
    within.mean_hz,
    coalesce(otherwise.samples_count, 0) AS usual_samples_count,
    otherwise.mean_hz AS usual_mean_hz,
    within.use_ratio,
    if(
        otherwise.last_memory_ns > within.end_ns,
        within.memory_bytes - otherwise.memory_bytes,
        NULL
    ) AS more_memory_bytes,
    within.spot[2] AS source_id,
    within.spot[3] AS place
FROM within
LEFT JOIN otherwise USING (gpu_id)
LEFT JOIN named_gpus() AS names ON names.gpu_id = within.gpu_id AND names.attempt IS NULL
WHERE within.samples_count > 0
ORDER BY within.first_step, within.kind, within.last_step, within.gpu_id;
