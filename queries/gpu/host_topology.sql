-- What connects the GPUs and NICs of a host: nvidia-smi topo -m, or NCCL's topology.
--
-- Words are nvidia-smi's, near to far: NV and the number of NVLinks, PIX (one PCIe switch), PXB
-- (several), PHB (the CPU), NODE (within a socket), SYS (between sockets); X is the GPU itself.
--
-- reads: host_link
-- grain: source_id, place, gpu, peer
-- column: host VARCHAR : Host; null where neither the file's name nor job.toml says whose it is.
-- column: gpu VARCHAR : GPU, as the topology calls it.
-- column: nvml_index INTEGER : Its NVML index.
-- column: pci VARCHAR : Its PCI address; null where the source lacks it.
-- column: peer VARCHAR : The other GPU, or NIC.
-- column: peer_kind VARCHAR : gpu or nic.
-- column: connection VARCHAR : What lies between them.
-- column: nvlinks_count INTEGER : NVLinks; null over PCIe.
-- column: is_nearest BOOLEAN : Whether no NIC is nearer; null for a GPU.
-- column: cpu_affinity VARCHAR : CPUs beside the GPU.
-- column: numa_node INTEGER : NUMA node of the GPU.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Line, or ordinal in the XML.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
SELECT
    coalesce(host, node) AS host,
    gpu,
    nvml_index,
    pci,
    peer,
    peer_kind,
    connection,
    nvlinks_count,
    is_nearest,
    cpu_affinity,
    numa_node,
    source_id,
    place,
    attempt
FROM host_link
ORDER BY host NULLS LAST, source_id, nvml_index NULLS LAST, gpu, peer_kind, place, peer;
