-- One line a rank: a letter for the transport to each other rank.
--
-- The whole communicator at a glance: N is the network with GPUDirect, n without, P peer to peer,
-- S shared memory, C the switch, a dot no connection (none was needed).
--
-- reads: nccl_edge, nccl_comm
-- needs: nccl_comm
-- grain: attempt, comm, from_rank
-- column: comm VARCHAR : Communicator.
-- column: from_rank INTEGER : Sender, within the communicator.
-- column: node VARCHAR : Its host.
-- column: to_ranks VARCHAR : A letter for each receiver, from rank 0.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
WITH
    members AS (
        SELECT attempt, comm, max(group_size) AS group_size
        FROM nccl_members()
        GROUP BY attempt, comm
    ),
    ranks AS (
        SELECT attempt, comm, group_size, unnest(range(group_size)) AS from_rank
        FROM members
        WHERE group_size <= 1024
    ),
    pairs AS (
        SELECT
            attempt,
            comm,
            from_group_rank,
            to_group_rank,
            min(from_node) AS node,
            min(CASE
                WHEN transport = 'NET' AND is_gpudirect THEN 'N'
                WHEN transport = 'NET' THEN 'n'
                WHEN transport = 'P2P' THEN 'P'
                WHEN transport = 'SHM' THEN 'S'
                ELSE 'C'
            END) AS letter
        FROM nccl_connections()
        WHERE comm IS NOT NULL AND from_group_rank IS NOT NULL AND to_group_rank IS NOT NULL
        GROUP BY attempt, comm, from_group_rank, to_group_rank
    )
SELECT
    ranks.comm AS comm,
    CAST(ranks.from_rank AS INTEGER) AS from_rank,
    min(pairs.node) AS node,
    string_agg(
        CASE
            WHEN others.from_rank = ranks.from_rank THEN '-'
            ELSE coalesce(pairs.letter, '.')
        END,
        '' ORDER BY others.from_rank
    ) AS to_ranks,
    ranks.attempt AS attempt
FROM ranks
JOIN ranks AS others
    ON others.comm = ranks.comm AND others.attempt IS NOT DISTINCT FROM ranks.attempt
LEFT JOIN pairs
    ON
        pairs.comm = ranks.comm
        AND pairs.attempt IS NOT DISTINCT FROM ranks.attempt
        AND pairs.from_group_rank = ranks.from_rank
        AND pairs.to_group_rank = others.from_rank
GROUP BY ranks.attempt, ranks.comm, ranks.from_rank
ORDER BY attempt, comm, from_rank;
