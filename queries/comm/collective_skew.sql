-- Every matched collective: who arrived last, how long the others waited, what the transfer took.
--
-- On a synchronous job every rank is equally slow, and the one that waits longest looks worst and
-- is innocent. Here a collective's time is taken apart: waiting until the last has entered, and
-- transfer after that. Bandwidth follows from the transfer, never from the duration.
--
-- Where members have no trace, the last to enter may be one of them: then nobody is named, and the
-- waiting is estimated from the traced members' own durations, less the shortest at equal group,
-- operation and size.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair
-- needs: collective, collective_match
-- grain: attempt, capture_id, group_id, sequence
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: sequence BIGINT : Ordinal of the call within it: the trace's own number where it has one.
-- column: op VARCHAR : all_reduce, all_gather, ...; unknown where the trace does not tell.
-- column: message_bytes BIGINT : Total size as nccl-tests defines it; null where unknowable.
-- column: ranks_count BIGINT : Members with a call in a trace.
-- column: last_rank INTEGER : Rank that the others waited for; null where members have no trace, or
--     it was not later than each other one by more than the error of their two clocks.
-- column: gap_ns BIGINT : By how much it was later than the next one; null where members are
--     missing.
-- column: wait_ns BIGINT : Waiting of all traced members, summed.
-- column: transfer_ns BIGINT : From the last entry to a member's end; median over members.
-- column: end_spread_ns BIGINT : Between the first and the last member to leave.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: instance_id BIGINT : As in collective_match.
-- column: step BIGINT : The file's step of the last to enter; null when none.
-- column: members_count INTEGER : Members of the communicator; null when unknown.
-- column: skew_ns BIGINT : Between the first and the last traced member to enter.
-- column: transfer_min_ns BIGINT : Shortest transfer over members.
-- column: transfer_max_ns BIGINT : Longest transfer over members.
-- column: shortest_ns BIGINT : Shortest duration over members.
-- column: is_estimated BOOLEAN : Members are missing: waiting and transfer are estimates.
-- column: is_trusted BOOLEAN : Whether the match may carry a claim.
-- column: error_ns BIGINT : Largest error of the differences between the members' clocks and that
--     of the rank that they waited for; null when unknown.
-- column: start_ns BIGINT : First entry, on the job's clock.
-- column: timeline VARCHAR : device (kernels) or host (worker threads).
-- source: Diagnosis 3.5; the wait of a call is the last entry less its own.
WITH
    calls AS MATERIALIZED (
        SELECT
            *,
            end_ns - start_ns AS dur_ns,
            min(end_ns - start_ns) FILTER (is_trusted) OVER (
                PARTITION BY attempt, group_id, op, message_bytes
            ) AS usual_ns
        FROM collective_calls()
    ),
    instances AS (
        SELECT
            attempt,
            capture_id,
            group_id,
            sequence,
            instance_id,
            min(op) AS op,
            max(message_bytes) AS message_bytes,
            min(timeline) AS timeline,
            max(ranks_count) AS ranks_count,
            max(members_count) AS members_count,
            bool_and(is_trusted) AS is_trusted,
            bool_and(is_complete) AS is_complete,
            max(error_ns) AS error_ns,
            bool_and(holder_start_ns - start_ns >= error_ns) FILTER (holder_rank <> rank)
                AS is_after_all,
            min(start_ns) AS start_ns,
            max(start_ns) - min(start_ns) AS skew_ns,
            max(end_ns) - min(end_ns) AS end_spread_ns,
            arg_max(step, {'start_ns': start_ns, 'rank': rank, 'step': step}) AS step,
            sum(wait_ns) AS seen_wait_ns,
            sum(greatest(0, dur_ns - usual_ns)) AS estimated_wait_ns,
            arg_max(holder_rank, {'wait_ns': wait_ns, 'rank': -rank, 'holder': holder_rank})
                AS holder_rank,
            max(holder_start_ns) AS holder_start_ns,
            max(start_ns) AS last_start_ns,
            median(greatest(0, end_ns - greatest(start_ns, coalesce(holder_start_ns, start_ns))))
                AS seen_transfer_ns,
            min(greatest(0, end_ns - greatest(start_ns, coalesce(holder_start_ns, start_ns))))
                AS transfer_min_ns,
            max(greatest(0, end_ns - greatest(start_ns, coalesce(holder_start_ns, start_ns))))
                AS transfer_max_ns,
            max(start_ns, 2) AS latest_starts_ns,
            min(dur_ns) AS shortest_ns,
            min(usual_ns) AS usual_ns
        FROM calls
        GROUP BY attempt, capture_id, group_id, sequence, instance_id
    ),
    judged AS (
        SELECT
            *,
            CASE
                WHEN NOT is_complete THEN NULL
                WHEN holder_start_ns < last_start_ns
                    THEN CAST(greatest(0, holder_start_ns - start_ns) AS BIGINT)
                ELSE latest_starts_ns[1] - coalesce(latest_starts_ns[2], latest_starts_ns[1])
            END AS gap_ns
        FROM instances
    )
SELECT
    group_id,
    sequence,
    op,
    message_bytes,
    ranks_count,
    CAST(
        if(
            is_complete
            AND seen_wait_ns > 0
            AND if(holder_start_ns < last_start_ns, gap_ns >= error_ns, is_after_all),
            holder_rank,
            NULL
        ) AS INTEGER
    ) AS last_rank,
    gap_ns,
    CAST(if(is_complete, seen_wait_ns, estimated_wait_ns) AS BIGINT) AS wait_ns,
    CAST(if(is_complete, seen_transfer_ns, least(usual_ns, shortest_ns)) AS BIGINT) AS transfer_ns,
    end_spread_ns,
    attempt,
    capture_id,
    instance_id,
    step,
    members_count,
    skew_ns,
    transfer_min_ns,
    transfer_max_ns,
    shortest_ns,
    NOT is_complete AS is_estimated,
    is_trusted,
    CAST(error_ns AS BIGINT) AS error_ns,
    start_ns,
    timeline
FROM judged
ORDER BY attempt, capture_id, group_id, sequence, instance_id;
