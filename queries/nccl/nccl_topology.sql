-- The transport matrix of each communicator: over what every pair of ranks talks.
--
-- Connections are made when first used (since 2.22), so a pair that is absent is one that nothing
-- used, not one that failed.
--
-- reads: nccl_edge, nccl_comm
-- needs: nccl_edge
-- grain: attempt, comm, from_rank, to_rank, transport, detail
-- asked: report
-- column: comm VARCHAR : Communicator; null where the log does not tell which.
-- column: from_rank INTEGER : Sender, within the communicator.
-- column: from_node VARCHAR : Its host.
-- column: to_rank INTEGER : Receiver.
-- column: to_node VARCHAR : Its host.
-- column: transport VARCHAR : P2P, SHM, NET, COLLNET or NVLS.
-- column: detail VARCHAR : How: IPC/read, IB/0/GDRDMA, ...
-- column: nics VARCHAR : Names of the network devices, as far as known.
-- column: is_gpudirect BOOLEAN : Whether GPU memory goes straight to the NIC; null off the network.
-- column: channels_count BIGINT : Channels over which they talk so.
-- column: source_id INTEGER : First source that says so.
-- column: place BIGINT : First line of it.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
SELECT
    comm,
    from_group_rank AS from_rank,
    min(from_node) AS from_node,
    to_group_rank AS to_rank,
    min(to_node) AS to_node,
    transport,
    detail,
    string_agg(DISTINCT nic, ', ' ORDER BY nic) AS nics,
    bool_and(is_gpudirect) AS is_gpudirect,
    count(DISTINCT channel) AS channels_count,
    min(source_id) AS source_id,
    arg_min(place, {'source_id': source_id, 'place': place}) AS place,
    attempt
FROM nccl_connections()
GROUP BY attempt, comm, from_group_rank, to_group_rank, transport, detail
ORDER BY attempt, comm, from_rank, to_rank, transport, detail;
