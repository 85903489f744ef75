-- What was skipped, repaired or remarkable in each file.
--
-- Nothing is dropped silently: each counter of each file, with the first place where it happened.
--
-- reads: ingest_stat, source
-- grain: source_id, counter, severity
-- column: source_id INTEGER : Source.
-- column: counter VARCHAR : Name of what was counted.
-- column: severity VARCHAR : info, warning or error.
-- column: occurrences_count BIGINT : How often.
-- column: place VARCHAR : First place, such as "line 12"; null where it has none.
-- column: doc VARCHAR : One sentence on what it means.
SELECT
    ingest_stat.source_id AS source_id,
    counter,
    severity,
    CAST(sum(occurrence_count) AS BIGINT) AS occurrences_count,
    coalesce(min(place_kind), 'event') || ' ' || CAST(min(place) AS VARCHAR) AS place,
    min(doc) AS doc
FROM ingest_stat
LEFT JOIN source ON source.source_id = ingest_stat.source_id
GROUP BY ingest_stat.source_id, counter, severity
ORDER BY source_id, counter, severity;
