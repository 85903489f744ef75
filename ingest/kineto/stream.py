"""The trace as a stream: what is before ``traceEvents``, batches of events, what is after.

A batch ends at a probable boundary between two events (``}, {``). That it is one is proved by
decoding: the decoder starts at a true event, so a boundary inside a string or a nested list
always leaves something open and is refused. Then the next candidate is tried; a fixed number of
them, so that work stays linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

CHUNK_BYTES = 4 << 20
"""Decompressed bytes of a batch."""
HEADER_LIMIT_BYTES = 64 << 20
"""Bytes that are searched for ``traceEvents`` before the file is given up."""
TAIL_LIMIT_BYTES = 16 << 20
"""Bytes after the events that are kept to be parsed."""
EVENT_LIMIT_BYTES = 32 << 20
"""Longest event; what is longer is skipped as damage."""
CANDIDATES = 6
"""Boundaries that are tried before a batch counts as damaged."""

EVENTS_KEY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
EVENT_BOUNDARY = re.compile(
    rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|ts|pid|tid|dur|args|id|bp|s|tts|cname|sf)"?\s*:)'
)
_END = re.compile(rb"\}\s*,?\s*\]")
_KNOWN_END = re.compile(
    rb'\}\s*,?\s*\](?=\s*(?:\}\s*\Z|,\s*"(?:traceName|displayTimeUnit|baseTimeNanoseconds|INFO'
    rb"|WARNING|ERROR|distributedInfo|deviceProperties|schemaVersion|trace_id|host_name"
    rb'|record_shapes|profile_memory|with_\w+|\w+_version|otherData|metadata)"))'
)
_BOM = b"\xef\xbb\xbf"

Decode = Callable[[bytes], bool]
"""Takes a batch of events; False if it is not JSON (and then it has taken nothing)."""
Salvage = Callable[[bytes, bool], None]
"""Takes damaged text; the flag says that it is the end of a file that breaks off."""


class TraceStream:
    """Cuts one file into header, batches and tail."""

    def __init__(self, raw: BinaryIO, decode: Decode, salvage: Salvage, chunk_bytes: int) -> None:
        self._raw = raw
        self._decode = decode
        self._salvage = salvage
        self._chunk = chunk_bytes
        self._buffer = b""
        self._at_eof = False
        self.raw_bytes = 0
        self.header = b""
        self.tail = b""
        self.has_events = False
        self.is_bare = False
        self.is_closed = False
        """Whether the array of events ends as it should."""

    def _fill(self) -> None:
        data = self._raw.read(self._chunk)
        if not data:
            self._at_eof = True
            return
        self.raw_bytes += len(data)
        self._buffer = self._buffer + data if self._buffer else data

    def read_header(self) -> bool:
        """Read to the first event; False if there is no array of events."""
        searched = 0
        while True:
            self._fill()
            buffer = self._buffer
            if buffer.startswith(_BOM):
                buffer = self._buffer = buffer[3:]
            bare = buffer.lstrip()[:1]
            if bare == b"[":
                start = buffer.index(b"[") + 1
                self.is_bare = True
            else:
                found = EVENTS_KEY.search(buffer, max(0, searched - 64))
                searched = len(buffer)
                start = found.end() if found else 0
            if start:
                self.header = buffer[:start]
                self._buffer = buffer[start:]
                self.has_events = True
                return True
            if self._at_eof or len(buffer) > HEADER_LIMIT_BYTES:
                self.header = buffer
                return False

    def peek(self, size: int = 1 << 16) -> bytes:
        """The first bytes of the events, once the header was read."""
        return self._buffer[:size]

    def run(self) -> None:
        """Hand all batches to ``decode`` and what it refuses to ``salvage``; then keep the tail."""
        first = True
        while not self.is_closed:
            if not first or not self._buffer:
                self._fill()
            first = False
            if self._is_empty_end():
                break
            if self._at_eof:
                self._finish()
                break
            if self._cut_batch() or self._cut_end():
                continue
            self._cut_damaged()
        self._read_tail()

    def _is_empty_end(self) -> bool:
        start = self._buffer[:4096].lstrip().lstrip(b",").lstrip()
        if not start.startswith(b"]"):
            return False
        self.is_closed = True
        self._buffer = self._buffer[self._buffer.index(b"]") + 1 :]
        return True

    def _cut_batch(self) -> bool:
        for cut in self._boundaries(_BOUNDARY, CANDIDATES):
            if self._decode(self._buffer[: cut[0] + 1]):
                self._buffer = self._buffer[cut[1] :]
                return True
        return False

    def _boundaries(self, pattern: re.Pattern[bytes], limit: int) -> Iterator[tuple[int, int]]:
        """Start and end of matches, last first; looked for in growing windows at the end."""
        end = len(self._buffer)
        width = 1 << 14
        given = 0
        top = end
        while top > 0 and given < limit:
            low = max(0, end - width)
            spans = [m.span() for m in pattern.finditer(self._buffer, low) if m.start() < top]
            for span in reversed(spans):
                yield span
                given += 1
                if given >= limit:
                    return
            top = spans[0][0] if spans else low
            if low == 0:
                return
            width *= 8

    def _cut_end(self) -> bool:
        """Find the end of the array in the buffer, if it is there."""
        known = [m.span() for m in _KNOWN_END.finditer(self._buffer)][-CANDIDATES:]
        other = list(self._boundaries(_END, CANDIDATES))
        for start, end in [*reversed(known), *other]:
            if self._decode(self._buffer[: start + 1]):
                self._buffer = self._buffer[end:]
                self.is_closed = True
                return True
        return False

    def _cut_damaged(self) -> None:
        """No boundary holds: read on if there may be none yet, else salvage what is here."""
        last = next(self._boundaries(EVENT_BOUNDARY, 1), None)
        known = [m.span() for m in _KNOWN_END.finditer(self._buffer)]
        if known and (last is None or last[0] < known[-1][0]):
            start, end = known[-1]
            self._salvage(self._buffer[: start + 1], False)
            self._buffer = self._buffer[end:]
            self.is_closed = True
        elif last is not None:
            self._salvage(self._buffer[: last[0] + 1], False)
            self._buffer = self._buffer[last[1] :]
        elif len(self._buffer) > EVENT_LIMIT_BYTES:
            self._salvage(self._buffer, False)
            self._buffer = b""

    def _finish(self) -> None:
        """The file is at its end: the array closes in the buffer, or it breaks off."""
        if self._cut_end():
            return
        known = [m.span() for m in _KNOWN_END.finditer(self._buffer)]
        if known:
            start, end = known[-1]
            self._salvage(self._buffer[: start + 1], False)
            self._buffer = self._buffer[end:]
            self.is_closed = True
            return
        rest = self._buffer
        self._buffer = b""
        if self.is_bare and rest.rstrip().endswith(b"]"):
            self.is_closed = True
            rest = rest.rstrip()[:-1]
        if not rest.strip(b" \t\r\n,"):
            return
        cut = len(rest.rstrip(b" \t\r\n,"))
        if not self._decode(rest[:cut]):
            self._salvage(rest, not self.is_closed)

    def _read_tail(self) -> None:
        tail = self._buffer
        self._buffer = b""
        while not self._at_eof:
            self._fill()
            if len(tail) < TAIL_LIMIT_BYTES:
                tail += self._buffer
            self._buffer = b""
        self.tail = tail
