-- How much of each rank's communication is hidden behind its computation.
--
-- Communication that runs beside computation costs nothing; the rest (exposed) is time in which
-- the rank computes nothing. Times are unions of intervals over all streams, never sums. Ranks
-- without GPU operations are measured on the host: host_work in queries/macros.sql says what counts
-- there. Several captures of a rank are measured apart and added up. Where CUDA graphs were
-- recorded whole (hidden_kernels), the kernels in them are unknown, and so is everything but span
-- and idle.
--
-- reads: step, gpu_op, host_op, collective, annotation
-- grain: attempt, rank
-- param: rounding VARCHAR = 'none' | 'hta' : 'hta' moves starts up and ends down to whole
--     microseconds before anything else, as HolisticTraceAnalysis 0.5.0 does.
-- param: steps VARCHAR = 'all' | 'all_but_last' : 'all_but_last' keeps what was launched before the
--     last step began, where a capture has two or more: what HolisticTraceAnalysis does unless
--     told otherwise. Work whose launch was not recorded is then left out, as it does.
-- column: rank INTEGER : Global rank.
-- column: span_ns BIGINT : From the first start to the last end.
-- column: compute_ns BIGINT : Time with computation running.
-- column: comm_ns BIGINT : Time with communication running.
-- column: overlap_ns BIGINT : Time with both running.
-- column: exposed_comm_ns BIGINT : Time with communication and no computation running.
-- column: idle_ns BIGINT : Time of the span with nothing running, copies included.
-- column: overlap_ratio DOUBLE : overlap_ns / comm_ns, 0..1; null without communication.
-- column: measured_on VARCHAR : gpu, or host where the rank has no GPU operations.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: captures_count BIGINT : Captures that were added up.
-- source: get_comm_comp_overlap of HolisticTraceAnalysis, over our own classes of operations.
WITH
    last_steps AS (
        SELECT attempt, rank, capture_id, max(start_ns) AS last_start_ns
        FROM step
        GROUP BY attempt, rank, capture_id
        HAVING count(*) > 1
    ),
    chosen AS MATERIALIZED (
        SELECT
            capture_key(work.attempt, work.rank, work.capture_id) AS key,
            -- Short codes: this is the largest intermediate of the query.
            measured_on = 'host' AS is_host,
            CAST(
                CASE class WHEN 'compute' THEN 0 WHEN 'communication' THEN 1 ELSE 2 END
                AS UTINYINT
            ) AS code,
            CASE $rounding WHEN 'hta' THEN (work.start_ns + 999) // 1000 * 1000
                ELSE work.start_ns END AS start_ns,
            CASE $rounding WHEN 'hta' THEN work.end_ns // 1000 * 1000
                ELSE work.end_ns END AS end_ns
        FROM rank_work('gpu_op', 'host_op', 'collective', 'annotation') AS work
        LEFT JOIN last_steps USING (attempt, rank, capture_id)
        WHERE
            class <> 'blocked'
            AND ($steps = 'all' OR last_start_ns IS NULL OR launch_ns < last_start_ns)
    ),
    compute AS (SELECT key, start_ns, end_ns FROM chosen WHERE code = 0),
    comm AS (SELECT key, start_ns, end_ns FROM chosen WHERE code = 1),
    compute_merged AS MATERIALIZED (SELECT key, start_ns, end_ns FROM merged_intervals('compute')),
    comm_merged AS MATERIALIZED (SELECT key, start_ns, end_ns FROM merged_intervals('comm')),
    either AS (
        SELECT key, start_ns, end_ns FROM compute_merged
        UNION ALL
        SELECT key, start_ns, end_ns FROM comm_merged
    ),
    either_merged AS MATERIALIZED (SELECT key, start_ns, end_ns FROM merged_intervals('either')),
    anything AS (
        SELECT key, start_ns, end_ns FROM either_merged
        UNION ALL
        SELECT key, start_ns, end_ns FROM chosen WHERE code = 2
    ),
    layer_times AS (
        SELECT key, 'compute' AS layer, end_ns - start_ns AS layer_ns, NULL AS is_host
        FROM compute_merged
        UNION ALL
        SELECT key, 'comm', end_ns - start_ns, NULL FROM comm_merged
        UNION ALL
        SELECT key, 'either', end_ns - start_ns, NULL FROM either_merged
        UNION ALL
        SELECT key, 'anything', end_ns - start_ns, NULL FROM merged_intervals('anything')
        UNION ALL
        SELECT key, 'span', greatest(max(end_ns) - min(start_ns), 0), any_value(is_host)
        FROM chosen
        GROUP BY key
    ),
    rank_times AS (
        SELECT
            attempt_of(key) AS attempt,
            rank_of(key) AS rank,
            if(any_value(is_host), 'host', 'gpu') AS measured_on,
            count(*) FILTER (WHERE layer = 'span') AS captures_count,
            CAST(coalesce(sum(layer_ns) FILTER (WHERE layer = 'span'), 0) AS BIGINT) AS span_ns,
            CAST(coalesce(sum(layer_ns) FILTER (WHERE layer = 'compute'), 0) AS BIGINT)
                AS compute_ns,
            CAST(coalesce(sum(layer_ns) FILTER (WHERE layer = 'comm'), 0) AS BIGINT) AS comm_ns,
            CAST(coalesce(sum(layer_ns) FILTER (WHERE layer = 'either'), 0) AS BIGINT)
                AS either_ns,
            CAST(coalesce(sum(layer_ns) FILTER (WHERE layer = 'anything'), 0) AS BIGINT)
                AS busy_ns
        FROM layer_times
        GROUP BY attempt_of(key), rank_of(key)
    ),
    hidden AS (
        SELECT attempt, rank, TRUE AS is_hidden
        FROM gpu_op
        WHERE category = 'graph'
        GROUP BY attempt, rank
    )
SELECT
    rank,
    span_ns,
    if(is_hidden, NULL, compute_ns) AS compute_ns,
    if(is_hidden, NULL, comm_ns) AS comm_ns,
    if(is_hidden, NULL, compute_ns + comm_ns - either_ns) AS overlap_ns,
    if(is_hidden, NULL, either_ns - compute_ns) AS exposed_comm_ns,
    span_ns - busy_ns AS idle_ns,
    if(is_hidden, NULL, (compute_ns + comm_ns - either_ns) / nullif(comm_ns, 0)) AS overlap_ratio,
    measured_on,
    attempt,
    captures_count
FROM rank_times
LEFT JOIN hidden USING (attempt, rank)
ORDER BY attempt, rank;
