-- How full, fast, bright or hot each port was while the job ran: gauges and maxima.
--
-- A queue that stands long without a drop is a receiver that is busy, not a broken link. A
-- watermark is a maximum since someone read or cleared it: it has no least and no median.
--
-- reads: net_sample, run, ingest_stat
-- needs: net_sample
-- grain: attempt, node, port, counter, direction, priority, queue, lane, kind, unit
-- asked: report
-- column: node VARCHAR : Switch or host that counts; null where unknown.
-- column: port VARCHAR : Port, NIC or pool.
-- column: counter VARCHAR : Canonical name.
-- column: direction VARCHAR : rx or tx as the node sees it; null where neither.
-- column: priority INTEGER : Priority or traffic class.
-- column: queue INTEGER : Queue; null where it is the whole port's.
-- column: lane INTEGER : Lane.
-- column: kind VARCHAR : gauge, watermark, or window (counted over a time of its own).
-- column: unit VARCHAR : Unit of the values.
-- column: samples_count BIGINT : Readings within the job's window; all where no trace was given.
--     Readings without a time count only then.
-- column: min_value DOUBLE : Least of them; null for a watermark.
-- column: p50_value DOUBLE : Median of them; null for a watermark.
-- column: max_value DOUBLE : Largest of them.
-- column: last_value DOUBLE : Newest of them.
-- column: outside_max_value DOUBLE : Largest of the readings outside the window; null without any.
-- column: is_from_documentation BOOLEAN : Whether a file of it is of a format that no real sample
--     proved: at most a note may rest on it.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
WITH
    unproved AS (
        SELECT DISTINCT source_id FROM ingest_stat WHERE counter = 'parsed_from_documentation'
    ),
    readings AS (
        SELECT
            windows.attempt,
            coalesce(node, host) AS node,
            port,
            counter,
            direction,
            priority,
            queue,
            lane,
            kind,
            unit,
            value,
            coalesce(
                windows.start_ns IS NULL
                OR (time_ns >= windows.start_ns AND time_ns <= windows.end_ns),
                false
            ) AS is_inside,
            (coalesce(time_ns, -1), source_id, place) AS age,
            source_id IN (SELECT source_id FROM unproved) AS is_unproved
        FROM net_sample
        CROSS JOIN attempt_windows() AS windows
        WHERE kind IN ('gauge', 'watermark', 'window') AND value IS NOT NULL
    )
SELECT
    node,
    port,
    counter,
    direction,
    priority,
    queue,
    lane,
    kind,
    unit,
    count(*) FILTER (is_inside) AS samples_count,
    min(value) FILTER (is_inside AND kind <> 'watermark') AS min_value,
    median(value) FILTER (is_inside AND kind <> 'watermark') AS p50_value,
    max(value) FILTER (is_inside) AS max_value,
    arg_max(value, (age, value)) FILTER (is_inside) AS last_value,
    max(value) FILTER (NOT is_inside) AS outside_max_value,
    bool_or(is_unproved) AS is_from_documentation,
    attempt
FROM readings
GROUP BY attempt, node, port, counter, direction, priority, queue, lane, kind, unit
ORDER BY attempt, node, port, counter, direction, priority, queue, lane, kind, unit;
