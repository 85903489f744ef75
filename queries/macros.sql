-- Macros that every query may use; loaded once a connection, before or after its tables exist.
--
-- Interval macros take the name of a table or CTE, as text, with the columns key (any type),
-- start_ns and end_ns. An interval holds its start and not its end; empty ones count for nothing.

-- A capture as one number, because numbers sort and join several times faster than structs:
-- attempt (15 bits), rank (28), capture_id (16), and four low bits free for a layer of the caller.
CREATE OR REPLACE MACRO capture_key(attempt, rank, capture_id) AS
    (CAST(attempt AS BIGINT) << 48)
    + (CAST(rank AS BIGINT) << 20)
    + (CAST(capture_id AS BIGINT) << 4);
CREATE OR REPLACE MACRO attempt_of(capture_key) AS CAST(capture_key >> 48 AS INTEGER);
CREATE OR REPLACE MACRO rank_of(capture_key) AS CAST((capture_key >> 20) & 268435455 AS INTEGER);
CREATE OR REPLACE MACRO capture_id_of(capture_key) AS CAST((capture_key >> 4) & 65535 AS INTEGER);

-- The union of intervals within each key: (key, start_ns, end_ns), disjoint, touching ones
-- joined. The only interval union in SQL; tracekit/intervals.py is the same in Python.
--
-- Sorted by start, a row opens a new stretch exactly if it starts after the latest end so far;
-- a stretch ends at the latest end seen before the next one opens.
CREATE OR REPLACE MACRO merged_intervals(rows_name) AS TABLE
WITH
    seen AS (
        SELECT
            key,
            start_ns,
            max(end_ns) OVER (
                PARTITION BY key ORDER BY start_ns, end_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS latest_end_ns,
            max(end_ns) OVER (PARTITION BY key) AS last_end_ns
        FROM query_table(rows_name)
        WHERE end_ns > start_ns
    )
SELECT
    key,
    start_ns,
    coalesce(
        lead(latest_end_ns) OVER (PARTITION BY key ORDER BY start_ns), last_end_ns
    ) AS end_ns
FROM seen
WHERE latest_end_ns IS NULL OR start_ns > latest_end_ns;

-- Time covered by at least one interval of each key: (key, busy_ns). Keys without time are absent.
CREATE OR REPLACE MACRO busy_time(rows_name) AS TABLE
SELECT key, CAST(sum(end_ns - start_ns) AS BIGINT) AS busy_ns
FROM merged_intervals(rows_name)
GROUP BY key;

-- What of the first set's union lies outside the second's: (key, start_ns, end_ns).
--
-- Both unions are disjoint within a key, so running totals over their edges are 0 or 1: inside or
-- outside.
CREATE OR REPLACE MACRO difference_intervals(whole_name, part_name) AS TABLE
WITH
    whole_stretches AS (SELECT key, start_ns, end_ns FROM merged_intervals(whole_name)),
    part_stretches AS (SELECT key, start_ns, end_ns FROM merged_intervals(part_name)),
    edges AS (
        SELECT key, start_ns AS time_ns, 1 AS whole_change, 0 AS part_change FROM whole_stretches
        UNION ALL
        SELECT key, end_ns, -1, 0 FROM whole_stretches
        UNION ALL
        SELECT key, start_ns, 0, 1 FROM part_stretches
        UNION ALL
        SELECT key, end_ns, 0, -1 FROM part_stretches
    ),
    pieces AS (
        SELECT
            key,
            time_ns AS start_ns,
            lead(time_ns) OVER edge AS end_ns,
            sum(whole_change) OVER edge AS in_whole,
            sum(part_change) OVER edge AS in_part
        FROM edges
        WINDOW edge AS (PARTITION BY key ORDER BY time_ns ROWS UNBOUNDED PRECEDING)
    )
SELECT key, start_ns, end_ns
FROM pieces
WHERE in_whole > 0 AND in_part = 0 AND end_ns > start_ns;

-- What ranks without any GPU operation did, seen from their host threads:
-- (attempt, rank, capture_id, class, op, start_ns, end_ns); class is communication (with its op),
-- compute or blocked. Tables are named by the caller: host_work('gpu_op', 'host_op', 'collective',
-- 'annotation').
--
-- communication  collectives on the host's timeline.
-- compute        operators (category 'operator'), less calls into the communication library and
--                less what is blocked.
-- blocked        a thread paused and a collective of the rank ended meanwhile: from the pause's
--                start up to the last such end. A pause is time in no innermost operator and in
--                no tensor operator (aten::) that makes no communication call. Only a
--                collective's end can release a wait for one, so a pause without such an end is
--                the thread's own time. This finds the waits inside autograd hooks and custom
--                functions, which no trace names; a pause of another cause that happens to span
--                an end is counted too.
--
-- Worker threads of the communication library are left out: threads with a collective other than
-- send or receive (gloo shows those on the caller's thread) and no profiler step.
CREATE OR REPLACE MACRO host_work(gpu_op_name, host_op_name, collective_name, annotation_name)
AS TABLE
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
        FROM query_table(collective_name)
        ANTI JOIN gpu_ranks USING (attempt, rank)
        WHERE timeline = 'host'
    ),
    step_threads AS (
        SELECT DISTINCT capture_key(attempt, rank, capture_id) AS key, thread
        FROM query_table(annotation_name)
        WHERE domain = 'profiler_step'
    ),
    worker_threads AS (
        SELECT DISTINCT key, thread
        FROM host_collectives
        ANTI JOIN step_threads USING (key, thread)
        WHERE NOT is_p2p
    ),
    operators AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            thread,
            regexp_matches(name, '^(c10d::|_?c10d_functional::|record_param_comms)')
                AS is_comm_call,
            starts_with(name, 'aten::') AS is_tensor_operator,
            start_ns,
            start_ns + dur_ns AS end_ns,
            source_id,
            place
        FROM query_table(host_op_name)
        ANTI JOIN gpu_ranks USING (attempt, rank)
        WHERE category = 'operator'
    ),
    thread_operators AS (
        SELECT
            {'rank': key, 'thread': thread} AS key,
            is_comm_call,
            is_tensor_operator,
            start_ns,
            end_ns,
            -- Operators nest, so the next one starts inside this one or after it.
            lead(start_ns) OVER following AS next_start_ns,
            min(start_ns) FILTER (WHERE is_comm_call) OVER (
                following ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
            ) AS next_comm_call_ns
        FROM operators
        ANTI JOIN worker_threads USING (key, thread)
        WINDOW following AS (
            PARTITION BY key, thread ORDER BY start_ns, end_ns DESC, source_id, place
        )
    ),
    working AS (
        SELECT key, start_ns, end_ns
        FROM thread_operators
        WHERE
            NOT is_comm_call
            AND (
                coalesce(next_start_ns >= end_ns, TRUE)
                OR (is_tensor_operator AND coalesce(next_comm_call_ns >= end_ns, TRUE))
            )
    ),
    stops AS (
        SELECT key, start_ns, end_ns FROM merged_intervals('working')
        UNION ALL
        -- A thread's first operator may wait before anything else runs.
        SELECT key, min(start_ns), min(start_ns) FROM thread_operators GROUP BY key
    ),
    pauses AS (
        SELECT
            key,
            key.rank AS rank_key,
            end_ns AS start_ns,
            -- After its last operator a thread may wait until the end of the trace.
            coalesce(
                lead(start_ns) OVER (PARTITION BY key ORDER BY start_ns, end_ns),
                9223372036854775807
            ) AS end_ns
        FROM stops
    ),
    blocked AS (
        SELECT pauses.key, pauses.start_ns, host_collectives.end_ns
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
        SELECT key.rank, 'compute', NULL, start_ns, end_ns
        FROM difference_intervals('thread_operators', 'not_computing')
        UNION ALL
        SELECT key.rank, 'blocked', NULL, start_ns, end_ns FROM blocked
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

-- What every rank did, on its GPUs or, where it has none, on its host:
-- (attempt, rank, capture_id, measured_on, class, op, start_ns, end_ns, launch_ns, source_id,
-- place). measured_on is gpu or host; class is compute, communication, memory, other, or, on the
-- host only, blocked. op is known for the host's communication; source_id and place name the
-- gpu_op.
CREATE OR REPLACE MACRO rank_work(gpu_op_name, host_op_name, collective_name, annotation_name)
AS TABLE
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
FROM host_work(gpu_op_name, host_op_name, collective_name, annotation_name);

-- When each rank computed: (key, start_ns, end_ns), disjoint; key is capture_key(...). Tables are
-- named by the caller, as in rank_work.
CREATE OR REPLACE MACRO rank_compute(gpu_op_name, host_op_name, collective_name, annotation_name)
AS TABLE
WITH
    compute_work AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            start_ns,
            end_ns
        FROM rank_work(gpu_op_name, host_op_name, collective_name, annotation_name)
        WHERE class = 'compute'
    )
SELECT key, start_ns, end_ns
FROM merged_intervals('compute_work');

-- When each rank was in a collective and computed nothing: (key, start_ns, end_ns), disjoint; a
-- send on the host's timeline lasts until somebody asks for it and holds up nobody.
CREATE OR REPLACE MACRO exposed_calls(
    gpu_op_name, host_op_name, collective_name, annotation_name
) AS TABLE
WITH
    all_calls AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM query_table(collective_name)
        WHERE rank IS NOT NULL AND NOT (coalesce(op, '') = 'send' AND timeline = 'host')
    ),
    while_computing AS MATERIALIZED (
        SELECT key, start_ns, end_ns
        FROM rank_compute(gpu_op_name, host_op_name, collective_name, annotation_name)
    )
SELECT key, start_ns, end_ns
FROM difference_intervals('all_calls', 'while_computing');

-- How much of each key's stretches lies before given moments: (key, time_ns, covered_ns), one row
-- for each distinct moment of moments_name, which has the columns key and time_ns. Stretches must
-- be disjoint within a key, as merged_intervals gives them.
--
-- Each stretch is booked to the first moment after its start. Of disjoint stretches that start
-- before a moment only the one that ends last can reach beyond it.
CREATE OR REPLACE MACRO covered_before(stretches_name, moments_name) AS TABLE
WITH
    moments AS (SELECT DISTINCT key, time_ns FROM query_table(moments_name)),
    booked AS (
        SELECT
            moments.key,
            moments.time_ns,
            sum(stretches.end_ns - stretches.start_ns) AS stretches_ns,
            max(stretches.end_ns) AS last_end_ns
        FROM query_table(stretches_name) AS stretches
        ASOF JOIN moments
            ON stretches.key = moments.key AND stretches.start_ns < moments.time_ns
        GROUP BY moments.key, moments.time_ns
    ),
    so_far AS (
        SELECT
            key,
            time_ns,
            sum(stretches_ns) OVER earlier AS stretches_ns,
            max(last_end_ns) OVER earlier AS last_end_ns
        FROM moments
        LEFT JOIN booked USING (key, time_ns)
        WINDOW earlier AS (PARTITION BY key ORDER BY time_ns ROWS UNBOUNDED PRECEDING)
    )
SELECT
    key,
    time_ns,
    CAST(
        coalesce(stretches_ns - greatest(last_end_ns - time_ns, 0), 0) AS BIGINT
    ) AS covered_ns
FROM so_far;
-- How long ranges of one domain (annotation.domain) held up each step of each rank, and how much
-- of that nothing hid: (attempt, rank, capture_id, step, stall_ns, exposed_ns, ranges_count,
-- longest_ns, source_id, place); the last two point to the longest range. Steps without such a
-- range are absent. Tables are named by the caller: host_stalls('annotation', 'step', 'gpu_op',
-- 'collective', domain, ...).
--
-- Only ranges on the thread that marks the steps count, where a source has one: other threads
-- work beside the training loop. Time that ranges of other_domains cover belongs to those.
--
-- A range is hidden while an operation of the rank's GPU runs, of whatever class (a collective
-- that waits for a peer is one), and while a collective runs on the host's timeline.
-- hiding_classes says which classes of GPU operation hide: those of the stall itself must not.
CREATE OR REPLACE MACRO host_stalls(
    annotation_name, step_name, gpu_op_name, collective_name,
    stall_domain, other_domains, hiding_classes
) AS TABLE
WITH
    step_threads AS (
        SELECT DISTINCT source_id, thread
        FROM query_table(annotation_name)
        WHERE domain = 'profiler_step' AND NOT coalesce(is_gpu_twin, FALSE)
    ),
    sources_with_steps AS (SELECT DISTINCT source_id FROM step_threads),
    loop_ranges AS (
        SELECT
            {'attempt': attempt, 'rank': rank, 'capture_id': capture_id} AS key,
            domain,
            source_id,
            place,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM query_table(annotation_name) AS ranges
        WHERE
            (domain = stall_domain OR list_contains(other_domains, domain))
            AND dur_ns > 0
            AND rank IS NOT NULL
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND (
                source_id NOT IN (SELECT source_id FROM sources_with_steps)
                OR EXISTS (
                    SELECT 1 FROM step_threads
                    WHERE step_threads.source_id = ranges.source_id
                        AND step_threads.thread = ranges.thread
                )
            )
    ),
    own_ranges AS (SELECT * FROM loop_ranges WHERE domain = stall_domain),
    other_ranges AS (SELECT key, start_ns, end_ns FROM loop_ranges WHERE domain <> stall_domain),
    stall_keys AS (SELECT DISTINCT key FROM own_ranges),
    stalled AS MATERIALIZED (
        SELECT key, start_ns, end_ns FROM difference_intervals('own_ranges', 'other_ranges')
    ),
    hiding AS (
        SELECT key, start_ns, start_ns + dur_ns AS end_ns
        FROM query_table(gpu_op_name)
        JOIN stall_keys
            ON key.attempt = attempt AND key.rank = rank AND key.capture_id = capture_id
        WHERE list_contains(hiding_classes, class)
        UNION ALL
        SELECT key, start_ns, start_ns + dur_ns
        FROM query_table(collective_name)
        JOIN stall_keys
            ON key.attempt = attempt AND key.rank = rank AND key.capture_id = capture_id
        WHERE timeline = 'host'
    ),
    pieces AS (
        SELECT key, start_ns, end_ns, FALSE AS is_exposed FROM stalled
        UNION ALL
        SELECT key, start_ns, end_ns, TRUE FROM difference_intervals('stalled', 'hiding')
    ),
    step_keys AS (
        SELECT
            {'attempt': attempt, 'rank': rank, 'capture_id': capture_id} AS key,
            step,
            start_ns,
            end_ns
        FROM query_table(step_name)
    ),
    step_times AS (
        SELECT
            key,
            step,
            sum(least(pieces.end_ns, step_keys.end_ns) - greatest(pieces.start_ns, step_keys.start_ns))
                FILTER (NOT is_exposed) AS stall_ns,
            sum(least(pieces.end_ns, step_keys.end_ns) - greatest(pieces.start_ns, step_keys.start_ns))
                FILTER (is_exposed) AS exposed_ns
        FROM pieces
        JOIN step_keys USING (key)
        WHERE pieces.start_ns < step_keys.end_ns AND pieces.end_ns > step_keys.start_ns
        GROUP BY key, step
    ),
    step_ranges AS (
        SELECT
            key,
            step,
            count(*) AS ranges_count,
            max(own_ranges.end_ns - own_ranges.start_ns) AS longest_ns,
            arg_min(
                {'source_id': source_id, 'place': place},
                {
                    'shortness_ns': own_ranges.start_ns - own_ranges.end_ns,
                    'source_id': source_id,
                    'place': place
                }
            ) AS longest
        FROM own_ranges
        JOIN step_keys USING (key)
        WHERE own_ranges.start_ns < step_keys.end_ns AND own_ranges.end_ns > step_keys.start_ns
        GROUP BY key, step
    )
SELECT
    key.attempt AS attempt,
    key.rank AS rank,
    key.capture_id AS capture_id,
    step,
    CAST(stall_ns AS BIGINT) AS stall_ns,
    CAST(coalesce(exposed_ns, 0) AS BIGINT) AS exposed_ns,
    ranges_count,
    longest_ns,
    longest.source_id AS source_id,
    longest.place AS place
FROM step_times
JOIN step_ranges USING (key, step);

-- Communicators as their members logged them, with what makes members of several processes one.
--
-- comm is the commId that NCCL states (2.16 and later). Before that nothing names a communicator
-- across processes: members of the same size that each process created as its k-th of that size
-- are taken for one, within files that lie beside each other.
CREATE OR REPLACE MACRO nccl_members(nccl_comm_name) AS TABLE
WITH
    numbered AS (
        SELECT
            *,
            row_number() OVER (
                PARTITION BY attempt, source_id, node, pid, group_rank, group_size, comm_hash
                ORDER BY ordinal, place
            ) AS number
        FROM query_table(nccl_comm_name)
        WHERE group_size IS NOT NULL
    ),
    seen AS (
        SELECT
            attempt, source_id, group_size, number, count(DISTINCT group_rank) AS ranks_count
        FROM numbered
        WHERE comm_hash IS NULL
        GROUP BY attempt, source_id, group_size, number
    )
SELECT
    numbered.*,
    coalesce(
        comm_hash,
        'size ' || CAST(numbered.group_size AS VARCHAR)
        || ' number ' || CAST(numbered.number AS VARCHAR)
        -- A file with all its ranks is a job of its own: another file's are not its members.
        || CASE
            WHEN seen.ranks_count = numbered.group_size
                THEN ' of file ' || CAST(numbered.source_id AS VARCHAR)
            ELSE ''
        END
    ) AS comm
FROM numbered
LEFT JOIN seen
    ON
        numbered.comm_hash IS NULL
        AND seen.source_id = numbered.source_id
        AND seen.attempt IS NOT DISTINCT FROM numbered.attempt
        AND seen.group_size = numbered.group_size
        AND seen.number = numbered.number;

-- Members with their rank in the job, where it is proved: stated by the log, or the process that a
-- trace also shows (its host and process id) drives no other member.
CREATE OR REPLACE MACRO nccl_ranked(nccl_comm_name, rank_name) AS TABLE
WITH
    members AS (SELECT * FROM nccl_members(nccl_comm_name)),
    alone AS (
        SELECT attempt, source_id, node, pid, comm
        FROM members
        GROUP BY attempt, source_id, node, pid, comm
        HAVING count(DISTINCT group_rank) = 1
    ),
    processes AS (
        SELECT split_part(host, '.', 1) AS node, pid, min(rank) AS rank
        FROM query_table(rank_name)
        WHERE host IS NOT NULL AND pid IS NOT NULL
        GROUP BY split_part(host, '.', 1), pid
        HAVING count(DISTINCT rank) = 1
    )
SELECT
    members.* REPLACE (
        coalesce(members.world_rank, if(alone.pid IS NOT NULL, processes.rank, NULL)) AS world_rank
    )
FROM members
LEFT JOIN alone
    ON
        alone.source_id = members.source_id
        AND alone.pid = members.pid
        AND alone.node = members.node
        AND alone.comm = members.comm
        AND alone.attempt IS NOT DISTINCT FROM members.attempt
LEFT JOIN processes ON processes.node = members.node AND processes.pid = members.pid;

-- Communicators that are groups of the traces: (group_id, kind, ranks, comm). By the identifier
-- that both state, or by the same ranks, all of them known.
CREATE OR REPLACE MACRO nccl_group_comms(
    nccl_comm_name, rank_name, process_group_name, comm_group_name
) AS TABLE
WITH
    members AS (SELECT * FROM nccl_ranked(nccl_comm_name, rank_name)),
    comms AS (
        SELECT
            comm,
            max(group_size) AS group_size,
            list_sort(list_distinct(list(world_rank))) AS ranks
        FROM members
        GROUP BY comm
    ),
    known AS (
        SELECT DISTINCT group_id, kind, list_sort(ranks) AS ranks
        FROM query_table(comm_group_name)
    ),
    named AS (
        SELECT DISTINCT group_id, kind, lower(comm_hash) AS comm_hash, list_sort(ranks) AS ranks
        FROM query_table(process_group_name)
        WHERE comm_hash IS NOT NULL
    )
SELECT
    named.group_id AS group_id,
    coalesce(max(known.kind), max(named.kind)) AS kind,
    max(named.ranks) AS ranks,
    comms.comm AS comm
FROM named
JOIN comms ON lower(comms.comm) = named.comm_hash
LEFT JOIN known ON known.group_id = named.group_id
GROUP BY named.group_id, comms.comm
UNION
SELECT known.group_id, known.kind, known.ranks, comms.comm
FROM known
JOIN comms ON comms.ranks = known.ranks AND len(comms.ranks) = comms.group_size
WHERE NOT EXISTS (
    SELECT 1 FROM named WHERE named.comm_hash = lower(comms.comm)
);

-- Connections with the communicator that they belong to and the nodes of both ends.
CREATE OR REPLACE MACRO nccl_connections(nccl_edge_name, nccl_comm_name) AS TABLE
WITH
    members AS MATERIALIZED (SELECT * FROM nccl_members(nccl_comm_name)),
    places AS (
        SELECT comm, group_rank, min(node) AS node, min(pci) AS pci
        FROM members
        GROUP BY comm, group_rank
    )
SELECT
    edges.*,
    members.comm AS comm,
    starts.node AS from_node,
    ends.node AS to_node,
    starts.pci AS from_pci,
    ends.pci AS to_pci,
    members.nodes_count AS nodes_count
FROM query_table(nccl_edge_name) AS edges
LEFT JOIN members
    ON
        members.source_id = edges.source_id
        AND members.pid = edges.pid
        AND members.node IS NOT DISTINCT FROM edges.node
        AND members.comm_pointer = edges.comm_pointer
        AND members.comm_generation = edges.comm_generation
LEFT JOIN places AS starts
    ON starts.comm = members.comm AND starts.group_rank = edges.from_group_rank
LEFT JOIN places AS ends
    ON ends.comm = members.comm AND ends.group_rank = edges.to_group_rank;
-- How far each clock may be off against the reference: (clock_id, error_ns); -1 where it was not
-- compared in every capture. Clocks without a row were never in doubt.
CREATE OR REPLACE MACRO clock_errors(offset_name) AS TABLE
SELECT clock_id, if(count(error_ns) = count(*), max(error_ns), -1) AS error_ns
FROM query_table(offset_name)
GROUP BY clock_id;

-- How far two clocks may be apart: by their own pair where that is known, else both errors against
-- the reference; -1 where they were never compared.
CREATE OR REPLACE MACRO clocks_apart(clock_id, other_clock_id, pair_error_ns, error_ns, other_ns) AS
CASE
    WHEN clock_id IS NOT DISTINCT FROM other_clock_id THEN 0
    WHEN pair_error_ns IS NOT NULL THEN pair_error_ns
    WHEN least(coalesce(error_ns, 0), coalesce(other_ns, 0)) < 0 THEN -1
    ELSE coalesce(error_ns, 0) + coalesce(other_ns, 0)
END;

-- Every matched call with whom it waited for and how long: (attempt, capture_id, group_id,
-- sequence, instance_id, rank, clock_id, source_id, place, op, message_bytes, timeline, step,
-- start_ns, end_ns, is_trusted, is_complete, ranks_count, members_count, holder_rank,
-- holder_start_ns, wait_ns, error_ns). Tables are named by the caller: collective_calls('collective',
-- 'collective_match', 'comm_group', 'clock_offset', 'clock_pair').
--
-- Who can hold up whom follows from the operation: all-reduce, all-gather, reduce-scatter, barrier
-- and all-to-all: everyone everyone; broadcast and scatter: the root the leaves; reduce and gather:
-- the leaves the root; send and receive: the sender the receiver, and on a device (where a send
-- runs until it is received) the receiver the sender. A call waits until the one that holds it up
-- has entered, and never beyond its own end.
--
-- is_complete: every member of the communicator has a call in a trace; else the one that arrived
-- last may be missing and nobody is named. error_ns is what the call's clock and that of the rank
-- that it waited for may be apart beyond what was corrected; for calls that waited for nobody the
-- largest of the instance; null in all of an instance where clocks were never compared.
CREATE OR REPLACE MACRO collective_calls(
    collective_name, match_name, group_name, offset_name, pair_name
) AS TABLE
WITH
    clock_errors AS (FROM clock_errors(offset_name)),
    calls AS (
        SELECT
            c.attempt,
            c.capture_id,
            m.group_id,
            m.call_index AS sequence,
            m.instance_id,
            c.rank,
            c.source_id,
            c.place,
            coalesce(c.op, 'unknown') AS op,
            c.root,
            c.message_bytes,
            c.timeline,
            c.step,
            c.start_ns,
            c.start_ns + c.dur_ns AS end_ns,
            coalesce(m.is_trusted, FALSE) AS is_trusted,
            g.members_count,
            c.clock_id
        FROM query_table(collective_name) AS c
        JOIN query_table(match_name) AS m USING (source_id, place)
        LEFT JOIN query_table(group_name) AS g
            ON g.attempt = c.attempt AND g.group_id = m.group_id
        WHERE m.instance_id IS NOT NULL AND c.rank IS NOT NULL
    ),
    ordered AS (
        SELECT
            *,
            row_number() OVER (
                PARTITION BY attempt, capture_id, instance_id ORDER BY start_ns DESC, rank
            ) AS lateness
        FROM calls
    ),
    -- Once an instance, not once a call: its members may be hundreds.
    instances AS (
        SELECT
            attempt,
            capture_id,
            instance_id,
            count(*) AS ranks_count,
            max(rank) FILTER (lateness = 1) AS last_rank,
            max(start_ns) AS last_start_ns,
            max(clock_id) FILTER (lateness = 1) AS last_clock_id,
            max(rank) FILTER (lateness = 2) AS second_rank,
            max(start_ns) FILTER (lateness = 2) AS second_start_ns,
            max(clock_id) FILTER (lateness = 2) AS second_clock_id,
            max(start_ns) FILTER (rank = root) AS root_start_ns,
            max(clock_id) FILTER (rank = root) AS root_clock_id,
            max(start_ns) FILTER (rank <> root) AS leaf_start_ns,
            arg_min(rank, lateness) FILTER (rank <> root) AS leaf_rank,
            arg_min(clock_id, lateness) FILTER (rank <> root) AS leaf_clock_id,
            max(start_ns) FILTER (op = 'send') AS send_start_ns,
            max(rank) FILTER (op = 'send') AS send_rank,
            max(clock_id) FILTER (op = 'send') AS send_clock_id
        FROM ordered
        GROUP BY attempt, capture_id, instance_id
    ),
    entered AS (
        SELECT
            ordered.*,
            instances.* EXCLUDE (attempt, capture_id, instance_id),
            -- Who holds this call up: the root, the last of the leaves, the sender, the last of
            -- all, or the last of the others.
            CASE
                WHEN op IN ('broadcast', 'scatter') THEN if(rank <> root, 'root', NULL)
                WHEN op IN ('reduce', 'gather') THEN if(rank = root, 'leaf', NULL)
                WHEN op = 'recv' THEN 'sender'
                WHEN op = 'send' AND timeline <> 'device' THEN NULL
                WHEN op = 'send' AND last_rank = rank THEN 'second'
                ELSE 'last'
            END AS holder
        FROM ordered
        JOIN instances USING (attempt, capture_id, instance_id)
    ),
    held AS (
        SELECT
            *,
            CASE holder
                WHEN 'root' THEN root
                WHEN 'leaf' THEN leaf_rank
                WHEN 'sender' THEN send_rank
                WHEN 'second' THEN second_rank
                WHEN 'last' THEN last_rank
            END AS holder_rank,
            CASE holder
                WHEN 'root' THEN root_start_ns
                WHEN 'leaf' THEN leaf_start_ns
                WHEN 'sender' THEN send_start_ns
                WHEN 'second' THEN second_start_ns
                WHEN 'last' THEN last_start_ns
            END AS holder_start_ns,
            CASE holder
                WHEN 'root' THEN root_clock_id
                WHEN 'leaf' THEN leaf_clock_id
                WHEN 'sender' THEN send_clock_id
                WHEN 'second' THEN second_clock_id
                WHEN 'last' THEN last_clock_id
            END AS holder_clock_id
        FROM entered
    ),
    -- Two calls that neither holds up, as two leaves of a broadcast, are not compared.
    compared AS (
        SELECT
            held.*,
            if(
                holder_clock_id IS NULL,
                0,
                clocks_apart(held.clock_id, holder_clock_id, p.error_ns, e.error_ns, h.error_ns)
            ) AS apart_ns
        FROM held
        LEFT JOIN query_table(pair_name) AS p
            ON
                p.attempt = held.attempt
                AND p.capture_id = held.capture_id
                AND p.clock_id = least(held.clock_id, holder_clock_id)
                AND p.other_clock_id = greatest(held.clock_id, holder_clock_id)
        LEFT JOIN clock_errors AS e ON e.clock_id = held.clock_id
        LEFT JOIN clock_errors AS h ON h.clock_id = holder_clock_id
    )
SELECT
    attempt,
    capture_id,
    group_id,
    sequence,
    instance_id,
    rank,
    clock_id,
    source_id,
    place,
    op,
    message_bytes,
    timeline,
    step,
    start_ns,
    end_ns,
    is_trusted,
    coalesce(ranks_count >= members_count, FALSE) AS is_complete,
    ranks_count,
    members_count,
    holder_rank,
    holder_start_ns,
    -- least() would pass over a null: nobody holds up that call.
    if(
        holder_start_ns IS NULL, 0, greatest(0, least(holder_start_ns, end_ns) - start_ns)
    ) AS wait_ns,
    CASE
        WHEN min(apart_ns) OVER instance < 0 THEN NULL
        WHEN holder_rank <> rank THEN apart_ns
        ELSE max(apart_ns) OVER instance
    END AS error_ns
FROM compared
WINDOW instance AS (PARTITION BY attempt, capture_id, instance_id);

-- Who waited for whom, and why: one row a waiting call of a trusted, complete instance:
-- (attempt, capture_id, group_id, instance_id, step, op, rank, holder_rank, start_ns,
-- holder_start_ns, wait_ns, own_ns, exposed_ns, gap_ns, is_second, source_id, place); the last two
-- point to the waiting call. Tables are named by the caller.
--
-- own_ns is the part of the waiting that the holder caused since the two last left a collective of
-- this communicator together: its own time since then less the waiter's. Own time is time without
-- exposed communication, so what the holder lost by leaving that collective late, or by waiting for
-- others meanwhile (a receive from a late rank), is inherited and not counted. Nothing is counted
-- before the first common exit, nor waiting below the clocks' error.
--
-- A waiter that runs ahead has its next calls in a queue: each starts as soon as the one before
-- ends, and the time between says nothing of its work, which it did long before. What the holder
-- caused must then also be there since the exit at which that queue began, or a rank that some
-- other communicator held up would be blamed for work that all ranks do.
--
-- exposed_ns is the part of own_ns in which the waiter computed nothing and was not yet waiting for
-- the same rank in an earlier call. is_second marks the waiter that entered last before the holder:
-- without the holder's delay the operation would have begun then. gap_ns is that waiter's exposed_ns
-- with each moment counted once over all communicators of the holder: what the job loses.
CREATE OR REPLACE MACRO inflicted_waits(
    gpu_op_name, host_op_name, collective_name, annotation_name, match_name, group_name,
    offset_name, pair_name
) AS TABLE
WITH
    calls AS MATERIALIZED (
        SELECT
            * REPLACE (if(op = 'send' AND timeline = 'host', start_ns, end_ns) AS end_ns),
            capture_key(attempt, rank, capture_id) AS key
        FROM collective_calls(collective_name, match_name, group_name, offset_name, pair_name)
    ),
    usable AS (SELECT * FROM calls WHERE is_trusted AND is_complete AND error_ns IS NOT NULL),
    followed AS (
        SELECT
            *,
            -- It stood in a queue: it began when the one before had ended, and within a tenth of its
            -- own duration. One that begins while another runs waits for nobody in its own rank.
            start_ns - lag(end_ns) OVER ordered BETWEEN 0 AND (end_ns - start_ns) / 10 AS is_queued
        FROM usable
        WINDOW ordered AS (PARTITION BY key, group_id ORDER BY start_ns, instance_id)
    ),
    queues AS (
        SELECT
            * EXCLUDE (is_queued),
            max(if(is_queued, NULL, start_ns)) OVER (
                PARTITION BY key, group_id ORDER BY start_ns, instance_id
                ROWS UNBOUNDED PRECEDING
            ) AS queue_start_ns
        FROM followed
    ),
    waiting AS MATERIALIZED (
        SELECT
            *,
            row_number() OVER (
                PARTITION BY attempt, capture_id, instance_id ORDER BY start_ns DESC, rank
            ) = 1 AS is_second
        FROM queues
        WHERE wait_ns > error_ns AND holder_rank <> rank
    ),
    compute AS MATERIALIZED (
        SELECT key, start_ns, end_ns
        FROM rank_compute(gpu_op_name, host_op_name, collective_name, annotation_name)
    ),
    exposed AS MATERIALIZED (
        SELECT key, start_ns, end_ns
        FROM exposed_calls(gpu_op_name, host_op_name, collective_name, annotation_name)
    ),
    exits AS (
        SELECT key, group_id, instance_id, end_ns FROM usable
    ),
    since AS MATERIALIZED (
        SELECT
            ahead.*,
            exits.end_ns AS exit_ns,
            capture_key(ahead.attempt, holder_rank, ahead.capture_id) AS holder_key,
            exits.instance_id AS exit_instance,
            -- No queue is older than the first common exit.
            coalesce(began.end_ns, exits.end_ns) AS queue_exit_ns,
            coalesce(began.instance_id, exits.instance_id) AS queue_instance
        FROM waiting AS ahead
        ASOF JOIN exits
            ON ahead.key = exits.key
            AND ahead.group_id = exits.group_id
            AND ahead.start_ns >= exits.end_ns
        ASOF LEFT JOIN exits AS began
            ON ahead.key = began.key
            AND ahead.group_id = began.group_id
            AND ahead.queue_start_ns >= began.end_ns
    ),
    shared AS MATERIALIZED (
        SELECT
            since.*,
            left_by.end_ns AS holder_exit_ns,
            began_at.end_ns AS holder_queue_exit_ns
        FROM since
        JOIN usable AS left_by
            ON left_by.attempt = since.attempt
            AND left_by.capture_id = since.capture_id
            AND left_by.instance_id = since.exit_instance
            AND left_by.rank = since.holder_rank
        JOIN usable AS began_at
            ON began_at.attempt = since.attempt
            AND began_at.capture_id = since.capture_id
            AND began_at.instance_id = since.queue_instance
            AND began_at.rank = since.holder_rank
    ),
    moments AS (
        SELECT key, start_ns AS time_ns FROM shared
        UNION
        SELECT key, exit_ns FROM shared
        UNION
        SELECT key, queue_exit_ns FROM shared
        UNION
        SELECT holder_key, holder_start_ns FROM shared
        UNION
        SELECT holder_key, holder_exit_ns FROM shared
        UNION
        SELECT holder_key, holder_queue_exit_ns FROM shared
    ),
    lost AS MATERIALIZED (
        SELECT key, time_ns, covered_ns FROM covered_before('exposed', 'moments')
    ),
    owned AS (
        SELECT
            shared.*,
            greatest(
                0,
                least(
                    wait_ns,
                    (holder_start_ns - holder_exit_ns - h1.covered_ns + h0.covered_ns)
                    - (start_ns - exit_ns - s1.covered_ns + s0.covered_ns),
                    (holder_start_ns - holder_queue_exit_ns - h1.covered_ns + hq.covered_ns)
                    - (start_ns - queue_exit_ns - s1.covered_ns + sq.covered_ns)
                )
            ) AS own_ns
        -- Each row has exactly one partner. Outer joins, because the optimiser puts inner ones in an
        -- order of its own and may join lost with itself by key alone.
        FROM shared
        LEFT JOIN lost AS s1 ON s1.key = shared.key AND s1.time_ns = shared.start_ns
        LEFT JOIN lost AS s0 ON s0.key = shared.key AND s0.time_ns = shared.exit_ns
        LEFT JOIN lost AS h1 ON h1.key = shared.holder_key AND h1.time_ns = shared.holder_start_ns
        LEFT JOIN lost AS h0 ON h0.key = shared.holder_key AND h0.time_ns = shared.holder_exit_ns
        LEFT JOIN lost AS sq ON sq.key = shared.key AND sq.time_ns = shared.queue_exit_ns
        LEFT JOIN lost AS hq
            ON hq.key = shared.holder_key AND hq.time_ns = shared.holder_queue_exit_ns
    ),
    -- Several calls may wait for one rank at the same time: each moment counts for the first.
    pieces AS MATERIALIZED (
        SELECT
            *,
            least(
                greatest(
                    start_ns + wait_ns - own_ns,
                    coalesce(
                        max(start_ns + wait_ns) OVER (
                            PARTITION BY key, holder_rank ORDER BY start_ns + wait_ns, instance_id
                            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                        ),
                        start_ns
                    )
                ),
                start_ns + wait_ns
            ) AS piece_start_ns,
            least(
                greatest(
                    start_ns + wait_ns - own_ns,
                    coalesce(
                        max(start_ns + wait_ns) FILTER (is_second) OVER (
                            PARTITION BY holder_key ORDER BY start_ns + wait_ns, instance_id, rank
                            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                        ),
                        start_ns
                    )
                ),
                start_ns + wait_ns
            ) AS gap_start_ns,
            start_ns + wait_ns AS piece_end_ns
        FROM owned
    ),
    edges AS (
        SELECT key, piece_start_ns AS time_ns FROM pieces
        UNION
        SELECT key, gap_start_ns FROM pieces
        UNION
        SELECT key, piece_end_ns FROM pieces
    ),
    computed AS MATERIALIZED (
        SELECT key, time_ns, covered_ns FROM covered_before('compute', 'edges')
    )
SELECT
    pieces.attempt,
    pieces.capture_id,
    pieces.group_id,
    pieces.instance_id,
    pieces.step,
    pieces.op,
    pieces.rank,
    pieces.holder_rank,
    pieces.start_ns,
    pieces.holder_start_ns,
    pieces.wait_ns,
    CAST(pieces.own_ns AS BIGINT) AS own_ns,
    CAST(
        piece_end_ns - piece_start_ns - at_end.covered_ns + at_start.covered_ns AS BIGINT
    ) AS exposed_ns,
    CAST(
        if(
            pieces.is_second,
            piece_end_ns - gap_start_ns - at_end.covered_ns + at_gap.covered_ns,
            0
        ) AS BIGINT
    ) AS gap_ns,
    pieces.is_second,
    pieces.source_id,
    pieces.place
FROM pieces
LEFT JOIN computed AS at_start
    ON at_start.key = pieces.key AND at_start.time_ns = pieces.piece_start_ns
LEFT JOIN computed AS at_gap ON at_gap.key = pieces.key AND at_gap.time_ns = pieces.gap_start_ns
LEFT JOIN computed AS at_end ON at_end.key = pieces.key AND at_end.time_ns = pieces.piece_end_ns;

-- What each cumulative counter grew by since its last reading: (key, source_id, place, time_ns,
-- last_time_ns, counted, delta_count, event). ``rows_name`` has key (any type), source_id, place,
-- time_ns (null where unknown: those rows come first, in the order of their files), counted, and
-- limit_count: where the counter stops counting, null if it does not.
--
-- A counter that falls has wrapped at 32 bits if it was in the last tenth, is now in the first and
-- was never above; else it was reset, and the delta is null: never zero, never a spike. A counter
-- at its limit is full: null too. A second reading of one moment is dropped.
-- ingest/counters.py has the same in Python; tests compare them.
CREATE OR REPLACE MACRO counter_deltas(rows_name) AS TABLE
WITH
    readings AS (
        SELECT
            key,
            source_id,
            place,
            time_ns,
            counted,
            limit_count,
            lag(time_ns) OVER series AS last_time_ns,
            lag(counted) OVER series AS last_counted,
            max(counted) OVER (PARTITION BY key) AS max_counted
        FROM (
            FROM query_table(rows_name)
            WHERE counted IS NOT NULL
            QUALIFY
                time_ns IS NULL
                OR row_number() OVER (PARTITION BY key, time_ns ORDER BY source_id, place) = 1
        )
        WINDOW series AS (PARTITION BY key ORDER BY time_ns NULLS FIRST, source_id, place)
    ),
    judged AS (
        SELECT
            *,
            CASE
                WHEN last_counted IS NULL THEN NULL
                WHEN counted >= limit_count THEN 'saturated'
                WHEN counted >= last_counted THEN NULL
                WHEN
                    max_counted < 4294967296
                    AND last_counted > 3865470566
                    AND counted < 429496730
                THEN 'wrap'
                ELSE 'reset'
            END AS event
        FROM readings
    )
SELECT
    key,
    source_id,
    place,
    time_ns,
    last_time_ns,
    counted,
    CASE
        WHEN event = 'wrap' THEN counted + 4294967296 - last_counted
        WHEN event IS NULL THEN counted - last_counted
    END AS delta_count,
    event
FROM judged;

-- A host's name as derive writes it: short and lower case; an address stays whole.
CREATE OR REPLACE MACRO host_name(name) AS
    if(
        regexp_full_match(name, '[0-9.]+|.*:.*'),
        lower(trim(name)),
        split_part(rtrim(lower(trim(name)), '.'), '.', 1)
    );

-- GPU samples while the job ran: (attempt, node, owner, owner_id, device_id, nvml_index, counter,
-- kind, unit, source_id, place, time_ns, value, counted); what names the GPU is as the samples have
-- it, owner is the host of a sample that names none, owner_id its file where nobody knows a host. The job's window is widened by slack_ns on both sides: a
-- collector that looks every 30 s may have looked just before and just after. Only samples on a
-- clock since the epoch stand beside the job; without traces all samples count. What is part of a
-- GPU (a MIG instance, one NVLink) is not the GPU and is left out.
CREATE OR REPLACE MACRO gpu_readings_raw(
    gpu_sample_name, run_name, clock_name, slack_ns
) AS TABLE
WITH
    windows AS (
        SELECT attempt, start_ns - slack_ns AS start_ns, end_ns + slack_ns AS end_ns
        FROM query_table(run_name)
        UNION ALL
        SELECT CAST(NULL AS INTEGER), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT)
        WHERE NOT EXISTS (SELECT 1 FROM query_table(run_name))
    )
SELECT
    windows.attempt,
    samples.node,
    if(samples.node IS NULL, samples.host, NULL) AS owner,
    if(samples.node IS NULL AND samples.host IS NULL, samples.source_id, NULL) AS owner_id,
    samples.device_id,
    samples.nvml_index,
    samples.counter,
    samples.kind,
    samples.unit,
    samples.source_id,
    samples.place,
    samples.time_ns,
    samples.value,
    samples.counted
FROM query_table(gpu_sample_name) AS samples
LEFT JOIN query_table(clock_name) AS clock USING (clock_id)
JOIN windows
    ON windows.start_ns IS NULL
    OR (
        clock.basis = 'epoch'
        AND samples.time_ns BETWEEN windows.start_ns AND windows.end_ns
    )
WHERE samples.device_id IS NULL OR NOT contains(samples.device_id, '/');

-- The same with their GPU: (attempt, gpu_id, host, counter, kind, unit, source_id, place, time_ns,
-- value, counted). Who groups all samples of a day groups the raw ones and names the groups.
CREATE OR REPLACE MACRO gpu_readings(
    gpu_sample_name, gpu_name, run_name, clock_name, slack_ns
) AS TABLE
SELECT
    placed.attempt,
    gpu.gpu_id,
    gpu.host,
    placed.counter,
    placed.kind,
    placed.unit,
    placed.source_id,
    placed.place,
    placed.time_ns,
    placed.value,
    placed.counted
FROM gpu_readings_raw(gpu_sample_name, run_name, clock_name, slack_ns) AS placed
JOIN query_table(gpu_name) AS gpu
    ON gpu.attempt IS NOT DISTINCT FROM placed.attempt
    AND gpu.node IS NOT DISTINCT FROM placed.node
    AND if(gpu.node IS NULL, gpu.host, NULL) IS NOT DISTINCT FROM placed.owner
    AND gpu.own_source_id IS NOT DISTINCT FROM placed.owner_id
    AND gpu.device_id IS NOT DISTINCT FROM placed.device_id
    AND gpu.nvml_index IS NOT DISTINCT FROM placed.nvml_index;
