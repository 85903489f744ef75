-- On which CPUs each process may run, and on which memory nodes its memory lies.
--
-- A process whose CPUs are not those beside its GPU reaches it over the link between sockets.
--
-- reads: process_place
-- grain: source_id, place, numa_node
-- column: host VARCHAR : Host; null where neither the file's name nor job.toml says whose it is.
-- column: pid BIGINT : Process id.
-- column: cpus VARCHAR : CPUs on which it may run; null where the line tells of memory.
-- column: memory_nodes VARCHAR : Memory nodes that it may use; null where not said.
-- column: numa_node INTEGER : Memory node that the bytes are on; null where none are told.
-- column: memory_bytes BIGINT : Its memory there.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Line.
SELECT
    coalesce(host, node) AS host,
    pid,
    cpus,
    memory_nodes,
    numa_node,
    memory_bytes,
    source_id,
    place
FROM process_place
ORDER BY host NULLS LAST, pid, source_id, place, numa_node;
