-- The bandwidth that each group reaches beside what nccl-tests reached and what NCCL's model says.
--
-- A benchmark of the same operation on as many ranks, at the nearest size within a factor of two,
-- shows what the machines can do when nothing else runs; NCCL's own model says what its chosen
-- algorithm should take. Neither is a verdict: a job shares its links with its own computation.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair, bench_result,
--     process_group
-- needs: collective, collective_match, comm_group
-- reads: nccl_comm, nccl_choice, rank
-- grain: attempt, group_id, op, message_bytes
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: kind VARCHAR : tp, pp, dp, ...; null where it cannot be told.
-- column: op VARCHAR : Operation.
-- column: message_bytes BIGINT : Total size as nccl-tests defines it.
-- column: instances_count BIGINT : Trusted instances.
-- column: transfer_p50_ns DOUBLE : Transfer, median.
-- column: bus_bytes_per_s DOUBLE : Bus bandwidth of it.
-- column: bench_bus_bytes_per_s DOUBLE : Best of nccl-tests at the nearest size; null without one.
-- column: bench_message_bytes BIGINT : That size.
-- column: bench_ratio DOUBLE : Reached over the benchmark's.
-- column: model_dur_ns BIGINT : What NCCL's model expects for that size; null unless logged.
-- column: model_ratio DOUBLE : Model's time over the transfer.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- source: Factors of nccl-tests: 2(n-1)/n for all-reduce, (n-1)/n for the others.
WITH
    instances AS (
        SELECT
            attempt,
            group_id,
            instance_id,
            any_value(op ORDER BY op) AS op,
            max(message_bytes) AS message_bytes,
            max(ranks_count) AS ranks_count,
            median(greatest(0, end_ns - holder_start_ns)) AS transfer_ns
        FROM collective_calls()
        WHERE
            is_trusted AND is_complete AND error_ns IS NOT NULL AND message_bytes > 0
            AND op IN ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all')
        GROUP BY attempt, capture_id, group_id, instance_id
    ),
    sized AS (
        SELECT
            attempt,
            group_id,
            op,
            message_bytes,
            max(ranks_count) AS ranks_count,
            count(*) AS instances_count,
            quantile_cont(CAST(transfer_ns AS DOUBLE), 0.5) AS transfer_p50_ns
        FROM instances
        GROUP BY attempt, group_id, op, message_bytes
    ),
    timed AS (
        SELECT
            *,
            message_bytes * 1e9 / nullif(transfer_p50_ns, 0)
            * CASE op WHEN 'all_reduce' THEN 2.0 ELSE 1.0 END
            * (ranks_count - 1) / nullif(ranks_count, 0) AS bus_bytes_per_s
        FROM sized
    ),
    benchmarks AS (
        SELECT
            replace(replace(benchmark, '_perf', ''), 'alltoall', 'all_to_all') AS op,
            ranks_count,
            message_bytes,
            max(bus_bytes_per_s) AS bus_bytes_per_s
        FROM bench_result
        WHERE bus_bytes_per_s > 0 AND message_bytes > 0 AND ranks_count IS NOT NULL
        GROUP BY ALL
    ),
    nearest AS (
        SELECT
            attempt,
            group_id,
            timed.op AS op,
            timed.message_bytes AS message_bytes,
            arg_min(
                {'size': b.message_bytes, 'bus': b.bus_bytes_per_s},
                {
                    'far': abs(ln(b.message_bytes) - ln(timed.message_bytes)),
                    'size': b.message_bytes
                }
            ) AS best
        FROM timed
        JOIN benchmarks AS b
            ON
                b.op = timed.op
                AND b.ranks_count = timed.ranks_count
                AND b.message_bytes BETWEEN timed.message_bytes // 2 AND 2 * timed.message_bytes
        GROUP BY attempt, group_id, timed.op, timed.message_bytes
    ),
    chosen AS (
        SELECT
            groups.group_id AS group_id,
            choices.op AS op,
            choices.message_bytes AS message_bytes,
            max(choices.model_dur_ns) AS model_dur_ns
        FROM nccl_group_comms() AS groups
        JOIN nccl_members() AS members ON members.comm = groups.comm
        JOIN nccl_choice AS choices
            ON
                choices.source_id = members.source_id
                AND choices.pid = members.pid
                AND choices.comm_pointer = members.comm_pointer
                AND choices.comm_generation = members.comm_generation
        WHERE choices.model_dur_ns > 0
        GROUP BY groups.group_id, choices.op, choices.message_bytes
    )
SELECT
    timed.group_id AS group_id,
    comm_group.kind AS kind,
    timed.op AS op,
    timed.message_bytes AS message_bytes,
    instances_count,
    transfer_p50_ns,
    timed.bus_bytes_per_s AS bus_bytes_per_s,
    nearest.best.bus AS bench_bus_bytes_per_s,
    nearest.best.size AS bench_message_bytes,
    timed.bus_bytes_per_s / nearest.best.bus AS bench_ratio,
    chosen.model_dur_ns AS model_dur_ns,
    chosen.model_dur_ns / nullif(transfer_p50_ns, 0) AS model_ratio,
    timed.attempt AS attempt
FROM timed
LEFT JOIN comm_group
    ON comm_group.attempt = timed.attempt AND comm_group.group_id = timed.group_id
LEFT JOIN nearest
    ON
        nearest.attempt = timed.attempt
        AND nearest.group_id = timed.group_id
        AND nearest.op = timed.op
        AND nearest.message_bytes = timed.message_bytes
LEFT JOIN chosen
    ON
        chosen.group_id = timed.group_id
        AND coalesce(chosen.op, timed.op) = timed.op
        AND chosen.message_bytes = timed.message_bytes
ORDER BY attempt, kind, op, message_bytes, group_id;
