-- What each cumulative counter of each GPU grew by while the job ran.
--
-- Corrected and uncorrected memory errors, replays, link recoveries, energy: only their growth says
-- something of this job; the total says something of the board.
--
-- reads: gpu_sample, gpu_counter_summary, source_context, gpu, run, clock, clock_offset
-- grain: attempt, gpu_id, counter
-- param: slack_ns BIGINT = 30000000000 : How far the job's window is widened on both sides.
-- column: gpu_id VARCHAR : GPU: UUID, else host and address, else host and index.
-- column: host VARCHAR : Its host; null where unknown.
-- column: gpu_index INTEGER : NVML index; null where unknown.
-- column: pci VARCHAR : PCI address; null where unknown.
-- column: rank INTEGER : Rank that uses it; null where nothing says so.
-- column: rank_source VARCHAR : Where the rank came from.
-- column: host_ranks INTEGER[] : Ranks of its host; null where unknown.
-- column: peer_group VARCHAR : GPUs that it may be compared with: those of its model; where that is
--     unknown, those of its host, else of its file.
-- column: counter VARCHAR : Canonical name.
-- column: unit VARCHAR : Unit.
-- column: samples_count BIGINT : Readings.
-- column: growth DOUBLE : Grown by; null below two readings.
-- column: span_ns BIGINT : Time between the first and the last reading; null without times.
-- column: last_value DOUBLE : Last reading.
-- column: resets_count BIGINT : Resets: what was counted then is unknown.
-- column: source_id INTEGER : File of the reading after the largest growth; of the first reading
--     where nothing grew.
-- column: place BIGINT : Its place in that file.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
WITH
    series AS MATERIALIZED (
        SELECT
            gpu_series_key(summary.attempt, gpu.gpu_id, summary.counter) AS key,
            summary.attempt,
            gpu.gpu_id,
            summary.counter,
            any_value(summary.unit) AS unit,
            CAST(sum(summary.samples_count) AS BIGINT) AS samples_count,
            max(summary.max_counted) AS most,
            max(summary.last_ns) - min(summary.first_ns) AS span_ns,
            min(summary.first_spot) AS spot
        FROM gpu_summaries($slack_ns) AS summary
        JOIN keyed_gpus() AS gpu USING (key)
        WHERE summary.kind = 'cumulative'
        GROUP BY summary.attempt, gpu.gpu_id, summary.counter
    ),
    -- Read again wherever they are asked for: a copy of a day's takes more than all else.
    readings AS NOT MATERIALIZED (
        SELECT key, source_id, clock_id, place, time_ns, counted, limit_count
        FROM gpu_moving_readings($slack_ns, NULL)
        WHERE kind = 'cumulative'
    ),
    moved AS (
        SELECT
            key,
            CAST(sum(delta_count) AS DOUBLE) AS growth,
            CAST(arg_max(counted, (coalesce(time_ns, 0), source_id, place)) AS DOUBLE)
                AS last_value,
            count(*) FILTER (event = 'reset') AS resets_count,
            arg_max(
                source_id * 1099511627776 + place,
                (coalesce(CAST(delta_count AS DOUBLE), -1), -source_id, -place)
            ) AS spot
        FROM counter_deltas('readings')
        GROUP BY key
    ),
    grown AS (
        SELECT
            series.key,
            series.samples_count,
            series.span_ns,
            if(
                moved.key IS NULL,
                if(series.samples_count > 1, 0.0, NULL),
                moved.growth
            ) AS growth,
            coalesce(moved.last_value, CAST(series.most AS DOUBLE)) AS last_value,
            coalesce(moved.resets_count, 0) AS resets_count,
            coalesce(moved.spot, series.spot) AS spot
        FROM series
        LEFT JOIN moved USING (key)
    )
SELECT
    series.gpu_id,
    names.host,
    names.gpu_index,
    names.pci,
    names.rank,
    names.rank_source,
    names.host_ranks,
    names.alike AS peer_group,
    series.counter,
    series.unit,
    grown.samples_count,
    grown.growth,
    grown.span_ns,
    grown.last_value,
    grown.resets_count,
    CAST(grown.spot // 1099511627776 AS INTEGER) AS source_id,
    grown.spot % 1099511627776 AS place,
    series.attempt
FROM series
JOIN grown USING (key)
LEFT JOIN named_gpus() AS names
    ON names.attempt IS NOT DISTINCT FROM series.attempt AND names.gpu_id = series.gpu_id
ORDER BY series.attempt, series.gpu_id, series.counter;
