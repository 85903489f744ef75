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

CHUNK_BYTES = 1 << 18
"""Decompressed bytes of a batch: more is slower, because its objects leave the cache."""
HEADER_LIMIT_BYTES = 64 << 20
"""Bytes that are searched for ``traceEvents`` before the file is given up."""
TAIL_LIMIT_BYTES = 16 << 20
"""Bytes after the events that are kept to be parsed."""
EVENT_LIMIT_BYTES = 32 << 20
"""Longest event; what is longer is skipped as damage."""
DAMAGE_BYTES = 1 << 16
"""Below this a buffer in which no boundary holds may just hold the beginning of an event."""
CANDIDATES = 6
"""Boundaries that are tried before a batch counts as damaged."""
LONG_CHUNKS = 4
"""Chunks that are offered at once to whom short batches cost more than they save."""
LONG_REFUSALS = 8
"""Long batches that are refused, beyond those that are taken, before none is offered any more."""

# Blanks are taken possessively: a file may hold megabytes of them, and none are given back.
EVENTS_KEY = re.compile(rb'(?<!\\)"traceEvents"\s*+:\s*+\[')
_BOUNDARY = re.compile(rb"\}\s*+,\s*+(?=\{)")
EVENT_BOUNDARY = re.compile(
    rb'\}\s*+,\s*+(?=\{\s*+"(?:ph|name|cat|ts|pid|tid|dur|args|id|bp|s|tts|cname|sf)"?+\s*+:)'
)
_SURE_BOUNDARY = re.compile(rb'\}\s*+,\s*+(?=\{\s*+"ph"\s*+:\s*+"[A-Za-z]"\s*+,)')
_END = re.compile(rb"\}\s*+(?:,\s*+)?+\]")
_KNOWN_END = re.compile(
    rb'\}\s*+(?:,\s*+)?+\](?=\s*+(?:\}\s*+\Z|,\s*+"(?:traceName|displayTimeUnit|baseTimeNanoseconds|INFO'
    rb"|WARNING|ERROR|distributedInfo|deviceProperties|schemaVersion|trace_id|host_name"
    rb'|record_shapes|profile_memory|with_\w+|\w+_version|otherData|metadata)"))'
)
_NOT_SPACE = re.compile(rb"\S")
_EMPTY_END = re.compile(rb"[\s,]*\]")
_BOM = b"\xef\xbb\xbf"

Decode = Callable[[memoryview], bool]
"""Takes a batch as a JSON list; False if it is none (and then it has taken nothing).

The memory is used again: nothing may keep a part of it.
"""
DecodeLong = Callable[[memoryview, tuple[int, int]], bool]
"""The same for several chunks, and only if they would be taken chunk by chunk as well.

Given where the first of them ends and how long each is, it refuses where one would not be cut
at the last event that begins in it.
"""
Salvage = Callable[[bytes, bool], None]
"""Takes damaged text; the flag says that it is the end of a file that breaks off."""


class TraceStream:
    """Cuts one file into header, batches and tail.

    Decompressed bytes go straight into one buffer whose first byte is ``[``; a batch is closed
    by writing ``]`` behind its last event, so that it is decoded where it lies.
    """

    def __init__(
        self,
        raw: BinaryIO,
        decode: Decode,
        salvage: Salvage,
        is_event: Callable[[bytes], bool],
        chunk_bytes: int,
        decode_long: DecodeLong | None = None,
    ) -> None:
        self._raw = raw
        self._decode_long = decode_long
        self._refused = 0
        """Long batches that were refused, beyond those that were taken."""
        self._is_event = is_event
        self._decode = decode
        self._salvage = salvage
        self._chunk = chunk_bytes
        self._buffer = bytearray(b"[" + bytes(2 * chunk_bytes + 1))
        self._end = 1
        """Where the bytes that are looked at and not yet taken end."""
        self._filled = 1
        """Where those end that were read: further where a long batch was refused."""
        self._at_eof = False
        self.raw_bytes = 0
        self.header = b""
        self.tail = b""
        self.has_events = False
        self.is_bare = False
        self.is_closed = False
        """Whether the array of events ends as it should."""

    # --- the buffer ------------------------------------------------------------------------

    def _fill(self, size: int = 0) -> None:
        """Read one chunk more, or ``size`` (whole, but for the last one)."""
        stop = self._end + max(self._chunk, size)
        self._read_to(stop)
        self._end = min(stop, self._filled)
        self._at_eof = self._end < stop

    def _read_to(self, stop: int) -> None:
        """Read up to a place in the buffer, or to the end of the file."""
        if stop + 1 > len(self._buffer):
            grown = bytearray(stop + 1 + len(self._buffer))
            grown[: self._filled] = self._buffer[: self._filled]
            self._buffer = grown
        with memoryview(self._buffer) as view:
            while self._filled < stop:
                got = _read_into(self._raw, view[self._filled : stop])
                if not got:
                    return
                self._filled += got
                self.raw_bytes += got

    def _drop(self, upto: int) -> None:
        """Forget what comes before a place in the buffer."""
        self._buffer[1 : 1 + self._filled - upto] = self._buffer[upto : self._filled]
        self._filled -= upto - 1
        self._end -= upto - 1

    def _text(self, begin: int = 1, end: int | None = None) -> bytes:
        return bytes(self._buffer[begin : self._end if end is None else end])

    def _try(self, stop: int, decode: Decode | None = None) -> bool:
        """Whether the events up to ``stop`` are JSON, and taken."""
        kept = self._buffer[stop]
        self._buffer[stop] = 0x5D
        taken = (decode or self._decode)(memoryview(self._buffer)[: stop + 1])
        self._buffer[stop] = kept
        return taken

    def peek(self, size: int = 1 << 16) -> bytes:
        """The first bytes of the events, once the header was read."""
        return self._text(1, min(self._end, 1 + size))

    # --- header, events, tail --------------------------------------------------------------

    def read_header(self) -> bool:
        """Read to the first event; False if there is no array of events."""
        while True:
            self._fill(self._end)  # twice as much each time: it is searched from its beginning
            if self._buffer.startswith(_BOM, 1):
                self._drop(1 + len(_BOM))
            start = 0
            first = _NOT_SPACE.search(self._buffer, 1, self._end)
            if first and first[0] == b"[":
                start = first.end()
                self.is_bare = True
            else:
                events_key = EVENTS_KEY.search(self._buffer, 1, self._end)
                start = events_key.end() if events_key else 0
            if start:
                self.header = self._text(1, start)
                self._drop(start)
                self.has_events = True
                return True
            if self._at_eof or self._end > HEADER_LIMIT_BYTES:
                self.header = self._text()
                return False

    def run(self) -> None:
        """Hand all batches to ``decode`` and what it refuses to ``salvage``; then keep the tail."""
        first = True
        looked = 0
        while not self.is_closed:
            if not first and not looked and self._cut_long():
                continue
            if not first or self._end == 1:
                # In what was looked through in vain there is nothing, so that it is not looked
                # through again before there is twice as much.
                self._fill(looked)
            first = False
            looked = 0
            if self._is_empty_end():
                break
            if self._at_eof:
                self._finish()
                break
            if self._cut_batch() or self._cut_end() or self._cut_damaged():
                continue
            looked = self._end
        self._read_tail()

    def _is_empty_end(self) -> bool:
        empty_end = _EMPTY_END.match(self._buffer, 1, self._end)
        if not empty_end:
            return False
        self.is_closed = True
        self._drop(empty_end.end())
        return True

    def _cut_batch(self) -> bool:
        tried: list[tuple[int, int]] = []
        for span in self._boundaries(_BOUNDARY, CANDIDATES):
            tried.append(span)
            if self._try(span[0] + 1):
                self._drop(span[1])
                return True
        if len(tried) < CANDIDATES:
            return False
        # The buffer ends inside a long nested list, or something before is damaged: go back
        # twice as far each time, so that all whole events before it are taken.
        spans = [m.span() for m in _BOUNDARY.finditer(self._buffer, 1, tried[-1][0])]
        back = 1
        while back <= len(spans):
            start, end = spans[-back]
            if self._try(start + 1):
                self._drop(end)
                return True
            back *= 2
        return False

    def _cut_long(self) -> bool:
        """Take several chunks at once, up to where the last of them alone would be cut.

        A file is so cut at the same places as by a reader of short batches, and what is damaged is
        found as that one finds it: a long batch that is refused is gone through again, chunk by
        chunk.
        """
        if self._decode_long is None or self._refused >= LONG_REFUSALS or self._end < self._filled:
            return False
        end = self._end
        stop = end + LONG_CHUNKS * self._chunk
        self._read_to(stop)
        if self._filled < stop:
            return False
        self._end = stop
        decode_long, cuts = self._decode_long, (end + self._chunk, self._chunk)
        start, following = next(self._boundaries(_BOUNDARY, 1), (0, 0))
        if start >= stop - self._chunk and self._try(start + 1, lambda d: decode_long(d, cuts)):
            self._drop(following)
            self._refused = max(self._refused - 1, 0)
            return True
        self._end = end
        self._refused += 1
        return False

    def _boundaries(self, pattern: re.Pattern[bytes], limit: int) -> Iterator[tuple[int, int]]:
        """Start and end of matches, last first; looked for in growing windows at the end."""
        top = self._end
        width = 1 << 12
        given = 0
        while True:
            low = max(1, self._end - width)
            matches = pattern.finditer(self._buffer, low, self._end)
            spans = [m.span() for m in matches if m.start() < top]
            for span in reversed(spans):
                yield span
                given += 1
                if given >= limit:
                    return
            if low == 1:
                return
            top = spans[0][0] if spans else low
            width *= 8

    def _known_end(self) -> tuple[int, int] | None:
        """The last place that looks like the end of the array: by what follows and precedes it."""
        spans = [m.span() for m in _KNOWN_END.finditer(self._buffer, 1, self._end)]
        for start, end in reversed(spans[-CANDIDATES:]):
            before = [m.end() for m in EVENT_BOUNDARY.finditer(self._buffer, 1, start)]
            if self._is_event(self._text(before[-1] if before else 1, start + 1)):
                return start, end
        return None

    def _cut_end(self) -> bool:
        """Find the end of the array in the buffer, if it is there."""
        for start, end in self._boundaries(_END, CANDIDATES):
            if self._try(start + 1):
                self._drop(end)
                self.is_closed = True
                return True
        return False

    def _cut_damaged(self) -> bool:
        """No boundary holds: salvage what is here, or read on (False) if there may be none yet."""
        if self._end < DAMAGE_BYTES:
            return False
        last = next(self._boundaries(_SURE_BOUNDARY, 1), None)
        last = last or next(self._boundaries(EVENT_BOUNDARY, 1), None)
        known = self._known_end()
        if known and (last is None or last[0] < known[0]):
            self._salvage(self._text(1, known[0] + 1), False)
            self._drop(known[1])
            self.is_closed = True
        elif last is not None:
            self._salvage(self._text(1, last[0] + 1), False)
            self._drop(last[1])
        elif self._end > EVENT_LIMIT_BYTES:
            self._salvage(self._text(), False)
            self._drop(self._end)
        else:
            return False
        return True

    def _finish(self) -> None:
        """The file is at its end: the array closes in the buffer, or it breaks off."""
        if self._cut_end():
            return
        known = self._known_end()
        if known:
            self._salvage(self._text(1, known[0] + 1), False)
            self._drop(known[1])
            self.is_closed = True
            return
        rest = self._text().rstrip()
        if self.is_bare and rest.endswith(b"]"):
            self.is_closed = True
            rest = rest[:-1]
        rest = rest.rstrip(b" \t\r\n,")
        if rest and not self._try(1 + len(rest)):
            self._end = self._filled = 1 + len(rest)
            self._cut_batch()
            self._salvage(self._text(), not self.is_closed)
        self._drop(self._end)

    def _read_tail(self) -> None:
        tail = self._text()
        self._drop(self._end)
        while not self._at_eof:
            self._fill()
            if len(tail) < TAIL_LIMIT_BYTES:
                tail += self._text()
            self._drop(self._end)
        self.tail = tail


def _read_into(raw: BinaryIO, view: memoryview) -> int:
    into = getattr(raw, "readinto", None)
    if into is not None:
        return into(view) or 0
    data = raw.read(len(view))
    view[: len(data)] = data
    return len(data)
