"""Errors of a log in words, counted: what a benchmark that broke off says of its end."""

from __future__ import annotations

from collections import Counter

from tracekit.rules.base import Facts, Row
from tracekit.wording import safe

SHOWN_ERRORS = 4
_WORDS = {
    "register_failed": "NCCL's network plugin could not register memory",
    "completion_failed": "a transfer of NCCL's network plugin failed",
    "library_error": "a library of the network failed",
    "test_failed": "nccl-tests gave up",
    "job_ended": "the job was ended",
    "ib_async_event": "an event of a NIC",
    "ib_device_failed": "NCCL gave a NIC up",
    "ib_error": "a transfer over InfiniBand or RoCE failed",
    "cuda_failure": "CUDA failed",
    "peer_closed": "a peer closed its connection",
    "connect_failed": "a connection failed",
    "socket_failed": "a call on a connection failed",
    "call_chain": "NCCL's calls failed one in another",
    "aborted": "NCCL aborted",
}
"""What a code of nccl_event is called where its fields alone would not be understood."""
_LAST = ("call_chain", "aborted", "test_failed", "job_ended")
"""What follows from an error: said after those that may be its cause."""

_PLACES = ("line=", "file=", "origin=")
"""Fields that say where in NCCL's sources a line was printed: one error, whatever the place."""


def errors_of(facts: Facts, bench: Row | None = None) -> list[str]:
    """The errors that logs name, most frequent first, what follows last; ``bench``: only those of
    the log of a benchmark."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in facts.of("nccl_signals"):
        if row["severity"] != "error":
            continue
        if bench is not None and row["source_id"] != bench["source_id"]:
            continue
        fields = ", ".join(
            _shown(str(f)) for f in row["fields"] or () if not str(f).startswith(_PLACES)
        )
        code = str(row["code"])
        counts[code, fields if code != "call_chain" else ""] += int(row["occurrences_count"])
    rest = sorted(
        counts.items(), key=lambda item: (item[0][0] in _LAST, _rank(item[0][0]), -item[1], item[0])
    )
    words = [
        f"{count} x {_WORDS.get(code, safe(code.replace('_', ' ')))}"
        + (f" ({fields})" if fields else "")
        for (code, fields), count in rest
    ]
    more = len(words) - SHOWN_ERRORS
    return [*words[:SHOWN_ERRORS], *([f"and {more} more kinds"] if more > 0 else [])]


def _rank(code: str) -> int:
    return _LAST.index(code) if code in _LAST else -1


def _shown(field: str) -> str:
    name, _, value = field.partition("=")
    value = safe(value)
    return value if name in ("what", "why", "by", "call") else f"{safe(name)} {value}"
