-- Bandwidth of each communicator by operation and size, beside others of its kind.
--
-- From the transfer, never from the duration: waiting for a late rank is no slow network. Bus
-- bandwidth is what nccl-tests calls busbw, comparable over group sizes.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair, step
-- needs: collective, collective_match, comm_group
-- grain: attempt, group_id, op, message_bytes
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: kind VARCHAR : tp, pp, dp, ...; null where it cannot be told.
-- column: members_count INTEGER : Members; null when unknown.
-- column: op VARCHAR : Operation.
-- column: message_bytes BIGINT : Total size as nccl-tests defines it.
-- column: instances_count BIGINT : Trusted instances.
-- column: steps_count BIGINT : Steps of the file that they are in.
-- column: transfer_p50_ns DOUBLE : Transfer, median.
-- column: transfer_mean_ns DOUBLE : Transfer, mean of steps that are no warm-up; null without any.
-- column: transfer_p25_ns DOUBLE : The same, lower quartile.
-- column: stuck_count BIGINT : Instances whose transfer took three times the median or more.
-- column: stuck_ns DOUBLE : What those took beyond the median, summed.
-- column: algorithm_bytes_per_s DOUBLE : Size over the median transfer; null where that is 0.
-- column: bus_bytes_per_s DOUBLE : The same times the operation's factor; null where the operation
--     has none.
-- column: peer_ratio DOUBLE : bus_bytes_per_s over the median of the groups of the same kind, size,
--     operation and message size, itself included; null where there is no other.
-- column: peers_count BIGINT : Those groups, itself included.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: timeline VARCHAR : device (kernels) or host (worker threads, whose times are noisy).
-- column: error_ns BIGINT : By how much the clocks may make its transfer differ from the usual one
--     of those groups: how far the members' clocks may be apart (median), its own and the others'.
-- source: Diagnosis 3.6 and D16; factors of nccl-tests.
WITH
    warm_ups AS (
        SELECT DISTINCT attempt, capture_id, step FROM step WHERE is_warmup
    ),
    instances AS (
        SELECT
            attempt,
            capture_id,
            group_id,
            instance_id,
            any_value(op ORDER BY op) AS op,
            max(message_bytes) AS message_bytes,
            max(step) AS step,
            (attempt, capture_id, max(step)) IN (FROM warm_ups) AS is_warmup,
            any_value(timeline ORDER BY timeline) AS timeline,
            max(ranks_count) AS ranks_count,
            median(greatest(0, end_ns - holder_start_ns)) AS transfer_ns,
            -- The one that was waited for is timed by its own clock alone.
            median(if(rank = holder_rank, 0, error_ns)) AS error_ns
        FROM collective_calls()
        WHERE
            is_trusted AND is_complete AND error_ns IS NOT NULL
            AND op IN ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all')
        GROUP BY attempt, capture_id, group_id, instance_id
    ),
    usual AS (
        SELECT
            *,
            quantile_cont(CAST(transfer_ns AS DOUBLE), 0.5) OVER (
                PARTITION BY attempt, group_id, op, message_bytes
            ) AS transfer_p50_ns
        FROM instances
        WHERE message_bytes > 0
    ),
    sized AS (
        SELECT
            attempt,
            group_id,
            op,
            message_bytes,
            count(*) AS instances_count,
            count(DISTINCT step) AS steps_count,
            any_value(timeline ORDER BY timeline) AS timeline,
            max(ranks_count) AS ranks_count,
            min(transfer_p50_ns) AS transfer_p50_ns,
            avg(transfer_ns) FILTER (NOT coalesce(is_warmup, false)) AS transfer_mean_ns,
            quantile_cont(CAST(transfer_ns AS DOUBLE), 0.25) FILTER (NOT coalesce(is_warmup, false))
                AS transfer_p25_ns,
            max(error_ns) AS error_ns,
            count(*) FILTER (transfer_ns >= 3 * transfer_p50_ns) AS stuck_count,
            coalesce(
                sum(transfer_ns - transfer_p50_ns) FILTER (transfer_ns >= 3 * transfer_p50_ns), 0
            ) AS stuck_ns
        FROM usual
        GROUP BY attempt, group_id, op, message_bytes
    ),
    timed AS (
        SELECT
            sized.*,
            kind,
            members_count,
            message_bytes * 1e9 / nullif(transfer_p50_ns, 0) AS algorithm_bytes_per_s,
            CASE op WHEN 'all_reduce' THEN 2.0 ELSE 1.0 END
            * (ranks_count - 1) / nullif(ranks_count, 0) AS factor
        FROM sized
        LEFT JOIN comm_group USING (attempt, group_id)
    ),
    compared AS (
        SELECT
            *,
            algorithm_bytes_per_s * factor AS bus_bytes_per_s,
            median(algorithm_bytes_per_s * factor) OVER alike AS usual_bytes_per_s,
            median(error_ns) OVER alike AS usual_error_ns,
            count(*) OVER alike AS peers_count
        FROM timed
        WINDOW alike AS (PARTITION BY attempt, kind, ranks_count, op, message_bytes)
    )
SELECT
    group_id,
    kind,
    members_count,
    op,
    message_bytes,
    instances_count,
    steps_count,
    transfer_p50_ns,
    transfer_mean_ns,
    transfer_p25_ns,
    stuck_count,
    stuck_ns,
    algorithm_bytes_per_s,
    bus_bytes_per_s,
    if(peers_count > 1, bus_bytes_per_s / nullif(usual_bytes_per_s, 0), NULL) AS peer_ratio,
    peers_count,
    attempt,
    timeline,
    CAST(error_ns + usual_error_ns AS BIGINT) AS error_ns
FROM compared
ORDER BY attempt, kind, op, message_bytes, group_id;
