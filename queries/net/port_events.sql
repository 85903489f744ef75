-- What happened to ports: storms that a watchdog found, newest pauses, full and cleared counters.
--
-- A storm names a queue that was paused for too long; whose fault it was, the pause frames say. A
-- counter that is full counts no more, and one that was cleared seems to fall: neither is a quiet
-- port.
--
-- reads: log_event
-- grain: source_id, place, code, port, queue, priority, counter
-- column: time_ns BIGINT : When; null where the file does not say.
-- column: code VARCHAR : pfcwd-storm, pfc-pause, counter-saturated or counters-cleared.
-- column: severity VARCHAR : info, warning or error.
-- column: node VARCHAR : Switch or host; null where unknown.
-- column: port VARCHAR : Port; null where all are meant.
-- column: queue INTEGER : Queue.
-- column: priority INTEGER : Priority.
-- column: counter VARCHAR : Counter that is full.
-- column: pause_ns BIGINT : How long the pause lasted.
-- column: source_id INTEGER : File.
-- column: place BIGINT : Its place in that file.
WITH
    events AS (
        SELECT
            time_ns,
            code,
            severity,
            host,
            source_id,
            place,
            named_fields(fields) AS named
        FROM log_event
        WHERE code IN ('pfcwd-storm', 'pfc-pause', 'counter-saturated', 'counters-cleared')
    ),
    spread AS (
        SELECT
            time_ns,
            code,
            severity,
            coalesce(named['node'], host) AS node,
            named['port'] AS port,
            TRY_CAST(named['queue'] AS INTEGER) AS queue,
            TRY_CAST(named['priority'] AS INTEGER) AS priority,
            named['counter'] AS counter,
            TRY_CAST(named['duration_us'] AS BIGINT) * 1000 AS pause_ns,
            source_id,
            place
        FROM events
    )
FROM spread
ORDER BY time_ns, source_id, place, code, port, queue, priority, counter;
