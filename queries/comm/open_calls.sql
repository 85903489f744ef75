-- How far each member had come where a collective was asked for and no kernel finished it.
--
-- The evidence of collective-hang where the kernel that hangs is in no trace, since it never ended.
-- Only communicators with such a call, all members with a trace. Point-to-point calls only
-- count as open elsewhere: who waits for whom in them is not told by counting.
--
-- An export without NCCL's payloads names no communicator. Its calls are of the one that its rank
-- communicates on if the trace shows its process creating one and no other.
--
-- reads: open_collective, collective, collective_match, comm_group, gpu_op, annotation, source
-- needs: open_collective
-- grain: attempt, capture_id, group_id, rank
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: group_name VARCHAR : Its name; null when none.
-- column: members INTEGER[] : All members; null when not all are known.
-- column: members_count INTEGER : How many there are; null when unknown.
-- column: rank INTEGER : Member.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: last_call BIGINT : Number of its last finished call, as in collective_match.call_index.
-- column: open_count BIGINT : Calls asked for after it.
-- column: asked_sequence BIGINT : Sequence number of the last call that it asked for, or finished;
--     null when the trace states none.
-- column: first_open_sequence BIGINT : Sequence number of the first call that is open.
-- column: elsewhere_count BIGINT : Calls that this member has open elsewhere.
-- column: before_count BIGINT : Of them, those that it asked for before its first open call here.
-- column: op VARCHAR : Operation of the first call that is open; null without one.
-- column: standing_ns BIGINT : From its last collective, its first open call and its last work on
--     the device, whichever came last, to the end of its trace; null when unknown.
-- column: longest_gap_ns BIGINT : Longest time between two of its finished calls; null with one.
-- column: is_told BOOLEAN : Whether its trace tells the communicator of its calls: else a
--     call that it asked for and that no kernel finished cannot be seen.
-- column: is_cut BOOLEAN : Whether its trace is truncated or was read in part.
-- column: source_id INTEGER : Source of its first open call, else of its last finished one.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    -- Most runs have none, and then nothing below is read.
    captures AS (SELECT DISTINCT attempt, capture_id FROM open_collective),
    calls AS (
        SELECT
            c.attempt,
            c.capture_id,
            m.group_id,
            c.rank,
            c.group_id AS stated_id,
            c.group_name,
            c.sequence,
            coalesce(c.is_p2p, FALSE) AS is_p2p,
            m.call_index,
            c.start_ns + c.dur_ns AS end_ns,
            c.start_ns - lag(c.start_ns + c.dur_ns) OVER member AS gap_ns,
            c.source_id,
            c.place
        FROM collective AS c
        SEMI JOIN captures ON captures.attempt = c.attempt AND captures.capture_id = c.capture_id
        JOIN collective_match AS m USING (source_id, place)
        WHERE
            m.instance_id IS NOT NULL
            AND c.rank IS NOT NULL
            AND c.timeline = 'device'
        WINDOW member AS (
            PARTITION BY c.attempt, c.capture_id, m.group_id, c.rank
            ORDER BY m.call_index, c.start_ns, c.source_id, c.place
        )
    ),
    finished AS (
        SELECT
            attempt,
            capture_id,
            group_id,
            rank,
            max(call_index) AS last_call,
            max(sequence) AS last_sequence,
            max(end_ns) AS end_ns,
            max(gap_ns) AS longest_gap_ns,
            max({'end_ns': end_ns, 'source_id': source_id, 'place': place}) AS last
        FROM calls
        WHERE NOT is_p2p
        GROUP BY attempt, capture_id, group_id, rank
    ),
    seen AS (
        SELECT DISTINCT
            attempt,
            capture_id,
            rank,
            stated_id,
            group_name,
            group_id,
            stated_id IS NOT NULL OR group_name IS NOT NULL AS is_named
        FROM calls
        WHERE NOT is_p2p
    ),
    -- Ranks of which the trace shows how each communicator came to be, and there is one.
    single AS (
        SELECT attempt, capture_id, rank
        FROM annotation
        SEMI JOIN captures USING (attempt, capture_id)
        WHERE name LIKE 'ncclComm%' AND regexp_matches(name, '^ncclComm(Init|Split|Shrink|Grow)')
        GROUP BY attempt, capture_id, rank
        HAVING count(*) = 1 AND bool_and(name LIKE 'ncclCommInitRank%')
    ),
    alone AS (
        SELECT attempt, capture_id, rank
        FROM (SELECT DISTINCT attempt, capture_id, rank, group_id, is_named FROM seen)
        SEMI JOIN single USING (attempt, capture_id, rank)
        GROUP BY attempt, capture_id, rank
        HAVING count(*) = 1 AND NOT bool_or(is_named)
    ),
    stated AS (
        FROM seen
        WHERE is_named
        UNION ALL
        FROM seen
        SEMI JOIN alone USING (attempt, capture_id, rank)
    ),
    told AS (SELECT DISTINCT attempt, capture_id, rank, group_id FROM stated),
    opened AS (
        SELECT
            o.attempt,
            o.capture_id,
            stated.group_id,
            o.rank,
            count(*) AS open_count,
            max(o.sequence) AS last_sequence,
            min(o.enqueue_ns) AS enqueue_ns,
            min({
                'enqueue_ns': o.enqueue_ns,
                'source_id': o.source_id,
                'place': o.place,
                'op': o.op,
                'sequence': o.sequence
            }) AS first
        FROM open_collective AS o
        JOIN stated
            ON stated.attempt = o.attempt
            AND stated.capture_id = o.capture_id
            AND stated.rank = o.rank
            AND stated.stated_id IS NOT DISTINCT FROM o.group_id
            AND stated.group_name IS NOT DISTINCT FROM o.group_name
        WHERE NOT coalesce(o.is_p2p, FALSE)
        GROUP BY o.attempt, o.capture_id, stated.group_id, o.rank
    ),
    elsewhere AS (
        SELECT
            f.attempt,
            f.capture_id,
            f.group_id,
            f.rank,
            count(*) AS elsewhere_count,
            count(*) FILTER (o.enqueue_ns < opened.enqueue_ns) AS before_count
        FROM finished AS f
        JOIN open_collective AS o
            ON o.attempt = f.attempt AND o.capture_id = f.capture_id AND o.rank = f.rank
        LEFT JOIN stated
            ON stated.attempt = o.attempt
            AND stated.capture_id = o.capture_id
            AND stated.rank = o.rank
            AND stated.stated_id IS NOT DISTINCT FROM o.group_id
            AND stated.group_name IS NOT DISTINCT FROM o.group_name
        LEFT JOIN opened
            ON opened.attempt = f.attempt
            AND opened.capture_id = f.capture_id
            AND opened.group_id = f.group_id
            AND opened.rank = f.rank
        WHERE coalesce(o.is_p2p, FALSE) OR stated.group_id IS DISTINCT FROM f.group_id
        GROUP BY f.attempt, f.capture_id, f.group_id, f.rank
    ),
    busy AS (
        SELECT attempt, capture_id, rank, max(start_ns + dur_ns) AS end_ns
        FROM gpu_op
        SEMI JOIN captures USING (attempt, capture_id)
        GROUP BY attempt, capture_id, rank
    ),
    moments AS (
        SELECT
            f.attempt,
            f.capture_id,
            f.group_id,
            f.rank,
            f.last_call,
            coalesce(opened.open_count, 0) AS open_count,
            coalesce(opened.last_sequence, f.last_sequence) AS asked_sequence,
            opened.first.sequence AS first_open_sequence,
            coalesce(elsewhere.elsewhere_count, 0) AS elsewhere_count,
            coalesce(elsewhere.before_count, 0) AS before_count,
            opened.first.op AS op,
            greatest(f.end_ns, opened.enqueue_ns, busy.end_ns) AS still_since_ns,
            f.longest_gap_ns,
            told.rank IS NOT NULL AS is_told,
            coalesce(opened.first.source_id, f.last.source_id) AS source_id,
            coalesce(opened.first.place, f.last.place) AS place
        FROM finished AS f
        SEMI JOIN opened USING (attempt, capture_id, group_id)
        LEFT JOIN opened USING (attempt, capture_id, group_id, rank)
        LEFT JOIN elsewhere USING (attempt, capture_id, group_id, rank)
        LEFT JOIN told USING (attempt, capture_id, group_id, rank)
        LEFT JOIN busy USING (attempt, capture_id, rank)
    )
SELECT
    m.group_id AS group_id,
    g.name AS group_name,
    g.ranks AS members,
    g.members_count AS members_count,
    m.rank AS rank,
    m.capture_id AS capture_id,
    m.last_call AS last_call,
    m.open_count AS open_count,
    m.asked_sequence AS asked_sequence,
    m.first_open_sequence AS first_open_sequence,
    m.elsewhere_count AS elsewhere_count,
    m.before_count AS before_count,
    m.op AS op,
    s.window_end_ns - m.still_since_ns AS standing_ns,
    m.longest_gap_ns AS longest_gap_ns,
    m.is_told AS is_told,
    coalesce(s.is_truncated_end, FALSE) OR coalesce(s.status <> 'ok', TRUE) AS is_cut,
    m.source_id AS source_id,
    m.place AS place,
    m.attempt AS attempt
FROM moments AS m
LEFT JOIN comm_group AS g ON g.attempt = m.attempt AND g.group_id = m.group_id
LEFT JOIN source AS s ON s.source_id = m.source_id
ORDER BY attempt, capture_id, group_id, rank;
