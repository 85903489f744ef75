-- Which files hold network counters, of when, how finely, and how far they can be trusted.
--
-- A dump a minute cannot tell one step from the next, and a time that comes from a file's
-- modification may be that of a copy. Who reads a verdict about a port must see that first.
--
-- reads: net_sample, source, ingest_stat
-- needs: net_sample
-- grain: source_id
-- column: source_id INTEGER : File.
-- column: path VARCHAR : Path as given.
-- column: kind VARCHAR : What it was recognised as.
-- column: nodes_count BIGINT : Switches and hosts that it names; 0 where it names none.
-- column: ports_count BIGINT : Ports.
-- column: counters_count BIGINT : Kinds of counters.
-- column: samples_count BIGINT : Readings.
-- column: untimed_count BIGINT : Readings without a time.
-- column: moments_count BIGINT : Different times.
-- column: start_ns BIGINT : First time.
-- column: end_ns BIGINT : Last time.
-- column: interval_ns DOUBLE : Mean time between readings of one series; null below two.
-- column: time_source VARCHAR : content, name or mtime; mixed where several; null where none.
-- column: is_from_documentation BOOLEAN : Whether its format was never proved by a real sample.
-- column: bad_count BIGINT : Records and numbers of it that could not be read.
WITH
    unproved AS (
        SELECT DISTINCT source_id FROM ingest_stat WHERE counter = 'parsed_from_documentation'
    ),
    bad AS (
        SELECT source_id, CAST(sum(occurrence_count) AS BIGINT) AS bad_count
        FROM ingest_stat
        WHERE severity IN ('warning', 'error')
        GROUP BY source_id
    ),
    series AS (
        SELECT
            source_id,
            count(DISTINCT time_ns) - 1 AS gaps_count,
            max(time_ns) - min(time_ns) AS span_ns
        FROM net_sample
        GROUP BY source_id, node, port, counter, direction, priority, queue, lane
    ),
    pace AS (
        SELECT
            source_id,
            CAST(sum(span_ns) AS DOUBLE) / nullif(sum(gaps_count), 0) AS interval_ns
        FROM series
        WHERE gaps_count > 0
        GROUP BY source_id
    ),
    files AS (
        SELECT
            source_id,
            count(DISTINCT node) AS nodes_count,
            count(DISTINCT (node, port)) FILTER (port IS NOT NULL) AS ports_count,
            count(DISTINCT counter) AS counters_count,
            count(*) AS samples_count,
            count(*) FILTER (time_ns IS NULL) AS untimed_count,
            count(DISTINCT time_ns) AS moments_count,
            min(time_ns) AS start_ns,
            max(time_ns) AS end_ns,
            if(
                count(DISTINCT time_source) > 1, 'mixed', min(time_source)
            ) AS time_source
        FROM net_sample
        GROUP BY source_id
    )
SELECT
    files.source_id,
    source.path,
    source.kind,
    files.nodes_count,
    files.ports_count,
    files.counters_count,
    files.samples_count,
    files.untimed_count,
    files.moments_count,
    files.start_ns,
    files.end_ns,
    pace.interval_ns,
    files.time_source,
    files.source_id IN (SELECT source_id FROM unproved) AS is_from_documentation,
    coalesce(bad.bad_count, 0) AS bad_count
FROM files
LEFT JOIN source USING (source_id)
LEFT JOIN pace USING (source_id)
LEFT JOIN bad USING (source_id)
ORDER BY source.path, files.source_id;
