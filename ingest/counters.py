"""The words that all sources of counters share: canonical names, units and kinds.

A canonical name of a port's counter begins with ``rx_`` or ``tx_`` where it has a direction, as
the node that owns the port sees it. Rules and queries know these names only; the name in the
source stays in ``original_name``. A counter that has no canonical name keeps its own, in lower
case: it can be looked at, and no rule reads it.

Deltas of cumulative counters are taken in SQL, over all files of a run (``counter_deltas`` of
queries/macros.sql): one file rarely holds two readings of a counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Kind = Literal["cumulative", "gauge", "watermark", "window"]


class Canonical(NamedTuple):
    """What a canonical counter is."""

    unit: str
    kind: Kind
    doc: str


def _count(doc: str) -> Canonical:
    return Canonical("count", "cumulative", doc)


NET: dict[str, Canonical] = {
    # Traffic
    "rx_bytes": Canonical("bytes", "cumulative", "Bytes received."),
    "tx_bytes": Canonical("bytes", "cumulative", "Bytes sent."),
    "rx_packets": _count("Packets received."),
    "tx_packets": _count("Packets sent."),
    # Loss: packets thrown away although nothing was wrong with them.
    "rx_drops": _count("Packets dropped on the way in: no buffer, or a policy."),
    "tx_drops": _count("Packets dropped on the way out: the queue was full."),
    "rx_no_buffer": _count("Packets that found no receive buffer: the host's software is late."),
    "rx_trimmed": _count("Packets cut to their header instead of being dropped, on the way in."),
    "tx_trimmed": _count("Packets cut to their header instead of being dropped, on the way out."),
    # Damage: the link itself.
    "rx_errors": _count("Damaged packets received, of any kind."),
    "tx_errors": _count("Packets that could not be sent."),
    "rx_crc_errors": _count("Packets with a wrong checksum."),
    "rx_symbol_errors": _count("Symbols that were no code: cable, optic, dirt."),
    "rx_fec_corrected": _count("Codewords that error correction repaired: normal in PAM4 links."),
    "rx_fec_uncorrected": _count("Codewords that error correction could not repair."),
    "link_down_events": _count("Times that the link went down."),
    "link_recoveries": _count("Times that the link retrained without going down."),
    # Flow control. A pause received stops this node; a pause sent stops the other side.
    "rx_pause_frames": _count("Pause frames received (with a priority: PFC)."),
    "tx_pause_frames": _count("Pause frames sent (with a priority: PFC)."),
    "rx_pause_ns": Canonical("ns", "cumulative", "Time for which this node was told to pause."),
    "tx_pause_ns": Canonical("ns", "cumulative", "Time for which it told the other side to pause."),
    "rx_pause_transitions": _count("Times that pausing began."),
    "tx_pause_storms": _count("Times that this node paused the other side beyond a limit."),
    "pfc_watchdog_storms": _count("Queues that the pause watchdog found stuck."),
    "pfc_watchdog_restored": _count("Queues that the pause watchdog released again."),
    "tx_wait_ticks": Canonical("ticks", "cumulative", "Ticks with data to send and no credit."),
    # Congestion control
    "tx_ecn_marked": _count("Packets marked as having met congestion, on the way out."),
    "rx_ecn_marked": _count("Marked packets received (RoCE: at the receiver)."),
    "tx_cnp": _count("Congestion notifications sent: by the receiver, because of marks."),
    "rx_cnp_handled": _count("Congestion notifications obeyed: this sender slowed down."),
    "rx_cnp_ignored": _count("Congestion notifications ignored."),
    # What transports notice of loss and reordering
    "rx_out_of_sequence": _count("Packets out of order: loss, or several paths."),
    "packet_sequence_errors": _count("NAKs received: the other side missed a packet."),
    "ack_timeouts": _count("Acknowledgements that did not come in time."),
    "adaptive_retransmits": _count("Retransmissions by the adaptive timer."),
    "retransmits": _count("Packets or segments sent again."),
    "retransmit_timeouts": _count("Retransmissions because a timer ran out."),
    "rnr_retries_exceeded": _count("Receivers that were never ready."),
    "retries_exceeded": _count("Connections given up after all retries."),
    # The host behind the NIC
    "pcie_stalled_ns": Canonical("ns", "cumulative", "Time that PCIe held up the NIC."),
    "pcie_stall_events": _count("Times that PCIe held up the NIC."),
    # State
    "queue_bytes": Canonical("bytes", "gauge", "Bytes waiting in the queue."),
    "queue_packets": Canonical("count", "gauge", "Packets waiting in the queue."),
    "queue_max_bytes": Canonical("bytes", "watermark", "Most bytes that waited in the queue."),
    "headroom_max_bytes": Canonical("bytes", "watermark", "Most headroom that was in use."),
    "speed_bytes_per_s": Canonical("bytes/s", "gauge", "Speed of the link."),
    "rate_limit_bytes_per_s": Canonical("bytes/s", "gauge", "Rate that a shaper allows."),
    "is_up": Canonical("0 or 1", "gauge", "Whether the link is up."),
    "mtu_bytes": Canonical("bytes", "gauge", "Largest packet."),
    "optic_rx_watts": Canonical("W", "gauge", "Light received, by lane."),
    "optic_tx_watts": Canonical("W", "gauge", "Light sent, by lane."),
    "optic_celsius": Canonical("degrees Celsius", "gauge", "Temperature of the optic."),
}
"""Counters of ports, NICs and queues."""

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
    "memory_temperature": Canonical("degrees Celsius", "gauge", "Temperature of the memory."),
    "power": Canonical("W", "gauge", "Power of the board."),
    "power_limit": Canonical("W", "gauge", "Power limit in force."),
    "energy": Canonical("J", "gauge", "Energy since the driver was loaded."),
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


NARROW = 2**32
"""What a 32-bit counter wraps at."""
NARROW_END_RATIO = 0.9
"""A 32-bit counter wraps from its last tenth into its first."""


class Delta(NamedTuple):
    """What a counter grew by since its last reading, and what happened to it in between."""

    growth: int | None
    """None where it cannot be known: the first reading, a reset, a counter stuck at its end."""
    event: Literal["wrap", "reset", "saturated"] | None = None


def deltas(readings: Sequence[int], limit: int | None = None) -> list[Delta]:
    """What a cumulative counter grew by between readings in order of time; the first is unknown.

    A counter that falls has wrapped at 32 bits if it was near that end, is now near zero and was
    never above it; else it was reset, and what was counted in between is unknown: never zero,
    never a spike. ``limit`` is where the counter stops counting, if it does (InfiniBand's
    classic counters): a reading there says only that the counter is full.
    The same as ``counter_deltas`` of queries/macros.sql, which tests compare with this.
    """
    is_narrow = max(readings, default=0) < NARROW
    found = [Delta(None)] if readings else []
    for old, new in pairwise(readings):
        if limit is not None and new >= limit:
            found.append(Delta(None, "saturated"))
        elif new >= old:
            found.append(Delta(new - old))
        elif (
            is_narrow and old > NARROW_END_RATIO * NARROW and new < (1 - NARROW_END_RATIO) * NARROW
        ):
            found.append(Delta(new - old + NARROW, "wrap"))
        else:
            found.append(Delta(None, "reset"))
    return found
