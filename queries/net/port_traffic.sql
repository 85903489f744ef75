-- What each host's ports carry in a step, beside what the layout makes cross the host.
--
-- A port that carries much more than the layout needs carries something else (storage, another
-- job), one that carries much less is not used; neither is a fault by itself. Bytes are those of
-- the job's steady steps, as marked or as the counters' period has them: the mean rate meanwhile
-- times the mean step. Ports of one host are summed by how they are named, since one NIC may be
-- read under two names (mlx5_0, eth0). Headers on the wire and flags of NCCL's protocols are in
-- what is counted and not in what is expected.
--
-- The expected columns follow from a job description (`tracekit expect`); they are filled in for
-- `tracekit query` and Python where one was given, and null in SQL. They are of rings; trees and
-- switches that add up need less, which expected_least_bytes has.
--
-- reads: net_sample, port, gpu, rank, run, step, pipeline_op, activity_step, activity_period,
--     clock, clock_offset
-- needs: net_sample
-- grain: attempt, host, family, node, port, direction
-- asked: report where a layout is told
-- param: least_covered_ratio DOUBLE = 0.5 : Share of the steps' time that readings must cover.
-- column: host VARCHAR : Host that the port is of or leads to.
-- column: ranks INTEGER[] : Ranks that run on it; null where unknown.
-- column: family VARCHAR : switch, for ports of switches that lead to it; else its own ports' name
--     without numbers.
-- column: node VARCHAR : Switch or host that counts.
-- column: port VARCHAR : Port or NIC.
-- column: rank INTEGER : Rank that uses it; null when several or unknown.
-- column: direction VARCHAR : sent or received, as the host sees it.
-- column: bytes_per_s DOUBLE : Mean rate over the steps; null where too little of them is covered.
-- column: coverage_ratio DOUBLE : Share of the steps' time that readings cover; of rates, whether
--     any was read then.
-- column: step_ns DOUBLE : Mean step; null where nothing shows steps.
-- column: bytes_per_step DOUBLE : What it carries in a step.
-- column: expected_bytes DOUBLE : What it should, if the host's NICs share evenly.
-- column: ports_count BIGINT : Ports of the host in this family that were read.
-- column: host_bytes_per_step DOUBLE : What they carry together; null where one is unknown.
-- column: expected_host_bytes DOUBLE : What the layout makes cross the host, in rings.
-- column: expected_least_bytes DOUBLE : What it cannot do without.
-- column: expected_most_bytes DOUBLE : The most that an open choice makes of it.
-- column: observed_ratio DOUBLE : host_bytes_per_step over expected_host_bytes; null where either
--     is unknown, or not all of the host's NICs were read.
-- column: basis VARCHAR : What the expectation rests on, or what it lacks.
-- column: source_id INTEGER : File of the last reading.
-- column: place BIGINT : Its place.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
-- completed: job
WITH
    steps AS (
        SELECT
            attempt, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns,
            avg(dur_ns) AS step_ns
        FROM job_steps()
        GROUP BY attempt
        UNION ALL
        -- What spans a gap of the collector is no step, so the period is the mean.
        SELECT
            activity.attempt, min(start_ns), max(start_ns + dur_ns), any_value(period.period_ns)
        FROM activity_step AS activity
        JOIN activity_period AS period
            ON period.attempt IS NOT DISTINCT FROM activity.attempt AND period.verdict = 'steps'
        GROUP BY activity.attempt
    ),
    windows AS (
        SELECT runs.attempt, steps.first_ns, steps.last_ns, steps.step_ns
        FROM attempt_windows() AS runs
        LEFT JOIN steps ON steps.attempt IS NOT DISTINCT FROM runs.attempt
    ),
    hosts AS (
        SELECT attempt, host, list_sort(list_distinct(list(rank))) AS ranks
        FROM rank
        WHERE host IS NOT NULL
        GROUP BY attempt, host
    ),
    -- What has GPUs is a host, whether or not anybody knows its ranks.
    machines AS (SELECT DISTINCT attempt, host FROM gpu WHERE host IS NOT NULL),
    placed AS (
        SELECT
            windows.attempt,
            coalesce(port.host, machines.host) AS host,
            port.rank,
            port.node,
            port.port,
            if(
                coalesce(port.is_on_host, TRUE),
                regexp_replace(port.port, '[0-9].*$', ''),
                'switch'
            ) AS family,
            coalesce(port.is_on_host, TRUE) AS is_on_host,
            windows.first_ns,
            windows.last_ns,
            windows.step_ns
        FROM port
        JOIN windows ON windows.attempt IS NOT DISTINCT FROM port.attempt
        LEFT JOIN machines
            ON machines.attempt IS NOT DISTINCT FROM port.attempt
            AND machines.host = lower(split_part(port.node, '.', 1))
        LEFT JOIN hosts
            ON hosts.attempt IS NOT DISTINCT FROM port.attempt AND hosts.host = port.host
        -- What leads to another switch has a host too, which has neither ranks nor GPUs.
        WHERE
            machines.host IS NOT NULL OR hosts.host IS NOT NULL
            OR port.host IN (SELECT machines.host FROM machines)
    ),
    samples AS (
        SELECT
            coalesce(samples.node, samples.host) AS node, port, counter,
            hash(coalesce(samples.node, samples.host), port, counter) AS key,
            source_id, clock_id, place, time_ns, counted, value
        FROM net_sample AS samples
        LEFT JOIN clock USING (clock_id)
        WHERE
            counter IN ('tx_bytes', 'rx_bytes', 'tx_rate', 'rx_rate')
            AND priority IS NULL AND queue IS NULL AND lane IS NULL
            AND time_ns IS NOT NULL
            AND coalesce(clock.basis, 'epoch') = 'epoch'
    ),
    named AS (SELECT DISTINCT key, node, port, counter FROM samples),
    totals AS (
        SELECT
            key, source_id, clock_id, place, time_ns, counted,
            CAST(NULL AS UBIGINT) AS limit_count
        FROM samples
        WHERE counted IS NOT NULL
    ),
    flows AS (
        SELECT
            named.node, named.port, named.counter,
            deltas.last_time_ns AS start_ns, deltas.time_ns AS end_ns,
            CAST(deltas.delta_count AS DOUBLE) AS bytes,
            deltas.source_id, deltas.place
        FROM counter_deltas('totals') AS deltas
        JOIN named USING (key)
        WHERE deltas.delta_count IS NOT NULL AND deltas.time_ns > deltas.last_time_ns
    ),
    grown AS (
        SELECT
            placed.attempt, placed.host, placed.family, placed.node, placed.port,
            flows.counter[:2] AS way,
            sum(bytes * overlap_ns / (flows.end_ns - flows.start_ns)) / sum(overlap_ns) * 1e9
                AS bytes_per_s,
            sum(overlap_ns) / any_value(placed.last_ns - placed.first_ns) AS coverage_ratio,
            max((flows.end_ns, flows.source_id, flows.place)) AS spot
        FROM placed
        JOIN flows ON flows.node IS NOT DISTINCT FROM placed.node AND flows.port = placed.port
        CROSS JOIN LATERAL (
            SELECT
                CAST(
                    least(flows.end_ns, placed.last_ns) - greatest(flows.start_ns, placed.first_ns)
                    AS DOUBLE
                ) AS overlap_ns
        )
        WHERE overlap_ns > 0
        GROUP BY
            placed.attempt, placed.host, placed.family, placed.node, placed.port, flows.counter
    ),
    rated AS (
        SELECT
            placed.attempt, placed.host, placed.family, placed.node, placed.port,
            samples.counter[:2] AS way,
            avg(samples.value) AS bytes_per_s,
            1.0 AS coverage_ratio,
            max((samples.time_ns, samples.source_id, samples.place)) AS spot
        FROM placed
        JOIN samples
            ON samples.node IS NOT DISTINCT FROM placed.node AND samples.port = placed.port
        WHERE
            samples.value IS NOT NULL
            AND samples.counter IN ('tx_rate', 'rx_rate')
            AND samples.time_ns BETWEEN placed.first_ns AND placed.last_ns
        GROUP BY
            placed.attempt, placed.host, placed.family, placed.node, placed.port, samples.counter
    ),
    known AS (
        FROM grown
        UNION ALL
        FROM rated
        ANTI JOIN grown
            ON grown.attempt IS NOT DISTINCT FROM rated.attempt
            AND grown.node IS NOT DISTINCT FROM rated.node
            AND grown.port = rated.port AND grown.way = rated.way
    ),
    both_ways AS (
        SELECT placed.*, way
        FROM placed
        JOIN (SELECT DISTINCT node, port, counter[:2] AS way FROM named) AS read
            ON read.node IS NOT DISTINCT FROM placed.node AND read.port = placed.port
    ),
    carried AS (
        SELECT
            both_ways.attempt, both_ways.host, both_ways.family, both_ways.node, both_ways.port,
            both_ways.rank, both_ways.step_ns,
            if((both_ways.way = 'tx') = both_ways.is_on_host, 'sent', 'received') AS direction,
            if(known.coverage_ratio >= $least_covered_ratio, known.bytes_per_s, NULL)
                AS bytes_per_s,
            coalesce(known.coverage_ratio, 0.0) AS coverage_ratio,
            known.spot
        FROM both_ways
        LEFT JOIN known
            ON known.attempt IS NOT DISTINCT FROM both_ways.attempt
            AND known.host = both_ways.host AND known.family = both_ways.family
            AND known.node IS NOT DISTINCT FROM both_ways.node
            AND known.port = both_ways.port AND known.way = both_ways.way
    )
SELECT
    carried.host,
    hosts.ranks,
    carried.family,
    carried.node,
    carried.port,
    carried.rank,
    carried.direction,
    carried.bytes_per_s,
    carried.coverage_ratio,
    carried.step_ns,
    carried.bytes_per_s * carried.step_ns / 1e9 AS bytes_per_step,
    CAST(NULL AS DOUBLE) AS expected_bytes,
    count(*) OVER side AS ports_count,
    if(
        count(carried.bytes_per_s) OVER side = count(*) OVER side,
        sum(carried.bytes_per_s * carried.step_ns / 1e9) OVER side,
        NULL
    ) AS host_bytes_per_step,
    CAST(NULL AS DOUBLE) AS expected_host_bytes,
    CAST(NULL AS DOUBLE) AS expected_least_bytes,
    CAST(NULL AS DOUBLE) AS expected_most_bytes,
    CAST(NULL AS DOUBLE) AS observed_ratio,
    CAST(NULL AS VARCHAR) AS basis,
    carried.spot[2] AS source_id,
    carried.spot[3] AS place,
    carried.attempt
FROM carried
LEFT JOIN hosts ON hosts.attempt IS NOT DISTINCT FROM carried.attempt AND hosts.host = carried.host
WINDOW side AS (
    PARTITION BY carried.attempt, carried.host, carried.family, carried.direction
)
ORDER BY
    carried.attempt, carried.host, carried.family, carried.node, carried.port, carried.direction;
