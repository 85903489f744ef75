"""What a host's NIC counts: ``ethtool -S``, sysfs files and trees, ``rdma statistic``."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import rdma_names, times
from tracekit.ingest.counters.documents import documents
from tracekit.ingest.counters.ethtool_names import NET_STATISTICS, ethtool_meaning
from tracekit.ingest.counters.names import port_of_name
from tracekit.ingest.counters.net_samples import Event, NetSamples, decimal, integer, write_events
from tracekit.ingest.counters.net_words import is_word, meaning, own
from tracekit.ingest.counters.printed_tables import prompt
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.lines import Line, lines, shape

KIND = "nic"

MAX_DUMP_LINES = 200_000
"""Counters of one ethtool dump that are held together."""

_ETHTOOL = re.compile(rb"^NIC statistics:\s*$", re.M)
_PAUSE = re.compile(r"Pause parameters for ([\w.@-]{1,60}):")
_STATISTICS = re.compile(r"(?:NIC statistics|Standard stats for \S{1,40}):")
_HEADING = re.compile(
    r"[=#*>-]{2,}\s*(?:(?:sudo )?ethtool (?:-[A-Za-z]|--[a-z-]{1,30}) ([\w.@-]{1,60})(?: |$))?.*"
)
"""What a script prints before a command's output, and the port where it says one."""
_RDMA = re.compile(
    rb"^link [\w-]{1,60}/\d{1,3} (?:cntn |\w{3,40} \d{1,20}\b)|^link [\w-]+/\d+\s*$", re.M
)
_RDMA_JSON = re.compile(
    rb'^\s*\[\s*\{\s*"ifindex"\s*:\s*\d+\s*,\s*"ifname"\s*:\s*"[^"]{1,60}"\s*,\s*"port"\s*:\s*\d+\s*,'
    rb'\s*"\w{3,60}"\s*:\s*\d'
)
_SYSFS_LINE = re.compile(
    rb"[\w-]{1,60}/(?:ports/\d{1,3}/(?:hw_)?counters|statistics)/\w{1,80} ?[: ] ?\d{1,24}\s*$", re.M
)
_SYSFS_PATH = re.compile(
    r"(?:^|[/!\\])([\w.-]{1,60})/ports/(\d{1,3})/(?:(counters|hw_counters)/)?([\w-]{1,80})$"
)
_NET_PATH = re.compile(r"(?:^|[/!\\])(?:net/)?([\w.@-]{1,60})/statistics/(\w{1,60})$")
_LINE = re.compile(r"(\S{3,400}?) ?[: ] ?(-?\d{1,24})$")
_NUMBER = re.compile(rb"\s*-?\d{1,20}\s*")
_STATES = frozenset({"state", "phys_state", "rate", "link_layer", "fw_ver", "board_id", "hca_type"})
_SPEED = re.compile(r"([\d.]{1,8}) Gb/sec(?: \((\d{1,2})X)?")


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise the outputs by their headings, a sysfs file by its name and its one number."""
    if len(head) <= 64 and (recognition := _sniff_sysfs(head, name)):
        return recognition
    start = head.lstrip()[:1]
    if start == b"[" and _RDMA_JSON.match(head):
        return Recognition(KIND, "counters of rdma statistic (JSON)", KIND)
    if start == b"{":
        return None
    if head.startswith(b"Pause parameters for "):
        return Recognition(KIND, "pause settings of a NIC as ethtool -a prints them", KIND)
    if b"statistics:" in head and _ETHTOOL.search(head):
        return Recognition(KIND, "counters of a NIC as ethtool -S prints them", KIND)
    if b"link " in head and _RDMA.search(head):
        return Recognition(KIND, "counters of rdma statistic", KIND)
    has_tree = b"/ports/" in head or b"/statistics/" in head
    if has_tree and _SYSFS_LINE.search(head):
        return Recognition(KIND, "files of sysfs with their values, one a line", KIND)
    return None


def _sniff_sysfs(head: bytes, name: str) -> Recognition | None:
    if name in _STATES:
        is_state = {
            "state": rb"\d: \w+",
            "phys_state": rb"\d: \w+",
            "rate": rb"[\d.]+ Gb/sec.*",
            "link_layer": rb"InfiniBand|Ethernet",
        }.get(name, rb"[\w.-]{1,40}")
        if re.fullmatch(is_state, head.strip()):
            return Recognition(KIND, f"a sysfs file of an RDMA device: {name}", KIND)
        return None
    if not _NUMBER.fullmatch(head):
        return None
    if rdma_names.is_port_counter(name) or rdma_names.is_hardware_counter(name):
        return Recognition(KIND, f"a sysfs counter of a NIC: {name}", KIND)
    if is_word(NET_STATISTICS.get(name, name)):
        return Recognition(KIND, f"a sysfs counter of an interface: {name}", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the counters into net_sample; full ones into log_event."""
    with source.open() as stream:
        head = stream.read(4096)
    with source.open() as stream:
        reading = Reading(sink, stream, None, "line")
        parser = _Parser(sink, NetSamples(sink, source), reading, source.name)
        if len(head) <= 64 and _sniff_sysfs(head, source.name):
            parser.sysfs_file(source.path, head.decode("utf-8", "replace").strip())
            stream.read()
        elif head.lstrip()[:1] == b"[" and _RDMA_JSON.match(head):
            parser.rdma_documents(documents(stream))
        else:
            for line in lines(stream):
                parser.line(line)
            parser.flush()
        write_events(sink, parser.events)
        reading.finish(parser.samples, streams.stream_problem(stream))


@cache
class _Parser:
    def __init__(self, sink: Sink, samples: NetSamples, reading: Reading, name: str) -> None:
        self.samples = samples
        self.events: list[Event] = []
        self._sink = sink
        self._reading = reading
        self._name_port = port_of_name(name)
        self._port = self._name_port
        self._mode: str | None = None
        self._dump: list[tuple[int, str, str]] = []
        self._said: set[str] = set()

    def _documented(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._reading.from_documentation(f"The output of {what}")

    def line(self, line: Line) -> None:
        text = line.text.strip()
        if not text:
            return
        if self._mode == "ethtool" and line.text[:1] in " \t":
            self._ethtool_line(line.number, text)
            return
        if pause_heading := _PAUSE.fullmatch(text):
            self.flush()
            self._mode = "pause"
            self._port = pause_heading[1]
            self._documented("ethtool -a")
            self._reading.good()
            return
        if text.endswith(":") and _STATISTICS.fullmatch(text):
            self.flush()
            self._mode = "ethtool"
            self._documented("ethtool -S")
            self._reading.good()
            return
        if text.startswith("link ") and "/" in text:
            self.flush()
            self._rdma_line(line.number, text)
            return
        if (stamp := times.of_line(text)) is not None:
            self.flush()
            self.samples.at(stamp)
            return
        if typed := prompt(text):
            self.flush()
            self.samples.of(typed[0])
            words = typed[1].split()
            self._port = words[-1] if "ethtool" in words and len(words) > 2 else self._name_port
            return
        if heading := _HEADING.fullmatch(text):
            self.flush()
            self._mode = None
            self._port = heading[1] or self._name_port
        elif self._mode == "ethtool":
            self._ethtool_line(line.number, text)
        elif self._mode == "rdma-part":
            return
        elif self._mode == "pause":
            self._pause_line(line.number, text)
        elif self._mode == "rdma":
            self._pairs(line.number, text.removeprefix("Optional-set:").split())
        else:
            self._sysfs_line(line.number, text)

    # --- ethtool ---------------------------------------------------------------------------------

    def _ethtool_line(self, place: int, text: str) -> None:
        name, colon, value = text.rpartition(":")
        if not colon or not name or len(name) > 120:
            self._reading.bad(place, "no counter", shape(text))
            return
        self._dump.append((place, name.strip(), value.strip()))
        if len(self._dump) >= MAX_DUMP_LINES:
            self.flush()

    def _pause_line(self, place: int, text: str) -> None:
        name, _, value = text.partition(":")
        if name in ("RX", "TX"):
            is_on = {"on": 1, "off": 0}.get(value.strip())
            what = meaning(f"{name.lower()}_pause_enabled")
            self.samples.add(place, self._port, what, is_on, original=name)

    def flush(self) -> None:
        """Write the counters of a whole dump: what some mean depends on the others."""
        has_physical = any(name.endswith("_phy") for _, name, _ in self._dump)
        for place, name, value in self._dump:
            what, priority, ring = ethtool_meaning(name, has_physical)
            self.samples.add(
                place, self._port, what, value, original=name, priority=priority, queue=ring
            )
        self._dump = []

    # --- rdma ------------------------------------------------------------------------------------

    def _rdma_line(self, place: int, text: str) -> None:
        self._mode = "rdma"
        self._documented("rdma statistic")
        words = text.split()
        self._port = words[1]
        rest = words[2:]
        if rest[:1] == ["cntn"]:
            # Counters of one process's connections: parts of the port's, which are there too.
            self._mode = "rdma-part"
            self._reading.good()
            return
        self._reading.good()
        self._pairs(place, rest)

    def _pairs(self, place: int, words: list[str]) -> None:
        if len(words) % 2:
            self._reading.bad(place, "no pairs of name and number", shape(" ".join(words)))
            words = words[:-1]
        for name, value in zip(words[::2], words[1::2], strict=True):
            if not re.fullmatch(r"\w{2,60}", name):
                self._reading.bad(place, "no counter", shape(name))
                continue
            what = rdma_names.hardware_meaning(name)
            self.samples.add(place, self._port, what, value, original=name)

    def rdma_documents(self, found_documents: Any) -> None:
        for document in found_documents:
            if document.problem or not isinstance(document.value, list):
                self._reading.bad(document.line, document.problem or "no list of links")
                continue
            self._documented("rdma statistic -j")
            self._reading.good()
            self.samples.at(document.stamp_ns)
            for entry in document.value:
                if isinstance(entry, dict) and "ifname" in entry and "cntn" not in entry:
                    port = f"{entry['ifname']}/{entry.get('port', 1)}"
                    for name, value in entry.items():
                        if name not in ("ifindex", "ifname", "port"):
                            what = rdma_names.hardware_meaning(name)
                            self.samples.add(document.line, port, what, value, original=name)

    # --- sysfs -----------------------------------------------------------------------------------

    def sysfs_file(self, path: str, text: str) -> None:
        """A file of a tree: its path says whose counter it is."""
        self._reading.good()
        self._sysfs(1, path, text, "file")

    def _sysfs_line(self, place: int, text: str) -> None:
        file_line = _LINE.match(text)
        if file_line and self._sysfs(place, file_line[1].rstrip(":"), file_line[2], "line"):
            self._reading.good()
            return
        path, colon, value = text.partition(":")
        if colon and "/ports/" in path and self._sysfs(place, path, value.strip(), "line"):
            self._reading.good()
            return
        self._reading.bad(place, "no file of sysfs", shape(text))

    def _sysfs(self, place: int, path: str, text: str, kind: str) -> bool:
        plain = path.replace("\\", "/").replace("!", "/")
        if ib_path := _SYSFS_PATH.search(plain):
            port = f"{ib_path[1]}/{ib_path[2]}"
            return self._sysfs_ib(place, port, ib_path[3], ib_path[4], text)
        if net_path := _NET_PATH.search(plain):
            word = NET_STATISTICS.get(net_path[2], net_path[2])
            what = meaning(word) if is_word(word) else own(net_path[2])
            self.samples.add(place, net_path[1], what, text, original=net_path[2])
            return True
        name = plain.rpartition("/")[2]
        if kind == "file" and name in _STATES:
            self._reading.answer = "a description of a device: it holds no counter"
            return True
        if kind == "file":
            # The name alone says what is counted, not whose it is.
            what = (
                rdma_names.port_meaning(name)
                if rdma_names.is_port_counter(name)
                else rdma_names.hardware_meaning(name)
            )
            self.samples.add(place, None, what, text, original=name)
            return True
        return False

    def _sysfs_ib(self, place: int, port: str, folder: str | None, name: str, text: str) -> bool:
        if folder == "hw_counters":
            self.samples.add(place, port, rdma_names.hardware_meaning(name), text, original=name)
        elif folder == "counters":
            what = rdma_names.port_meaning(name)
            self.samples.add(place, port, what, text, original=name)
            if integer(text) == (rdma_names.full_at(name) or -1):
                fields = self.samples.where(port=port, counter=what.counter)
                event = Event(place, self.samples.time_ns, "counter-saturated", "warning", fields)
                self.events.append(event)
        elif name == "rate":
            speed_match = _SPEED.match(text)
            if not speed_match:
                return False
            speed = decimal(speed_match[1])
            bits = None if speed is None else speed * 1e9
            self.samples.add(place, port, meaning("link_speed"), bits, original=name)
            if speed_match[2]:
                self.samples.add(place, port, meaning("link_width"), speed_match[2], original=name)
        elif name == "state":
            is_up = int(text.startswith("4"))
            self.samples.add(place, port, meaning("link_up"), is_up, original=name)
        elif name == "phys_state":
            self.samples.add(place, port, own("phys_state", "gauge"), text[:1], original=name)
        elif name in _STATES:
            self._reading.answer = "a description of a device: it holds no counter"
        else:
            return False
        return True
