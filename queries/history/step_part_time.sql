-- How long parts of a step take by the training log's timers: of each rank, or least and most.
--
-- Megatron-LM prints them below a step's line: with --timing-log-option all of every rank, else the
-- shortest and longest only. A part within which ranks communicate is as long as the slowest makes
-- it, so a long one is no blame.
--
-- reads: job_step_part, logged_step
-- needs: job_step_part, logged_step
-- grain: start_number, name, part_rank
-- column: start_number INTEGER : Start of the training loop, from 1.
-- column: name VARCHAR : Part, as the program calls it.
-- column: part_rank INTEGER : Rank; null: all ranks together, or one that is not named.
-- column: times_count BIGINT : How often the timers were printed.
-- column: p50_ns DOUBLE : Median of the rank's times.
-- column: usual_ns DOUBLE : Median of what the median rank took each time; null without ranks.
-- column: ranks_count BIGINT : Ranks that are told of; null without ranks.
-- column: longest_count BIGINT : How often no rank took longer; null without ranks.
-- column: min_ns DOUBLE : Median of the shortest over ranks; null where only ranks are told.
-- column: max_ns DOUBLE : Median of the longest over ranks; null where only ranks are told.
-- column: step_ns DOUBLE : Median duration of the steps of these lines; null where they say none.
-- column: source_id INTEGER : File of the first.
-- column: place BIGINT : Its line.
WITH
    placed AS (
        SELECT
            line.start_number,
            line.place AS line_place,
            line.dur_ns AS step_ns,
            part.source_id,
            part.place,
            part.name,
            part.part_rank,
            part.dur_ns,
            part.min_ns,
            part.max_ns
        FROM job_step_part AS part
        ASOF JOIN logged_step AS line
            ON part.source_id = line.source_id
            AND part.place >= line.place
    ),
    beside AS (
        SELECT
            *,
            CASE WHEN part_rank IS NOT NULL THEN median(dur_ns) OVER each_time END AS median_ns,
            CASE
                WHEN part_rank IS NOT NULL
                THEN CAST(dur_ns >= max(dur_ns) OVER each_time AS BIGINT)
            END AS is_longest
        FROM placed
        WINDOW
            each_time AS (PARTITION BY source_id, line_place, name, part_rank IS NULL)
    ),
    told AS (
        SELECT
            start_number,
            name,
            part_rank,
            count(*) AS times_count,
            quantile_cont(dur_ns, 0.5) AS p50_ns,
            quantile_cont(median_ns, 0.5) AS usual_ns,
            CAST(sum(is_longest) AS BIGINT) AS longest_count,
            quantile_cont(min_ns, 0.5) AS min_ns,
            quantile_cont(max_ns, 0.5) AS max_ns,
            quantile_cont(step_ns, 0.5) AS step_ns,
            min(source_id) AS source_id,
            arg_min(place, (source_id, place)) AS place
        FROM beside
        GROUP BY start_number, name, part_rank
    )
SELECT
    start_number,
    name,
    part_rank,
    times_count,
    p50_ns,
    usual_ns,
    CASE
        WHEN part_rank IS NOT NULL
        THEN count(part_rank) OVER (PARTITION BY start_number, name)
    END AS ranks_count,
    longest_count,
    min_ns,
    max_ns,
    step_ns,
    source_id,
    place
FROM told
ORDER BY start_number, name, part_rank;
