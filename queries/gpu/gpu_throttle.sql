-- What held each GPU's clock down while the job ran, and for how long.
--
-- A sampled reason is a moment, a counter of time is the whole: where both exist, the counter wins.
-- A software power cap at full load is normal, an idle GPU's low clock too; the hardware's reasons
-- and heat are not.
--
-- reads: gpu_sample, gpu_counter_summary, source_context, gpu, run, clock, clock_offset
-- grain: attempt, gpu_id, event
-- param: slack_ns BIGINT = 30000000000 : How far the job's window is widened on both sides.
-- param: min_told_ratio DOUBLE = 0.05 : Share of the time between two readings from which on a
--     counter says that it was held then: a trickle is at all times.
-- column: gpu_id VARCHAR : GPU: UUID, else host and address, else host and index.
-- column: host VARCHAR : Its host; null where unknown.
-- column: gpu_index INTEGER : NVML index; null where unknown.
-- column: pci VARCHAR : PCI address; null where unknown.
-- column: rank INTEGER : Rank that uses it; null where nothing says so.
-- column: rank_source VARCHAR : Where the rank came from.
-- column: host_ranks INTEGER[] : Ranks of its host; null where unknown.
-- column: event VARCHAR : gpu_idle, clocks_setting, sw_power_cap, hw_slowdown, sync_boost,
--     sw_thermal, hw_thermal, hw_power_brake, display_clocks; thermal and power are the older
--     counters of violation time.
-- column: samples_count BIGINT : Samples that say whether; 0 where only a counter does.
-- column: active_count BIGINT : Samples that say so.
-- column: active_ratio DOUBLE : Their share; null without samples.
-- column: held_ns DOUBLE : Time held down, from counters; null without two readings of one.
-- column: held_ratio DOUBLE : Its share of the time between the first and the last reading.
-- column: first_ns BIGINT : First sample that says so; where only a counter does, the beginning of
--     the first time between two readings that it was held for. Null where none.
-- column: last_ns BIGINT : Last one; of a counter the end of the last such time.
-- column: source_id INTEGER : File of the first sample that says so, else of the last reading: of a
--     counter that never moved, the last in the last of its files.
-- column: place BIGINT : Its place in that file.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
WITH
    bits AS (
        SELECT unnest([1, 2, 4, 8, 16, 32, 64, 128, 256]) AS bit,
            unnest([
                'gpu_idle', 'clocks_setting', 'sw_power_cap', 'hw_slowdown', 'sync_boost',
                'sw_thermal', 'hw_thermal', 'hw_power_brake', 'display_clocks'
            ]) AS event
    ),
    -- A day has millions of samples and a handful of masks: each mask is taken apart once, and
    -- named after it was counted.
    raw_masks AS (
        SELECT
            key,
            attempt,
            counter,
            value,
            count(*) AS samples_count,
            min(time_ns) AS first_ns,
            max(time_ns) AS last_ns,
            min((coalesce(time_ns, 0), source_id, place)) AS spot
        FROM gpu_readings_raw($slack_ns)
        WHERE
            (counter = 'clock_event_reasons' OR starts_with(counter, 'clock_event.'))
            AND value BETWEEN 0 AND 9007199254740992
        GROUP BY key, attempt, counter, value
    ),
    masks AS (
        SELECT raw_masks.* EXCLUDE (key), gpu.gpu_id
        FROM raw_masks
        JOIN keyed_gpus() AS gpu USING (key)
    ),
    said AS (
        SELECT
            attempt, gpu_id, bits.event, samples_count, first_ns, last_ns, spot,
            CAST(value AS BIGINT) & bits.bit <> 0 AS is_active
        FROM masks
        CROSS JOIN bits
        WHERE counter = 'clock_event_reasons'
        UNION ALL
        SELECT
            attempt, gpu_id, counter[13 :] AS event, samples_count, first_ns, last_ns, spot,
            value > 0.5
        FROM masks
        WHERE starts_with(counter, 'clock_event.')
    ),
    sampled AS (
        SELECT
            attempt,
            gpu_id,
            event,
            CAST(sum(samples_count) AS BIGINT) AS samples_count,
            CAST(coalesce(sum(samples_count) FILTER (is_active), 0) AS BIGINT) AS active_count,
            min(first_ns) FILTER (is_active) AS first_ns,
            max(last_ns) FILTER (is_active) AS last_ns,
            min(spot) FILTER (is_active) AS spot
        FROM said
        GROUP BY attempt, gpu_id, event
    ),
    series AS MATERIALIZED (
        SELECT
            gpu_series_key(summary.attempt, gpu.gpu_id, summary.counter) AS key,
            summary.attempt,
            gpu.gpu_id,
            CASE summary.counter
                WHEN 'thermal_violation' THEN 'thermal'
                WHEN 'power_violation' THEN 'power'
                ELSE replace(summary.counter, '_time', '')
            END AS event,
            if(sum(summary.counted_count) > 1, 0.0, NULL) AS held_ns,
            min(summary.min_counted) < max(summary.max_counted) AS is_moving,
            max(summary.last_ns) - min(summary.first_ns) AS span_ns,
            max(summary.last_spot) AS spot
        FROM gpu_summaries($slack_ns) AS summary
        JOIN keyed_gpus() AS gpu USING (key)
        WHERE
            summary.counter IN (
                'sw_power_cap_time', 'sync_boost_time', 'sw_thermal_time', 'hw_thermal_time',
                'hw_power_brake_time', 'thermal_violation', 'power_violation'
            )
            AND summary.counted_count > 0
        GROUP BY summary.attempt, gpu.gpu_id, summary.counter
    ),
    counters AS NOT MATERIALIZED (
        FROM gpu_moving_readings(
            $slack_ns,
            [
                'sw_power_cap_time', 'sync_boost_time', 'sw_thermal_time', 'hw_thermal_time',
                'hw_power_brake_time', 'thermal_violation', 'power_violation'
            ]
        )
    ),
    grown AS (
        SELECT
            key,
            CAST(sum(delta_count) AS DOUBLE) AS held_ns,
            min(last_time_ns) FILTER (delta_count >= $min_told_ratio * (time_ns - last_time_ns))
                AS first_ns,
            max(time_ns) FILTER (delta_count >= $min_told_ratio * (time_ns - last_time_ns))
                AS last_ns,
            max(time_ns) - min(time_ns) AS span_ns,
            arg_max(
                source_id * 1099511627776 + place, (coalesce(time_ns, 0), source_id, place)
            ) AS spot
        FROM counter_deltas('counters')
        GROUP BY key
    ),
    held AS (
        SELECT
            series.attempt,
            series.gpu_id,
            series.event,
            if(series.is_moving, grown.held_ns, series.held_ns) AS held_ns,
            grown.first_ns,
            grown.last_ns,
            if(series.is_moving, grown.span_ns, series.span_ns) AS span_ns,
            if(series.is_moving, grown.spot, series.spot) AS spot
        FROM series
        LEFT JOIN grown USING (key)
    ),
    both_kinds AS (
        SELECT attempt, gpu_id, event FROM sampled
        UNION
        SELECT attempt, gpu_id, event FROM held
    )
SELECT
    each.gpu_id,
    names.host,
    names.gpu_index,
    names.pci,
    names.rank,
    names.rank_source,
    names.host_ranks,
    each.event,
    coalesce(sampled.samples_count, 0) AS samples_count,
    coalesce(sampled.active_count, 0) AS active_count,
    sampled.active_count / sampled.samples_count AS active_ratio,
    held.held_ns,
    held.held_ns / nullif(held.span_ns, 0) AS held_ratio,
    coalesce(sampled.first_ns, held.first_ns) AS first_ns,
    coalesce(sampled.last_ns, held.last_ns) AS last_ns,
    coalesce(sampled.spot[2], CAST(held.spot // 1099511627776 AS INTEGER)) AS source_id,
    coalesce(sampled.spot[3], held.spot % 1099511627776) AS place,
    each.attempt
FROM both_kinds AS each
LEFT JOIN named_gpus() AS names
    ON names.attempt IS NOT DISTINCT FROM each.attempt AND names.gpu_id = each.gpu_id
LEFT JOIN sampled
    ON sampled.attempt IS NOT DISTINCT FROM each.attempt
    AND sampled.gpu_id = each.gpu_id
    AND sampled.event = each.event
LEFT JOIN held
    ON held.attempt IS NOT DISTINCT FROM each.attempt
    AND held.gpu_id = each.gpu_id
    AND held.event = each.event
ORDER BY each.attempt, each.gpu_id, each.event;
