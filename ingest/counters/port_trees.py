"""Counters of interfaces in the JSON of Junos and of Cumulus Linux (NVUE).

Junos (``show interfaces extensive | display json``) writes each value as a list of objects with
``data``; NVUE (``nv show interface -o json``, ``... counters qos -o json``) as nested names.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters.documents import dict_of, dicts_of, numbers_count
from tracekit.ingest.counters.names import port_of_name
from tracekit.ingest.counters.net_samples import NetSamples, decimal
from tracekit.ingest.counters.net_words import meaning
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading

NAME = "port_trees"

_JUNOS = re.compile(rb'"interface-information"\s*:\s*\[')
_NVUE_LINK = re.compile(rb'"link"\s*:\s*\{')
_NVUE_STATS = re.compile(rb'"stats"\s*:\s*\{')
_NVUE_QOS = re.compile(rb'"(?:egress-queue-stats|pfc-stats|ingress-buffer-stats)"\s*:\s*\{')
_JUNOS_NAMES: dict[str, dict[str, tuple[str, float]]] = {
    "traffic-statistics": {
        "input-bytes": ("rx_bytes", 1), "output-bytes": ("tx_bytes", 1),
        "input-packets": ("rx_packets", 1), "output-packets": ("tx_packets", 1),
        "input-bps": ("rx_rate", 1 / 8), "output-bps": ("tx_rate", 1 / 8),
        "input-pps": ("rx_packet_rate", 1), "output-pps": ("tx_packet_rate", 1),
    },
    "input-error-list": {
        "input-errors": ("rx_errors", 1), "input-drops": ("rx_dropped_packets", 1),
        "input-runts": ("rx_runts", 1), "framing-errors": ("rx_frame_errors", 1),
        "input-fifo-errors": ("rx_fifo_errors", 1),
    },
    "output-error-list": {
        "carrier-transitions": ("link_changes", 1), "output-errors": ("tx_errors", 1),
        "output-drops": ("tx_dropped_packets", 1), "output-collisions": ("tx_collisions", 1),
    },
    "ethernet-fec-statistics": {
        "fec_ccw_count": ("fec_corrected_codewords", 1),
        "fec_nccw_count": ("fec_uncorrectable_codewords", 1),
    },
    "ethernet-mac-statistics": {
        "input-crc-errors": ("rx_crc_errors", 1),
        "input-mac-pause-frames": ("rx_pause_packets", 1),
        "output-mac-pause-frames": ("tx_pause_packets", 1),
        "input-oversized-frames": ("rx_oversize_packets", 1),
    },
}  # fmt: skip
_NVUE_NAMES = {
    "in-bytes": "rx_bytes", "out-bytes": "tx_bytes", "in-pkts": "rx_packets",
    "out-pkts": "tx_packets", "in-drops": "rx_dropped_packets", "out-drops": "tx_dropped_packets",
    "in-errors": "rx_errors", "out-errors": "tx_errors", "carrier-transitions": "link_changes",
}  # fmt: skip
_QUEUE_NAMES = {
    "tx-frames": "tx_queue_packets", "tx-bytes": "tx_queue_bytes",
    "tx-uc-buffer-discards": "tx_queue_dropped_packets",
    "wred-discards": "tx_queue_wred_dropped_packets", "ecn-marked": "tx_queue_ecn_marked_packets",
}  # fmt: skip
_PFC_NAMES = {
    "rx-pause-frames": "rx_pfc_packets", "tx-pause-frames": "tx_pfc_packets",
    "rx-pause-duration": "rx_pfc_duration", "tx-pause-duration": "tx_pfc_duration",
}  # fmt: skip


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise either by its own names."""
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"["):
        return None
    if _JUNOS.search(head):
        return Recognition(NAME, "interfaces of a Junos switch (JSON)", NAME)
    if _NVUE_QOS.search(head) or _has_links(head[:65536]):
        return Recognition(NAME, "interfaces of a Cumulus switch (JSON of NVUE)", NAME)
    return None


def _has_links(head: bytes) -> bool:
    """Whether statistics stand in one of the first links, as in those of NVUE's ports."""
    return any(
        _NVUE_STATS.search(head, link.end(), link.end() + 4000)
        for link in islice(_NVUE_LINK.finditer(head), 16)
    )


def read(source: SourceFile, sink: Sink) -> None:
    """Every answer of the file into net_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, None, "line")
        parser = _Parser(NetSamples(sink, source), port_of_name(source.name))
        for document in reading.documents():
            reading.good()
            parser.place = document.line
            parser.samples.at(document.stamp_ns)
            before = parser.read_count
            parser.answer(dict_of(document.value))
            count = _data_count if parser.is_junos else numbers_count
            others = count(document.value) - (parser.read_count - before)
            if others > 0:
                count_other_metrics(sink, others)
        reading.from_documentation("The JSON of Junos and of NVUE")
        reading.answer = None if parser.samples.rows_count else "it names no counter that is read"
        reading.finish(parser.samples, streams.stream_problem(stream))


class _Parser:
    def __init__(self, samples: NetSamples, port: str | None) -> None:
        self.samples = samples
        self.place = 0
        self.read_count = 0
        self.is_junos = False
        self._port = port
        """Of the file's name: an answer about one interface does not name it."""

    def answer(self, value: dict[str, Any]) -> None:
        information = dicts_of(value.get("interface-information"))
        if information:
            self.is_junos = True
            for whole in information:
                for port in dicts_of(whole.get("physical-interface")):
                    self._junos(port)
        elif value.keys() & {"egress-queue-stats", "pfc-stats", "ingress-buffer-stats"}:
            self._qos(self._port, value)
        elif isinstance(value.get("link"), dict):
            self._nvue(self._port, value)
        else:
            for name, said in value.items():
                self._nvue(name, dict_of(said))

    def _add(
        self, port: str | None, counter: str, printed: Any, original: str, *,
        scale: float = 1, priority: int | None = None, queue: int | None = None,
    ) -> None:  # fmt: skip
        if isinstance(printed, dict | list | bool) or printed is None:
            return
        self.read_count += 1
        what = meaning(counter)
        self.samples.add(
            self.place, port, what._replace(scale=scale) if scale != 1 else what, printed,
            original=original, priority=priority, queue=queue,
        )  # fmt: skip

    def _junos(self, port: dict[str, Any]) -> None:
        name = str(_data(port.get("name")) or "").strip() or None
        if (status := _data(port.get("oper-status"))) is not None:
            self._add(name, "link_up", int(str(status).strip() == "up"), "oper-status")
            self.read_count -= 1  # a word
        for section, known in _JUNOS_NAMES.items():
            for said in dicts_of(port.get(section)):
                for key, (counter, scale) in known.items():
                    if key in said:
                        self._add(name, counter, _data(said[key]), key, scale=scale)

    def _nvue(self, port: str | None, said: dict[str, Any]) -> None:
        link = dict_of(said.get("link"))
        if "mtu" in link:
            self._add(port, "mtu", link["mtu"], "mtu")
        for name, printed in dict_of(link.get("stats")).items():
            if name in _NVUE_NAMES:
                self._add(port, _NVUE_NAMES[name], printed, name)

    def _qos(self, port: str | None, value: dict[str, Any]) -> None:
        for number, said in dict_of(value.get("egress-queue-stats")).items():
            for name, printed in dict_of(said).items():
                if name in _QUEUE_NAMES and number.isdecimal():
                    self._add(port, _QUEUE_NAMES[name], printed, name, queue=int(number))
        for number, said in dict_of(value.get("pfc-stats")).items():
            for name, printed in dict_of(said).items():
                if name in _PFC_NAMES and number.isdecimal():
                    self._add(port, _PFC_NAMES[name], printed, name, priority=int(number))


def _data(value: Any) -> Any:
    """What Junos writes as ``[{"data": "17"}]``."""
    first = next(iter(dicts_of(value)), {})
    return first.get("data")


def _data_count(value: Any) -> int:
    """How many numbers Junos' lists of ``data`` hold."""
    found = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            found += decimal(one.get("data")) is not None
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return found
