-- How much memory each device had allocated and reserved over time, as the framework reports it.
--
-- Says when memory peaks and what allocates then. Of each stretch of the capture the moment with
-- most allocated stands for it, so that no peak is lost. Needs profile_memory=True.
--
-- reads: host_op, memory_event
-- needs: memory_event
-- grain: attempt, rank, capture_id, device_type, device, time_ns
-- param: points BIGINT = 400 : Stretches of equal length a device and capture, at most.
-- column: rank INTEGER : Global rank.
-- column: device_type VARCHAR : cpu or gpu.
-- column: device INTEGER : Device ordinal; -1 on the host.
-- column: time_ns BIGINT : When.
-- column: allocated_bytes BIGINT : Allocated then: most of the stretch.
-- column: reserved_bytes BIGINT : Reserved then by the framework's allocator; 0 on the host, which
--     has none.
-- column: peak_bytes BIGINT : Most that was allocated up to then.
-- column: allocations_count BIGINT : Allocations in the stretch.
-- column: operator VARCHAR : Outermost operator that ran then on the thread that allocated or
--     released; null without one.
-- column: source_id INTEGER : File of that moment; see source.
-- column: place BIGINT : Where in it.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    events AS (
        SELECT
            attempt,
            rank,
            capture_id,
            device_type,
            coalesce(device, -1) AS device,
            source_id,
            place,
            thread,
            time_ns,
            change_bytes,
            allocated_bytes,
            coalesce(reserved_bytes, 0) AS reserved_bytes,
            max(allocated_bytes) OVER (of_device ORDER BY time_ns, place) AS peak_bytes,
            min(time_ns) OVER of_device AS first_ns,
            max(time_ns) OVER of_device AS last_ns
        FROM memory_event
        WHERE allocated_bytes IS NOT NULL AND time_ns IS NOT NULL AND rank IS NOT NULL
        WINDOW of_device AS (
            PARTITION BY attempt, rank, capture_id, device_type, coalesce(device, -1)
        )
    ),
    chosen AS (
        SELECT
            attempt,
            rank,
            capture_id,
            device_type,
            device,
            count(*) FILTER (change_bytes > 0) AS allocations_count,
            arg_min(
                {
                    'time_ns': time_ns,
                    'allocated_bytes': allocated_bytes,
                    'reserved_bytes': reserved_bytes,
                    'peak_bytes': peak_bytes,
                    'source_id': source_id,
                    'place': place,
                    'thread': thread
                },
                {'less_bytes': -allocated_bytes, 'time_ns': time_ns, 'place': place}
            ) AS moment
        FROM events
        GROUP BY
            attempt,
            rank,
            capture_id,
            device_type,
            device,
            CAST(
                floor((time_ns - first_ns) * CAST($points AS DOUBLE) / (last_ns - first_ns + 1))
                AS BIGINT
            )
    ),
    running AS (
        SELECT
            {'source_id': source_id, 'thread': thread} AS key,
            name,
            start_ns,
            start_ns + dur_ns AS end_ns,
            place,
            max(start_ns + dur_ns) OVER (
                PARTITION BY source_id, thread ORDER BY start_ns, -dur_ns, place
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS latest_end_ns
        FROM host_op
        WHERE category = 'operator' AND dur_ns > 0
    ),
    outermost AS (
        SELECT key, name, start_ns, end_ns
        FROM running
        WHERE coalesce(latest_end_ns <= start_ns, TRUE)
    ),
    keyed AS (
        SELECT
            *,
            moment.time_ns AS time_ns,
            {'source_id': moment.source_id, 'thread': moment.thread} AS key
        FROM chosen
    )
SELECT
    keyed.rank,
    keyed.device_type,
    keyed.device,
    keyed.time_ns,
    keyed.moment.allocated_bytes AS allocated_bytes,
    keyed.moment.reserved_bytes AS reserved_bytes,
    keyed.moment.peak_bytes AS peak_bytes,
    keyed.allocations_count,
    if(keyed.time_ns < outermost.end_ns, outermost.name, NULL) AS operator,
    keyed.moment.source_id AS source_id,
    keyed.moment.place AS place,
    keyed.capture_id,
    keyed.attempt
FROM keyed
ASOF LEFT JOIN outermost
    ON outermost.key = keyed.key AND outermost.start_ns <= keyed.time_ns
ORDER BY
    keyed.attempt,
    keyed.rank,
    keyed.capture_id,
    keyed.device_type,
    keyed.device,
    keyed.time_ns;
