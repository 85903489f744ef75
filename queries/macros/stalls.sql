-- What held up the training loop.

-- host_stalls: How long ranges of one domain held up each step of each rank.
--
-- exposed_ns is what nothing hid of it; source_id and place point to the longest range. Steps
-- without such a range are absent.
--
-- Only ranges on the thread that marks the steps count, where a source has one: other threads
-- work beside the training loop. Time that ranges of other_domains cover belongs to those.
--
-- A range is hidden while an operation of the rank's GPU runs, of whatever class (a collective
-- that waits for a peer is one), and while a collective runs on the host's timeline.
--
-- param: annotation_name TABLE(annotation) : Ranges.
-- param: stall_domain VARCHAR : The domain (annotation.domain) that is asked for.
-- param: other_domains VARCHAR[] : Domains whose time is taken off.
-- param: hiding_classes VARCHAR[] : Classes of GPU operation that hide a range: those of the stall
--     itself must not.
-- param: over VARCHAR : 'steps' or 'windows', as for judged_steps.
-- reads: step, gpu_op, collective
-- columns: rank INTEGER, capture_id INTEGER, step BIGINT, stall_ns BIGINT, exposed_ns BIGINT,
--     ranges_count BIGINT, longest_ns BIGINT, source_id INTEGER, place BIGINT, attempt INTEGER
CREATE OR REPLACE MACRO host_stalls(
    annotation_name, stall_domain, other_domains, hiding_classes, over
) AS TABLE
WITH
    step_threads AS (
        SELECT DISTINCT source_id, thread
        FROM query_table(annotation_name)
        WHERE domain = 'profiler_step' AND NOT coalesce(is_gpu_twin, FALSE)
    ),
    sources_with_steps AS (SELECT DISTINCT source_id FROM step_threads),
    loop_ranges AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            domain,
            source_id,
            place,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM query_table(annotation_name) AS ranges
        WHERE
            (domain = stall_domain OR list_contains(other_domains, domain))
            AND dur_ns > 0
            AND rank IS NOT NULL
            AND NOT coalesce(is_gpu_twin, FALSE)
            AND (
                source_id NOT IN (SELECT source_id FROM sources_with_steps)
                OR EXISTS (
                    SELECT 1 FROM step_threads
                    WHERE step_threads.source_id = ranges.source_id
                        AND step_threads.thread = ranges.thread
                )
            )
    ),
    own_ranges AS (SELECT * FROM loop_ranges WHERE domain = stall_domain),
    other_ranges AS (SELECT key, start_ns, end_ns FROM loop_ranges WHERE domain <> stall_domain),
    stalled AS MATERIALIZED (
        SELECT key, start_ns, end_ns FROM difference_intervals('own_ranges', 'other_ranges')
    ),
    work AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            start_ns,
            start_ns + dur_ns AS end_ns
        FROM gpu_op
        WHERE list_contains(hiding_classes, class)
        UNION ALL
        SELECT capture_key(attempt, rank, capture_id), start_ns, start_ns + dur_ns
        FROM collective
        WHERE timeline = 'host'
    ),
    -- Most work is beside no range: what reaches into one does into the last that it began before.
    hiding AS (
        SELECT work.key, work.start_ns, work.end_ns
        FROM work
        ASOF JOIN stalled ON stalled.key = work.key AND stalled.start_ns < work.end_ns
        WHERE stalled.end_ns > work.start_ns
    ),
    pieces AS (
        SELECT key, start_ns, end_ns, FALSE AS is_exposed FROM stalled
        UNION ALL
        SELECT key, start_ns, end_ns, TRUE FROM difference_intervals('stalled', 'hiding')
    ),
    step_keys AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            step,
            start_ns,
            end_ns
        FROM judged_steps(over)
    ),
    -- Not each range with every step: only with those in the same pieces of time, of which a rank
    -- has as many as steps. A pair counts in the piece in which the later of the two begins.
    step_grids AS (
        SELECT
            key,
            min(start_ns) AS first_ns,
            max(end_ns) AS last_ns,
            greatest((max(end_ns) - min(start_ns)) // count(*), 1) AS cell_ns
        FROM step_keys
        GROUP BY key
    ),
    step_cells AS (
        SELECT
            step_keys.key,
            step,
            start_ns,
            end_ns,
            unnest(
                range((start_ns - first_ns) // cell_ns, (end_ns - first_ns) // cell_ns + 1)
            ) AS cell
        FROM step_keys
        JOIN step_grids USING (key)
    ),
    spans AS (
        SELECT key, start_ns, end_ns, is_exposed, NULL AS source_id, NULL AS place FROM pieces
        UNION ALL
        SELECT key, start_ns, end_ns, NULL, source_id, place FROM own_ranges
    ),
    span_cells AS (
        SELECT
            spans.*,
            first_ns,
            cell_ns,
            unnest(
                range(
                    (greatest(start_ns, first_ns) - first_ns) // cell_ns,
                    (least(end_ns, last_ns) - first_ns) // cell_ns + 1
                )
            ) AS cell
        FROM spans
        JOIN step_grids USING (key)
        WHERE start_ns < last_ns AND end_ns > first_ns
    ),
    step_spans AS (
        SELECT
            key,
            step,
            is_exposed,
            source_id,
            place,
            spans.end_ns - spans.start_ns AS dur_ns,
            least(spans.end_ns, steps.end_ns)
            - greatest(spans.start_ns, steps.start_ns) AS in_step_ns
        FROM span_cells AS spans
        JOIN step_cells AS steps USING (key, cell)
        WHERE
            spans.start_ns < steps.end_ns
            AND spans.end_ns > steps.start_ns
            AND cell = (greatest(spans.start_ns, steps.start_ns) - first_ns) // cell_ns
    ),
    step_times AS (
        SELECT
            key,
            step,
            sum(in_step_ns) FILTER (NOT is_exposed) AS stall_ns,
            sum(in_step_ns) FILTER (is_exposed) AS exposed_ns
        FROM step_spans
        WHERE is_exposed IS NOT NULL
        GROUP BY key, step
    ),
    step_ranges AS (
        SELECT
            key,
            step,
            count(*) AS ranges_count,
            max(dur_ns) AS longest_ns,
            arg_min(
                {'source_id': source_id, 'place': place},
                {'shortness_ns': -dur_ns, 'source_id': source_id, 'place': place}
            ) AS longest
        FROM step_spans
        WHERE is_exposed IS NULL
        GROUP BY key, step
    )
SELECT
    rank_of(key) AS rank,
    capture_id_of(key) AS capture_id,
    step,
    CAST(stall_ns AS BIGINT) AS stall_ns,
    CAST(coalesce(exposed_ns, 0) AS BIGINT) AS exposed_ns,
    ranges_count,
    longest_ns,
    longest.source_id AS source_id,
    longest.place AS place,
    attempt_of(key) AS attempt
FROM step_times
JOIN step_ranges USING (key, step);
