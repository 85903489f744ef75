-- Through which ports the traffic between two ranks' hosts goes.
--
-- One row a cable, for each NIC of the first host, by the fewest cables; only switches pass traffic
-- on. Neighbours that LLDP names do not say what they are: a rank's host is a host, and what its
-- NICs lead to a switch. Where several ports lead as near, the one with the lowest number is shown
-- and choices_count says how many there are: routing decides among them, which the map does not
-- show.
--
-- reads: fabric_link, rank
-- needs: fabric_link
-- grain: attempt, nic_port, hop
-- param: from_rank INTEGER = 0 : First rank.
-- param: to_rank INTEGER = -1 : The other; -1 is the highest.
-- column: nic_port VARCHAR : Port of the first host that the path begins at.
-- column: hop INTEGER : Number of the cable on the way, from 1.
-- column: node VARCHAR : Where it begins.
-- column: port VARCHAR : Its port there.
-- column: peer VARCHAR : Where it ends.
-- column: peer_port VARCHAR : Its port there.
-- column: lanes_count INTEGER : Lanes; null where the map does not say.
-- column: speed_bits_s DOUBLE : Speed; null where the map does not say.
-- column: choices_count BIGINT : Cables from that node that lead as near.
-- column: source_id INTEGER : Source of the cable.
-- column: place BIGINT : Its line.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH RECURSIVE
    pairs AS (
        SELECT
            attempt,
            max(host) FILTER (rank = $from_rank) AS from_node,
            max(host) FILTER (
                rank = CASE WHEN $to_rank < 0 THEN highest_rank ELSE $to_rank END
            ) AS to_node
        FROM (
            SELECT
                attempt,
                rank,
                lower(split_part(host, '.', 1)) AS host,
                max(rank) OVER (PARTITION BY attempt) AS highest_rank
            FROM rank
        ) AS ranks
        GROUP BY attempt
    ),
    hosts AS (SELECT host FROM ranks_by_host()),
    said AS (FROM fabric_ends()),
    named AS (
        SELECT node, node_kind AS kind FROM said
        UNION ALL
        SELECT peer, peer_kind FROM said
        UNION ALL
        SELECT host, 'host' FROM hosts
    ),
    beside AS (
        SELECT peer AS node FROM said WHERE node IN (FROM hosts)
        UNION
        SELECT node FROM said WHERE peer IN (FROM hosts)
    ),
    kinds AS (
        SELECT
            node,
            CASE
                WHEN max(kind) IS NOT NULL THEN max(kind)
                WHEN node IN (FROM beside) THEN 'switch'
            END AS kind
        FROM named
        GROUP BY node
    ),
    ends AS (
        SELECT
            said.* REPLACE (own.kind AS node_kind, other.kind AS peer_kind)
        FROM said
        INNER JOIN kinds AS own ON own.node = said.node
        INNER JOIN kinds AS other ON other.node = said.peer
    ),
    -- A map taken from the switches alone has the host's end only on the other side.
    cables AS (
        SELECT node, port, max(node_kind) AS node_kind, min(struct_pack(
            is_seen_from_peer := is_seen_from_peer, peer := peer, peer_kind := peer_kind,
            peer_port := peer_port, lanes_count := lanes_count, speed_bits_s := speed_bits_s,
            source_id := source_id, place := place
        )) AS cable
        FROM (
            FROM (
                SELECT node, node_kind, port, peer, peer_kind, peer_port, lanes_count,
                    speed_bits_s, source_id, place, FALSE AS is_seen_from_peer
                FROM ends
                UNION ALL
                SELECT peer, peer_kind, peer_port, node, node_kind, port, lanes_count,
                    speed_bits_s, source_id, place, TRUE
                FROM ends
            ) AS both_ends
            -- Its other end says which cable it is: a neighbour may call a switch's port otherwise.
            QUALIFY NOT is_seen_from_peer OR NOT bool_or(NOT is_seen_from_peer) OVER (
                PARTITION BY node, peer, peer_port
            )
        ) AS known_ends
        GROUP BY node, port
    ),
    reached AS (
        SELECT attempt, from_node, to_node, to_node AS node, 0 AS cables_count
        FROM pairs
        WHERE from_node <> to_node
        UNION
        SELECT reached.attempt, from_node, to_node, cables.node, cables_count + 1
        FROM reached
        INNER JOIN cables ON cables.cable.peer = reached.node
        WHERE cables_count < 8 AND cables.node_kind = 'switch'
    ),
    nearest AS (
        SELECT attempt, from_node, to_node, node, min(cables_count) AS cables_count
        FROM reached
        GROUP BY attempt, from_node, to_node, node
    ),
    onward AS (
        SELECT
            here.attempt,
            here.node,
            min_by(cables.port, (coalesce(try_cast(port AS INTEGER), 0), port)) AS port,
            count(*) AS choices_count
        FROM nearest AS here
        INNER JOIN cables ON cables.node = here.node
        INNER JOIN nearest AS next
            ON next.attempt = here.attempt
            AND next.node = cables.cable.peer
            AND next.cables_count = here.cables_count - 1
        GROUP BY here.attempt, here.node
    ),
    path AS (
        SELECT nearest.attempt, to_node, cables.port AS nic_port, 1 AS hop, cables.node,
            cables.port, cables.cable, CAST(1 AS BIGINT) AS choices_count
        FROM cables
        INNER JOIN nearest ON nearest.from_node = cables.node AND nearest.node = cables.cable.peer
        UNION ALL
        SELECT path.attempt, to_node, nic_port, hop + 1, onward.node,
            onward.port, cables.cable, onward.choices_count
        FROM path
        INNER JOIN onward ON onward.attempt = path.attempt AND onward.node = path.cable.peer
        INNER JOIN cables ON cables.node = onward.node AND cables.port = onward.port
        WHERE path.cable.peer <> to_node AND hop < 10
    )
SELECT
    nic_port,
    hop,
    node,
    port,
    cable.peer AS peer,
    cable.peer_port AS peer_port,
    cable.lanes_count AS lanes_count,
    cable.speed_bits_s AS speed_bits_s,
    choices_count,
    cable.source_id AS source_id,
    cable.place AS place,
    attempt
FROM path
ORDER BY attempt, nic_port, hop;
