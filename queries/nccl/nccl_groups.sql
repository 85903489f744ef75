-- Communicators of the traces with what NCCL logged of them: machines, and over what they run.
--
-- A tensor-parallel group belongs into one machine. Names of hosts do not prove machines (pods);
-- NCCL's own count does. A slow group is understood by its transports, never condemned by them.
--
-- reads: process_group, comm_group, nccl_comm, nccl_edge, rank
-- needs: nccl_comm
-- grain: attempt, group_id, kind, comm
-- column: group_id VARCHAR : Communicator of the traces; see comm_group.
-- column: kind VARCHAR : tp, pp, dp, ...; null until known.
-- column: comm VARCHAR : Communicator of the logs.
-- column: group_size INTEGER : Members.
-- column: nodes_count INTEGER : Machines that NCCL counts; null before 2.20.
-- column: pci_count BIGINT : Distinct PCI addresses of its GPUs.
-- column: nodes VARCHAR[] : Hosts as NCCL names them.
-- column: ranks INTEGER[] : Global ranks.
-- column: transports VARCHAR[] : Over what its members talk: P2P/CUMEM, NET/IB with GPUDirect, ...
-- column: source_id INTEGER : Source of the log.
-- column: place BIGINT : First line.
-- column: attempt INTEGER : Attempt of the job.
WITH
    groups AS (
        FROM nccl_group_comms()
    ),
    ways AS (
        SELECT
            comm,
            CASE
                WHEN transport IS NULL THEN detail
                ELSE transport || '/' || split_part(detail, '/', 1)
            END
            || CASE
                WHEN is_gpudirect IS NULL OR starts_with(detail, 'Socket') THEN ''
                WHEN is_gpudirect THEN ' with GPUDirect'
                ELSE ' without GPUDirect'
            END AS way
        FROM nccl_connections()
        WHERE comm IS NOT NULL
    ),
    transports AS (
        SELECT comm, list(DISTINCT way ORDER BY way) AS ways FROM ways GROUP BY comm
    )
SELECT
    groups.group_id AS group_id,
    groups.kind AS kind,
    members.comm AS comm,
    max(members.group_size) AS group_size,
    max(members.nodes_count) AS nodes_count,
    count(DISTINCT members.pci) AS pci_count,
    list(DISTINCT members.node ORDER BY members.node) FILTER (members.node IS NOT NULL) AS nodes,
    max(groups.ranks) AS ranks,
    max(transports.ways) AS transports,
    min(members.source_id) AS source_id,
    arg_min(members.place, {'source_id': members.source_id, 'place': members.place}) AS place,
    members.attempt AS attempt
FROM nccl_ranked() AS members
JOIN groups ON groups.comm = members.comm
LEFT JOIN transports ON transports.comm = members.comm
GROUP BY members.attempt, groups.group_id, groups.kind, members.comm
ORDER BY attempt, kind, group_id, comm;
