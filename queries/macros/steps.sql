-- Steps: of ranks, and of the job.

-- step_windows: Each rank's steps, from the start of a step to that of the next.
--
-- The next step counts only if it is the next in number: there may be a hole. Else a step lasts to
-- its own end. Where hosts run ahead of their devices it lasts from when the device had done the
-- one before to when it has done this one.
--
-- reads: step
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, step BIGINT, is_warmup BOOLEAN,
--     is_partial BOOLEAN, start_ns BIGINT, end_ns BIGINT, dur_ns BIGINT
CREATE OR REPLACE MACRO step_windows() AS TABLE
WITH
    windows AS (
        SELECT
            attempt,
            rank,
            capture_id,
            step,
            coalesce(is_warmup, FALSE) AS is_warmup,
            coalesce(is_partial, FALSE) AS is_partial,
            coalesce(paced_start_ns, start_ns) AS start_ns,
            CASE
                WHEN paced_end_ns IS NOT NULL THEN paced_end_ns
                WHEN lead(step) OVER capture = step + 1 THEN lead(start_ns) OVER capture
                ELSE start_ns + dur_ns
            END AS end_ns,
            dur_ns
        FROM step
        WINDOW capture AS (PARTITION BY attempt, rank, capture_id ORDER BY start_ns, step)
    )
SELECT
    attempt,
    rank,
    capture_id,
    step,
    is_warmup,
    is_partial,
    start_ns,
    end_ns,
    coalesce(end_ns - start_ns, dur_ns) AS dur_ns
FROM windows;

-- unsteady_steps: Steps of the job that are a warm-up, or not whole, on any rank.
--
-- reads: step
-- columns: attempt INTEGER, capture_id INTEGER, step BIGINT
CREATE OR REPLACE MACRO unsteady_steps() AS TABLE
SELECT DISTINCT attempt, capture_id, step
FROM step
WHERE is_warmup OR is_partial;

-- window_halves: Each capture's device work in two parts, where nothing marks steps.
--
-- From the first launch to the last end; each half has as many operations. What both show the job
-- does all the time; what one shows alone may be its beginning, an evaluation or a save. Fewer than
-- ten operations show nothing that repeats. None of attempts with steps.
--
-- reads: gpu_op, step
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, step BIGINT, start_ns BIGINT,
--     end_ns BIGINT
CREATE OR REPLACE MACRO window_halves() AS TABLE
WITH
    windows AS (
        SELECT
            attempt,
            rank,
            capture_id,
            min(coalesce(launch_start_ns, start_ns)) AS start_ns,
            quantile_disc(start_ns, 0.5) AS middle_ns,
            max(start_ns + dur_ns) AS end_ns
        FROM gpu_op
        WHERE rank IS NOT NULL AND attempt NOT IN (SELECT attempt FROM step)
        GROUP BY attempt, rank, capture_id
        HAVING count(*) >= 10
    )
SELECT attempt, rank, capture_id, CAST(0 AS BIGINT) AS step, start_ns, middle_ns AS end_ns
FROM windows
UNION ALL
SELECT attempt, rank, capture_id, 1, middle_ns, end_ns
FROM windows;

-- judged_steps: Steps from their start to their own end, or the halves of windows without any.
--
-- param: over VARCHAR : 'steps' or 'windows'.
-- reads: gpu_op, step
-- columns: attempt INTEGER, rank INTEGER, capture_id INTEGER, step BIGINT, start_ns BIGINT,
--     end_ns BIGINT
CREATE OR REPLACE MACRO judged_steps(over) AS TABLE
SELECT attempt, rank, capture_id, step, start_ns, end_ns
FROM step
WHERE over = 'steps'
UNION ALL
SELECT attempt, rank, capture_id, step, start_ns, end_ns
FROM window_halves()
WHERE over = 'windows';

-- job_steps: How long the job took for each steady step.
--
-- A step of the job lasts from the moment when the last rank begins it to the moment when the last
-- rank begins the next. So steps lie end to end, and their sum is the time that passed; the longest
-- rank of each step would count twice what one rank loses and another makes good. Where a rank has
-- no clock, a step takes as long as on its slowest rank. Of a job whose operations and not its
-- steps were timed, from the first operation of any replica that is no receive (one is posted
-- before its step begins) to the end of the last.
--
-- reads: step, pipeline_op
-- columns: attempt INTEGER, capture_id INTEGER, step BIGINT, start_ns BIGINT, dur_ns BIGINT
CREATE OR REPLACE MACRO job_steps() AS TABLE
WITH
    timed AS (
        SELECT
            attempt,
            capture_id,
            step,
            min(start_ns) AS start_ns,
            if(count(*) = count(start_ns), max(end_ns) - max(start_ns), max(dur_ns)) AS dur_ns
        FROM step_windows()
        WHERE NOT is_partial
        GROUP BY attempt, capture_id, step
    ),
    unsteady AS (
        SELECT DISTINCT attempt, capture_id, step FROM step WHERE is_warmup
    ),
    operated AS (
        SELECT
            attempt,
            capture_id,
            step,
            coalesce(
                min(start_ns) FILTER (operation NOT IN ('forward-recv', 'backward-recv')),
                min(start_ns)
            ) AS start_ns,
            max(end_ns) AS end_ns
        FROM pipeline_op
        WHERE attempt NOT IN (SELECT attempt FROM step)
        GROUP BY attempt, capture_id, step
    )
SELECT attempt, capture_id, step, start_ns, dur_ns
FROM timed
ANTI JOIN unsteady USING (attempt, capture_id, step)
UNION ALL
SELECT attempt, capture_id, step, start_ns, end_ns - start_ns
FROM operated;
