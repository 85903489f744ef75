-- What each rank spends more time on than its peers, or in some steps than in its others.
--
-- A rank that is late says nothing of why. This takes its steps apart by what was innermost at each
-- moment (nothing is counted twice) and sets each part beside the same part of its peers in those
-- steps and beside its own other steps. A part that a rank lacks is 0. Read calls and time apart:
-- more calls are more work, and so are as many calls on larger inputs (where shapes were recorded)
-- and as many kernels of more threads; longer ones are the same work slower, a pause is neither.
-- Excess says where to look, not who is to blame: work beside the critical path costs nothing, and
-- who waits less for others has more of everything else.
--
-- Peers are the ranks of the same pipeline stage; in a pipeline a second row compares with all
-- ranks of the job, whose stages may differ by design. Steady steps only. Parts below min_ratio of
-- the mean step are left out, so the rest of a rank's excess may be spread over many names.
--
-- reads: annotation, collective, gpu_op, host_op, rank, step
-- grain: attempt, rank, peers, timeline, kind, path, name
-- param: min_ratio DOUBLE = 0.005 : Least excess or over_usual, over the mean step, of a row.
-- column: rank INTEGER : Global rank.
-- column: peers VARCHAR : What it is compared with: stage (all ranks where there is no pipeline) or
--     job.
-- column: timeline VARCHAR : host (the thread of the training loop, and operators beside it) or
--     device (without communication).
-- column: kind VARCHAR : On the host operator, call, wait, range (nothing recorded inside it),
--     pause (nothing recorded for a hundredth of a mean step) or between (shorter such stretches);
--     on the device kernel or copy.
-- column: path VARCHAR : Ranges around it, outermost first, with / between them; numbers in their
--     names are starred.
-- column: name VARCHAR : Of the operator, call or kernel; what a pause lies between.
-- column: own_ns DOUBLE : Time of a mean step.
-- column: peer_ns DOUBLE : That of its peers: the median rank of each step, mean.
-- column: excess_ns DOUBLE : own_ns less peer_ns, below 0 where the rank has less; null without
--     peers.
-- column: spread_ns DOUBLE : Scaled median absolute deviation of the peers' own_ns; null likewise.
-- column: calls_count DOUBLE : Calls, or stretches, of a mean step.
-- column: peer_calls_count DOUBLE : Median of its peers'.
-- column: input_ratio DOUBLE : What its calls get to do on average over the median of its peers':
--     elements of the input in which they differ most (of a kernel, those of the operator that
--     launched it), threads of a kernel, bytes of a copy, the greatest of these; null for other
--     parts, without peers, and where none of it was recorded.
-- column: usual_ns BIGINT : The rank's own median step.
-- column: over_usual_ns DOUBLE : own_ns less usual_ns: what some steps have beyond the others.
-- column: steps BIGINT[] : Steps that it lies in: those with most of what it has beyond its peers
--     (without peers: beyond its usual step), 0.7 of it, and others by half as much as the least of
--     these; not where it exceeds them by under a fifth of the most that it does.
-- column: steps_count BIGINT : How many these are.
-- column: judged_steps_count BIGINT : Steps of the rank that were looked at.
-- column: affected_ns DOUBLE : Its time in these steps, mean.
-- column: affected_peer_ns DOUBLE : Its peers' in these (without peers: its usual step).
-- column: longest_ns BIGINT : The longest single stretch in any step.
-- column: source_id INTEGER : Source of that.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- asked: where late
WITH
    steady_steps AS (
        SELECT step.attempt, capture_id, step, step.rank, pp_rank, dur_ns
        FROM step_windows() AS step
        LEFT JOIN rank ON rank.attempt = step.attempt AND rank.rank = step.rank
        WHERE NOT is_warmup AND NOT is_partial
    ),
    mean_steps AS (
        SELECT attempt, avg(dur_ns) AS step_ns FROM steady_steps GROUP BY attempt
    ),
    -- Every rank is one of its stage (-1 without), and of a pipeline one of the job (-2) too.
    judged AS (
        SELECT attempt, capture_id, step, rank, coalesce(pp_rank, -1) AS stage
        FROM steady_steps
        UNION ALL
        SELECT attempt, capture_id, step, rank, -2
        FROM steady_steps
        WHERE pp_rank IS NOT NULL
    ),
    rank_steps AS (
        SELECT attempt, rank, stage, count(*) AS steps_count
        FROM judged
        GROUP BY attempt, rank, stage
    ),
    step_peers AS (
        SELECT attempt, capture_id, step, stage, count(*) AS ranks_count
        FROM judged
        GROUP BY attempt, capture_id, step, stage
    ),
    stage_peers AS (
        SELECT attempt, stage, count(*) AS steps_count, max(ranks_count) AS ranks_count
        FROM step_peers
        GROUP BY attempt, stage
    ),
    parts AS MATERIALIZED (
        SELECT
            spent.*,
            stage,
            {'timeline': timeline, 'kind': kind, 'path': path, 'name': name} AS part
        FROM time_spent() AS spent
        JOIN judged USING (attempt, capture_id, step, rank)
    ),
    -- Ranks and steps that lack a part have 0 of it: lists are filled up.
    peer_steps AS MATERIALIZED (
        SELECT
            attempt,
            capture_id,
            step,
            stage,
            part,
            list_aggregate(
                list_resize(list(spent_ns), any_value(ranks_count), 0), 'quantile_disc', 0.5
            ) AS peer_ns
        FROM parts
        JOIN step_peers USING (attempt, capture_id, step, stage)
        GROUP BY attempt, capture_id, step, stage, part
    ),
    peer_means AS (
        SELECT attempt, stage, part, sum(peer_ns) / any_value(steps_count) AS peer_ns
        FROM peer_steps
        JOIN stage_peers USING (attempt, stage)
        GROUP BY attempt, stage, part
    ),
    own AS MATERIALIZED (
        SELECT
            attempt,
            rank,
            stage,
            part,
            any_value(steps_count) AS judged_steps_count,
            sum(spent_ns) / any_value(steps_count) AS own_ns,
            sum(calls_count) / any_value(steps_count) AS calls_count,
            list_aggregate(
                list_resize(list(spent_ns), any_value(steps_count), 0), 'quantile_disc', 0.5
            ) AS usual_ns,
            max(longest_ns) AS longest_ns,
            arg_min(
                {'source_id': source_id, 'place': place},
                {'shortness_ns': -longest_ns, 'source_id': source_id, 'place': place}
            ) AS longest
        FROM parts
        JOIN rank_steps USING (attempt, rank, stage)
        GROUP BY attempt, rank, stage, part
    ),
    stage_lists AS (
        SELECT
            attempt,
            stage,
            part,
            any_value(ranks_count) > 1 AS has_peers,
            list_resize(list(own_ns), any_value(ranks_count), 0.0) AS own_list,
            list_resize(list(calls_count), any_value(ranks_count), 0.0) AS calls_list
        FROM own
        JOIN stage_peers USING (attempt, stage)
        GROUP BY attempt, stage, part
    ),
    -- Materialized: written out where it is named, it would be found anew for each value.
    middles AS MATERIALIZED (
        SELECT
            attempt,
            stage,
            part,
            has_peers,
            own_list,
            list_aggregate(own_list, 'quantile_disc', 0.5) AS middle_ns,
            list_aggregate(calls_list, 'quantile_disc', 0.5) AS peer_calls_count
        FROM stage_lists
    ),
    scatters AS (
        SELECT
            attempt,
            stage,
            part,
            has_peers,
            1.4826 * list_aggregate(
                list_transform(own_list, lambda ns: abs(ns - middle_ns)), 'quantile_disc', 0.5
            ) AS spread_ns,
            peer_calls_count
        FROM middles
    ),
    compared AS (
        SELECT
            own.*,
            if(has_peers, peer_ns, NULL) AS peer_ns,
            if(has_peers, own_ns - peer_ns, NULL) AS excess_ns,
            if(has_peers, spread_ns, NULL) AS spread_ns,
            if(has_peers, peer_calls_count, NULL) AS peer_calls_count,
            own_ns - usual_ns AS over_usual_ns
        FROM own
        JOIN peer_means USING (attempt, stage, part)
        JOIN scatters USING (attempt, stage, part)
        JOIN mean_steps USING (attempt)
        WHERE
            greatest(
                if(has_peers, own_ns - peer_ns, 0), if(own.stage = -2, 0, own_ns - usual_ns)
            )
            >= $min_ratio * step_ns
    ),
    -- How much each call gets to do: by the shapes of its inputs, the grid or the bytes.
    shaped_parts AS (
        SELECT DISTINCT part.timeline AS timeline, part.name AS name
        FROM compared
        WHERE part.kind IN ('operator', 'kernel', 'copy')
    ),
    device_calls AS MATERIALIZED (
        SELECT
            attempt,
            rank,
            source_id,
            external_id,
            name,
            count(*) AS calls_count,
            sum(
                coalesce(CAST(list_product(grid) * list_product(block) AS DOUBLE), transfer_bytes)
            ) AS sizes
        FROM gpu_op
        SEMI JOIN (SELECT name FROM shaped_parts WHERE timeline = 'device') USING (name)
        WHERE class <> 'communication' AND rank IS NOT NULL
        GROUP BY attempt, rank, source_id, external_id, name
    ),
    shaped_calls AS (
        SELECT attempt, rank, timeline, name, input_dims, count(*) AS calls_count
        FROM host_op
        JOIN (SELECT timeline, name FROM shaped_parts WHERE timeline = 'host') USING (name)
        WHERE category = 'operator' AND rank IS NOT NULL AND input_dims IS NOT NULL
        GROUP BY attempt, rank, timeline, name, input_dims
        UNION ALL
        SELECT
            device_calls.attempt,
            device_calls.rank,
            'device',
            device_calls.name,
            input_dims,
            CAST(sum(calls_count) AS BIGINT)
        FROM device_calls
        JOIN host_op USING (source_id, external_id)
        WHERE category = 'operator' AND input_dims IS NOT NULL
        GROUP BY device_calls.attempt, device_calls.rank, device_calls.name, input_dims
    ),
    shape_inputs AS (
        SELECT
            input_dims,
            unnest(generate_series(1, len(inputs))) AS input,
            unnest(inputs) AS dims
        FROM (
            SELECT input_dims, regexp_extract_all(input_dims, '\[([0-9, ]+)\]', 1) AS inputs
            FROM (SELECT DISTINCT input_dims FROM shaped_calls)
        )
    ),
    shape_elements AS (
        SELECT
            input_dims,
            input,
            list_product(
                list_transform(
                    string_split(dims, ','),
                    lambda dim: coalesce(TRY_CAST(trim(dim) AS DOUBLE), 1)
                )
            ) AS elements_count
        FROM shape_inputs
    ),
    rank_inputs AS (
        SELECT
            attempt,
            rank,
            timeline,
            name,
            input,
            sum(elements_count * calls_count) / sum(calls_count) AS elements_count
        FROM shaped_calls
        JOIN shape_elements USING (input_dims)
        GROUP BY attempt, rank, timeline, name, input
        UNION ALL
        SELECT attempt, rank, 'device', name, 0, sum(sizes) / sum(calls_count)
        FROM device_calls
        WHERE sizes IS NOT NULL
        GROUP BY attempt, rank, name
    ),
    peer_inputs AS (
        SELECT
            attempt,
            stage,
            timeline,
            name,
            input,
            quantile_disc(elements_count, 0.5) AS elements_count
        FROM rank_inputs
        JOIN rank_steps USING (attempt, rank)
        GROUP BY attempt, stage, timeline, name, input
        HAVING count(*) > 1
    ),
    larger_inputs AS (
        SELECT
            attempt,
            rank,
            stage,
            timeline,
            name,
            max(rank_inputs.elements_count / peer_inputs.elements_count) AS input_ratio
        FROM rank_inputs
        JOIN rank_steps USING (attempt, rank)
        JOIN peer_inputs USING (attempt, stage, timeline, name, input)
        WHERE peer_inputs.elements_count > 0
        GROUP BY attempt, rank, stage, timeline, name
    ),
    input_ratios AS (
        SELECT
            attempt,
            rank,
            stage,
            map(
                list({'timeline': timeline, 'name': name}), list(input_ratio)
            ) AS ratio_by_part
        FROM larger_inputs
        GROUP BY attempt, rank, stage
    ),
    excess_steps AS (
        SELECT
            parts.attempt,
            parts.rank,
            parts.stage,
            part,
            parts.step,
            spent_ns,
            if(excess_ns IS NULL, usual_ns, peer_steps.peer_ns) AS base_ns,
            greatest(spent_ns - base_ns, 0) AS beyond_ns
        FROM parts
        JOIN compared USING (attempt, rank, stage, part)
        JOIN peer_steps USING (attempt, capture_id, step, stage, part)
    ),
    summed AS (
        SELECT
            excess_steps.*,
            sum(beyond_ns) OVER (PARTITION BY attempt, rank, stage, part) AS total_ns,
            sum(beyond_ns) OVER (
                PARTITION BY attempt, rank, stage, part ORDER BY beyond_ns DESC, step
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) - beyond_ns AS larger_ns
        FROM excess_steps
    ),
    limits AS (
        SELECT
            attempt,
            rank,
            stage,
            part,
            greatest(
                0.5 * min(beyond_ns) FILTER (WHERE larger_ns < 0.7 * total_ns),
                0.2 * max(beyond_ns)
            ) AS least_ns
        FROM summed
        GROUP BY attempt, rank, stage, part
    ),
    affected AS (
        SELECT
            attempt,
            rank,
            stage,
            part,
            list(step ORDER BY step) AS steps,
            count(*) AS steps_count,
            avg(spent_ns) AS affected_ns,
            avg(base_ns) AS affected_peer_ns
        FROM excess_steps
        JOIN limits USING (attempt, rank, stage, part)
        WHERE beyond_ns >= least_ns
        GROUP BY attempt, rank, stage, part
    )
SELECT
    rank,
    if(stage = -2, 'job', 'stage') AS peers,
    part.timeline AS timeline,
    part.kind AS kind,
    part.path AS path,
    part.name AS name,
    own_ns,
    peer_ns,
    excess_ns,
    spread_ns,
    calls_count,
    peer_calls_count,
    if(
        part.kind IN ('operator', 'kernel', 'copy'),
        ratio_by_part[{'timeline': part.timeline, 'name': part.name}],
        NULL
    ) AS input_ratio,
    usual_ns,
    over_usual_ns,
    steps,
    steps_count,
    judged_steps_count,
    affected_ns,
    affected_peer_ns,
    longest_ns,
    longest.source_id AS source_id,
    longest.place AS place,
    attempt
FROM compared
JOIN affected USING (attempt, rank, stage, part)
LEFT JOIN input_ratios USING (attempt, rank, stage)
ORDER BY
    attempt, rank, peers DESC, greatest(coalesce(excess_ns, 0), over_usual_ns) DESC, part;
