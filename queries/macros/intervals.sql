-- Unions, differences and totals of intervals.

-- stretch_starts: Where the stretches of a union of intervals begin, within each key.
--
-- The only interval union in SQL. Sorted by start, a row opens a new stretch exactly if it starts
-- after the latest end so far (latest_end_ns, null for a key's first): between the two lies a gap.
-- An interval holds its start and not its end, so touching ones are one stretch; empty ones count
-- for nothing. first_start_ns and last_end_ns are those of the key.
--
-- param: rows_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Intervals.
-- columns: key ANY, start_ns BIGINT, latest_end_ns BIGINT, first_start_ns BIGINT,
--     last_end_ns BIGINT
CREATE OR REPLACE MACRO stretch_starts(rows_name) AS TABLE
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
            min(start_ns) OVER (PARTITION BY key) AS first_start_ns,
            max(end_ns) OVER (PARTITION BY key) AS last_end_ns
        FROM query_table(rows_name)
        WHERE end_ns > start_ns
    )
SELECT key, start_ns, latest_end_ns, first_start_ns, last_end_ns
FROM seen
WHERE latest_end_ns IS NULL OR start_ns > latest_end_ns;

-- merged_intervals: The union of intervals within each key: disjoint, touching ones joined.
--
-- A stretch ends at the latest end seen before the next one opens.
--
-- param: rows_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Intervals.
-- columns: key ANY, start_ns BIGINT, end_ns BIGINT
CREATE OR REPLACE MACRO merged_intervals(rows_name) AS TABLE
SELECT
    key,
    start_ns,
    coalesce(
        lead(latest_end_ns) OVER (PARTITION BY key ORDER BY start_ns), last_end_ns
    ) AS end_ns
FROM stretch_starts(rows_name);

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
-- It is what nothing covers where the gaps of the first set stand beside the second. The first gap
-- begins before all time, so a key that does not begin so has nothing of the first set.
--
-- param: whole_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Intervals to keep.
-- param: part_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Intervals to take out.
-- columns: key ANY, start_ns BIGINT, end_ns BIGINT
CREATE OR REPLACE MACRO difference_intervals(whole_name, part_name) AS TABLE
WITH
    outside AS (
        SELECT
            key,
            unnest(
                if(latest_end_ns IS NULL, [-9223372036854775807, last_end_ns], [latest_end_ns])
            ) AS start_ns,
            unnest(
                if(latest_end_ns IS NULL, [start_ns, 9223372036854775807], [start_ns])
            ) AS end_ns
        FROM stretch_starts(whole_name)
        UNION ALL
        SELECT key, start_ns, end_ns FROM query_table(part_name)
    )
SELECT key, latest_end_ns AS start_ns, start_ns AS end_ns
FROM stretch_starts('outside')
WHERE latest_end_ns IS NOT NULL AND first_start_ns = -9223372036854775807;

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
