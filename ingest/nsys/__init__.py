"""Nsight Systems exports (``nsys export``): SQLite of every schema since 2021."""

from __future__ import annotations

from collections.abc import Collection

from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile

NAME = "nsys"
VERSION = 6


class NsysIngestor:
    """Reads what ``nsys export`` writes. One export holds several processes: one source each."""

    name = NAME
    version = VERSION

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise an export, or a report that must be exported first."""
        from tracekit.ingest.nsys import sniff

        return sniff.sniff(head, name)

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the export, or one process of it, into the sink."""
        from tracekit.ingest.nsys import reader

        reader.read(source, sink)

    def folder_name(self, name: str, files_in_it: Collection[str]) -> str | None:
        """The name of the source that a folder is as a whole: an export as Parquet files."""
        from tracekit.ingest.nsys import sniff

        return sniff.folder_name(name, files_in_it)

    def split(self, source: SourceFile) -> list[SourceFile]:
        """One source for each process that used a device; the export itself where one did."""
        from tracekit.ingest.nsys import sniff

        return sniff.split(source)
