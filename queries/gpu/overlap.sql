-- How much of each rank's communication is hidden behind its computation.
--
-- Communication that runs beside computation costs nothing; the rest (exposed) is time in which
-- the rank computes nothing. Times are unions of intervals over all streams, never sums. Ranks
-- without GPU operations are measured on the host: host_work in docs/macros.md says what counts
-- there. Several captures of a rank are measured apart and added up. Where CUDA graphs were
-- recorded whole (hidden_kernels), the kernels in them are unknown, and so is everything but span
-- and idle.
--
-- reads: step, gpu_op, host_op, collective, annotation
-- grain: attempt, rank
-- asked: report
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
    chosen AS (
        SELECT
            capture_key(work.attempt, work.rank, work.capture_id) AS key,
            -- Short codes: all rows are sorted at once.
            measured_on = 'host' AS is_host,
            CAST(
                CASE class WHEN 'compute' THEN 0 WHEN 'communication' THEN 1 ELSE 2 END
                AS UTINYINT
            ) AS code,
            CASE $rounding WHEN 'hta' THEN (work.start_ns + 999) // 1000 * 1000
                ELSE work.start_ns END AS start_ns,
            CASE $rounding WHEN 'hta' THEN work.end_ns // 1000 * 1000
                ELSE work.end_ns END AS end_ns
        FROM rank_work('gpu_op', 'host_op') AS work
        LEFT JOIN last_steps USING (attempt, rank, capture_id)
        WHERE
            class <> 'blocked'
            AND ($steps = 'all' OR last_start_ns IS NULL OR launch_ns < last_start_ns)
    ),
    -- One walk in order of start: how far each layer was covered when a row began. What a row adds
    -- to a layer's union is what it has beyond that: merged_intervals, with no stretches to keep.
    covered AS (
        SELECT
            key,
            is_host,
            code,
            start_ns,
            end_ns,
            coalesce(max(end_ns) FILTER (WHERE code = 0) OVER earlier, start_ns) AS compute_end_ns,
            coalesce(max(end_ns) FILTER (WHERE code = 1) OVER earlier, start_ns) AS comm_end_ns,
            coalesce(max(end_ns) OVER earlier, start_ns) AS any_end_ns
        FROM chosen
        WINDOW earlier AS (
            PARTITION BY key ORDER BY start_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    ),
    added AS (
        SELECT
            key,
            is_host,
            code,
            start_ns,
            end_ns,
            greatest(end_ns - greatest(start_ns, compute_end_ns), 0) AS compute_ns,
            greatest(end_ns - greatest(start_ns, comm_end_ns), 0) AS comm_ns,
            greatest(end_ns - greatest(start_ns, compute_end_ns, comm_end_ns), 0) AS either_ns,
            greatest(end_ns - greatest(start_ns, any_end_ns), 0) AS busy_ns
        FROM covered
    ),
    capture_times AS (
        SELECT
            key,
            any_value(is_host) AS is_host,
            greatest(max(end_ns) - min(start_ns), 0) AS span_ns,
            coalesce(sum(compute_ns) FILTER (WHERE code = 0), 0) AS compute_ns,
            coalesce(sum(comm_ns) FILTER (WHERE code = 1), 0) AS comm_ns,
            coalesce(sum(either_ns) FILTER (WHERE code < 2), 0) AS either_ns,
            sum(busy_ns) AS busy_ns
        FROM added
        GROUP BY key
    ),
    rank_times AS (
        SELECT
            attempt_of(key) AS attempt,
            rank_of(key) AS rank,
            if(any_value(is_host), 'host', 'gpu') AS measured_on,
            count(*) AS captures_count,
            CAST(sum(span_ns) AS BIGINT) AS span_ns,
            CAST(sum(compute_ns) AS BIGINT) AS compute_ns,
            CAST(sum(comm_ns) AS BIGINT) AS comm_ns,
            CAST(sum(either_ns) AS BIGINT) AS either_ns,
            CAST(sum(busy_ns) AS BIGINT) AS busy_ns
        FROM capture_times
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
