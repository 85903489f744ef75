-- Which ranks have a source, where they ran, and what their numbers rest on.
--
-- A guessed rank is never printed without its file, and a time is printed as UTC only where the
-- rank's clock counts from the epoch.
--
-- reads: rank, source
-- grain: attempt, rank
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: rank INTEGER : Global rank.
-- column: rank_source VARCHAR : Where the rank's number came from (IDENTITY_SOURCES).
-- column: host VARCHAR : Canonical host; null when unknown.
-- column: path VARCHAR : First file of the rank.
-- column: is_epoch BOOLEAN : Whether its times count from the epoch.
-- column: pp_rank INTEGER : Its pipeline stage; null when unknown.
SELECT
    attempt,
    rank.rank AS rank,
    rank_source,
    host,
    path,
    coalesce(time_basis = 'epoch', FALSE) AS is_epoch,
    pp_rank
FROM rank
LEFT JOIN source ON source.source_id = rank.source_id
ORDER BY attempt, rank;
