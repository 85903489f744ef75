"""The canonical names of GPU counters, the bits of clock events, and DCGM's blanks."""

from __future__ import annotations

from typing import Any

from tracekit.ingest.counters.vocabulary import Vocabulary, Word

GPU = Vocabulary(
    # Clocks and what holds them down
    Word("sm_clock", "Hz", "gauge", "Clock of the multiprocessors."),
    Word("sm_clock_max", "Hz", "gauge", "Highest clock of the multiprocessors."),
    Word("memory_clock", "Hz", "gauge", "Clock of the memory."),
    Word("clock_event_reasons", "bitmask", "gauge", "What holds the clock down, as bits."),
    Word("power_violation", "ns", "cumulative", "Time held down by the power limit."),
    Word("thermal_violation", "ns", "cumulative", "Time held down by temperature."),
    Word("sync_boost_violation", "ns", "cumulative", "Time held to the slowest of a group."),
    Word("board_limit_violation", "ns", "cumulative", "Time held down by the board."),
    Word("low_utilisation_violation", "ns", "cumulative", "Time at low clocks for no work."),
    Word("reliability_violation", "ns", "cumulative", "Time held down for reliability."),
    Word("sw_power_cap_time", "ns", "cumulative", "Time at the software power cap."),
    Word("sync_boost_time", "ns", "cumulative", "Time held to the slowest of a group."),
    Word("sw_thermal_time", "ns", "cumulative", "Time slowed by software for heat."),
    Word("hw_thermal_time", "ns", "cumulative", "Time slowed by hardware for heat."),
    Word("hw_power_brake_time", "ns", "cumulative", "Time slowed by an external brake."),
    # Heat and power
    Word("gpu_temperature", "degrees Celsius", "gauge", "Temperature of the chip."),
    Word("gpu_slowdown_temperature", "degrees Celsius", "gauge", "Where it slows down."),
    Word("memory_temperature", "degrees Celsius", "gauge", "Temperature of the memory."),
    Word("power", "W", "gauge", "Power of the board."),
    Word("power_limit", "W", "gauge", "Power limit in force."),
    Word("power_limit_default", "W", "gauge", "Power limit as delivered."),
    Word("energy", "mJ", "cumulative", "Energy since the driver was loaded."),
    Word("fan_speed", "0..1", "gauge", "Fan."),
    # Work
    Word("gpu_utilisation", "0..1", "gauge", "Share of time with a kernel: proves nothing."),
    Word("memory_copy_utilisation", "0..1", "gauge", "Share of time that memory was in use."),
    Word("graphics_active", "0..1", "gauge", "Share of time with work on the GPU."),
    Word("sm_active", "0..1", "gauge", "Share of multiprocessors with a warp."),
    Word("sm_occupancy", "0..1", "gauge", "Share of warp slots in use."),
    Word("tensor_active", "0..1", "gauge", "Share of time that tensor cores were in use."),
    Word("dram_active", "0..1", "gauge", "Share of time that memory moved data."),
    Word("fp64_active", "0..1", "gauge", "Share of time that the fp64 pipe was in use."),
    Word("fp32_active", "0..1", "gauge", "Share of time that the fp32 pipe was in use."),
    Word("fp16_active", "0..1", "gauge", "Share of time that the fp16 pipe was in use."),
    Word("memory_used", "bytes", "gauge", "Memory in use."),
    Word("memory_free", "bytes", "gauge", "Memory free."),
    Word("memory_total", "bytes", "gauge", "Memory in all."),
    Word("memory_used_ratio", "0..1", "gauge", "Share of memory in use."),
    Word("performance_state", "P-state", "gauge", "0 is fastest."),
    Word("compute_processes", "count", "gauge", "Processes that compute on it."),
    # Buses
    Word("pcie_tx", "bytes/s", "gauge", "PCIe, out of the GPU."),
    Word("pcie_rx", "bytes/s", "gauge", "PCIe, into the GPU."),
    Word("nvlink_tx", "bytes/s", "gauge", "NVLink, out of the GPU."),
    Word("nvlink_rx", "bytes/s", "gauge", "NVLink, into the GPU."),
    Word("nvlink_throughput", "bytes/s", "gauge", "NVLink, both ways."),
    Word("pcie_generation", "generation", "gauge", "PCIe generation in use."),
    Word("pcie_generation_max", "generation", "gauge", "PCIe generation that it could have."),
    Word("pcie_width", "lanes", "gauge", "PCIe lanes in use."),
    Word("pcie_width_max", "lanes", "gauge", "PCIe lanes that it could have."),
    Word("pcie_replays", "count", "cumulative", "PCIe packets sent again."),
    Word("nvlink_crc_flit_errors", "count", "cumulative", "NVLink flits with a wrong checksum."),
    Word("nvlink_crc_data_errors", "count", "cumulative", "NVLink data with a wrong checksum."),
    Word("nvlink_replays", "count", "cumulative", "NVLink packets sent again."),
    Word("nvlink_recoveries", "count", "cumulative", "NVLinks that had to recover."),
    Word(
        "nvlink_link_errors",
        "count",
        "cumulative",
        "NVLink packets received damaged, of any kind (NVLink 5).",
    ),
    Word(
        "nvlink_link_failures",
        "count",
        "cumulative",
        "NVLinks that did not recover (NVLink 5).",
    ),
    Word("nvlink_tx_bytes", "bytes", "cumulative", "NVLink, out of the GPU, over all its links."),
    Word("nvlink_rx_bytes", "bytes", "cumulative", "NVLink, into the GPU, over all its links."),
    Word("nvlink_links_active", "count", "gauge", "NVLinks that are up."),
    Word("nvlink_links_inactive", "count", "gauge", "NVLinks that are down."),
    # Memory
    Word(
        "ecc_sbe_volatile",
        "count",
        "cumulative",
        "Corrected memory errors since the driver was loaded.",
    ),
    Word(
        "ecc_dbe_volatile",
        "count",
        "cumulative",
        "Uncorrected memory errors since the driver was loaded.",
    ),
    Word(
        "ecc_sbe_aggregate",
        "count",
        "cumulative",
        "Corrected memory errors in the board's life.",
    ),
    Word(
        "ecc_dbe_aggregate",
        "count",
        "cumulative",
        "Uncorrected memory errors in the board's life.",
    ),
    Word("retired_pages_sbe", "count", "cumulative", "Pages retired after corrected errors."),
    Word("retired_pages_dbe", "count", "cumulative", "Pages retired after uncorrected errors."),
    Word("retired_pages_pending", "count", "gauge", "Pages to be retired at the next reset."),
    Word(
        "remapped_rows_uncorrectable",
        "count",
        "cumulative",
        "Memory rows replaced after uncorrected errors.",
    ),
    Word(
        "remapped_rows_correctable",
        "count",
        "cumulative",
        "Memory rows replaced after corrected errors.",
    ),
    Word("row_remap_failure", "0 or 1", "gauge", "Whether a row could not be replaced."),
    Word("row_remap_pending", "0 or 1", "gauge", "Whether a row waits for a reset."),
    Word("xid", "XID", "gauge", "The last XID: stays after the event."),
    Word("xid_count", "count", "window", "XIDs in a sliding window."),
)
"""Counters of GPUs. ``clock_event_reasons`` has the bits of NVML's
nvmlClocksEventReason, which query gpu_throttle reads."""

INT64_BLANK = 0x7FFFFFFFFFFFFFF0
"""DCGM's 64-bit blank; the next three are not found, not supported, not permitted."""
INT32_BLANK = 0x7FFFFFF0
"""DCGM's 32-bit blank, with the same three after it."""
FP64_BLANK = 140737488355328.0
"""DCGM's blank as a double, with the same three after it."""


MOST = {
    "power": 20e3, "power_limit": 20e3, "power_limit_default": 20e3, "gpu_temperature": 250.0,
    "memory_temperature": 250.0, "sm_clock": 1e11, "memory_clock": 1e11, "memory_used": 1e14,
    "memory_free": 1e14, "memory_total": 1e14,
}  # fmt: skip
"""What no GPU reaches: such a number is in another unit (NVML's own milliwatts), or damage."""


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
