-- Connections between hosts by the rail at either end.
--
-- The sender logs its device, the receiver its own; together they say whether the traffic leaves
-- its rail. Only connections of which both ends were logged count. A rail is the index of a device
-- in its host's list, which is the same rail on hosts of one build.
--
-- reads: nccl_edge, nccl_comm
-- needs: nccl_edge, nccl_comm
-- grain: attempt, comm, from_rank, to_rank, from_device, to_device
-- column: comm VARCHAR : Communicator.
-- column: from_rank INTEGER : Sender.
-- column: from_node VARCHAR : Its host.
-- column: to_rank INTEGER : Receiver.
-- column: to_node VARCHAR : Its host.
-- column: plugin VARCHAR : Network.
-- column: from_device INTEGER : Device index at the sender.
-- column: to_device INTEGER : Device index at the receiver.
-- column: edges_count BIGINT : Channels.
-- column: is_pxn BOOLEAN : Whether the sender uses another rank's NIC to stay on the rail.
-- column: source_id INTEGER : Source of the sender.
-- column: place BIGINT : First line of the sender.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
WITH
    edges AS MATERIALIZED (
        FROM nccl_connections()
        WHERE transport = 'NET' AND net_device IS NOT NULL AND comm IS NOT NULL
    )
SELECT
    sent.comm AS comm,
    sent.from_group_rank AS from_rank,
    min(sent.from_node) AS from_node,
    sent.to_group_rank AS to_rank,
    min(sent.to_node) AS to_node,
    min(split_part(sent.detail, '/', 1)) AS plugin,
    sent.net_device AS from_device,
    received.net_device AS to_device,
    count(*) AS edges_count,
    bool_or(sent.proxy_rank IS NOT NULL) AS is_pxn,
    min(sent.source_id) AS source_id,
    arg_min(sent.place, {'source_id': sent.source_id, 'place': sent.place}) AS place,
    sent.attempt AS attempt
FROM edges AS sent
JOIN edges AS received
    ON
        received.comm = sent.comm
        AND received.attempt IS NOT DISTINCT FROM sent.attempt
        AND received.channel = sent.channel
        AND received.connection IS NOT DISTINCT FROM sent.connection
        AND received.from_group_rank = sent.from_group_rank
        AND received.to_group_rank = sent.to_group_rank
        AND received.direction = 'receive'
WHERE sent.direction = 'send'
GROUP BY
    sent.attempt, sent.comm, sent.from_group_rank, sent.to_group_rank, sent.net_device,
    received.net_device
ORDER BY attempt, comm, from_rank, to_rank, from_device, to_device;
