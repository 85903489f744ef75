"""Stacks of a job's processes, as taken from outside or printed by themselves."""

from __future__ import annotations

from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile


class StacksIngestor:
    """py-spy dump (text and JSON), faulthandler, gdb and PyTorch's watchdog, in files of their
    own; what of it stands in a job's output is read with that."""

    name = "stacks"
    version = 1

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise a file that holds nothing but stacks, and few lines of who took them."""
        from tracekit.ingest.stacks import sniff

        return sniff.sniff(head)

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the threads into ``thread_stack``."""
        from tracekit.ingest.stacks import files

        files.read(source, sink)
