-- What NCCL Inspector recorded of each group beside what the trace shows, by call where it can.
--
-- Inspector numbers the calls of one operation on a communicator from 0; PyTorch numbers all calls
-- of a group. They meet where NCCL's log holds every call, or where the group only ever calls one
-- operation; where numbers meet and sizes then differ, nothing is matched. Inspector's bandwidth is
-- that of the whole kernel, waiting for late members included; the transfer's is without.
--
-- reads: comm_call, source, collective, collective_match, comm_group, clock_offset, clock_pair,
--     process_group
-- needs: comm_call
-- reads: nccl_comm, nccl_op, rank
-- grain: attempt, group_id, op, message_bytes
-- asked: report
-- column: group_id VARCHAR : Communicator of the traces; see comm_group.
-- column: comm VARCHAR : Communicator as Inspector names it.
-- column: comm_source VARCHAR : log: NCCL's log or the trace ties the two; behaviour: the only ones
--     of their size.
-- column: op VARCHAR : Operation.
-- column: message_bytes BIGINT : Total size as nccl-tests defines it.
-- column: recorded_count BIGINT : Calls that Inspector recorded.
-- column: traced_count BIGINT : Calls in the trace.
-- column: matched_count BIGINT : Calls that are in both, by number.
-- column: method VARCHAR : log or sequence: how numbers met; size: they did not, and medians of all
--     calls of this size stand beside each other.
-- column: reason VARCHAR : Why no call was matched; null where calls were.
-- column: recorded_dur_p50_ns DOUBLE : Inspector's execution time, median.
-- column: traced_dur_p50_ns DOUBLE : The trace's kernels, median; of the same calls where matched.
-- column: dur_ratio DOUBLE : Inspector's time over the trace's: median of the matched calls, else
--     of the medians.
-- column: recorded_bus_bytes_per_s DOUBLE : Inspector's bus bandwidth, median.
-- column: transfer_bus_bytes_per_s DOUBLE : Bus bandwidth of the trace's transfer, median; null
--     where an operation has no factor or the members' clocks were not compared.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- source: Factors of nccl-tests: 2(n-1)/n for all-reduce, (n-1)/n for the others.
WITH
    records AS (
        SELECT
            lower(c.comm_hash) AS comm,
            c.group_rank,
            c.group_size,
            c.op,
            c.sequence,
            c.message_bytes,
            c.dur_ns,
            c.bus_bytes_per_s
        FROM comm_call AS c
        SEMI JOIN (FROM source WHERE kind = 'nccl_inspector') AS s USING (source_id)
        WHERE
            c.comm_hash IS NOT NULL AND c.group_rank IS NOT NULL AND c.op IS NOT NULL
            AND c.sequence IS NOT NULL AND c.message_bytes IS NOT NULL
    ),
    comms AS (
        SELECT comm, max(group_size) AS group_size FROM records GROUP BY comm
    ),
    stated AS (
        SELECT DISTINCT lower(comm) AS comm, group_id, list_sort(ranks) AS ranks
        FROM nccl_group_comms()
        UNION
        SELECT DISTINCT lower(comm_hash), group_id, list_sort(ranks)
        FROM process_group
        WHERE comm_hash IS NOT NULL AND ranks IS NOT NULL AND coalesce(is_ranks_complete, FALSE)
    ),
    sized AS (
        SELECT members_count, min(group_id) AS group_id, min(list_sort(ranks)) AS ranks
        FROM comm_group
        WHERE ranks IS NOT NULL
        GROUP BY members_count
        HAVING count(DISTINCT group_id) = 1
    ),
    alone AS (
        SELECT group_size, min(comm) AS comm
        FROM comms
        GROUP BY group_size
        HAVING count(*) = 1
    ),
    -- Two groups of the same ranks are not told apart: then neither is this communicator.
    pairs AS (
        SELECT
            comms.comm,
            min(stated.group_id) AS group_id,
            min(stated.ranks) AS ranks,
            'log' AS comm_source
        FROM comms
        JOIN stated ON stated.comm = comms.comm
        WHERE stated.ranks IS NOT NULL
        GROUP BY comms.comm
        HAVING count(DISTINCT stated.group_id) = 1
        UNION
        SELECT alone.comm, sized.group_id, sized.ranks, 'behaviour'
        FROM alone
        JOIN sized ON sized.members_count = alone.group_size
        WHERE NOT EXISTS (SELECT 1 FROM stated JOIN comms AS c ON c.comm = stated.comm)
    ),
    recorded AS (
        SELECT
            pairs.group_id,
            pairs.comm,
            pairs.comm_source,
            pairs.ranks[records.group_rank + 1] AS rank,
            records.op,
            records.sequence,
            records.message_bytes,
            records.dur_ns,
            records.bus_bytes_per_s
        FROM records
        JOIN pairs ON pairs.comm = records.comm
    ),
    calls AS (
        SELECT
            k.attempt,
            k.group_id,
            k.rank,
            k.op,
            k.message_bytes,
            c.sequence,
            k.end_ns - k.start_ns AS dur_ns,
            CASE
                WHEN k.is_trusted AND k.is_complete AND k.error_ns IS NOT NULL
                THEN greatest(0, k.end_ns - k.holder_start_ns)
            END AS transfer_ns,
            k.ranks_count
        FROM collective_calls() AS k
        JOIN collective AS c ON c.source_id = k.source_id AND c.place = k.place
        WHERE k.timeline = 'device' AND k.message_bytes > 0
    ),
    shapes AS (
        SELECT
            attempt,
            group_id,
            count(DISTINCT op) AS ops_count,
            if(min(sequence) = 0, 0, 1) AS base
        FROM calls
        GROUP BY attempt, group_id
    ),
    logged AS (
        SELECT
            groups.group_id,
            ranked.world_rank AS rank,
            ops.op,
            row_number() OVER (
                PARTITION BY groups.group_id, groups.comm, ranked.world_rank
                ORDER BY ops.source_id, ops.place
            ) - 1 AS number,
            row_number() OVER (
                PARTITION BY groups.group_id, groups.comm, ranked.world_rank, ops.op
                ORDER BY ops.source_id, ops.place
            ) - 1 AS op_number
        FROM nccl_op AS ops
        JOIN nccl_ranked() AS ranked
            ON
                ranked.source_id = ops.source_id
                AND ranked.pid = ops.pid
                AND ranked.node IS NOT DISTINCT FROM ops.node
                AND ranked.comm_pointer = ops.comm_pointer
                AND ranked.comm_generation = ops.comm_generation
        JOIN nccl_group_comms() AS groups
            ON groups.comm = ranked.comm
        WHERE ranked.world_rank IS NOT NULL AND ops.op NOT IN ('send', 'recv')
    ),
    -- Each traced call with its number among the calls of its operation, as Inspector counts.
    numbered AS (
        SELECT
            calls.*,
            CASE
                WHEN logged.number IS NOT NULL THEN 'log'
                WHEN shapes.ops_count = 1 THEN 'sequence'
            END AS method,
            coalesce(
                logged.op_number,
                if(shapes.ops_count = 1, calls.sequence - shapes.base, NULL)
            ) AS op_number
        FROM calls
        JOIN shapes
            ON shapes.attempt = calls.attempt AND shapes.group_id = calls.group_id
        LEFT JOIN logged
            ON
                logged.group_id = calls.group_id
                AND logged.rank = calls.rank
                AND logged.op = calls.op
                AND logged.number = calls.sequence - shapes.base
    ),
    met AS (
        SELECT
            n.attempt,
            n.group_id,
            n.op,
            n.message_bytes,
            n.method,
            n.dur_ns AS traced_dur_ns,
            r.dur_ns AS recorded_dur_ns,
            r.message_bytes = n.message_bytes AS is_same
        FROM numbered AS n
        JOIN recorded AS r
            ON
                r.group_id = n.group_id
                AND r.rank = n.rank
                AND r.op = n.op
                AND r.sequence = n.op_number
    ),
    trusted AS (
        SELECT
            attempt,
            group_id,
            op,
            count(*) FILTER (NOT is_same) AS differing_count
        FROM met
        GROUP BY attempt, group_id, op
    ),
    matched AS (
        SELECT
            attempt,
            group_id,
            op,
            message_bytes,
            count(*) AS matched_count,
            min(method) AS method,
            median(CAST(traced_dur_ns AS DOUBLE)) AS traced_dur_ns,
            median(recorded_dur_ns / nullif(traced_dur_ns, 0)) AS dur_ratio
        FROM met
        JOIN trusted USING (attempt, group_id, op)
        WHERE differing_count = 0
        GROUP BY attempt, group_id, op, message_bytes
    ),
    traced AS (
        SELECT
            attempt,
            group_id,
            op,
            message_bytes,
            count(*) AS traced_count,
            median(CAST(dur_ns AS DOUBLE)) AS dur_ns,
            message_bytes * 1e9 / nullif(median(CAST(transfer_ns AS DOUBLE)), 0)
            * CASE
                WHEN op = 'all_reduce' THEN 2.0
                WHEN op IN ('all_gather', 'reduce_scatter', 'all_to_all') THEN 1.0
            END
            * (max(ranks_count) - 1) / nullif(max(ranks_count), 0) AS transfer_bus_bytes_per_s
        FROM calls
        GROUP BY attempt, group_id, op, message_bytes
    ),
    grouped AS (
        SELECT
            group_id,
            min(comm) AS comm,
            min(comm_source) AS comm_source,
            op,
            message_bytes,
            count(*) AS recorded_count,
            median(CAST(dur_ns AS DOUBLE)) AS dur_ns,
            median(bus_bytes_per_s) AS bus_bytes_per_s
        FROM recorded
        GROUP BY group_id, op, message_bytes
    )
SELECT
    grouped.group_id AS group_id,
    grouped.comm AS comm,
    grouped.comm_source AS comm_source,
    grouped.op AS op,
    grouped.message_bytes AS message_bytes,
    grouped.recorded_count AS recorded_count,
    traced.traced_count AS traced_count,
    coalesce(matched.matched_count, 0) AS matched_count,
    coalesce(matched.method, 'size') AS method,
    CASE
        WHEN matched.matched_count > 0 THEN NULL
        WHEN trusted.differing_count > 0
            THEN 'calls with the same number have different sizes: the numbers do not meet'
        WHEN trusted.differing_count = 0 THEN 'no call of this size is in both'
        WHEN shapes.ops_count > 1
            THEN 'the group calls several operations, and no NCCL log counts each (SUBSYS COLL)'
        ELSE 'no call is in both, or the trace numbers none'
    END AS reason,
    grouped.dur_ns AS recorded_dur_p50_ns,
    coalesce(matched.traced_dur_ns, traced.dur_ns) AS traced_dur_p50_ns,
    coalesce(matched.dur_ratio, grouped.dur_ns / nullif(traced.dur_ns, 0)) AS dur_ratio,
    grouped.bus_bytes_per_s AS recorded_bus_bytes_per_s,
    traced.transfer_bus_bytes_per_s AS transfer_bus_bytes_per_s,
    traced.attempt AS attempt
FROM grouped
JOIN traced
    ON
        traced.group_id = grouped.group_id
        AND traced.op = grouped.op
        AND traced.message_bytes = grouped.message_bytes
JOIN shapes ON shapes.attempt = traced.attempt AND shapes.group_id = traced.group_id
LEFT JOIN trusted
    ON
        trusted.attempt = traced.attempt
        AND trusted.group_id = traced.group_id
        AND trusted.op = traced.op
LEFT JOIN matched
    ON
        matched.attempt = traced.attempt
        AND matched.group_id = traced.group_id
        AND matched.op = traced.op
        AND matched.message_bytes = traced.message_bytes
ORDER BY attempt, group_id, op, message_bytes;
