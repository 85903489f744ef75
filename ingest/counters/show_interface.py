"""A port's whole status in text: ``show interface`` of NX-OS, ``show interfaces`` of EOS and IOS.

A block a port, whose lines hold numbers with the words behind them. NX-OS says the direction in a
heading (RX, TX), the others in the words of the line's first number; "bytes" are of the packets
before them. What has no word here is kept under the switch's own.
"""

from __future__ import annotations

import re

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.net_samples import NetSamples
from tracekit.ingest.counters.net_words import meaning, own
from tracekit.ingest.counters.printed_tables import prompt
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.lines import Line, lines

KIND = "show_interface"

_HEADS = re.compile(
    rb"^[A-Za-z][\w./-]{1,40} is (?:administratively )?(?:up|down)\b[^\r\n]{0,120}\r?\n"
    rb"(?:[^\r\n]{0,200}\r?\n){0,40}?"
    rb"[ \t]+\d+ (?:packets input,|input packets|unicast packets  )",
    re.M,
)
_PORT = re.compile(
    r"([A-Za-z][\w./-]{1,40}) is (?:administratively )?(up|down)\b(?:.*?line protocol is (\w+))?"
)
_SECTION = re.compile(r"\s+([RT]X)\s*$", re.I)
_SPEED = re.compile(r"\bBW (\d{1,12}) kbit\b", re.I)
_MTU = re.compile(r"\bMTU (\d{1,6}) bytes\b")
_RATE = re.compile(
    r"\s+(\d{1,5}) (second|minute)s? (input|output) rate ([\d.]{1,20}) (bps|[kKMGT]bps|bits/sec)\b"
    r".*?, (\d{1,15}) packets/sec"
)
_BITS = {"bps": 1, "bits/sec": 1, "kbps": 1e3, "Kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9, "Tbps": 1e12}
_ROUNDED = re.compile(r"\s+(?:input|output) rate .*; ?output rate ")
"""NX-OS says each interval's rates once more, rounded."""
_ITEM = re.compile(
    r"(?:(Received|Sent) )?(\d{1,20}) ([A-Za-z][A-Za-z/ -]{1,60}?)"
    r"(?: \((\d{1,20}) ([A-Za-z][A-Za-z/ -]{1,40})\))?$"
)
_QUEUES = re.compile(
    r"\s+Input queue: \d{1,9}/\d{1,9}/(\d{1,20})/(\d{1,20}) \(size/max/drops/flushes\)"
    r"(?:; Total output drops: (\d{1,20}))?\s*$"
)
"""IOS: what waits now and at most is no counter; what was dropped is."""
_BETWEEN = re.compile(r", |\s{2,}")
_ONE_WAY = dict.fromkeys(
    ("crc", "crc/fcs", "stomped crc", "runts", "giants", "alignment", "symbol", "frame", "overrun",
     "ignored", "no buffer", "throttles"), "rx"
) | dict.fromkeys(
    ("collision", "collisions", "late collision", "late collisions", "deferred", "lost carrier",
     "no carrier", "babble", "babbles", "underrun", "underruns"), "tx"
)  # fmt: skip
"""Direction of words that say none, where no heading does."""
_NAMES = {
    "packets": "{way}_packets",
    "bytes": "{way}_bytes",
    "unicast packets": "{way}_unicast_packets",
    "multicast": "{way}_multicast_packets",
    "multicast packets": "{way}_multicast_packets",
    "broadcasts": "{way}_broadcast_packets",
    "broadcast packets": "{way}_broadcast_packets",
    "errors": "{way}_errors",
    "error": "{way}_errors",
    "discards": "{way}_dropped_packets",
    "total drops": "{way}_dropped_packets",
    "discard": "{way}_dropped_packets",
    "pause": "{way}_pause_packets",
    "crc": "rx_crc_errors",
    "crc/fcs": "rx_crc_errors",
    "stomped crc": "rx_stomped_crc_errors",
    "runts": "rx_runts",
    "giants": "rx_giants",
    "alignment": "rx_alignment_errors",
    "symbol": "rx_symbol_errors",
    "frame": "rx_frame_errors",
    "overrun": "rx_overruns",
    "collision": "tx_collisions",
    "collisions": "tx_collisions",
    "late collision": "tx_window_errors",
    "late collisions": "tx_window_errors",
    "deferred": "tx_deferred",
    "lost carrier": "tx_carrier_errors",
    "link status changes since last clear": "link_changes",
}
"""Counter by what is left of the words without their direction."""
_DIRECTIONS = re.compile(r"\b(input|output|rx|tx)\b ?", re.I)
_WAYS = {"input": "rx", "rx": "rx", "received": "rx", "output": "tx", "tx": "tx", "sent": "tx"}


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by a port's first line with packets below."""
    if b" is up" not in head and b" is down" not in head:
        return None
    if _HEADS.search(head) is None:
        return None
    return Recognition(KIND, "the status of ports as a switch prints it (NX-OS, EOS, IOS)", KIND)


def read(source: SourceFile, sink: Sink) -> None:
    """Stream each port's counters into net_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, None, "line")
        parser = _Parser(NetSamples(sink, source), reading)
        for line in lines(stream):
            parser.line(line)
        reading.finish(parser.samples, streams.stream_problem(stream))


class _Parser:
    def __init__(self, samples: NetSamples, reading: Reading) -> None:
        self.samples = samples
        self._reading = reading
        self._port: str | None = None
        self._section: str | None = None
        """Direction that a heading of NX-OS gave."""
        self._seen: set[str] = set()
        """Gauges of the port that its lines repeat (MTU of the link and of IP)."""

    def line(self, line: Line) -> None:
        text = line.text.rstrip()
        if not text:
            return
        if port := _PORT.match(text):
            self._port, self._section = port[1], None
            self._seen.clear()
            self._reading.good()
            is_up = port[2] == "up" and (port[3] or "up") == "up"
            self._gauge(line.number, "link_up", str(int(is_up)), "is up")
        elif (stamp := times.of_line(text.strip())) is not None:
            self.samples.at(stamp)
            self._port = None
        elif typed := prompt(text):
            self.samples.of(typed[0])
            self._port = None
        elif self._port is not None:
            self._field(line.number, text)

    def _field(self, place: int, text: str) -> None:
        if section := _SECTION.match(text):
            self._section = section[1].lower()
        elif rate := _RATE.match(text):
            self._rate(place, rate)
        elif queues := _QUEUES.match(text):
            self._reading.good()
            dropped = meaning("tx_dropped_packets")
            for what, printed in zip(
                (own("rx queue drops"), own("rx queue flushes"), dropped),
                queues.groups(),
                strict=True,
            ):
                if printed is not None:
                    self.samples.add(place, self._port, what, printed, original=what.counter)
        elif not _ROUNDED.match(text):
            if speed := _SPEED.search(text):
                self._gauge(place, "link_speed", f"{speed[1]}000", "BW")
            if mtu := _MTU.search(text):
                self._gauge(place, "mtu", mtu[1], "MTU")
            self._counts(place, text.strip())

    def _gauge(self, place: int, counter: str, printed: str, name: str) -> None:
        if counter not in self._seen:
            self._seen.add(counter)
            self.samples.add(place, self._port, meaning(counter), printed, original=name)

    def _rate(self, place: int, rate: re.Match[str]) -> None:
        way = _WAYS[rate[3]]
        self._reading.good()
        self.samples.interval_ns = int(rate[1]) * (60 if rate[2] == "minute" else 1) * 10**9
        scale = _BITS[rate[5]] / 8
        for name, printed, factor, said in (
            ("rate", rate[4], scale, rate[5]),
            ("packet_rate", rate[6], 1, "packets/sec"),
        ):
            what = meaning(f"{way}_{name}", factor)
            self.samples.add(place, self._port, what, printed, original=f"{rate[3]} {said}")
        self.samples.interval_ns = None

    def _counts(self, place: int, text: str) -> None:
        items = [_ITEM.match(part.strip()) for part in _BETWEEN.split(text)]
        if items[0] is None:
            return  # no list of counts: an address, a description, a duplex
        way = self._section
        for item in items:
            if item is None:
                continue
            words = item[3].strip()
            bare = _DIRECTIONS.sub("", words.lower()).strip()
            said = _DIRECTIONS.search(words)
            way = _WAYS.get((item[1] or (said[1] if said else "")).lower(), way)
            here = self._section or _ONE_WAY.get(bare) or way
            pattern = _NAMES.get(bare)
            if pattern is None or (here is None and "{" in pattern):
                what = own(bare if here is None else f"{here} {bare}")
            else:
                what = meaning(pattern.format(way=here))
            self._reading.good()
            self.samples.add(place, self._port, what, item[2], original=words)
            if item[4]:  # 8 broadcasts (3 multicasts): a part of them
                part = own(item[5] if way is None else f"{way} {item[5]}")
                self.samples.add(place, self._port, part, item[4], original=item[5])
