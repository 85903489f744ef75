"""Which NIC is near which GPU, as a job description: ``topo -m`` and NCCL's topology XML."""

from __future__ import annotations

from tracekit.ingest.counters.topology import Topology, read_topology
from tracekit.job import JobDescription
from tracekit.jobs_import.values import described

__all__ = ["Topology", "as_job", "read_topology"]


def as_job(text: str) -> JobDescription | None:
    """What a topology says of the hardware, as a job description."""
    topology = read_topology(text)
    if topology is None:
        return None
    near = "; ".join(f"{g}: {', '.join(n)}" for g, n in topology.nearest.items() if n)
    shared = _shared(topology)
    notes = [f"nearest NIC: {near}"] if near else []
    if shared:
        notes.append(f"GPUs that share their nearest NIC: {shared}")
    return described(
        {
            "hardware": {
                "gpus_per_node": len(topology.gpus) or None,
                "nics_per_node": len(topology.nics) or None,
                "nic_bytes_per_s": topology.nic_bytes_per_s,
                "nvlink_domain": topology.nvlink_domain,
            }
        },
        tuple(notes),
    )


def _shared(topology: Topology) -> str:
    by_nic: dict[tuple[str, ...], list[str]] = {}
    for gpu, nics in topology.nearest.items():
        by_nic.setdefault(nics, []).append(gpu)
    groups = [g for nics, g in by_nic.items() if len(g) > len(nics) > 0]
    return "; ".join(" ".join(g) for g in groups)
