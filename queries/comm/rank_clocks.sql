-- Each rank's clock: how it was moved onto the job's clock, and how far it may still be off.
--
-- No lateness below these errors is claimed. A clock that no collective connects with the reference
-- stays where it is, and its rank's times say nothing about other ranks.
--
-- reads: source_context, clock, clock_offset
-- grain: attempt, rank, capture_id, clock_id
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: host VARCHAR : Canonical host; null when unknown.
-- column: clock_id INTEGER : Clock.
-- column: basis VARCHAR : epoch, relative or none.
-- column: offset_ns BIGINT : Added to its times; 0 where nothing was warranted.
-- column: drift_ratio DOUBLE : Added per ns; 1e-6 is 1 ppm.
-- column: error_ns BIGINT : What it may be off against the reference; null where never compared.
-- column: method VARCHAR : How that was found.
-- column: is_comparable BOOLEAN : Whether its times may be set beside those of other ranks: it
--     counts from the epoch, or was compared, or is what others were compared with.
WITH
    offsets AS (
        SELECT
            clock_id,
            if(count(error_ns) = count(*), max(error_ns), NULL) AS error_ns,
            min(method) AS method
        FROM clock_offset
        GROUP BY clock_id
    ),
    reference_clocks AS (
        SELECT DISTINCT reference_clock_id AS clock_id FROM clock_offset
    ),
    clocks AS (
        SELECT count(DISTINCT clock_id) AS clocks_count
        FROM source_context
        WHERE rank IS NOT NULL
    )
SELECT DISTINCT
    c.attempt,
    c.rank,
    c.capture_id,
    c.host,
    c.clock_id,
    clock.basis,
    coalesce(c.offset_ns, 0) AS offset_ns,
    coalesce(c.drift_ratio, 0) AS drift_ratio,
    if(
        o.clock_id IS NULL AND (r.clock_id IS NOT NULL OR n.clocks_count < 2), 0, o.error_ns
    ) AS error_ns,
    o.method,
    coalesce(clock.basis = 'epoch', FALSE)
    OR o.error_ns IS NOT NULL
    OR r.clock_id IS NOT NULL
    OR n.clocks_count < 2 AS is_comparable
FROM source_context AS c
LEFT JOIN clock USING (clock_id)
LEFT JOIN offsets AS o USING (clock_id)
LEFT JOIN reference_clocks AS r USING (clock_id)
CROSS JOIN clocks AS n
WHERE c.rank IS NOT NULL AND c.attempt IS NOT NULL
ORDER BY ALL;
