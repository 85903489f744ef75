-- The fabric's map: hosts and switches by one name each.

-- ranks_by_host: Ranks of each host, which goes by its first name in lower case, as in fabric_ends.
--
-- reads: rank
-- columns: host VARCHAR, ranks INTEGER[]
CREATE OR REPLACE MACRO ranks_by_host() AS TABLE
SELECT
    lower(split_part(host, '.', 1)) AS host,
    list_sort(list_distinct(list(rank))) AS ranks
FROM rank
WHERE host IS NOT NULL
GROUP BY lower(split_part(host, '.', 1));

-- fabric_ends: Cables of the map, from the end that lists each, where both ends are said.
--
-- reads: fabric_link
-- columns: node VARCHAR, node_kind VARCHAR, port VARCHAR, peer VARCHAR, peer_kind VARCHAR,
--     peer_port VARCHAR, lanes_count INTEGER, speed_bits_s DOUBLE, possible_lanes_count INTEGER,
--     possible_speed_bits_s DOUBLE, source_id INTEGER, place BIGINT
CREATE OR REPLACE MACRO fabric_ends() AS TABLE
SELECT
    lower(split_part(node, '.', 1)) AS node,
    node_kind,
    port,
    lower(split_part(peer, '.', 1)) AS peer,
    peer_kind,
    peer_port,
    lanes_count,
    speed_bits_s,
    possible_lanes_count,
    possible_speed_bits_s,
    source_id,
    place
FROM fabric_link
WHERE node IS NOT NULL AND peer IS NOT NULL;
