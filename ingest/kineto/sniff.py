"""Recognises traces, and the JSON files that lie beside them, by their first bytes."""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition
from tracekit.ingest.kineto import names

_TS = re.compile(rb'"ts"\s*:\s*"?(-?\d+)(\.\d+)?')
EPOCH_FROM_US = 10**15


def looks_relative(text: bytes) -> bool:
    """Whether the first times in a stretch of events count from something else than 1970."""
    found = _TS.search(text)
    return bool(found) and abs(int(found[1][:30])) < EPOCH_FROM_US  # type: ignore[index]


def sniff(head: bytes, name: str) -> Recognition | None:
    """A trace if the head shows one."""
    if b'"traceEvents"' in head:
        return Recognition("kineto", "it has traceEvents", "kineto", facts={"name_rank": names.rank_of_name(name)})
    return None
