"""NCCL's topology XML (NCCL_TOPO_DUMP_FILE); nvidia-smi's matrix stands among its other texts."""

from __future__ import annotations

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters.names import node_of_path
from tracekit.ingest.counters.topology import from_xml, write_links, write_ports

NAME = "topology"
MAX_BYTES = 8 << 20
"""Longest XML that is read."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by its root element."""
    start = head[:4096]
    if b"<system" in start and (b"<cpu" in head or b"<pci" in head):
        return Recognition("topology", "NCCL's topology of a host (XML)", NAME)
    if b"<graphs" in start and b"<graph" in start:
        return Recognition(
            "nccl_graph",
            "the channels that NCCL chose (XML): its log says the same, and is read",
            status="unrecognised",
        )
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Write the pairs into host_link, the NICs' ports into fabric_link."""
    with source.open() as stream:
        data = stream.read(MAX_BYTES + 1)
    topology = from_xml(data.decode("utf-8", "replace")) if len(data) <= MAX_BYTES else None
    sink.fact(place_kind="event", producer="NCCL topology", time_basis="none")
    if topology is None:
        sink.count(
            "bad_document",
            doc="XML that breaks off, declares entities or is none: nothing of it is kept.",
            place=1,
        )
        sink.fact(status="partial", reason="the XML is damaged")
        return
    node = node_of_path(source.path)
    write_links(sink, topology, node)
    write_ports(sink, topology, node)
    if not topology.cells and (node is None or not topology.ports):
        sink.fact(status="empty", reason="it names no GPU")
