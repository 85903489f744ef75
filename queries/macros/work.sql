-- What ranks did, and when.

-- host_work: What ranks without any GPU operation did, seen from their host threads.
--
-- class is communication (with its op), compute or blocked.
--
-- communication: collectives on the host's timeline.
--
-- compute: operators (category 'operator'), less calls into the communication library and less what
-- is blocked.
--
-- blocked: a thread paused and a collective of the rank ended meanwhile: from the pause's start up
-- to the last such end. A pause is time in no innermost operator and in no tensor operator (aten::)
-- that makes no communication call. Only a collective's end can release a wait for one, so a pause
-- without such an end is the thread's own time. So is a pause in an operator that asks for no
-- communication, for as long as the median call of that name takes in which none ends. This finds
-- the waits inside autograd hooks and custom functions, which no trace names; a pause of another
-- cause that happens to span an end is counted too.
--
-- Worker threads of the communication library are left out: threads with a collective other than
-- send or receive (gloo shows those on the caller's thread) and no profiler step.
--
-- param: gpu_op_name TABLE(gpu_op) : Operations of GPUs: their ranks are not measured on the host.
-- param: host_op_name TABLE(host_op) : Operators of hosts.
-- reads: collective, annotation
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, class VARCHAR, op VARCHAR,
--     start_ns BIGINT, end_ns BIGINT
CREATE OR REPLACE MACRO host_work(gpu_op_name, host_op_name) AS TABLE
WITH
    gpu_ranks AS (
        SELECT DISTINCT attempt, rank FROM query_table(gpu_op_name)
    ),
    host_collectives AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            thread,
            op,
            coalesce(is_p2p, FALSE) OR coalesce(op IN ('send', 'recv'), FALSE) AS is_p2p,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM collective
        ANTI JOIN gpu_ranks USING (attempt, rank)
        WHERE timeline = 'host'
    ),
    step_threads AS (
        SELECT DISTINCT capture_key(attempt, rank, capture_id) AS key, thread
        FROM annotation
        WHERE domain = 'profiler_step'
    ),
    worker_threads AS (
        SELECT DISTINCT key, thread
        FROM host_collectives
        ANTI JOIN step_threads USING (key, thread)
        WHERE NOT is_p2p
    ),
    operators AS NOT MATERIALIZED (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            thread,
            regexp_matches(name, '^(c10d::|_?c10d_functional::|record_param_comms)')
                AS is_comm_call,
            starts_with(name, 'aten::') AS is_tensor_operator,
            name,
            start_ns,
            start_ns + dur_ns AS end_ns,
            source_id,
            place
        FROM query_table(host_op_name)
        ANTI JOIN gpu_ranks USING (attempt, rank)
        WHERE category = 'operator'
    ),
    -- A thread as one number, and a narrow one, since all operators are sorted by it.
    threads AS MATERIALIZED (
        SELECT
            seen.key AS rank_key,
            seen.thread,
            CAST(row_number() OVER () AS INTEGER) AS key
        FROM (SELECT DISTINCT key, thread FROM operators) AS seen
        ANTI JOIN worker_threads USING (key, thread)
    ),
    thread_operators AS NOT MATERIALIZED (
        SELECT threads.key, is_comm_call, start_ns, end_ns
        FROM operators
        INNER JOIN threads
            ON
                operators.key = threads.rank_key
                AND operators.thread IS NOT DISTINCT FROM threads.thread
    ),
    -- Only where a collective ends can a pause be a wait for one.
    nested_operators AS (
        SELECT
            threads.key,
            threads.rank_key,
            is_comm_call,
            is_tensor_operator,
            name,
            start_ns,
            end_ns,
            -- Operators nest, so the next one starts inside this one or after it.
            lead(start_ns) OVER following AS next_start_ns,
            min(start_ns) FILTER (WHERE is_comm_call) OVER (
                following ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
            ) AS next_comm_call_ns
        FROM operators
        INNER JOIN threads
            ON
                operators.key = threads.rank_key
                AND operators.thread IS NOT DISTINCT FROM threads.thread
        SEMI JOIN host_collectives ON host_collectives.key = threads.rank_key
        WINDOW following AS (
            PARTITION BY threads.key ORDER BY start_ns, end_ns DESC, source_id, place
        )
    ),
    -- The engine's own operators hold hooks, which wait for what others asked for.
    whole_calls AS (
        SELECT
            nested_operators.*,
            coalesce(host_collectives.end_ns > nested_operators.start_ns, FALSE) AS has_end
        FROM nested_operators
        ASOF LEFT JOIN host_collectives
            ON
                nested_operators.rank_key = host_collectives.key
                AND nested_operators.end_ns >= host_collectives.end_ns
        WHERE
            NOT is_comm_call
            AND NOT is_tensor_operator
            AND next_start_ns < nested_operators.end_ns
            AND coalesce(next_comm_call_ns >= nested_operators.end_ns, TRUE)
            AND NOT starts_with(name, 'autograd::engine::')
    ),
    usual_calls AS (
        SELECT rank_key, name, CAST(median(end_ns - start_ns) AS BIGINT) AS usual_ns
        FROM whole_calls
        WHERE NOT has_end
        GROUP BY ALL
    ),
    working AS (
        SELECT key, start_ns, end_ns
        FROM nested_operators
        WHERE
            NOT is_comm_call
            AND (
                coalesce(next_start_ns >= end_ns, TRUE)
                OR (is_tensor_operator AND coalesce(next_comm_call_ns >= end_ns, TRUE))
            )
        UNION ALL
        SELECT key, start_ns, least(end_ns, start_ns + usual_ns)
        FROM whole_calls
        INNER JOIN usual_calls USING (rank_key, name)
        WHERE has_end
    ),
    stops AS (
        SELECT key, start_ns, end_ns FROM merged_intervals('working')
        UNION ALL
        -- A thread's first operator may wait before anything else runs.
        SELECT key, min(start_ns), min(start_ns) FROM nested_operators GROUP BY key
    ),
    pauses AS (
        SELECT
            key,
            rank_key,
            end_ns AS start_ns,
            -- After its last operator a thread may wait until the end of the trace.
            coalesce(
                lead(start_ns) OVER (PARTITION BY key ORDER BY start_ns, end_ns),
                9223372036854775807
            ) AS end_ns
        FROM stops
        INNER JOIN threads USING (key)
    ),
    blocked AS (
        SELECT pauses.key, pauses.rank_key, pauses.start_ns, host_collectives.end_ns
        FROM pauses
        ASOF JOIN host_collectives
            ON pauses.rank_key = host_collectives.key AND pauses.end_ns >= host_collectives.end_ns
        WHERE host_collectives.end_ns > pauses.start_ns
    ),
    not_computing AS (
        SELECT key, start_ns, end_ns FROM blocked
        UNION ALL
        SELECT key, start_ns, end_ns FROM thread_operators WHERE is_comm_call
    ),
    work AS (
        SELECT key, 'communication' AS class, op, start_ns, end_ns FROM host_collectives
        UNION ALL
        SELECT rank_key, 'compute', NULL, start_ns, end_ns
        FROM difference_intervals('thread_operators', 'not_computing')
        INNER JOIN threads USING (key)
        UNION ALL
        SELECT rank_key, 'blocked', NULL, start_ns, end_ns FROM blocked
    )
SELECT
    attempt_of(key) AS attempt,
    rank_of(key) AS rank,
    capture_id_of(key) AS capture_id,
    class,
    op,
    start_ns,
    end_ns
FROM work;

-- rank_work: What every rank did, on its GPUs or, where it has none, on its host.
--
-- measured_on is gpu or host; class is compute, communication, memory, other, or, on the host only,
-- blocked. op is known for the host's communication; source_id and place name the gpu_op.
--
-- param: gpu_op_name TABLE(gpu_op) : Operations of GPUs.
-- param: host_op_name TABLE(host_op) : Operators of hosts.
-- reads: collective, annotation
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, measured_on VARCHAR, class VARCHAR,
--     op VARCHAR, start_ns BIGINT, end_ns BIGINT, launch_ns BIGINT, source_id INTEGER, place BIGINT
CREATE OR REPLACE MACRO rank_work(gpu_op_name, host_op_name) AS TABLE
SELECT
    attempt,
    rank,
    capture_id,
    'gpu' AS measured_on,
    class,
    CAST(NULL AS VARCHAR) AS op,
    start_ns,
    start_ns + dur_ns AS end_ns,
    launch_start_ns AS launch_ns,
    source_id,
    place
FROM query_table(gpu_op_name)
UNION ALL
SELECT
    attempt, rank, capture_id, 'host', class, op, start_ns, end_ns, start_ns, NULL, NULL
FROM host_work(gpu_op_name, host_op_name);

-- device_stretches: When each rank's device was busy, with what: disjoint stretches of each layer.
--
-- Layers are 1 computation, 2 communication, 3 other work (copies among it) and 0 any of it.
--
-- reads: gpu_op
-- columns: key BIGINT, layer BIGINT, start_ns BIGINT, end_ns BIGINT
CREATE OR REPLACE MACRO device_stretches() AS TABLE
WITH
    -- The layer is in the low bits of a capture's key, which are 0: what is sorted is narrow.
    device_work AS (
        SELECT
            capture_key(attempt, rank, capture_id)
            + CASE class WHEN 'compute' THEN 1 WHEN 'communication' THEN 2 ELSE 3 END AS key,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM gpu_op
    ),
    layer_stretches AS MATERIALIZED (
        SELECT key, start_ns, end_ns FROM merged_intervals('device_work')
    ),
    any_work AS (
        SELECT key & -16 AS key, start_ns, end_ns FROM layer_stretches
    )
SELECT key & -16 AS key, key & 15 AS layer, start_ns, end_ns
FROM layer_stretches
UNION ALL
SELECT key, 0, start_ns, end_ns
FROM merged_intervals('any_work');

-- rank_compute: When each rank computed: disjoint stretches; key is capture_key(...).
--
-- reads: gpu_op, host_op, collective, annotation
-- columns: key BIGINT, start_ns BIGINT, end_ns BIGINT
CREATE OR REPLACE MACRO rank_compute() AS TABLE
WITH
    host_compute AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            start_ns,
            end_ns
        FROM host_work('gpu_op', 'host_op')
        WHERE class = 'compute'
    )
SELECT key, start_ns, end_ns
FROM device_stretches()
WHERE layer = 1
UNION ALL
SELECT key, start_ns, end_ns
FROM merged_intervals('host_compute');

-- exposed_calls: When each rank was in a collective and computed nothing: disjoint stretches.
--
-- A send on the host's timeline lasts until somebody asks for it and holds up nobody. Of it counts
-- what a thread stood still for at its end, if the receiver asked only after that had begun.
--
-- reads: gpu_op, host_op, collective, annotation, collective_match
-- columns: key BIGINT, start_ns BIGINT, end_ns BIGINT
CREATE OR REPLACE MACRO exposed_calls() AS TABLE
WITH
    sends AS (
        SELECT
            capture_key(s.attempt, s.rank, s.capture_id) AS key,
            s.start_ns,
            s.start_ns + s.dur_ns AS end_ns,
            r.start_ns AS asked_ns
        FROM collective AS s
        JOIN collective_match AS m ON m.source_id = s.source_id AND m.place = s.place
        JOIN collective_match AS o
            ON o.instance_id = m.instance_id AND o.source_id <> m.source_id
        JOIN collective AS r
            ON
                r.source_id = o.source_id
                AND r.place = o.place
                AND r.attempt = s.attempt
                AND r.capture_id = s.capture_id
        WHERE
            s.op = 'send'
            AND s.timeline = 'host'
            AND s.rank IS NOT NULL
            AND r.op = 'recv'
            AND m.is_trusted
    ),
    stood AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            start_ns,
            end_ns
        FROM rank_work('gpu_op', 'host_op')
        WHERE class = 'blocked'
    ),
    all_calls AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM collective
        WHERE rank IS NOT NULL AND NOT (coalesce(op, '') = 'send' AND timeline = 'host')
        UNION ALL
        SELECT
            sends.key,
            greatest(stood.start_ns, sends.start_ns),
            least(stood.end_ns, sends.end_ns)
        FROM sends
        ASOF JOIN stood ON stood.key = sends.key AND sends.end_ns > stood.start_ns
        WHERE sends.asked_ns > stood.start_ns
    ),
    called AS MATERIALIZED (
        SELECT key, start_ns, end_ns FROM merged_intervals('all_calls')
    ),
    -- Most computation is beside no call: what reaches into one does into the last begun before.
    while_computing AS (
        SELECT computing.key, computing.start_ns, computing.end_ns
        FROM rank_compute() AS computing
        ASOF JOIN called
            ON called.key = computing.key AND called.start_ns < computing.end_ns
        WHERE called.end_ns > computing.start_ns
    )
SELECT key, start_ns, end_ns
FROM difference_intervals('called', 'while_computing');
