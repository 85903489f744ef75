-- Readings of counters, and what lies between them.

-- attempt_windows: When each attempt of the job ran; without a trace one window that has no ends.
--
-- reads: run
-- columns: attempt INTEGER, start_ns BIGINT, end_ns BIGINT
CREATE OR REPLACE MACRO attempt_windows() AS TABLE
SELECT attempt, start_ns, end_ns
FROM run
UNION ALL
SELECT NULL, NULL, NULL
WHERE NOT EXISTS (SELECT 1 FROM run);

-- readings_in_attempts: What of the time between two readings lies in which attempt of the job.
--
-- param: rows_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Times between readings, and
--     what is told of each.
-- reads: run
-- columns: key ANY, attempt INTEGER, inside_ns BIGINT
CREATE OR REPLACE MACRO readings_in_attempts(rows_name) AS TABLE
SELECT
    spans.key,
    windows.attempt,
    least(spans.end_ns, coalesce(windows.end_ns, spans.end_ns))
    - greatest(spans.start_ns, coalesce(windows.start_ns, spans.start_ns)) AS inside_ns
FROM query_table(rows_name) AS spans
JOIN attempt_windows() AS windows
    ON windows.start_ns IS NULL
    OR (spans.start_ns < windows.end_ns AND spans.end_ns > windows.start_ns);

-- readings_in_steps: What of the time between two readings lies in which step of the job.
--
-- What a reading tells is spread evenly over the time since the one before. A step lasts from its
-- first rank's start to its last rank's end.
--
-- param: rows_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Times between readings, and
--     what is told of each.
-- reads: step
-- columns: key ANY, attempt INTEGER, capture_id INTEGER, step BIGINT, shared_ns BIGINT,
--     reading_ns BIGINT, step_ns BIGINT
CREATE OR REPLACE MACRO readings_in_steps(rows_name) AS TABLE
WITH
    step_spans AS (
        SELECT
            attempt, capture_id, step,
            min(start_ns) AS start_ns, max(start_ns + dur_ns) AS end_ns
        FROM step
        WHERE step IS NOT NULL
        GROUP BY attempt, capture_id, step
        HAVING max(start_ns + dur_ns) > min(start_ns)
    )
SELECT
    spans.key,
    step_spans.attempt,
    step_spans.capture_id,
    step_spans.step,
    least(step_spans.end_ns, spans.end_ns) - greatest(step_spans.start_ns, spans.start_ns)
        AS shared_ns,
    spans.end_ns - spans.start_ns AS reading_ns,
    step_spans.end_ns - step_spans.start_ns AS step_ns
FROM query_table(rows_name) AS spans
JOIN step_spans
    ON step_spans.start_ns < spans.end_ns
    AND step_spans.end_ns > spans.start_ns;

-- one_collector: Readings of counters, each counter's of one collector at a time.
--
-- Two programs may watch one counter, each by its own clock. Unless these are the same, or were
-- compared, nobody knows in which order the readings were taken, and in a wrong order a counter
-- falls: of files that overlap those of the clock with most readings are kept. Files that follow
-- each other are parts of one series whoever wrote them.
--
-- param: rows_name TABLE(key ANY, source_id INTEGER, clock_id INTEGER, place BIGINT,
--     time_ns BIGINT, counted UBIGINT, limit_count BIGINT) : Readings, as for counter_deltas.
-- reads: clock_offset
-- columns: key ANY, source_id INTEGER, clock_id INTEGER, place BIGINT, time_ns BIGINT,
--     counted UBIGINT, limit_count BIGINT
CREATE OR REPLACE MACRO one_collector(rows_name) AS TABLE
WITH
    compared AS (
        SELECT unnest([clock_id, reference_clock_id]) FROM clock_offset
        WHERE error_ns IS NOT NULL
    ),
    several AS (
        SELECT key
        FROM query_table(rows_name)
        GROUP BY key
        HAVING min(clock_id) < max(clock_id)
    ),
    spans AS (
        SELECT
            key,
            source_id,
            any_value(if(clock_id IN (FROM compared), -1, clock_id)) AS clock_id,
            min(time_ns) AS first_ns,
            max(time_ns) AS last_ns,
            count(*) AS readings_count
        FROM query_table(rows_name)
        WHERE key IN (FROM several) AND time_ns IS NOT NULL
        GROUP BY key, source_id
    ),
    begun AS (
        SELECT
            *,
            coalesce(first_ns >= max(last_ns) OVER earlier, true) AS is_new
        FROM spans
        WINDOW earlier AS (
            PARTITION BY key ORDER BY first_ns, last_ns, source_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    ),
    overlapping AS (
        SELECT
            *,
            sum(CAST(is_new AS INTEGER)) OVER (
                PARTITION BY key ORDER BY first_ns, last_ns, source_id
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS stretch
        FROM begun
    ),
    outdone AS (
        SELECT key, stretch, clock_id
        FROM overlapping
        GROUP BY key, stretch, clock_id
        QUALIFY row_number() OVER (
            PARTITION BY key, stretch ORDER BY sum(readings_count) DESC, min(source_id)
        ) > 1
    ),
    left_out AS (
        SELECT DISTINCT overlapping.key, overlapping.source_id
        FROM overlapping
        JOIN outdone USING (key, stretch, clock_id)
    )
FROM query_table(rows_name)
ANTI JOIN left_out USING (key, source_id);

-- counter_deltas: What each cumulative counter grew by since its last reading.
--
-- A counter that falls has wrapped at 32 bits if it was in the last tenth, is now in the first and
-- was never above; else it was reset, and the delta is null: never zero, never a spike. A counter
-- at its limit is full: null too. A second reading of one moment is dropped. Readings whose time is
-- null come first, in the order of their files. ingest/counters/deltas.py has the same in Python;
-- tests compare them.
--
-- param: rows_name TABLE(key ANY, source_id INTEGER, clock_id INTEGER, place BIGINT,
--     time_ns BIGINT, counted UBIGINT, limit_count BIGINT) : Readings; limit_count is where the
--     counter stops counting, null if it does not.
-- reads: clock_offset
-- columns: key ANY, source_id INTEGER, place BIGINT, time_ns BIGINT, last_time_ns BIGINT,
--     counted UBIGINT, delta_count UBIGINT, event VARCHAR
CREATE OR REPLACE MACRO counter_deltas(rows_name) AS TABLE
WITH
    readings AS (
        SELECT
            key,
            source_id,
            place,
            time_ns,
            counted,
            limit_count,
            lag(time_ns) OVER series AS last_time_ns,
            lag(counted) OVER series AS last_counted,
            max(counted) OVER (PARTITION BY key) AS max_counted
        FROM (
            FROM one_collector(rows_name)
            WHERE counted IS NOT NULL
            QUALIFY
                time_ns IS NULL
                OR row_number() OVER (PARTITION BY key, time_ns ORDER BY source_id, place) = 1
        )
        WINDOW series AS (PARTITION BY key ORDER BY time_ns NULLS FIRST, source_id, place)
    ),
    judged AS (
        SELECT
            *,
            CASE
                WHEN last_counted IS NULL THEN NULL
                WHEN counted >= limit_count THEN 'saturated'
                WHEN counted >= last_counted THEN NULL
                WHEN
                    max_counted < 4294967296
                    AND last_counted > 3865470566
                    AND counted < 429496730
                THEN 'wrap'
                ELSE 'reset'
            END AS event
        FROM readings
    )
SELECT
    key,
    source_id,
    place,
    time_ns,
    last_time_ns,
    counted,
    CASE
        WHEN event = 'wrap' THEN counted + 4294967296 - last_counted
        WHEN event IS NULL THEN counted - last_counted
    END AS delta_count,
    event
FROM judged;

-- machine_of_path: The path that two files share which were read before and after something.
--
-- before/eth0.txt and after/eth0.txt are of one machine, where no file names it; derive/gpus.py
-- says the same of GPUs.
--
-- param: path VARCHAR : Path of a file.
-- returns: VARCHAR : The path with that word masked; null where it has none, or several.
CREATE OR REPLACE MACRO machine_of_path(path) AS
if(
    len(
        regexp_extract_all(
            lower(path), '(?:^|[^a-z])(?:before|pre|after|post)(?:$|[^a-z])'
        )
    ) = 1,
    regexp_replace(
        lower(path), '(^|[^a-z])(?:before|pre|after|post)($|[^a-z])', '\1*\2'
    ),
    NULL
);

-- gpu_key: One number for all by which a sample names its GPU.
--
-- owner is the host of a sample that names no node, owner_id its file where nobody knows a host, or
-- where nothing names the GPU.
--
-- param: attempt INTEGER : Attempt of the job; null where no trace was given.
-- param: node VARCHAR : Machine that the sample names.
-- param: owner VARCHAR : Host of its file, where it names none.
-- param: owner_id INTEGER : Its file, where there is no host either, or no name.
-- param: device_id VARCHAR : UUID or PCI address.
-- param: nvml_index INTEGER : NVML index.
-- returns: UBIGINT : The key; equal keys are one GPU.
CREATE OR REPLACE MACRO gpu_key(attempt, node, owner, owner_id, device_id, nvml_index) AS
hash(attempt, node, owner, owner_id, device_id, nvml_index);

-- sampled_gpu_key: The same of a sample; null where it is of a part of a GPU.
--
-- What is part of a GPU (a MIG instance, one NVLink) is not the GPU: who joins by the key leaves it
-- out. A filter would look at the text of each sample, a quarter of a scan's time; what DuckDB
-- makes a column of it looks at once a name.
--
-- param: attempt INTEGER : Attempt of the job; null where no trace was given.
-- param: node VARCHAR : Machine that the sample names.
-- param: host VARCHAR : Host of its file.
-- param: source_id INTEGER : Its file.
-- param: device_id VARCHAR : UUID or PCI address.
-- param: nvml_index INTEGER : NVML index.
-- returns: UBIGINT : The key of the GPU.
CREATE OR REPLACE MACRO sampled_gpu_key(attempt, node, host, source_id, device_id, nvml_index) AS
if(
    contains(device_id, '/'),
    NULL,
    gpu_key(
        attempt,
        node,
        if(node IS NULL, host, NULL),
        if(
            (node IS NULL AND host IS NULL) OR (device_id IS NULL AND nvml_index IS NULL),
            source_id,
            NULL
        ),
        device_id,
        nvml_index
    )
);

-- gpu_series_key: One number for a counter of a GPU.
--
-- param: attempt INTEGER : Attempt of the job; null where no trace was given.
-- param: gpu_id VARCHAR : GPU, as ``gpu`` calls it.
-- param: counter VARCHAR : Canonical name.
-- returns: UBIGINT : The key.
CREATE OR REPLACE MACRO gpu_series_key(attempt, gpu_id, counter) AS hash(attempt, gpu_id, counter);

-- keyed_gpus: The sampled GPUs with the key by which their samples name them.
--
-- reads: gpu
-- columns: key UBIGINT, attempt INTEGER, gpu_id VARCHAR, host VARCHAR, gpu_index INTEGER,
--     rank INTEGER, rank_source VARCHAR, host_ranks INTEGER[], pci VARCHAR
CREATE OR REPLACE MACRO keyed_gpus() AS TABLE
SELECT
    gpu_key(
        attempt, node, if(node IS NULL, host, NULL), own_source_id, device_id, nvml_index
    ) AS key,
    attempt,
    gpu_id,
    host,
    gpu_index,
    rank,
    rank_source,
    host_ranks,
    pci
FROM gpu;

-- named_gpus: What is known of each sampled GPU, and which others it may be compared with.
--
-- ``alike`` is the same for those of its model; where nobody knows that, of its host, else file.
--
-- reads: gpu
-- columns: attempt INTEGER, gpu_id VARCHAR, host VARCHAR, gpu_index INTEGER, pci VARCHAR,
--     model VARCHAR, rank INTEGER, rank_source VARCHAR, host_ranks INTEGER[],
--     own_source_id INTEGER, alike VARCHAR
CREATE OR REPLACE MACRO named_gpus() AS TABLE
SELECT
    attempt,
    gpu_id,
    min(host) AS host,
    min(gpu_index) AS gpu_index,
    min(pci) AS pci,
    min(model) AS model,
    min(rank) AS rank,
    min(rank_source) AS rank_source,
    min(host_ranks) AS host_ranks,
    min(own_source_id) AS own_source_id,
    coalesce(
        min(model),
        'unknown model of ' || min(host),
        'unknown model of file ' || min(own_source_id),
        'unknown model'
    ) AS alike
FROM gpu
GROUP BY attempt, gpu_id;

-- gpu_readings_raw: GPU samples while the job ran; which GPU it is their key says.
--
-- The job's window is widened by slack_ns on both sides: a collector that looks every 30 s may have
-- looked just before and just after. Only samples on a clock since the epoch stand beside the job;
-- without traces all samples count. What is of a part of a GPU has no key.
--
-- param: slack_ns BIGINT : Widens the job's window on both sides, in ns.
-- reads: gpu_sample, run, clock
-- columns: key UBIGINT, attempt INTEGER, counter VARCHAR, kind VARCHAR, unit VARCHAR,
--     source_id INTEGER, clock_id INTEGER, place BIGINT, time_ns BIGINT, value DOUBLE,
--     counted UBIGINT
CREATE OR REPLACE MACRO gpu_readings_raw(slack_ns) AS TABLE
WITH
    windows AS (
        SELECT attempt, start_ns - slack_ns AS start_ns, end_ns + slack_ns AS end_ns
        FROM attempt_windows()
    )
SELECT
    sampled_gpu_key(
        windows.attempt,
        samples.node,
        samples.host,
        samples.source_id,
        samples.device_id,
        samples.nvml_index
    ) AS key,
    windows.attempt,
    samples.counter,
    samples.kind,
    samples.unit,
    samples.source_id,
    samples.clock_id,
    samples.place,
    samples.time_ns,
    samples.value,
    samples.counted
FROM gpu_sample AS samples
LEFT JOIN clock AS clock USING (clock_id)
JOIN windows
    ON windows.start_ns IS NULL
    OR (
        clock.basis = 'epoch'
        AND samples.time_ns BETWEEN windows.start_ns AND windows.end_ns
    );

-- gpu_summaries: What the samples of each counter of each GPU come to while the job ran.
--
-- Of files that lie inside its window, or outside, the summary says it that was made when they were
-- read, and their samples, tens of millions, are not looked at; of others, and of whatever is
-- selected, the samples do. Who wants GPUs by name joins keyed_gpus().
--
-- param: slack_ns BIGINT : Widens the job's window on both sides, in ns.
-- reads: gpu_sample, gpu_counter_summary, source_context, run, clock
-- columns: key UBIGINT, attempt INTEGER, counter VARCHAR, kind VARCHAR, unit VARCHAR,
--     samples_count BIGINT, timed_count BIGINT, first_ns BIGINT, last_ns BIGINT,
--     first_spot BIGINT, last_spot BIGINT, values_count BIGINT, min_value DOUBLE,
--     max_value DOUBLE, timed_max_value DOUBLE, total_value DOUBLE, active_count BIGINT,
--     utilised_count BIGINT, counted_count BIGINT, min_counted UBIGINT, max_counted UBIGINT
CREATE OR REPLACE MACRO gpu_summaries(slack_ns) AS TABLE
WITH
    files AS (
        SELECT
            summary.source_id,
            any_value(clock.basis) IS NOT DISTINCT FROM 'epoch' AS is_dated,
            min(summary.first_ns) AS first_ns,
            max(summary.last_ns) AS last_ns,
            bool_and(summary.timed_count = summary.samples_count) AS is_timed,
            bool_and(summary.timed_count IN (0, summary.samples_count)) AS is_told
        FROM gpu_counter_summary AS summary
        JOIN source_context AS context USING (source_id)
        LEFT JOIN clock ON clock.clock_id = context.clock_id
        GROUP BY summary.source_id
    ),
    placed AS (
        SELECT
            files.source_id,
            windows.attempt,
            files.is_told
            AND (
                windows.start_ns IS NULL
                OR (
                    files.is_dated AND files.is_timed
                    AND files.first_ns >= windows.start_ns - slack_ns
                    AND files.last_ns <= windows.end_ns + slack_ns
                )
            ) AS is_inside,
            files.is_told
            AND windows.start_ns IS NOT NULL
            AND (
                NOT files.is_dated
                OR files.first_ns IS NULL
                OR files.first_ns > windows.end_ns + slack_ns
                OR files.last_ns < windows.start_ns - slack_ns
            ) AS is_outside
        FROM files
        CROSS JOIN attempt_windows() AS windows
    ),
    -- Files whose samples must be asked.
    cut AS (
        SELECT source_id
        FROM placed
        GROUP BY source_id
        HAVING NOT bool_and(is_inside OR is_outside)
        UNION ALL
        SELECT source_id
        FROM source_context
        WHERE NOT EXISTS (SELECT 1 FROM gpu_counter_summary)
    ),
    told AS (
        SELECT
            sampled_gpu_key(
                placed.attempt,
                summary.node,
                context.host,
                summary.source_id,
                summary.device_id,
                summary.nvml_index
            ) AS key,
            placed.attempt,
            summary.* EXCLUDE (
                source_id, node, device_id, nvml_index, time_source, first_place, last_place
            ),
            summary.source_id * 1099511627776 + summary.first_place AS first_spot,
            summary.source_id * 1099511627776 + summary.last_place AS last_spot,
            if(summary.timed_count > 0, summary.max_value, NULL) AS timed_max_value
        FROM gpu_counter_summary AS summary
        JOIN source_context AS context USING (source_id)
        JOIN placed USING (source_id)
        WHERE placed.is_inside AND summary.source_id NOT IN (SELECT source_id FROM cut)
    ),
    asked AS (
        SELECT
            key, attempt, counter, kind,
            any_value(unit) AS unit,
            count(*) AS samples_count,
            count(time_ns) AS timed_count,
            min(time_ns) AS first_ns,
            max(time_ns) AS last_ns,
            min(source_id * 1099511627776 + place) AS first_spot,
            max(source_id * 1099511627776 + place) AS last_spot,
            count(value) AS values_count,
            min(value) AS min_value,
            max(value) AS max_value,
            max(value) FILTER (time_ns IS NOT NULL) AS timed_max_value,
            sum(value) AS total_value,
            count_if(value >= 0.2) AS active_count,
            count_if(value >= 0.5) AS utilised_count,
            count(counted) AS counted_count,
            min(counted) AS min_counted,
            max(counted) AS max_counted
        FROM gpu_readings_raw(slack_ns)
        WHERE source_id IN (SELECT source_id FROM cut)
        GROUP BY key, attempt, counter, kind
    )
SELECT
    key, attempt, counter, kind,
    any_value(unit) AS unit,
    CAST(sum(samples_count) AS BIGINT) AS samples_count,
    CAST(sum(timed_count) AS BIGINT) AS timed_count,
    min(first_ns) AS first_ns,
    max(last_ns) AS last_ns,
    min(first_spot) AS first_spot,
    max(last_spot) AS last_spot,
    CAST(sum(values_count) AS BIGINT) AS values_count,
    min(min_value) AS min_value,
    max(max_value) AS max_value,
    max(timed_max_value) AS timed_max_value,
    sum(total_value) AS total_value,
    CAST(sum(active_count) AS BIGINT) AS active_count,
    CAST(sum(utilised_count) AS BIGINT) AS utilised_count,
    CAST(sum(counted_count) AS BIGINT) AS counted_count,
    min(min_counted) AS min_counted,
    max(max_counted) AS max_counted
FROM (FROM told UNION ALL BY NAME FROM asked)
GROUP BY key, attempt, counter, kind;

-- gpu_moving_readings: Readings of those cumulative counters of GPUs that move while the job ran.
--
-- Most never do, and nothing can be told of these by putting their readings in order. For
-- counter_deltas; ``key`` is what gpu_series_key gives, one for a GPU by whatever name.
--
-- param: slack_ns BIGINT : Widens the job's window on both sides, in ns.
-- param: only_counters VARCHAR[] : Canonical names of those that are asked for; null: all.
-- reads: gpu_sample, gpu_counter_summary, source_context, gpu, run, clock
-- columns: key UBIGINT, counter VARCHAR, kind VARCHAR, source_id INTEGER, clock_id INTEGER,
--     place BIGINT, time_ns BIGINT, counted UBIGINT, limit_count UBIGINT
CREATE OR REPLACE MACRO gpu_moving_readings(slack_ns, only_counters) AS TABLE
WITH
    named AS (
        SELECT
            summary.key AS raw_key,
            summary.counter,
            gpu_series_key(summary.attempt, gpu.gpu_id, summary.counter) AS key,
            min(min(summary.min_counted)) OVER series < max(max(summary.max_counted)) OVER series
                AS is_moving
        FROM gpu_summaries(slack_ns) AS summary
        JOIN keyed_gpus() AS gpu USING (key)
        WHERE
            summary.counted_count > 0
            AND (only_counters IS NULL OR list_contains(only_counters, summary.counter))
        GROUP BY summary.key, summary.attempt, gpu.gpu_id, summary.counter
        WINDOW series AS (PARTITION BY summary.attempt, gpu.gpu_id, summary.counter)
    ),
    -- As a list, because that is one row to DuckDB's planner: it then puts these few into a hash
    -- table and not all readings, which takes several times the memory.
    moving AS (
        SELECT
            unnest(
                list({raw_key: raw_key, counter: counter, key: key}) FILTER (is_moving),
                recursive := true
            )
        FROM named
    )
SELECT
    moving.key,
    readings.counter,
    readings.kind,
    readings.source_id,
    readings.clock_id,
    readings.place,
    readings.time_ns,
    readings.counted,
    CAST(NULL AS UBIGINT) AS limit_count
FROM gpu_readings_raw(slack_ns) AS readings
JOIN moving ON moving.raw_key = readings.key AND moving.counter = readings.counter
WHERE readings.counted IS NOT NULL;

-- gpu_readings: GPU samples while the job ran, with their GPU.
--
-- Who groups all samples of a day groups the raw ones and names the groups.
--
-- param: slack_ns BIGINT : Widens the job's window on both sides, in ns.
-- reads: gpu_sample, gpu, run, clock
-- columns: attempt INTEGER, gpu_id VARCHAR, host VARCHAR, counter VARCHAR, kind VARCHAR,
--     unit VARCHAR, source_id INTEGER, clock_id INTEGER, place BIGINT, time_ns BIGINT,
--     value DOUBLE, counted UBIGINT
CREATE OR REPLACE MACRO gpu_readings(slack_ns) AS TABLE
SELECT
    placed.attempt,
    gpu.gpu_id,
    gpu.host,
    placed.counter,
    placed.kind,
    placed.unit,
    placed.source_id,
    placed.clock_id,
    placed.place,
    placed.time_ns,
    placed.value,
    placed.counted
FROM gpu_readings_raw(slack_ns) AS placed
JOIN keyed_gpus() AS gpu USING (key);

-- host_waits: What the tasks of each host and control group waited for, between two readings.
--
-- Shares come from differences of totals. Before the first total, after the last, and without any,
-- a collector's averages count (sadf); of two files that tell the same one does. Amounts are of
-- base: ns, or periods of a quota.
--
-- param: only_basis VARCHAR : From what the times of files count that are read: files of another
--     basis are left out, as they must be wherever others' times are laid beside theirs. Null: all.
-- reads: host_sample, clock, clock_offset
-- columns: host VARCHAR, own_source_id INTEGER, cgroup VARCHAR, resource VARCHAR, start_ns BIGINT,
--     end_ns BIGINT, source_id INTEGER, place BIGINT, base DOUBLE, some_amount DOUBLE,
--     full_amount DOUBLE, throttled_ns DOUBLE
CREATE OR REPLACE MACRO host_waits(only_basis) AS TABLE
WITH
    samples AS (
        SELECT
            host_sample.host,
            if(host_sample.host IS NULL, source_id, NULL) AS own_source_id,
            cgroup,
            CASE
                WHEN starts_with(counter, 'cpu_throttled') OR counter = 'cpu_periods' THEN 'quota'
                WHEN counter IN ('cpu_steal', 'cpu_iowait') THEN substring(counter, 5)
                ELSE split_part(counter, '_', 1)
            END AS resource,
            CASE
                WHEN counter = 'cpu_periods' THEN 'periods'
                WHEN counter IN ('cpu_throttled_periods', 'cpu_steal', 'cpu_iowait')
                    THEN 'some'
                WHEN counter = 'cpu_throttled_time' THEN 'time'
                ELSE split_part(counter, '_', 3)
            END AS extent,
            hash(
                host_sample.host, if(host_sample.host IS NULL, source_id, NULL), cgroup, counter
            ) AS key,
            source_id, clock_id, place, time_ns, interval_ns, value, counted
        FROM host_sample
        LEFT JOIN clock USING (clock_id)
        WHERE
            time_ns IS NOT NULL
            AND (only_basis IS NULL OR clock.basis = only_basis)
            AND (
                counter IN (
                    'cpu_periods', 'cpu_throttled_periods', 'cpu_throttled_time',
                    'cpu_steal', 'cpu_iowait'
                )
                OR regexp_full_match(counter, '(cpu|io|memory)_pressure_(some|full)(_time)?')
            )
    ),
    named AS (
        SELECT DISTINCT key, host, own_source_id, cgroup, resource, extent
        FROM samples
    ),
    readings AS (
        SELECT
            key, source_id, clock_id, place, time_ns, counted,
            CAST(NULL AS UBIGINT) AS limit_count
        FROM samples
        WHERE counted IS NOT NULL
    ),
    counted AS (
        SELECT
            named.* EXCLUDE (key),
            deltas.source_id,
            deltas.place,
            deltas.last_time_ns AS start_ns,
            deltas.time_ns AS end_ns,
            CAST(deltas.delta_count AS DOUBLE) AS amount
        FROM counter_deltas('readings') AS deltas
        JOIN named USING (key)
        WHERE deltas.delta_count IS NOT NULL AND deltas.time_ns > deltas.last_time_ns
    ),
    totalled AS (
        SELECT
            host, own_source_id, cgroup, resource, min(start_ns) AS first_ns, max(end_ns) AS last_ns
        FROM counted
        GROUP BY host, own_source_id, cgroup, resource
    ),
    told AS (
        SELECT
            host, own_source_id, cgroup, resource, extent,
            min((source_id, place))[1] AS source_id,
            min((source_id, place))[2] AS place,
            time_ns - interval_ns AS start_ns,
            time_ns AS end_ns,
            arg_min(value, (source_id, place)) * interval_ns AS amount
        FROM samples
        WHERE
            value IS NOT NULL
            AND interval_ns > 0
            AND NOT EXISTS (
                SELECT 1 FROM totalled
                WHERE
                    totalled.host IS NOT DISTINCT FROM samples.host
                    AND totalled.own_source_id IS NOT DISTINCT FROM samples.own_source_id
                    AND totalled.cgroup IS NOT DISTINCT FROM samples.cgroup
                    AND totalled.resource = samples.resource
                    AND samples.time_ns > totalled.first_ns
                    AND samples.time_ns - samples.interval_ns < totalled.last_ns
            )
        GROUP BY host, own_source_id, cgroup, resource, extent, time_ns, interval_ns
    )
SELECT
    host, own_source_id, cgroup, resource, start_ns, end_ns,
    min((source_id, place))[1] AS source_id,
    min((source_id, place))[2] AS place,
    if(
        resource = 'quota',
        max(amount) FILTER (extent = 'periods'),
        CAST(end_ns - start_ns AS DOUBLE)
    ) AS base,
    max(amount) FILTER (extent = 'some') AS some_amount,
    max(amount) FILTER (extent = 'full') AS full_amount,
    max(amount) FILTER (extent = 'time') AS throttled_ns
FROM (FROM counted UNION ALL BY NAME FROM told)
GROUP BY host, own_source_id, cgroup, resource, start_ns, end_ns;

-- storage_waits: Requests to each disk and mount between two readings, and how long they took.
--
-- From differences of totals; before the first total, after the last, and where there is none, from
-- the means that a collector prints.
--
-- param: only_basis VARCHAR : From what the times of files count that are read, as for host_waits.
-- reads: storage_sample, clock, clock_offset
-- columns: host VARCHAR, own_source_id INTEGER, device VARCHAR, filesystem VARCHAR,
--     operation VARCHAR, start_ns BIGINT, end_ns BIGINT, source_id INTEGER, place BIGINT,
--     requests_count DOUBLE, waited_ns DOUBLE
CREATE OR REPLACE MACRO storage_waits(only_basis) AS TABLE
WITH
    samples AS (
        SELECT
            sample.host,
            if(sample.host IS NULL, source_id, NULL) AS own_source_id,
            sample.device,
            sample.filesystem,
            split_part(sample.counter, '_', 1) AS operation,
            split_part(sample.counter, '_', 2) AS part,
            hash(
                sample.host, if(sample.host IS NULL, source_id, NULL), sample.device, sample.counter
            ) AS key,
            source_id, clock_id, place, time_ns, interval_ns, value, counted
        FROM storage_sample AS sample
        LEFT JOIN clock USING (clock_id)
        WHERE
            time_ns IS NOT NULL
            AND sample.device IS NOT NULL
            AND (only_basis IS NULL OR clock.basis = only_basis)
            AND regexp_full_match(
                sample.counter, '(read|write|flush|metadata)_(requests|time|rate|latency)'
            )
    ),
    named AS (
        SELECT key, host, own_source_id, device, operation, part, max(filesystem) AS filesystem
        FROM samples
        GROUP BY key, host, own_source_id, device, operation, part
    ),
    readings AS (
        SELECT
            key, source_id, clock_id, place, time_ns, counted,
            CAST(NULL AS UBIGINT) AS limit_count
        FROM samples
        WHERE counted IS NOT NULL
    ),
    growth AS (
        SELECT
            host, own_source_id, device, operation,
            deltas.last_time_ns AS start_ns,
            deltas.time_ns AS end_ns,
            max(filesystem) AS filesystem,
            min((deltas.source_id, deltas.place)) AS spot,
            max(CAST(delta_count AS DOUBLE)) FILTER (part = 'requests') AS requests_count,
            max(CAST(delta_count AS DOUBLE)) FILTER (part = 'time') AS waited_ns
        FROM counter_deltas('readings') AS deltas
        JOIN named USING (key)
        WHERE deltas.delta_count IS NOT NULL AND deltas.time_ns > deltas.last_time_ns
        GROUP BY host, own_source_id, device, operation, deltas.last_time_ns, deltas.time_ns
    ),
    totalled AS (
        SELECT
            host, own_source_id, device, operation,
            min(start_ns) AS first_ns,
            max(end_ns) AS last_ns
        FROM growth
        GROUP BY host, own_source_id, device, operation
    ),
    printed AS (
        SELECT
            host, own_source_id, device, operation,
            time_ns - interval_ns AS start_ns,
            time_ns AS end_ns,
            max(filesystem) AS filesystem,
            min((source_id, place)) AS spot,
            arg_min(value, (source_id, place)) FILTER (part = 'rate')
            * (any_value(interval_ns) / 1e9) AS requests_count,
            arg_min(value, (source_id, place)) FILTER (part = 'latency') AS latency_ns
        FROM samples
        WHERE
            value IS NOT NULL
            AND interval_ns > 0
            AND NOT EXISTS (
                SELECT 1 FROM totalled
                WHERE
                    totalled.host IS NOT DISTINCT FROM samples.host
                    AND totalled.own_source_id IS NOT DISTINCT FROM samples.own_source_id
                    AND totalled.device = samples.device
                    AND totalled.operation = samples.operation
                    AND samples.time_ns > totalled.first_ns
                    AND samples.time_ns - samples.interval_ns < totalled.last_ns
            )
        GROUP BY host, own_source_id, device, operation, time_ns, interval_ns
    )
SELECT
    host, own_source_id, device, filesystem, operation, start_ns, end_ns,
    spot[1] AS source_id,
    spot[2] AS place,
    requests_count,
    waited_ns
FROM growth
WHERE requests_count IS NOT NULL AND waited_ns IS NOT NULL
UNION ALL
SELECT
    host, own_source_id, device, filesystem, operation, start_ns, end_ns,
    spot[1] AS source_id,
    spot[2] AS place,
    requests_count,
    requests_count * latency_ns AS waited_ns
FROM printed
WHERE requests_count IS NOT NULL AND latency_ns IS NOT NULL;
