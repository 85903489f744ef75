"""PyTorch profiler traces: the JSON that Kineto writes, of every schema since 2021."""

from __future__ import annotations

from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile

NAME = "kineto"
VERSION = 7


class KinetoIngestor:
    """Reads PyTorch profiler (Kineto, Chrome trace) JSON."""

    name = NAME
    version = VERSION

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise a trace, or a JSON relative of one, by its first bytes."""
        from tracekit.ingest.kineto import sniff

        return sniff.sniff(head, name)

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the file into the sink."""
        from tracekit.ingest.kineto import reader

        reader.read(source, sink, options)
