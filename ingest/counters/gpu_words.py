"""The words that all sources of GPU counters share, and blanks.

Rules and queries know canonical names only; the name in the source stays in ``original_name``. A
counter that has no canonical name keeps its own, in lower case: it can be looked at, and no rule
reads it. The names of network counters are in net_words.py.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["cumulative", "gauge", "watermark", "window"]


class Canonical(NamedTuple):
    """What a canonical counter is."""

    unit: str
    kind: Kind
    doc: str


def _count(doc: str) -> Canonical:
    return Canonical("count", "cumulative", doc)


GPU: dict[str, Canonical] = {
    # Clocks and what holds them down
    "sm_clock": Canonical("Hz", "gauge", "Clock of the multiprocessors."),
    "sm_clock_max": Canonical("Hz", "gauge", "Highest clock of the multiprocessors."),
    "memory_clock": Canonical("Hz", "gauge", "Clock of the memory."),
    "clock_event_reasons": Canonical("bitmask", "gauge", "What holds the clock down, as bits."),
    "power_violation": Canonical("ns", "cumulative", "Time held down by the power limit."),
    "thermal_violation": Canonical("ns", "cumulative", "Time held down by temperature."),
    "sync_boost_violation": Canonical("ns", "cumulative", "Time held to the slowest of a group."),
    "board_limit_violation": Canonical("ns", "cumulative", "Time held down by the board."),
    "low_utilisation_violation": Canonical("ns", "cumulative", "Time at low clocks for no work."),
    "reliability_violation": Canonical("ns", "cumulative", "Time held down for reliability."),
    "sw_power_cap_time": Canonical("ns", "cumulative", "Time at the software power cap."),
    "sync_boost_time": Canonical("ns", "cumulative", "Time held to the slowest of a group."),
    "sw_thermal_time": Canonical("ns", "cumulative", "Time slowed by software for heat."),
    "hw_thermal_time": Canonical("ns", "cumulative", "Time slowed by hardware for heat."),
    "hw_power_brake_time": Canonical("ns", "cumulative", "Time slowed by an external brake."),
    # Heat and power
    "gpu_temperature": Canonical("degrees Celsius", "gauge", "Temperature of the chip."),
    "gpu_slowdown_temperature": Canonical("degrees Celsius", "gauge", "Where it slows down."),
    "memory_temperature": Canonical("degrees Celsius", "gauge", "Temperature of the memory."),
    "power": Canonical("W", "gauge", "Power of the board."),
    "power_limit": Canonical("W", "gauge", "Power limit in force."),
    "power_limit_default": Canonical("W", "gauge", "Power limit as delivered."),
    "energy": Canonical("mJ", "cumulative", "Energy since the driver was loaded."),
    "fan_speed": Canonical("0..1", "gauge", "Fan."),
    # Work
    "gpu_utilisation": Canonical("0..1", "gauge", "Share of time with a kernel: proves nothing."),
    "memory_copy_utilisation": Canonical("0..1", "gauge", "Share of time that memory was in use."),
    "graphics_active": Canonical("0..1", "gauge", "Share of time with work on the GPU."),
    "sm_active": Canonical("0..1", "gauge", "Share of multiprocessors with a warp."),
    "sm_occupancy": Canonical("0..1", "gauge", "Share of warp slots in use."),
    "tensor_active": Canonical("0..1", "gauge", "Share of time that tensor cores were in use."),
    "dram_active": Canonical("0..1", "gauge", "Share of time that memory moved data."),
    "fp64_active": Canonical("0..1", "gauge", "Share of time that the fp64 pipe was in use."),
    "fp32_active": Canonical("0..1", "gauge", "Share of time that the fp32 pipe was in use."),
    "fp16_active": Canonical("0..1", "gauge", "Share of time that the fp16 pipe was in use."),
    "memory_used": Canonical("bytes", "gauge", "Memory in use."),
    "memory_free": Canonical("bytes", "gauge", "Memory free."),
    "memory_total": Canonical("bytes", "gauge", "Memory in all."),
    "memory_used_ratio": Canonical("0..1", "gauge", "Share of memory in use."),
    "performance_state": Canonical("P-state", "gauge", "0 is fastest."),
    "compute_processes": Canonical("count", "gauge", "Processes that compute on it."),
    # Buses
    "pcie_tx": Canonical("bytes/s", "gauge", "PCIe, out of the GPU."),
    "pcie_rx": Canonical("bytes/s", "gauge", "PCIe, into the GPU."),
    "nvlink_tx": Canonical("bytes/s", "gauge", "NVLink, out of the GPU."),
    "nvlink_rx": Canonical("bytes/s", "gauge", "NVLink, into the GPU."),
    "nvlink_throughput": Canonical("bytes/s", "gauge", "NVLink, both ways."),
    "pcie_generation": Canonical("generation", "gauge", "PCIe generation in use."),
    "pcie_generation_max": Canonical("generation", "gauge", "PCIe generation that it could have."),
    "pcie_width": Canonical("lanes", "gauge", "PCIe lanes in use."),
    "pcie_width_max": Canonical("lanes", "gauge", "PCIe lanes that it could have."),
    "pcie_replays": _count("PCIe packets sent again."),
    "nvlink_crc_flit_errors": _count("NVLink flits with a wrong checksum."),
    "nvlink_crc_data_errors": _count("NVLink data with a wrong checksum."),
    "nvlink_replays": _count("NVLink packets sent again."),
    "nvlink_recoveries": _count("NVLinks that had to recover."),
    "nvlink_link_errors": _count("NVLink packets received damaged, of any kind (NVLink 5)."),
    "nvlink_link_failures": _count("NVLinks that did not recover (NVLink 5)."),
    "nvlink_links_active": Canonical("count", "gauge", "NVLinks that are up."),
    "nvlink_links_inactive": Canonical("count", "gauge", "NVLinks that are down."),
    # Memory
    "ecc_sbe_volatile": _count("Corrected memory errors since the driver was loaded."),
    "ecc_dbe_volatile": _count("Uncorrected memory errors since the driver was loaded."),
    "ecc_sbe_aggregate": _count("Corrected memory errors in the board's life."),
    "ecc_dbe_aggregate": _count("Uncorrected memory errors in the board's life."),
    "retired_pages_sbe": _count("Pages retired after corrected errors."),
    "retired_pages_dbe": _count("Pages retired after uncorrected errors."),
    "retired_pages_pending": Canonical("count", "gauge", "Pages to be retired at the next reset."),
    "remapped_rows_uncorrectable": _count("Memory rows replaced after uncorrected errors."),
    "remapped_rows_correctable": _count("Memory rows replaced after corrected errors."),
    "row_remap_failure": Canonical("0 or 1", "gauge", "Whether a row could not be replaced."),
    "row_remap_pending": Canonical("0 or 1", "gauge", "Whether a row waits for a reset."),
    "xid": Canonical("XID", "gauge", "The last XID: stays after the event."),
    "xid_count": Canonical("count", "window", "XIDs in a sliding window."),
}
"""Counters of GPUs. ``clock_event_reasons`` has the bits of NVML: see CLOCK_EVENTS."""

CLOCK_EVENTS: dict[int, str] = {
    0x1: "gpu_idle",
    0x2: "clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
"""Bits of ``clock_event_reasons`` (NVML's nvmlClocksEventReason)."""

INT64_BLANK = 0x7FFFFFFFFFFFFFF0
"""DCGM's 64-bit blank; the next three are not found, not supported, not permitted."""
INT32_BLANK = 0x7FFFFFF0
"""DCGM's 32-bit blank, with the same three after it."""
FP64_BLANK = 140737488355328.0
"""DCGM's blank as a double, with the same three after it."""


def is_blank(value: float) -> bool:
    """Whether a number is one of DCGM's blanks. To be asked before any scaling.

    Every number from the 64-bit blank on is one: a double cannot tell them apart. The others are
    exact: a byte counter may well pass 2^31.
    """
    return (
        value >= INT64_BLANK
        or INT32_BLANK <= value <= INT32_BLANK + 3
        or FP64_BLANK <= value <= FP64_BLANK + 3
    )


def blanks(numbers: Any) -> Any:
    """Which numbers of an array are DCGM's blanks (see is_blank)."""
    return (
        (numbers >= INT64_BLANK)
        | ((numbers >= INT32_BLANK) & (numbers <= INT32_BLANK + 3))
        | ((numbers >= FP64_BLANK) & (numbers <= FP64_BLANK + 3))
    )
