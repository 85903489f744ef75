-- Every file that was given, with what it was recognised as and how much of it was usable.
--
-- A report names its inputs before its findings: who trusts a diagnosis of eight ranks must know
-- that three of the files broke off.
--
-- reads: source
-- grain: source_id
-- column: source_id INTEGER : Source.
-- column: path VARCHAR : Path as given; archive members as archive!member.
-- column: kind VARCHAR : What it was recognised as; null when not at all.
-- column: status VARCHAR : ok, partial, empty, unreadable or unrecognised.
-- column: rows_count BIGINT : Rows written from it over all tables.
-- column: reason VARCHAR : Why it was not read whole, or not at all, or what it says where it
--     gave no row; null elsewhere.
SELECT
    source_id,
    path,
    kind,
    coalesce(status, 'ok') AS status,
    coalesce(rows_count, 0) AS rows_count,
    CASE WHEN status <> 'ok' OR coalesce(rows_count, 0) = 0 THEN reason END AS reason
FROM source
ORDER BY path, source_id;
