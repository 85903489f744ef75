-- Which network devices each rank uses, and how often.
--
-- Connections that borrow another rank's NIC (PXN) are left out: they say nothing about this one.
--
-- reads: nccl_edge, nccl_comm
-- needs: nccl_edge, nccl_comm
-- grain: attempt, comm, group_rank, plugin, net_device
-- column: comm VARCHAR : Communicator.
-- column: group_rank INTEGER : Rank within it.
-- column: node VARCHAR : Its host.
-- column: plugin VARCHAR : Network: IB, Socket, AWS Libfabric, ...
-- column: net_device INTEGER : Index of the device in the host's own list.
-- column: nic VARCHAR : Its name, where the log lists devices.
-- column: edges_count BIGINT : Connections over it.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : First line.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
SELECT
    comm,
    CASE WHEN direction = 'receive' THEN to_group_rank ELSE from_group_rank END AS group_rank,
    min(node) AS node,
    split_part(detail, '/', 1) AS plugin,
    net_device,
    min(nic) AS nic,
    count(*) AS edges_count,
    min(source_id) AS source_id,
    arg_min(place, {'source_id': source_id, 'place': place}) AS place,
    attempt
FROM nccl_connections()
WHERE transport = 'NET' AND net_device IS NOT NULL AND proxy_rank IS NULL AND comm IS NOT NULL
GROUP BY
    attempt,
    comm,
    CASE WHEN direction = 'receive' THEN to_group_rank ELSE from_group_rank END,
    split_part(detail, '/', 1),
    net_device
ORDER BY attempt, comm, group_rank, plugin, net_device;
