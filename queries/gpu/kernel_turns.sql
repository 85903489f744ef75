-- Kernels that now and then last longer than they do, all by the same: turns that another took.
--
-- The evidence of gpu-contention in a trace alone. A GPU that two programs share without MPS gives
-- each a slice of time. A kernel that the slice ends in lasts as long as always and the other's
-- slice beside, whatever kernel it is: the excess is one length over kernels of many names, and
-- falls on another one in each step. What a kernel lasts otherwise is the least of the kernels of
-- its name at its place in the other steps, which does the same work. Clocks and memory stretch all
-- of them, and by a share of each; larger inputs in some steps stretch some, each by its own.
--
-- reads: gpu_op
-- grain: attempt, rank, capture_id, step
-- param: turn_ns BIGINT = 1000000 : Least excess of a kernel; slices of the driver are 1 to 4 ms.
-- param: times DOUBLE = 2 : And so often the median of its name: a kernel beyond its others.
-- column: rank INTEGER : Global rank.
-- column: capture_id INTEGER : Capture window of the rank, from 0.
-- column: step BIGINT : Job-level step; steps without such a kernel are absent.
-- column: turns_count BIGINT : Kernels with such an excess.
-- column: names_count BIGINT : Different names among them.
-- column: kernels_count BIGINT : Kernels of the step with one of their names.
-- column: turns_ns BIGINT : Their excess, all of it.
-- column: over_ns BIGINT : The excess of all kernels with one of their names, turns or not.
-- column: p10_ns DOUBLE : A tenth of the excesses are no longer.
-- column: p50_ns DOUBLE : Their median.
-- column: p90_ns DOUBLE : A tenth are no shorter.
-- column: source_id INTEGER : Source of the kernel with most.
-- column: place BIGINT : Place of that.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    kernels AS (
        SELECT
            capture_key(attempt, rank, capture_id) AS key,
            step,
            name,
            start_ns,
            dur_ns,
            source_id,
            place
        FROM gpu_op
        WHERE category = 'kernel' AND class <> 'communication' AND step IS NOT NULL
    ),
    usual AS (
        SELECT key, name, median(dur_ns) AS p50_ns
        FROM kernels
        GROUP BY key, name
        HAVING max(dur_ns) >= p50_ns + $turn_ns AND max(dur_ns) >= $times * p50_ns
    ),
    placed AS (
        SELECT
            kernels.*,
            p50_ns,
            row_number() OVER (
                PARTITION BY kernels.key, step, kernels.name ORDER BY start_ns, place
            ) AS number
        FROM kernels
        JOIN usual USING (key, name)
    ),
    judged AS (
        SELECT
            *,
            dur_ns - min(dur_ns) OVER (PARTITION BY key, name, number) AS over_ns
        FROM placed
    ),
    struck AS (
        SELECT
            *,
            over_ns >= $turn_ns AND dur_ns >= $times * p50_ns AS is_turn
        FROM judged
    )
SELECT
    rank_of(key) AS rank,
    capture_id_of(key) AS capture_id,
    step,
    count(*) FILTER (is_turn) AS turns_count,
    count(DISTINCT name) FILTER (is_turn) AS names_count,
    count(*) AS kernels_count,
    CAST(sum(over_ns) FILTER (is_turn) AS BIGINT) AS turns_ns,
    CAST(sum(over_ns) AS BIGINT) AS over_ns,
    quantile_cont(over_ns, 0.1) FILTER (is_turn) AS p10_ns,
    quantile_cont(over_ns, 0.5) FILTER (is_turn) AS p50_ns,
    quantile_cont(over_ns, 0.9) FILTER (is_turn) AS p90_ns,
    arg_min(
        source_id, {'shortness_ns': -over_ns, 'source_id': source_id, 'place': place}
    ) AS source_id,
    arg_min(place, {'shortness_ns': -over_ns, 'source_id': source_id, 'place': place}) AS place,
    attempt_of(key) AS attempt
FROM struck
GROUP BY key, step
HAVING turns_count > 0
ORDER BY attempt, rank, capture_id, step;
