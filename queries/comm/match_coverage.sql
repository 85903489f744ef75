-- How many calls could be matched across ranks, and why others could not.
--
-- What was not matched cannot accuse anybody. The reasons say what to capture, and some of them are
-- faults: members that call different operations, sizes or types at the same place.
--
-- reads: collective, collective_match
-- needs: collective, collective_match
-- grain: attempt, group_id, method, is_trusted, reason
-- column: group_id VARCHAR : Communicator; null where the calls fit none.
-- column: method VARCHAR : sequence, order or pair.
-- column: is_trusted BOOLEAN : Whether the match may carry a claim.
-- column: reason VARCHAR : Why, or why not.
-- column: calls_count BIGINT : Calls.
-- column: instances_count BIGINT : Instances that they make up.
-- column: ranks INTEGER[] : Ranks that made them.
-- column: source_id INTEGER : Source of the first of them.
-- column: place BIGINT : Its place there.
-- column: first_start_ns BIGINT : When it started.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    calls AS (
        SELECT
            m.*,
            c.attempt,
            c.rank,
            c.start_ns,
            {'start_ns': c.start_ns, 'source_id': m.source_id, 'place': m.place} AS moment
        FROM collective_match AS m
        JOIN collective AS c USING (source_id, place)
        WHERE c.rank IS NOT NULL
    )
SELECT
    group_id,
    method,
    is_trusted,
    reason,
    count(*) AS calls_count,
    count(DISTINCT instance_id) AS instances_count,
    list_sort(list_distinct(list(rank))) AS ranks,
    min(moment).source_id AS source_id,
    min(moment).place AS place,
    min(start_ns) AS first_start_ns,
    attempt
FROM calls
GROUP BY attempt, group_id, method, is_trusted, reason
ORDER BY attempt, group_id, method, is_trusted, reason;
