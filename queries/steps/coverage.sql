-- What was captured of each rank: sources, captures, steps, time, and whether it is whole.
--
-- A diagnosis is only as sure as what it saw. Ranks that the job has and no source shows are rows
-- too, with status missing, unless a selection leaves them out.
--
-- reads: run, rank, source, source_context, step
-- grain: attempt, rank
-- column: rank INTEGER : Global rank.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: sources_count BIGINT : Files of the rank.
-- column: captures_count BIGINT : Capture windows.
-- column: steps_count BIGINT : Steps, warm-up and partial ones included.
-- column: warmup_count BIGINT : Steps before the job was steady.
-- column: partial_count BIGINT : Steps that the window cuts.
-- column: window_ns BIGINT : Time that its captures cover; null when no source says.
-- column: status VARCHAR : The worst of its sources: ok, partial, empty, unrecognised, unreadable;
--     missing without one.
WITH
    every_rank AS (
        SELECT attempt, CAST(unnest(range(world_size)) AS INTEGER) AS rank FROM run
        UNION
        SELECT attempt, rank FROM rank
    ),
    -- Who opens a part of a run sets these; null where all is selected.
    expected_ranks AS (
        SELECT every_rank.attempt, every_rank.rank
        FROM every_rank
        ANTI JOIN (
            SELECT
                unnest(
                    CAST(
                        getvariable('left_out_ranks')
                        AS STRUCT("attempt" INTEGER, "rank" INTEGER)[]
                    ),
                    recursive := TRUE
                )
        ) AS left_out USING (attempt, rank)
        WHERE
            getvariable('selected_ranks') IS NULL
            OR len(
                list_filter(
                    CAST(getvariable('selected_ranks') AS BIGINT[][]),
                    lambda s : every_rank.rank BETWEEN s[1] AND s[2]
                )
            ) > 0
    ),
    rank_sources AS (
        SELECT
            attempt,
            rank,
            capture_id,
            window_end_ns - window_start_ns AS window_ns,
            list_position(
                ['ok', 'partial', 'empty', 'unrecognised', 'unreadable'], status
            ) AS badness
        FROM source
        INNER JOIN source_context USING (source_id)
        WHERE rank IS NOT NULL
    ),
    captures AS (
        SELECT
            attempt,
            rank,
            capture_id,
            count(*) AS sources_count,
            max(window_ns) AS window_ns,
            max(badness) AS badness
        FROM rank_sources
        GROUP BY attempt, rank, capture_id
    ),
    captured AS (
        SELECT
            attempt,
            rank,
            CAST(sum(sources_count) AS BIGINT) AS sources_count,
            count(*) AS captures_count,
            CAST(sum(window_ns) AS BIGINT) AS window_ns,
            max(badness) AS badness
        FROM captures
        GROUP BY attempt, rank
    ),
    stepped AS (
        SELECT
            attempt,
            rank,
            count(*) AS steps_count,
            count(*) FILTER (WHERE is_warmup) AS warmup_count,
            count(*) FILTER (WHERE is_partial) AS partial_count
        FROM step
        GROUP BY attempt, rank
    )
SELECT
    rank,
    attempt,
    coalesce(sources_count, 0) AS sources_count,
    coalesce(captures_count, 0) AS captures_count,
    coalesce(steps_count, 0) AS steps_count,
    coalesce(warmup_count, 0) AS warmup_count,
    coalesce(partial_count, 0) AS partial_count,
    window_ns,
    CASE
        WHEN sources_count IS NULL THEN 'missing'
        ELSE ['ok', 'partial', 'empty', 'unrecognised', 'unreadable'][badness]
    END AS status
FROM expected_ranks
LEFT JOIN captured USING (attempt, rank)
LEFT JOIN stepped USING (attempt, rank)
ORDER BY attempt, rank;
