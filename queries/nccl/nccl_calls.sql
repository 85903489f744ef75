-- The calls of each rank on each group: its trace beside what NCCL logged, by number.
--
-- A profiler sees some steps and NCCL's log (SUBSYS COLL) all of them. The n-th call that NCCL logs
-- of a communicator is PyTorch's number n of the group; where operations or sizes then differ, the
-- log misses calls, or is of another run, and nothing may be read off it. NCCL's own opCount is no
-- number of the call.
--
-- reads: collective, collective_match, nccl_op, nccl_comm, comm_group, process_group, rank
-- needs: collective, collective_match, nccl_op, nccl_comm
-- grain: attempt, group_id, rank, comm
-- column: group_id VARCHAR : Communicator of the traces; see comm_group.
-- column: comm VARCHAR : Communicator of the logs.
-- column: rank INTEGER : Rank.
-- column: traced_count BIGINT : Calls in the trace that carry a number.
-- column: logged_count BIGINT : Calls in the log, over the whole life of the communicator.
-- column: matched_count BIGINT : Calls of the trace with the same number, operation and size.
-- column: differing_count BIGINT : Calls with the same number that differ.
-- column: first_sequence BIGINT : First number in the trace.
-- column: last_sequence BIGINT : Last number in the trace.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    traced AS (
        SELECT DISTINCT
            c.attempt,
            m.group_id,
            c.rank,
            c.sequence,
            c.op,
            c.message_bytes
        FROM collective AS c
        JOIN collective_match AS m USING (source_id, place)
        WHERE
            c.sequence IS NOT NULL AND c.rank IS NOT NULL AND m.group_id IS NOT NULL
            AND NOT coalesce(c.is_p2p, FALSE)
    ),
    -- PyTorch counts from 1; some recorders from 0.
    based AS (
        SELECT
            traced.*,
            if(min(sequence) OVER (PARTITION BY attempt) = 0, 0, 1) AS base
        FROM traced
    ),
    members AS (
        SELECT ranked.*, groups.group_id
        FROM nccl_ranked() AS ranked
        JOIN nccl_group_comms() AS groups
            ON groups.comm = ranked.comm
        WHERE ranked.world_rank IS NOT NULL
    ),
    logged AS (
        SELECT
            members.group_id AS group_id,
            members.comm AS comm,
            members.world_rank AS rank,
            row_number() OVER (
                PARTITION BY members.group_id, members.comm, members.world_rank
                ORDER BY ops.source_id, ops.place
            ) - 1 AS number,
            ops.op AS op,
            ops.elements_count
            * CASE
                WHEN dtype IN ('Int8', 'UInt8', 'Float8_e4m3fn', 'Float8_e5m2') THEN 1
                WHEN dtype IN ('Half', 'BFloat16') THEN 2
                WHEN dtype IN ('Int32', 'UInt32', 'Float') THEN 4
                WHEN dtype IN ('Int64', 'UInt64', 'Double') THEN 8
            END
            * if(ops.op IN ('all_gather', 'reduce_scatter'), members.group_size, 1)
                AS message_bytes
        FROM nccl_op AS ops
        JOIN members
            ON
                members.source_id = ops.source_id
                AND members.pid = ops.pid
                AND members.node IS NOT DISTINCT FROM ops.node
                AND members.comm_pointer = ops.comm_pointer
                AND members.comm_generation = ops.comm_generation
        WHERE ops.op NOT IN ('send', 'recv')
    ),
    lengths AS (
        SELECT group_id, comm, rank, count(*) AS logged_count
        FROM logged
        GROUP BY group_id, comm, rank
    )
SELECT
    based.group_id AS group_id,
    lengths.comm AS comm,
    based.rank AS rank,
    count(*) AS traced_count,
    max(lengths.logged_count) AS logged_count,
    count(*) FILTER (
        logged.op = based.op AND logged.message_bytes = based.message_bytes
    ) AS matched_count,
    count(*) FILTER (
        logged.op <> based.op OR logged.message_bytes <> based.message_bytes
    ) AS differing_count,
    min(based.sequence) AS first_sequence,
    max(based.sequence) AS last_sequence,
    based.attempt AS attempt
FROM based
JOIN lengths ON lengths.group_id = based.group_id AND lengths.rank = based.rank
LEFT JOIN logged
    ON
        logged.group_id = lengths.group_id
        AND logged.comm = lengths.comm
        AND logged.rank = lengths.rank
        AND logged.number = based.sequence - based.base
GROUP BY based.attempt, based.group_id, based.rank, lengths.comm
ORDER BY attempt, group_id, rank, comm;
