-- How long the job took for each steady step.
--
-- The series behind the mean step, p50 and n of every report: what a comparison of two jobs draws
-- from. Steps lie end to end; of a job whose operations and not its steps were timed, they are of
-- those operations.
--
-- reads: step, pipeline_op
-- grain: attempt, capture_id, step
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: step BIGINT : Job-level step.
-- column: start_ns BIGINT : First start of the step on any rank, on the job's clock; null without
--     one.
-- column: dur_ns BIGINT : From the last rank's start of it to that of the next.
SELECT attempt, capture_id, step, start_ns, dur_ns
FROM job_steps()
ORDER BY attempt, capture_id, step;
