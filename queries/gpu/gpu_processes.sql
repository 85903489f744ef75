-- Processes that nvidia-smi lists on each GPU, by the name of their executable.
--
-- Command lines are never kept. A container shows no process of another.
--
-- reads: gpu_process, gpu
-- grain: attempt, source_id, place, gpu_id, pid
-- column: gpu_id VARCHAR : GPU: UUID, else host and address, else host and index.
-- column: host VARCHAR : Its host; null where unknown.
-- column: gpu_index INTEGER : NVML index; null where unknown.
-- column: rank INTEGER : Rank that uses the GPU; null where nothing says so.
-- column: pid BIGINT : Process id, as the host counts.
-- column: kind VARCHAR : C computes, G draws, M+C computes under MPS; null where all compute.
-- column: name VARCHAR : File name of the executable; null where it may be none.
-- column: readings_count BIGINT : Readings in which it was listed.
-- column: memory_bytes BIGINT : Most GPU memory that it held; null where not stated.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Where it was listed first.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
SELECT
    coalesce(
        gpu.gpu_id, p.device_id, concat_ws(' ', coalesce(p.node, p.host), 'GPU', p.nvml_index)
    ) AS gpu_id,
    coalesce(gpu.host, p.node, p.host) AS host,
    coalesce(gpu.gpu_index, p.nvml_index) AS gpu_index,
    gpu.rank AS rank,
    p.pid AS pid,
    p.kind AS kind,
    p.name AS name,
    p.readings_count AS readings_count,
    p.memory_bytes AS memory_bytes,
    p.source_id AS source_id,
    p.place AS place,
    gpu.attempt AS attempt
FROM gpu_process AS p
LEFT JOIN gpu
    ON gpu.node IS NOT DISTINCT FROM p.node
    AND if(gpu.node IS NULL, gpu.host, NULL) IS NOT DISTINCT FROM if(p.node IS NULL, p.host, NULL)
    AND gpu.own_source_id IS NOT DISTINCT FROM
        if(p.node IS NULL AND p.host IS NULL, p.source_id, NULL)
    AND gpu.device_id IS NOT DISTINCT FROM p.device_id
    AND gpu.nvml_index IS NOT DISTINCT FROM p.nvml_index
ORDER BY attempt, host, gpu_index, gpu_id, source_id, place, pid;
