-- How many collectives each rank's host asked for, whether or not they ever ran.
--
-- A collective that hangs never ends, so no device reports it; the host has asked for it all the
-- same. A rank that asked for fewer than the others is the one that they wait for.
--
-- reads: host_op
-- grain: attempt, rank, capture_id
-- shows: device
-- column: rank INTEGER : Rank.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: calls_count BIGINT : Calls into PyTorch's communication library.
-- column: last_start_ns BIGINT : When the last was made.
-- column: attempt INTEGER : Attempt of the job, from 1.
SELECT
    rank,
    capture_id,
    count(*) AS calls_count,
    max(start_ns) AS last_start_ns,
    attempt
FROM host_op
WHERE rank IS NOT NULL AND category = 'operator' AND name = 'record_param_comms'
GROUP BY attempt, rank, capture_id
ORDER BY attempt, rank, capture_id;
