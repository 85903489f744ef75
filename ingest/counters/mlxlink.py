"""The state of an NVIDIA port as ``mlxlink`` prints it (``-c``, ``-m``), as text or in JSON.

Counts are those since the time that ``Time Since Last Clear`` says; bit error ratios and light are
gauges. The port is not printed: a line with the command (``mlxlink -d mlx5_3 -c``) or the file's
name states it.
"""

from __future__ import annotations

import re
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.documents import dict_of, is_json
from tracekit.ingest.counters.net_samples import NetSamples, decimal
from tracekit.ingest.counters.net_words import meaning, own
from tracekit.ingest.counters.rdma_names import LANE_BITS_S
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import lines

NAME = "mlxlink"

_HEAD = re.compile(rb"^(?:Operational Info|Physical Counters and BER Info)\r?\n-{8}", re.M)
_HEAD_JSON = re.compile(rb'"(?:Operational Info|Physical Counters and BER Info)"\s*:\s*\{')
_FIELD = re.compile(r"([A-Z][\w .\[\]/()-]{2,60}?)\s*: (.*)")
_PORT = re.compile(r"mlxlink\b.{0,200}?(?:-d|--device)[ =]([\w.:/-]{2,60})")
_PORT_OF_NAME = re.compile(r"(?<![a-z0-9])(mlx5_\d{1,3})(?!\d)", re.I)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE]-?\d+)?")
_COUNTERS = {
    "Symbol Errors": "rx_symbol_errors",
    "Link Down Counter": "link_downed",
    "Link Error Recovery Counter": "link_error_recovery",
    "Raw Physical BER": "fec_pre_ber",
    "Effective Physical BER": "fec_post_ber",
    "Temperature [C]": "optic_temperature",
    "Voltage [mV]": "optic_voltage",
    "Bias Current [mA]": "optic_tx_bias",
    "Rx Power Current [dBm]": "optic_rx_power",
    "Tx Power Current [dBm]": "optic_tx_power",
}
_OWN = {
    "Effective Physical Errors": "cumulative", "Raw Physical Errors Per Lane": "cumulative",
    "Raw Errors Per Lane": "cumulative", "Symbol BER": "gauge",
    "Raw Physical BER Per Lane": "gauge",
}  # fmt: skip
"""Kept by names of their own."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by its headings."""
    if _HEAD.search(head) is None and _HEAD_JSON.search(head[:65536]) is None:
        return None
    return Recognition(NAME, "the state of a port (mlxlink)", NAME)


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the output into net_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, "mlxlink", "line")
        parser = _Parser(source, NetSamples(sink, source), reading)
        if is_json(source):
            for document in reading.documents():
                parser.samples.at(document.stamp_ns)
                parser.document(document.line, document.value)
        else:
            for number, text in lines(stream):
                parser.line(number, text.rstrip())
        parser.end()
        if parser.others:
            count_other_metrics(sink, parser.others)
        reading.from_documentation("The output of mlxlink")
        reading.finish(parser.samples, streams.stream_problem(stream))


class _Parser:
    def __init__(self, source: SourceFile, samples: NetSamples, reading: Reading) -> None:
        self.samples = samples
        self.others = 0
        self._reading = reading
        named = _PORT_OF_NAME.search(source.name)
        self._port = named[1] if named else None
        self._speed: float | None = None
        self._lanes: int | None = None
        self._place = 0

    def line(self, number: int, text: str) -> None:
        """A line of the text."""
        self._place = number
        if command := _PORT.search(text):
            self.end()
            self._port = command[1]
        elif (moment := times.of_line(text)) is not None:
            self.end()
            self.samples.at(moment)
        elif field := _FIELD.fullmatch(text):
            self._reading.good()
            self._field(number, field[1].strip(), field[2].strip().split(","))

    def document(self, place: int, value: Any) -> None:
        """An answer with ``--json``."""
        self._place = place
        output = dict_of(dict_of(dict_of(value).get("result")).get("output"))
        if not output:
            self._reading.bad(place, "no output of mlxlink")
        for section in output.values():
            for name, said in dict_of(section).items():
                listed = said.get("values") if isinstance(said, dict) else said
                cells = listed if isinstance(listed, list) else [listed]
                self._reading.good()
                self._field(place, name, [str(c) for c in cells])
        self.end()

    def end(self) -> None:
        """The speed of a port, once its lanes are known too."""
        if self._speed is not None and self._lanes is not None:
            for counter, number in (
                ("link_speed", self._speed * self._lanes), ("link_width", float(self._lanes)),
            ):  # fmt: skip
                self.samples.add(
                    self._place, self._port, meaning(counter), number, original="Speed, Width"
                )
        self._speed = self._lanes = None

    def _field(self, place: int, name: str, cells: list[str]) -> None:
        if not cells:
            return
        if name == "State":
            is_up = cells[0].strip() == "Active"
            self.samples.add(place, self._port, meaning("link_up"), int(is_up), original=name)
            return
        if name == "Speed":
            self._speed = LANE_BITS_S.get(cells[0].strip().removeprefix("IB-"))
            return
        if name == "Width":
            lanes = re.fullmatch(r"(\d{1,2})x", cells[0].strip())
            self._lanes = int(lanes[1]) if lanes else None
            return
        what = self._meaning(name)
        for lane, cell in enumerate(cells):
            number = _NUMBER.match(cell.strip())
            if what is None:
                self.others += number is not None and decimal(cell.strip()) is not None
                continue
            is_lane = len(cells) > 1 or "Per Lane" in name
            self.samples.add(
                place, self._port, what, number[0] if number else None, original=name,
                lane=lane if is_lane else None,
            )  # fmt: skip

    @staticmethod
    def _meaning(name: str) -> Meaning | None:
        if name in _COUNTERS:
            known = meaning(_COUNTERS[name])
            return known._replace(scale=1e-3) if name.endswith("[mV]") else known
        return (
            own(name, "gauge" if _OWN[name] == "gauge" else "cumulative") if name in _OWN else None
        )
