"""JSON that switches give for a command: Arista EOS, and NX-OS through its API.

One command's answer is an object; several, or one through eAPI, stand in a list or below
``result``. NX-OS writes rows as an object where there is one and as a list where there are more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters.documents import numbers_count
from tracekit.ingest.counters.net_samples import NetSamples
from tracekit.ingest.counters.net_words import is_word, meaning, own
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import shape

KIND = "switch_json"

_EOS = re.compile(
    rb'"(?:inDiscardsTotal|intfQueueCounters|egressQueueCounters|interfaceCounters'
    rb"|ingressVoqCounters|txQueues|interfacePhyStatuses)\"\s*:\s*[\{\d]"
    rb'|"(?:inDiscards|rxFrames|stuckCount|inUcastPkts|fcsErrors)"\s*:\s*\d'
)
_EOS_EMPTY = re.compile(
    rb'\s*+(?:\[\s*+)?\{\s*+"interfaces"\s*+:\s*+\{\s*+\}\s*+\}\s*+(?:\]\s*+)?\Z'
)
_NXOS = re.compile(
    rb'"TABLE_(?:pfc_interface|queuing_interface|interface|rx_counters|tx_counters)"\s*:'
)
_EOS_FEC = {
    "correctedCodewords": "fec_corrected_codewords",
    "uncorrectedCodewords": "fec_uncorrectable_codewords",
    "correctedSymbols": "fec_symbol_errors",
    "perLaneCorrectedFecBlocks": "fec_corrected_codewords",
    "perLaneUncorrectedFecBlocks": "fec_uncorrectable_codewords",
}
"""Of Reed-Solomon codes, symbols lane by lane; of fire codes, blocks lane by lane."""
_EOS_COUNTERS = {
    "inOctets": "rx_bytes", "outOctets": "tx_bytes",
    "inTotalPkts": "rx_packets", "outTotalPkts": "tx_packets",
    "inUcastPkts": "rx_unicast_packets", "outUcastPkts": "tx_unicast_packets",
    "inMulticastPkts": "rx_multicast_packets", "outMulticastPkts": "tx_multicast_packets",
    "inBroadcastPkts": "rx_broadcast_packets", "outBroadcastPkts": "tx_broadcast_packets",
    "inDiscards": "rx_dropped_packets", "outDiscards": "tx_dropped_packets",
    "totalInErrors": "rx_errors", "totalOutErrors": "tx_errors",
    "inErrors": "rx_errors", "outErrors": "tx_errors",
    "linkStatusChanges": "link_changes", "runtFrames": "rx_runts", "giantFrames": "rx_giants",
    "fcsErrors": "rx_crc_errors", "alignmentErrors": "rx_alignment_errors",
    "symbolErrors": "rx_symbol_errors", "rxPause": "rx_pause_packets",
    "txPause": "tx_pause_packets", "collisions": "tx_collisions",
    "deferredTransmissions": "tx_deferred", "mtu": "mtu", "bandwidth": "link_speed",
}  # fmt: skip
"""Of ``show interfaces``, ``... counters`` and ``... counters errors``."""
_EOS_RATES = {
    "inBitsRate": ("rx_rate", 1 / 8), "outBitsRate": ("tx_rate", 1 / 8),
    "inPktsRate": ("rx_packet_rate", 1), "outPktsRate": ("tx_packet_rate", 1),
}  # fmt: skip
_EOS_WITHIN = (
    "interfaceCounters",
    "inputErrorsDetail",
    "outputErrorsDetail",
    "interfaceStatistics",
)
_CLASS = re.compile(r"(?:TC|DP|UC|MC)?(\d{1,3})(-\d{1,3})?")

_NXOS_NAMES = {
    "rx-stats": "rx_pfc_packets",
    "tx-stats": "tx_pfc_packets",
    "rxppp": "rx_pfc_packets",
    "txppp": "tx_pfc_packets",
    "eth_inbytes": "rx_bytes",
    "eth_outbytes": "tx_bytes",
    "eth_inucast": "rx_unicast_packets",
    "eth_outucast": "tx_unicast_packets",
    "eth_inmcast": "rx_multicast_packets",
    "eth_outmcast": "tx_multicast_packets",
    "eth_inbcast": "rx_broadcast_packets",
    "eth_outbcast": "tx_broadcast_packets",
    "eth_indiscards": "rx_dropped_packets",
    "eth_indiscard": "rx_dropped_packets",
    "eth_outdisc": "tx_dropped_packets",
    "eth_outdiscard": "tx_dropped_packets",
    "eth_inerr": "rx_errors",
    "eth_outerr": "tx_errors",
    "eth_crc": "rx_crc_errors",
    "eth_mtu": "mtu",
    "eth_inpkts": "rx_packets",
    "eth_outpkts": "tx_packets",
    "eth_inpause": "rx_pause_packets",
    "eth_outpause": "tx_pause_packets",
    "eth_runts": "rx_runts",
    "eth_giants": "rx_giants",
}
_NXOS_PORT = ("if_name_str", "interface", "if_name", "ifname")
_NXOS_QUEUE_STATS = {
    "tx pkts": "packets",
    "tx byts": "bytes",
    "tx bytes": "bytes",
    "wred drop pkts": "wred_dropped_packets",
    "wred & afd drop pkts": "wred_dropped_packets",
    "tail drop pkts": "dropped_packets",
    "tail drop byts": "dropped_bytes",
    "ecn marked": "ecn_marked_packets",
    "wd & tail drop pkts": "dropped_packets",
    "dropped pkts": "dropped_packets",
    "dropped byts": "dropped_bytes",
    "q depth byts": "depth_bytes",
}


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise the answers by their keys."""
    if head.lstrip()[:1] not in (b"{", b"["):
        return None
    if _EOS.search(head) or _EOS_EMPTY.match(head):
        return Recognition(KIND, "counters of an Arista EOS switch (JSON)", KIND)
    if _NXOS.search(head):
        return Recognition(KIND, "counters of an NX-OS switch (JSON of its API)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Every answer of the file into net_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, "Arista EOS", "line")
        parser = _Parser(sink, NetSamples(sink, source), reading)
        for document in reading.documents():
            parser.samples.at(document.stamp_ns)
            parser.answers(document.line, document.value)
        parser.finish()
        reading.finish(parser.samples, streams.stream_problem(stream))


class _Parser:
    def __init__(self, sink: Sink, samples: NetSamples, reading: Reading) -> None:
        self.samples = samples
        self._sink = sink
        self._reading = reading
        self._said: set[str] = set()
        self._place = 0
        self._asked_count = 0
        """Numbers of the answer that were asked for."""
        self._others_count = 0

    def answers(self, place: int, value: Any) -> None:
        self._place = place
        if isinstance(value, list):
            for answer in value:
                self.answers(place, answer)
            return
        if not isinstance(value, dict):
            self._reading.bad(place, "no answer of a command")
            return
        inner = value.get("result") or value.get("ins_api") or value.get("body")
        if isinstance(inner, list | dict) and "interfaces" not in value:
            self.answers(place, inner)
            return
        outputs = value.get("outputs")
        if isinstance(outputs, dict):
            output = outputs.get("output")
            self.answers(place, output)
            return
        if any(str(k).startswith("TABLE_") for k in value):
            self._nxos(value)
        else:
            self._asked_count = 0
            if not self._eos(value):
                self._reading.bad(place, "an answer that is not known")
                return
            self._others_count += numbers_count(value) - self._asked_count
        self._reading.good()

    def _documented(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._reading.from_documentation(what)

    def finish(self) -> None:
        if self._others_count:
            count_other_metrics(self._sink, self._others_count)
        if not self.samples.rows_count and not self.samples.missing_count:
            self._reading.answer = "the switch names no interface with such counters"

    def _add(
        self,
        port: str,
        what: Meaning | str,
        printed: object,
        original: str,
        *,
        priority: int | None = None,
        queue: int | None = None,
        lane: int | None = None,
    ) -> None:
        self._asked_count += numbers_count(printed)
        known = meaning(what) if isinstance(what, str) else what
        self.samples.add(
            self._place,
            port,
            known,
            printed,
            original=original,
            priority=priority,
            queue=queue,
            lane=lane,
        )

    # --- Arista ----------------------------------------------------------------------------------

    def _eos(self, answer: dict[str, Any]) -> bool:
        if isinstance(table := answer.get("interfaceCounters"), dict):
            for port, entry in _items(table):
                self._add(port, "rx_pfc_packets", entry.get("rxFrames"), "rxFrames")
                self._add(port, "tx_pfc_packets", entry.get("txFrames"), "txFrames")
            return True
        if isinstance(table := answer.get("intfQueueCounters"), dict):
            for port, entry in _items(table):
                counters = entry.get("queueCounters")
                for name, printed in (counters if isinstance(counters, dict) else {}).items():
                    self._class(port, "tx_queue_ecn_marked_packets", name, printed, "queueCounters")
            return True
        if isinstance(table := answer.get("egressQueueCounters"), dict):
            interfaces = table.get("interfaces")
            for port, entry in _items(interfaces if isinstance(interfaces, dict) else {}):
                for key, prefix in (
                    ("ucastQueues", "tx_queue_"),
                    ("mcastQueues", "tx_multicast_queue_"),
                ):
                    self._egress(port, entry.get(key), prefix, key)
            return True
        if isinstance(table := answer.get("interfacePhyStatuses"), dict):
            self._documented("The physical layer of EOS")
            for port, entry in _items(table):
                self._phy(port, entry.get("phyStatuses"))
            return True
        if isinstance(table := answer.get("interfaces"), dict):
            for port, entry in _items(table):
                self._interface(port, entry)
            return True
        return False

    def _phy(self, port: str, chips: Any) -> None:
        """What FEC counts on the cable's side; the side of the switch has counters of its own."""
        chips = [c for c in chips if isinstance(c, dict)] if isinstance(chips, list) else []
        lines = [c for c in chips if _location(c) == "line"] or chips
        chip = next((c for c in lines if isinstance(c.get("fec"), dict)), None)
        if chip is None:
            return
        ratio = chip.get("preFecBer")
        if isinstance(ratio, dict):
            self._add(port, "fec_pre_ber", ratio.get("value"), "preFecBer")
        for name, counter in _EOS_FEC.items():
            entry = chip["fec"].get(name)
            if isinstance(entry, dict) and "value" in entry:
                self._add(port, counter, entry["value"], name)
                continue
            lanes = enumerate(entry) if isinstance(entry, list) else _lanes(entry)
            for lane, reading in lanes:
                if isinstance(reading, dict):
                    self._add(port, counter, reading.get("value"), name, lane=lane)

    def _interface(self, port: str, entry: dict[str, Any]) -> None:
        if _EOS_COUNTERS.keys() & entry.keys() or "interfaceCounters" in entry:
            if not entry.keys() <= {"inDiscards", "outDiscards"}:
                self._documented("What EOS counts of interfaces, in JSON,")
            self._counters(port, entry)
            return
        for name, queue in _items(entry.get("txQueues")):
            self._class(port, "pfcwd_storms_detected", name, queue.get("stuckCount"), "stuckCount")
            restored = queue.get("recoveryCount")
            self._class(port, "pfcwd_storms_restored", name, restored, "recoveryCount")
        for name, counters in _items(entry.get("trafficClasses")):
            for key, counter in (
                ("ingressVoqCounters", "voq_dropped_packets"),
                ("egressQueueCounters", "tx_queue_dropped_packets"),
            ):
                sums = counters.get(key)
                total = sums.get("countersSum") if isinstance(sums, dict) else None
                if isinstance(total, dict):
                    self._class(port, counter, name, total.get("droppedPackets"), key)

    def _counters(self, port: str, entry: dict[str, Any]) -> None:
        for name, counter in _EOS_COUNTERS.items():
            if name in entry:
                self._add(port, counter, entry[name], name)
        for name, (counter, scale) in _EOS_RATES.items():
            if name in entry:
                self._add(port, meaning(counter)._replace(scale=scale), entry[name], name)
        for name in _EOS_WITHIN:
            if isinstance(entry.get(name), dict):
                self._counters(port, entry[name])

    def _egress(self, port: str, queues: Any, prefix: str, key: str) -> None:
        classes = queues.get("trafficClasses") if isinstance(queues, dict) else None
        for name, entry in _items(classes):
            for precedence, counters in _items(entry.get("dropPrecedences")):
                class_match = _CLASS.fullmatch(precedence)
                counter = prefix + "dropped_packets"
                lane = int(class_match[1]) if class_match else None
                printed = counters.get("droppedPackets")
                self._class(port, counter, name, printed, f"{key} {precedence}", lane)

    def _class(
        self,
        port: str,
        counter: str,
        name: str,
        printed: object,
        original: str,
        lane: int | None = None,
    ) -> None:
        class_match = _CLASS.fullmatch(name)
        if not class_match:
            self._reading.bad(self._place, "a class that is not known", shape(name))
            return
        if class_match[2]:
            # Classes that are counted together bear the number of their first.
            original = f"{original} {name}"
        self._add(port, counter, printed, original, queue=int(class_match[1]), lane=lane)

    # --- NX-OS -----------------------------------------------------------------------------------

    def _nxos(self, answer: dict[str, Any]) -> None:
        self._documented("JSON of NX-OS")
        self._sink.fact(producer="Cisco NX-OS")
        for table, rows in answer.items():
            if table.startswith("TABLE_") and isinstance(rows, dict):
                for row in _rows(rows):
                    self._nxos_row(row)

    def _nxos_row(self, row: dict[str, Any]) -> None:
        port = next((row[k] for k in _NXOS_PORT if isinstance(row.get(k), str)), None)
        if port is None:
            self._reading.bad(self._place, "a row without its interface")
            return
        for name, printed in row.items():
            counter = _NXOS_NAMES.get(name.lower())
            if counter:
                self._add(port, counter, printed, name)
            elif isinstance(printed, dict):
                for queue in _deep_rows(printed):
                    self._nxos_queue(port, queue)
            elif name.startswith("eth_") and isinstance(printed, str) and printed.isdigit():
                self._add(port, own(name), printed, name)

    def _nxos_queue(self, port: str, row: dict[str, Any]) -> None:
        number = str(row.get("qosgrp") or row.get("qos-grp") or row.get("eq-qosgrp") or "")
        queue = int(number) if number.isdigit() and len(number) < 4 else None
        kind = row.get("eq-stat-type")
        if isinstance(kind, str):
            known = _NXOS_QUEUE_STATS.get(kind.strip().lower())
            for key, prefix in (
                ("eq-uc-stat-value", "tx_queue_"),
                ("eq-mc-stat-value", "tx_multicast_queue_"),
            ):
                if key in row:
                    word = f"{prefix}{known}"
                    what = meaning(word) if known and is_word(word) else own(f"{prefix}{kind}")
                    self._add(port, what, row[key], kind, queue=queue)


def _location(chip: dict[str, Any]) -> object:
    described = chip.get("description")
    return described.get("location") if isinstance(described, dict) else None


def _lanes(table: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for name, entry in _items(table):
        if name.isdecimal() and len(name) < 4:
            yield int(name), entry


def _items(table: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(table, dict):
        for name, entry in table.items():
            if isinstance(entry, dict):
                yield name, entry


def _rows(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, rows in table.items():
        if name.startswith("ROW_"):
            for row in rows if isinstance(rows, list) else [rows]:
                if isinstance(row, dict):
                    yield row


def _deep_rows(table: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """The innermost rows, each with what its outer rows say of it."""
    if depth > 8:
        return
    for row in _rows(table):
        inner = [v for k, v in row.items() if k.startswith("TABLE_") and isinstance(v, dict)]
        plain = {k: v for k, v in row.items() if not isinstance(v, dict | list)}
        if not inner:
            yield plain
        for inner_table in inner:
            for deeper in _deep_rows(inner_table, depth + 1):
                yield {**plain, **deeper}
