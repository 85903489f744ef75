-- Waiting of traced members in communicators whose other members left no trace: an estimate.
--
-- With eight of 512 ranks captured the culprit is most likely not among them. A traced member waits
-- in a call for as long as it takes beyond the shortest at equal communicator, operation and size.
--
-- reads: collective, collective_match, comm_group, step
-- grain: attempt, group_id
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: kind VARCHAR : tp, pp, dp, ...; null where it cannot be told.
-- column: members_count INTEGER : Members.
-- column: traced_ranks INTEGER[] : Members with calls in a trace.
-- column: missing_ranks INTEGER[] : Members without; null where the members are not all known.
-- column: calls_count BIGINT : Calls of the traced members in steps.
-- column: steps_count BIGINT : Steps that these are in.
-- column: wait_per_step_ns DOUBLE : Estimated waiting of the traced member that waits least, a step.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- source: Diagnosis D29; estimate as in collective_skew.
WITH
    partial_groups AS (
        SELECT *
        FROM comm_group
        WHERE len(traced_ranks) < members_count
    ),
    calls AS (
        SELECT
            c.attempt,
            m.group_id,
            c.rank,
            c.capture_id,
            c.start_ns,
            c.dur_ns - min(c.dur_ns) OVER (
                PARTITION BY c.attempt, m.group_id, c.op, c.message_bytes
            ) AS wait_ns
        FROM collective AS c
        JOIN collective_match AS m USING (source_id, place)
        JOIN partial_groups AS g ON g.attempt = c.attempt AND g.group_id = m.group_id
        WHERE c.dur_ns >= 0 AND NOT (coalesce(c.op, '') = 'send' AND c.timeline = 'host')
    ),
    stepped AS (
        SELECT calls.*, s.step
        FROM calls
        ASOF JOIN step AS s
            ON s.attempt = calls.attempt
            AND s.capture_id = calls.capture_id
            AND s.rank = calls.rank
            AND s.start_ns <= calls.start_ns
    ),
    ranked AS (
        SELECT
            attempt,
            group_id,
            rank,
            count(*) AS calls_count,
            count(DISTINCT {'capture_id': capture_id, 'step': step}) AS steps_count,
            sum(wait_ns) / count(DISTINCT {'capture_id': capture_id, 'step': step})
                AS wait_per_step_ns
        FROM stepped
        GROUP BY attempt, group_id, rank
    )
SELECT
    group_id,
    any_value(kind) AS kind,
    any_value(members_count) AS members_count,
    any_value(traced_ranks) AS traced_ranks,
    any_value(
        list_sort(list_filter(ranks, lambda r: NOT list_contains(traced_ranks, r)))
    ) AS missing_ranks,
    CAST(sum(calls_count) AS BIGINT) AS calls_count,
    max(steps_count) AS steps_count,
    min(wait_per_step_ns) AS wait_per_step_ns,
    attempt
FROM ranked
JOIN partial_groups USING (attempt, group_id)
GROUP BY attempt, group_id
ORDER BY attempt, group_id;
