"""Names of InfiniBand and RDMA counters in all their spellings, and when they are full."""

from __future__ import annotations

import re
from functools import cache

from tracekit.ingest.base import stated_host
from tracekit.ingest.counters.net_words import meaning, own
from tracekit.ingest.counters.vocabulary import Meaning

WORD_BYTES = 4
"""PortXmitData and PortRcvData count 32-bit words."""

LANE_BITS_S = {
    "SDR": 2.5e9, "DDR": 5e9, "QDR": 10e9, "FDR10": 10e9, "FDR": 14e9, "EDR": 25e9, "HDR": 50e9,
    "NDR": 100e9, "XDR": 200e9,
}  # fmt: skip
"""Speed of a lane, as the InfiniBand Trade Association names it."""

_MANAGED = re.compile(r"MF0;([^:;]{1,80}):")
_ADAPTER = re.compile(
    r"([A-Za-z0-9][\w.-]{0,80}) ((?:mlx|hfi|bnxt|ocrdma|qib|mthca|roce)\w{1,20})$"
)

_PORT = {
    "xmit_data": ("tx_bytes", WORD_BYTES),
    "rcv_data": ("rx_bytes", WORD_BYTES),
    "xmit_packets": ("tx_packets", 1),
    "rcv_packets": ("rx_packets", 1),
    "unicast_xmit_packets": ("tx_unicast_packets", 1),
    "unicast_rcv_packets": ("rx_unicast_packets", 1),
    "multicast_xmit_packets": ("tx_multicast_packets", 1),
    "multicast_rcv_packets": ("rx_multicast_packets", 1),
    "symbol_error": ("rx_symbol_errors", 1),
    "link_error_recovery": ("link_error_recovery", 1),
    "link_downed": ("link_downed", 1),
    "rcv_errors": ("rx_errors", 1),
    "rcv_remote_physical_errors": ("rx_remote_physical_errors", 1),
    "rcv_switch_relay_errors": ("rx_switch_relay_errors", 1),
    "xmit_discards": ("tx_dropped_packets", 1),
    "xmit_constraint_errors": ("tx_constraint_errors", 1),
    "rcv_constraint_errors": ("rx_constraint_errors", 1),
    "local_link_integrity_errors": ("link_integrity_errors", 1),
    "excessive_buffer_overrun_errors": ("rx_buffer_overrun_errors", 1),
    "vl15_dropped": ("vl15_dropped", 1),
    "qp1_dropped": ("qp1_dropped", 1),
    "xmit_wait": ("tx_wait", 1),
}
_HARDWARE = {
    "np_ecn_marked_roce_packets": "np_ecn_marked_packets",
    "np_cnp_sent": "np_cnp_sent",
    "rp_cnp_handled": "rp_cnp_handled",
    "rp_cnp_ignored": "rp_cnp_ignored",
    "out_of_sequence": "rdma_out_of_sequence",
    "packet_seq_err": "rdma_packet_seq_errors",
    "implied_nak_seq_err": "rdma_implied_nak_seq_errors",
    "local_ack_timeout_err": "rdma_ack_timeouts",
    "rnr_nak_retry_err": "rdma_rnr_nak_retries",
    "duplicate_request": "rdma_duplicate_requests",
    "roce_adp_retrans": "rdma_adaptive_retransmissions",
    "roce_adp_retrans_to": "rdma_adaptive_retransmission_timeouts",
    "roce_slow_restart": "rdma_slow_restarts",
    "req_transport_retries_exceeded": "rdma_retries_exceeded",
    "rx_icrc_encapsulated": "rdma_icrc_errors",
    "rx_read_requests": "rdma_read_requests",
    "rx_write_requests": "rdma_write_requests",
    "out_of_buffer": "rx_out_of_buffer",
    "lifespan": "counter_lifespan",
    # EFA
    "tx_bytes": "tx_bytes",
    "rx_bytes": "rx_bytes",
    "tx_pkts": "tx_packets",
    "rx_pkts": "rx_packets",
    "rx_drops": "rx_dropped_packets",
    "rdma_read_bytes": "rdma_read_bytes",
    "rdma_write_bytes": "rdma_write_bytes",
    "retrans_bytes": "rdma_retransmitted_bytes",
    "retrans_pkts": "rdma_retransmitted_packets",
    # names that some drivers use without any change
    "rx_dct_connect": "",
    "rx_atomic_requests": "",
    "resp_local_length_error": "",
    "resp_cqe_error": "",
    "req_cqe_error": "",
    "req_remote_invalid_request": "",
    "req_remote_access_errors": "",
    "resp_remote_access_errors": "",
    "resp_cqe_flush_error": "",
    "req_cqe_flush_error": "",
    "roce_slow_restart_cnps": "",
    "roce_slow_restart_trans": "",
    "rdma_read_wrs": "",
    "rdma_write_wrs": "",
    "rdma_read_resp_bytes": "",
    "rdma_write_recv_bytes": "",
    "rdma_read_wr_err": "",
    "rdma_write_wr_err": "",
    "retrans_timeout_events": "",
    "unresponsive_remote_events": "",
    "impaired_remote_conn_events": "",
    "send_bytes": "",
    "send_wrs": "",
    "recv_bytes": "",
    "recv_wrs": "",
    "lifespan_ms": "",
}

_FULL = {
    "symbol_error": 2**16 - 1,
    "link_error_recovery": 2**8 - 1,
    "link_downed": 2**8 - 1,
    "rcv_errors": 2**16 - 1,
    "rcv_remote_physical_errors": 2**16 - 1,
    "rcv_switch_relay_errors": 2**16 - 1,
    "xmit_discards": 2**16 - 1,
    "xmit_constraint_errors": 2**8 - 1,
    "rcv_constraint_errors": 2**8 - 1,
    "local_link_integrity_errors": 2**4 - 1,
    "excessive_buffer_overrun_errors": 2**4 - 1,
    "vl15_dropped": 2**16 - 1,
    "xmit_wait": 2**32 - 1,
    "xmit_data": 2**32 - 1,
    "rcv_data": 2**32 - 1,
    "xmit_packets": 2**32 - 1,
    "rcv_packets": 2**32 - 1,
}
"""Where the classic counters stop: they do not wrap, they stay."""


@cache
def plain(name: str) -> str:
    """One spelling of a port counter's name: PortXmitPkts, port_xmit_packets: xmit_packets."""
    text = re.sub(r"(?:Extended|Ext)$", "", name)
    if not text.islower() and "_" not in text:
        text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", text)
    text = text.lower().replace("vl15dropped", "vl15_dropped").replace("qp1dropped", "qp1_dropped")
    text = text.removeprefix("port_").removesuffix("_counter")
    text = re.sub(r"pkts$", "packets", text).replace("_cast_", "cast_")
    return re.sub(r"^(xmit|rcv)_(unicast|multicast)_", r"\2_\1_", text)


def is_port_counter(name: str) -> bool:
    """Whether it is a counter that the InfiniBand standard has, in any spelling."""
    return plain(name) in _PORT


def is_hardware_counter(name: str) -> bool:
    """Whether it is a counter of hw_counters that is known."""
    return name in _HARDWARE


@cache
def port_meaning(name: str) -> Meaning:
    """What a port counter means."""
    short = plain(name)
    known = _PORT.get(short)
    return meaning(*known) if known else own(short)


@cache
def hardware_meaning(name: str) -> Meaning:
    """What a counter of hw_counters or of ``rdma statistic`` means."""
    known = _HARDWARE.get(name)
    return meaning(known) if known else own(name)


def full_at(name: str) -> int | None:
    """The value at which a classic counter of that name stops; None where it does not."""
    return _FULL.get(plain(name))


def machine_of(name: str, guid: str | None) -> str:
    """The machine that an adapter's description names; with its GUID where it is no name."""
    if guid is not None and stated_host(name) is None:
        return f"{name} {guid}"
    return name.split(".")[0]


def node_and_prefix(description: str, guid: str | None) -> tuple[str, str]:
    """The machine that a node description names, and what its ports are called.

    ``server mlx5_0`` is an adapter: its port 1 is mlx5_0/1 of server. A managed switch has its
    name between ``MF0;`` and a colon. Other descriptions are not unique and bear their GUID, as
    machines do that nobody named (localhost).
    """
    text = description.strip()
    if adapter := _ADAPTER.match(text):
        return machine_of(adapter[1], guid), f"{adapter[2]}/"
    if managed := _MANAGED.match(text):
        return managed[1], ""
    return (f"{text} {guid}" if guid and text else text or guid or "unknown"), ""
