-- Which steps are longer than the usual one, and what explains each.
--
-- Faults that come and go hide in a mean. A step is slow from min_ratio of the median step beyond
-- it, and beyond 3.5 scaled median absolute deviations of the steps. Of each rank the time counts
-- that it spends beyond its own median step, waiting aside; the rank with most of it explains the
-- step, by the part that has most. Where the median rank of the others has half as much, the step
-- is long on all of them and no rank is named.
--
-- reads: annotation, collective, gpu_op, host_op, step
-- grain: attempt, capture_id, step
-- param: min_ratio DOUBLE = 0.05 : Least excess of a slow step, over the median step.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: step BIGINT : Job-level step; warm-up and cut ones are left out.
-- column: dur_ns BIGINT : Its length on the rank that takes longest.
-- column: usual_ns DOUBLE : Median of all judged steps of the attempt.
-- column: over_ns DOUBLE : dur_ns less usual_ns.
-- column: judged_steps_count BIGINT : Steps of the attempt that were looked at.
-- column: rank INTEGER : Rank that explains it; null where all do, or nothing recorded does.
-- column: timeline VARCHAR : host or device, as in excess; so are kind, path and name. Null where
--     nothing recorded explains half of over_ns.
-- column: kind VARCHAR : Kind of that part.
-- column: path VARCHAR : Ranges around it.
-- column: name VARCHAR : Its name.
-- column: part_ns DOUBLE : Its time beyond the rank's median step.
-- column: source_id INTEGER : Source of its longest stretch.
-- column: place BIGINT : Place of that.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: calls_count BIGINT : Calls, or stretches, of that part in the step.
-- column: usual_calls_count BIGINT : In the rank's median step: fewer, and it is more work.
-- column: collectives_count BIGINT : Collectives, sends and receives of the rank that has most.
-- column: usual_collectives_count BIGINT : In the median step of the attempt.
-- asked: report where slow
WITH
    judged AS (
        SELECT attempt, capture_id, step, max(dur_ns) AS dur_ns, count(*) AS ranks_count
        FROM step_windows()
        WHERE NOT is_warmup AND NOT is_partial
        GROUP BY attempt, capture_id, step
    ),
    medians AS (
        SELECT attempt, median(dur_ns) AS usual_ns, count(*) AS judged_steps_count
        FROM judged
        GROUP BY attempt
    ),
    scatters AS (
        SELECT
            attempt,
            any_value(usual_ns) AS usual_ns,
            any_value(judged_steps_count) AS judged_steps_count,
            1.4826 * median(abs(dur_ns - usual_ns)) AS spread_ns
        FROM judged
        JOIN medians USING (attempt)
        GROUP BY attempt
    ),
    slow AS (
        SELECT judged.*, usual_ns, judged_steps_count, dur_ns - usual_ns AS over_ns
        FROM judged
        JOIN scatters USING (attempt)
        WHERE dur_ns - usual_ns > greatest($min_ratio * usual_ns, 3.5 * spread_ns)
    ),
    rank_collectives AS (
        SELECT
            windows.attempt,
            windows.capture_id,
            windows.step,
            windows.rank,
            count(collective.place) AS collectives_count
        FROM step_windows() AS windows
        LEFT JOIN collective
            ON
                collective.attempt = windows.attempt
                AND collective.capture_id = windows.capture_id
                AND collective.rank = windows.rank
                AND collective.start_ns >= windows.start_ns
                AND collective.start_ns < windows.end_ns
        WHERE NOT is_warmup AND NOT is_partial
        GROUP BY ALL
    ),
    collectives AS (
        SELECT attempt, capture_id, step, max(collectives_count) AS collectives_count
        FROM rank_collectives
        GROUP BY attempt, capture_id, step
    ),
    usual_collectives AS (
        SELECT attempt, quantile_disc(collectives_count, 0.5) AS usual_collectives_count
        FROM collectives
        GROUP BY attempt
    ),
    rank_steps AS (
        SELECT attempt, rank, count(*) AS steps_count
        FROM step_windows()
        WHERE NOT is_warmup AND NOT is_partial
        GROUP BY attempt, rank
    ),
    parts AS MATERIALIZED (
        SELECT
            spent.*,
            {'timeline': timeline, 'kind': kind, 'path': path, 'name': name} AS part
        FROM time_spent() AS spent
        WHERE kind <> 'wait'
    ),
    -- Steps that lack a part have 0 of it: lists are filled up.
    usual_parts AS (
        SELECT
            attempt,
            rank,
            part,
            list_aggregate(
                list_resize(list(spent_ns), any_value(steps_count), 0), 'quantile_disc', 0.5
            ) AS usual_part_ns,
            list_aggregate(
                list_resize(list(calls_count), any_value(steps_count), 0), 'quantile_disc', 0.5
            ) AS usual_calls_count
        FROM parts
        JOIN rank_steps USING (attempt, rank)
        GROUP BY attempt, rank, part
    ),
    over_parts AS (
        SELECT
            attempt,
            capture_id,
            step,
            rank,
            timeline,
            part,
            spent_ns - usual_part_ns AS part_ns,
            calls_count,
            usual_calls_count,
            source_id,
            place
        FROM parts
        JOIN usual_parts USING (attempt, rank, part)
        SEMI JOIN slow USING (attempt, capture_id, step)
        WHERE spent_ns > usual_part_ns
    ),
    timelines AS (
        SELECT
            attempt,
            capture_id,
            step,
            rank,
            timeline,
            sum(part_ns) AS rank_ns,
            arg_max(
                {
                    'part': part,
                    'part_ns': part_ns,
                    'calls_count': calls_count,
                    'usual_calls_count': usual_calls_count,
                    'source_id': source_id,
                    'place': place
                },
                {'part_ns': part_ns, 'part': part}
            ) AS longest
        FROM over_parts
        GROUP BY attempt, capture_id, step, rank, timeline
    ),
    ranks AS (
        SELECT
            attempt,
            capture_id,
            step,
            rank,
            max(rank_ns) AS rank_ns,
            arg_max(longest, {'rank_ns': rank_ns, 'timeline': timeline}) AS longest
        FROM timelines
        GROUP BY attempt, capture_id, step, rank
    ),
    explained AS (
        SELECT
            attempt,
            capture_id,
            step,
            max(rank_ns) AS most_ns,
            arg_max(rank, {'rank_ns': rank_ns, 'rank': -rank}) AS rank,
            arg_max(longest, {'rank_ns': rank_ns, 'rank': -rank}) AS longest,
            list_sort(list(rank_ns)) AS all_ns
        FROM ranks
        GROUP BY attempt, capture_id, step
    ),
    shared AS (
        SELECT
            slow.*,
            most_ns >= 0.5 * over_ns AS is_explained,
            -- Of the others: a rank without a row has none.
            list_aggregate(
                list_resize(all_ns[:-2], greatest(ranks_count - 1, 1), 0), 'quantile_disc', 0.5
            ) >= 0.5 * most_ns AS is_on_all,
            explained.rank,
            longest
        FROM slow
        LEFT JOIN explained USING (attempt, capture_id, step)
    )
SELECT
    capture_id,
    step,
    dur_ns,
    usual_ns,
    over_ns,
    judged_steps_count,
    if(is_explained AND NOT (is_on_all AND ranks_count > 1), rank, NULL) AS rank,
    if(is_explained, longest.part.timeline, NULL) AS timeline,
    if(is_explained, longest.part.kind, NULL) AS kind,
    if(is_explained, longest.part.path, NULL) AS path,
    if(is_explained, longest.part.name, NULL) AS name,
    CAST(if(is_explained, longest.part_ns, NULL) AS DOUBLE) AS part_ns,
    if(is_explained, longest.source_id, NULL) AS source_id,
    if(is_explained, longest.place, NULL) AS place,
    attempt,
    CAST(if(is_explained, longest.calls_count, NULL) AS BIGINT) AS calls_count,
    CAST(if(is_explained, longest.usual_calls_count, NULL) AS BIGINT) AS usual_calls_count,
    collectives_count,
    usual_collectives_count
FROM shared
JOIN collectives USING (attempt, capture_id, step)
JOIN usual_collectives USING (attempt)
ORDER BY attempt, capture_id, step;
