"""NVIDIA UFM: CSV of its telemetry endpoint, and JSON of its REST API.

The endpoint answers ``/csv/...`` with a row a port and a column a counter, stamped in
microseconds; saved again and again into one file, the header comes again too. The REST API nests
ports below times (``telemetry?type=history``), below devices (``monitoring``), or lists them
(``telemetry?type=topX``). The endpoint's Prometheus text is read with the other metrics.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import rdma_names, times, ufm_names
from tracekit.ingest.counters.net_samples import Event, NetSamples, integer, write_events
from tracekit.ingest.counters.rdma_names import node_and_prefix
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.lines import Line, lines, shape

KIND = "ufm"
MAX_DEPTH = 12
"""Deepest nesting of an answer that is looked into."""

_HEADER = re.compile(
    rb"(?m)^(?=[^\n]*\b(?:port_num|Port_Number)\b)(?=[^\n]*\b(?:node_guid|Node_GUID)\b)"
    rb"[\w .#\[\]()/-]{1,80}(?:,[^,\n]{0,80}){2,2000}\r?$"
)
_JSON = re.compile(
    rb'"(?:Infiniband_[A-Z]\w{2,60}|(?:Port|Link|Symbol)\w{3,60}Extended(?:_Rate)?)"\s*:'
)
_PORT_KEY = re.compile(r"(?:0x)?([0-9a-fA-F]{16})_(\d{1,5})")
_NODE_COLUMNS = ("node_guid", "source_id")
_NAME_COLUMNS = ("node_description", "device_name", "node_name")
_PORT_COLUMNS = ("port_num", "port_number")


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a table by its header, an answer by the counters in it."""
    if head.lstrip()[:1] in (b"{", b"["):
        if _JSON.search(head):
            return Recognition(KIND, "port counters of UFM (JSON of its REST API)", KIND)
        return None
    if _HEADER.search(head):
        return Recognition(KIND, "port counters of UFM Telemetry (CSV)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Every port's counters into net_sample; full ones into log_event."""
    with source.open() as stream:
        is_json = stream.read(1 << 12).lstrip()[:1] in (b"{", b"[")
    with source.open() as raw:
        stream = raw if is_json else _Ends(raw)  # type: ignore[assignment]
        reading = Reading(sink, raw, "UFM", "line")
        parser = _Parser(sink, NetSamples(sink, source), reading)
        reading.from_documentation("Telemetry of UFM")
        if is_json:
            for document in reading.documents():
                parser.answer(document.line, document.value, document.stamp_ns)
        else:
            parser.table(stream)  # type: ignore[arg-type]
        parser.finish()
        write_events(sink, parser.events)
        reading.finish(parser.samples, streams.stream_problem(raw))


class _Ends:
    """A stream that remembers whether its last line was ended."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.is_ended = True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        if data:
            self.is_ended = data.endswith(b"\n")
        return data

    @property
    def problem(self) -> str | None:
        return streams.stream_problem(self._stream)


class _Parser:
    def __init__(self, sink: Sink, samples: NetSamples, reading: Reading) -> None:
        self.samples = samples
        self.events: list[Event] = []
        self._sink = sink
        self._reading = reading
        self._columns: list[str] | None = None
        self._other: set[str] = set()

    def finish(self) -> None:
        if self._other:
            self._sink.count(
                "other_column",
                len(self._other),
                severity="info",
                doc="Fields of UFM that are no counter of a port's traffic or health: not kept.",
            )

    # --- CSV -------------------------------------------------------------------------------------

    def table(self, stream: _Ends) -> None:
        """The rows under each header. A last line without its end may be cut in a number."""
        held: Line | None = None
        for line in lines(stream):  # type: ignore[arg-type]
            if held is not None:
                self._row(held)
            held = line
        if held is None:
            return
        if stream.is_ended or stream.problem is not None:
            self._row(held)
        elif held.text.strip():
            self._reading.bad(held.number, "a last line that was not ended", shape(held.text))

    def _row(self, line: Line) -> None:
        if not line.text.strip():
            return
        cells = _cells(line.text)
        lowered = {c.lower() for c in cells}
        if lowered & set(_PORT_COLUMNS) and lowered & set(_NODE_COLUMNS):
            self._columns = cells
            self._reading.good()
            return
        if self._columns is None or len(cells) != len(self._columns):
            why = "no header before it" if self._columns is None else "another number of cells"
            self._reading.bad(line.number, why, shape(line.text))
            return
        row = dict(zip(self._columns, cells, strict=True))
        self._port(line.number, row, times.parse(_first(row, ("timestamp",)) or ""))

    def _port(self, place: int, row: dict[str, Any], time_ns: int | None) -> None:
        """One port's counters, whose identity stands beside them."""
        node = next((g for n in _NODE_COLUMNS if (g := ufm_names.guid(_first(row, (n,))))), None)
        port = _first(row, _PORT_COLUMNS)
        if node is None or port is None or not port.isdecimal():
            self._reading.bad(place, "no port", shape(str(port)[:60]))
            return
        self._counters(place, _first(row, _NAME_COLUMNS), node, port, row, time_ns)

    def _counters(
        self,
        place: int,
        described: str | None,
        node_guid: str,
        number: str,
        row: dict[str, Any],
        time_ns: int | None,
    ) -> None:
        node, prefix = node_and_prefix(described or "", node_guid)
        self.samples.of(node)
        self.samples.at(time_ns)
        port = f"{prefix}{int(number)}"
        wide = {rdma_names.plain(n) for n in row if ufm_names.is_wide(n)}
        for name, printed in row.items():
            what = ufm_names.of_ufm(name) if len(name) <= 100 else None
            if what is None:
                if name.lower() not in _IDENTITY and len(self._other) < 10_000:
                    self._other.add(name[:100])
                continue
            is_wide = ufm_names.is_wide(name)
            if not is_wide and rdma_names.is_port_counter(name) and rdma_names.plain(name) in wide:
                continue  # Both widths stand side by side: the wide one says more.
            self.samples.add(place, port, what, printed, original=name)
            full = None if is_wide else rdma_names.full_at(name)
            if full is not None and integer(printed) == full:
                fields = self.samples.where(port=port, counter=what.counter)
                self.events.append(Event(place, time_ns, "counter-saturated", "warning", fields))

    # --- JSON ------------------------------------------------------------------------------------

    def answer(self, place: int, value: Any, stamp_ns: int | None) -> None:
        """Every port of an answer, wherever it is nested."""
        ports_count = 0
        for port, row, time_ns in _ports(value, stamp_ns):
            key = _PORT_KEY.fullmatch(port)
            if key is None:
                self._port(place, row, time_ns)
            else:
                named = _first(row, ("name", "dname", *_NAME_COLUMNS))
                guid = ufm_names.guid(key[1]) or ""
                self._counters(place, named, guid, key[2], _statistics(row), time_ns)
            ports_count += 1
        if ports_count:
            self._reading.good(ports_count)
        else:
            self._reading.bad(place, "an answer without ports and their counters")


_IDENTITY = {
    "timestamp",
    "source_id",
    "tag",
    "port_guid",
    "guid",
    "name",
    "dname",
    "lid",
    "last_updated",
    *_NODE_COLUMNS,
    *_NAME_COLUMNS,
    *_PORT_COLUMNS,
}


def _ports(value: Any, stamp_ns: int | None) -> Iterator[tuple[str, dict[str, Any], int | None]]:
    """Ports of an answer: key (a GUID and a number, or nothing), fields, time that holds them."""
    stack: list[tuple[str, Any, int | None, int]] = [("", value, stamp_ns, 0)]
    while stack:
        key, node, time_ns, depth = stack.pop()
        if depth > MAX_DEPTH:
            continue
        if isinstance(node, list):
            stack += [(key, child, time_ns, depth + 1) for child in reversed(node)]
            continue
        if not isinstance(node, dict):
            continue
        stated = node.get("timestamp", node.get("last_updated"))
        if isinstance(stated, str | int):
            time_ns = times.parse(str(stated)) or time_ns
        # The time above a group of ports is its key; the port's own key is its GUID and number.
        key = key if _PORT_KEY.fullmatch(key) else str(node.get("guid", ""))
        statistics = _statistics(node)
        if any(ufm_names.of_ufm(str(n)[:100]) is not None for n in statistics):
            yield key, node, time_ns
            continue
        stack += [
            (str(k)[:100], v, times.parse(str(k)[:60]) or time_ns, depth + 1)
            for k, v in reversed(node.items())
        ]


def _statistics(row: dict[str, Any]) -> dict[str, Any]:
    inner = row.get("statistics")
    return inner if isinstance(inner, dict) else row


def _first(row: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of some fields, in any case, that holds a text or a number."""
    for name, value in row.items():
        if name.lower() in names and isinstance(value, str | int) and str(value).strip():
            return str(value).strip()[:200]
    return None


def _cells(text: str) -> list[str]:
    if '"' not in text:
        return [c.strip() for c in text.split(",")]
    try:
        return [c.strip() for c in next(csv.reader([text]), [])]
    except csv.Error:
        return []
