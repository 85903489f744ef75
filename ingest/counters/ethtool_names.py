"""Names of ``ethtool -S`` and of an interface's ``statistics`` folder, as counters."""

from __future__ import annotations

import re

from tracekit.ingest.counters.net_words import is_word, meaning, own
from tracekit.ingest.counters.vocabulary import Meaning

_PRIORITY = re.compile(r"([rt]x)_prio(\d)_(\w{1,40})")
_PRIORITIES = {
    "pause": "pfc_packets",
    "pause_duration": "pfc_duration",
    "pause_transition": "pfc_transitions",
    "bytes": "priority_bytes",
    "packets": "priority_packets",
    "discards": "priority_dropped_packets",
    "buf_discard": "buffer_dropped_packets",
    "cong_discard": "priority_congestion_dropped_packets",
    "marked": "priority_ecn_marked_packets",
}
_BNXT_PFC = re.compile(r"([rt]x)_pfc_ena_frames_pri(\d)")
_BNXT_TIMES = re.compile(r"pfc_pri(\d)_([rt]x)_(transitions|duration_us)")
_RINGS = (
    re.compile(r"([rt]x)[_-]?(?:queue_|ring_)?(\d{1,4})_(\w{1,60})"),
    re.compile(r"queue_(\d{1,4})_([rt]x)_(\w{1,60})"),
    re.compile(r"\[(\d{1,4})\]: ([rt]x)_(\w{1,60})"),
)
_ETHTOOL_NAMES = {
    # mlx5: what the physical port saw
    "rx_packets_phy": "rx_packets",
    "tx_packets_phy": "tx_packets",
    "rx_bytes_phy": "rx_bytes",
    "tx_bytes_phy": "tx_bytes",
    "rx_unicast_phy": "rx_unicast_packets",
    "tx_unicast_phy": "tx_unicast_packets",
    "rx_multicast_phy": "rx_multicast_packets",
    "tx_multicast_phy": "tx_multicast_packets",
    "rx_broadcast_phy": "rx_broadcast_packets",
    "tx_broadcast_phy": "tx_broadcast_packets",
    "rx_crc_errors_phy": "rx_crc_errors",
    "rx_symbol_err_phy": "rx_symbol_errors",
    "rx_discards_phy": "rx_dropped_packets",
    "tx_discards_phy": "tx_dropped_packets",
    "tx_errors_phy": "tx_errors",
    "rx_oversize_pkts_phy": "rx_oversize_packets",
    "rx_undersize_pkts_phy": "rx_undersize_packets",
    "rx_in_range_len_errors_phy": "rx_length_errors",
    "rx_corrected_bits_phy": "fec_corrected_bits",
    "link_down_events_phy": "link_downed",
    "rx_global_pause": "rx_pause_packets",
    "tx_global_pause": "tx_pause_packets",
    "rx_global_pause_duration": "rx_pause_duration",
    "tx_global_pause_duration": "tx_pause_duration",
    "rx_global_pause_transition": "rx_pause_transitions",
    "tx_pause_storm_warning_events": "tx_pause_storm_warnings",
    "tx_pause_storm_error_events": "tx_pause_storm_errors",
    "rx_out_of_buffer": "rx_out_of_buffer",
    "outbound_pci_stalled_rd": "pci_read_stall",
    "outbound_pci_stalled_wr": "pci_write_stall",
    "outbound_pci_stalled_rd_events": "pci_read_stall_events",
    "outbound_pci_stalled_wr_events": "pci_write_stall_events",
    "outbound_pci_buffer_overflow": "pci_buffer_overflow",
    # bnxt
    "rx_total_frames": "rx_packets",
    "tx_total_frames": "tx_packets",
    "rx_stat_discard": "rx_dropped_packets",
    "rx_stat_err": "rx_errors",
    "tx_err": "tx_errors",
    "rx_fcs_err_frames": "rx_crc_errors",
    "rx_align_err_frames": "rx_alignment_errors",
    "rx_ovrsz_frames": "rx_oversize_packets",
    "rx_undrsz_frames": "rx_undersize_packets",
    "rx_pause_frames": "rx_pause_packets",
    "tx_pause_frames": "tx_pause_packets",
    "rx_pfc_frames": "rx_pfc_packets",
    "tx_pfc_frames": "tx_pfc_packets",
    "rx_corrected_bits": "fec_corrected_bits",
    "rx_fec_corrected_blocks": "fec_corrected_codewords",
    "rx_fec_uncorrectable_blocks": "fec_uncorrectable_codewords",
    "link_down_events": "link_downed",
    # ENA
    "bw_in_allowance_exceeded": "rx_allowance_exceeded_packets",
    "bw_out_allowance_exceeded": "tx_allowance_exceeded_packets",
}
_DRIVER_OWN = frozenset(
    {"rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped_packets", "tx_dropped_packets"}
)
NET_STATISTICS = {
    "rx_dropped": "rx_dropped_packets",
    "tx_dropped": "tx_dropped_packets",
    "multicast": "rx_multicast_packets",
    "collisions": "tx_collisions",
    "rx_over_errors": "rx_overruns",
    "rx_missed_errors": "rx_missed_packets",
    "rx_nohandler": "rx_no_handler_packets",
    "rx_compressed": "rx_compressed_packets",
    "tx_compressed": "tx_compressed_packets",
}


def ethtool_meaning(name: str, has_physical: bool) -> tuple[Meaning, int | None, int | None]:
    """What a counter of ethtool -S means, its priority and its ring.

    Where a NIC counts what its physical port saw, the driver's own rx_bytes leave out RDMA
    traffic: they keep a name of their own.
    """
    if priority_match := _PRIORITY.fullmatch(name):
        direction, priority, what = priority_match.groups()
        known = _PRIORITIES.get(what)
        word = f"{direction}_{known}"
        if known and is_word(word):
            return meaning(word), int(priority), None
        return own(f"{direction}_priority_{what}"), int(priority), None
    if pfc := _BNXT_PFC.fullmatch(name):
        return meaning(f"{pfc[1]}_pfc_packets"), int(pfc[2]), None
    if pfc_times := _BNXT_TIMES.fullmatch(name):
        what = "pfc_duration" if pfc_times[3] == "duration_us" else "pfc_transitions"
        return meaning(f"{pfc_times[2]}_{what}"), int(pfc_times[1]), None
    for pattern in _RINGS:
        if ring_match := pattern.fullmatch(name):
            first, second, what = ring_match.groups()
            ring, direction = (first, second) if first.isdigit() else (second, first)
            return own(f"{direction}_ring_{what}"), None, int(ring)
    known = _ETHTOOL_NAMES.get(name)
    if known:
        return meaning(known), None, None
    if name in _DRIVER_OWN and has_physical:
        return own(f"{name[:3]}driver_{name[3:]}"), None, None
    word = NET_STATISTICS.get(name, name)
    return (meaning(word) if is_word(word) else own(name)), None, None
