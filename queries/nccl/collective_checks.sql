-- What frameworks say of who stayed away: of a start, a barrier, a call, or by calls that differ.
--
-- A row a line. All members raise an exception then; these lines tell which of them is at fault.
--
-- Of a start it is left out where steps follow in the file: the job was begun again. So is a call
-- that was waited for and came, and agents that meet again after steps: somebody failed before.
--
-- reads: log_event, job_step
-- needs: log_event
-- grain: source_id, place, code
-- column: code VARCHAR : barrier-missed, barrier-reached, calls-differ, join-short (fewer processes
--     came than the job or a group has) or join-awaited (one did not come), or
--     call-awaited (Horovod's coordinator waits for some to hand in what others have).
-- column: world_rank INTEGER : Global rank that says it; null where the line does not state it.
-- column: group_rank INTEGER : Its rank in the group; null where the line does not state it.
-- column: missed INTEGER[] : Ranks of its group that did not come; null of other lines.
-- column: joined_count INTEGER : Processes that came to a start; null of other lines.
-- column: members_count INTEGER : How many it waited for.
-- column: is_of_all BOOLEAN : Of a start: whether all ranks of the job meet there, so that its
--     ranks are the job's.
-- column: is_of_store BOOLEAN : Whether who holds the job's store says so: rank 0 is one that
--     waits.
-- column: waited_s DOUBLE : How long they were waited for.
-- column: other_rank INTEGER : Of calls that differ, the other's rank in the group.
-- column: sequence BIGINT : Number of its call.
-- column: op VARCHAR : Its operation.
-- column: other_op VARCHAR : The other's.
-- column: shape VARCHAR : Shape of its tensor; null where the line has none.
-- column: other_shape VARCHAR : The other's.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Line.
WITH
    given AS (
        SELECT
            code,
            source_id,
            place,
            named_fields(fields) AS said
        FROM log_event
        WHERE
            (
                code IN ('barrier-missed', 'barrier-reached', 'calls-differ')
                OR (
                    code IN ('join-short', 'join-awaited', 'call-awaited')
                    AND NOT EXISTS (
                        SELECT 1 FROM job_step
                        WHERE
                            job_step.source_id = log_event.source_id
                            AND (
                                job_step.place > log_event.place
                                OR list_contains(fields, 'of_agents=1')
                            )
                    )
                )
            )
            AND said IS NOT NULL
    )
SELECT
    code,
    TRY_CAST(said['world_rank'] AS INTEGER) AS world_rank,
    if(code = 'barrier-missed', 0, TRY_CAST(said['rank'] AS INTEGER)) AS group_rank,
    TRY_CAST(string_split(coalesce(said['missed'], said['awaited']), ' ') AS INTEGER[]) AS missed,
    TRY_CAST(said['joined'] AS INTEGER) AS joined_count,
    TRY_CAST(said['members'] AS INTEGER) AS members_count,
    coalesce(said['of_all'] = '1' OR said['of_store'] = '1', false) AS is_of_all,
    coalesce(said['of_store'] = '1', false) AS is_of_store,
    TRY_CAST(said['ms'] AS DOUBLE) / 1e3 AS waited_s,
    TRY_CAST(said['other_rank'] AS INTEGER) AS other_rank,
    TRY_CAST(said['sequence'] AS BIGINT) AS sequence,
    said['op'] AS op,
    said['other_op'] AS other_op,
    said['shape'] AS shape,
    said['other_shape'] AS other_shape,
    source_id,
    place
FROM given
ORDER BY source_id, place, code;
