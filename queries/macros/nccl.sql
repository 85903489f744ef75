-- Communicators and connections as NCCL logged them.

-- nccl_members: Communicators as their members logged them, and what makes several members one.
--
-- comm is the commId that NCCL states (2.16 and later). Before that nothing names a communicator
-- across processes: members of the same size that each process created as its k-th of that size
-- (number) are taken for one, within files that lie beside each other.
--
-- reads: nccl_comm
-- columns: nccl_comm.*, number BIGINT, comm VARCHAR
CREATE OR REPLACE MACRO nccl_members() AS TABLE
WITH
    numbered AS (
        SELECT
            *,
            row_number() OVER (
                PARTITION BY attempt, source_id, node, pid, group_rank, group_size, comm_hash
                ORDER BY ordinal, place
            ) AS number
        FROM nccl_comm
        WHERE group_size IS NOT NULL
    ),
    seen AS (
        SELECT
            attempt, source_id, group_size, number, count(DISTINCT group_rank) AS ranks_count
        FROM numbered
        WHERE comm_hash IS NULL
        GROUP BY attempt, source_id, group_size, number
    )
SELECT
    numbered.*,
    coalesce(
        comm_hash,
        'size ' || CAST(numbered.group_size AS VARCHAR)
        || ' number ' || CAST(numbered.number AS VARCHAR)
        -- A file with all its ranks is a job of its own: another file's are not its members.
        || CASE
            WHEN seen.ranks_count = numbered.group_size
                THEN ' of file ' || CAST(numbered.source_id AS VARCHAR)
            ELSE ''
        END
    ) AS comm
FROM numbered
LEFT JOIN seen
    ON
        numbered.comm_hash IS NULL
        AND seen.source_id = numbered.source_id
        AND seen.attempt IS NOT DISTINCT FROM numbered.attempt
        AND seen.group_size = numbered.group_size
        AND seen.number = numbered.number;

-- nccl_ranked: Members with their rank in the job (world_rank), where it is proved.
--
-- Stated by the log, or the process that a trace also shows (its host and process id) drives no
-- other member.
--
-- reads: nccl_comm, rank
-- columns: nccl_comm.*, number BIGINT, comm VARCHAR
CREATE OR REPLACE MACRO nccl_ranked() AS TABLE
WITH
    members AS (SELECT * FROM nccl_members()),
    alone AS (
        SELECT attempt, source_id, node, pid, comm
        FROM members
        GROUP BY attempt, source_id, node, pid, comm
        HAVING count(DISTINCT group_rank) = 1
    ),
    processes AS (
        SELECT split_part(host, '.', 1) AS node, pid, min(rank) AS rank
        FROM rank
        WHERE host IS NOT NULL AND pid IS NOT NULL
        GROUP BY split_part(host, '.', 1), pid
        HAVING count(DISTINCT rank) = 1
    )
SELECT
    members.* REPLACE (
        coalesce(members.world_rank, if(alone.pid IS NOT NULL, processes.rank, NULL)) AS world_rank
    )
FROM members
LEFT JOIN alone
    ON
        alone.source_id = members.source_id
        AND alone.pid = members.pid
        AND alone.node = members.node
        AND alone.comm = members.comm
        AND alone.attempt IS NOT DISTINCT FROM members.attempt
LEFT JOIN processes ON processes.node = members.node AND processes.pid = members.pid;

-- nccl_group_comms: Communicators that are groups of the traces.
--
-- By the identifier that both state, or by the same ranks, all of them known.
--
-- reads: nccl_comm, rank, process_group, comm_group
-- columns: group_id VARCHAR, kind VARCHAR, ranks INTEGER[], comm VARCHAR
CREATE OR REPLACE MACRO nccl_group_comms() AS TABLE
WITH
    members AS (SELECT * FROM nccl_ranked()),
    comms AS (
        SELECT
            comm,
            max(group_size) AS group_size,
            list_sort(list_distinct(list(world_rank))) AS ranks
        FROM members
        GROUP BY comm
    ),
    known AS (
        SELECT DISTINCT group_id, kind, list_sort(ranks) AS ranks
        FROM comm_group
    ),
    named AS (
        SELECT DISTINCT group_id, lower(comm_hash) AS comm_hash, list_sort(ranks) AS ranks
        FROM process_group
        WHERE comm_hash IS NOT NULL
    )
SELECT
    named.group_id AS group_id,
    max(known.kind) AS kind,
    max(named.ranks) AS ranks,
    comms.comm AS comm
FROM named
JOIN comms ON lower(comms.comm) = named.comm_hash
LEFT JOIN known ON known.group_id = named.group_id
GROUP BY named.group_id, comms.comm
UNION
SELECT known.group_id, known.kind, known.ranks, comms.comm
FROM known
JOIN comms ON comms.ranks = known.ranks AND len(comms.ranks) = comms.group_size
WHERE NOT EXISTS (
    SELECT 1 FROM named WHERE named.comm_hash = lower(comms.comm)
);

-- nccl_connections: Connections with their communicator and the nodes of both ends.
--
-- reads: nccl_edge, nccl_comm
-- columns: nccl_edge.*, comm VARCHAR, from_node VARCHAR, to_node VARCHAR, from_pci VARCHAR,
--     to_pci VARCHAR, nodes_count INTEGER
CREATE OR REPLACE MACRO nccl_connections() AS TABLE
WITH
    members AS MATERIALIZED (SELECT * FROM nccl_members()),
    places AS (
        SELECT comm, group_rank, min(node) AS node, min(pci) AS pci
        FROM members
        GROUP BY comm, group_rank
    )
SELECT
    edges.*,
    members.comm AS comm,
    starts.node AS from_node,
    ends.node AS to_node,
    starts.pci AS from_pci,
    ends.pci AS to_pci,
    members.nodes_count AS nodes_count
FROM nccl_edge AS edges
LEFT JOIN members
    ON
        members.source_id = edges.source_id
        AND members.pid = edges.pid
        AND members.node IS NOT DISTINCT FROM edges.node
        AND members.comm_pointer = edges.comm_pointer
        AND members.comm_generation = edges.comm_generation
LEFT JOIN places AS starts
    ON starts.comm = members.comm AND starts.group_rank = edges.from_group_rank
LEFT JOIN places AS ends
    ON ends.comm = members.comm AND ends.group_rank = edges.to_group_rank;
