-- What each module or named range costs on the host and on the device, alone and with those inside.
--
-- Says which part of a model the time goes to. Modules are those that the profiler recorded
-- (with_modules=True or with_stack=True, kept by ingest --stacks), ranges those that the program or
-- its framework named (record_function, NVTX), whatever they are for. Device time is that of
-- kernels and copies that were launched meanwhile on the same thread: autograd runs the backward
-- pass on a thread of its own, where no module of the forward pass is open. Of all that was
-- captured; operator_summary has operators. Names of emit_nvtx stand without the numbers of the
-- call that it adds (seq, op_id, sizes).
--
-- reads: annotation, gpu_op, python_frame
-- grain: attempt, rank, kind, path
-- column: rank INTEGER : Global rank.
-- column: kind VARCHAR : module or range.
-- column: path VARCHAR : Its name after those around it on the thread, outermost first, with /
--     between them.
-- column: name VARCHAR : Its own name.
-- column: depth INTEGER : How many are around it.
-- column: calls_count BIGINT : How often it was entered.
-- column: host_ns BIGINT : Sum of its durations.
-- column: host_self_ns BIGINT : The same less modules and ranges inside it.
-- column: device_ns BIGINT : Time of the device work launched in it; a sum of durations.
-- column: device_self_ns BIGINT : The same less what those inside it launched.
-- column: device_ratio DOUBLE : device_ns over all device work of the rank; null without any.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH RECURSIVE
    modules AS (
        SELECT
            attempt,
            rank,
            {'source_id': source_id, 'thread': thread} AS key,
            place,
            'module' AS kind,
            replace(name, 'nn.Module: ', '') AS name,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM python_frame
        WHERE starts_with(name, 'nn.Module: ') AND dur_ns > 0 AND rank IS NOT NULL
        UNION ALL
        SELECT
            attempt,
            rank,
            {'source_id': source_id, 'thread': thread},
            place,
            'range',
            -- emit_nvtx ends each name with numbers of the call: every one would be a row.
            regexp_replace(name, ', ((stashed )?seq|op_id) = [0-9].*$', ''),
            start_ns,
            start_ns + dur_ns
        FROM annotation
        WHERE
            domain = 'user'
            AND coalesce(style, 'push_pop') = 'push_pop'
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND dur_ns > 0
            AND rank IS NOT NULL
    ),
    times AS MATERIALIZED (
        SELECT
            modules.attempt,
            modules.rank,
            modules.key,
            modules.place,
            found.parent_place,
            modules.kind,
            modules.name,
            modules.end_ns - modules.start_ns AS host_ns,
            found.own_ns,
            found.device_ns,
            found.own_device_ns
        FROM modules
        JOIN call_times('modules') AS found
            ON found.key = modules.key AND found.place = modules.place
    ),
    paths AS (
        SELECT key, place, name AS path, 0 AS depth
        FROM times
        WHERE parent_place IS NULL
        UNION ALL
        SELECT times.key, times.place, paths.path || '/' || times.name, paths.depth + 1
        FROM times
        JOIN paths ON paths.key = times.key AND paths.place = times.parent_place
    ),
    device AS (
        SELECT attempt, rank, sum(dur_ns) AS device_ns
        FROM gpu_op
        WHERE rank IS NOT NULL
        GROUP BY attempt, rank
    )
SELECT
    times.rank,
    times.kind,
    paths.path,
    any_value(times.name) AS name,
    any_value(paths.depth) AS depth,
    count(*) AS calls_count,
    CAST(sum(times.host_ns) AS BIGINT) AS host_ns,
    CAST(sum(times.own_ns) AS BIGINT) AS host_self_ns,
    CAST(sum(times.device_ns) AS BIGINT) AS device_ns,
    CAST(sum(times.own_device_ns) AS BIGINT) AS device_self_ns,
    sum(times.device_ns) / nullif(any_value(device.device_ns), 0) AS device_ratio,
    times.attempt
FROM times
JOIN paths ON paths.key = times.key AND paths.place = times.place
LEFT JOIN device ON device.attempt = times.attempt AND device.rank = times.rank
GROUP BY times.attempt, times.rank, times.kind, paths.path
ORDER BY times.attempt, times.rank, paths.path, times.kind;
