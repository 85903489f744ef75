"""NIC and interface metrics of node_exporter and UFM, as the network counters that they are."""

from __future__ import annotations

from typing import NamedTuple

from tracekit.ingest.counters import ufm_names
from tracekit.ingest.counters.exposition import Series
from tracekit.ingest.counters.net_words import meaning, own
from tracekit.ingest.counters.rdma_names import node_and_prefix
from tracekit.ingest.counters.vocabulary import Meaning

_NETWORK = {
    "receive_bytes_total": "rx_bytes",
    "transmit_bytes_total": "tx_bytes",
    "receive_packets_total": "rx_packets",
    "transmit_packets_total": "tx_packets",
    "receive_errs_total": "rx_errors",
    "transmit_errs_total": "tx_errors",
    "receive_drop_total": "rx_dropped_packets",
    "transmit_drop_total": "tx_dropped_packets",
    "receive_fifo_total": "rx_fifo_errors",
    "transmit_fifo_total": "tx_fifo_errors",
    "receive_frame_total": "rx_frame_errors",
    "receive_nohandler_total": "rx_no_handler_packets",
    "transmit_carrier_total": "tx_carrier_errors",
    "carrier_down_changes_total": "link_downed",
    "mtu_bytes": "mtu",
    "up": "link_up",
}
_INFINIBAND = {
    "port_data_received_bytes_total": "rx_bytes",
    "port_data_transmitted_bytes_total": "tx_bytes",
    "port_packets_received_total": "rx_packets",
    "port_packets_transmitted_total": "tx_packets",
    "port_errors_received_total": "rx_errors",
    "port_discards_received_total": "rx_dropped_packets",
    "port_discards_transmitted_total": "tx_dropped_packets",
    "port_constraint_errors_received_total": "rx_constraint_errors",
    "port_constraint_errors_transmitted_total": "tx_constraint_errors",
    "port_transmit_wait_total": "tx_wait",
    "link_downed_total": "link_downed",
    "link_error_recovery_total": "link_error_recovery",
    "symbol_error_total": "rx_symbol_errors",
    "local_link_integrity_errors_total": "link_integrity_errors",
    "excessive_buffer_overrun_errors_total": "rx_buffer_overrun_errors",
    "out_of_sequence_total": "rdma_out_of_sequence",
    "packet_sequence_errors_total": "rdma_packet_seq_errors",
    "local_ack_timeout_errors_total": "rdma_ack_timeouts",
}
VIRTUAL = ("lo", "veth", "docker", "br-", "cali", "cni", "flannel", "virbr", "tap", "ifb")
"""Interfaces that never carry a job's traffic to another machine: prefixes of their names."""


class NicMetric(NamedTuple):
    """A port's counter."""

    node: str | None
    port: str
    meaning: Meaning
    priority: int | None = None
    is_documented: bool = False
    """Whether it is read from documentation alone (UFM's)."""


def nic_metric(series: Series) -> NicMetric | None:
    """The NIC's or interface's counter that a series is; None for all else."""
    for prefix, known in (("node_network_", _NETWORK), ("node_infiniband_", _INFINIBAND)):
        if series.name.startswith(prefix):
            return _metric(series, series.name.removeprefix(prefix), known)
    if "port_num" in series.labels and "node_guid" in series.labels:
        return _ufm_metric(series)
    if series.name.startswith("node_ethtool_") and series.name.endswith("_total"):
        port = series.labels.get("device")
        name = series.name.removeprefix("node_ethtool_").removesuffix("_total")
        return NicMetric(_node(series), port[:200], own(name)) if port else None
    return None


def _metric(series: Series, rest: str, known: dict[str, str]) -> NicMetric | None:
    name = known.get(rest)
    port = series.labels.get("device")
    if name is None or not port or port.startswith(VIRTUAL):
        return None
    if series.labels.get("port"):
        port = f"{port}/{series.labels['port']}"
    return NicMetric(_node(series), port[:200], meaning(name))


def _ufm_metric(series: Series) -> NicMetric | None:
    """A port's counter of UFM Telemetry, which names the port by its node's GUID."""
    what = ufm_names.of_ufm(series.name)
    guid = ufm_names.guid(series.labels["node_guid"])
    number = series.labels["port_num"]
    if what is None or guid is None or not number.isdecimal() or len(number) > 5:
        return None
    described = series.labels.get("node_description") or series.labels.get("device_name") or ""
    node, prefix = node_and_prefix(described[:200], guid)
    return NicMetric(node, f"{prefix}{int(number)}", what, is_documented=True)


def _node(series: Series) -> str | None:
    stated = series.labels.get("nodename") or series.labels.get("hostname")
    if stated:
        return stated[:200]
    host = series.labels.get("instance", "").rpartition(":")[0]
    return host[:200] if any(c.isalpha() for c in host) and host != "localhost" else None
