-- Matched calls at whose end their rank computed nothing: what it may have waited for.
--
-- A walk from the end of a step back to its start along the critical path meets these: where the
-- rank that held one up entered it after the waiting began, the path goes on at that rank. What
-- lies between its entry and the call's end is transfer.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair, gpu_op, host_op,
--     annotation, pipeline_op
-- grain: attempt, rank, capture_id, source_id, place
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: start_ns BIGINT : Start of the call, on the job's clock.
-- column: end_ns BIGINT : Its end.
-- column: exposed_start_ns BIGINT : When the rank had last computed before that end; the call's
--     start where that is later.
-- column: group_id VARCHAR : Communicator, see comm_group; pipeline for hand-overs.
-- column: op VARCHAR : Operation; hand-over where a stage of a pipeline waits for another.
-- column: holder_rank INTEGER : Rank that it waited for, itself where it was the last; null where
--     nobody holds it up, or where members or clocks do not let it be said.
-- column: holder_start_ns BIGINT : When that rank entered.
-- column: error_ns BIGINT : How far their clocks may be apart; null where not known.
-- column: source_id INTEGER : Source; -1 for a hand-over.
-- column: place BIGINT : Place in it; of a hand-over the number of the rank's operation.
SELECT
    attempt,
    rank,
    capture_id,
    start_ns,
    end_ns,
    exposed_start_ns,
    group_id,
    op,
    holder_rank,
    holder_start_ns,
    error_ns,
    source_id,
    place
FROM path_calls()
ORDER BY attempt, rank, capture_id, end_ns, start_ns, source_id, place;
