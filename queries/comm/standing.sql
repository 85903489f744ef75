-- How long each rank's device has stood still, and what it was asked for and never finished.
--
-- The evidence of collective-hang where no trace tells which communicator the calls are of: a
-- kernel that never ends is in no trace, the call that launched it is. Counted are launches without
-- work after that of the last collective that ran: an earlier one is a record that was lost. The
-- end of a capture leaves launches so as well, but then nothing has stood still.
--
-- reads: gpu_op, host_op, open_collective, collective, source
-- needs: gpu_op
-- grain: attempt, capture_id, rank
-- asked: after silence
-- column: rank INTEGER : Rank with work on a device.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: launches_count BIGINT : Launches of kernels or graphs without work on the device, after
--     the launch of the last collective that ran.
-- column: calls_count BIGINT : Collectives that it asked for and no kernel finished.
-- column: op VARCHAR : Operation of the first of them; null without one.
-- column: standing_ns BIGINT : From the end of its last work, the last of these launches and the
--     last of these calls, whichever came last, to the end of its trace; null when unknown.
-- column: longest_gap_ns BIGINT : Longest time between two of its collectives; null with one.
-- column: is_told BOOLEAN : Whether its trace states the communicators of its collectives; null
--     where it has none.
-- column: is_cut BOOLEAN : Whether its trace is truncated or was read in part.
-- column: source_id INTEGER : Source of the first such launch, else of its last work.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    work AS (
        SELECT
            attempt,
            capture_id,
            rank,
            max(launch_start_ns) FILTER (class = 'communication') AS launch_ns,
            max(start_ns + dur_ns) AS end_ns,
            max({'end_ns': start_ns + dur_ns, 'source_id': source_id, 'place': place}) AS last
        FROM gpu_op
        WHERE rank IS NOT NULL
        GROUP BY attempt, capture_id, rank
    ),
    -- A call that launches a function of the host puts no work on the device.
    launches AS (
        SELECT
            h.attempt,
            h.capture_id,
            h.rank,
            count(*) AS launches_count,
            max(h.start_ns) AS last_ns,
            min({'start_ns': h.start_ns, 'source_id': h.source_id, 'place': h.place}) AS first
        FROM host_op AS h
        JOIN work
            ON work.attempt = h.attempt
            AND work.capture_id = h.capture_id
            AND work.rank = h.rank
            AND h.start_ns > work.launch_ns
        ANTI JOIN gpu_op AS g
            ON g.source_id = h.source_id AND g.correlation = h.correlation
        WHERE
            h.category IN ('runtime', 'driver')
            AND regexp_matches(h.name, '^(cuda|cu|hip)(Graph|Module|Ext)?Launch')
            AND h.name NOT LIKE '%HostFunc%'
        GROUP BY h.attempt, h.capture_id, h.rank
    ),
    opened AS (
        SELECT
            attempt,
            capture_id,
            rank,
            count(*) AS calls_count,
            max(enqueue_ns) AS last_ns,
            min({'enqueue_ns': enqueue_ns, 'place': place, 'op': op}) AS first
        FROM open_collective
        GROUP BY attempt, capture_id, rank
    ),
    gaps AS (
        SELECT
            attempt,
            capture_id,
            rank,
            group_id IS NOT NULL OR group_name IS NOT NULL AS is_told,
            start_ns - lag(start_ns + dur_ns) OVER (
                PARTITION BY attempt, capture_id, rank
                ORDER BY start_ns, source_id, place
            ) AS gap_ns
        FROM collective
        WHERE timeline = 'device'
    ),
    paused AS (
        SELECT
            attempt,
            capture_id,
            rank,
            max(gap_ns) AS longest_gap_ns,
            bool_and(is_told) AS is_told
        FROM gaps
        GROUP BY attempt, capture_id, rank
    )
SELECT
    work.rank AS rank,
    work.capture_id AS capture_id,
    coalesce(launches.launches_count, 0) AS launches_count,
    coalesce(opened.calls_count, 0) AS calls_count,
    opened.first.op AS op,
    s.window_end_ns - greatest(work.end_ns, launches.last_ns, opened.last_ns) AS standing_ns,
    paused.longest_gap_ns AS longest_gap_ns,
    paused.is_told AS is_told,
    coalesce(s.is_truncated_end, FALSE) OR coalesce(s.status <> 'ok', TRUE) AS is_cut,
    coalesce(launches.first.source_id, work.last.source_id) AS source_id,
    coalesce(launches.first.place, work.last.place) AS place,
    work.attempt AS attempt
FROM work
LEFT JOIN launches USING (attempt, capture_id, rank)
LEFT JOIN opened USING (attempt, capture_id, rank)
LEFT JOIN paused USING (attempt, capture_id, rank)
LEFT JOIN source AS s ON s.source_id = coalesce(launches.first.source_id, work.last.source_id)
ORDER BY attempt, capture_id, rank;
