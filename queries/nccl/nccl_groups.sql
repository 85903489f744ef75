-- Process groups of the traces with the number of machines that NCCL counts for them.
--
-- A tensor-parallel group belongs into one machine. Names of hosts do not prove machines (pods);
-- NCCL's own count does.
--
-- reads: process_group, nccl_comm
-- grain: attempt, kind, comm
-- column: kind VARCHAR : tp, pp, dp, ...; null until known.
-- column: comm VARCHAR : Communicator.
-- column: group_size INTEGER : Members.
-- column: nodes_count INTEGER : Machines that NCCL counts; null before 2.20.
-- column: pci_count BIGINT : Distinct PCI addresses of its GPUs.
-- column: nodes VARCHAR[] : Hosts as NCCL names them.
-- column: ranks INTEGER[] : Global ranks.
-- column: source_id INTEGER : Source of the log.
-- column: place BIGINT : First line.
-- column: attempt INTEGER : Attempt of the job.
WITH
    groups AS (
        SELECT DISTINCT kind, lower(comm_hash) AS comm_hash, ranks
        FROM process_group
        WHERE comm_hash IS NOT NULL
    )
SELECT
    groups.kind AS kind,
    members.comm AS comm,
    max(members.group_size) AS group_size,
    max(members.nodes_count) AS nodes_count,
    count(DISTINCT members.pci) AS pci_count,
    list(DISTINCT members.node ORDER BY members.node) FILTER (members.node IS NOT NULL) AS nodes,
    max(groups.ranks) AS ranks,
    min(members.source_id) AS source_id,
    arg_min(members.place, {'source_id': members.source_id, 'place': members.place}) AS place,
    members.attempt AS attempt
FROM nccl_members('nccl_comm') AS members
JOIN groups ON groups.comm_hash = lower(members.comm)
GROUP BY members.attempt, groups.kind, members.comm
ORDER BY attempt, kind, comm;
