"""Files of GPU counters as tests read them: recognised, and into a sink in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_sink import MemorySink, source_of
from msgspec.structs import replace

from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions

SHARED = Path(__file__).parents[2] / "shared" / "data" / "counters"


def ingest(
    text: str | bytes,
    name: str = "gpu.txt",
    kind: str | None = None,
    columns: dict[str, str] | None = None,
) -> MemorySink:
    data = text.encode() if isinstance(text, str) else text
    source = replace(source_of(data, name), columns=tuple((columns or {}).items()))
    found = recognise(source)
    assert found.ingestor is not None, found
    if kind is not None:
        assert found.kind == kind
    sink = MemorySink()
    ingestor(found.ingestor).read(source, sink, IngestOptions())
    return sink


def real(name: str) -> MemorySink:
    path = SHARED / name
    if not path.exists():
        pytest.skip("shared/data is not here")
    return ingest(path.read_bytes(), path.name)


def values(sink: MemorySink, counter: str) -> list[Any]:
    return [
        r["value"] if r["value"] is not None else r["counted"]
        for r in sink.rows("gpu_sample")
        if r["counter"] == counter
    ]
