"""How well GPUs and ports are in a step: what faults change beside how long things take."""

from __future__ import annotations

from msgspec import Struct, field

IDLE, POWER_CAP, SLOWDOWN, SOFTWARE_HEAT, HARDWARE_HEAT, BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80
"""Bits of NVML's clock event reasons."""


class Health(Struct):
    """How well GPUs and ports are in a step, by rank. What is not named is as it should be."""

    slowness: dict[int, float] = field(default_factory=dict)
    """How many times longer a GPU's clock makes its kernels."""
    reasons: dict[int, int] = field(default_factory=dict)
    """Bits of NVML's clock event reasons that a GPU shows beside the usual ones."""
    held: dict[int, float] = field(default_factory=dict)
    """Share of the time that they hold."""
    heat_celsius: dict[int, float] = field(default_factory=dict)
    """Above the usual."""
    xids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    memory_errors: dict[int, int] = field(default_factory=dict)
    """Uncorrectable ones since the fault began."""
    nvlink_errors_per_s: dict[int, float] = field(default_factory=dict)
    pcie_width: dict[int, int] = field(default_factory=dict)
    neighbour: dict[int, float] = field(default_factory=dict)
    """Share of a GPU's time that a program of somebody else takes."""
    loss_per_timeout: dict[int, float] = field(default_factory=dict)
    """Packets lost on the way to this rank for each transfer that times out."""
    damage_ratio: dict[int, float] = field(default_factory=dict)
    """Damaged of all packets that this rank's NIC gets."""
    pausing: dict[int, float] = field(default_factory=dict)
    """Share of the time of a transfer that this rank's NIC pauses its switch."""
    paused: dict[int, float] = field(default_factory=dict)
    """Share of the time of a transfer that the switch pauses this rank's NIC."""
    stalls_per_s: dict[int, float] = field(default_factory=dict)
    """Times a second, while it transfers, that PCIe held the NIC up."""
    marked: dict[int, float] = field(default_factory=dict)
    """Share of the packets towards this rank that are marked as having met congestion."""
    queue_bytes: dict[int, float] = field(default_factory=dict)
    """Longest queue towards this rank."""
    speed_ratio: dict[int, float] = field(default_factory=dict)
    """Speed that a NIC says it runs at, of the usual one."""
    foreign_bytes_per_s: dict[int, float] = field(default_factory=dict)
    """Bytes of another class (storage) towards this rank's NIC."""
    colliding: frozenset[int] = frozenset()
    """Ranks whose leaf puts the flows of two uplinks on one of them."""
