-- What each counter of each GPU was while the job ran, beside the same counter of the other GPUs.
--
-- A temperature, a clock or a power says little alone; beside GPUs of the same model that do the
-- same work at the same moments it does. Of a GPU whose model nobody knows only those of its own
-- machine may be the same, and what follows the load is compared among those that work, or among
-- those that stand by. A moment is a usual sampling interval, at least a second,
-- at least a 720th of the time (two minutes of a day), and longer where thousands of GPUs have
-- more moments in all than fit in memory; a GPU is compared with the median of the others in each.
--
-- reads: gpu_sample, gpu_counter_summary, source_context, gpu, run, clock
-- grain: attempt, gpu_id, counter
-- asked: report
-- param: slack_ns BIGINT = 30000000000 : How far the job's window is widened on both sides.
-- param: apart_ratio DOUBLE = 0.05 : Beyond the others' median by this, it is below or above.
-- param: idle_ratio DOUBLE = 0.05 : Share of busy readings up to which a GPU stands by: SMs active
--     for 0.2 of the time, or utilised for 0.5, as in counter_statements.
-- param: most_moments_count BIGINT = 3000000 : Moments of all GPUs and counters, at most.
-- column: gpu_id VARCHAR : GPU: UUID, else host and address, else host and index.
-- column: host VARCHAR : Its host; null where unknown.
-- column: gpu_index INTEGER : NVML index; null where unknown.
-- column: pci VARCHAR : PCI address; null where unknown.
-- column: model VARCHAR : Model; null where unknown.
-- column: rank INTEGER : Rank that uses it; null where nothing says so.
-- column: rank_source VARCHAR : Where the rank came from.
-- column: host_ranks INTEGER[] : Ranks of its host; null where unknown.
-- column: counter VARCHAR : Canonical name.
-- column: unit VARCHAR : Unit of the values.
-- column: samples_count BIGINT : Samples.
-- column: interval_ns DOUBLE : Mean time between them; null below two with a time.
-- column: min_value DOUBLE : Least.
-- column: p50_value DOUBLE : Median over moments of the mean in each; null without times.
-- column: max_value DOUBLE : Most.
-- column: last_value DOUBLE : Mean in the last moment.
-- column: peer_group VARCHAR : GPUs that it is compared with: those of its model; where that is
--     unknown, those of its host, else of its file; where the counter follows the load and some
--     work while others stand by, those that do as it does.
-- column: peers_count BIGINT : Other GPUs of that group with this counter.
-- column: moments_count BIGINT : Moments in which it and at least two others were seen.
-- column: peer_value DOUBLE : Median over those moments of the others' median.
-- column: peer_ratio DOUBLE : Median over those moments of its value over the others' median; null
--     where that is 0.
-- column: total_ratio DOUBLE : Sum of its values over those moments, over the sum of the others'
--     medians: what it did in all, where moments are shorter than a step.
-- column: below_ratio DOUBLE : Share of those moments in which it is that much below.
-- column: above_ratio DOUBLE : Share of those moments in which it is that much above.
-- column: highest_ratio DOUBLE : Share of those moments in which no other is as high.
-- column: busy_below_ratio DOUBLE : As below_ratio, over moments in which the GPU is not idle (its
--     utilisation or its power shows it); null where neither was sampled.
-- column: busy_peer_ratio DOUBLE : As peer_ratio, over those moments.
-- column: source_id INTEGER : File of the first sample with a time that is as large as any; null
--     without times.
-- column: place BIGINT : Its place in that file; null without times.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
WITH
    -- Grouped as the samples name their GPUs, and named afterwards: a day has 100 million of them.
    -- Read where they are asked for rather than kept: kept, they would fill memory and disk.
    readings AS NOT MATERIALIZED (
        SELECT key, counter, source_id, place, time_ns, value
        FROM gpu_readings_raw($slack_ns)
        WHERE kind = 'gauge' AND value IS NOT NULL
    ),
    own_raw AS MATERIALIZED (
        SELECT
            key, attempt, counter, unit, samples_count, timed_count, first_ns, last_ns,
            min_value, max_value, timed_max_value, active_count, utilised_count
        FROM gpu_summaries($slack_ns)
        WHERE kind = 'gauge' AND values_count > 0
    ),
    loads AS (
        SELECT
            own_raw.attempt,
            gpu.gpu_id,
            arg_max(
                CASE counter WHEN 'sm_active' THEN active_count ELSE utilised_count END
                / samples_count,
                counter
            ) <= $idle_ratio AS is_idle
        FROM own_raw
        JOIN keyed_gpus() AS gpu USING (key)
        WHERE counter IN ('sm_active', 'gpu_utilisation')
        GROUP BY own_raw.attempt, gpu.gpu_id
    ),
    groups_of AS (
        SELECT
            names.*,
            if(
                bool_or(loads.is_idle) OVER kin AND NOT bool_and(coalesce(is_idle, false)) OVER kin,
                CASE loads.is_idle
                    WHEN true THEN ', idle' WHEN false THEN ', not idle' ELSE ', load unknown'
                END,
                ''
            ) AS load
        FROM named_gpus() AS names
        LEFT JOIN loads
            ON loads.attempt IS NOT DISTINCT FROM names.attempt AND loads.gpu_id = names.gpu_id
        WINDOW kin AS (PARTITION BY names.attempt, names.alike)
    ),
    -- Moments are many, thousands of GPUs times hundreds, and they are joined and grouped by a
    -- number: the upper half is the counter among GPUs of one group, the lower half the GPU.
    numbered AS MATERIALIZED (
        SELECT
            own_raw.*,
            hash(own_raw.key, own_raw.counter) AS own_key,
            gpu.gpu_id,
            names.alike
            || if(
                own_raw.counter IN (
                    'power', 'gpu_temperature', 'memory_temperature', 'sm_clock', 'memory_clock',
                    'gpu_utilisation', 'sm_active', 'tensor_active', 'dram_active',
                    'graphics_active', 'memory_copy_utilisation', 'pcie_width', 'pcie_generation'
                ),
                names.load,
                ''
            ) AS peer_group,
            dense_rank() OVER (ORDER BY own_raw.attempt, own_raw.counter, peer_group)
            * 4294967296
            + dense_rank() OVER (ORDER BY own_raw.attempt, gpu.gpu_id) AS series
        FROM own_raw
        JOIN keyed_gpus() AS gpu USING (key)
        LEFT JOIN groups_of AS names
            ON names.attempt IS NOT DISTINCT FROM own_raw.attempt AND names.gpu_id = gpu.gpu_id
        -- Taken for billions of rows otherwise, and then the readings are what a join holds in
        -- memory: 1.2 GB of a third of a day. Each has a moment at least.
        LIMIT $most_moments_count
    ),
    own AS MATERIALIZED (
        SELECT
            series,
            attempt,
            gpu_id,
            counter,
            peer_group,
            min(unit) AS unit,
            CAST(sum(samples_count) AS BIGINT) AS samples_count,
            min(first_ns) AS first_ns,
            (max(last_ns) - min(first_ns)) / nullif(sum(timed_count) - 1, 0) AS interval_ns,
            min(min_value) AS min_value,
            max(max_value) AS max_value,
            max(timed_max_value) AS timed_max_value
        FROM numbered
        GROUP BY series, attempt, gpu_id, counter, peer_group
    ),
    -- One length for all counters, so that a clock can be set beside a utilisation. Medians hold
    -- every moment in memory, and nothing of that can be spilled.
    steps AS (
        SELECT
            attempt,
            min(first_ns) AS origin_ns,
            greatest(
                1000000000,
                CAST(coalesce(median(interval_ns), 0) AS BIGINT),
                CAST(
                    coalesce(max(interval_ns * samples_count), 0)
                    / least(720, $most_moments_count / count(*)) AS BIGINT
                )
            ) AS moment_ns
        FROM own
        GROUP BY attempt
    ),
    -- What a reading needs to be told its moment, so that readings are joined once. By way of a
    -- list: planned as the trillions of rows that joins by such keys are taken for, all readings
    -- would be put into the join's hash table instead of these.
    placed AS MATERIALIZED (
        SELECT unnest(placed_list, recursive := true)
        FROM (
            SELECT
                list({
                    'own_key': numbered.own_key,
                    'series': numbered.series,
                    'origin_ns': steps.origin_ns,
                    'moment_ns': steps.moment_ns,
                    'timed_max_value': own.timed_max_value
                }) AS placed_list
            FROM numbered
            JOIN own USING (series)
            JOIN steps ON steps.attempt IS NOT DISTINCT FROM numbered.attempt
        )
    ),
    -- Named before they are grouped: grouped twice, millions of moments would not fit the memory.
    moments AS MATERIALIZED (
        SELECT
            placed.series,
            CAST((readings.time_ns - placed.origin_ns) // placed.moment_ns AS INTEGER) AS moment,
            sum(readings.value) / count(*) AS value,
            min(
                CASE
                    WHEN readings.value = placed.timed_max_value
                        THEN readings.source_id * 1099511627776 + readings.place
                END
            ) AS spot
        FROM readings
        JOIN placed ON placed.own_key = hash(readings.key, readings.counter)
        WHERE readings.time_ns IS NOT NULL
        GROUP BY placed.series, moment
    ),
    busy AS (
        SELECT DISTINCT series & 4294967295 AS gpu, moment, true AS is_busy
        FROM moments
        WHERE
            (
                value >= 0.5
                AND series IN (SELECT series FROM own WHERE counter = 'gpu_utilisation')
            )
            OR (
                value >= 0.2
                AND series IN (SELECT series FROM own WHERE counter = 'sm_active')
            )
    ),
    groups AS (
        SELECT
            series >> 32 AS family,
            moment,
            count(*) AS seen_count,
            list_sort(list(value)) AS ordered
        FROM moments
        GROUP BY family, moment
        HAVING count(*) >= 3
    ),
    -- The median of the others, from the middle of all: taking one away moves it by half a place.
    middles AS (
        SELECT
            family, moment,
            seen_count % 2 = 1 AS is_odd,
            ordered[(seen_count + 1) // 2 - 1] AS before_middle,
            ordered[(seen_count + 1) // 2] AS middle,
            ordered[(seen_count + 1) // 2 + 1] AS after_middle,
            ordered[-1] AS highest
        FROM groups
    ),
    compared AS (
        SELECT
            moments.series,
            moments.value,
            middles.highest,
            CASE
                WHEN middles.is_odd AND moments.value < middles.middle
                    THEN (middles.middle + middles.after_middle) / 2
                WHEN middles.is_odd AND moments.value > middles.middle
                    THEN (middles.before_middle + middles.middle) / 2
                WHEN middles.is_odd THEN (middles.before_middle + middles.after_middle) / 2
                WHEN moments.value <= middles.middle THEN middles.after_middle
                ELSE middles.middle
            END AS others,
            busy.is_busy
        FROM moments
        JOIN middles
            ON middles.family = moments.series >> 32 AND middles.moment = moments.moment
        LEFT JOIN busy
            ON busy.gpu = moments.series & 4294967295 AND busy.moment = moments.moment
    ),
    peers AS (
        SELECT
            series,
            count(*) AS moments_count,
            median(others) AS peer_value,
            median(value / nullif(others, 0)) AS peer_ratio,
            sum(value) / nullif(sum(others), 0) AS total_ratio,
            avg(CAST(value <= (1 - $apart_ratio) * others AS INTEGER)) AS below_ratio,
            avg(CAST(value >= (1 + $apart_ratio) * others AS INTEGER)) AS above_ratio,
            avg(CAST(value >= highest AS INTEGER)) AS highest_ratio,
            avg(CAST(value <= (1 - $apart_ratio) * others AS INTEGER)) FILTER (is_busy)
                AS busy_below_ratio,
            median(value / nullif(others, 0)) FILTER (is_busy) AS busy_peer_ratio
        FROM compared
        GROUP BY series
    ),
    -- Joined though nothing of it is wanted: grouped as the moments come, a few of each series at a
    -- time, medians of three million take DuckDB 2.0 15 s, and after a join 0.3.
    timed AS (
        SELECT
            series,
            median(value) AS p50_value,
            arg_max(value, moment) AS last_value,
            min(moments.spot) AS spot
        FROM moments
        JOIN own USING (series)
        GROUP BY series
    ),
    counted AS (
        SELECT
            own.*,
            names.* EXCLUDE (attempt, gpu_id),
            count(*) OVER (PARTITION BY own.series >> 32) - 1 AS peers_count
        FROM own
        LEFT JOIN named_gpus() AS names
            ON names.attempt IS NOT DISTINCT FROM own.attempt AND names.gpu_id = own.gpu_id
    )
SELECT
    own.gpu_id,
    own.host,
    own.gpu_index,
    own.pci,
    own.model,
    own.rank,
    own.rank_source,
    own.host_ranks,
    own.counter,
    own.unit,
    own.samples_count,
    own.interval_ns,
    own.min_value,
    timed.p50_value,
    own.max_value,
    timed.last_value,
    own.peer_group,
    own.peers_count,
    coalesce(peers.moments_count, 0) AS moments_count,
    peers.peer_value,
    peers.peer_ratio,
    peers.total_ratio,
    peers.below_ratio,
    peers.above_ratio,
    peers.highest_ratio,
    peers.busy_below_ratio,
    peers.busy_peer_ratio,
    CAST(timed.spot // 1099511627776 AS INTEGER) AS source_id,
    timed.spot % 1099511627776 AS place,
    own.attempt
FROM counted AS own
LEFT JOIN timed USING (series)
LEFT JOIN peers USING (series)
ORDER BY own.attempt, own.gpu_id, own.counter;
