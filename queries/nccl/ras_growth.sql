-- What each member of a communicator launched between the snapshots of NCCL's RAS.
--
-- Unequal counts in one snapshot are normal. Where nobody's count grew between two of them and some
-- members had launched less than others, the communicator stands still and waits for those.
--
-- reads: comm_snapshot
-- grain: attempt, comm_hash, group_rank
-- asked: report
-- column: comm_hash VARCHAR : Communicator, as RAS names it.
-- column: group_rank INTEGER : Member's rank in the communicator.
-- column: node VARCHAR : Its host, as RAS states it.
-- column: status VARCHAR : Its last state: DEAD and MISSING where RAS could not reach it.
-- column: snapshots_count BIGINT : Snapshots that state its count.
-- column: first_count BIGINT : Its operations in the first.
-- column: last_count BIGINT : Its operations in the last.
-- column: peers_first_count BIGINT : Most operations of any member in the first.
-- column: peers_last_count BIGINT : Most operations of any member in the last.
-- column: span_ns BIGINT : From the first to the last; null where the snapshots carry no time.
-- column: source_id INTEGER : Source of the last.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job; null for snapshots alone.
WITH
    -- A record with a time stands at one place; others come in the order of files and lines.
    numbered AS (
        SELECT
            *,
            if(time_ns IS NOT NULL, place, row_number() OVER (
                PARTITION BY attempt, source_id, comm_hash, group_rank, op
                ORDER BY place, time_ns, last_enqueued, peers_enqueued, status, node
            )) AS nth
        FROM comm_snapshot
        WHERE comm_hash IS NOT NULL AND group_rank IS NOT NULL
    ),
    snapshots AS (
        SELECT
            attempt,
            comm_hash,
            group_rank,
            source_id,
            nth,
            min(time_ns) AS time_ns,
            CAST(sum(last_enqueued) AS BIGINT) AS launched_count,
            CAST(sum(greatest(peers_enqueued, last_enqueued)) AS BIGINT) AS peers_count,
            min(node) AS node,
            min(status) AS status,
            min(place) AS place
        FROM numbered
        GROUP BY attempt, comm_hash, group_rank, source_id, nth
    ),
    ordered AS (
        SELECT
            *,
            {
                'time_ns': coalesce(time_ns, 0), 'source_id': source_id, 'place': place, 'nth': nth
            } AS moment
        FROM snapshots
    )
SELECT
    comm_hash,
    group_rank,
    arg_max(node, moment) AS node,
    arg_max(status, moment) AS status,
    count(launched_count) AS snapshots_count,
    arg_min(launched_count, moment) AS first_count,
    arg_max(launched_count, moment) AS last_count,
    arg_min(peers_count, moment) AS peers_first_count,
    arg_max(peers_count, moment) AS peers_last_count,
    if(bool_and(time_ns IS NOT NULL), max(time_ns) - min(time_ns), NULL) AS span_ns,
    max(moment).source_id AS source_id,
    max(moment).place AS place,
    attempt
FROM ordered
GROUP BY attempt, comm_hash, group_rank
ORDER BY attempt, comm_hash, group_rank;
