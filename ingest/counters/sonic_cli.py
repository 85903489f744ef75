"""What SONiC's command line prints: PFC, queues, watermarks, drops, watchdog, ports.

The numbers count since the newest ``sonic-clear`` of the user who asked, and a counter that fell
is printed as 0 there: a reset does not show. The dump of COUNTERS_DB has neither trouble.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.documents import is_json
from tracekit.ingest.counters.net_samples import (
    Event,
    NetSamples,
    decimal,
    is_missing,
    write_events,
)
from tracekit.ingest.counters.net_words import is_word, meaning, own
from tracekit.ingest.counters.printed_tables import Header, Ragged, Row, Text, blocks, prompt
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import lines, shape

KIND = "sonic_cli"

_TEXT = re.compile(
    rb"Port (?:Rx|Tx) +PFC0|RX Pause Transitions|IFACE +STATE +(?:[RT]X_|TRIM|FEC_)"
    rb"|Port +(?:TxQ|Voq) +\w+/pkts|(?:occupancy|headroom) per (?:PG|\w+ queues?):"
    rb"|Ingress PG dropped packets:|pool maximum occupancy:|STORM DETECTED/RESTORED"
    rb"|DETECTION TIME +RESTORATION TIME|Symbol Errors Per Codeword|DEVICE +SWITCH_DROPS"
    rb"|Object map from the COUNTERS_DB is empty|PFC is not enabled on port"
    rb"|Clear and update saved counters for|WATERMARK_CLEAR_REQUEST"
    rb"|Failed to run command, invalid options:|Egress queue watermark[^\n:]{0,40}:"
)
_MARKS = (
    b"PFC0",
    b"Pause Trans",
    b"IFACE",
    b"/pkts",
    b" per ",
    b"PG dropped",
    b"pool maximum",
    b"STORM DETECTED",
    b"DETECTION TIME",
    b"Errors Per Codeword",
    b"SWITCH_DROPS",
    b"COUNTERS_DB is empty",
    b"PFC is not enabled",
    b"saved counters for",
    b"WATERMARK_CLEAR",
    b"invalid options:",
    b"Egress queue",
)
"""One of these stands in every text that the pattern finds: looking for them is cheap."""
_JSON = re.compile(
    rb'^\s*(?:\[\s*\{\s*"Port"\s*:\s*"[^"]{1,80}"\s*,\s*"(?:UC|MC|ALL|PG)\d'
    rb'|\{\s*"[^"]{1,80}"\s*:\s*\{\s*(?:"(?:UC|MC|ALL|VOQ)\d{1,3}"\s*:\s*\{\s*)?'
    rb'"(?:dropbytes|droppacket|totalbytes|totalpacket|trimpacket|creditWDPkts|ecn\w{2,20}|wred\w{2,20}'
    rb'|STATE|RX_OK)"\s*:)'
)
_ANSWERS = (
    "Object map from the COUNTERS_DB is empty",
    "PFC is not enabled on port",
    "Failed to run command, invalid options",
)
_QUEUE = re.compile(r"(UC|MC|ALL|VOQ|PG|PFC|Q)?(\d{1,3})")
_TITLE_SPACE = re.compile(r"\(Namespace ([\w-]{1,40})\)")
_PERIOD = re.compile(r"rates are calculated within (\d{1,6}) seconds? period")

_PORT = {
    "RX_OK": "rx_packets",
    "RX_BPS": "rx_rate",
    "RX_PPS": "rx_packet_rate",
    "RX_UTIL": "rx_utilisation",
    "RX_ERR": "rx_errors",
    "RX_DRP": "rx_dropped_packets",
    "RX_DROPS": "rx_dropped_packets",
    "RX_OVR": "rx_oversize_packets",
    "TX_OK": "tx_packets",
    "TX_BPS": "tx_rate",
    "TX_PPS": "tx_packet_rate",
    "TX_UTIL": "tx_utilisation",
    "TX_ERR": "tx_errors",
    "TX_DRP": "tx_dropped_packets",
    "TX_DROPS": "tx_dropped_packets",
    "TX_OVR": "tx_oversize_packets",
    "TRIM": "trimmed_packets",
    "TRIM_PKTS": "trimmed_packets",
    "TRIM_TX": "tx_trimmed_packets",
    "TRIM_TX_PKTS": "tx_trimmed_packets",
    "TRIM_DRP": "trim_dropped_packets",
    "TRIM_DRP_PKTS": "trim_dropped_packets",
    "FEC_CORR": "fec_corrected_codewords",
    "FEC_UNCORR": "fec_uncorrectable_codewords",
    "FEC_SYMBOL_ERR": "fec_symbol_errors",
    "FEC_PRE_BER": "fec_pre_ber",
    "FEC_POST_BER": "fec_post_ber",
    "FEC_PRE_BER_MAX": "fec_pre_ber_max",
    "FLR(O)": "fec_frame_loss",
    "FLR(P) (Accuracy)": "fec_frame_loss_predicted",
    "FEC_MAX_T": "fec_max_symbol_errors",
}
_QUEUE_COLUMNS = {
    "Counter/pkts": "packets",
    "Counter/bytes": "bytes",
    "Drop/pkts": "dropped_packets",
    "Drop/bytes": "dropped_bytes",
    "WredDrp/pkts": "wred_dropped_packets",
    "WredDrp/bytes": "wred_dropped_bytes",
    "EcnMarked/pkts": "ecn_marked_packets",
    "EcnMarked/bytes": "ecn_marked_bytes",
    "Trim/pkts": "trimmed_packets",
    "TrimSent/pkts": "trim_sent_packets",
    "TrimDrop/pkts": "trim_dropped_packets",
    "Credit-WD-Del/pkts": "credit_deleted_packets",
}
_QUEUE_KEYS = {
    "totalpacket": "packets",
    "totalbytes": "bytes",
    "droppacket": "dropped_packets",
    "dropbytes": "dropped_bytes",
    "wreddroppacket": "wred_dropped_packets",
    "wreddropbytes": "wred_dropped_bytes",
    "wredDrppacket": "wred_dropped_packets",
    "wredDrpbytes": "wred_dropped_bytes",
    "ecnmarkedpacket": "ecn_marked_packets",
    "ecnmarkedbytes": "ecn_marked_bytes",
    "ecnpacket": "ecn_marked_packets",
    "ecnbytes": "ecn_marked_bytes",
    "trimpacket": "trimmed_packets",
    "trimsentpacket": "trim_sent_packets",
    "trimdroppacket": "trim_dropped_packets",
    "creditWDPkts": "credit_deleted_packets",
}
_HISTORY = {
    "RX Pause Transitions": "rx_pfc_transitions",
    "Total RX Pause Time US": "rx_pfc_duration",
    "Recent RX Pause Time US": "rx_pfc_recent_duration",
}
_WATCHDOG = {
    "STORM DETECTED/RESTORED": ("pfcwd_storms_detected", "pfcwd_storms_restored"),
    "TX OK/DROP": ("pfcwd_tx_packets", "pfcwd_tx_dropped_packets"),
    "RX OK/DROP": ("pfcwd_rx_packets", "pfcwd_rx_dropped_packets"),
    "TX LAST OK/DROP": ("pfcwd_tx_packets_last", "pfcwd_tx_dropped_packets_last"),
    "RX LAST OK/DROP": ("pfcwd_rx_packets_last", "pfcwd_rx_dropped_packets_last"),
}
_WATCHDOG_CONFIG = {
    "DETECTION TIME": "pfcwd_detection_time",
    "RESTORATION TIME": "pfcwd_restoration_time",
}
_PREFIXES = {"MC": "tx_multicast_queue_", "VOQ": "voq_"}
_RATES = {"B/s": 1, "KB/s": 10**3, "MB/s": 10**6, "GB/s": 10**9, "/s": 1}
_STATES = {"U": 1, "D": 0, "X": 0}


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise the tables, the JSON of the same commands, and their plain refusals."""
    if _JSON.match(head):
        return Recognition(KIND, "counters as SONiC's command line prints them (JSON)", KIND)
    if head.lstrip()[:1] in (b"{", b"["):
        return None
    if any(mark in head for mark in _MARKS) and _TEXT.search(head):
        return Recognition(KIND, "counters as SONiC's command line prints them", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the tables (or the JSON) into net_sample, storms and clears into log_event."""
    is_document = is_json(source)
    with source.open() as stream:
        reading = Reading(sink, stream, "SONiC", "line")
        parser = _Parser(NetSamples(sink, source), reading)
        if is_document:
            for document in reading.documents():
                parser.samples.at(document.stamp_ns)
                parser.json(document.line, document.value)
        else:
            for block in blocks(lines(stream)):
                parser.block(block)
        write_events(sink, parser.events)
        parser.finish(sink)
        reading.finish(parser.samples, streams.stream_problem(stream))


class _Parser:
    def __init__(self, samples: NetSamples, reading: Reading) -> None:
        self.samples = samples
        self.events: list[Event] = []
        self._reading = reading
        self._table: Callable[[Row], None] | None = None
        self._names: tuple[str, ...] = ()
        self._title: str | None = None
        self._namespace: str | None = None
        self._rows_of_table = 0
        self._tables = 0
        self._unknown_tables = 0

    # --- text ------------------------------------------------------------------------------------

    def block(self, block: Text | Header | Row | Ragged) -> None:
        if isinstance(block, Row):
            self._rows_of_table += 1
            if self._table is not None:
                self._table(block)
                self._reading.good()
        elif isinstance(block, Header):
            self._header(block)
        elif isinstance(block, Ragged):
            if self._table is not None:
                self._reading.bad(block.number, "cells off their columns", shape(block.text))
        else:
            self._text(block)

    def finish(self, sink: Sink) -> None:
        if self._tables and not self._rows_of_table and not self._reading.answer:
            self._reading.answer = "its table has no rows: nothing is configured or counted there"
        if self._unknown_tables:
            sink.count(
                "unknown_table",
                self._unknown_tables,
                doc="A table with a header that is not known: none of its rows was read.",
            )

    def _text(self, line: Text) -> None:
        text = line.text.strip()
        if not text:
            return
        self._table = None
        typed = prompt(text)
        if typed:
            self.samples.of(typed[0])
            self._title, self._namespace, self.samples.interval_ns = None, None, None
            return
        stamp = times.of_line(text)
        if stamp is not None:
            self.samples.at(stamp)
            return
        period = _PERIOD.search(text)
        if period:
            self.samples.interval_ns = int(period[1]) * 10**9
            return
        for answer in _ANSWERS:
            if answer in text:
                self._reading.answer = f"the switch answers: {answer}"
                self._reading.good()
                return
        cleared = re.match(r"Clear and update saved counters for ([\w|./:-]{1,80})$", text)
        if cleared or "WATERMARK_CLEAR_REQUEST" in text:
            fields = self.samples.where(port=cleared[1] if cleared else None)
            self.events.append(
                Event(line.number, self.samples.time_ns, "counters-cleared", "info", fields)
            )
            self._reading.answer = "the switch says that counters were cleared"
            self._reading.good()
            return
        if text.startswith("Last cached time was"):
            # What follows counts from then on; the time that it gives lacks its zone.
            fields = self.samples.where(what="counts since a clear")
            event = Event(line.number, None, "counters-cleared", "info", fields)
            self.events.append(event)
            return
        if text.endswith(":") or _TITLE_SPACE.search(text):
            self._title = text
            space = _TITLE_SPACE.search(text)
            self._namespace = space[1] if space else None

    def _header(self, header: Header) -> None:
        names = header.names
        self._names = names
        self._tables += 1
        self._table = self._reader_of(names)
        if self._table is None:
            self._unknown_tables += 1

    def _reader_of(self, names: tuple[str, ...]) -> Callable[[Row], None] | None:
        first = names[0] if names else ""
        rest = names[1:]
        title = self._title or ""
        if first in ("Port Rx", "Port Tx") and all(n.startswith("PFC") for n in rest):
            return self._pfc
        if "RX Pause Transitions" in names:
            return self._history
        if first == "IFACE":
            return self._port
        if first == "Port" and rest[:1] in (("TxQ",), ("Voq",)):
            return self._queue
        if first == "Port" and rest and all(_QUEUE.fullmatch(n) for n in rest):
            return self._per_queue if self._watermark_of(rest[0], title) else None
        if names == ("Pool", "Bytes"):
            return self._pool
        if first == "QUEUE" and "STATUS" in names:
            return self._watchdog
        if first == "PORT" and "DETECTION TIME" in names:
            return self._watchdog_config
        if first == "Symbol Errors Per Codeword":
            return self._fec_histogram
        if first == "DEVICE":
            return self._device
        return None

    def _watermark_of(self, column: str, title: str) -> str | None:
        """What a table of numbers a port and a queue counts: only its title says so."""
        queue = _QUEUE.fullmatch(column)
        kind = queue[1] if queue else None
        if "Ingress PG dropped packets" in title:
            return "rx_pg_dropped_packets"
        if "headroom per PG" in title:
            return "rx_pg_headroom_watermark"
        if "occupancy per PG" in title:
            return "rx_pg_shared_watermark"
        if ("occupancy per" in title or "Egress queue watermark" in title) and kind != "PG":
            return f"{_PREFIXES.get(kind or '', 'tx_queue_')}shared_watermark"
        return None

    def _named(self, row: Row) -> dict[str, str]:
        return dict(zip(self._names, row.cells, strict=True))

    def _pfc(self, row: Row) -> None:
        direction = "rx" if self._names[0] == "Port Rx" else "tx"
        for name, cell in zip(self._names[1:], row.cells[1:], strict=True):
            self.samples.add(
                row.number,
                row.cells[0],
                meaning(f"{direction}_pfc_packets"),
                cell,
                original=f"{self._names[0]} {name}",
                priority=_number(name),
            )

    def _history(self, row: Row) -> None:
        cells = self._named(row)
        for name, counter in _HISTORY.items():
            self.samples.add(
                row.number,
                cells.get("Port"),
                meaning(counter),
                cells.get(name),
                original=name,
                priority=_number(cells.get("Priority", "")),
            )

    def _port(self, row: Row) -> None:
        port = row.cells[0]
        for name, cell in self._named(row).items():
            if name != "IFACE":
                self._port_value(row.number, port, name, cell)

    def _port_value(self, place: int, port: str, name: str, printed: object) -> None:
        if name == "STATE":
            state = _STATES.get(str(printed))
            if state is None and not is_missing(str(printed)):
                self._reading.bad(place, "a state that is not known", shape(str(printed)))
            else:
                self.samples.add(place, port, meaning("link_up"), state, original=name)
            return
        counter = _PORT.get(name)
        what = meaning(counter) if counter else own(name)
        if what.kind != "cumulative":
            printed = _gauge(str(printed))
        elif self.samples.interval_ns is not None:
            # Rates over a period were asked for: the counts are those of the period alone.
            what = what._replace(kind="window")
        self.samples.add(place, port, what, printed, original=name)

    def _queue(self, row: Row) -> None:
        cells = self._named(row)
        queue = cells.get("TxQ") or cells.get("Voq") or ""
        for name, counter in _QUEUE_COLUMNS.items():
            if name in cells:
                self._queue_value(row.number, row.cells[0], queue, counter, cells[name], name)

    def _queue_value(
        self, place: int, port: str | None, queue: str, counter: str, printed: object, name: str
    ) -> None:
        queue_match = _QUEUE.fullmatch(queue)
        if not queue_match:
            self._reading.bad(place, "a queue that is not known", shape(queue))
            return
        prefix = _PREFIXES.get(queue_match[1] or "", "tx_queue_")
        self.samples.add(
            place,
            port,
            meaning(prefix + counter),
            printed,
            original=f"{queue_match[1] or ''} {name}".strip(),
            queue=int(queue_match[2]),
        )

    def _per_queue(self, row: Row) -> None:
        counter = self._watermark_of(self._names[1], self._title or "")
        assert counter is not None  # noqa: S101 - _reader_of has asked
        for name, cell in zip(self._names[1:], row.cells[1:], strict=True):
            self.samples.add(
                row.number,
                row.cells[0],
                meaning(counter),
                cell,
                original=name,
                queue=_number(name),
            )

    def _pool(self, row: Row) -> None:
        pool = f"{self._namespace}:{row.cells[0]}" if self._namespace else row.cells[0]
        is_headroom = (self._title or "").startswith("Headroom")
        counter = "pool_headroom_watermark" if is_headroom else "pool_shared_watermark"
        self.samples.add(row.number, pool, meaning(counter), row.cells[1], original="Bytes")

    def _watchdog(self, row: Row) -> None:
        cells = self._named(row)
        port, _, queue = row.cells[0].rpartition(":")
        number = _number(queue)
        if not port or number is None:
            self._reading.bad(row.number, "a queue that is not known", shape(row.cells[0]))
            return
        status = cells.get("STATUS", "")
        if status == "stormed":
            fields = self.samples.where(port=port, queue=number)
            self.events.append(
                Event(row.number, self.samples.time_ns, "pfcwd-storm", "error", fields)
            )
        is_known = status in ("stormed", "operational")
        self.samples.add(
            row.number,
            port,
            meaning("pfcwd_stormed"),
            int(status == "stormed") if is_known else None,
            original="STATUS",
            queue=number,
        )
        for name, counters in _WATCHDOG.items():
            parts = cells.get(name, "").split("/")
            if len(parts) != 2:
                parts = [cells.get(name, "")] * 2
            for counter, part in zip(counters, parts, strict=True):
                self.samples.add(
                    row.number, port, meaning(counter), part, original=name, queue=number
                )

    def _watchdog_config(self, row: Row) -> None:
        cells = self._named(row)
        for name, counter in _WATCHDOG_CONFIG.items():
            original = f"{name} ({cells.get('ACTION', '')})"
            self.samples.add(
                row.number, row.cells[0], meaning(counter), cells.get(name), original=original
            )

    def _fec_histogram(self, row: Row) -> None:
        bin_ = _number(row.cells[0].removeprefix("BIN"))
        name = f"fec_codewords_with_{bin_}_symbol_errors"
        what = Meaning(name, "count")
        self.samples.add(row.number, None, what, row.cells[1], original=row.cells[0])

    def _device(self, row: Row) -> None:
        self.samples.of(row.cells[0])
        for name, cell in zip(self._names[1:], row.cells[1:], strict=True):
            self.samples.add(row.number, None, own(name), cell, original=name)

    # --- JSON ------------------------------------------------------------------------------------

    def json(self, place: int, value: Any) -> None:
        if isinstance(value, list):
            for entry in value:
                self._json_watermarks(place, entry)
        elif isinstance(value, dict):
            for port, entry in value.items():
                self._json_port(place, port, entry)
        else:
            self._reading.bad(place, "neither ports nor a list of them")

    def _json_watermarks(self, place: int, entry: Any) -> None:
        port = entry.get("Port") if isinstance(entry, dict) else None
        if not isinstance(port, str):
            self._reading.bad(place, "an entry without its port")
            return
        self._reading.good()
        for name, printed in entry.items():
            queue_match = _QUEUE.fullmatch(name)
            if not queue_match or queue_match[1] == "PG":
                # Without a title nobody can say whether this is occupancy, headroom or drops.
                if name != "Port":
                    self._reading.bad(place, "a column that may mean several things", shape(name))
                continue
            counter = f"{_PREFIXES.get(queue_match[1] or '', 'tx_queue_')}shared_watermark"
            queue = int(queue_match[2])
            self.samples.add(place, port, meaning(counter), printed, original=name, queue=queue)

    def _json_port(self, place: int, port: str, entry: Any) -> None:
        if not isinstance(entry, dict):
            if port != "time":
                self._reading.bad(place, "an entry that is no table", shape(port))
            return
        self._reading.good()
        if _QUEUE.fullmatch(port) and any(k in _QUEUE_KEYS for k in entry):
            # A summary over all ports has queues where the ports would stand.
            self._json_queue(place, None, port, entry)
            return
        for name, printed in entry.items():
            if isinstance(printed, dict):
                self._json_queue(place, port, name, printed)
            elif name in _PORT or name == "STATE" or is_word(name.lower()):
                self._port_value(place, port, name, printed)
            elif name != "time":
                self.samples.add(place, port, own(name), printed, original=name)

    def _json_queue(self, place: int, port: str | None, queue: str, entry: dict[str, Any]) -> None:
        for name, printed in entry.items():
            counter = _QUEUE_KEYS.get(name)
            if counter is not None:
                self._queue_value(place, port, queue, counter, printed, name)
            elif name != "time":
                self._reading.bad(place, "a field that is not known", shape(name))


def _number(text: str) -> int | None:
    queue = _QUEUE.fullmatch(text.strip())
    return int(queue[2]) if queue else None


def _gauge(cell: str) -> str | float:
    """A rate in bytes or packets a second, a share, or a number, from a cell with its unit."""
    text = cell.strip()
    if text.endswith("%") and "(" not in text:
        number = decimal(text[:-1])
        return text if number is None else number / 100
    for unit, factor in sorted(_RATES.items(), key=lambda u: -len(u[0])):
        if text.endswith(unit):
            number = decimal(text.removesuffix(unit))
            return text if number is None else number * factor
    return re.sub(r" ?\([^()]*\)$", "", text)
