"""What Linux counts of an interface, by the kernel's own names (``rtnl_link_stats64``)."""

from __future__ import annotations

from tracekit.ingest.counters.vocabulary import Meaning

LINK_STATS: dict[str, dict[str, Meaning]] = {
    "rx": {
        "bytes": Meaning("rx_bytes", "bytes"),
        "packets": Meaning("rx_packets", "packets"),
        "errors": Meaning("rx_errors", "packets"),
        "dropped": Meaning("rx_dropped_packets", "packets"),
        "multicast": Meaning("rx_multicast_packets", "packets"),
        "over_errors": Meaning("rx_overruns", "packets"),
        "missed_errors": Meaning("rx_missed_packets", "packets"),
        "length_errors": Meaning("rx_length_errors", "packets"),
        "crc_errors": Meaning("rx_crc_errors", "packets"),
        "frame_errors": Meaning("rx_frame_errors", "packets"),
        "fifo_errors": Meaning("rx_fifo_errors", "packets"),
        "nohandler": Meaning("rx_no_handler_packets", "packets"),
        "compressed": Meaning("rx_compressed_packets", "packets"),
    },
    "tx": {
        "bytes": Meaning("tx_bytes", "bytes"),
        "packets": Meaning("tx_packets", "packets"),
        "errors": Meaning("tx_errors", "packets"),
        "dropped": Meaning("tx_dropped_packets", "packets"),
        "carrier_errors": Meaning("tx_carrier_errors", "packets"),
        "collisions": Meaning("tx_collisions"),
        "aborted_errors": Meaning("tx_aborted_errors", "packets"),
        "fifo_errors": Meaning("tx_fifo_errors", "packets"),
        "window_errors": Meaning("tx_window_errors", "packets"),
        "heartbeat_errors": Meaning("tx_heartbeat_errors", "packets"),
        "carrier_changes": Meaning("link_changes"),
        "compressed": Meaning("tx_compressed_packets", "packets"),
    },
}
"""By direction, as ``ip -j`` names them."""
MTU = Meaning("mtu", "bytes", "gauge")
LINK_UP = Meaning("link_up", "1 or 0", "gauge")
