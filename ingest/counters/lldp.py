"""Which port leads where, as neighbours announce themselves (LLDP): rows of link and fabric_link.

SONiC's ``show lldp table``, Arista's ``show lldp neighbors`` in JSON, and ``lldpcli`` in JSON. What
a neighbour can do (bridge, router) is not asked: hosts that run containers announce both. Only who
answers a switch's own command is known to be one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile, write_columns
from tracekit.ingest.counters.documents import is_json
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
    is_document = is_json(source)
    with source.open() as stream:
        reading = Reading(sink, stream, "LLDP", "line")
        reading.from_documentation("A list of LLDP neighbours")
        samples = NetSamples(sink, source)
        links: dict[tuple[str | None, str], tuple[int, str, str | None]] = {}
        cables: list[_Cable] = []
        neighbours = _from_json(reading) if is_document else _from_table(stream, reading, samples)
        unnamed = 0
        for neighbour in neighbours:
            place, port, peer, nic = neighbour.place, neighbour.port, neighbour.peer, neighbour.nic
            if not _NAME.fullmatch(peer) or _MAC.fullmatch(peer):
                unnamed += 1
                continue
            if (samples.node, port) not in links:
                cables.append(neighbour)
            links.setdefault((samples.node, port), (place, peer, nic))
        _write_cables(sink, samples.node, cables)
        write_links(
            sink,
            ((at, node, port, peer, nic) for (node, port), (at, peer, nic) in links.items()),
            is_peer_host=False,
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


class _Cable(NamedTuple):
    """A neighbour at a port."""

    place: int
    port: str
    peer: str
    nic: str | None
    """Its interface, by name."""
    identity: str | None
    """What it calls its port: a name, or a MAC address."""
    is_switch: bool
    """Whether only a switch lists its neighbours so."""


def _write_cables(sink: Sink, node: str | None, cables: list[_Cable]) -> None:
    """Rows of fabric_link, where the machine that lists them, and both ports, are known."""
    placed = [(c, name) for c in cables if (name := c.nic or c.identity)]
    if node is None or not placed:
        return
    count = len(placed)
    write_columns(
        sink,
        "fabric_link",
        {
            "place": [c.place for c, _ in placed],
            "node": [node] * count,
            "node_kind": ["switch" if c.is_switch else None for c, _ in placed],
            "port": [c.port for c, _ in placed],
            "peer": [c.peer for c, _ in placed],
            "peer_kind": [None] * count,
            "peer_port": [name for _, name in placed],
            "lanes_count": [None] * count,
            "speed_bits_s": [None] * count,
        },
    )


def _said(identity: object) -> str | None:
    """A port as a neighbour calls it, in lower case where it is an address."""
    if not isinstance(identity, str):
        return None
    if _MAC.fullmatch(identity):
        return identity.lower()
    return identity if _INTERFACE.fullmatch(identity) else None


def _nic(identity: object, description: object) -> str | None:
    """The neighbour's interface; a MAC address is none."""
    for text in (identity, description):
        is_text = isinstance(text, str) and _INTERFACE.fullmatch(text) is not None
        if is_text and not _MAC.fullmatch(str(text)):
            return str(text)
    return None


def _from_table(stream: Any, reading: Reading, samples: NetSamples) -> Iterator[_Cable]:
    names: tuple[str, ...] = ()
    for block in blocks(lines(stream)):
        if isinstance(block, Header):
            names = block.names if "RemoteDevice" in block.names else ()
            reading.good(bool(names))
        elif isinstance(block, Row) and names:
            row = dict(zip(names, block.cells, strict=True))
            nic = _nic(row.get("RemotePortID"), row.get("RemotePortDescr"))
            identity = _said(row.get("RemotePortID"))
            yield _Cable(block.number, row["LocalPort"], row["RemoteDevice"], nic, identity, True)
        elif isinstance(block, Ragged) and names:
            reading.bad(block.number, "cells off their columns", shape(block.text))
        elif not isinstance(block, Row) and (typed := prompt(getattr(block, "text", ""))):
            samples.of(typed[0])


def _from_json(reading: Reading) -> Iterator[_Cable]:
    for document in reading.documents():
        for answer in document.value if isinstance(document.value, list) else [document.value]:
            if not isinstance(answer, dict):
                reading.bad(document.line, "no answer of a command")
                continue
            reading.good()
            for neighbour in answer.get("lldpNeighbors") or ():
                if isinstance(neighbour, dict) and isinstance(neighbour.get("port"), str):
                    peer, far_port = (
                        str(neighbour.get("neighborDevice")),
                        neighbour.get("neighborPort"),
                    )
                    nic, said = _nic(far_port, None), _said(far_port)
                    yield _Cable(document.line, neighbour["port"], peer, nic, said, True)
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
                    nic = _nic(identity, far.get("descr"))
                    yield _Cable(document.line, port, name, nic, _said(identity), False)


def _interfaces(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """lldpcli writes one interface as an object, several as a list of objects of one key."""
    for table in value if isinstance(value, list) else [value]:
        if isinstance(table, dict):
            for port, entry in table.items():
                if isinstance(entry, dict):
                    yield port, entry
