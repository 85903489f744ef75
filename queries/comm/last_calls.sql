-- The last call of each member on each communicator, and how long its trace goes on after it.
--
-- The evidence of collective-hang: where a job hangs, members stop at different calls, and their
-- traces go on without another.
--
-- reads: collective, collective_match, source
-- needs: collective, collective_match
-- grain: attempt, capture_id, group_id, rank
-- shows: device
-- asked: report
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: rank INTEGER : Member.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: op VARCHAR : Operation of its last call.
-- column: last_call BIGINT : Number of its last call, as in collective_match.call_index.
-- column: calls_count BIGINT : Its calls.
-- column: last_start_ns BIGINT : When the last began.
-- column: last_dur_ns BIGINT : How long it took.
-- column: usual_dur_ns DOUBLE : Median duration of its calls.
-- column: silence_ns BIGINT : From the end of the last to the end of its trace; null when unknown.
-- column: longest_gap_ns BIGINT : Longest time between two of its calls; null with one.
-- column: is_told BOOLEAN : Whether its trace states the communicator of its calls: else the
--     members are guessed by behaviour.
-- column: source_id INTEGER : Source of the last call.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    calls AS (
        SELECT
            m.group_id,
            m.call_index,
            c.attempt,
            c.capture_id,
            c.rank,
            c.op,
            c.group_id IS NOT NULL OR c.group_name IS NOT NULL AS is_told,
            c.source_id,
            c.place,
            c.start_ns,
            c.dur_ns,
            c.start_ns + c.dur_ns AS end_ns,
            c.start_ns - lag(c.start_ns + c.dur_ns) OVER member AS gap_ns,
            row_number() OVER (member ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS nth,
            count(*) OVER (
                PARTITION BY c.attempt, c.capture_id, m.group_id, c.rank
            ) AS calls_count
        FROM collective_match AS m
        JOIN collective AS c USING (source_id, place)
        WHERE m.instance_id IS NOT NULL AND c.rank IS NOT NULL
        WINDOW member AS (
            PARTITION BY c.attempt, c.capture_id, m.group_id, c.rank
            ORDER BY m.call_index, c.start_ns, c.source_id, c.place
        )
    ),
    usual AS (
        SELECT
            attempt,
            capture_id,
            group_id,
            rank,
            median(dur_ns) AS usual_dur_ns,
            max(gap_ns) AS longest_gap_ns,
            bool_or(is_told) AS is_told
        FROM calls
        GROUP BY attempt, capture_id, group_id, rank
    )
SELECT
    group_id,
    rank,
    capture_id,
    op,
    call_index AS last_call,
    calls_count,
    start_ns AS last_start_ns,
    dur_ns AS last_dur_ns,
    usual_dur_ns,
    window_end_ns - end_ns AS silence_ns,
    longest_gap_ns,
    usual.is_told AS is_told,
    source_id,
    place,
    attempt
FROM calls
JOIN usual USING (attempt, capture_id, group_id, rank)
LEFT JOIN (SELECT source_id, window_end_ns FROM source) USING (source_id)
WHERE nth = calls_count
ORDER BY attempt, capture_id, group_id, rank;
