-- What each operator costs on the host and on the device, with and without the operators inside it.
--
-- Says which operators dominate, as key_averages of torch.profiler and the operator view of
-- TensorBoard do; self_time divides the step. Of all that was captured, warm-up included. Device
-- time is that of the kernels and copies that were launched while the operator ran, on its thread;
-- it is a sum of durations, which may overlap. An operator inside one of its own name counts in
-- both, so that totals may be more than the time that passed; self times never are.
--
-- reads: gpu_op, host_op
-- needs: host_op
-- grain: attempt, rank, name, input_dims
-- asked: report where nobody communicates
-- param: by_shape BOOLEAN = false : Whether calls with other recorded input shapes are apart.
-- column: rank INTEGER : Global rank.
-- column: name VARCHAR : Operator; null for device work that no recorded operator launched.
-- column: input_dims VARCHAR : Input shapes as recorded, if asked for; null where not recorded.
-- column: calls_count BIGINT : Calls; null for device work without operator.
-- column: host_ns BIGINT : Sum of the calls' durations; null without operator.
-- column: host_self_ns BIGINT : The same less operators inside; null without operator.
-- column: device_ns BIGINT : Time of the device work launched in them.
-- column: device_self_ns BIGINT : The same less what operators inside launched. Rows add up to all
--     device work of the rank.
-- column: device_self_ratio DOUBLE : Its share of all device work of the rank; null without any.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    operators AS (
        SELECT
            attempt,
            rank,
            {'source_id': source_id, 'thread': thread} AS key,
            place,
            name,
            if($by_shape, input_dims, NULL) AS input_dims,
            dur_ns,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM host_op
        WHERE category = 'operator' AND rank IS NOT NULL
    ),
    times AS (FROM call_times('operators')),
    summed AS (
        SELECT
            operators.attempt,
            operators.rank,
            operators.name,
            operators.input_dims,
            count(*) AS calls_count,
            sum(operators.dur_ns) AS host_ns,
            coalesce(sum(times.own_ns), 0) AS host_self_ns,
            coalesce(sum(times.device_ns), 0) AS device_ns,
            coalesce(sum(times.own_device_ns), 0) AS device_self_ns
        FROM operators
        LEFT JOIN times ON times.key = operators.key AND times.place = operators.place
        GROUP BY operators.attempt, operators.rank, operators.name, operators.input_dims
    ),
    device AS (
        SELECT attempt, rank, sum(dur_ns) AS device_ns
        FROM gpu_op
        WHERE rank IS NOT NULL
        GROUP BY attempt, rank
    ),
    launched AS (
        SELECT attempt, rank, sum(device_self_ns) AS device_self_ns
        FROM summed
        GROUP BY attempt, rank
    ),
    outside AS (
        SELECT
            device.attempt,
            device.rank,
            device.device_ns - launched.device_self_ns AS device_ns
        FROM device
        JOIN launched USING (attempt, rank)
    ),
    rows AS (
        FROM summed
        UNION ALL
        SELECT attempt, rank, NULL, NULL, NULL, NULL, NULL, device_ns, device_ns
        FROM outside
        WHERE device_ns > 0
    )
SELECT
    rows.rank,
    rows.name,
    rows.input_dims,
    rows.calls_count,
    CAST(rows.host_ns AS BIGINT) AS host_ns,
    CAST(rows.host_self_ns AS BIGINT) AS host_self_ns,
    CAST(rows.device_ns AS BIGINT) AS device_ns,
    CAST(rows.device_self_ns AS BIGINT) AS device_self_ns,
    rows.device_self_ns / nullif(device.device_ns, 0) AS device_self_ratio,
    rows.attempt
FROM rows
LEFT JOIN device USING (attempt, rank)
ORDER BY
    rows.attempt,
    rows.rank,
    device_self_ns DESC,
    host_self_ns DESC,
    rows.name,
    rows.input_dims;
