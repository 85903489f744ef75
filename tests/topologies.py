"""Rows of host_link from a text, as the rules' tests need them."""

from __future__ import annotations

from typing import Any

from memory_sink import MemorySink

from tracekit.ingest.counters.topology import read_topology, write_links


def rows(text: str, host: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """The tables that a topology gives; ``host`` is the one that the source is known to be of."""
    found = read_topology(text)
    assert found is not None
    sink = MemorySink()
    write_links(sink, found, host)
    return {"host_link": sink.table("host_link").to_pylist()}
