-- What Python functions take longer on a rank than on its peers, or in some steps than in others.
--
-- Where nothing else is recorded a rank stands in some function, with all that it calls: the
-- innermost of those that hold its excess says which. Of ranks whose Python frames are stored
-- (profiled with stacks, kept by ingest --stacks), on the thread that marks steps, in steady steps.
-- Addresses of objects are left out of names.
--
-- reads: annotation, python_frame, step
-- needs: annotation:profiler_step, python_frame
-- grain: attempt, rank, name
-- param: min_ratio DOUBLE = 0.01 : Least excess or over_usual, and least length of a frame, over
--     the mean step.
-- column: rank INTEGER : Global rank.
-- column: name VARCHAR : File, line and function, as the profiler writes them.
-- column: own_ns DOUBLE : Time of a mean step inside it; of one in itself once.
-- column: peer_ns DOUBLE : That of the median rank whose frames are stored; null where it is one.
-- column: excess_ns DOUBLE : own_ns less peer_ns.
-- column: usual_ns BIGINT : The rank's own median step.
-- column: over_usual_ns DOUBLE : own_ns less usual_ns: what some steps have beyond the others.
-- column: longest_ns BIGINT : The longest call, as far as it lies in a step.
-- column: source_id INTEGER : Source of that.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    steady_steps AS (
        SELECT attempt, rank, capture_id, step, start_ns, end_ns, dur_ns
        FROM step_windows()
        WHERE NOT is_warmup AND NOT is_partial
    ),
    mean_steps AS (
        SELECT attempt, avg(dur_ns) AS step_ns FROM steady_steps GROUP BY attempt
    ),
    step_threads AS (
        SELECT DISTINCT source_id, thread
        FROM annotation
        WHERE domain = 'profiler_step' AND NOT coalesce(is_gpu_twin, FALSE)
    ),
    long_frames AS (
        SELECT
            attempt,
            rank,
            capture_id,
            regexp_replace(name, ' at 0x[0-9a-fA-F]+', '') AS name,
            start_ns,
            start_ns + dur_ns AS end_ns,
            source_id,
            place
        FROM python_frame
        JOIN mean_steps USING (attempt)
        SEMI JOIN step_threads USING (source_id, thread)
        WHERE rank IS NOT NULL AND dur_ns >= $min_ratio * step_ns
    ),
    in_steps AS (
        SELECT
            {
                'attempt': frames.attempt,
                'rank': frames.rank,
                'capture_id': frames.capture_id,
                'step': step,
                'name': name
            } AS key,
            greatest(frames.start_ns, steps.start_ns) AS start_ns,
            least(frames.end_ns, steps.end_ns) AS end_ns,
            source_id,
            place
        FROM long_frames AS frames
        JOIN steady_steps AS steps
            ON
                steps.attempt = frames.attempt
                AND steps.rank = frames.rank
                AND steps.capture_id = frames.capture_id
                AND frames.start_ns < steps.end_ns
                AND frames.end_ns > steps.start_ns
    ),
    longest_frames AS (
        SELECT
            key,
            max(end_ns - start_ns) AS longest_ns,
            arg_min(
                {'source_id': source_id, 'place': place},
                {'shortness_ns': start_ns - end_ns, 'source_id': source_id, 'place': place}
            ) AS longest
        FROM in_steps
        GROUP BY key
    ),
    spent AS (
        SELECT
            key.attempt AS attempt,
            key.rank AS rank,
            key.name AS name,
            busy_ns AS spent_ns,
            longest_ns,
            longest
        FROM busy_time('in_steps')
        JOIN longest_frames USING (key)
    ),
    rank_steps AS (
        SELECT attempt, rank, count(*) AS steps_count
        FROM steady_steps
        SEMI JOIN spent USING (attempt, rank)
        GROUP BY attempt, rank
    ),
    own AS MATERIALIZED (
        SELECT
            attempt,
            rank,
            name,
            sum(spent_ns) / any_value(steps_count) AS own_ns,
            list_aggregate(
                list_resize(list(spent_ns), any_value(steps_count), 0), 'quantile_disc', 0.5
            ) AS usual_ns,
            max(longest_ns) AS longest_ns,
            arg_min(
                longest,
                {
                    'shortness_ns': -longest_ns,
                    'source_id': longest.source_id,
                    'place': longest.place
                }
            ) AS longest
        FROM spent
        JOIN rank_steps USING (attempt, rank)
        GROUP BY attempt, rank, name
    ),
    recorded AS (
        SELECT attempt, count(*) AS ranks_count FROM rank_steps GROUP BY attempt
    ),
    -- Ranks that never call it have 0 of it.
    peers AS (
        SELECT
            attempt,
            name,
            list_aggregate(
                list_resize(list(own_ns), any_value(ranks_count), 0.0), 'quantile_disc', 0.5
            ) AS peer_ns
        FROM own
        JOIN recorded USING (attempt)
        WHERE ranks_count > 1
        GROUP BY attempt, name
    )

SELECT
    rank,
    name,
    own_ns,
    peer_ns,
    own_ns - peer_ns AS excess_ns,
    usual_ns,
    own_ns - usual_ns AS over_usual_ns,
    longest_ns,
    longest.source_id AS source_id,
    longest.place AS place,
    attempt
FROM own
LEFT JOIN peers USING (attempt, name)
JOIN mean_steps USING (attempt)
WHERE greatest(coalesce(own_ns - peer_ns, 0), own_ns - usual_ns) >= $min_ratio * step_ns
ORDER BY attempt, rank, greatest(coalesce(excess_ns, 0), over_usual_ns) DESC, name
