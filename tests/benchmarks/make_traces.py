"""Builds large traces out of a real one: its events again and again, later each time.

    python tests/benchmarks/make_traces.py SOURCE.json.gz 500 OUT.json.gz

Each repetition keeps the text of the events as the profiler wrote it; ``ts`` moves on by the
length of the trace, correlation and external ids, those of arrows, frames and the backward pass,
and step numbers by more than their range, so that every launch, kernel, operator, call and step
stays distinct. An id of 0 says that there is none, and stays.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO

from isal import igzip

_NUMBER = re.compile(
    rb'("ts": )(\d+(?:\.\d+)?)|("(?:correlation|[Ee]xternal id|id|Ev Idx|Sequence number'
    rb'|Python (?:parent )?id|Record function id)": )([1-9]\d*)|(ProfilerStep#)(\d+)'
)
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_METADATA = re.compile(
    rb'\{\s*(?:"name": "\w+", "ph": "M"|"ph": "M", "name": "\w+")[^{}]*\{[^{}]*\}\s*\}\s*,\s*'
    rb'|\{\s*(?:"name": "[^"]*", )?"ph": "i", "s": "g"[^{}]*\}\s*,?\s*'
)
_END = re.compile(rb"\}\s*\](?=\s*(?:,\s*\"|\}\s*\Z))")


def _split(raw: bytes) -> tuple[bytes, bytes, bytes]:
    start = _ARRAY.search(raw)
    if start is None:
        raise SystemExit("the source has no traceEvents")
    *_, end = _END.finditer(raw, start.end())
    return raw[: start.end()], raw[start.end() : end.start() + 1], raw[end.start() + 1 :]


def repetitions(body: bytes) -> Iterator[bytes]:
    """The events, then the events later, and so on without end."""
    fixed: list[bytes] = []
    times: list[int] = []
    ids: list[int] = []
    steps: list[int] = []
    slots: list[tuple[str, int]] = []
    digits = 3 if re.search(rb'"ts": \d+\.\d', body) else 0
    at = 0
    for found in _NUMBER.finditer(body):
        kind = 1 if found[1] else 3 if found[3] else 5
        fixed.append(body[at : found.start(kind + 1)])
        at = found.end(kind + 1)
        if kind == 1:
            slots.append(("t", len(times)))
            times.append(int(Decimal(found[2].decode()) * 10**digits))
        else:
            kept = ids if kind == 3 else steps
            slots.append(("i" if kind == 3 else "s", len(kept)))
            kept.append(int(found[kind + 1]))
    rest = body[at:]
    span = max(times) - min(t for t in times if t) + 1000
    id_span = max(ids, default=0) + 1
    step_span = max(steps, default=0) - min(steps, default=0) + 1
    turn = 0
    while True:
        shown = {
            "t": [_decimal(t + turn * span, digits) for t in times],
            "i": [b"%d" % (i + turn * id_span) for i in ids],
            "s": [b"%d" % (s + turn * step_span) for s in steps],
        }
        parts: list[bytes] = []
        for text, (kind_of, i) in zip(fixed, slots, strict=True):
            parts.append(text)
            parts.append(shown[kind_of][i])
        yield b"".join((*parts, rest))
        turn += 1


def _decimal(value: int, digits: int) -> bytes:
    if not digits:
        return b"%d" % value
    return b"%d.%03d" % divmod(value, 1000)


def build(source: Path, megabytes: float, out: Path) -> int:
    """Write a trace of about that many decompressed megabytes; returns its exact size."""
    with igzip.open(source) as stream:  # type: ignore[no-untyped-call]
        head, body, tail = _split(stream.read())
    target = int(megabytes * 1e6)
    size = 0

    def put(stream: BinaryIO, data: bytes) -> None:
        nonlocal size
        size += len(data)
        stream.write(data)

    is_packed = out.suffix == ".gz"
    packed: Callable[..., BinaryIO] = igzip.open
    with packed(out, "wb", compresslevel=1) if is_packed else out.open("wb") as stream:
        put(stream, head)
        put(stream, body)
        # Names of processes and threads, and marks of the window, stand once in a file.
        later = repetitions(_METADATA.sub(b"", body).rstrip().rstrip(b","))
        next(later)
        for text in later:
            put(stream, b",")
            put(stream, text)
            if size >= target:
                break
        put(stream, tail)
    return size


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    build(given.source, given.megabytes, given.out)


if __name__ == "__main__":
    main()
