-- What each cumulative counter of each port grew by while the job ran.
--
-- Drops, pauses and errors say something only beside the same counter of other ports, and beside
-- what it did outside the job. Growth comes from differences of readings: a reset is a hole, never
-- a zero or a spike; an interval that straddles the job's start or end counts for its share.
--
-- reads: net_sample, port, run, step, ingest_stat, clock, clock_offset, source
-- needs: net_sample
-- grain: attempt, node, port, counter, direction, priority, queue, lane
-- asked: report
-- column: node VARCHAR : Switch or host that counts; null where unknown.
-- column: port VARCHAR : Port or NIC.
-- column: host VARCHAR : Host that it leads to or belongs to; null where unknown.
-- column: host_source VARCHAR : Where the host came from.
-- column: rank INTEGER : Rank that uses it; null when several or unknown.
-- column: ranks INTEGER[] : Ranks of the host; null when unknown.
-- column: is_on_host BOOLEAN : Whether it is the host's own NIC: its tx leaves the host.
-- column: counter VARCHAR : Canonical name.
-- column: direction VARCHAR : rx or tx as the node sees it; null where neither.
-- column: priority INTEGER : Priority or traffic class.
-- column: queue INTEGER : Queue.
-- column: lane INTEGER : Lane.
-- column: unit VARCHAR : Unit of growth.
-- column: samples_count BIGINT : Readings over all files.
-- column: interval_ns DOUBLE : Median time between readings; null where unknown.
-- column: growth DOUBLE : Grown by within the job's window; null where no reading tells. Without a
--     window (no trace was given) the same as total_growth.
-- column: total_growth DOUBLE : Grown by over all readings.
-- column: grown_count BIGINT : Intervals within the window in which it grew.
-- column: intervals_count BIGINT : Intervals within the window whose growth is known.
-- column: coverage_ratio DOUBLE : Share of the window that those intervals cover; null: no window.
-- column: step_growth DOUBLE : Grown by from the start of the job's first step to the end of its
--     last: a capture's window may begin before and end after them. Null where no step is known.
-- column: step_covered_ns BIGINT : Time of that which intervals of known growth cover.
-- column: resets_count BIGINT : Resets over all readings: what was counted then is unknown.
-- column: last_value DOUBLE : Last reading.
-- column: is_from_documentation BOOLEAN : Whether a file of it is of a format that no real sample
--     proved: at most a note may rest on it.
-- column: first_grown_ns BIGINT : When the first interval within the window began in which it grew;
--     null where it did not.
-- column: last_grown_ns BIGINT : When the last one ended.
-- column: source_id INTEGER : File of the reading after the interval with the largest growth.
-- column: place BIGINT : Its place in that file.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
WITH
    stepping AS (
        SELECT attempt, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns
        FROM step
        GROUP BY attempt
    ),
    windows AS (
        SELECT attempt, start_ns, end_ns, first_ns, last_ns
        FROM run
        LEFT JOIN stepping USING (attempt)
        UNION ALL
        SELECT
            CAST(NULL AS INTEGER), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT),
            CAST(NULL AS BIGINT), CAST(NULL AS BIGINT)
        WHERE NOT EXISTS (SELECT 1 FROM run)
    ),
    unproved AS (
        SELECT DISTINCT source_id FROM ingest_stat WHERE counter = 'parsed_from_documentation'
    ),
    named AS (
        SELECT
            -- Readings of two unknown machines must not be subtracted from each other.
            hash(
                coalesce(
                    node, net_sample.host, machine_of_path(source.path),
                    CAST(source_id AS VARCHAR)
                ),
                port, counter, direction, priority, queue, lane
            ) AS key,
            coalesce(node, net_sample.host) AS owner,
            port,
            counter,
            direction,
            priority,
            queue,
            lane,
            unit,
            source_id,
            clock_id,
            place,
            time_ns,
            counted,
            CAST(NULL AS UBIGINT) AS limit_count,
            -- Local times without a zone stand beside no job.
            coalesce(clock.basis, 'epoch') = 'epoch' AS is_placed
        FROM net_sample
        LEFT JOIN clock USING (clock_id)
        LEFT JOIN source USING (source_id)
        WHERE port IS NOT NULL AND net_sample.kind = 'cumulative'
    ),
    series AS (
        SELECT
            key,
            min(owner) AS owner,
            min(port) AS port,
            min(counter) AS counter,
            min(direction) AS direction,
            min(priority) AS priority,
            min(queue) AS queue,
            min(lane) AS lane,
            min(unit) AS unit,
            bool_and(is_placed) AS is_placed,
            bool_or(source_id IN (SELECT source_id FROM unproved)) AS is_from_documentation
        FROM named
        GROUP BY key
    ),
    grown AS (
        SELECT
            windows.attempt,
            steps.key,
            steps.source_id,
            steps.place,
            steps.time_ns,
            steps.counted,
            CAST(steps.delta_count AS DOUBLE) AS delta_count,
            steps.event,
            steps.time_ns - steps.last_time_ns AS interval_ns,
            windows.end_ns - windows.start_ns AS window_ns,
            CASE
                WHEN windows.start_ns IS NULL THEN steps.time_ns - steps.last_time_ns
                WHEN NOT series.is_placed THEN 0
                ELSE greatest(
                    0,
                    least(steps.time_ns, windows.end_ns)
                    - greatest(steps.last_time_ns, windows.start_ns)
                )
            END AS overlap_ns,
            CASE
                WHEN series.is_placed THEN greatest(
                    0,
                    least(steps.time_ns, windows.last_ns)
                    - greatest(steps.last_time_ns, windows.first_ns)
                )
            END AS step_overlap_ns
        FROM counter_deltas('named') AS steps
        JOIN series USING (key)
        CROSS JOIN windows
    ),
    totals AS (
        SELECT
            attempt,
            key,
            count(*) AS samples_count,
            median(interval_ns) AS interval_ns,
            sum(delta_count * overlap_ns / interval_ns)
                FILTER (overlap_ns > 0) AS timed_growth,
            sum(delta_count) AS total_growth,
            count(*) FILTER (overlap_ns > 0 AND delta_count > 0) AS grown_count,
            count(*) FILTER (overlap_ns > 0 AND delta_count IS NOT NULL) AS intervals_count,
            min(time_ns - interval_ns) FILTER (overlap_ns > 0 AND delta_count > 0)
                AS first_grown_ns,
            max(time_ns) FILTER (overlap_ns > 0 AND delta_count > 0) AS last_grown_ns,
            CAST(sum(overlap_ns) FILTER (delta_count IS NOT NULL) AS DOUBLE)
            / nullif(max(window_ns), 0) AS coverage_ratio,
            max(window_ns) AS window_ns,
            sum(delta_count * step_overlap_ns / interval_ns)
                FILTER (step_overlap_ns > 0) AS step_growth,
            CAST(
                sum(step_overlap_ns) FILTER (delta_count IS NOT NULL) AS BIGINT
            ) AS step_covered_ns,
            count(*) FILTER (event = 'reset') AS resets_count,
            CAST(
                arg_max(counted, (coalesce(time_ns, -1), source_id, place)) AS DOUBLE
            ) AS last_value,
            arg_max(
                (source_id, place),
                (coalesce(delta_count * sign(overlap_ns), -1), -source_id, -place)
            ) AS at
        FROM grown
        GROUP BY attempt, key
    )
SELECT
    series.owner AS node,
    series.port,
    port.host,
    port.host_source,
    port.rank,
    port.ranks,
    port.is_on_host,
    series.counter,
    series.direction,
    series.priority,
    series.queue,
    series.lane,
    series.unit,
    totals.samples_count,
    totals.interval_ns,
    if(totals.window_ns IS NULL, totals.total_growth, totals.timed_growth) AS growth,
    totals.total_growth,
    totals.grown_count,
    totals.intervals_count,
    totals.coverage_ratio,
    totals.step_growth,
    totals.step_covered_ns,
    totals.resets_count,
    totals.last_value,
    series.is_from_documentation,
    totals.first_grown_ns,
    totals.last_grown_ns,
    totals.at[1] AS source_id,
    totals.at[2] AS place,
    totals.attempt
FROM totals
JOIN series USING (key)
LEFT JOIN port
    ON port.attempt IS NOT DISTINCT FROM totals.attempt
    AND port.node IS NOT DISTINCT FROM series.owner
    AND port.port = series.port
ORDER BY
    totals.attempt, node, series.port, series.counter, series.direction, series.priority,
    series.queue, series.lane, totals.key;
