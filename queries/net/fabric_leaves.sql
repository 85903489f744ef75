-- To which leaf switch each NIC of a host leads, by the fabric's map, and which switches are above.
--
-- One row a port of a host that is cabled to a switch, seen from either end of the cable. A host is
-- what the map calls so, and what ranks run on; a neighbour that a host's NIC leads to and that is
-- no host is its leaf. A rail is the NICs of one number: they mostly share a leaf.
--
-- reads: fabric_link, rank
-- needs: fabric_link
-- grain: host, nic_port, leaf, leaf_port
-- asked: report
-- column: host VARCHAR : Host, in lower case without its domain.
-- column: ranks INTEGER[] : Ranks that run on it; null where none is known.
-- column: nic_port VARCHAR : Its port; null where the map does not say.
-- column: leaf VARCHAR : The switch.
-- column: leaf_port VARCHAR : Its port; null where the map does not say.
-- column: leaf_hosts_count BIGINT : Hosts below that switch.
-- column: above VARCHAR[] : Switches that the leaf is cabled to, by name.
-- column: lanes_count INTEGER : Lanes; null where the map does not say.
-- column: speed_bits_s DOUBLE : Speed; null where the map does not say.
-- column: source_id INTEGER : Source of the cable.
-- column: place BIGINT : Its line.
WITH
    ends AS (
        SELECT
            node, node_kind, port, peer, peer_kind, peer_port, lanes_count, speed_bits_s,
            source_id, place
        FROM fabric_ends()
    ),
    both_ends AS (
        FROM (SELECT ends.*, FALSE AS is_seen_from_peer FROM ends)
        UNION ALL
        SELECT
            peer, peer_kind, peer_port, node, node_kind, port, lanes_count, speed_bits_s,
            source_id, place, TRUE
        FROM ends
    ),
    hosts AS (
        SELECT node AS host FROM both_ends WHERE node_kind = 'host'
        UNION
        SELECT host FROM ranks_by_host()
    ),
    cables AS (
        SELECT
            node AS host,
            peer AS leaf,
            arg_min(port, (is_seen_from_peer, source_id, place)) AS nic_port,
            peer_port AS leaf_port,
            arg_min(
                struct_pack(
                    lanes_count := lanes_count, speed_bits_s := speed_bits_s,
                    source_id := source_id, place := place
                ),
                (is_seen_from_peer, source_id, place)
            ) AS cable
        FROM both_ends
        WHERE node IN (FROM hosts) AND peer NOT IN (FROM hosts)
        -- A cable is known by the switch's end; without it by the host's.
        GROUP BY node, peer, peer_port, if(peer_port IS NULL, port, NULL)
    ),
    above AS (
        SELECT node AS leaf, list_sort(list_distinct(list(peer))) AS above
        FROM both_ends
        WHERE node NOT IN (FROM hosts) AND peer NOT IN (FROM hosts)
        GROUP BY node
    )
SELECT
    cables.host,
    used.ranks,
    cables.nic_port,
    cables.leaf,
    cables.leaf_port,
    count(DISTINCT cables.host) OVER (PARTITION BY cables.leaf) AS leaf_hosts_count,
    above.above,
    cable.lanes_count AS lanes_count,
    cable.speed_bits_s AS speed_bits_s,
    cable.source_id AS source_id,
    cable.place AS place
FROM cables
LEFT JOIN ranks_by_host() AS used USING (host)
LEFT JOIN above USING (leaf)
ORDER BY cables.host, cables.nic_port, cables.leaf, cables.leaf_port;
