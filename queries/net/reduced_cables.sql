-- Cables that run narrower or slower than they could, by the fabric's map.
--
-- One row a cable. What its ends could do is iblinkinfo's own word of it ("Could be 4X"); else, for
-- a NIC of a host, what the NICs of that name have on most hosts: a slow one beside faster NICs of
-- its own host may well be another network.
--
-- reads: fabric_link, rank
-- needs: fabric_link
-- grain: node, port, peer, peer_port
-- column: node VARCHAR : Host, or switch; in lower case without its domain.
-- column: node_kind VARCHAR : host or switch; null where the map does not say.
-- column: port VARCHAR : Its port.
-- column: peer VARCHAR : Switch at the other end.
-- column: peer_port VARCHAR : Its port there; null where the map does not say.
-- column: ranks INTEGER[] : Ranks that run on the host; null where none is known.
-- column: lanes_count INTEGER : Lanes; null where the map does not say.
-- column: possible_lanes_count INTEGER : Lanes that it could use; null where only speeds are known.
-- column: speed_bits_s DOUBLE : Speed; null where the map does not say.
-- column: possible_speed_bits_s DOUBLE : Speed that it could run at; null: only lanes are known.
-- column: hosts_count BIGINT : Other hosts with a NIC of that name; null where the map itself says
--     what is possible.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Its line.
WITH
    ends AS (
        SELECT
            node AS near, node_kind AS near_kind, port AS near_port,
            peer AS far, peer_kind AS far_kind, peer_port AS far_port,
            lanes_count, speed_bits_s, possible_lanes_count, possible_speed_bits_s, source_id, place
        FROM fabric_ends()
    ),
    -- The host's end first, of two switches the one whose name is first.
    turned AS (
        SELECT
            *,
            near_kind IS DISTINCT FROM 'host'
            AND (far_kind IS NOT DISTINCT FROM 'host' OR (near, near_port) > (far, far_port))
            AS is_turned
        FROM ends
    ),
    ordered AS (
        SELECT
            if(is_turned, far, near) AS node,
            if(is_turned, far_kind, near_kind) AS node_kind,
            if(is_turned, far_port, near_port) AS port,
            if(is_turned, near, far) AS peer,
            if(is_turned, near_port, far_port) AS peer_port,
            lanes_count, speed_bits_s, possible_lanes_count, possible_speed_bits_s, source_id, place
        FROM turned
    ),
    cables AS (
        SELECT
            node,
            min(node_kind) AS node_kind,
            port,
            peer,
            peer_port,
            min(lanes_count) AS lanes_count,
            min(speed_bits_s) AS speed_bits_s,
            max(possible_lanes_count) AS possible_lanes_count,
            max(possible_speed_bits_s) AS possible_speed_bits_s,
            arg_min(source_id, (possible_lanes_count IS NULL, source_id, place)) AS source_id,
            arg_min(place, (possible_lanes_count IS NULL, source_id, place)) AS place
        FROM ordered
        WHERE port IS NOT NULL
        GROUP BY node, port, peer, peer_port
    ),
    -- A NIC with several cables (planes, several ports) counts once a host.
    nics AS (
        SELECT node, port, min(speed_bits_s) AS speed_bits_s
        FROM cables
        WHERE node_kind = 'host' AND speed_bits_s IS NOT NULL
        GROUP BY node, port
    ),
    -- The lower of two in the middle: where as many are fast as slow, nobody is slow.
    usual AS (
        SELECT
            port,
            quantile_disc(speed_bits_s, 0.5) AS usual_bits_s,
            count(*) - 1 AS hosts_count
        FROM nics
        GROUP BY port
    )
SELECT
    cables.node,
    node_kind,
    cables.port,
    peer,
    peer_port,
    used.ranks,
    lanes_count,
    possible_lanes_count,
    speed_bits_s,
    coalesce(possible_speed_bits_s, if(possible_lanes_count IS NULL, usual_bits_s, NULL))
    AS possible_speed_bits_s,
    if(possible_lanes_count IS NULL AND possible_speed_bits_s IS NULL, hosts_count, NULL)
    AS hosts_count,
    source_id,
    place
FROM cables
LEFT JOIN ranks_by_host() AS used ON used.host = cables.node
LEFT JOIN usual ON usual.port = cables.port AND cables.node_kind = 'host'
WHERE
    possible_lanes_count > lanes_count
    OR possible_speed_bits_s > speed_bits_s
    OR (
        possible_lanes_count IS NULL AND possible_speed_bits_s IS NULL
        AND speed_bits_s < usual_bits_s
    )
ORDER BY cables.node, cables.port, peer, peer_port;
