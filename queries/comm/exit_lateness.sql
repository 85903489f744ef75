-- By how much each member leaves a communicator's operations later than the others do.
--
-- Members need not leave together: a ring leaves a slow link last, every time. A member that always
-- leaves late, and has not entered late by its own doing, sits behind a slow link; one that leaves
-- late now and then is noise. Only operations that nobody leaves before the last has entered count.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair
-- needs: collective, collective_match, comm_group
-- asked: report
-- grain: attempt, group_id, op, message_bytes, rank
-- shows: device
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
-- column: error_ns BIGINT : Largest error of the difference between its clock and another member's.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: timeline VARCHAR : device, or host (gloo): where the calls were seen to end.
-- column: exit_p10_ratio DOUBLE : Its end less the members' median end, over the call's transfer by
--     its last member: 10 % of the calls are below. Calls of several sizes compare.
-- column: exit_p50_ratio DOUBLE : The same, median.
WITH
    -- A double holds no nanoseconds since the epoch: medians are taken of differences.
    ends AS (
        SELECT
            *,
            end_ns - min(end_ns) OVER instance AS end_offset_ns,
            end_ns - max(start_ns) OVER instance AS transfer_ns
        FROM collective_calls()
        WHERE
            is_trusted
            AND is_complete
            AND error_ns IS NOT NULL
            AND op IN ('all_reduce', 'all_gather', 'reduce_scatter', 'barrier')
        WINDOW instance AS (PARTITION BY attempt, capture_id, instance_id)
    ),
    clocks AS (SELECT DISTINCT attempt, capture_id, group_id, clock_id FROM ends),
    errors AS (FROM clock_errors()),
    apart AS (
        SELECT
            a.attempt,
            a.capture_id,
            a.group_id,
            a.clock_id,
            max(clocks_apart(a.clock_id, b.clock_id, p.error_ns, e.error_ns, h.error_ns))
                AS error_ns
        FROM clocks AS a
        JOIN clocks AS b
            ON b.attempt = a.attempt AND b.capture_id = a.capture_id AND b.group_id = a.group_id
        LEFT JOIN clock_pair AS p
            ON
                p.attempt = a.attempt
                AND p.capture_id = a.capture_id
                AND p.clock_id = least(a.clock_id, b.clock_id)
                AND p.other_clock_id = greatest(a.clock_id, b.clock_id)
        LEFT JOIN errors AS e ON e.clock_id = a.clock_id
        LEFT JOIN errors AS h ON h.clock_id = b.clock_id
        GROUP BY a.attempt, a.capture_id, a.group_id, a.clock_id
    ),
    calls AS (
        SELECT
            *,
            end_offset_ns - median(end_offset_ns) OVER (
                PARTITION BY attempt, capture_id, instance_id
            ) AS exit_ns,
            max(transfer_ns) OVER (
                PARTITION BY attempt, capture_id, instance_id
            ) AS longest_ns
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
            CAST(coalesce(max(apart.error_ns), 0) AS BIGINT) AS error_ns,
            attempt,
            max(timeline) AS timeline,
            quantile_cont(exit_ns / nullif(longest_ns, 0), 0.1) AS exit_p10_ratio,
            quantile_cont(exit_ns / nullif(longest_ns, 0), 0.5) AS exit_p50_ratio
        FROM calls
        LEFT JOIN apart USING (attempt, capture_id, group_id, clock_id)
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
    attempt,
    timeline,
    exit_p10_ratio,
    exit_p50_ratio
FROM members
ORDER BY attempt, group_id, op, message_bytes, rank;
