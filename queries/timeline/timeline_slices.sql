-- Everything that a timeline draws, track by track: one row a slice, ready to be written in order.
--
-- All ranks on the job's clock. A kernel of a collective carries its call: whom it waited for, and
-- the arrow that joins it with the same call on other ranks. Arrows run from the first to enter to
-- the last, so that they end at the rank that the others waited for; of a pair, from the sender to
-- the receiver. Copies of host ranges on the GPU's timeline are left out.
--
-- reads: step, gpu_op, sync_op, host_op, annotation, collective, collective_match, comm_group,
--     clock_offset, clock_pair
-- grain: rank, track_order, device, track, source_id, place
-- param: detail VARCHAR = 'all' | 'device' : device leaves out operators and runtime calls.
-- column: rank INTEGER : Global rank.
-- column: track_order INTEGER : 0 steps, 1 host threads, 2 host communication, 3 GPU streams, 4 the
--     waits of GPU streams.
-- column: device INTEGER : Device ordinal; null on the host.
-- column: track BIGINT : Thread or stream.
-- column: start_ns BIGINT : Start, on the job's clock.
-- column: dur_ns BIGINT : Duration.
-- column: name VARCHAR : Name in the source.
-- column: category VARCHAR : Class of a device operation, category of a host range, or step.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Place in it; the step's number for steps.
-- column: step BIGINT : The file's step; null when none.
-- column: op VARCHAR : Collective operation; null for others.
-- column: group_id VARCHAR : Communicator.
-- column: sequence BIGINT : Ordinal of the call within it.
-- column: message_bytes BIGINT : Size of the call.
-- column: holder_rank INTEGER : Rank that the call waited for; null where nobody can be named.
-- column: wait_ns BIGINT : How long it waited; null where members have no trace.
-- column: flow_id BIGINT : Arrow that passes through the slice; null without one.
-- column: flow_index BIGINT : Which of the arrow's points, from 1.
-- column: flow_count BIGINT : Points of the arrow.
-- column: flow_after_ns BIGINT : Where the arrow passes, after the slice's start.
WITH
    calls AS MATERIALIZED (
        FROM collective_calls()
    ),
    drawn AS MATERIALIZED (
        SELECT
            c.rank,
            c.source_id,
            coalesce(g.place, c.place) AS place,
            g.place IS NOT NULL AS is_kernel,
            coalesce(g.start_ns, c.start_ns) AS start_ns,
            coalesce(g.dur_ns, c.dur_ns) AS dur_ns,
            coalesce(g.device, c.device) AS device,
            if(c.timeline = 'host', c.thread, coalesce(g.stream, c.stream)) AS track,
            c.timeline,
            c.step,
            c.op,
            coalesce(calls.group_id, c.group_id) AS group_id,
            calls.sequence,
            c.message_bytes,
            calls.attempt,
            c.capture_id,
            if(calls.is_trusted, calls.instance_id, NULL) AS instance_id,
            if(calls.is_complete AND calls.is_trusted, calls.wait_ns, NULL) AS wait_ns,
            if(
                calls.is_complete AND calls.is_trusted AND calls.wait_ns > calls.error_ns,
                calls.holder_rank,
                NULL
            ) AS holder_rank
        FROM collective AS c
        LEFT JOIN calls ON calls.source_id = c.source_id AND calls.place = c.place
        LEFT JOIN gpu_op AS g ON g.source_id = c.source_id AND g.place = c.gpu_op_place
        WHERE
            c.rank IS NOT NULL
            AND coalesce(g.start_ns, c.start_ns) IS NOT NULL
            AND coalesce(g.dur_ns, c.dur_ns) >= 0
        -- Operations that were launched together share a kernel: it is drawn once.
        QUALIFY row_number() OVER (
            PARTITION BY c.source_id, coalesce(g.place, c.place), g.place IS NULL
            ORDER BY calls.instance_id NULLS LAST, c.place
        ) = 1
    ),
    members AS (
        SELECT
            source_id,
            place,
            is_kernel,
            attempt,
            capture_id,
            instance_id,
            start_ns,
            greatest(dur_ns, 1) AS dur_ns,
            rank,
            if(
                op = 'recv',
                greatest(0, max(start_ns) FILTER (op = 'send') OVER instance - start_ns),
                0
            ) AS flow_after_ns
        FROM drawn
        WHERE instance_id IS NOT NULL
        WINDOW instance AS (PARTITION BY attempt, capture_id, instance_id)
    ),
    points AS (
        SELECT
            source_id,
            place,
            is_kernel,
            coalesce(flow_after_ns, 0) AS flow_after_ns,
            dense_rank() OVER (ORDER BY attempt, capture_id, instance_id) AS flow_id,
            row_number() OVER (
                PARTITION BY attempt, capture_id, instance_id
                ORDER BY
                    start_ns + coalesce(flow_after_ns, 0),
                    coalesce(flow_after_ns, 0),
                    rank,
                    source_id,
                    place,
                    is_kernel
            ) AS flow_index,
            count(*) OVER instance AS flow_count,
            -- A receive that ends before its send begins is a matter of clocks: no arrow.
            bool_and(coalesce(flow_after_ns, 0) < dur_ns) OVER instance AS is_possible
        FROM members
        WINDOW instance AS (PARTITION BY attempt, capture_id, instance_id)
    ),
    flows AS (
        FROM points
        WHERE flow_count > 1 AND is_possible
    ),
    on_streams AS (
        SELECT
            g.rank,
            3 AS track_order,
            g.device,
            g.stream AS track,
            g.start_ns,
            g.dur_ns,
            g.name,
            coalesce(g.class, g.category) AS category,
            g.source_id,
            g.place,
            g.step,
            d.op,
            d.group_id,
            d.sequence,
            d.message_bytes,
            d.holder_rank,
            d.wait_ns,
            TRUE AS is_kernel
        FROM gpu_op AS g
        LEFT JOIN drawn AS d
            ON d.source_id = g.source_id AND d.place = g.place AND d.is_kernel
    ),
    alone AS (
        SELECT
            rank,
            if(timeline = 'host', 2, 3) AS track_order,
            device,
            track,
            start_ns,
            dur_ns,
            coalesce(op, 'collective') AS name,
            'communication' AS category,
            source_id,
            place,
            step,
            op,
            group_id,
            sequence,
            message_bytes,
            holder_rank,
            wait_ns,
            FALSE AS is_kernel
        FROM drawn
        WHERE NOT is_kernel
    ),
    on_threads AS (
        SELECT
            rank,
            1 AS track_order,
            thread AS track,
            start_ns,
            dur_ns,
            name,
            category,
            source_id,
            place
        FROM host_op
        WHERE $detail = 'all'
        UNION ALL BY NAME
        SELECT
            rank,
            1 AS track_order,
            thread AS track,
            start_ns,
            dur_ns,
            name,
            domain AS category,
            source_id,
            place
        FROM annotation
        ANTI JOIN alone USING (source_id, place)
        WHERE domain <> 'profiler_step' AND NOT coalesce(is_gpu_twin, FALSE)
    ),
    waits AS (
        SELECT
            rank,
            4 AS track_order,
            device,
            stream AS track,
            start_ns,
            dur_ns,
            coalesce(name, kind) AS name,
            kind AS category,
            source_id,
            place
        FROM sync_op
    ),
    steps AS (
        SELECT
            rank,
            0 AS track_order,
            start_ns,
            dur_ns,
            'step ' || step || if(is_warmup, ' (warm-up)', '') || if(is_partial, ' (cut)', '')
                AS name,
            'step' AS category,
            source_id,
            step AS place,
            file_step AS step
        FROM step
    ),
    slices AS (
        FROM on_streams
        UNION ALL BY NAME
        FROM alone
        UNION ALL BY NAME
        FROM on_threads
        UNION ALL BY NAME
        FROM waits
        UNION ALL BY NAME
        FROM steps
    )
SELECT
    rank,
    track_order,
    device,
    track,
    start_ns,
    dur_ns,
    name,
    category,
    source_id,
    place,
    step,
    op,
    group_id,
    sequence,
    message_bytes,
    holder_rank,
    wait_ns,
    flow_id,
    flow_index,
    flow_count,
    flow_after_ns
FROM slices
LEFT JOIN flows USING (source_id, place, is_kernel)
WHERE rank IS NOT NULL AND start_ns IS NOT NULL AND dur_ns >= 0
ORDER BY
    rank,
    track_order,
    device,
    track,
    start_ns,
    dur_ns DESC,
    source_id,
    place,
    category,
    name,
    flow_id;
