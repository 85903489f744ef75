"""Which port leads where, as neighbours announce themselves (LLDP): rows of link, no counters.

SONiC's ``show lldp table``, Arista's ``show lldp neighbors`` in JSON, and ``lldpcli`` in JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters.documents import documents
from tracekit.ingest.counters.net_samples import NetSamples, write_links
from tracekit.ingest.counters.printed_tables import Header, Ragged, Row, blocks, prompt
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.lines import lines, shape

KIND = "lldp"

_TABLE = re.compile(rb"^LocalPort +RemoteDevice +RemotePortID", re.M)
_JSON = re.compile(rb'^\s*+(?:\[\s*+)?\{[^\[]{0,2000}?"(?:lldpNeighbors|lldp)"\s*:\s*[\[\{]', re.S)
_MAC = re.compile(r"(?:[0-9a-f]{2}[:.-]?){5}[0-9a-f]{2}", re.I)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,120}")
_INTERFACE = re.compile(r"[A-Za-z][\w./-]{0,60}")


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise the table by its header, the JSON by its keys."""
    if b"LocalPort" in head and _TABLE.search(head):
        return Recognition(KIND, "neighbours of a switch (show lldp table)", KIND)
    if b'"lldp' in head and _JSON.match(head):
        return Recognition(KIND, "neighbours as LLDP names them (JSON)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Every neighbour that names itself into link."""
    with source.open() as stream:
        start = stream.read(4096)
    is_json = start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
    with source.open() as stream:
        reading = Reading(sink, stream, "LLDP", "line")
        reading.from_documentation("A list of LLDP neighbours")
        samples = NetSamples(sink, source)
        links: dict[tuple[str | None, str], tuple[int, str, str | None]] = {}
        neighbours = (
            _from_json(stream, reading) if is_json else _from_table(stream, reading, samples)
        )
        unnamed = 0
        for place, port, peer, nic in neighbours:
            if not _NAME.fullmatch(peer) or _MAC.fullmatch(peer):
                unnamed += 1
                continue
            links.setdefault((samples.node, port), (place, peer, nic))
        write_links(
            sink,
            ((at, node, port, peer, nic) for (node, port), (at, peer, nic) in links.items()),
        )
        if unnamed:
            sink.count(
                "unnamed_neighbour",
                unnamed,
                severity="info",
                doc="Neighbours that announce no name of a machine: not read.",
            )
        reading.answer = None if links else "no port has a neighbour that names itself"
        reading.finish(samples, streams.stream_problem(stream))


def _nic(identity: object, description: object) -> str | None:
    """The neighbour's interface; a MAC address is none."""
    for text in (identity, description):
        is_text = isinstance(text, str) and _INTERFACE.fullmatch(text) is not None
        if is_text and not _MAC.fullmatch(str(text)):
            return str(text)
    return None


def _from_table(
    stream: Any, reading: Reading, samples: NetSamples
) -> Iterator[tuple[int, str, str, str | None]]:
    names: tuple[str, ...] = ()
    for block in blocks(lines(stream)):
        if isinstance(block, Header):
            names = block.names if "RemoteDevice" in block.names else ()
            reading.good(bool(names))
        elif isinstance(block, Row) and names:
            row = dict(zip(names, block.cells, strict=True))
            nic = _nic(row.get("RemotePortID"), row.get("RemotePortDescr"))
            yield block.number, row["LocalPort"], row["RemoteDevice"], nic
        elif isinstance(block, Ragged) and names:
            reading.bad(block.number, "cells off their columns", shape(block.text))
        elif not isinstance(block, Row) and (typed := prompt(getattr(block, "text", ""))):
            samples.of(typed[0])


def _from_json(stream: Any, reading: Reading) -> Iterator[tuple[int, str, str, str | None]]:
    for document in documents(stream):
        if document.problem:
            reading.bad(document.line, document.problem)
            continue
        for answer in document.value if isinstance(document.value, list) else [document.value]:
            if not isinstance(answer, dict):
                reading.bad(document.line, "no answer of a command")
                continue
            reading.good()
            for neighbour in answer.get("lldpNeighbors") or ():
                if isinstance(neighbour, dict) and isinstance(neighbour.get("port"), str):
                    peer, nic = (
                        str(neighbour.get("neighborDevice")),
                        _nic(neighbour.get("neighborPort"), None),
                    )
                    yield document.line, neighbour["port"], peer, nic
            lldp = answer.get("lldp")
            interfaces = lldp.get("interface") if isinstance(lldp, dict) else None
            for port, entry in _interfaces(interfaces):
                chassis = entry.get("chassis")
                names = [k for k in chassis if k != "id"] if isinstance(chassis, dict) else []
                far = entry.get("port")
                far = far if isinstance(far, dict) else {}
                far_id = far.get("id")
                identity = far_id.get("value") if isinstance(far_id, dict) else None
                for name in names[:1]:
                    yield document.line, port, name, _nic(identity, far.get("descr"))


def _interfaces(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """lldpcli writes one interface as an object, several as a list of objects of one key."""
    for table in value if isinstance(value, list) else [value]:
        if isinstance(table, dict):
            for port, entry in table.items():
                if isinstance(entry, dict):
                    yield port, entry
