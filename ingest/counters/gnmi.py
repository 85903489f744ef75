"""gNMI telemetry of OpenConfig paths: gnmic's output, and raw notifications in JSON and as text.

Times are nanoseconds of the switch's own clock. Only leaves that hold a number of an interface, a
queue or a transceiver become samples; 64-bit numbers may be texts (RFC 7951).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import line_protocol, prototext
from tracekit.ingest.counters.documents import dicts_of, documents, loads
from tracekit.ingest.counters.net_samples import NetSamples, decimal, integer
from tracekit.ingest.counters.net_words import is_word, meaning, own
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import Line, lines, shape

KIND = "gnmi"

_RAW = re.compile(rb'"update"\s*:\s*\{\s*"timestamp"\s*:\s*"?\d{16,19}"?\s*,')
_GNMIC = re.compile(rb'"subscription-name"\s*:\s*"[^"]{0,200}"\s*,\s*"timestamp"\s*:\s*"?\d{16,19}')
_EVENT = re.compile(
    rb'"name"\s*:\s*"[^"]{0,200}"\s*,\s*"timestamp"\s*:\s*"?\d{16,19}"?\s*,\s*"tags"\s*:\s*\{'
)
_LINE = re.compile(
    rb"[\w:./-]{1,200}(?:,(?:\\.|[^,= \\]){1,100}=(?:\\.|[^, \\]){0,400}){0,40}?,source="
    rb"(?:\\.|[^, \\]){1,200}(?:,[^ ]{0,2000})? [^ =]{1,300}=[^\r\n]{1,8000} \d{16,19}\s*$",
    re.M,
)
_TEXT = re.compile(
    rb"^(?:update|notification) {0,4}:? {0,4}[{<]\s{1,20}timestamp: {0,4}\d{16,19}\s", re.M
)
"""A notification as text (prototext)."""
_KEYS = re.compile(r"\[([\w-]{1,60})=([^\]]{0,200})\]")

_COUNTERS = {
    "in-octets": "rx_bytes",
    "out-octets": "tx_bytes",
    "in-pkts": "rx_packets",
    "out-pkts": "tx_packets",
    "in-unicast-pkts": "rx_unicast_packets",
    "out-unicast-pkts": "tx_unicast_packets",
    "in-multicast-pkts": "rx_multicast_packets",
    "out-multicast-pkts": "tx_multicast_packets",
    "in-broadcast-pkts": "rx_broadcast_packets",
    "out-broadcast-pkts": "tx_broadcast_packets",
    "in-discards": "rx_dropped_packets",
    "out-discards": "tx_dropped_packets",
    "in-errors": "rx_errors",
    "out-errors": "tx_errors",
    "in-fcs-errors": "rx_crc_errors",
    "in-crc-errors": "rx_crc_errors",
    "in-mac-pause-frames": "rx_pause_packets",
    "out-mac-pause-frames": "tx_pause_packets",
    "in-oversize-frames": "rx_oversize_packets",
    "in-undersize-frames": "rx_undersize_packets",
    "carrier-transitions": "link_changes",
    "fec-corrected-blocks": "fec_corrected_codewords",
    "fec-uncorrectable-blocks": "fec_uncorrectable_codewords",
    "fec-uncorrectable-words": "fec_uncorrectable_codewords",
    "mtu": "mtu",
}
_QUEUE_COUNTERS = {
    "transmit-pkts": "packets",
    "transmit-octets": "bytes",
    "dropped-pkts": "dropped_packets",
    "dropped-octets": "dropped_bytes",
    "max-queue-len": "shared_watermark",
    "watermark": "shared_watermark",
    "ecn-marked-pkts": "ecn_marked_packets",
    "ecn-marked-octets": "ecn_marked_bytes",
}
_GAUGES = (
    "rate",
    "power",
    "temperature",
    "utilization",
    "utilized",
    "instant",
    "avg",
    "min",
    "max",
)


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise telemetry by its time stamp's neighbours."""
    if b",source=" in head[:8192] and _LINE.match(head):
        return Recognition(KIND, "telemetry of switches in Telegraf's line protocol", KIND)
    if _TEXT.search(head):
        return Recognition(KIND, "gNMI notifications as text (prototext)", KIND)
    if head.lstrip()[:1] not in (b"{", b"[") or b'"timestamp"' not in head:
        return None
    if _RAW.search(head):
        return Recognition(KIND, "gNMI notifications", KIND)
    if _GNMIC.search(head):
        return Recognition(KIND, "gNMI telemetry as gnmic writes it (json)", KIND)
    if _EVENT.search(head):
        return Recognition(KIND, "gNMI telemetry as gnmic writes it (event)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Every numeric leaf of a port, queue or transceiver into net_sample."""
    with source.open() as stream:
        head = stream.read(8192)
    is_text = _TEXT.search(head) is not None
    is_lines = head.lstrip()[:1] not in (b"{", b"[")
    with source.open() as stream:
        reading = Reading(sink, stream, "gNMI", "line" if is_lines else "event")
        parser = _Parser(sink, NetSamples(sink, source), reading)
        for told in prototext.messages(lines(stream)) if is_text else ():
            parser.text(told)
        for line in lines(stream) if is_lines and not is_text else ():
            parser.protocol_line(line)
        for document in () if is_lines else documents(stream):
            if document.problem:
                reading.bad(parser.place, document.problem)
                continue
            for message in document.value if isinstance(document.value, list) else [document.value]:
                parser.message(message)
        parser.finish()
        reading.finish(parser.samples, streams.stream_problem(stream))


class _Parser:
    def __init__(self, sink: Sink, samples: NetSamples, reading: Reading) -> None:
        self.samples = samples
        self.place = 0
        self._sink = sink
        self._reading = reading
        self._others = 0
        self._said = False

    def message(self, message: Any) -> None:
        self.place += 1
        if not isinstance(message, dict):
            self._reading.bad(self.place, "no message")
            return
        if "syncResponse" in message or "sync-response" in message:
            return
        if isinstance(message.get("update"), dict):
            self._notification(message["update"])
        elif "tags" in message:
            self._event(message)
        elif "updates" in message or "deletes" in message:
            self._gnmic(message)
        else:
            self._reading.bad(self.place, "no message that is known")
            return
        self._reading.good()

    def text(self, told: prototext.Message) -> None:
        """A notification as text: the same fields in the words of the protocol."""
        self.place = told.line
        if told.value is None:
            self._reading.bad(told.line, "a message that breaks off")
        elif told.name in ("update", "notification"):
            if not self._said:
                self._said = True
                self._reading.from_documentation("Notifications of gNMI as text")
            self._notification(_as_in_json(told.value))
            self._reading.good()

    def finish(self) -> None:
        if self._others:
            self._sink.count(
                "other_leaf",
                self._others,
                severity="info",
                doc="Leaves that are no number of a port, queue or transceiver: not read.",
            )
            if not self.samples.rows_count:
                self._reading.answer = "it holds no number of a port, a queue or a transceiver"

    def _documented(self) -> None:
        if not self._said:
            self._said = True
            self._reading.from_documentation("The output of gnmic")

    def _at(self, timestamp: object) -> None:
        ns = integer(timestamp)
        self.samples.at(ns if ns is not None and ns > 10**15 else None)
        if ns is None:
            self._reading.bad_time(self.place)

    def _notification(self, update: dict[str, Any]) -> None:
        self._at(update.get("timestamp"))
        prefix = update.get("prefix")
        target = prefix.get("target") if isinstance(prefix, dict) else None
        if isinstance(target, str) and target and target != "subscription":
            self.samples.of(target)
        first = list(_elements(prefix))
        for change in dicts_of(update.get("update")):
            path = first + list(_elements(change.get("path")))
            self._tree(path, _value(change.get("val")))

    def _gnmic(self, message: dict[str, Any]) -> None:
        self._documented()
        self._at(message.get("timestamp"))
        self._source(message.get("source"))
        first = list(_split(str(message.get("prefix") or "")))
        for change in dicts_of(message.get("updates")):
            values = change.get("values")
            for path, value in values.items() if isinstance(values, dict) else ():
                # values repeat the path without its keys: the keys stand in Path.
                keyed = list(_split(str(change.get("Path") or change.get("path") or path)))
                self._tree(first + keyed, value)

    def _event(self, message: dict[str, Any]) -> None:
        self._documented()
        self._at(message.get("timestamp"))
        tags = message.get("tags")
        tags = tags if isinstance(tags, dict) else {}
        self._source(tags.get("source"))
        keys = {k: v for k, v in tags.items() if isinstance(v, str)}
        values = message.get("values")
        for path, value in values.items() if isinstance(values, dict) else ():
            self._tree(list(_split(str(path))), value, keys)

    def protocol_line(self, line: Line) -> None:
        """A point of Telegraf's gnmi input: its tags name the path, its fields the leaves."""
        self.place = line.number
        text = line.text.strip()
        if not text:
            return
        read = line_protocol.point(text)
        if read is None:
            self._reading.bad(line.number, "no line of the protocol", shape(text))
            return
        self._at(read.stamp)
        tags = read.tags
        self._source(tags.pop("source", None))
        first = list(_split(tags.pop("path", "").rpartition(":")[2]))
        name = tags.get("name")
        if name and any(part == "interface" for part, _ in first):
            tags["interface_name"] = name
        for field, number in read.fields():
            path = list(_split(field))
            leaf = path if field.startswith("/") else first + path
            self._leaf([(n.replace("_", "-"), k) for n, k in leaf], number, tags)
        self._reading.good()

    def _source(self, text: object) -> None:
        if isinstance(text, str) and text:
            self.samples.of(re.sub(r":\d{1,5}$", "", text))

    def _tree(
        self,
        path: list[tuple[str, dict[str, str]]],
        value: Any,
        tags: dict[str, str] | None = None,
        depth: int = 0,
    ) -> None:
        """A value may be a subtree where a container was subscribed to."""
        if isinstance(value, dict) and depth < 12:
            for name, inner in value.items():
                plain = name.rpartition(":")[2]
                self._tree([*path, (plain, {})], inner, tags, depth + 1)
        elif isinstance(value, list):
            self._others += 1
        else:
            self._leaf(path, value, tags)

    def _leaf(
        self,
        path: list[tuple[str, dict[str, str]]],
        value: object,
        tags: dict[str, str] | None = None,
    ) -> None:
        names = [name.rpartition(":")[2] for name, _ in path]
        keys = {
            f"{n}/{k}": v for n, (_, ks) in zip(names, path, strict=True) for k, v in ks.items()
        }
        for tag, text in (tags or {}).items():
            container, _, key = tag.replace("-", "_").rpartition("_")
            keys.setdefault(f"{container}/{key}", text)
        text = "/".join(names)
        if not names or decimal(value) is None or "config" in names:
            self._others += 1
            return
        port = keys.get("interface/name") or keys.get("interface/interface_id")
        port = port or keys.get("interface/interface-id")
        component = keys.get("component/name")
        if port is None and component is not None and "transceiver" in text:
            port = component
        if port is None:
            self._others += 1
            return
        queue_name = keys.get("queue/name")
        queue = None
        if queue_name is not None:
            digits = re.search(r"(\d{1,3})$", queue_name)
            queue = int(digits[1]) if digits else None
        what = self._meaning(names, text, queue_name is not None)
        original = text if len(text) < 200 else text[-200:]
        lane = integer(keys.get("channel/index"))
        self.samples.add(self.place, port, what, value, original=original, queue=queue, lane=lane)

    def _meaning(self, names: list[str], text: str, is_queue: bool) -> Meaning:
        leaf = names[-1].replace("_", "-")
        if is_queue and leaf in _QUEUE_COUNTERS:
            prefix = "voq_" if "voq" in text else "tx_queue_"
            return meaning(prefix + _QUEUE_COUNTERS[leaf])
        known = _COUNTERS.get(leaf)
        if known and not is_queue:
            return meaning(known)
        stem = names[-2] if leaf in ("instant", "avg", "min", "max") and len(names) > 1 else leaf
        suffix = "" if stem == leaf or leaf == "instant" else f"_{leaf}"
        optic = {
            "input-power": "optic_rx_power",
            "output-power": "optic_tx_power",
            "laser-bias-current": "optic_tx_bias",
        }.get(stem)
        if optic and is_word(optic):
            what = meaning(optic)
            return what._replace(counter=what.counter + suffix)
        is_gauge = any(word in leaf for word in _GAUGES)
        return own(f"{stem}{suffix}", "gauge" if is_gauge else "cumulative")


def _as_in_json(fields: dict[str, list[Any]]) -> dict[str, Any]:
    """A notification as the protocol's JSON has it."""
    update: dict[str, Any] = {"timestamp": _only(fields.get("timestamp"))}
    update["prefix"] = _path(fields.get("prefix"))
    changes = [change for change in fields.get("update", ()) if isinstance(change, dict)]
    update["update"] = [
        {"path": _path(change.get("path")), "val": _typed(change.get("val"))} for change in changes
    ]
    return update


def _only(values: list[Any] | None) -> Any:
    return values[0] if values is not None and len(values) == 1 else None


def _path(values: list[Any] | None) -> dict[str, Any]:
    said = _only(values)
    if not isinstance(said, dict):
        return {}
    elements = []
    for element in dicts_of(said.get("elem")):
        pairs = ((_only(p.get("key")), _only(p.get("value"))) for p in dicts_of(element.get("key")))
        elements.append({"name": _only(element.get("name")), "key": dict(pairs)})
    return {"target": _only(said.get("target")), "elem": elements}


def _typed(values: list[Any] | None) -> Any:
    """A typed value: ``uint_val: 5``, or a tree of JSON in a text."""
    said = _only(values)
    if not isinstance(said, dict):
        return None
    for name, inner in said.items():
        value = _only(inner)
        if name in ("json_val", "json_ietf_val") and isinstance(value, str):
            try:
                return {"jsonVal": loads(value.encode())}
            except ValueError:
                return None
        if name == "decimal_val" and isinstance(value, dict):
            return _value({"decimalVal": {key: _only(v) for key, v in value.items()}})
        if name in ("uint_val", "int_val", "float_val", "double_val", "string_val"):
            return value
    return None


def _elements(path: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Elements of a path in the JSON form of the protocol."""
    for element in dicts_of(path.get("elem") if isinstance(path, dict) else None):
        keys = element.get("key")
        plain = keys if isinstance(keys, dict) else {}
        yield str(element.get("name")), {str(k): str(v) for k, v in plain.items()}


def _split(path: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Elements of a path as text; a slash within brackets belongs to a key."""
    for part in re.findall(r"(?:[^/\[]|\[[^\]]{0,200}\])+", path[:2000]):
        yield part.split("[", 1)[0], dict(_KEYS.findall(part))


def _value(val: Any) -> object:
    """The number of a typed value; None for all else."""
    if not isinstance(val, dict):
        return val
    for key in (
        "uintVal",
        "intVal",
        "floatVal",
        "doubleVal",
        "stringVal",
        "jsonVal",
        "jsonIetfVal",
    ):
        if key in val:
            return val[key]
    parts = val.get("decimalVal")
    if isinstance(parts, dict):
        digits, precision = integer(parts.get("digits")), integer(parts.get("precision")) or 0
        if digits is not None and 0 <= precision <= 18:
            return digits / 10**precision
    return None
