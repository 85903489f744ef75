-- What NCCL's processes said, counted: settings, networks, devices, what went wrong.
--
-- The evidence of most rules about NCCL: one row for each distinct message of each process.
--
-- reads: nccl_event, nccl_comm
-- needs: nccl_event
-- grain: attempt, source_id, node, pid, comm, code, fields
-- asked: report
-- column: node VARCHAR : Host; null where no NCCL process said it.
-- column: pid BIGINT : Process.
-- column: comm VARCHAR : Communicator; null where the line belongs to none or it is unknown.
-- column: code VARCHAR : What it is: env, network, ib_error, ...
-- column: severity VARCHAR : info, warning or error.
-- column: fields VARCHAR[] : key=value of what was recognised.
-- column: occurrences_count BIGINT : How often.
-- column: place BIGINT : First line.
-- column: time_ns BIGINT : When first; null where the lines carry no time.
-- column: source_id INTEGER : Source.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
SELECT
    events.node AS node,
    events.pid AS pid,
    members.comm AS comm,
    code,
    min(severity) AS severity,
    fields,
    count(*) AS occurrences_count,
    min(events.place) AS place,
    min(events.time_ns) AS time_ns,
    events.source_id AS source_id,
    events.attempt AS attempt
FROM nccl_event AS events
LEFT JOIN nccl_members() AS members
    ON
        members.source_id = events.source_id
        AND members.pid = events.pid
        AND members.node IS NOT DISTINCT FROM events.node
        AND members.comm_pointer = events.comm_pointer
        AND members.comm_generation = events.comm_generation
WHERE code NOT IN ('unknown_line', 'init_start', 'init_complete', 'trees_connected')
GROUP BY
    events.attempt, events.source_id, events.node, events.pid, members.comm, code, fields
ORDER BY attempt, source_id, node, pid, comm, code, place, fields;
