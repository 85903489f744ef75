-- What each dump, record file or snapshot of communication holds: one line of a report.
--
-- Flight Recorder, Inspector and RAS are often all that is left of a job that hung. A snapshot in
-- which some members are behind is normal while a job runs: only a second one can show a hang.
--
-- reads: comm_call, comm_snapshot, source
-- grain: attempt, source_id
-- asked: report
-- column: kind VARCHAR : flight_recorder, nccl_inspector, nccl_ras, nccl (a watchdog's progress).
-- column: calls_count BIGINT : Calls recorded.
-- column: unfinished_count BIGINT : Of them, calls that had not completed.
-- column: members_count BIGINT : Members of communicators in snapshots.
-- column: behind_count BIGINT : Of them, those that have launched fewer operations than another.
-- column: statuses VARCHAR[] : States that snapshots give.
-- column: bus_bytes_per_s DOUBLE : Highest bus bandwidth that a record states.
-- column: source_id INTEGER : Source.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
WITH
    calls AS (
        SELECT
            source_id,
            attempt,
            count(*) AS calls_count,
            count(*) FILTER (coalesce(state, 'completed') <> 'completed') AS unfinished_count,
            max(bus_bytes_per_s) AS bus_bytes_per_s
        FROM comm_call
        GROUP BY source_id, attempt
    ),
    members AS (
        SELECT
            *,
            {'comm': coalesce(comm_hash, group_name), 'world': world_rank, 'group': group_rank}
                AS member,
            coalesce(peers_enqueued, max(last_enqueued) OVER (
                PARTITION BY source_id, coalesce(comm_hash, group_name)
            )) AS most_enqueued
        FROM comm_snapshot
    ),
    snapshots AS (
        SELECT
            source_id,
            attempt,
            count(DISTINCT member) AS members_count,
            count(DISTINCT member) FILTER (last_enqueued < most_enqueued) AS behind_count,
            list(DISTINCT status ORDER BY status) FILTER (status IS NOT NULL) AS statuses
        FROM members
        GROUP BY source_id, attempt
    ),
    recorded AS (
        SELECT
            coalesce(calls.source_id, snapshots.source_id) AS source_id,
            coalesce(calls.attempt, snapshots.attempt) AS attempt,
            coalesce(calls_count, 0) AS calls_count,
            coalesce(unfinished_count, 0) AS unfinished_count,
            coalesce(members_count, 0) AS members_count,
            coalesce(behind_count, 0) AS behind_count,
            statuses,
            bus_bytes_per_s
        FROM calls
        FULL JOIN snapshots ON snapshots.source_id = calls.source_id
    )
SELECT
    source.kind AS kind,
    calls_count,
    unfinished_count,
    members_count,
    behind_count,
    statuses,
    bus_bytes_per_s,
    recorded.source_id AS source_id,
    recorded.attempt AS attempt
FROM recorded
LEFT JOIN source ON source.source_id = recorded.source_id
ORDER BY attempt, source_id;
