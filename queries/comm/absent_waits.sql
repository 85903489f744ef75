-- Waiting of traced members in communicators whose other members left no trace: an estimate.
--
-- With eight of 512 ranks captured the culprit is most likely not among them. The traced member
-- that came last in an instance waited for no other traced one; what its call takes beyond short
-- ones (10 % quantile) at equal communicator, operation and size it waited for an absent one. Only
-- operations of known size that nobody leaves before the last has entered are compared.
--
-- reads: collective, collective_match, comm_group, step
-- grain: attempt, group_id
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: kind VARCHAR : tp, pp, dp, ...; null where it cannot be told.
-- column: members_count INTEGER : Members.
-- column: traced_ranks INTEGER[] : Members with calls in a trace.
-- column: missing_ranks INTEGER[] : Members without; null where the members are not all known.
-- column: instances_count BIGINT : Instances in steps.
-- column: steps_count BIGINT : Steps that these are in.
-- column: wait_per_step_ns DOUBLE : Estimated waiting of the last traced members to come, a step.
-- column: first_after_ns DOUBLE : When in its step the first call begins; mean over steps.
-- column: last_after_ns DOUBLE : When the last one begins.
-- column: wait_after_ns DOUBLE : When the waiting begins: mean of the calls, weighted by waiting;
--     null without any.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- source: Diagnosis D29; estimate as in collective_skew.
WITH
    partial_groups AS (
        FROM comm_group
        WHERE len(traced_ranks) < members_count
    ),
    calls AS (
        SELECT
            c.attempt,
            c.capture_id,
            m.group_id,
            m.instance_id,
            c.op,
            c.message_bytes,
            c.rank,
            c.start_ns,
            c.dur_ns
        FROM collective AS c
        JOIN collective_match AS m USING (source_id, place)
        JOIN partial_groups AS g ON g.attempt = c.attempt AND g.group_id = m.group_id
        WHERE
            c.dur_ns >= 0
            AND c.message_bytes IS NOT NULL
            AND c.op IN ('all_reduce', 'all_gather', 'reduce_scatter')
    ),
    -- Whoever of the traced members came last waited for nobody traced: its call is the shortest.
    instances AS (
        SELECT
            attempt,
            capture_id,
            group_id,
            instance_id,
            op,
            message_bytes,
            min(dur_ns) AS dur_ns,
            arg_min(rank, {'dur_ns': dur_ns, 'rank': rank}) AS rank,
            max(start_ns) AS start_ns
        FROM calls
        GROUP BY attempt, capture_id, group_id, instance_id, op, message_bytes
    ),
    waits AS (
        SELECT
            *,
            greatest(
                0,
                dur_ns - quantile_cont(CAST(dur_ns AS DOUBLE), 0.1) OVER (
                    PARTITION BY attempt, group_id, op, message_bytes
                )
            ) AS wait_ns
        FROM instances
    ),
    stepped AS (
        SELECT waits.*, s.step, waits.start_ns - s.start_ns AS after_ns
        FROM waits
        ASOF JOIN step AS s
            ON s.attempt = waits.attempt
            AND s.capture_id = waits.capture_id
            AND s.rank = waits.rank
            AND s.start_ns <= waits.start_ns
    ),
    in_steps AS (
        SELECT
            *,
            min(after_ns) OVER one_step AS first_after_ns,
            max(after_ns) OVER one_step AS last_after_ns
        FROM stepped
        WINDOW one_step AS (PARTITION BY attempt, group_id, capture_id, step)
    ),
    ranked AS (
        SELECT
            attempt,
            group_id,
            avg(first_after_ns) AS first_after_ns,
            avg(last_after_ns) AS last_after_ns,
            sum(wait_ns * after_ns) / nullif(sum(wait_ns), 0) AS wait_after_ns,
            count(*) AS instances_count,
            count(DISTINCT {'capture_id': capture_id, 'step': step}) AS steps_count,
            sum(wait_ns) / count(DISTINCT {'capture_id': capture_id, 'step': step})
                AS wait_per_step_ns
        FROM in_steps
        GROUP BY attempt, group_id
    )
SELECT
    group_id,
    any_value(kind) AS kind,
    any_value(members_count) AS members_count,
    any_value(traced_ranks) AS traced_ranks,
    any_value(
        list_sort(list_filter(ranks, lambda r: NOT list_contains(traced_ranks, r)))
    ) AS missing_ranks,
    CAST(sum(instances_count) AS BIGINT) AS instances_count,
    max(steps_count) AS steps_count,
    min(wait_per_step_ns) AS wait_per_step_ns,
    min(first_after_ns) AS first_after_ns,
    max(last_after_ns) AS last_after_ns,
    min(wait_after_ns) AS wait_after_ns,
    attempt
FROM ranked
JOIN partial_groups USING (attempt, group_id)
GROUP BY attempt, group_id
ORDER BY attempt, group_id;
