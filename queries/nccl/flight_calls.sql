-- Collectives that Flight Recorder dumps show unfinished, and which members did not join them.
--
-- A dump is a ring buffer: a member whose oldest entry is younger than the call is unknown, not
-- missing. A member without any dump is listed apart.
--
-- reads: comm_call, process_group
-- needs: comm_call
-- grain: attempt, group_id, sequence
-- column: group_id VARCHAR : Process group.
-- column: group_name VARCHAR : Its name.
-- column: sequence BIGINT : Sequence number within the group.
-- column: ops VARCHAR[] : Operations that members called there; more than one is a mismatch.
-- column: message_bytes BIGINT[] : Input sizes that members gave.
-- column: members INTEGER[] : Global ranks of the group.
-- column: joined_ranks INTEGER[] : Members that called it.
-- column: missing_ranks INTEGER[] : Members with a dump that shows that they did not.
-- column: silent_ranks INTEGER[] : Members without a dump.
-- column: states VARCHAR[] : States of the call, by rank.
-- column: is_finished BOOLEAN : Whether all who joined completed it.
-- column: source_id INTEGER : A source that shows it.
-- column: place BIGINT : Entry in it.
-- column: attempt INTEGER : Attempt of the job; null for dumps alone.
WITH
    members AS (
        SELECT attempt, group_id, max(ranks) AS ranks
        FROM process_group
        WHERE group_id IS NOT NULL AND ranks IS NOT NULL
        GROUP BY attempt, group_id
    ),
    entries AS (
        FROM comm_call
        WHERE world_rank IS NOT NULL AND sequence IS NOT NULL AND group_id IS NOT NULL
    ),
    dumped AS (SELECT DISTINCT attempt, world_rank FROM entries),
    firsts AS (
        SELECT attempt, group_id, world_rank, min(sequence) AS first_sequence
        FROM entries
        GROUP BY attempt, group_id, world_rank
    ),
    calls AS (
        SELECT
            attempt,
            group_id,
            sequence,
            min(group_name) AS group_name,
            list(DISTINCT op ORDER BY op) FILTER (op IS NOT NULL) AS ops,
            list(DISTINCT message_bytes ORDER BY message_bytes)
                FILTER (message_bytes IS NOT NULL) AS message_bytes,
            list(DISTINCT world_rank ORDER BY world_rank) AS joined_ranks,
            list(state ORDER BY world_rank, state) AS states,
            bool_and(coalesce(state = 'completed', FALSE)) AS is_finished,
            min(source_id) AS source_id,
            arg_min(place, {'source_id': source_id, 'place': place}) AS place
        FROM entries
        GROUP BY attempt, group_id, sequence
    ),
    absent AS (
        SELECT
            calls.attempt AS attempt,
            calls.group_id AS group_id,
            calls.sequence AS sequence,
            ranks.rank AS rank,
            dumped.world_rank IS NOT NULL AS has_dump,
            coalesce(firsts.first_sequence <= calls.sequence, TRUE) AS is_known
        FROM calls
        JOIN members
            ON members.group_id = calls.group_id
            AND members.attempt IS NOT DISTINCT FROM calls.attempt
        CROSS JOIN unnest(members.ranks) AS ranks (rank)
        LEFT JOIN dumped
            ON dumped.world_rank = ranks.rank AND dumped.attempt IS NOT DISTINCT FROM calls.attempt
        LEFT JOIN firsts
            ON firsts.group_id = calls.group_id
            AND firsts.world_rank = ranks.rank
            AND firsts.attempt IS NOT DISTINCT FROM calls.attempt
        WHERE NOT list_contains(calls.joined_ranks, ranks.rank)
    ),
    absences AS (
        SELECT
            attempt,
            group_id,
            sequence,
            list(rank ORDER BY rank) FILTER (has_dump AND is_known) AS missing_ranks,
            list(rank ORDER BY rank) FILTER (NOT has_dump) AS silent_ranks
        FROM absent
        GROUP BY attempt, group_id, sequence
    )
SELECT
    calls.group_id AS group_id,
    calls.group_name AS group_name,
    calls.sequence AS sequence,
    calls.ops AS ops,
    calls.message_bytes AS message_bytes,
    members.ranks AS members,
    calls.joined_ranks AS joined_ranks,
    absences.missing_ranks AS missing_ranks,
    absences.silent_ranks AS silent_ranks,
    calls.states AS states,
    calls.is_finished AS is_finished,
    calls.source_id AS source_id,
    calls.place AS place,
    calls.attempt AS attempt
FROM calls
LEFT JOIN members
    ON members.group_id = calls.group_id AND members.attempt IS NOT DISTINCT FROM calls.attempt
LEFT JOIN absences
    ON
        absences.group_id = calls.group_id
        AND absences.sequence = calls.sequence
        AND absences.attempt IS NOT DISTINCT FROM calls.attempt
WHERE NOT calls.is_finished OR len(calls.ops) > 1 OR len(absences.missing_ranks) > 0
ORDER BY attempt, group_id, sequence;
