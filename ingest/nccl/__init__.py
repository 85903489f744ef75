"""What NCCL, its tools and PyTorch's NCCL backend write: logs, dumps, records, tables."""

from __future__ import annotations

from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile

VERSION = 1


class NcclIngestor:
    """NCCL_DEBUG output, PyTorch's watchdog and nccl-tests tables, also within a job's output."""

    name = "nccl"
    version = VERSION

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise any file of the family; ``Recognition.ingestor`` says which one reads it."""
        from tracekit.ingest.nccl import sniff

        return sniff.sniff(head, name)

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the log into the sink."""
        from tracekit.ingest.nccl import log

        log.read(source, sink, options)
