"""Text tables of NX-OS and EOS: counters, errors, rates, queues, and priority flow control."""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.net_samples import NetSamples, is_missing
from tracekit.ingest.counters.net_words import is_word, meaning, own
from tracekit.ingest.counters.printed_tables import prompt
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import Line, shape

KIND = "nxos"

_RULE = re.compile(r"\s*-{20,}\s*")
_HEADER = re.compile(r"Port(?:\s+[A-Z][A-Za-z./-]{2,})+\s*$")
_PFC_HEADER = re.compile(r"Port\s+Mode\s+Oper\s*\(VL[^)]*\)\s+RxPPP\s+TxPPP")
_EOS_PFC_HEADER = re.compile(r"Port\s+RxPfc\s+TxPfc\s*$")
_EOS_ERRORS_HEADER = re.compile(r"Port\s+FCS\s+Align\s+Symbol\s+Rx\s+Runts\s+Giants\s+Tx\s*$")
_EOS_ERRORS = (
    "FCS-Err", "Align-Err", "Symbol-Err", "Rcv-Err", "Runts", "Giants", "Xmit-Err",
)  # fmt: skip
"""The same in the words of NX-OS."""
_TEXT = re.compile(
    rb"^Port(?:[ \t]{2,}(?:Align-Err|FCS-Err|Xmit-Err|Rcv-Err|UnderSize|OutDiscards|InDiscards"
    rb"|InOctets|InUcastPkts|OutOctets|OutUcastPkts|InMcastPkts|OutMcastPkts|Single-Col|Giants"
    rb"|Stomped-CRC)[ \t]*)"
    rb"|^Port[ \t]+FCS[ \t]+Align[ \t]+Symbol[ \t]+Rx[ \t]+Runts"
    rb"|^[ \t]*Port[ \t]+Mode[ \t]+Oper[ \t]*\(VL|^Port[ \t]+RxPfc[ \t]+TxPfc"
    rb"|^Port[ \t]+Traffic[ \t]+DropPrec[ \t]+DestType[ \t]"
    rb"|^Port[ \t]+(?:(?:Description|Name)[ \t]+)?Intvl[ \t]+(?:Rx|In)[ \t]+Mbps\b",
    re.M,
)
_RATES_HEADER = re.compile(
    r"Port\s+(?:(?:Description|Name)\s+)?Intvl(?:\s+(?:(?:Rx|Tx|In|Out)\s+(?:[MK]bps|K?pps|%{1,2})|%))+$"
)
_RATES = {
    "Mbps": ("rate", 125_000.0),
    "Kbps": ("rate", 125.0),
    "pps": ("packet_rate", 1),
    "Kpps": ("packet_rate", 1000),
    "%": ("utilisation", 0.01),
}
"""What a column of rates is, and what one of its unit is in that of the counter."""
_EOS_QUEUES_HEADER = re.compile(
    r"Port\s+Traffic\s+DropPrec\s+DestType\s+OutEnqPkts\s+OutEnqOctets\s+OutDropPkts\s+OutDropOctets$"
)
_EOS_QUEUE = re.compile(r"TC(\d{1,2})$")
_EOS_QUEUE_NAMES = (
    ("OutEnqPkts", "packets"), ("OutEnqOctets", "bytes"),
    ("OutDropPkts", "dropped_packets"), ("OutDropOctets", "dropped_bytes"),
)  # fmt: skip
_EACH_WAY = re.compile(r"(\d{1,5})/(\d{1,5})")
_MINUTES = re.compile(r"(\d{1,4}):(\d{2})")
_PORT = re.compile(
    r"(?:(?:Eth|Ethernet|Po|port-channel|mgmt|Vlan|ii|Et|Ma)\d\S{0,30}|mgmt\d)$", re.I
)

_NAMES = {
    "InOctets": "rx_bytes",
    "InUcastPkts": "rx_unicast_packets",
    "InMcastPkts": "rx_multicast_packets",
    "InBcastPkts": "rx_broadcast_packets",
    "OutOctets": "tx_bytes",
    "OutUcastPkts": "tx_unicast_packets",
    "OutMcastPkts": "tx_multicast_packets",
    "OutBcastPkts": "tx_broadcast_packets",
    "Align-Err": "rx_alignment_errors",
    "FCS-Err": "rx_crc_errors",
    "Xmit-Err": "tx_errors",
    "Rcv-Err": "rx_errors",
    "UnderSize": "rx_undersize_packets",
    "OutDiscards": "tx_dropped_packets",
    "InDiscards": "rx_dropped_packets",
    "Runts": "rx_runts",
    "Giants": "rx_giants",
    "Carri-Sen": "tx_carrier_errors",
    "Symbol-Err": "rx_symbol_errors",
    "Stomped-CRC": "rx_stomped_crc_errors",
    "Deferred-Tx": "tx_deferred",
    "RxPPP": "rx_pfc_packets",
    "TxPPP": "tx_pfc_packets",
    "RxPfc": "rx_pfc_packets",
    "TxPfc": "tx_pfc_packets",
}


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise the tables by their headers."""
    if head.lstrip()[:1] == b"{" or b"Port" not in head or not _TEXT.search(head):
        return None
    return Recognition(KIND, "interface counters as a switch prints them (NX-OS, EOS)", KIND)


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the tables into net_sample."""
    with by_lines(
        source, sink, lambda reading: _Parser(NetSamples(sink, source), reading), "Cisco NX-OS"
    ):
        pass


class _Parser:
    def __init__(self, samples: NetSamples, reading: Reading) -> None:
        self.samples = samples
        self._reading = reading
        self._columns: list[str] | None = None
        self._rates: list[tuple[Meaning, str]] = []
        self._is_header_new = False
        self._said: set[str] = set()

    def _documented(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._reading.from_documentation(what)

    def line(self, line: Line) -> None:
        text = line.text.strip()
        if not text:
            return
        if _RULE.fullmatch(line.text):
            # A rule stands before and after each header: after rows it ends their table.
            if not self._is_header_new:
                self._columns = None
            self._is_header_new = False
            return
        self._is_header_new = False
        if _PFC_HEADER.match(text):
            self._documented("The table of priority flow control of NX-OS")
            self._columns = ["Mode", "Oper", "RxPPP", "TxPPP"]
        elif _EOS_PFC_HEADER.match(text):
            self._documented("The table of priority flow control of EOS")
            self._columns = ["RxPfc", "TxPfc"]
        elif _EOS_ERRORS_HEADER.match(text):
            self._documented("The table of errors of EOS")
            self._columns = list(_EOS_ERRORS)
        elif _EOS_QUEUES_HEADER.match(text):
            self._columns = ["Queues"]
        elif _RATES_HEADER.match(text):
            self._documented("The table of rates of NX-OS and EOS")
            self._columns, self._rates = ["Intvl"], _rates(text)
            self._is_header_new = True
        elif _HEADER.match(text):
            self._columns = text.split()[1:]
            self._is_header_new = True
            self._reading.good()
        elif (stamp := times.of_line(text)) is not None:
            self.samples.at(stamp)
            self._columns = None
        elif typed := prompt(text):
            if "#" in text or ">" in text:
                self.samples.of(typed[0])
            self._columns = None
        elif self._columns is not None:
            self._row(line.number, text.split())

    def _row(self, place: int, words: list[str]) -> None:
        columns = self._columns or []
        if not _PORT.match(words[0]):
            return
        cells = words[1:]
        if columns == ["Intvl"]:
            self._rates_row(place, words)
            return
        if columns == ["Queues"]:
            self._queues_row(place, words)
            return
        if "Oper" in columns and len(cells) > 4:
            # Oper and its lanes: "On (8)" or "Off" make the row longer or not.
            cells = [cells[0], " ".join(cells[1:-2]), *cells[-2:]]
        if len(cells) != len(columns):
            self._reading.bad(place, "another number of cells", shape(" ".join(words)))
            return
        self._reading.good()
        for name, cell in zip(columns, cells, strict=True):
            if name in ("Mode", "Oper"):
                continue
            known = _NAMES.get(name)
            word = known or name
            what = meaning(word) if is_word(word) else own(name)
            printed = None if is_missing(cell) else cell
            self.samples.add(place, words[0], what, printed, original=name)

    def _queues_row(self, place: int, words: list[str]) -> None:
        """A row a port, traffic class, and destination (one port or several)."""
        queue = _EOS_QUEUE.match(words[1]) if len(words) == 8 else None
        if queue is None:
            self._reading.bad(place, "another number of cells", shape(" ".join(words)))
            return
        self._reading.good()
        prefix = "tx_multicast_queue_" if words[3] == "MC" else "tx_queue_"
        for (name, counter), cell in zip(_EOS_QUEUE_NAMES, words[4:], strict=True):
            printed = None if is_missing(cell) else cell
            what = meaning(prefix + counter)
            self.samples.add(place, words[0], what, printed, original=name, queue=int(queue[1]))

    def _rates_row(self, place: int, words: list[str]) -> None:
        """Cells from the right: a description may be several words, or none."""
        count = len(self._rates)
        interval = words[-count - 1] if len(words) >= count + 2 else ""
        if not (_EACH_WAY.fullmatch(interval) or _MINUTES.fullmatch(interval)):
            self._reading.bad(place, "another number of cells", shape(" ".join(words)))
            return
        self._reading.good()
        self.samples.interval_ns = _interval_ns(interval)
        for (what, name), cell in zip(self._rates, words[-count:], strict=True):
            printed = None if is_missing(cell) else cell.removesuffix("%")
            self.samples.add(place, words[0], what, printed, original=name)
        self.samples.interval_ns = None


def _rates(header: str) -> list[tuple[Meaning, str]]:
    """The columns behind the interval; a bare % is of the direction before it (EOS)."""
    columns = []
    direction = ""
    for word in header.partition("Intvl")[2].replace("%%", "%").split():
        if word not in _RATES:
            direction = word
            continue
        name, scale = _RATES[word]
        counter = f"{'rx' if direction in ('Rx', 'In') else 'tx'}_{name}"
        columns.append((meaning(counter, scale), f"{direction} {word}"))
    return columns


def _interval_ns(text: str) -> int | None:
    """Time that rates are averaged over: seconds each way, or minutes and seconds.

    Where the two ways differ the header does not say which is which: unknown.
    """
    if each_way := _EACH_WAY.fullmatch(text):
        return int(each_way[1]) * 10**9 if int(each_way[1]) == int(each_way[2]) else None
    minutes = _MINUTES.fullmatch(text)
    return (int(minutes[1]) * 60 + int(minutes[2])) * 10**9 if minutes else None
