"""``ip -s -j link`` and ``tc -s -j qdisc``, alone, repeated, or wrapped as one sample a line.

The wrapper is an object with ``ts`` (epoch seconds), perhaps ``port``, ``node`` and ``host``, and
the two outputs under ``link`` and ``qdisc``. Where one port of a switch is sampled, ``host`` is the
machine at the other end, and tx is traffic towards it. Without ``port`` a whole machine is sampled,
and ``host`` is its name: so ``tracekit capture`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.documents import dicts_of, text_of
from tracekit.ingest.counters.interface_names import LINK_STATS, LINK_UP, MTU
from tracekit.ingest.counters.net_samples import NetSamples, write_links
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.vocabulary import Kind, Meaning

KIND = "linux_net"

_LINK_KEYS = re.compile(rb'"ifname"\s*:\s*"')
_STATS = re.compile(rb'"stats(?:64)?"\s*:\s*\{\s*"rx"\s*:')
_QDISC = re.compile(
    rb'"kind"\s*:\s*"[a-z_]{2,20}"\s*,\s*"handle"\s*:\s*"[0-9a-f]*:"[^\[\]]{0,2000}?"drops"\s*:'
)

_QDISC_STATS: dict[str, tuple[str, str, Kind]] = {
    "bytes": ("queue_bytes", "bytes", "cumulative"),
    "packets": ("queue_packets", "packets", "cumulative"),
    "drops": ("queue_dropped_packets", "packets", "cumulative"),
    "overlimits": ("queue_overlimits", "count", "cumulative"),
    "requeues": ("queue_requeues", "count", "cumulative"),
    "backlog": ("queue_depth_bytes", "bytes", "gauge"),
    "qlen": ("queue_depth_packets", "packets", "gauge"),
    "ecn_mark": ("queue_ecn_marked_packets", "packets", "cumulative"),
    "marked": ("queue_ecn_marked_packets", "packets", "cumulative"),
    "early": ("queue_early_dropped_packets", "packets", "cumulative"),
}
_QDISC_MEANINGS = {
    direction: {
        key: Meaning(f"{direction}_{name}", unit, kind)
        for key, (name, unit, kind) in _QDISC_STATS.items()
    }
    for direction in ("rx", "tx")
}
_SHAPER = Meaning("tx_shaper_rate", "bytes/s", "gauge")


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise either output, or lines that wrap them."""
    start = head.lstrip()[:1]
    if start not in (b"{", b"[") and not times.of_line(_first_line(head)):
        return None
    if _LINK_KEYS.search(head) and _STATS.search(head):
        return Recognition(KIND, "interface statistics of ip -s -j link", "linux_net")
    if _QDISC.search(head):
        return Recognition(KIND, "queue statistics of tc -s -j qdisc", "linux_net")
    return None


def _first_line(head: bytes) -> str:
    return head.lstrip()[:200].split(b"\n", 1)[0].decode("utf-8", "replace").strip()


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the values of the file into net_sample and link."""
    with source.open() as stream:
        reading = Reading(sink, stream, "iproute2", "line")
        samples = NetSamples(sink, source)
        links: dict[tuple[str | None, str], tuple[int, str]] = {}
        for document in reading.documents():
            reading.good()
            for record in _records(document.value):
                _record(record, document.line, document.stamp_ns, samples, links, reading)
        write_links(
            sink, ((at, node, port, host, None) for (node, port), (at, host) in links.items())
        )
        reading.finish(samples, streams.stream_problem(stream))


def _records(value: Any) -> Iterator[dict[str, Any]]:
    """Wrapped samples as they are; bare outputs as if they were wrapped."""
    if isinstance(value, dict):
        if "link" in value or "qdisc" in value:
            yield value
        else:
            yield {"link": [value]} if "ifname" in value else {"qdisc": [value]}
    elif isinstance(value, list):
        items = [v for v in value if isinstance(v, dict)]
        if any("link" in v or "qdisc" in v for v in items if "ifname" not in v and "kind" not in v):
            for item in items:
                yield from _records(item)
            return
        yield {
            "link": [v for v in items if "ifname" in v],
            "qdisc": [v for v in items if "kind" in v and "ifname" not in v],
        }


def _record(
    record: dict[str, Any],
    line: int,
    stamp_ns: int | None,
    samples: NetSamples,
    links: dict[tuple[str | None, str], tuple[int, str]],
    reading: Reading,
) -> None:
    stated = next((record[k] for k in ("ts", "time", "timestamp") if k in record), None)
    time_ns = times.parse(str(stated)) if isinstance(stated, str | int) else None
    if stated is not None and time_ns is None:
        reading.bad_time(line)
    samples.at(time_ns if time_ns is not None else stamp_ns)
    own_port = text_of(record.get("port"))
    host = text_of(record.get("host"))
    samples.of(text_of(record.get("node") or record.get("switch")) or (None if own_port else host))
    for link in dicts_of(record.get("link")):
        _link(link, own_port, line, samples)
    for qdisc in dicts_of(record.get("qdisc")):
        _qdisc(qdisc, own_port, line, samples)
    if host and own_port:
        links.setdefault((samples.node, own_port), (line, host))


def _link(link: dict[str, Any], own_port: str | None, line: int, samples: NetSamples) -> None:
    port = text_of(link.get("ifname")) or own_port
    if port is None:
        return
    key = "stats64" if isinstance(link.get("stats64"), dict) else "stats"
    stats = link.get(key)
    if isinstance(stats, dict):
        for direction, meanings in LINK_STATS.items():
            counts = stats.get(direction)
            if not isinstance(counts, dict):
                continue
            for name, printed in counts.items():
                meaning = meanings.get(name) or Meaning(f"{direction}_{name}", None)
                original = f"{key}.{direction}.{name}"
                samples.add(line, port, meaning, printed, original=original)
    if "mtu" in link:
        samples.add(line, port, MTU, link["mtu"], original="mtu")
    if link.get("operstate") in ("UP", "DOWN", "LOWERLAYERDOWN"):
        is_up = int(link["operstate"] == "UP")
        samples.add(line, port, LINK_UP, is_up, original="operstate")


def _qdisc(qdisc: dict[str, Any], own_port: str | None, line: int, samples: NetSamples) -> None:
    port = text_of(qdisc.get("dev")) or own_port
    if port is None:
        return
    direction = "rx" if qdisc.get("kind") in ("ingress", "clsact") else "tx"
    is_root = bool(qdisc.get("root")) or direction == "rx"
    queue = None if is_root else _minor(qdisc.get("parent"))
    if not is_root and queue is None:
        return
    meanings = _QDISC_MEANINGS[direction]
    original = f"qdisc.{qdisc.get('kind')}"
    for name, printed in qdisc.items():
        meaning = meanings.get(name)
        if meaning is not None:
            samples.add(line, port, meaning, printed, original=f"{original}.{name}", queue=queue)
    options = qdisc.get("options")
    if isinstance(options, dict) and isinstance(options.get("rate"), int):
        rate = options["rate"]
        samples.add(line, port, _SHAPER, rate, original=f"{original}.rate", queue=queue)


def _minor(parent: object) -> int | None:
    """The class that a queue hangs from: its number below the parent's handle."""
    handle = re.fullmatch(
        r"[0-9a-f]{0,4}:([0-9a-f]{1,4})", parent if isinstance(parent, str) else ""
    )
    return int(handle[1], 16) if handle else None
