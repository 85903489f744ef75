-- By how much each member leaves a communicator's operations later than the others do.
--
-- Members need not leave together: a ring leaves a slow link last, every time. A member that always
-- leaves late, and has not entered late by its own doing, sits behind a slow link; one that leaves
-- late now and then is noise. Only operations that nobody leaves before the last has entered count.
--
-- reads: collective, collective_match, comm_group, clock_offset
-- grain: attempt, group_id, op, message_bytes, rank
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: op VARCHAR : all_reduce, all_gather, reduce_scatter or barrier.
-- column: message_bytes BIGINT : Total size as nccl-tests defines it; null where unknowable.
-- column: rank INTEGER : Member.
-- column: calls_count BIGINT : Calls.
-- column: exit_p10_ns DOUBLE : Its end less the members' median end: 10 % of the calls are below.
-- column: exit_p50_ns DOUBLE : The same, median.
-- column: exit_p90_ns DOUBLE : The same, 90 % are below.
-- column: transfer_p50_ns DOUBLE : From the last entry to its own end, median.
-- column: group_transfer_p50_ns DOUBLE : The same over all members.
-- column: error_ns BIGINT : Largest error of differences between the members' clocks.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    -- A double holds no nanoseconds since the epoch: medians are taken of differences.
    ends AS (
        SELECT
            *,
            end_ns - min(end_ns) OVER instance AS end_offset_ns,
            end_ns - max(start_ns) OVER instance AS transfer_ns
        FROM collective_calls('collective', 'collective_match', 'comm_group', 'clock_offset')
        WHERE
            is_trusted
            AND is_complete
            AND error_ns IS NOT NULL
            AND op IN ('all_reduce', 'all_gather', 'reduce_scatter', 'barrier')
        WINDOW instance AS (PARTITION BY attempt, capture_id, instance_id)
    ),
    calls AS (
        SELECT
            *,
            end_offset_ns - median(end_offset_ns) OVER (
                PARTITION BY attempt, capture_id, instance_id
            ) AS exit_ns
        FROM ends
    ),
    members AS (
        SELECT
            group_id,
            op,
            message_bytes,
            rank,
            count(*) AS calls_count,
            quantile_cont(exit_ns, 0.1) AS exit_p10_ns,
            quantile_cont(exit_ns, 0.5) AS exit_p50_ns,
            quantile_cont(exit_ns, 0.9) AS exit_p90_ns,
            quantile_cont(CAST(transfer_ns AS DOUBLE), 0.5) AS transfer_p50_ns,
            CAST(max(error_ns) AS BIGINT) AS error_ns,
            attempt
        FROM calls
        GROUP BY attempt, group_id, op, message_bytes, rank
    )
SELECT
    group_id,
    op,
    message_bytes,
    rank,
    calls_count,
    exit_p10_ns,
    exit_p50_ns,
    exit_p90_ns,
    transfer_p50_ns,
    median(transfer_p50_ns) OVER (
        PARTITION BY attempt, group_id, op, message_bytes
    ) AS group_transfer_p50_ns,
    error_ns,
    attempt
FROM members
ORDER BY attempt, group_id, op, message_bytes, rank;
