-- How much each rank made its peers wait, how much of that was its own doing, and what it cost.
--
-- Names culprits instead of victims. Lateness spreads: a rank that left one collective late enters
-- the next one late, and a receive from a late rank makes the receiver late. So the waiting that is
-- booked to the last arriver (inflicted) is taken apart: own is what it added itself. How often a
-- rank is last accuses the innocent; the size of its own part does not.
--
-- peer_ratio and compute_ratio compare with the ranks of the same pipeline stage, over the time
-- between the end of the first and the start of the last matched collective: a late rank with a
-- high peer_ratio and a compute_ratio near 1 is held up by its host. They need no waiting, so they
-- are there too where members left no trace or clocks were never compared; nobody is late then.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair, rank, gpu_op, host_op,
--     annotation
-- needs: collective, collective_match
-- grain: attempt, rank
-- column: rank INTEGER : Global rank.
-- column: inflicted_wait_ns BIGINT : Peers' waiting booked to the last arriver.
-- column: own_inflicted_wait_ns BIGINT : Less what it inherited from leaving its previous
--     collective late, or from waiting for others meanwhile.
-- column: exposed_inflicted_wait_ns BIGINT : The part of that in which the waiting rank computed
--     nothing: what cost time. Summed over waiting ranks.
-- column: late_count BIGINT : Collectives that it entered last, later than the clocks' error.
-- column: lateness_ratio DOUBLE : Share of all ranks' own inflicted wait; null where there is none.
-- column: peer_ratio DOUBLE : Own time (without exposed communication) over its peers' median, any
--     size; null where ranks send to each other and neither stages nor rings of them are known.
-- column: compute_ratio DOUBLE : Computing time over its peers' median, likewise.
-- column: slowdown_ratio DOUBLE : The ideal step with only its delays, over the ideal step, as
--     `tracekit whatif` says it (of a pipeline that of its stage or replica, the smaller): by
--     replay, which fills it in for `tracekit query` and Python; null in SQL.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: matched_count BIGINT : Its collectives that are trusted and complete.
-- column: own_gap_ns BIGINT : By how much its own doing delayed collectives: the own wait of the
--     last to wait for it, summed.
-- column: exposed_gap_ns BIGINT : The part of that in which that rank computed nothing, each moment
--     once: about what the job would gain without it.
-- column: own_ns BIGINT : Own time that peer_ratio compares.
-- column: compute_ns BIGINT : Computing time that compute_ratio compares.
-- column: stage INTEGER : Pipeline stage whose ranks are its peers; null where all ranks are, or
--     where it is not known.
-- completed: replay
-- source: Diagnosis 3.11 and D29.
WITH
    waits AS MATERIALIZED (
        FROM inflicted_waits()
    ),
    calls AS MATERIALIZED (
        FROM collective_calls()
        WHERE is_trusted
    ),
    booked AS (
        SELECT
            attempt,
            holder_rank AS rank,
            CAST(sum(wait_ns) AS BIGINT) AS inflicted_wait_ns,
            count(DISTINCT {'capture_id': capture_id, 'instance_id': instance_id}) AS late_count
        FROM calls
        WHERE is_complete AND holder_rank <> rank AND wait_ns > error_ns
        GROUP BY attempt, holder_rank
    ),
    own AS (
        SELECT
            attempt,
            holder_rank AS rank,
            CAST(sum(own_ns) AS BIGINT) AS own_inflicted_wait_ns,
            CAST(sum(exposed_ns) AS BIGINT) AS exposed_inflicted_wait_ns,
            CAST(sum(own_ns) FILTER (is_second) AS BIGINT) AS own_gap_ns,
            CAST(sum(gap_ns) AS BIGINT) AS exposed_gap_ns
        FROM waits
        GROUP BY attempt, holder_rank
    ),
    windows AS (
        SELECT
            attempt,
            rank,
            capture_id,
            count(*) FILTER (is_complete AND error_ns IS NOT NULL) AS matched_count,
            min(end_ns) AS start_ns,
            greatest(min(end_ns), max(start_ns)) AS end_ns
        FROM calls
        GROUP BY attempt, rank, capture_id
    ),
    compute AS MATERIALIZED (
        SELECT key, start_ns, end_ns
        FROM rank_compute()
    ),
    exposed AS MATERIALIZED (
        SELECT key, start_ns, end_ns
        FROM exposed_calls()
    ),
    edges AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            unnest([start_ns, end_ns]) AS time_ns
        FROM windows
    ),
    worked AS (
        SELECT key, max(covered_ns) - min(covered_ns) AS compute_ns
        FROM covered_before('compute', 'edges')
        GROUP BY key
    ),
    waited AS (
        SELECT
            key,
            max(time_ns) - min(time_ns) - max(covered_ns) + min(covered_ns) AS own_ns
        FROM covered_before('exposed', 'edges')
        GROUP BY key
    ),
    totals AS (
        SELECT
            windows.attempt,
            windows.rank,
            CAST(sum(matched_count) AS BIGINT) AS matched_count,
            CAST(sum(own_ns) AS BIGINT) AS own_ns,
            CAST(sum(compute_ns) AS BIGINT) AS compute_ns
        FROM windows
        LEFT JOIN worked
            ON worked.key = capture_key(windows.attempt, windows.rank, capture_id)
        LEFT JOIN waited
            ON waited.key = capture_key(windows.attempt, windows.rank, capture_id)
        GROUP BY windows.attempt, windows.rank
    ),
    piped AS (
        SELECT DISTINCT attempt FROM collective WHERE op IN ('send', 'recv', 'send_recv')
    ),
    staged AS (
        SELECT
            totals.*,
            pp_rank,
            piped.attempt IS NULL OR coalesce(pp_rank, cp_rank) IS NOT NULL AS has_peers
        FROM totals
        LEFT JOIN rank USING (attempt, rank)
        LEFT JOIN piped ON piped.attempt = totals.attempt
    ),
    compared AS (
        SELECT
            *,
            own_ns / nullif(median(own_ns) OVER stage, 0) AS peer_ratio,
            compute_ns / nullif(median(compute_ns) OVER stage, 0) AS compute_ratio,
            has_peers AND count(*) OVER stage > 1 AS is_comparable
        FROM staged
        WINDOW stage AS (PARTITION BY attempt, pp_rank)
    )
SELECT
    rank,
    coalesce(inflicted_wait_ns, 0) AS inflicted_wait_ns,
    coalesce(own_inflicted_wait_ns, 0) AS own_inflicted_wait_ns,
    coalesce(exposed_inflicted_wait_ns, 0) AS exposed_inflicted_wait_ns,
    coalesce(late_count, 0) AS late_count,
    coalesce(own_inflicted_wait_ns, 0)
    / nullif(sum(own_inflicted_wait_ns) OVER (PARTITION BY attempt), 0) AS lateness_ratio,
    if(is_comparable, peer_ratio, NULL) AS peer_ratio,
    if(is_comparable, compute_ratio, NULL) AS compute_ratio,
    CAST(NULL AS DOUBLE) AS slowdown_ratio,
    attempt,
    matched_count,
    coalesce(own_gap_ns, 0) AS own_gap_ns,
    coalesce(exposed_gap_ns, 0) AS exposed_gap_ns,
    own_ns,
    compute_ns,
    pp_rank AS stage
FROM compared
LEFT JOIN booked USING (attempt, rank)
LEFT JOIN own USING (attempt, rank)
ORDER BY attempt, rank;
