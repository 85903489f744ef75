"""Reads one text as a file of a family, and shows its rows as short lines: golden tables."""

from __future__ import annotations

from pathlib import Path

from memory_sink import MemorySink, source_of

from tracekit.ingest import files, ingestor, recognise
from tracekit.ingest.base import IngestOptions, SourceFile

SHARED = Path(__file__).resolve().parents[2] / "shared/data/counters"


def ingest(source: SourceFile | str | bytes, family: str, name: str = "dump.txt") -> MemorySink:
    """A file through recognition and its ingestor."""
    if isinstance(source, str | bytes):
        data = source.encode() if isinstance(source, str) else source
        source = source_of(data, name)
    found = recognise(source)
    assert found.ingestor == family, found
    sink = MemorySink()
    ingestor(family).read(source, sink, IngestOptions())
    return sink


def ingest_path(path: Path, family: str) -> MemorySink:
    """A file on disk."""
    (source,) = files.expand([path])
    return ingest(source, family)


def table(sink: MemorySink) -> list[str]:
    """``place port[/pN][/qN][/lN] counter kind value unit``, in the order of the file."""
    lines = []
    for row in sink.table("net_sample").to_pylist():
        where = row["port"] or "-"
        for key, letter in (("priority", "p"), ("queue", "q"), ("lane", "l")):
            if row[key] is not None:
                where += f"/{letter}{row[key]}"
        number = row["counted"] if row["kind"] == "cumulative" else f"{row['value']:g}"
        lines.append(
            f"{row['place']} {where} {row['counter']} {row['kind']} {number} {row['unit']}"
        )
    return lines


def golden(text: str) -> list[str]:
    """The lines of an indented text."""
    return [" ".join(line.split()) for line in text.strip().splitlines()]
