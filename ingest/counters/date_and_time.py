"""Tables whose first two columns are a date and a time of day, read as if they were one column."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from tracekit.ingest import files, streams

if TYPE_CHECKING:
    from tracekit.ingest.base import SourceFile

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
"""Without an end of a line for so long it is no table: it is passed on as it is."""

_HEADER = re.compile(rb'(?:\xef\xbb\xbf)?"?date"?[,;\t] ?"?time(?: ?\(\w{1,5}\))?"?[,;\t]', re.I)
_CELLS = re.compile(
    rb'(?m)^((?:\xef\xbb\xbf)?)"?([^",;\t\r\n]{4,14})"?[,;\t] ?"?([^",;\t\r\n]{4,20})"?(?=[,;\t])'
)


def has_both(head: bytes) -> bool:
    """Whether a table's header begins with a date and a time."""
    return _HEADER.match(head) is not None


def as_one(text: bytes) -> bytes:
    """Whole lines, in which the first two cells are one."""
    return _CELLS.sub(rb"\1\2 \3", text)


def joined(source: SourceFile) -> SourceFile:
    """The source whose stream has date and time in one column; itself where that is so already."""
    if not has_both(files.read_head(source, 256)):
        return source
    return replace(source, open=partial(_opened, source))


def _opened(source: SourceFile) -> BinaryIO:
    return _Stream(_Joined(source.open()), BLOCK_BYTES)


class _Stream(io.BufferedReader):
    @property
    def problem(self) -> str | None:
        """What ended the stored bytes early."""
        return streams.stream_problem(getattr(self.raw, "stream", None))


class _Joined(io.RawIOBase):
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.stream = stream
        self._rest = b""
        self._ready = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.stream.close()
        super().close()

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while not self._ready:
            block = self.stream.read(BLOCK_BYTES)
            whole, newline, rest = (self._rest + block).rpartition(b"\n")
            if not block or len(rest) > MAX_LINE_BYTES:
                whole, newline, rest = self._rest + block, b"", b""
            self._ready, self._rest = as_one(whole + newline), rest
            if not block:
                break
        given = self._ready[: len(view)]
        view[: len(given)] = given
        self._ready = self._ready[len(given) :]
        return len(given)
