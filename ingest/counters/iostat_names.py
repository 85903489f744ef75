"""Names of iostat's columns, in its JSON and in its tables, and what they are."""

from __future__ import annotations

from tracekit.ingest.counters.storage_words import STORAGE
from tracekit.ingest.counters.vocabulary import Meaning

_MS = 1_000_000
_KIB, _MIB = 1024, 1024**2
MAX_INTERVAL_NS = 86_400 * 10**9
"""Longest time between two reports that is believed."""


def _meanings() -> dict[str, Meaning]:
    words: dict[str, Meaning] = {
        "aqu-sz": STORAGE.meaning("queue_length"),
        "avgqu-sz": STORAGE.meaning("queue_length"),
        "util": STORAGE.meaning("busy", 0.01),
        "f/s": STORAGE.meaning("flush_rate"),
        "f_await": STORAGE.meaning("flush_latency", _MS),
    }
    for letter, name in (("r", "read"), ("w", "write")):
        words[f"{letter}/s"] = STORAGE.meaning(f"{name}_rate")
        words[f"{letter}_await"] = STORAGE.meaning(f"{name}_latency", _MS)
        words[f"{letter}kB/s"] = STORAGE.meaning(f"{name}_throughput", _KIB)
        words[f"{letter}MB/s"] = STORAGE.meaning(f"{name}_throughput", _MIB)
    return words


MEANINGS = _meanings()
"""Of each column that is kept: what it is."""
