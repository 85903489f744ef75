-- What was launched within calls that nest, and what of it within none of those inside them.

-- call_times: Each call's time, and that of the device work launched in it: whole, and its own.
--
-- Calls of one key nest, as those of a thread do. A call's own time is that in which no call inside
-- it was open; its own launches are those outside them. Launches outside all calls are not in it,
-- nor are calls that take no time.
--
-- reads: gpu_op
-- param: calls_name TABLE(key STRUCT(source_id INTEGER, thread BIGINT), place BIGINT,
--     start_ns BIGINT, end_ns BIGINT) : Calls.
-- columns: key STRUCT(source_id INTEGER, thread BIGINT), place BIGINT, parent_place BIGINT,
--     own_ns BIGINT, device_ns BIGINT, own_device_ns BIGINT
CREATE OR REPLACE MACRO call_times(calls_name) AS TABLE
WITH
    threads AS (
        SELECT key, CAST(row_number() OVER (ORDER BY key) AS INTEGER) AS thread_id
        FROM (SELECT DISTINCT key FROM query_table(calls_name))
    ),
    -- From here on threads are numbers: what is sorted is narrow.
    lasting AS (
        SELECT thread_id, place, start_ns, end_ns
        FROM query_table(calls_name)
        JOIN threads USING (key)
        WHERE end_ns > start_ns
    ),
    -- At one moment (turn) what is open ends, the shortest first, then what begins opens, the
    -- longest first. Keys of a sort are cheap up to 32 bytes.
    edges AS (
        SELECT
            thread_id,
            unnest([start_ns, end_ns]) AS time_ns,
            unnest([1, -1]) * (4611686018427387904 - (end_ns - start_ns)) AS turn,
            unnest([place, -place]) AS tie
        FROM lasting
    ),
    -- The running total is how many are open; a DOUBLE because integers add up half as fast.
    depths AS (
        SELECT
            thread_id,
            time_ns,
            turn,
            tie,
            CAST(sum(if(turn > 0, 1e0, -1e0)) OVER sweep AS BIGINT) AS depth,
            row_number() OVER sweep AS number
        FROM edges
        WINDOW sweep AS (PARTITION BY thread_id ORDER BY time_ns, turn, tie)
    ),
    opened AS (
        SELECT
            (CAST(thread_id AS BIGINT) << 32) + depth AS layer,
            thread_id,
            tie AS place,
            time_ns AS start_ns,
            4611686018427387904 - turn AS dur_ns,
            number
        FROM depths
        WHERE turn > 0
    ),
    parents AS (
        SELECT
            opened.thread_id,
            opened.place,
            opened.start_ns,
            opened.dur_ns,
            around.place AS parent_place
        FROM opened
        ASOF LEFT JOIN opened AS around
            ON around.layer = opened.layer - 1 AND around.number <= opened.number
    ),
    moments AS (
        SELECT thread_id, time_ns, sum(device_ns) AS device_ns
        FROM device_launches()
        JOIN threads USING (key)
        GROUP BY thread_id, time_ns
    ),
    launched AS (
        SELECT
            thread_id,
            time_ns,
            sum(device_ns) OVER (PARTITION BY thread_id ORDER BY time_ns) AS device_ns
        FROM moments
    ),
    whole AS MATERIALIZED (
        SELECT
            parents.thread_id,
            parents.place,
            parents.parent_place,
            parents.dur_ns,
            coalesce(at_end.device_ns, 0) - coalesce(at_start.device_ns, 0) AS device_ns
        FROM parents
        ASOF LEFT JOIN launched AS at_start
            ON at_start.thread_id = parents.thread_id AND at_start.time_ns < parents.start_ns
        ASOF LEFT JOIN launched AS at_end
            ON
                at_end.thread_id = parents.thread_id
                AND at_end.time_ns < parents.start_ns + parents.dur_ns
    ),
    inside AS (
        SELECT
            thread_id,
            parent_place AS place,
            sum(dur_ns) AS dur_ns,
            sum(device_ns) AS device_ns
        FROM whole
        WHERE parent_place IS NOT NULL
        GROUP BY thread_id, parent_place
    )
SELECT
    key,
    whole.place,
    whole.parent_place,
    CAST(whole.dur_ns - coalesce(inside.dur_ns, 0) AS BIGINT) AS own_ns,
    CAST(whole.device_ns AS BIGINT) AS device_ns,
    CAST(whole.device_ns - coalesce(inside.device_ns, 0) AS BIGINT) AS own_device_ns
FROM whole
JOIN threads USING (thread_id)
LEFT JOIN inside ON inside.thread_id = whole.thread_id AND inside.place = whole.place;

-- device_launches: When the host asked for each operation of a device, and how long that took.
--
-- Those launched before the window are not in it.
--
-- reads: gpu_op
-- columns: key STRUCT(source_id INTEGER, thread BIGINT), time_ns BIGINT, device_ns BIGINT
CREATE OR REPLACE MACRO device_launches() AS TABLE
SELECT
    {'source_id': source_id, 'thread': launch_thread} AS key,
    launch_start_ns AS time_ns,
    dur_ns AS device_ns
FROM gpu_op
WHERE launch_start_ns IS NOT NULL AND rank IS NOT NULL;
