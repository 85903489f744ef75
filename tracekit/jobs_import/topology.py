"""Which NIC is near which GPU, as a job description: ``topo -m`` and NCCL's topology XML."""

from __future__ import annotations

from tracekit.ingest.counters.topology import Topology, read_topology
from tracekit.job import JobDescription
from tracekit.jobs_import.values import described

__all__ = ["Topology", "as_job", "read_topology"]


def as_job(text: str) -> JobDescription | None:
    """What a topology says of the hardware, as a job description."""
    found = read_topology(text)
    if found is None:
        return None
    near = "; ".join(f"{g}: {', '.join(n)}" for g, n in found.nearest.items() if n)
    shared = _shared(found)
    notes = [f"nearest NIC: {near}"] if near else []
    if shared:
        notes.append(f"GPUs that share their nearest NIC: {shared}")
    return described(
        {
            "hardware": {
                "gpus_per_node": len(found.gpus) or None,
                "nics_per_node": len(found.nics) or None,
                "nic_bytes_per_s": found.nic_bytes_per_s,
                "nvlink_domain": found.nvlink_domain,
            }
        },
        tuple(notes),
    )


def _shared(found: Topology) -> str:
    by_nic: dict[tuple[str, ...], list[str]] = {}
    for gpu, nics in found.nearest.items():
        by_nic.setdefault(nics, []).append(gpu)
    groups = [g for nics, g in by_nic.items() if len(g) > len(nics) > 0]
    return "; ".join(" ".join(g) for g in groups)
