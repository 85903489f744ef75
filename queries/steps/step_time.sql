-- How long each step of each rank took.
--
-- The raw material of every question about steps: all of them, warm-up and partial ones included
-- and marked, as the host saw them.
--
-- reads: step
-- grain: attempt, rank, capture_id, step
-- asked: report
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: step BIGINT : Job-level step.
-- column: start_ns BIGINT : Start on the host, on the job's clock.
-- column: dur_ns BIGINT : Host duration in ns.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: is_warmup BOOLEAN : Before the job is steady; left out of statistics.
-- column: is_partial BOOLEAN : Cut by the window; left out of statistics.
-- column: is_inferred BOOLEAN : Nothing marked it: from the period of the updates, or a repetition.
-- column: is_repetition BOOLEAN : Without updates: what the rank repeats, such as tokens decoded.
-- column: is_paced BOOLEAN : Hosts run ahead of their devices, by more in some steps: all else
--     takes a step as long as its launches keep the device (step_breakdown), not as its marks.
SELECT
    rank,
    capture_id,
    step,
    start_ns,
    dur_ns,
    attempt,
    coalesce(is_warmup, FALSE) AS is_warmup,
    coalesce(is_partial, FALSE) AS is_partial,
    coalesce(step_source IN ('optimizer', 'period', 'repetition'), FALSE) AS is_inferred,
    coalesce(step_source = 'repetition', FALSE) AS is_repetition,
    paced_end_ns IS NOT NULL AS is_paced
FROM step
ORDER BY attempt, rank, capture_id, step;
