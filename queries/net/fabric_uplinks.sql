-- Which cables lead from a switch to one of the tier above it, by the fabric's map.
--
-- One row a cable, whichever end lists it. A leaf is a switch that is cabled to a host, a spine one
-- without hosts that is cabled to leaves, a core one without either that is cabled to spines. What
-- the map does not call a switch is none here: a storage server may be cabled to two leaves too. A
-- switch above one other alone is left out: what reduces within a switch is listed so.
--
-- reads: fabric_link, rank
-- needs: fabric_link
-- grain: lower, lower_port, upper, upper_port
-- asked: report
-- column: lower VARCHAR : Switch nearer to the hosts, in lower case without its domain.
-- column: lower_port VARCHAR : Its port; null where the map does not say.
-- column: lower_tier INTEGER : 1 of a leaf, 2 of a spine.
-- column: upper VARCHAR : Switch above it.
-- column: upper_port VARCHAR : Its port; null where the map does not say.
-- column: source_id INTEGER : Source of the cable.
-- column: place BIGINT : Its line.
WITH
    ends AS (
        SELECT node, node_kind, port, peer, peer_kind, peer_port, source_id, place
        FROM fabric_ends()
    ),
    both_ends AS (
        FROM ends
        UNION ALL
        SELECT peer, peer_kind, peer_port, node, node_kind, port, source_id, place FROM ends
    ),
    hosts AS (
        SELECT node AS host FROM both_ends WHERE node_kind = 'host'
        UNION
        SELECT host FROM ranks_by_host()
    ),
    switches AS (
        SELECT DISTINCT node FROM both_ends
        WHERE node_kind = 'switch' AND node NOT IN (FROM hosts)
    ),
    leaves AS (
        SELECT DISTINCT node FROM both_ends
        WHERE node IN (FROM switches) AND peer IN (FROM hosts)
    ),
    spines AS (
        SELECT DISTINCT node FROM both_ends
        WHERE node IN (FROM switches) AND node NOT IN (FROM leaves) AND peer IN (FROM leaves)
    ),
    cores AS (
        SELECT DISTINCT node FROM both_ends
        WHERE node IN (FROM switches) AND node NOT IN (FROM leaves)
            AND node NOT IN (FROM spines) AND peer IN (FROM spines)
    ),
    tiers AS (
        SELECT node, 1 AS tier FROM leaves
        UNION ALL
        SELECT node, 2 FROM spines
        UNION ALL
        SELECT node, 3 FROM cores
    ),
    cables AS (
        SELECT
            node AS lower, port AS lower_port, below.tier AS lower_tier,
            peer AS upper, peer_port AS upper_port,
            arg_min(source_id, (source_id, place)) AS source_id,
            arg_min(place, (source_id, place)) AS place
        FROM both_ends
        JOIN tiers AS below USING (node)
        JOIN tiers AS over ON over.node = peer AND over.tier = below.tier + 1
        GROUP BY ALL
    )
SELECT lower, lower_port, lower_tier, upper, upper_port, source_id, place
FROM cables
QUALIFY count(DISTINCT lower) OVER (PARTITION BY upper) > 1
ORDER BY lower, lower_port, upper, upper_port;
