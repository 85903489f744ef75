"""The base time of a trace, which may stand behind its events, and is added to all their times."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import BinaryIO

import pyarrow as pa

from tracekit import arrays, schema
from tracekit.ingest import streams
from tracekit.ingest.base import Severity, Sink, SourceFile
from tracekit.ingest.kineto import header, sniff, times
from tracekit.ingest.kineto.stream import TraceStream

SCAN_BYTES = 2 << 20
"""Decompressed bytes that are searched for a key at a time."""
HELD_BYTES = 64 << 20
"""Text whose rows may wait for the base time (10 MB)."""
ASK_BYTES = 4 << 20
"""Text after which it is asked how long the file may be."""
SURE_NS = times.TIME_LIMIT_NS // 4
"""Times up to here are believed whatever a base time below three times as much adds to them."""


class BaseFoundLateError(Exception):
    """A base time under which what was decided without it may be wrong: read again with it."""

    def __init__(self, base_ns: int) -> None:
        super().__init__()
        self.base_ns = base_ns


class BasedSink:
    """Finds the base time of a trace, and adds it to all times on their way to a sink.

    While it is not known, what is written waits.
    """

    def __init__(self, sink: Sink, source: SourceFile, known_base_ns: int | None = None) -> None:
        self._sink = sink
        self._source = source
        self._known_base_ns = known_base_ns
        self._waiting: list[Callable[[], None]] | None = None
        """What was written while the base time is still to be found behind the events."""
        self._late: Future[int | None] | None = None
        """The base time where a thread looks for it."""
        self._held_bytes = 0
        self.base_ns = 0
        """What is added to all times; 0 while it is looked for."""

    @property
    def is_waiting(self) -> bool:
        """Whether the base time is still to be found behind the events."""
        return self._waiting is not None

    def find(self, stream: TraceStream) -> None:
        """baseTimeNanoseconds: before the events, or after them in files before March 2025."""
        base = header.find_base(stream.header)
        if self._known_base_ns is not None:
            base = self._known_base_ns
        elif base is None and not stream.is_bare and sniff.looks_relative(stream.peek()):
            self._waiting = []
            return
        self.base_ns = base or 0

    def wait_for(self, raw: BinaryIO, text_bytes: int) -> None:
        """One batch more whose rows wait for the base time.

        A file whose rows can wait to its end is not read twice. The end of a longer one is looked
        for by a thread meanwhile.
        """
        self._held_bytes += text_bytes
        if self._late is None and self._held_bytes > min(ASK_BYTES, HELD_BYTES):
            expansion = streams.expansion(raw)
            if expansion is None or expansion * self._source.file_bytes > HELD_BYTES:
                self._look_for_base()
            elif self._held_bytes > HELD_BYTES:
                self.find_now()
        if self._late is not None and (self._late.done() or self._held_bytes > HELD_BYTES):
            self.find_now()

    def _look_for_base(self) -> Future[int | None]:
        """Begin a second look through the file, mostly decompression, in a thread."""
        if self._late is None:
            pool = ThreadPoolExecutor(1, "base-time")
            self._late = pool.submit(self._scan)
            pool.shutdown(wait=False)
        return self._late

    def find_now(self, tail: bytes = b"") -> None:
        """Find the base time, or wait for it, then add it to what waited; ``tail``: the file's end.

        BaseFoundLateError where it is so large that what was decided without it may be wrong.
        """
        if self._waiting is None:
            return
        base_ns = header.last_base(tail) or self._look_for_base().result() or 0
        waiting, self._waiting, self._late = self._waiting, None, None
        if abs(base_ns) > 3 * SURE_NS:
            raise BaseFoundLateError(base_ns)
        self.base_ns = base_ns
        for passing in waiting:
            passing()

    def _scan(self) -> int | None:
        """Look through the file for the key; only where times look relative and none came yet."""
        key = b'"baseTimeNanoseconds"'
        slices = [bytearray(SCAN_BYTES), bytearray(SCAN_BYTES)]
        ends = [0, 0]
        with self._source.open() as raw:
            streams.seek_near_end(raw, 2 * SCAN_BYTES)
            while got := raw.readinto(slices[0]):  # type: ignore[attr-defined]
                ends[0] = got
                slices.reverse()
                ends.reverse()
        before, last = (bytes(s[:end]) for s, end in zip(slices, ends, strict=True))
        base_ns = header.last_base(before + last)
        if base_ns is not None:
            return base_ns
        # It stands behind the events, so it was there, or nowhere: all files but odd ones end here.
        rest = b""
        with self._source.open() as raw:
            while got := raw.readinto(slices[0]):  # type: ignore[attr-defined]
                text = rest + slices[0][:got]
                if key in text:
                    base_ns = header.last_base(text) or base_ns
                rest = text[-128:]
        return base_ns

    def write(self, table: str, rows: pa.Table) -> None:
        """See ``Sink.write``."""
        if self._waiting is not None:
            self._waiting.append(partial(self._write, table, rows))
        else:
            self._write(table, rows)

    def _write(self, table: str, rows: pa.Table) -> None:
        if self.base_ns:
            for name in _times_of(table):
                at = rows.schema.get_field_index(name)
                if at >= 0:
                    rows = rows.set_column(at, name, arrays.plus(rows.column(at), self.base_ns))
        self._sink.write(table, rows)

    def count(
        self,
        counter: str,
        n: int = 1,
        *,
        severity: Severity = "warning",
        doc: str,
        place: int | None = None,
        shape: str | None = None,
    ) -> None:
        """See ``Sink.count``."""
        told = partial(
            self._sink.count, counter, n, severity=severity, doc=doc, place=place, shape=shape
        )
        if self._waiting is not None:
            self._waiting.append(told)
        else:
            told()

    def fact(self, **columns: object) -> None:
        """See ``Sink.fact``; times among them have the base time already."""
        self._sink.fact(**columns)


@cache
def _times_of(name: str) -> tuple[str, ...]:
    return tuple(c.name for c in schema.table(name).stored_columns if c.is_time)
