"""The canonical names of network counters, once: what each means, its unit and its kind.

Every format maps its own names onto these, so that a rule reads one name for all of them. A name
begins with rx_ or tx_ as the node that counts sees it: on a switch, tx is traffic towards the
machine at the other end of the port, and rx_pfc_packets are pause frames that this machine sent.
What a format has beyond them keeps its own name, without a unit.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from tracekit.ingest.counters.net_samples import Meaning


class Word(NamedTuple):
    """A canonical name."""

    name: str
    unit: str | None
    kind: str
    doc: str


def _both(name: str, unit: str, doc: str, kind: str = "cumulative") -> tuple[Word, Word]:
    return (
        Word(f"rx_{name}", unit, kind, doc.replace("{done}", "received")),
        Word(f"tx_{name}", unit, kind, doc.replace("{done}", "sent")),
    )


def _one(name: str, unit: str | None, doc: str, kind: str = "cumulative") -> Word:
    return Word(name, unit, kind, doc)


_QUEUE = (
    ("packets", "packets", "cumulative", "Packets that left {queue}."),
    ("bytes", "bytes", "cumulative", "Bytes that left {queue}."),
    ("dropped_packets", "packets", "cumulative", "Packets dropped at {queue}."),
    ("dropped_bytes", "bytes", "cumulative", "Bytes dropped at {queue}."),
    ("wred_dropped_packets", "packets", "cumulative", "Packets that WRED dropped at {queue}."),
    ("wred_dropped_bytes", "bytes", "cumulative", "Bytes that WRED dropped at {queue}."),
    ("ecn_marked_packets", "packets", "cumulative", "Packets marked as congested in {queue}."),
    ("ecn_marked_bytes", "bytes", "cumulative", "Bytes marked as congested in {queue}."),
    ("trimmed_packets", "packets", "cumulative", "Packets cut to their headers in {queue}."),
    ("trim_sent_packets", "packets", "cumulative", "Cut packets that left {queue}."),
    ("trim_dropped_packets", "packets", "cumulative", "Cut packets dropped at {queue}."),
    ("credit_deleted_packets", "packets", "cumulative", "Packets of {queue} that aged out."),
    ("shared_watermark", "bytes", "watermark", "Most bytes in {queue}: a maximum, never a sum."),
    ("depth_bytes", "bytes", "gauge", "Bytes waiting in {queue}."),
    ("depth_packets", "packets", "gauge", "Packets waiting in {queue}."),
)
_QUEUES = (
    ("tx_queue_", "an egress queue; where queue is null, in all of the port's"),
    ("tx_multicast_queue_", "an egress queue for multicast"),
    ("voq_", "a virtual output queue"),
)

WORDS: tuple[Word, ...] = (
    *_both("bytes", "bytes", "Bytes {done}."),
    *_both("packets", "packets", "Packets {done}."),
    *_both("unicast_packets", "packets", "Unicast packets {done}."),
    *_both("multicast_packets", "packets", "Multicast packets {done}."),
    *_both("broadcast_packets", "packets", "Broadcast packets {done}."),
    *_both("nonunicast_packets", "packets", "Multicast and broadcast packets {done}."),
    *_both("rate", "bytes/s", "Bytes {done} a second, as the source averages them.", "gauge"),
    *_both("packet_rate", "packets/s", "Packets {done} a second, likewise.", "gauge"),
    *_both("utilisation", "ratio", "Share of the link's rate.", "gauge"),
    *_both("errors", "packets", "Packets with any error."),
    *_both("dropped_packets", "packets", "Packets dropped though they had no error."),
    *_both("oversize_packets", "packets", "Packets longer than allowed."),
    *_both("pause_enabled", "1 or 0", "Whether frames that pause the link may be {done}.", "gauge"),
    *_both("pause_packets", "packets", "Pause frames of the whole link {done} (802.3x)."),
    *_both("pause_duration", "us", "Time paused by such frames {done}."),
    *_both("pause_transitions", "count", "Changes between running and paused by them."),
    *_both("pfc_packets", "packets", "Priority pause frames {done}: who sends them is full."),
    *_both("pfc_duration", "us", "Time that a priority was paused by frames {done}."),
    *_both("pfc_transitions", "count", "Times that a priority went into pause."),
    *_both("priority_bytes", "bytes", "Bytes {done} of a priority."),
    *_both("priority_packets", "packets", "Packets {done} of a priority."),
    *_both("constraint_errors", "packets", "Packets refused by partition or protocol rules."),
    _one("rx_pfc_recent_duration", "us", "Time of the newest pause.", "gauge"),
    _one("rx_priority_dropped_packets", "packets", "Packets of a priority dropped on arrival."),
    _one("tx_priority_dropped_packets", "packets", "Packets of a priority dropped on leaving."),
    _one("rx_priority_congestion_dropped_packets", "packets", "Dropped by the NIC's congestion."),
    _one("rx_priority_ecn_marked_packets", "packets", "Packets that the NIC marked as congested."),
    _one("rx_buffer_dropped_packets", "packets", "Packets dropped for lack of a port's buffer."),
    _one("rx_undersize_packets", "packets", "Packets shorter than allowed."),
    _one("rx_crc_errors", "packets", "Frames with a wrong checksum."),
    _one("rx_stomped_crc_errors", "packets", "Frames that an earlier hop had found broken."),
    _one("rx_alignment_errors", "packets", "Frames with odd bits."),
    _one("rx_symbol_errors", "count", "Errors of the physical layer: cable, optic, connector."),
    _one("rx_length_errors", "packets", "Frames whose length is wrong."),
    _one("rx_frame_errors", "packets", "Frames with odd bits, as Linux counts them."),
    _one("rx_fifo_errors", "packets", "Packets lost in the NIC's own queue."),
    _one("rx_missed_packets", "packets", "Packets that the host did not take in time."),
    _one("rx_overruns", "packets", "Packets lost because the receiver was full."),
    _one("rx_runts", "packets", "Fragments."),
    _one("rx_giants", "packets", "Packets longer than allowed, with errors."),
    _one("rx_no_handler_packets", "packets", "Packets that nobody on the host wanted."),
    _one("rx_compressed_packets", "packets", "Compressed packets."),
    _one("rx_out_of_buffer", "packets", "Packets without a posted receive: software is late."),
    _one("rx_remote_physical_errors", "packets", "Packets marked as broken by an earlier hop."),
    _one("rx_switch_relay_errors", "packets", "Packets that a switch could not pass on."),
    _one("rx_buffer_overrun_errors", "count", "Times that input buffers overran."),
    _one("tx_carrier_errors", "packets", "Packets lost for lack of a carrier."),
    _one("tx_collisions", "count", "Collisions."),
    _one("tx_deferred", "count", "Sends put off because the medium was busy."),
    _one("tx_aborted_errors", "packets", "Sends given up."),
    _one("tx_fifo_errors", "packets", "Packets lost in the NIC's own queue."),
    _one("tx_window_errors", "packets", "Late collisions."),
    _one("tx_heartbeat_errors", "packets", "Heartbeat errors."),
    _one("tx_compressed_packets", "packets", "Compressed packets."),
    _one("tx_wait", "ticks", "Ticks with data to send and no credit; length differs by device."),
    _one("tx_pause_storm_warnings", "count", "NIC stalled past its watermark."),
    _one("tx_pause_storm_errors", "count", "NIC stalled past its timeout: pause was switched off."),
    _one("pci_read_stall", "percent", "Share of time that PCIe reads stalled.", "gauge"),
    _one("pci_write_stall", "percent", "Share of time that PCIe writes stalled.", "gauge"),
    _one("pci_read_stall_events", "count", "Seconds with PCIe reads stalled by a third or more."),
    _one("pci_write_stall_events", "count", "Seconds with PCIe writes stalled by a third or more."),
    _one("pci_buffer_overflow", "packets", "Packets dropped for lack of PCIe buffers."),
    _one("link_downed", "count", "Times that the link went down."),
    _one("link_error_recovery", "count", "Times that the link recovered from errors."),
    _one("link_integrity_errors", "count", "Times that local errors passed their threshold."),
    _one("link_changes", "count", "Changes between up and down."),
    _one("link_up", "1 or 0", "Whether the link is up.", "gauge"),
    _one("link_speed", "bits/s", "Speed that the link runs at.", "gauge"),
    _one("link_width", "lanes", "Lanes that the link runs on.", "gauge"),
    _one("mtu", "bytes", "Longest packet that the port takes.", "gauge"),
    _one("vl15_dropped", "packets", "Management packets dropped."),
    _one("qp1_dropped", "packets", "Management packets dropped at the general interface."),
    _one("tx_shaper_rate", "bytes/s", "Rate that the port's own shaper allows.", "gauge"),
    _one("tx_queue_overlimits", "count", "Times that the shaper held a packet back."),
    _one("tx_queue_requeues", "count", "Packets put back."),
    _one("tx_queue_early_dropped_packets", "packets", "Packets dropped before the queue was full."),
    *(
        Word(prefix + name, unit, kind, doc.replace("{queue}", what))
        for prefix, what in _QUEUES
        for name, unit, kind, doc in _QUEUE
    ),
    _one("rx_queue_bytes", "bytes", "Bytes through the ingress qdisc."),
    _one("rx_queue_packets", "packets", "Packets through the ingress qdisc."),
    _one("rx_queue_dropped_packets", "packets", "Packets dropped by the ingress qdisc."),
    _one("rx_pg_dropped_packets", "packets", "Packets dropped in an ingress priority group."),
    _one("rx_pg_packets", "packets", "Packets through an ingress priority group."),
    _one("rx_pg_bytes", "bytes", "Bytes through an ingress priority group."),
    _one("rx_pg_shared_watermark", "bytes", "Most bytes of a group in the pool.", "watermark"),
    _one("rx_pg_headroom_watermark", "bytes", "Most bytes in a group's headroom.", "watermark"),
    _one("pool_shared_watermark", "bytes", "Most bytes in a pool; port names it.", "watermark"),
    _one("pool_headroom_watermark", "bytes", "Most bytes in its headroom.", "watermark"),
    _one("trimmed_packets", "packets", "Packets cut to their headers."),
    _one("tx_trimmed_packets", "packets", "Cut packets that were sent."),
    _one("trim_dropped_packets", "packets", "Cut packets that were dropped."),
    _one("pfcwd_stormed", "1 or 0", "Whether the watchdog holds a queue in a storm.", "gauge"),
    _one("pfcwd_storms_detected", "count", "Storms that the watchdog found."),
    _one("pfcwd_storms_restored", "count", "Storms that ended."),
    _one("pfcwd_tx_packets", "packets", "Packets sent from a queue in a storm."),
    _one("pfcwd_tx_dropped_packets", "packets", "Packets of a queue dropped in a storm."),
    _one("pfcwd_rx_packets", "packets", "Packets received for a priority in a storm."),
    _one("pfcwd_rx_dropped_packets", "packets", "Packets for a priority dropped in a storm."),
    _one("pfcwd_tx_packets_last", "packets", "The same of the newest storm.", "gauge"),
    _one("pfcwd_tx_dropped_packets_last", "packets", "The same of the newest storm.", "gauge"),
    _one("pfcwd_rx_packets_last", "packets", "The same of the newest storm.", "gauge"),
    _one("pfcwd_rx_dropped_packets_last", "packets", "The same of the newest storm.", "gauge"),
    _one("pfcwd_detection_time", "ms", "Time without progress that is a storm.", "gauge"),
    _one("pfcwd_restoration_time", "ms", "Time without pause that ends a storm.", "gauge"),
    _one("fec_corrected_codewords", "count", "Codewords put right."),
    _one("fec_uncorrectable_codewords", "count", "Codewords lost: packets were dropped."),
    _one("fec_symbol_errors", "count", "Symbols put right."),
    _one("fec_corrected_bits", "count", "Bits put right."),
    _one("fec_pre_ber", "ratio", "Bit error ratio before correction.", "gauge"),
    _one("fec_post_ber", "ratio", "Bit error ratio after correction.", "gauge"),
    _one("fec_pre_ber_max", "ratio", "Highest ratio before correction.", "watermark"),
    _one("fec_frame_loss", "ratio", "Frame loss ratio, observed.", "gauge"),
    _one("fec_frame_loss_predicted", "ratio", "Frame loss ratio, predicted.", "gauge"),
    _one("fec_max_symbol_errors", "count", "Most symbol errors in a codeword.", "gauge"),
    _one("optic_rx_power", "dBm", "Light that arrives.", "gauge"),
    _one("optic_tx_power", "dBm", "Light that leaves.", "gauge"),
    _one("optic_tx_bias", "mA", "Current of the laser.", "gauge"),
    _one("optic_temperature", "celsius", "Temperature of the module.", "gauge"),
    _one("optic_voltage", "V", "Supply of the module.", "gauge"),
    _one("np_ecn_marked_packets", "packets", "Marked packets that this receiver saw."),
    _one("np_cnp_sent", "packets", "Congestion notices that this receiver sent."),
    _one("rp_cnp_handled", "packets", "Congestion notices that slowed this sender."),
    _one("rp_cnp_ignored", "packets", "Congestion notices ignored: control is off."),
    _one("rdma_out_of_sequence", "packets", "Packets out of order; sprayed paths do so too."),
    _one("rdma_packet_seq_errors", "count", "NAKs for a missing packet, seen by the sender."),
    _one("rdma_implied_nak_seq_errors", "count", "Read responses out of order."),
    _one("rdma_ack_timeouts", "count", "Sender timeouts: each costs milliseconds to seconds."),
    _one("rdma_rnr_nak_retries", "count", "Receiver was not ready."),
    _one("rdma_duplicate_requests", "count", "Requests that came twice."),
    _one("rdma_adaptive_retransmissions", "count", "Retransmissions before the timeout."),
    _one("rdma_adaptive_retransmission_timeouts", "count", "Timeouts of those."),
    _one("rdma_slow_restarts", "count", "Slow restarts after loss."),
    _one("rdma_retries_exceeded", "count", "Connections that gave up."),
    _one("rdma_icrc_errors", "packets", "Packets that were damaged on the way."),
    _one("rdma_read_requests", "count", "Reads received."),
    _one("rdma_write_requests", "count", "Writes received."),
    _one("rdma_read_bytes", "bytes", "Bytes read."),
    _one("rdma_write_bytes", "bytes", "Bytes written by this side."),
    _one("rdma_retransmitted_packets", "packets", "Packets sent again."),
    _one("rdma_retransmitted_bytes", "bytes", "Bytes sent again."),
    _one("counter_lifespan", "ms", "How old the cached counters may be.", "gauge"),
    *_both("allowance_exceeded_packets", "packets", "Packets held or dropped by a cloud's limit."),
)

_BY_NAME = {word.name: word for word in WORDS}
_OTHER = re.compile(r"[^a-z0-9]+")


@cache
def meaning(name: str, scale: int = 1) -> Meaning:
    """The meaning of a canonical name; KeyError if there is none."""
    word = _BY_NAME[name]
    return Meaning(word.name, word.unit, word.kind, scale)


def is_word(name: str) -> bool:
    """Whether a name is canonical."""
    return name in _BY_NAME


def words() -> tuple[str, ...]:
    """Every canonical name."""
    return tuple(_BY_NAME)


@cache
def _own(name: str, kind: str) -> Meaning:
    plain = _OTHER.sub("_", name.lower()).strip("_")[:100]
    word = _BY_NAME.get(plain)
    if word is not None:
        return meaning(plain)
    return Meaning(plain or "unnamed", None, kind)


def own(name: str, kind: str = "cumulative") -> Meaning:
    """A counter that has no canonical name: its own, in plain letters, without a unit."""
    if len(name) > 200:
        name = name[:200]
    return _own(name, kind)
