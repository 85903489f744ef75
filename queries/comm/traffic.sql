-- What a rank sends in a steady step, by kind of group and operation, beside what the layout needs.
--
-- Bytes are what one rank sends, ring factors included: 2 (n-1)/n of the message for an
-- all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, all of it for the rest. Mean
-- over the ranks that do it. Of a message between two ranks the send counts. Operations outside
-- steady steps are left out.
--
-- The expected columns follow from a job description (`tracekit expect`); they are filled in for
-- `tracekit query` and Python where one was given, and null in SQL.
--
-- reads: collective, collective_match, comm_group, step
-- grain: attempt, group_kind, op
-- column: group_kind VARCHAR : tp, pp, dp, ep, cp, world; null where not known.
-- column: op VARCHAR : all_reduce, all_gather, ..., send.
-- column: calls_per_step DOUBLE : Calls of a rank in a step.
-- column: bytes_per_step DOUBLE : What it sends; null where the bytes of a call are unknowable.
-- column: expected_calls DOUBLE : Calls that the layout needs, in one piece each.
-- column: expected_bytes DOUBLE : Bytes that the layout needs.
-- column: observed_ratio DOUBLE : Observed over expected bytes; null where either is unknown.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: group_size INTEGER : Members of the largest such group; null where not known.
-- column: ranks_count BIGINT : Ranks that do it.
-- column: largest_bytes BIGINT : Largest message.
-- completed: job
-- source: Diagnosis 3.6 and 3.8.
WITH
    windows AS (
        SELECT
            attempt,
            rank,
            capture_id,
            start_ns,
            is_warmup,
            is_partial,
            CASE lead(step) OVER capture
                WHEN step + 1 THEN lead(start_ns) OVER capture
                ELSE start_ns + dur_ns
            END AS end_ns
        FROM step
        WINDOW capture AS (PARTITION BY attempt, rank, capture_id ORDER BY start_ns, step)
    ),
    steady AS (
        FROM windows
        WHERE NOT coalesce(is_warmup, FALSE) AND NOT coalesce(is_partial, FALSE)
    ),
    steps AS (
        SELECT attempt, rank, count(*) AS steps_count FROM steady GROUP BY attempt, rank
    ),
    calls AS (
        SELECT
            c.attempt,
            c.rank,
            g.kind AS group_kind,
            c.op,
            c.message_bytes,
            nullif(coalesce(g.members_count, c.group_size), 0) AS members_count
        FROM collective AS c
        LEFT JOIN collective_match AS m USING (source_id, place)
        LEFT JOIN comm_group AS g ON g.attempt = c.attempt AND g.group_id = m.group_id
        ASOF JOIN steady AS s
            ON
                c.attempt = s.attempt
                AND c.rank = s.rank
                AND c.capture_id = s.capture_id
                AND c.start_ns >= s.start_ns
        WHERE c.start_ns < s.end_ns AND c.op IS NOT NULL AND c.op <> 'recv'
    ),
    rank_calls AS (
        SELECT
            attempt,
            rank,
            group_kind,
            op,
            count(*) AS calls_count,
            max(members_count) AS group_size,
            max(message_bytes) AS largest_bytes,
            -- A sum passes over nulls: bytes that are not known are not zero.
            if(
                count(message_bytes) = count(*)
                AND (count(members_count) = count(*) OR op IN ('send', 'broadcast', 'reduce')),
                sum(
                    CAST(message_bytes AS DOUBLE) * CASE
                        WHEN op = 'all_reduce' THEN 2.0 * (members_count - 1) / members_count
                        WHEN op IN ('all_gather', 'reduce_scatter', 'all_to_all')
                            THEN (members_count - 1.0) / members_count
                        ELSE 1.0
                    END
                ),
                NULL
            ) AS sent_bytes
        FROM calls
        GROUP BY attempt, rank, group_kind, op
    )
SELECT
    group_kind,
    op,
    avg(calls_count / CAST(steps_count AS DOUBLE)) AS calls_per_step,
    if(count(sent_bytes) = count(*), avg(sent_bytes / steps_count), NULL) AS bytes_per_step,
    CAST(NULL AS DOUBLE) AS expected_calls,
    CAST(NULL AS DOUBLE) AS expected_bytes,
    CAST(NULL AS DOUBLE) AS observed_ratio,
    attempt,
    max(group_size) AS group_size,
    count(*) AS ranks_count,
    max(largest_bytes) AS largest_bytes
FROM rank_calls
INNER JOIN steps USING (attempt, rank)
GROUP BY attempt, group_kind, op
ORDER BY attempt, group_kind, op;
