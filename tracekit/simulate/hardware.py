"""What a simulated job runs on: GPUs, hosts, NICs, rails, leaf and spine switches.

Bandwidths are per direction. The tables are vendors' figures, not measurements.
"""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

GB = 1e9


class Gpu(Struct, frozen=True):
    """A GPU model."""

    name: str
    """As ``deviceProperties`` names it."""
    sm_count: int
    memory_bytes: int
    compute_major: int
    hbm_bytes_per_s: float
    bf16_flops_per_s: float
    nvlink_bytes_per_s: float


GPUS: dict[str, Gpu] = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", 108, 85_174_583_296, 8, 2.0e12, 312e12, 300e9),
    "h100": Gpu("NVIDIA H100 80GB HBM3", 132, 85_029_158_912, 9, 3.35e12, 989e12, 450e9),
    "h200": Gpu("NVIDIA H200", 132, 150_754_820_096, 9, 4.8e12, 989e12, 450e9),
    "b200": Gpu("NVIDIA B200", 148, 191_503_400_960, 10, 8.0e12, 2250e12, 900e9),
}


class Latency(Struct, frozen=True):
    """What a transfer costs before its first byte."""

    base_ns: float = 9_000.0
    nvlink_hop_ns: float = 700.0
    network_hop_ns: float = 5_000.0


class Topology(Struct, frozen=True):
    """Ranks on hosts, hosts under leaf switches, leaves under spines.

    Each GPU has one NIC, and NIC i of every host is on rail i: rail-aligned traffic stays under one
    leaf, other traffic crosses the spine.
    """

    world_size: int
    gpu: Gpu = GPUS["h100"]
    gpus_per_host: int = 8
    nvlink_domain: int = 8
    nic_bytes_per_s: float = 50 * GB
    hosts_per_pod: int = 32
    """Hosts under one set of leaf switches (a scalable unit)."""
    oversubscription: float = 2.0
    efficiency: float = 0.85
    """Share of the wire that a collective reaches."""
    latency: Latency = Latency()
    rail_of_rank: dict[int, int] = field(default_factory=dict)
    """Ranks whose NIC is not the one of their own index."""
    host_prefix: str = "gpu-"

    def host_index(self, rank: int) -> int:
        """The host that a rank runs on."""
        return rank // self.gpus_per_host

    def host(self, rank: int) -> str:
        """Its name."""
        return f"{self.host_prefix}{self.host_index(rank):02d}"

    def local(self, rank: int) -> int:
        """Its index on the host."""
        return rank % self.gpus_per_host

    def rail(self, rank: int) -> int:
        """The rail of its NIC."""
        return self.rail_of_rank.get(rank, self.local(rank))

    def domain(self, rank: int) -> int:
        """The NVLink domain."""
        return rank // self.nvlink_domain

    def pod(self, rank: int) -> int:
        """The set of leaf switches."""
        return self.host_index(rank) // self.hosts_per_pod

    @property
    def hosts(self) -> list[str]:
        """All hosts, in order of their first rank."""
        return list(dict.fromkeys(self.host(r) for r in range(self.world_size)))

    def ranks_of_host(self, name: str) -> list[int]:
        """Ranks that run on a host."""
        return [r for r in range(self.world_size) if self.host(r) == name]

    @property
    def spine_bytes_per_s(self) -> float:
        """Bandwidth of one GPU through the spine."""
        return self.nic_bytes_per_s / self.oversubscription

    def with_rails(self, rails: dict[int, int]) -> Topology:
        """The same with other NICs for some ranks."""
        return replace(self, rail_of_rank={**self.rail_of_rank, **rails})
