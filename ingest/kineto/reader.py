"""Reads one trace from its first byte to its last."""

from __future__ import annotations

from tracekit.ingest.base import IngestOptions, Sink, SourceFile
from tracekit.ingest.kineto import trace
from tracekit.ingest.kineto.stream import CHUNK_BYTES


def read(
    source: SourceFile, sink: Sink, options: IngestOptions, *, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """Stream a trace into the sink."""
    trace.read(source, sink, options, chunk_bytes)
