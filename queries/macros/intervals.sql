-- Unions, differences and totals of intervals.

-- merged_intervals: The union of intervals within each key: disjoint, touching ones joined.
--
-- The only interval union in SQL. Sorted by start, a row opens a new stretch exactly if it starts
-- after the latest end so far; a stretch ends at the latest end seen before the next one opens. An
-- interval holds its start and not its end; empty ones count for nothing.
--
-- param: rows_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Intervals.
-- columns: key ANY, start_ns BIGINT, end_ns BIGINT
CREATE OR REPLACE MACRO merged_intervals(rows_name) AS TABLE
WITH
    seen AS (
        SELECT
            key,
            start_ns,
            -- Of those that start together only the first can open a stretch, whichever that is.
            max(end_ns) OVER (
                PARTITION BY key ORDER BY start_ns
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

-- busy_time: Time covered by at least one interval of each key; keys without time are absent.
--
-- param: rows_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Intervals.
-- columns: key ANY, busy_ns BIGINT
CREATE OR REPLACE MACRO busy_time(rows_name) AS TABLE
SELECT key, CAST(sum(end_ns - start_ns) AS BIGINT) AS busy_ns
FROM merged_intervals(rows_name)
GROUP BY key;

-- difference_intervals: What of the first set's union lies outside the second's.
--
-- Both unions are disjoint within a key, so a running total over their edges, 1 for the first and 2
-- for the second, tells where it is. It is a DOUBLE because integers add up half as fast.
--
-- param: whole_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Intervals to keep.
-- param: part_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Intervals to take out.
-- columns: key ANY, start_ns BIGINT, end_ns BIGINT
CREATE OR REPLACE MACRO difference_intervals(whole_name, part_name) AS TABLE
WITH
    edges AS (
        SELECT key, unnest([start_ns, end_ns]) AS time_ns, unnest([1e0, -1e0]) AS change
        FROM merged_intervals(whole_name)
        UNION ALL
        SELECT key, unnest([start_ns, end_ns]), unnest([2e0, -2e0])
        FROM merged_intervals(part_name)
    ),
    pieces AS (
        SELECT
            key,
            time_ns AS start_ns,
            lead(time_ns) OVER edge AS end_ns,
            sum(change) OVER edge AS inside
        FROM edges
        WINDOW edge AS (PARTITION BY key ORDER BY time_ns ROWS UNBOUNDED PRECEDING)
    )
SELECT key, start_ns, end_ns
FROM pieces
WHERE inside = 1 AND end_ns > start_ns;

-- covered_before: How much of each key's stretches lies before given moments.
--
-- One row for each distinct moment. Each stretch is booked to the first moment after its start. Of
-- disjoint stretches that start before a moment only the one that ends last can reach beyond it.
--
-- param: stretches_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Disjoint within a key, as
--     merged_intervals gives them.
-- param: moments_name TABLE(key ANY, time_ns BIGINT) : Moments.
-- columns: key ANY, time_ns BIGINT, covered_ns BIGINT
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
