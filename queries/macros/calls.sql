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
    lasting AS (
        SELECT key, place, start_ns, end_ns
        FROM query_table(calls_name)
        WHERE end_ns > start_ns
    ),
    edges AS (
        SELECT key, place, start_ns AS time_ns, 1 AS change, -end_ns AS tie_ns, place AS tie
        FROM lasting
        UNION ALL
        SELECT key, place, end_ns, -1, -start_ns, -place
        FROM lasting
    ),
    -- The running total is how many are open.
    depths AS (
        SELECT
            key,
            place,
            change,
            sum(change) OVER sweep AS depth,
            row_number() OVER sweep AS number
        FROM edges
        WINDOW sweep AS (PARTITION BY key ORDER BY time_ns, change, tie_ns, tie)
    ),
    opened AS (
        SELECT
            {'key': key, 'depth': depth} AS layer,
            {'key': key, 'depth': depth - 1} AS outer_layer,
            key,
            place,
            number
        FROM depths
        WHERE change = 1
    ),
    parents AS (
        SELECT opened.key, opened.place, around.place AS parent_place
        FROM opened
        ASOF LEFT JOIN opened AS around
            ON around.layer = opened.outer_layer AND around.number <= opened.number
    ),
    moments AS (
        SELECT key, time_ns, sum(device_ns) AS device_ns
        FROM device_launches()
        GROUP BY key, time_ns
    ),
    launched AS (
        SELECT
            key, time_ns, sum(device_ns) OVER (PARTITION BY key ORDER BY time_ns) AS device_ns
        FROM moments
    ),
    whole AS MATERIALIZED (
        SELECT
            lasting.key,
            lasting.place,
            parents.parent_place,
            lasting.end_ns - lasting.start_ns AS dur_ns,
            coalesce(at_end.device_ns, 0) - coalesce(at_start.device_ns, 0) AS device_ns
        FROM lasting
        JOIN parents ON parents.key = lasting.key AND parents.place = lasting.place
        ASOF LEFT JOIN launched AS at_start
            ON at_start.key = lasting.key AND at_start.time_ns < lasting.start_ns
        ASOF LEFT JOIN launched AS at_end
            ON at_end.key = lasting.key AND at_end.time_ns < lasting.end_ns
    ),
    inside AS (
        SELECT key, parent_place AS place, sum(dur_ns) AS dur_ns, sum(device_ns) AS device_ns
        FROM whole
        WHERE parent_place IS NOT NULL
        GROUP BY key, parent_place
    )
SELECT
    whole.key,
    whole.place,
    whole.parent_place,
    CAST(whole.dur_ns - coalesce(inside.dur_ns, 0) AS BIGINT) AS own_ns,
    CAST(whole.device_ns AS BIGINT) AS device_ns,
    CAST(whole.device_ns - coalesce(inside.device_ns, 0) AS BIGINT) AS own_device_ns
FROM whole
LEFT JOIN inside ON inside.key = whole.key AND inside.place = whole.place;

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
