-- Matched calls: who waited for whom, and why.

-- collective_calls: Every matched call with whom it waited for and how long.
--
-- Who can hold up whom follows from the operation: all-reduce, all-gather, reduce-scatter, barrier
-- and all-to-all: everyone everyone; broadcast and scatter: the root the leaves; reduce and gather:
-- the leaves the root; send and receive: the sender the receiver, and on a device (where a send
-- runs until it is received) the receiver the sender. On the host a root may be held up by its
-- leaves too (gloo sends to who is there): one that leaves only after the last has entered was; so
-- was any member where the root is not known. A call waits until the one that holds it up has
-- entered, and never beyond its own end.
--
-- is_complete: every member of the communicator has a call in a trace; else the one that arrived
-- last may be missing and nobody is named. error_ns is what the call's clock and that of the rank
-- that it waited for may be apart beyond what was corrected; for calls that waited for nobody the
-- largest of the instance; null in all of an instance where clocks were never compared.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair
-- columns: attempt INTEGER, capture_id INTEGER, group_id VARCHAR, sequence BIGINT,
--     instance_id BIGINT, rank INTEGER, clock_id INTEGER, source_id INTEGER, place BIGINT,
--     op VARCHAR, message_bytes BIGINT, timeline VARCHAR, step BIGINT, start_ns BIGINT,
--     end_ns BIGINT, is_trusted BOOLEAN, is_complete BOOLEAN, ranks_count BIGINT,
--     members_count INTEGER, holder_rank INTEGER, holder_start_ns BIGINT, wait_ns BIGINT,
--     error_ns BIGINT
CREATE OR REPLACE MACRO collective_calls() AS TABLE
WITH
    clock_errors AS (FROM clock_errors()),
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
        FROM collective AS c
        JOIN collective_match AS m USING (source_id, place)
        LEFT JOIN comm_group AS g
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
                WHEN op IN ('broadcast', 'scatter', 'reduce', 'gather') AND root IS NULL
                    THEN if(timeline = 'host' AND end_ns >= last_start_ns, 'last', NULL)
                WHEN op IN ('broadcast', 'scatter') AND rank = root
                    THEN if(timeline = 'host' AND end_ns >= leaf_start_ns, 'leaf', NULL)
                WHEN op IN ('broadcast', 'scatter') THEN 'root'
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
        LEFT JOIN clock_pair AS p
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

-- owned_waits: Who waited for whom in a communicator, and how much of it the late one caused.
--
-- One row a waiting call of a trusted, complete instance; source_id and place point to that call,
-- key and holder_key to what the two ranks did. Rows of a communicator depend on its own calls and
-- on what exposed_calls gives of its members, and on no other communicator.
--
-- own_ns is the part of the waiting that the holder caused since the two last left a collective of
-- this communicator together: its own time since then less the waiter's. Own time is time without
-- exposed communication, so what the holder lost by leaving that collective late, or by waiting for
-- others meanwhile (a receive from a late rank), is inherited and not counted. Operations with a
-- root are no common exit where the communicator has others: a leaf leaves them when it came, by
-- its own doing. Nothing is counted before the first common exit, nor waiting below the clocks'
-- error.
--
-- A waiter that runs ahead has its next calls in a queue: each starts as soon as the one before
-- ends, and the time between says nothing of its work, which it did long before. What the holder
-- caused must then also be there since the exit at which that queue began, or a rank that some
-- other communicator held up would be blamed for work that all ranks do.
--
-- is_second marks the waiter that entered last before the holder: without the holder's delay the
-- operation would have begun then.
--
-- reads: gpu_op, host_op, collective, annotation, collective_match, comm_group, clock_offset,
--     clock_pair
-- columns: attempt INTEGER, capture_id INTEGER, group_id VARCHAR, instance_id BIGINT, step BIGINT,
--     op VARCHAR, rank INTEGER, holder_rank INTEGER, start_ns BIGINT, holder_start_ns BIGINT,
--     wait_ns BIGINT, own_ns BIGINT, is_second BOOLEAN, source_id INTEGER, place BIGINT,
--     key BIGINT,
--     holder_key BIGINT
CREATE OR REPLACE MACRO owned_waits() AS TABLE
WITH
    calls AS MATERIALIZED (
        SELECT
            * REPLACE (if(op = 'send' AND timeline = 'host', start_ns, end_ns) AS end_ns),
            capture_key(attempt, rank, capture_id) AS key
        FROM collective_calls()
    ),
    usable AS (SELECT * FROM calls WHERE is_trusted AND is_complete AND error_ns IS NOT NULL),
    followed AS (
        SELECT
            *,
            -- It stood in a queue: it began when the one before had ended, and within a tenth of
            -- its own duration. One that begins while another runs waits for nobody in its own
            -- rank.
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
    exposed AS MATERIALIZED (
        SELECT key, start_ns, end_ns
        FROM exposed_calls()
    ),
    joint AS (
        SELECT DISTINCT key, group_id
        FROM usable
        WHERE op NOT IN ('broadcast', 'scatter', 'reduce', 'gather')
    ),
    exits AS (
        SELECT usable.key, usable.group_id, instance_id, end_ns
        FROM usable
        LEFT JOIN joint ON joint.key = usable.key AND joint.group_id = usable.group_id
        WHERE
            usable.op NOT IN ('broadcast', 'scatter', 'reduce', 'gather')
            OR joint.key IS NULL
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
    )
SELECT
    shared.attempt,
    shared.capture_id,
    shared.group_id,
    shared.instance_id,
    shared.step,
    shared.op,
    shared.rank,
    shared.holder_rank,
    shared.start_ns,
    shared.holder_start_ns,
    shared.wait_ns,
    CAST(
        greatest(
            0,
            least(
                wait_ns,
                (holder_start_ns - holder_exit_ns - h1.covered_ns + h0.covered_ns)
                - (start_ns - exit_ns - s1.covered_ns + s0.covered_ns),
                (holder_start_ns - holder_queue_exit_ns - h1.covered_ns + hq.covered_ns)
                - (start_ns - queue_exit_ns - s1.covered_ns + sq.covered_ns)
            )
        ) AS BIGINT
    ) AS own_ns,
    shared.is_second,
    shared.source_id,
    shared.place,
    shared.key,
    shared.holder_key
-- Each row has exactly one partner. Outer joins, because the optimiser puts inner ones in
-- an order of its own and may join lost with itself by key alone.
FROM shared
LEFT JOIN lost AS s1 ON s1.key = shared.key AND s1.time_ns = shared.start_ns
LEFT JOIN lost AS s0 ON s0.key = shared.key AND s0.time_ns = shared.exit_ns
LEFT JOIN lost AS h1 ON h1.key = shared.holder_key AND h1.time_ns = shared.holder_start_ns
LEFT JOIN lost AS h0 ON h0.key = shared.holder_key AND h0.time_ns = shared.holder_exit_ns
LEFT JOIN lost AS sq ON sq.key = shared.key AND sq.time_ns = shared.queue_exit_ns
LEFT JOIN lost AS hq
    ON hq.key = shared.holder_key AND hq.time_ns = shared.holder_queue_exit_ns;

-- inflicted_waits: Who waited for whom, why, and what it cost.
--
-- The rows of owned_waits. exposed_ns is the part of own_ns in which the waiter computed nothing
-- and was not yet waiting for the same rank in an earlier call. gap_ns is the exposed_ns of the
-- waiter that is_second marks, with each moment counted once over all communicators of the holder:
-- what the job loses.
--
-- reads: gpu_op, host_op, collective, annotation, collective_match, comm_group, clock_offset,
--     clock_pair
-- columns: attempt INTEGER, capture_id INTEGER, group_id VARCHAR, instance_id BIGINT, step BIGINT,
--     op VARCHAR, rank INTEGER, holder_rank INTEGER, start_ns BIGINT, holder_start_ns BIGINT,
--     wait_ns BIGINT, own_ns BIGINT, exposed_ns BIGINT, gap_ns BIGINT, is_second BOOLEAN,
--     source_id INTEGER, place BIGINT
CREATE OR REPLACE MACRO inflicted_waits() AS TABLE
WITH
    compute AS MATERIALIZED (
        SELECT key, start_ns, end_ns
        FROM rank_compute()
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
                            PARTITION BY key, holder_rank
                            ORDER BY start_ns + wait_ns, instance_id, own_ns
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
                            PARTITION BY holder_key
                            ORDER BY start_ns + wait_ns, instance_id, rank, own_ns
                            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                        ),
                        start_ns
                    )
                ),
                start_ns + wait_ns
            ) AS gap_start_ns,
            start_ns + wait_ns AS piece_end_ns
        FROM owned_waits()
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
    pieces.own_ns,
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

-- handed_over: The calls of one operation, by when the host handed them over.
--
-- param: operation VARCHAR : As in collective.op.
-- reads: collective
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, handed_ns BIGINT, dur_ns BIGINT,
--     group_id VARCHAR, in_bytes BIGINT, message_bytes BIGINT, source_id INTEGER, place BIGINT
CREATE OR REPLACE MACRO handed_over(operation) AS TABLE
SELECT
    attempt,
    rank,
    capture_id,
    coalesce(enqueue_ns, start_ns) AS handed_ns,
    dur_ns,
    group_id,
    in_bytes,
    message_bytes,
    source_id,
    place
FROM collective
WHERE op = operation AND rank IS NOT NULL;
