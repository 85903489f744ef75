-- What the run says of the job as a whole, one row an attempt.
--
-- The head of a report: which job, how many ranks it should have, and when.
--
-- reads: run
-- grain: attempt
-- column: attempt INTEGER : Attempt (restart) of the job, from 1.
-- column: job_name VARCHAR : Job name; null when unknown.
-- column: world_size INTEGER : Ranks that the job has; null when unknown.
-- column: start_ns BIGINT : Start of the earliest window.
-- column: end_ns BIGINT : End of the latest window.
SELECT attempt, job_name, world_size, start_ns, end_ns
FROM run
ORDER BY attempt;
