-- What a rank sends in a steady step, by kind of group and operation, beside what the layout needs.
--
-- Bytes are what one rank sends, ring factors included: 2 (n-1)/n of the message for an
-- all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, all of it for the rest. Mean
-- over the ranks that do it. Of a message between two ranks the send counts. An operation belongs
-- to the step that asked for it: a GPU may run it later. Those outside steady steps are left out.
--
-- The expected columns follow from a job description (`tracekit expect`); they are filled in for
-- `tracekit query` and Python where one was given, and null in SQL. Where a description leaves a
-- choice open (embeddings tied or not), the choice nearest to what was seen is taken and named in
-- `basis`.
--
-- reads: collective, collective_match, comm_group, process_group, rank, step
-- needs: collective
-- grain: attempt, group_kind, op
-- asked: report
-- column: group_kind VARCHAR : tp, pp, dp, ep, cp, dp_replicate (replicas of shards), edp (replicas
--     of experts), embedding, world; null where not known.
-- column: op VARCHAR : all_reduce, all_gather, ..., send.
-- column: calls_per_step DOUBLE : Calls of a rank in a step.
-- column: bytes_per_step DOUBLE : What it sends; null where the bytes of a call are unknowable.
-- column: expected_calls DOUBLE : Calls that the layout needs, in one piece each.
-- column: expected_bytes DOUBLE : Bytes that the layout needs.
-- column: observed_ratio DOUBLE : Observed over expected bytes; null where either is unknown.
-- column: attempt INTEGER : Attempt of the job, from 1.
-- column: group_size INTEGER : Members of the largest such group; null where not known.
-- column: ranks_count BIGINT : Ranks that do it.
-- column: largest_bytes BIGINT : Largest message.
-- column: dtype VARCHAR : Element type of most of the bytes; null where not known.
-- column: hosts_count BIGINT : Hosts of the most spread-out group of the kind; null where a member
--     or its host is not known.
-- column: expected_most_bytes DOUBLE : The most that any choice of implementation would send.
-- column: expected_domain VARCHAR : nvlink or network: where the layout puts these groups.
-- column: basis VARCHAR : Choices that were taken, and fields that were assumed for want of being
--     given; null where the expectation rests on nothing else.
-- completed: job
-- source: Diagnosis 3.6 and 3.8.
WITH
    steady AS (FROM step_windows() WHERE NOT is_warmup AND NOT is_partial),
    steps AS (
        SELECT attempt, rank, count(*) AS steps_count FROM steady GROUP BY attempt, rank
    ),
    -- Names say what a group is for; behaviour may take the embedding's pair for data parallel.
    -- One set of ranks can be several groups, so the name in the rows decides which.
    named AS (
        SELECT
            source_id,
            group_id,
            name,
            any_value(upper(description) ORDER BY description) AS description
        FROM process_group
        WHERE description IS NOT NULL AND group_id IS NOT NULL
        GROUP BY source_id, group_id, name
    ),
    families AS (
        SELECT
            source_id,
            group_id,
            name,
            CASE
                WHEN
                    regexp_full_match(
                        description, 'TENSOR_MODEL_PARALLEL_GROUP|MESH_(TP|TENSOR(_PARALLEL)?)'
                    )
                    THEN 'tp'
                WHEN regexp_full_match(description, 'CONTEXT_PARALLEL_GROUP|MESH_(CP|CONTEXT)')
                    THEN 'cp'
                WHEN
                    regexp_full_match(
                        description, 'PIPELINE_MODEL_PARALLEL_GROUP|MESH_(PP|PIPELINE)'
                    )
                    THEN 'pp'
                WHEN regexp_full_match(description, 'EXPERT_MODEL_PARALLEL_GROUP|MESH_(EP|EXPERT)')
                    THEN 'ep'
                WHEN
                    regexp_full_match(
                        description, 'EXPERT_DATA_PARALLEL_GROUP|MESH_(.*_(MOD|IN)_EP|EFSDP)'
                    )
                    THEN 'edp'
                WHEN regexp_full_match(description, '(POSITION_)?EMBEDDING_GROUP|MESH_EMBEDDING')
                    THEN 'embedding'
                WHEN
                    regexp_full_match(
                        description,
                        '(MESH_(DP_)?)?REPLICATE|MESH_DDP'
                        || '|INTER_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP'
                    )
                    THEN 'dp_replicate'
                WHEN
                    regexp_full_match(
                        description,
                        '(INTRA_PARTIAL_)?DATA_PARALLEL_GROUP(_WITH_CP)?'
                        || '|MESH_(FSDP|SHARD|DATA(_PARALLEL)?|BATCH|LOSS)|MESH_DP(_SHARD)?(_CP)?'
                    )
                    THEN 'dp'
            END AS family
        FROM named
    ),
    places AS (
        SELECT attempt, rank, any_value(host ORDER BY host) AS host
        FROM rank
        GROUP BY attempt, rank
    ),
    members AS (
        SELECT attempt, group_id, unnest(ranks) AS rank FROM comm_group WHERE ranks IS NOT NULL
    ),
    spread AS (
        SELECT
            attempt,
            group_id,
            if(count(host) = count(*), count(DISTINCT host), NULL) AS hosts_count
        FROM members
        LEFT JOIN places USING (attempt, rank)
        GROUP BY attempt, group_id
    ),
    calls AS (
        SELECT
            c.attempt,
            c.rank,
            coalesce(f.family, g.kind) AS group_kind,
            c.op,
            c.message_bytes,
            c.dtype,
            w.hosts_count,
            nullif(coalesce(g.members_count, c.group_size), 0) AS members_count
        FROM (SELECT collective.*, coalesce(enqueue_ns, start_ns) AS asked_ns FROM collective) AS c
        LEFT JOIN collective_match AS m USING (source_id, place)
        LEFT JOIN comm_group AS g ON g.attempt = c.attempt AND g.group_id = m.group_id
        LEFT JOIN spread AS w ON w.attempt = c.attempt AND w.group_id = m.group_id
        LEFT JOIN families AS f
            ON
                f.source_id = c.source_id
                AND f.group_id = c.group_id
                AND f.name IS NOT DISTINCT FROM c.group_name
        ASOF JOIN steady AS s
            ON
                c.attempt = s.attempt
                AND c.rank = s.rank
                AND c.capture_id = s.capture_id
                AND c.asked_ns >= s.start_ns
        WHERE c.asked_ns < s.end_ns AND c.op IS NOT NULL AND c.op <> 'recv'
    ),
    types AS (
        SELECT
            attempt,
            group_kind,
            op,
            arg_max(dtype, {'bytes': type_bytes, 'dtype': dtype}) AS dtype
        FROM (
            SELECT attempt, group_kind, op, dtype, sum(message_bytes) AS type_bytes
            FROM calls
            WHERE dtype IS NOT NULL AND message_bytes IS NOT NULL
            GROUP BY attempt, group_kind, op, dtype
        )
        GROUP BY attempt, group_kind, op
    ),
    rank_calls AS (
        SELECT
            attempt,
            rank,
            group_kind,
            op,
            count(*) AS calls_count,
            max(members_count) AS group_size,
            max(message_bytes) AS largest_bytes,
            if(count(hosts_count) = count(*), max(hosts_count), NULL) AS hosts_count,
            -- A sum passes over nulls: bytes that are not known are not zero.
            if(
                count(message_bytes) = count(*)
                AND (count(members_count) = count(*) OR op IN ('send', 'broadcast', 'reduce')),
                sum(
                    CAST(message_bytes AS DOUBLE) * CASE
                        WHEN op = 'all_reduce' THEN 2.0 * (members_count - 1) / members_count
                        WHEN op IN ('all_gather', 'reduce_scatter', 'all_to_all')
                            THEN (members_count - 1.0) / members_count
                        ELSE 1.0
                    END
                ),
                NULL
            ) AS sent_bytes
        FROM calls
        GROUP BY attempt, rank, group_kind, op
    )
SELECT
    c.group_kind,
    c.op,
    avg(calls_count / CAST(steps_count AS DOUBLE)) AS calls_per_step,
    if(count(sent_bytes) = count(*), avg(sent_bytes / steps_count), NULL) AS bytes_per_step,
    CAST(NULL AS DOUBLE) AS expected_calls,
    CAST(NULL AS DOUBLE) AS expected_bytes,
    CAST(NULL AS DOUBLE) AS observed_ratio,
    c.attempt,
    max(group_size) AS group_size,
    count(*) AS ranks_count,
    max(largest_bytes) AS largest_bytes,
    any_value(t.dtype) AS dtype,
    if(count(hosts_count) = count(*), max(hosts_count), NULL) AS hosts_count,
    CAST(NULL AS DOUBLE) AS expected_most_bytes,
    CAST(NULL AS VARCHAR) AS expected_domain,
    CAST(NULL AS VARCHAR) AS basis
FROM rank_calls AS c
INNER JOIN steps USING (attempt, rank)
LEFT JOIN types AS t
    ON
        t.attempt = c.attempt
        AND t.group_kind IS NOT DISTINCT FROM c.group_kind
        AND t.op = c.op
GROUP BY c.attempt, c.group_kind, c.op
ORDER BY c.attempt, c.group_kind, c.op;
