"""``show queuing interface`` of NX-OS: what left and what was dropped in each queue of a port.

A table a group (``QOS GROUP 3``) with a column each for unicast and multicast, then priority flow
control. Groups for control and SPAN traffic have no number and are not kept. The form is that of
Cisco's guides for the Nexus 9000 ("Monitoring QoS Statistics") and of outputs printed in public
tickets; older ones have drops beside what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.net_samples import NetSamples, integer, is_missing
from tracekit.ingest.counters.net_words import meaning
from tracekit.ingest.counters.printed_tables import prompt
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.lines import Line, shape

KIND = "nxos_queuing"

_PORT = re.compile(r"(Egress|Ingress) (?:Queuing|Buffers) for (\S{1,60})(?: \[[^\]]{1,20}\])?$")
_GROUP = re.compile(r"\|[^|]{0,40}\bQOS GROUP(?: (\d{1,2}))?[^|]{0,40}\|$")
_PFC = re.compile(r"TxPPP:\s+(\d+),\s+RxPPP:\s+(\d+)$")
_PFC_HEADER = ["PFC_COS", "QOS_Group", "TxPause", "TxCount", "RxPause", "RxCount"]
_WRED = re.compile(r"WRED Drop Pkts\s+(\d+)$")
_NAMES = {
    "Tx Pkts": "packets",
    "Tx Byts": "bytes",
    "Dropped Pkts": "dropped_packets",
    "Tail Drop Pkts": "dropped_packets",
    "WRED/AFD Drop Pkts": "wred_dropped_packets",
    "WRED/AFD & Tail Drop Pkts": "dropped_packets",
    "WRED/AFD & Tail Drop Byts": "dropped_bytes",
    "Q Depth Byts": "depth_bytes",
}
_WAYS = {"Unicast": "tx_queue_", "Multicast": "tx_multicast_queue_"}
"""Columns that are read; out-of-band flow control's are not."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by a port's heading and a group's."""
    is_ours = b"ress Queuing for " in head and (b"QOS GROUP" in head or b"TxPPP:" in head)
    what = "queues of ports as a switch prints them (NX-OS)"
    return Recognition(KIND, what, KIND) if is_ours and head.lstrip()[:1] != b"{" else None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the tables into net_sample."""

    def made(reading: Reading) -> _Parser:
        return _Parser(NetSamples(sink, source), reading, sink)

    with by_lines(source, sink, made, "Cisco NX-OS") as (parser, reading):
        reading.from_documentation("What show queuing interface of NX-OS prints")
        if parser.others_count:
            count_other_metrics(sink, parser.others_count)


class _Parser:
    def __init__(self, samples: NetSamples, reading: Reading, sink: Sink) -> None:
        self.samples = samples
        self.others_count = 0
        self._reading = reading
        self._sink = sink
        self._port: str | None = None
        self._group: int | None = None
        self._ways: list[str | None] = []
        self._is_pfc = False

    def line(self, line: Line) -> None:
        text = line.text.strip()
        if (stamp := times.of_line(text)) is not None:
            self.samples.at(stamp)
        elif (typed := prompt(text)) and typed[0]:
            self.samples.of(typed[0])
        elif heading := _PORT.match(text):
            self._port, self._group, self._is_pfc = heading[2], None, False
        elif self._port is None:
            return
        elif group := _GROUP.match(text):
            self._group = int(group[1]) if group[1] else None
            self._ways = [_WAYS["Unicast"]]
        elif text.startswith("|"):
            self._row(line.number, [cell.strip() for cell in text.strip("|").split("|")])
        elif text.split() == _PFC_HEADER:
            self._is_pfc = True
        elif found := _PFC.match(text):
            self._put(line.number, "tx_pfc_packets", found[1], "TxPPP")
            self._put(line.number, "rx_pfc_packets", found[2], "RxPPP")
        elif found := _WRED.match(text):
            self._put(line.number, "tx_queue_wred_dropped_packets", found[1], "WRED Drop Pkts")
        elif self._is_pfc and text[:1].isdigit():
            self._priority(line.number, text.split())

    def _put(
        self, place: int, counter: str, printed: str, name: str, *,
        queue: int | None = None, priority: int | None = None,
    ) -> None:  # fmt: skip
        self._reading.good()
        number = None if is_missing(printed) else printed
        self.samples.add(place, self._port, meaning(counter), number, original=name,
                         queue=queue, priority=priority)  # fmt: skip

    def _row(self, place: int, cells: Sequence[str]) -> None:
        """``| Tx Pkts | 5 | 0 |``, a number a way; or ``| Tx Pkts | 5 | Dropped Pkts | 0 |``."""
        label, *rest = cells
        if not label:  # what the columns are
            self._ways = [_WAYS.get(name) for name in rest]
            return
        is_of_pairs = len(cells) == 4 and cells[2] in _NAMES
        pairs = [(cells[0], cells[1:2]), (cells[2], cells[3:])] if is_of_pairs else [(label, rest)]
        for name, numbers in pairs:
            counter = _NAMES.get(name)
            ways = self._ways[:1] if is_of_pairs else self._ways
            if self._group is None or counter is None:
                self.others_count += sum(integer(n) is not None for n in numbers)
            elif len(numbers) != len(ways):
                self._reading.bad(place, "another number of cells", shape("|".join(cells)))
            else:
                for way, number in zip(ways, numbers, strict=True):
                    if way is None:
                        self.others_count += 1
                    else:
                        self._put(place, way + counter, number, name, queue=self._group)

    def _priority(self, place: int, words: list[str]) -> None:
        if len(words) != len(_PFC_HEADER):
            self._reading.bad(place, "another number of cells", shape(" ".join(words)))
            return
        priority = int(words[0]) if words[0].isdecimal() and len(words[0]) < 3 else None
        if priority is not None:
            self._put(place, "tx_pfc_packets", words[3], "TxCount", priority=priority)
            self._put(place, "rx_pfc_packets", words[5], "RxCount", priority=priority)
