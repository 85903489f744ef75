-- Ranges of each rank's training loop, to say what stood still meanwhile.
--
-- What a loop does beside training (waiting for input, saving, collecting garbage) often leaves
-- nothing but a range. A comparison of two jobs puts the idle time of the critical path under them.
-- Ranges below a thousandth of a mean step are left out.
--
-- reads: annotation, host_op, step
-- needs: annotation
-- grain: source_id, place
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: start_ns BIGINT : Start, on the job's clock.
-- column: end_ns BIGINT : End.
-- column: name VARCHAR : Name, its numbers starred.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Place in it.
FROM path_ranges()
ORDER BY attempt, rank, capture_id, start_ns, end_ns DESC, source_id, place;
