-- What PyTorch's NCCL watchdog said of each rank: what timed out, and how far the rank had come.
--
-- The rank whose last enqueued work is lowest is the one that the others wait for. Numbers count
-- within a process group.
--
-- reads: log_event, process_group
-- needs: log_event
-- grain: source_id, place, code
-- column: code VARCHAR : watchdog-timeout, watchdog-error or watchdog-progress.
-- column: group_name VARCHAR : Process group; null in old releases.
-- column: group_rank INTEGER : Rank within the group.
-- column: world_rank INTEGER : Global rank; null where the line does not state it.
-- column: sequence BIGINT : Sequence number of the work.
-- column: op VARCHAR : Operation.
-- column: numel_in BIGINT : Input elements.
-- column: numel_out BIGINT : Output elements.
-- column: last_enqueued BIGINT : Last work enqueued; null unless stated.
-- column: last_completed BIGINT : Last work completed; null unless stated or where it was junk.
-- column: members INTEGER[] : Global ranks of the group, as traces or dumps list them by its name;
--     null where they do not, or not with one voice.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Line.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
WITH
    lines AS (
        SELECT
            *,
            map_from_entries(list_distinct([
                {'k': split_part(f, '=', 1), 'v': split_part(f, '=', 2)} FOR f IN fields
            ])) AS given
        FROM log_event
        WHERE code LIKE 'watchdog-%' AND len(fields) = len(list_distinct([
            split_part(f, '=', 1) FOR f IN fields
        ]))
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
    given['group'] AS group_name,
    TRY_CAST(given['rank'] AS INTEGER) AS group_rank,
    TRY_CAST(given['world_rank'] AS INTEGER) AS world_rank,
    TRY_CAST(given['sequence'] AS BIGINT) AS sequence,
    given['op'] AS op,
    TRY_CAST(given['numel_in'] AS BIGINT) AS numel_in,
    TRY_CAST(given['numel_out'] AS BIGINT) AS numel_out,
    TRY_CAST(given['last_enqueued'] AS BIGINT) AS last_enqueued,
    TRY_CAST(given['last_completed'] AS BIGINT) AS last_completed,
    listed.ranks AS members,
    source_id,
    place,
    attempt
-- The name of PyTorch's own is the identifier before the description.
FROM lines
LEFT JOIN listed ON listed.name = regexp_replace(given['group'], '\(.*$', '')
ORDER BY source_id, place, code;
