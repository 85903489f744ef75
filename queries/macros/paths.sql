-- What a walk along the critical path meets: from the rank that ends a step last back to its start.

-- path_ranges: Ranges on the thread of each rank's training loop, but for the shortest.
--
-- Those of a thousandth of a mean step or longer: shorter ones decide nothing, and frameworks that
-- mark every operator make as many as there are operators. Numbers in names are starred, so that a
-- range has one name in all steps; so goes what PyTorch's emit_nvtx appends.
--
-- reads: annotation, host_op, step
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, start_ns BIGINT, end_ns BIGINT,
--     name VARCHAR, source_id INTEGER, place BIGINT
CREATE OR REPLACE MACRO path_ranges() AS TABLE
WITH
    limits AS (SELECT avg(dur_ns) / 1000 AS least_ns FROM step)
SELECT
    attempt,
    rank,
    capture_id,
    start_ns,
    start_ns + dur_ns AS end_ns,
    regexp_replace(
        regexp_replace(name, ', (seq|op_id|sizes|input_op_ids) = .*', ''), '[0-9]+', '*', 'g'
    ) AS name,
    source_id,
    place
FROM annotation
SEMI JOIN loop_threads() AS loops USING (source_id, thread)
CROSS JOIN limits
WHERE
    domain NOT IN ('profiler_step', 'collective')
    AND NOT coalesce(is_gpu_twin, FALSE)
    AND dur_ns > 0
    AND dur_ns >= least_ns
    AND rank IS NOT NULL;

-- path_calls: Matched calls at whose end their rank computed nothing: what it may have waited for.
--
-- exposed_start_ns is when the rank had last computed before the call's end, or when the call began
-- if that was later. holder_rank and holder_start_ns are as in collective_calls, null where the
-- match is not trusted or the clocks were never compared.
--
-- Sends and receives of a pipeline that ran on hosts are seldom matched, and its operations say the
-- same: a forward of a microbatch waits for that of the stage before, a backward for that of the
-- stage behind. Such a wait is a call from the rank's last operation to this one (op hand-over);
-- its holder entered when the other operation ended.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair, gpu_op, host_op,
--     annotation, pipeline_op
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, start_ns BIGINT, end_ns BIGINT,
--     exposed_start_ns BIGINT, group_id VARCHAR, op VARCHAR, holder_rank INTEGER,
--     holder_start_ns BIGINT, error_ns BIGINT, source_id INTEGER, place BIGINT
CREATE OR REPLACE MACRO path_calls() AS TABLE
WITH
    calls AS (
        SELECT
            *,
            capture_key(attempt, rank, capture_id) AS key,
            is_trusted AND is_complete AND error_ns IS NOT NULL AS is_usable
        FROM collective_calls()
        WHERE end_ns > start_ns AND NOT (op = 'send' AND timeline = 'host')
    ),
    exposed AS MATERIALIZED (SELECT key, start_ns, end_ns FROM exposed_calls()),
    operations AS (
        SELECT
            attempt,
            capture_id,
            rank,
            dp_rank,
            step,
            operation,
            microbatch,
            global_chunk,
            start_ns,
            end_ns,
            lag(end_ns) OVER (
                PARTITION BY attempt, capture_id, rank ORDER BY start_ns, end_ns, sequence
            ) AS last_end_ns,
            row_number() OVER (
                PARTITION BY attempt, capture_id, rank ORDER BY start_ns, end_ns, sequence
            ) AS number
        FROM pipeline_op
        ANTI JOIN gpu_op USING (attempt, rank)
        WHERE operation IN ('forward-compute', 'backward-compute')
    ),
    hand_overs AS (
        SELECT
            own.attempt,
            own.rank,
            own.capture_id,
            own.last_end_ns AS start_ns,
            own.start_ns AS end_ns,
            own.number,
            given.rank AS holder_rank,
            given.end_ns AS holder_start_ns
        FROM operations AS own
        JOIN operations AS given
            ON
                given.attempt = own.attempt
                AND given.capture_id = own.capture_id
                AND given.step = own.step
                AND given.dp_rank IS NOT DISTINCT FROM own.dp_rank
                AND given.operation = own.operation
                AND given.microbatch = own.microbatch
                AND given.global_chunk
                = own.global_chunk + if(own.operation = 'forward-compute', -1, 1)
        WHERE given.rank <> own.rank AND given.end_ns BETWEEN own.last_end_ns + 1 AND own.start_ns
    )
SELECT
    attempt,
    rank,
    capture_id,
    calls.start_ns,
    calls.end_ns,
    greatest(calls.start_ns, exposed.start_ns) AS exposed_start_ns,
    group_id,
    op,
    if(is_usable, holder_rank, NULL) AS holder_rank,
    if(is_usable, holder_start_ns, NULL) AS holder_start_ns,
    error_ns,
    source_id,
    place
FROM calls
ASOF JOIN exposed ON exposed.key = calls.key AND exposed.start_ns < calls.end_ns
WHERE exposed.end_ns >= calls.end_ns
UNION ALL
SELECT
    attempt,
    rank,
    capture_id,
    start_ns,
    end_ns,
    start_ns,
    'pipeline',
    'hand-over',
    holder_rank,
    holder_start_ns,
    0,
    -1,
    number
FROM hand_overs;
