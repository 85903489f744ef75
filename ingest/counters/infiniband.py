"""What InfiniBand tools print: perfquery, ibqueryerrors, and ibdiagnet's db_csv."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import rdma_names, times
from tracekit.ingest.counters.net_samples import (
    Event,
    NetSamples,
    integer,
    write_events,
    write_links,
)
from tracekit.ingest.counters.printed_tables import prompt
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.lines import Line, shape

KIND = "infiniband"

_PERFQUERY = re.compile(
    r"# (Port extended counters|Port counters|Port\w{3,40} counters): "
    r"Lid (\d{1,6}) port (\d{1,3}|ALL)\b"
)
_HEADING = re.compile(r"\s*(?:={2,}|-{2,}|#{2,}|\*{2,})\s*\S")
"""What a script prints before a command's output."""
_FIELD = re.compile(r"(\w{3,60}):\.*(-?\w{1,40})\s*$")
_ERRORS_FOR = re.compile(r'Errors for (?:(0x[0-9a-fA-F]{1,16}) )?"(.{0,200})"')
_PORT_LINE = re.compile(r"\s*GUID (0x[0-9a-fA-F]{1,16}) port (\w{1,5}):(.*)$")
_COUNTER = re.compile(r"\[(\w{3,60}) == (-?\d{1,24})\b[^\]]{0,40}\]")
_LINK_INFO = re.compile(r'\s*Link info:.{0,300}?"([^"]{1,200})"\s*\(')
_SECTION = re.compile(r"(START|END)_([A-Z][A-Z0-9_]{1,60})\s*$")
_GUID_NAME = re.compile(r"0x[0-9a-fA-F]{12,16}")
_HEADS = (
    (re.compile(rb"^# Port[\w ]{0,40} counters: Lid \d", re.M), "perfquery", "counters of a port"),
    (re.compile(rb'^Errors for (?:0x\w{1,16} )?"', re.M), "ibqueryerrors", "ports with errors"),
    (re.compile(rb"^START_[A-Z][A-Z0-9_]{1,60}\s*$", re.M), "ibdiagnet db_csv", "sections of CSV"),
)
_SETTINGS = frozenset({"PortSelect", "CounterSelect", "CounterSelect2"})
_PM_SECTIONS = frozenset({"PM_INFO"})


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise the output by its headings."""
    if b"ounters: Lid" not in head and b"Errors for" not in head and b"START_" not in head:
        return None
    for pattern, tool, what in _HEADS:
        if pattern.search(head):
            return Recognition(KIND, f"what {tool} prints: {what}", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the counters into net_sample; full ones into log_event; cables into link."""
    with by_lines(
        source,
        sink,
        lambda reading: _Parser(sink, NetSamples(sink, source), reading, source.name),
        "infiniband-diags",
    ) as (parser, _):
        parser.finish()
        write_events(sink, parser.events)
        write_links(sink, parser.links)


class _Parser:
    def __init__(self, sink: Sink, samples: NetSamples, reading: Reading, name: str) -> None:
        self.samples = samples
        self.events: list[Event] = []
        self.links: list[tuple[int, str | None, str, str, str | None]] = []
        self._sink = sink
        self._reading = reading
        self._take: Callable[[Line], None] | None = None
        self._port = ""
        self._is_classic = False
        self._description: str | None = None
        self._header_guid: str | None = None
        self._sums = 0
        self._columns: list[str] | None = None
        self._section: str | None = None
        self._skipped: set[str] = set()
        self._names: dict[str, str] = {}
        guid = _GUID_NAME.search(name)
        self._name_guid = guid[0] if guid else None
        self._newest_link: tuple[str | None, str] | None = None
        self._said: set[str] = set()

    def line(self, line: Line) -> None:
        text = line.text
        if not text.strip():
            return
        if section := _SECTION.match(text):
            self._open_section(section[1], section[2])
            return
        if self._section is not None:
            self._csv_line(line)
            return
        if output := _PERFQUERY.match(text):
            self._perfquery(output)
            return
        if errors_heading := _ERRORS_FOR.match(text):
            self._documented("ibqueryerrors")
            self._header_guid, self._description = errors_heading[1], errors_heading[2]
            self._take = self._errors_line
            self._reading.good()
            return
        if (stamp := times.of_line(text)) is not None:
            self.samples.at(stamp)
            return
        if typed := prompt(text):
            self.samples.of(typed[0])
            return
        if _HEADING.match(text):
            self._take = None
        elif self._take is not None:
            self._take(line)

    def finish(self) -> None:
        if self._sums:
            self._sink.count(
                "sum_of_ports",
                self._sums,
                severity="info",
                doc="Sums over all ports of a node: not read, for each port is there too.",
            )
        if self._skipped:
            self._sink.count(
                "other_section",
                len(self._skipped),
                severity="info",
                doc="Sections of ibdiagnet's CSV that hold no port counters: not read.",
            )

    def _documented(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._reading.from_documentation(f"The output of {what}")

    # --- perfquery -------------------------------------------------------------------------------

    def _perfquery(self, output: re.Match[str]) -> None:
        self._is_classic = output[1] == "Port counters"
        self._port = output[3]
        node = self._name_guid or f"lid {output[2]}"
        self.samples.of(node)
        if self._name_guid:
            self.samples.node_source = "name"
        self._take = self._perfquery_line
        if self._port in ("ALL", "255"):
            self._take = self._skip_sum
            self._sums += 1
        self._reading.good()

    def _skip_sum(self, line: Line) -> None:
        pass

    def _perfquery_line(self, line: Line) -> None:
        counter_line = _FIELD.match(line.text.strip())
        if not counter_line:
            self._reading.bad(line.number, "no counter", shape(line.text))
        elif counter_line[1] not in _SETTINGS:
            self._add(line.number, counter_line[1], counter_line[2], is_classic=self._is_classic)

    def _add(self, place: int, name: str, printed: str, *, is_classic: bool) -> None:
        what = rdma_names.port_meaning(name)
        self.samples.add(place, self._port, what, printed, original=name)
        if is_classic and integer(printed) == (rdma_names.full_at(name) or -1):
            fields = self.samples.where(port=self._port, counter=what.counter)
            event = Event(place, self.samples.time_ns, "counter-saturated", "warning", fields)
            self.events.append(event)

    # --- ibqueryerrors ---------------------------------------------------------------------------

    def _errors_line(self, line: Line) -> None:
        if port_line := _PORT_LINE.match(line.text):
            if not port_line[2].isdigit():
                # port ALL is the sum over a switch, not a port.
                self._sums += 1
                return
            guid = self._header_guid or port_line[1]
            node, prefix = rdma_names.node_and_prefix(self._description or "", guid)
            self.samples.of(node)
            self._port = f"{prefix}{port_line[2]}"
            self._newest_link = (self.samples.node, self._port)
            counters = _COUNTER.findall(port_line[3])
            if not counters:
                self._reading.bad(line.number, "a port without counters", shape(line.text))
            for name, printed in counters:
                self._add(line.number, name, printed, is_classic=True)
        elif link_info := _LINK_INFO.match(line.text):
            peer, prefix = rdma_names.node_and_prefix(link_info[1], None)
            if self._newest_link and prefix:
                owner, port = self._newest_link
                self.links.append((line.number, owner, port, peer, prefix.rstrip("/")))
        elif not line.text.lstrip().startswith("#"):
            self._reading.bad(line.number, "no port", shape(line.text))

    # --- ibdiagnet -------------------------------------------------------------------------------

    def _open_section(self, which: str, name: str) -> None:
        self._columns = None
        if which == "END":
            self._section = None
            return
        self._section = name
        self._reading.good()
        self._documented("ibdiagnet")
        if name not in _PM_SECTIONS and name != "NODES":
            self._skipped.add(name)

    def _csv_line(self, line: Line) -> None:
        if self._section in self._skipped:
            return
        cells = _csv(line.text)
        if self._columns is None:
            self._columns = [c.strip() for c in cells]
            return
        if len(cells) != len(self._columns):
            self._reading.bad(line.number, "another number of cells", shape(line.text))
            return
        row = dict(zip(self._columns, (c.strip() for c in cells), strict=True))
        guid = row.get("NodeGUID") or row.get("NodeGuid")
        if not guid:
            self._reading.bad(line.number, "no node", shape(line.text))
        elif self._section == "NODES":
            self._names[guid] = row.get("NodeDesc", "")
        else:
            self._pm_row(line.number, guid, row)

    def _pm_row(self, place: int, guid: str, row: dict[str, str]) -> None:
        number = row.get("PortNumber") or row.get("PortNum") or ""
        if not number.isdigit():
            self._reading.bad(place, "no port", shape(number))
            return
        node, prefix = rdma_names.node_and_prefix(self._names.get(guid, ""), guid)
        self.samples.of(node)
        self._port = f"{prefix}{number}"
        # Both widths of a counter may stand side by side: the wide one says more.
        wide = {n for n in row if n.endswith(("Ext", "Extended"))}
        wide_plain = {rdma_names.plain(n) for n in wide}
        for name, printed in row.items():
            is_wide = name in wide
            known = rdma_names.is_port_counter(name)
            if not known or (not is_wide and rdma_names.plain(name) in wide_plain):
                continue
            text = (
                str(int(printed, 16)) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", printed) else printed
            )
            self._add(place, name, text, is_classic=not is_wide)


def _csv(text: str) -> list[str]:
    try:
        rows: Iterable[list[str]] = csv.reader([text])
        return next(iter(rows), [])
    except csv.Error:
        return []
