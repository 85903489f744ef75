-- What counters of ports grew by in each steady step, for the few that most deserve a look.
--
-- Shows beside each other what network_correlation says in one number: whether a port paused,
-- dropped or waited in the steps that were slow. First come counters of the links that were asked
-- for, what stirred on fewest ports first; then counters that go with slow steps, then those of
-- ports on the job's path, then those that stirred in most steps.
--
-- reads: counter_step, network_correlation, net_sample
-- needs: counter_step
-- grain: attempt, node, port, counter, capture_id, step
-- param: series_count BIGINT = 12 : Most counters.
-- param: links VARCHAR = '' : Links whose counters come first, node:port, one a line.
-- column: node VARCHAR : Switch or host that counts; null where unknown.
-- column: port VARCHAR : Port or NIC.
-- column: counter VARCHAR : Canonical name; its priorities and queues are added up.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: step BIGINT : Job-level step.
-- column: unit VARCHAR : Unit of growth; null where its source says none.
-- column: growth DOUBLE : Grown by in that step, interpolated between readings.
-- column: coverage_ratio DOUBLE : Share of the step that readings cover without a hole.
-- column: verdict VARCHAR : As in network_correlation; null where that says nothing.
-- column: rho DOUBLE : As in network_correlation.
-- column: place_count BIGINT : Its place among the counters, from 1.
-- column: attempt INTEGER : Attempt of the job.
WITH
    counters AS (
        SELECT attempt, node, port, counter, count(*) FILTER (growth > 0) AS stirred_count
        FROM counter_step
        GROUP BY attempt, node, port, counter
    ),
    stirred AS (
        SELECT
            attempt,
            node,
            port,
            counter,
            count(*) OVER (PARTITION BY attempt, counter) AS ports_count
        FROM counters
        WHERE stirred_count > 0
    ),
    wanted AS (
        SELECT attempt, node, port, counter, ports_count
        FROM stirred
        WHERE list_contains(string_split($links, chr(10)), concat(node, ':', port))
    ),
    placed AS (
        SELECT
            counters.attempt,
            counters.node,
            counters.port,
            counters.counter,
            correlation.verdict,
            correlation.rho,
            row_number() OVER (
                PARTITION BY counters.attempt
                ORDER BY
                    wanted.ports_count NULLS LAST,
                    CASE correlation.verdict WHEN 'cause' THEN 0 WHEN 'symptom' THEN 1 ELSE 2 END,
                    coalesce(correlation.is_on_path, FALSE) DESC,
                    -- Bytes and packets move whenever the job does: they tell least.
                    regexp_matches(counters.counter, '_(bytes|packets)$')
                    AND NOT regexp_matches(counters.counter, 'pfc|drop|discard|ecn|cnp|error'),
                    counters.stirred_count DESC,
                    counters.node,
                    counters.port,
                    counters.counter
            ) AS place_count
        FROM counters
        LEFT JOIN network_correlation AS correlation
            ON correlation.attempt IS NOT DISTINCT FROM counters.attempt
            AND correlation.node IS NOT DISTINCT FROM counters.node
            AND correlation.port IS NOT DISTINCT FROM counters.port
            AND correlation.counter = counters.counter
        LEFT JOIN wanted
            ON wanted.attempt IS NOT DISTINCT FROM counters.attempt
            AND wanted.node IS NOT DISTINCT FROM counters.node
            AND wanted.port IS NOT DISTINCT FROM counters.port
            AND wanted.counter = counters.counter
    ),
    units AS (
        SELECT counter, min(unit) AS unit
        FROM net_sample
        GROUP BY counter
    )
SELECT
    placed.node,
    placed.port,
    placed.counter,
    counter_step.capture_id,
    counter_step.step,
    units.unit,
    counter_step.growth,
    counter_step.coverage_ratio,
    placed.verdict,
    placed.rho,
    placed.place_count,
    placed.attempt
FROM placed
JOIN counter_step
    ON counter_step.attempt IS NOT DISTINCT FROM placed.attempt
    AND counter_step.node IS NOT DISTINCT FROM placed.node
    AND counter_step.port IS NOT DISTINCT FROM placed.port
    AND counter_step.counter = placed.counter
LEFT JOIN units ON units.counter = placed.counter
WHERE placed.place_count <= $series_count
ORDER BY placed.attempt, placed.place_count, counter_step.capture_id, counter_step.step;
