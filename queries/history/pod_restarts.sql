-- How often Kubernetes started the job's containers again, and what it says they ended for.
--
-- A pod whose training ends with an error is started again by the kubelet: what was not saved is
-- done again, and the others wait. Of several dumps of a pod the highest count is taken.
--
-- reads: log_event
-- needs: log_event
-- grain: task
-- column: task VARCHAR : Pod, as pod/NAME.
-- column: host VARCHAR : Its node; null where unknown.
-- column: replica VARCHAR : Its number in the job, by its labels; null where they do not say.
-- column: restarts_count BIGINT : How often the container that was started again most often was.
-- column: ended_for VARCHAR : What its last known end was: out of memory, a signal or an exit code;
--     null where nothing says.
-- column: back_offs_count BIGINT : How often the kubelet waited before it started it again, by its
--     events.
-- column: source_id INTEGER : File.
-- column: place BIGINT : First line, or object, that says so.
WITH
    given AS (
        SELECT
            source_id,
            place,
            time_ns,
            code,
            named_fields(fields) AS said
        FROM log_event
        WHERE
            code IN ('pod-restarted', 'pod-ended', 'pod-event')
            AND said IS NOT NULL
    ),
    parsed AS (
        SELECT
            source_id,
            place,
            time_ns,
            code,
            said['task'] AS task,
            said['host'] AS host,
            said['replica'] AS replica,
            said['reason'] AS reason,
            TRY_CAST(said['count'] AS BIGINT) AS times_count,
            coalesce(
                if(said['why'] = 'out of memory', 'out of memory', NULL),
                said['signal'],
                'exit code ' || said['exit_code']
            ) AS ended_for
        FROM given
        WHERE said['task'] IS NOT NULL
    ),
    pods AS (
        SELECT
            task,
            min(host) FILTER (WHERE code <> 'pod-event') AS host,
            min(replica) AS replica,
            max(times_count) FILTER (WHERE code <> 'pod-event') AS restarts_count,
            max_by(ended_for, (time_ns, source_id, place)) FILTER (WHERE code = 'pod-ended')
                AS ended_for,
            coalesce(
                sum(coalesce(times_count, 1))
                    FILTER (WHERE code = 'pod-event' AND reason = 'BackOff'),
                0
            ) AS back_offs_count,
            min(source_id) FILTER (WHERE code <> 'pod-event') AS source_id,
            min_by(place, (source_id, place)) FILTER (WHERE code <> 'pod-event') AS place
        FROM parsed
        GROUP BY task
    )
SELECT
    task,
    host,
    replica,
    restarts_count,
    ended_for,
    CAST(back_offs_count AS BIGINT) AS back_offs_count,
    source_id,
    place
FROM pods
WHERE restarts_count IS NOT NULL
ORDER BY restarts_count DESC, task;
