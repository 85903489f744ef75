"""The physical layer of ports as EOS prints it: ``show interfaces phy detail``.

A port's block is a list of labels; what stands below "Current State" is read, the number of its
changes is not. Of several chips of a port (a retimer, a coherent module) the first one's counters
are read: it faces the cable where the switch has only one, and no rule may add up two of them.
"""

from __future__ import annotations

import re

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.net_samples import NetSamples, is_missing
from tracekit.ingest.counters.net_words import meaning, own
from tracekit.ingest.counters.printed_tables import prompt
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import Line, lines

KIND = "eos_phy"

_HEAD = re.compile(
    rb"^[ \t]+Current State[ \t]+Changes[ \t]+Last Change"
    rb"|^[ \t]+FEC (?:un)?corrected codewords[ \t]+\d",
    re.M,
)
_SYSTEM_TIME = re.compile(r"Current System Time: (.{10,40})$")
_PORT = re.compile(r"(?:Ethernet|Et)\d[\d/]{0,12}")
_LANES = re.compile(r"FEC lane corrected symbols\s*$")
_LANE = re.compile(r"\s+Lane (\d{1,3})(\s+)(\S+)")
_LABELS = {
    "fec corrected codewords": meaning("fec_corrected_codewords"),
    "fec uncorrected codewords": meaning("fec_uncorrectable_codewords"),
    "pre-fec bit error rate": meaning("fec_pre_ber"),
    "pre-fec ber": meaning("fec_pre_ber"),
    "estimated pre-fec ber": meaning("fec_pre_ber"),
    "fec word error rate": own("fec_word_error_rate", "gauge"),
    "pcs err blocks": own("pcs_errored_blocks", "gauge"),
    "pcs ber": own("pcs_bit_errors", "gauge"),
}
"""PCS counts are those of the newest trouble (``lastErroredBlockCount`` in JSON): no totals."""
_LABEL = re.compile(rf"\s+({'|'.join(map(re.escape, _LABELS))})(\s+)(\S+)", re.I)


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by the header of a port's block, or by its codewords."""
    if _HEAD.search(head):
        return Recognition(KIND, "the physical layer of ports as EOS prints it", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream what FEC and PCS count into net_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, "Arista EOS", "line")
        reading.from_documentation("The physical layer of EOS")
        parser = _Parser(NetSamples(sink, source), reading)
        for line in lines(stream):
            parser.line(line)
        if parser.others_count:
            sink.count(
                "other_chip",
                parser.others_count,
                severity="info",
                doc="Counters of further chips of a port: only its first one's are read.",
            )
        reading.finish(parser.samples, streams.stream_problem(stream))


class _Parser:
    def __init__(self, samples: NetSamples, reading: Reading) -> None:
        self.samples = samples
        self._reading = reading
        self._port: str | None = None
        self._read: set[tuple[str, int | None]] = set()
        """Counter and lane of the port's block."""
        self._changes_at: int | None = None
        """Where the column of changes begins: a number from there on is no state."""
        self._is_stamped = False
        self._is_lanes = False
        self.others_count = 0

    def line(self, line: Line) -> None:
        text = line.text.rstrip().expandtabs()
        if not text:
            return
        if _PORT.fullmatch(text):
            self._port, self._changes_at = text, None
            self._read.clear()
            self._is_lanes = False
            self._reading.good()
        elif system_time := _SYSTEM_TIME.match(text):
            # A collector's stamp has a zone, this one has none: the two do not mix.
            ns = times.local_ns(system_time[1])
            if not self._is_stamped:
                self.samples.at(None if ns is None else times.Local(ns))
        elif (stamp := times.of_line(text.strip())) is not None:
            self._is_stamped = True
            self.samples.at(stamp)
        elif typed := prompt(text):
            self.samples.of(typed[0])
            self._port = None
        elif "Current State" in text and "Changes" in text:
            self._changes_at = text.index("Changes")
        elif self._port is not None:
            self._field(line.number, text)

    def _field(self, place: int, text: str) -> None:
        if _LANES.search(text):
            self._is_lanes = True
        elif self._is_lanes and (lane_line := _LANE.match(text)):
            self._add(place, meaning("fec_symbol_errors"), lane_line, int(lane_line[1]))
        else:
            self._is_lanes = False
            if label_line := _LABEL.match(text):
                self._add(place, _LABELS[label_line[1].lower()], label_line)

    def _add(
        self, place: int, what: Meaning, field: re.Match[str], lane: int | None = None
    ) -> None:
        printed = field[3]
        if self._changes_at is not None and field.start(3) >= self._changes_at:
            return
        key = (what.counter, lane)
        if key in self._read:
            self.others_count += 1
            return
        self._read.add(key)
        self._reading.good()
        original = field[0][: field.start(2) - field.start()].strip()
        value = None if is_missing(printed) else printed
        self.samples.add(place, self._port, what, value, original=original, lane=lane)
