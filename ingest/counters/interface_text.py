"""``ip -s link`` and ``/proc/net/dev`` as text: once, or repeated with a time before each dump."""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.interface_names import LINK_STATS, LINK_UP, MTU
from tracekit.ingest.counters.net_samples import NetSamples
from tracekit.ingest.counters.printed_tables import prompt
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import Line, shape

KIND = "interface_text"

_LINK = re.compile(
    r"\d{1,7}: ([\w.-]{1,60})(?:@[\w.-]{1,60})?: <[A-Z0-9_,-]{0,200}> mtu (\d{1,6})\b.*"
)
_STATE = re.compile(r" state (UP|DOWN|LOWERLAYERDOWN)\b")
_TITLES = re.compile(r"(RX|TX)(?: errors)?:((?: +[a-z]{3,10}){3,10})")
_NUMBERS = re.compile(r"\d{1,20}(?: +\d{1,20}){2,9}")
_FACES = re.compile(r"face \|([a-z]+(?: +[a-z]+){2,11}) *\|([a-z]+(?: +[a-z]+){2,11}) *")
_FACE = re.compile(r"([\w.@-]{1,60}): *(\d{1,20}(?: +\d{1,20}){5,23})")
_IP_HEAD = re.compile(rb"^ {4}RX: +bytes +packets +errors [a-z ]{1,80}\r?\n +\d", re.M)
_PROC_HEAD = re.compile(
    rb"^Inter-\|  {1,9}Receive {1,80}\|  {1,9}Transmit *\r?\n face \|bytes ", re.M
)

_SHORT = {
    "mcast": "multicast", "overrun": "over_errors", "missed": "missed_errors",
    "length": "length_errors", "crc": "crc_errors", "frame": "frame_errors",
    "fifo": "fifo_errors", "carrier": "carrier_errors", "collsns": "collisions",
    "aborted": "aborted_errors", "window": "window_errors", "heartbt": "heartbeat_errors",
    "heartbeat": "heartbeat_errors", "transns": "carrier_changes", "errs": "errors",
    "drop": "dropped", "colls": "collisions",
}  # fmt: skip
"""How the text shortens the kernel's names. In /proc/net/dev frame, carrier and drop are sums: all
errors of a frame's form, all of sending but for FIFOs, and what was dropped or missed."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise either by its headings, which may stand among what a shell printed."""
    if b"Inter-|" in head and _PROC_HEAD.search(head):
        return Recognition(KIND, "interfaces as /proc/net/dev counts them", KIND)
    if b"RX:" in head and _IP_HEAD.search(head):
        return Recognition(KIND, "interfaces as ip -s link prints them", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the counters into net_sample."""
    with by_lines(
        source, sink, lambda reading: _Parser(NetSamples(sink, source), reading), "iproute2"
    ):
        pass


class _Parser:
    def __init__(self, samples: NetSamples, reading: Reading) -> None:
        self.samples = samples
        self._reading = reading
        self._port: str | None = None
        self._titles: tuple[str, list[str]] | None = None
        """The direction and the names of the numbers that the next line has."""
        self._faces: tuple[list[str], list[str]] | None = None

    def line(self, line: Line) -> None:
        text = line.text.strip()
        if not text:
            return
        titles, self._titles = self._titles, None
        if titles is not None and _NUMBERS.fullmatch(text):
            self._count(line.number, self._port, *titles, text.split())
        elif said := _TITLES.fullmatch(text):
            self._titles = said[1].lower(), said[2].split()
        elif self._faces is not None and (face := _FACE.fullmatch(text)):
            self._face(line.number, face[1], face[2].split())
        elif link := _LINK.fullmatch(text):
            self._link(line.number, link[1], text, link[2])
        elif faces := _FACES.fullmatch(text):
            self._faces = faces[1].split(), faces[2].split()
        elif (stamp := times.of_line(text)) is not None:
            self.samples.at(stamp)
        elif typed := prompt(text):
            self.samples.of(typed[0])
        elif titles is not None:
            self._reading.bad(line.number, "no numbers below their names", shape(text))

    def _link(self, place: int, port: str, text: str, mtu: str) -> None:
        self._port = port
        self._reading.good()
        self.samples.add(place, port, MTU, mtu, original="mtu")
        if state := _STATE.search(text):
            is_up = int(state[1] == "UP")
            self.samples.add(place, port, LINK_UP, is_up, original="state")

    def _face(self, place: int, port: str, numbers: list[str]) -> None:
        receive, transmit = self._faces or ([], [])
        if len(numbers) != len(receive) + len(transmit):
            self._reading.bad(place, "another number of cells", None)
            return
        self._reading.good()
        self._count(place, port, "rx", receive, numbers[: len(receive)])
        self._count(place, port, "tx", transmit, numbers[len(receive) :])

    def _count(
        self, place: int, port: str | None, direction: str, names: list[str], numbers: list[str]
    ) -> None:
        if port is None or len(names) != len(numbers):
            self._reading.bad(place, "numbers of no interface, or not as many as names", None)
            return
        for name, number in zip(names, numbers, strict=True):
            kernels = _SHORT.get(name, name)
            meaning = LINK_STATS[direction].get(kernels) or Meaning(f"{direction}_{kernels}", None)
            self.samples.add(place, port, meaning, number, original=f"{direction.upper()} {name}")
