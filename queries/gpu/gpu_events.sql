-- XIDs of GPUs, from kernel logs and from DCGM's gauge, grouped into incidents.
--
-- One fault raises several XIDs: those of a host within three minutes of silence are one incident,
-- and its first is the candidate for the cause. Files without a host are machines of their own, but
-- for those that speak of one GPU. DCGM's gauge keeps the last XID for ever: only a
-- change of it is an event.
--
-- reads: log_event, gpu_sample, gpu, run, clock
-- grain: attempt, source_id, place, gpu_id, xid
-- param: slack_ns BIGINT = 30000000000 : How far the job's window is widened on both sides.
-- column: gpu_id VARCHAR : GPU: UUID, else host and address, else host and index.
-- column: host VARCHAR : Its host; null where unknown.
-- column: gpu_index INTEGER : NVML index; null where unknown.
-- column: pci VARCHAR : PCI address; null where unknown.
-- column: rank INTEGER : Rank that uses it; null where nothing says so.
-- column: rank_source VARCHAR : Where the rank came from.
-- column: host_ranks INTEGER[] : Ranks of its host; null where unknown.
-- column: xid INTEGER : Number of the XID.
-- column: severity VARCHAR : info, warning or error; of a gauge null.
-- column: origin VARCHAR : log or gauge.
-- column: pid BIGINT : Process that was on it, as its host counts; null where the log does not say.
-- column: time_ns BIGINT : When; null where unknown.
-- column: is_in_window BOOLEAN : Whether while the job ran; null where the clocks do not say.
-- column: incident BIGINT : Number of the incident on its machine, from 0 in order of time.
-- column: source_id INTEGER : File.
-- column: place BIGINT : Place in that file.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
WITH
    windows AS (
        SELECT attempt, start_ns - $slack_ns AS start_ns, end_ns + $slack_ns AS end_ns
        FROM attempt_windows()
    ),
    raw AS NOT MATERIALIZED (
        SELECT
            *,
            CAST(value AS INTEGER) AS xid,
            hash(coalesce(node, host, CAST(source_id AS VARCHAR)), device_id, nvml_index) AS key
        FROM gpu_sample
        WHERE counter = 'xid' AND value BETWEEN 0 AND 2147483647
    ),
    -- Nearly all have the same value all day long, and need not be put in order.
    changing AS (
        SELECT key FROM raw
        GROUP BY key
        HAVING min(xid) < max(xid)
    ),
    gauge AS (
        SELECT
            source_id,
            place,
            clock_id,
            node,
            if(node IS NULL, host, NULL) AS owner,
            if(node IS NULL AND host IS NULL, source_id, NULL) AS owner_id,
            device_id,
            nvml_index,
            time_ns,
            xid,
            lag(xid) OVER (
                PARTITION BY key ORDER BY time_ns NULLS FIRST, source_id, place
            ) AS last_xid
        FROM raw
        WHERE key IN (FROM changing)
    ),
    events AS (
        SELECT
            source_id,
            place,
            clock_id,
            -- A log of several machines says in each line whose it is.
            named_field(fields, 'host') AS node,
            if(node IS NULL, host, NULL) AS owner,
            if(node IS NULL AND host IS NULL, source_id, NULL) AS owner_id,
            device_id,
            CAST(NULL AS INTEGER) AS nvml_index,
            time_ns,
            TRY_CAST(code[5 :] AS INTEGER) AS xid,
            severity,
            TRY_CAST(named_field(fields, 'pid') AS BIGINT) AS pid,
            'log' AS origin
        FROM log_event
        WHERE starts_with(code, 'xid-') AND device_id IS NOT NULL
        UNION ALL
        SELECT
            source_id, place, clock_id, node, owner, owner_id, device_id, nvml_index, time_ns, xid,
            NULL, NULL, 'gauge'
        FROM gauge
        WHERE xid > 0 AND last_xid IS NOT NULL AND xid <> last_xid
    ),
    named AS (
        SELECT
            windows.attempt,
            gpu.gpu_id,
            gpu.host,
            gpu.gpu_index,
            gpu.pci,
            gpu.rank,
            gpu.rank_source,
            gpu.host_ranks,
            events.xid,
            events.severity,
            events.origin,
            events.pid,
            events.time_ns,
            if(
                clock.basis = 'epoch' AND windows.start_ns IS NOT NULL,
                events.time_ns BETWEEN windows.start_ns AND windows.end_ns,
                NULL
            ) AS is_in_window,
            events.source_id,
            events.place,
            min(events.owner_id) OVER (PARTITION BY windows.attempt, gpu.gpu_id) AS machine
        FROM events
        CROSS JOIN windows
        LEFT JOIN clock USING (clock_id)
        JOIN keyed_gpus() AS gpu
            ON gpu.key = gpu_key(
                windows.attempt,
                events.node,
                events.owner,
                events.owner_id,
                events.device_id,
                events.nvml_index
            )
        WHERE events.xid IS NOT NULL
    ),
    parted AS (
        SELECT
            *,
            coalesce(
                time_ns - lag(time_ns) OVER on_host > 180000000000, false
            ) AS is_new
        FROM named
        WINDOW on_host AS (
            PARTITION BY attempt, host, machine
            ORDER BY time_ns NULLS FIRST, source_id, place, gpu_id, xid
        )
    )
SELECT
    gpu_id,
    host,
    gpu_index,
    pci,
    rank,
    rank_source,
    host_ranks,
    xid,
    severity,
    origin,
    pid,
    time_ns,
    is_in_window,
    CAST(
        sum(CAST(is_new AS INTEGER)) OVER (
            PARTITION BY attempt, host, machine
            ORDER BY time_ns NULLS FIRST, source_id, place, gpu_id, xid
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS BIGINT
    ) AS incident,
    source_id,
    place,
    attempt
FROM parted
ORDER BY attempt, host, time_ns NULLS FIRST, source_id, place, gpu_id, xid;
