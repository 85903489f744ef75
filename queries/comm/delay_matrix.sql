-- Who waited for whom: one row for each pair of ranks, the late one and the waiting one.
--
-- A column of one rank that all others wait for is a rank; a single cell is a link or a pair.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair, gpu_op, host_op,
--     annotation
-- needs: collective, collective_match, comm_group
-- grain: attempt, group_id, late_rank, waiting_rank
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: late_rank INTEGER : Rank that was waited for.
-- column: waiting_rank INTEGER : Rank that waited.
-- column: waits_count BIGINT : Calls.
-- column: wait_ns BIGINT : Waiting in them.
-- column: own_wait_ns BIGINT : The part that the late rank caused itself.
-- column: exposed_wait_ns BIGINT : The part of that in which the waiting rank computed nothing.
-- column: attempt INTEGER : Attempt of the job, from 1.
SELECT
    group_id,
    holder_rank AS late_rank,
    rank AS waiting_rank,
    count(*) AS waits_count,
    CAST(sum(wait_ns) AS BIGINT) AS wait_ns,
    CAST(sum(own_ns) AS BIGINT) AS own_wait_ns,
    CAST(sum(exposed_ns) AS BIGINT) AS exposed_wait_ns,
    attempt
FROM inflicted_waits()
GROUP BY attempt, group_id, holder_rank, rank
ORDER BY attempt, group_id, late_rank, waiting_rank;
