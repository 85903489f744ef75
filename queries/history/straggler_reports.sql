-- Which ranks a job's own straggler detector reports as slowest, how often and by how much.
--
-- Megatron-LM names the ranks with the least and most of each quantity, NVRx the worst and the best
-- GPUs by the time of the same kernels, FlagScale all. A rank that has more work, such as the last
-- stage of a pipeline, is slowest in Megatron-LM's too, and no slower.
--
-- reads: log_event
-- needs: log_event
-- grain: detector, what, rank
-- column: detector VARCHAR : megatron, nvrx or flagscale.
-- column: what VARCHAR : score and throughput_tflops (more is faster), clock_mhz, or
--     temperature_celsius (whose worst is the most).
-- column: rank INTEGER : Rank that was the worst at least once.
-- column: node VARCHAR : Its host; null where the report does not say.
-- column: reports_count BIGINT : Reports of that quantity with two ranks or more.
-- column: worst_count BIGINT : Of these, reports in which the rank was the worst, ties included.
-- column: worst_value DOUBLE : Median of its value in these.
-- column: best_value DOUBLE : Median of the best rank's value in these.
-- column: behind_ratio DOUBLE : Median of how many times the better one's value the better is: 1.25
--     is a rank that needs a quarter longer; of temperatures what the worst has over the best.
-- column: source_id INTEGER : File of the first such report.
-- column: place BIGINT : Its place.
WITH
    reports AS (
        SELECT
            source_id,
            place,
            named_fields(fields) AS said,
            fields
        FROM log_event
        WHERE
            code = 'straggler-report'
            AND said IS NOT NULL
    ),
    named AS (
        SELECT
            source_id,
            place,
            said,
            said['by'] AS detector,
            said['what'] AS what,
            unnest(list_filter(map_keys(said), lambda k : starts_with(k, 'rank.'))) AS key
        FROM reports
    ),
    stated AS (
        SELECT
            source_id,
            place,
            detector,
            what,
            CAST(key[6:] AS INTEGER) AS rank,
            said['node.' || key[6:]] AS node,
            TRY_CAST(said[key] AS DOUBLE) AS stated_value
        FROM named
        WHERE TRY_CAST(key[6:] AS INTEGER) IS NOT NULL
    ),
    ranged AS (
        SELECT
            *,
            if(what = 'temperature_celsius', most, least) AS worst,
            if(what = 'temperature_celsius', least, most) AS best
        FROM (
            SELECT
                *,
                min(stated_value) OVER report AS least,
                max(stated_value) OVER report AS most
            FROM stated
            WHERE stated_value > 0
            WINDOW report AS (PARTITION BY source_id, place, detector, what)
            QUALIFY count(*) OVER report >= 2
        )
    ),
    counts AS (
        SELECT detector, what, count(DISTINCT (source_id, place)) AS reports_count
        FROM ranged
        GROUP BY detector, what
    )
SELECT
    detector,
    what,
    rank,
    any_value(node ORDER BY source_id, place) AS node,
    any_value(reports_count) AS reports_count,
    count(*) AS worst_count,
    median(worst) AS worst_value,
    median(best) AS best_value,
    median(most / least) AS behind_ratio,
    min_by(source_id, (source_id, place)) AS source_id,
    min_by(place, (source_id, place)) AS place
FROM ranged
JOIN counts USING (detector, what)
WHERE stated_value = worst
GROUP BY detector, what, rank
ORDER BY detector, what, worst_count DESC, rank;
