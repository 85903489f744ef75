"""Names of UFM's port counters: those of the telemetry endpoint and those of the REST API.

The endpoint keeps the names of the InfiniBand standard and counts data in its words of four bytes:
NVIDIA's own example of it shows ports with 72 units a packet, which is the 288 bytes of a
management datagram. Its list of fields says bytes.
"""

from __future__ import annotations

import re
from functools import cache

from tracekit.ingest.counters import rdma_names
from tracekit.ingest.counters.net_words import meaning, own
from tracekit.ingest.counters.vocabulary import Meaning

_REST = {
    "PckOut": "tx_packets",
    "PckIn": "rx_packets",
    "PckOutRate": "tx_packet_rate",
    "PckInRate": "rx_packet_rate",
    "RcvErrors": "rx_errors",
    "XmtDiscards": "tx_dropped_packets",
    "SymbolErrors": "rx_symbol_errors",
    "LinkRecovers": "link_error_recovery",
    "LinkDowned": "link_downed",
    "LinkIntegrityErrors": "link_integrity_errors",
    "RcvRemotePhysErrors": "rx_remote_physical_errors",
    "XmtConstraintErrors": "tx_constraint_errors",
    "RcvConstraintErrors": "rx_constraint_errors",
    "ExcBufOverrunErrors": "rx_buffer_overrun_errors",
    "RcvSwRelayErrors": "rx_switch_relay_errors",
    "VL15Dropped": "vl15_dropped",
    "XmitWait": "tx_wait",
}
_PHYSICAL = {
    "Link_Down": "link_downed",
    "Total_Raw_BER": "fec_pre_ber",
    "Effective_BER": "fec_post_ber",
}
"""Fields of the low-frequency set that are a counter of ours."""
_RATES = {
    "xmit_data": "tx_rate",
    "rcv_data": "rx_rate",
    "xmit_packets": "tx_packet_rate",
    "rcv_packets": "rx_packet_rate",
}
_OWN_GAUGES = re.compile(r"(?:infiniband_)?(?:Normalized_?\w{2,40}|CBW)", re.I)
_UNIT = re.compile(r"(?:_f)?_u_\w{1,12}$")
GUID = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})")


@cache
def of_ufm(name: str) -> Meaning | None:
    """What a field of UFM means; None for one that is no counter of a port.

    ``Infiniband_MBOut`` and its like keep their names: their text says four octets, their name
    says megabytes.
    """
    bare = _UNIT.sub("", name)
    if bare.startswith("Infiniband_"):
        rest = bare.removeprefix("Infiniband_")
        known = _REST.get(rest)
        return meaning(known) if known else own(bare, "gauge")
    if bare in _PHYSICAL:
        return meaning(_PHYSICAL[bare])
    if bare.endswith("_Rate"):
        # Rates of data are bytes, unlike the counter: the REST API has multiplied them.
        rate = _RATES.get(rdma_names.plain(bare.removesuffix("_Rate")))
        return meaning(rate) if rate else None
    if _OWN_GAUGES.fullmatch(bare):
        return own(bare, "gauge")
    if rdma_names.is_port_counter(bare):
        return rdma_names.port_meaning(bare)
    return None


def is_wide(name: str) -> bool:
    """Whether it is the form of a counter that neither saturates nor is cut to 32 bits."""
    return name.endswith(("Extended", "Ext"))


def guid(text: str | None) -> str | None:
    """A GUID as all sources of ours spell it: 0x and 16 digits; None for what is none."""
    digits = GUID.fullmatch((text or "").strip())
    return f"0x{int(digits[1], 16):016x}" if digits else None
