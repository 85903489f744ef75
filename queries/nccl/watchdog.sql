-- What PyTorch's NCCL watchdog said of each rank: what timed out, and how far the rank had come.
--
-- The rank whose last enqueued work is lowest is the one that the others wait for. Numbers count
-- within a process group.
--
-- reads: log_event, process_group
-- needs: log_event
-- grain: source_id, place, code
-- column: code VARCHAR : watchdog-timeout, watchdog-error or watchdog-progress; watchdog-told where
--     a rank says that a collective timed out, and not which; watchdog-stuck where the watchdog
--     itself stood still.
-- column: group_name VARCHAR : Process group; null in old releases. Releases that name it only in
--     the exception which follows a timeout have it from there, for the same rank and work.
-- column: group_rank INTEGER : Rank within the group.
-- column: world_rank INTEGER : Global rank; null where the line does not state it.
-- column: sequence BIGINT : Sequence number of the work.
-- column: op VARCHAR : Operation.
-- column: numel_in BIGINT : Input elements.
-- column: numel_out BIGINT : Output elements.
-- column: last_enqueued BIGINT : Last work enqueued; null unless stated.
-- column: last_completed BIGINT : Last work completed; null unless stated or where it was junk.
-- column: is_timed_out BOOLEAN : Whether the work of a watchdog-progress is said to have timed out;
--     null where it may have failed otherwise.
-- column: stood_s BIGINT : How long the watchdog stood still; null unless stated.
-- column: members INTEGER[] : Global ranks of the group, as traces or dumps list them by its name;
--     null where they do not, or not with one voice.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Line.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
WITH
    lines AS (
        SELECT
            *,
            named_fields(fields) AS given
        FROM log_event
        WHERE code LIKE 'watchdog-%' AND given IS NOT NULL
    ),
    said AS (
        SELECT
            *,
            given['group'] AS named,
            TRY_CAST(given['rank'] AS INTEGER) AS group_rank,
            TRY_CAST(given['world_rank'] AS INTEGER) AS world_rank,
            -- By the job's rank, or by the group's where no line states the job's.
            coalesce(world_rank, group_rank) AS speaker,
            world_rank IS NULL AS is_groups,
            TRY_CAST(given['sequence'] AS BIGINT) AS sequence
        FROM lines
    ),
    excepted AS (
        SELECT source_id, sequence, speaker, is_groups, any_value(named) AS exception_group
        FROM said
        WHERE named IS NOT NULL AND sequence IS NOT NULL
        GROUP BY ALL
        HAVING count(DISTINCT named) = 1
    ),
    listed AS (
        SELECT name, max(list_sort(ranks)) AS ranks
        FROM process_group
        WHERE name IS NOT NULL AND ranks IS NOT NULL AND coalesce(is_ranks_complete, TRUE)
        GROUP BY name
        HAVING count(DISTINCT list_sort(ranks)) = 1
    )
SELECT
    code,
    coalesce(named, exception_group) AS group_name,
    group_rank,
    world_rank,
    sequence,
    given['op'] AS op,
    TRY_CAST(given['numel_in'] AS BIGINT) AS numel_in,
    TRY_CAST(given['numel_out'] AS BIGINT) AS numel_out,
    TRY_CAST(given['last_enqueued'] AS BIGINT) AS last_enqueued,
    TRY_CAST(given['last_completed'] AS BIGINT) AS last_completed,
    TRY_CAST(given['is_timed_out'] AS BOOLEAN) AS is_timed_out,
    TRY_CAST(given['stood_s'] AS BIGINT) AS stood_s,
    listed.ranks AS members,
    source_id,
    place,
    attempt
FROM said
LEFT JOIN excepted USING (source_id, sequence, speaker, is_groups)
-- The name of PyTorch's own is the identifier before the description.
LEFT JOIN listed ON listed.name = regexp_replace(coalesce(named, exception_group), '\(.*$', '')
ORDER BY source_id, place, code;
