-- Waiting of traced members in communicators whose other members left no trace: an estimate.
--
-- With eight of 512 ranks captured the culprit is most likely not among them. The traced member
-- that came last in an instance waited for no other traced one; what its call takes beyond short
-- ones (10 % quantile) at equal communicator, operation and size it waited for an absent one. Only
-- operations of known size that nobody leaves before the last has entered are compared.
--
-- Two things tell absent members apart. own_wait_per_step_ns: waiting in calls before which, in
-- their step, the traced member was in this communicator only, and at least once; where all members
-- run the same program, the absent one can only have been late by its own doing since then. And
-- excess_ns: of communicators whose traced members work together (one a tensor rank, say) the
-- waiting ends later in the one whose absent member is slow since it last met its own mates.
--
-- reads: collective, collective_match, comm_group, step, clock_offset, clock_pair
-- needs: collective, collective_match, comm_group
-- grain: attempt, group_id
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: kind VARCHAR : tp, pp, dp, ...; null where it cannot be told.
-- column: kind_source VARCHAR : name or behaviour.
-- column: members_count INTEGER : Members.
-- column: traced_ranks INTEGER[] : Members with calls in a trace.
-- column: missing_ranks INTEGER[] : Members without; null where the members are not all known.
-- column: instances_count BIGINT : Instances in steps.
-- column: steps_count BIGINT : Steps that these are in.
-- column: wait_per_step_ns DOUBLE : Estimated waiting of the last traced members to come, a step.
-- column: call_per_step_ns DOUBLE : What these stood in the calls in all, a step: waiting and
--     transfer, no less than the transfer alone.
-- column: own_wait_per_step_ns DOUBLE : The part that absent members caused themselves. Null where
--     members may run different programs: in a pipeline, but for groups within a stage by name.
-- column: first_after_ns DOUBLE : When in its step the first call begins; mean over steps.
-- column: last_after_ns DOUBLE : When the last one begins.
-- column: wait_after_ns DOUBLE : When the waiting begins: mean of the calls, weighted by waiting;
--     null without any.
-- column: siblings_count BIGINT : Communicators, this one included, that are used alike by other
--     traced ranks: same sizes of group and message at the same place in the step.
-- column: excess_ns DOUBLE : By how much the longest waiting of a step ends later and lasts longer
--     than the siblings' median: the lesser of both, median over steps. Null without two siblings.
-- column: last_ratio DOUBLE : Share of the steps in which it ended last of all siblings.
-- column: tail_ns DOUBLE : Time from the traced member's last call elsewhere to its entry; median.
-- column: work_ns DOUBLE : Its time outside all calls since the call before here, or the step's
--     start; median.
-- column: longest_ns DOUBLE : The longest waiting of a step; median.
-- column: clock_error_ns BIGINT : What the clocks of the siblings' traced members may be apart;
--     null where they were never compared.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- source: Diagnosis D29; estimate as in collective_skew.
WITH
    partial_groups AS (
        FROM comm_group
        WHERE len(traced_ranks) < members_count
    ),
    piped AS (
        SELECT DISTINCT attempt FROM collective WHERE op IN ('send', 'recv', 'send_recv')
    ),
    placed AS MATERIALIZED (
        SELECT
            c.attempt,
            c.capture_id,
            coalesce(m.group_id, '') AS group_id,
            m.instance_id,
            c.op,
            c.message_bytes,
            c.rank,
            c.clock_id,
            c.place,
            c.start_ns,
            c.start_ns + c.dur_ns AS end_ns,
            c.dur_ns,
            s.step,
            s.start_ns AS step_start_ns
        FROM collective AS c
        SEMI JOIN partial_groups AS g ON g.attempt = c.attempt
        LEFT JOIN collective_match AS m USING (source_id, place)
        ASOF LEFT JOIN step AS s
            ON s.attempt = c.attempt
            AND s.capture_id = c.capture_id
            AND s.rank = c.rank
            AND s.start_ns <= c.start_ns
        WHERE c.dur_ns >= 0 AND c.rank IS NOT NULL
    ),
    -- A call elsewhere earlier in the step, on whatever stream: the absent member may be in its own
    -- one of that kind still, held up by somebody whom no traced rank meets.
    walked AS (
        SELECT
            *,
            lag(end_ns) OVER here AS since_ns,
            max(end_ns) OVER before_it AS any_end_ns,
            min(group_id) OVER in_step AS first_group,
            max(group_id) OVER in_step AS last_group
        FROM placed
        WINDOW
            here AS (PARTITION BY attempt, capture_id, rank, group_id ORDER BY start_ns, place),
            before_it AS (
                PARTITION BY attempt, capture_id, rank ORDER BY start_ns, place
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ),
            in_step AS (
                PARTITION BY attempt, capture_id, rank, step ORDER BY start_ns, place
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            )
    ),
    calls AS (
        SELECT
            walked.*,
            any_end_ns <= since_ns AND first_group = group_id AND last_group = group_id AS is_own
        FROM walked
        JOIN partial_groups USING (attempt, group_id)
        WHERE
            message_bytes IS NOT NULL
            AND op IN ('all_reduce', 'all_gather', 'reduce_scatter')
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
            arg_min(clock_id, {'dur_ns': dur_ns, 'rank': rank}) AS clock_id,
            max(start_ns) AS start_ns,
            min(end_ns) AS end_ns,
            arg_min(since_ns, {'dur_ns': dur_ns, 'rank': rank}) AS since_ns,
            arg_min(step, {'dur_ns': dur_ns, 'rank': rank}) AS step,
            arg_min(step_start_ns, {'dur_ns': dur_ns, 'rank': rank}) AS step_start_ns,
            coalesce(bool_and(is_own), FALSE) AS is_own
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
    in_steps AS MATERIALIZED (
        SELECT
            *,
            start_ns - step_start_ns AS after_ns,
            min(start_ns - step_start_ns) OVER one_step AS first_after_ns,
            max(start_ns - step_start_ns) OVER one_step AS last_after_ns,
            row_number() OVER (
                PARTITION BY attempt, group_id, capture_id, step ORDER BY start_ns, instance_id
            ) AS number
        FROM waits
        WHERE step IS NOT NULL
        WINDOW one_step AS (PARTITION BY attempt, group_id, capture_id, step)
    ),
    -- The same call of communicators that are used alike, each by other traced ranks.
    siblings AS (
        SELECT
            *,
            count(*) OVER alike AS siblings_count,
            sum(wait_ns) OVER alike AS all_wait_ns,
            end_ns - min(start_ns) OVER alike AS late_end_ns,
            count(DISTINCT clock_id) OVER alike AS clocks_count,
            count(DISTINCT rank) OVER alike AS ranks_count
        FROM in_steps
        JOIN (SELECT attempt, group_id, members_count FROM partial_groups)
            USING (attempt, group_id)
        WINDOW alike AS (
            PARTITION BY attempt, capture_id, step, number, op, message_bytes, members_count
        )
    ),
    worst AS MATERIALIZED (
        FROM siblings
        WHERE siblings_count = ranks_count
        QUALIFY
            row_number() OVER (
                PARTITION BY attempt, capture_id, step, group_id
                ORDER BY siblings_count DESC, all_wait_ns DESC, number
            ) = 1
    ),
    compared AS (
        SELECT
            *,
            least(
                late_end_ns - median(CAST(late_end_ns AS DOUBLE)) OVER alike,
                wait_ns - median(wait_ns) OVER alike
            ) AS excess_ns,
            late_end_ns = max(late_end_ns) OVER alike AS is_last
        FROM worst
        WINDOW alike AS (
            PARTITION BY attempt, capture_id, step, number, op, message_bytes, members_count
        )
    ),
    -- What the traced member did before: how much work, and since when on its own.
    worked AS (
        SELECT
            compared.attempt,
            compared.capture_id,
            compared.group_id,
            compared.instance_id,
            compared.start_ns - greatest(compared.since_ns, compared.step_start_ns)
            - coalesce(sum(placed.dur_ns), 0) AS work_ns,
            compared.start_ns
            - greatest(max(placed.end_ns), compared.since_ns, compared.step_start_ns) AS tail_ns
        FROM compared
        LEFT JOIN placed
            ON placed.attempt = compared.attempt
            AND placed.capture_id = compared.capture_id
            AND placed.rank = compared.rank
            AND placed.start_ns >= greatest(compared.since_ns, compared.step_start_ns)
            AND placed.end_ns <= compared.start_ns
        GROUP BY
            compared.attempt,
            compared.capture_id,
            compared.group_id,
            compared.instance_id,
            compared.start_ns,
            compared.since_ns,
            compared.step_start_ns
    ),
    told_apart AS (
        SELECT
            attempt,
            group_id,
            min(siblings_count) AS siblings_count,
            if(min(siblings_count) > 2, median(excess_ns), NULL) AS excess_ns,
            if(min(siblings_count) > 2, avg(CAST(is_last AS INTEGER)), NULL) AS last_ratio,
            median(CAST(tail_ns AS DOUBLE)) AS tail_ns,
            median(CAST(work_ns AS DOUBLE)) AS work_ns,
            median(wait_ns) AS longest_ns,
            max(clocks_count) AS clocks_count
        FROM compared
        JOIN worked USING (attempt, capture_id, group_id, instance_id)
        GROUP BY attempt, group_id
    ),
    clocks AS (SELECT DISTINCT attempt, capture_id, clock_id FROM compared),
    clock_errors AS (FROM clock_errors()),
    apart AS (
        SELECT
            a.attempt,
            min(clocks_apart(a.clock_id, b.clock_id, p.error_ns, e.error_ns, h.error_ns))
                AS least_error_ns,
            max(clocks_apart(a.clock_id, b.clock_id, p.error_ns, e.error_ns, h.error_ns))
                AS error_ns
        FROM clocks AS a
        JOIN clocks AS b ON b.attempt = a.attempt AND b.capture_id = a.capture_id
        LEFT JOIN clock_pair AS p
            ON
                p.attempt = a.attempt
                AND p.capture_id = a.capture_id
                AND p.clock_id = least(a.clock_id, b.clock_id)
                AND p.other_clock_id = greatest(a.clock_id, b.clock_id)
        LEFT JOIN clock_errors AS e ON e.clock_id = a.clock_id
        LEFT JOIN clock_errors AS h ON h.clock_id = b.clock_id
        GROUP BY a.attempt
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
                AS wait_per_step_ns,
            sum(dur_ns) / count(DISTINCT {'capture_id': capture_id, 'step': step})
                AS call_per_step_ns,
            coalesce(sum(wait_ns) FILTER (is_own), 0)
            / count(DISTINCT {'capture_id': capture_id, 'step': step}) AS own_wait_per_step_ns
        FROM in_steps
        GROUP BY attempt, group_id
    )
SELECT
    group_id,
    kind,
    kind_source,
    members_count,
    traced_ranks,
    list_sort(list_filter(ranks, lambda r: NOT list_contains(traced_ranks, r))) AS missing_ranks,
    instances_count,
    steps_count,
    wait_per_step_ns,
    call_per_step_ns,
    if(
        piped.attempt IS NULL OR (kind_source = 'name' AND kind NOT IN ('pp', 'mp', 'world')),
        own_wait_per_step_ns,
        NULL
    ) AS own_wait_per_step_ns,
    first_after_ns,
    last_after_ns,
    wait_after_ns,
    siblings_count,
    excess_ns,
    last_ratio,
    tail_ns,
    work_ns,
    longest_ns,
    if(
        clocks_count < 2,
        0,
        if(apart.least_error_ns < 0, NULL, apart.error_ns)
    ) AS clock_error_ns,
    ranked.attempt
FROM ranked
JOIN partial_groups USING (attempt, group_id)
LEFT JOIN told_apart USING (attempt, group_id)
LEFT JOIN piped ON piped.attempt = ranked.attempt
LEFT JOIN apart ON apart.attempt = ranked.attempt
ORDER BY ranked.attempt, group_id;
