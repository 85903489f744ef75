"""Tables that are CSV but for their shape, read as if they were.

The first two columns may be a date and a time of day; and blanks may part the columns, as
``column -t`` and data frames print them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from msgspec.structs import replace

from tracekit.ingest import files, streams
from tracekit.ingest.counters import times
from tracekit.ingest.counters.table import SINCE_WORDS, TIME_WORDS, bare_name

if TYPE_CHECKING:
    from tracekit.ingest.base import SourceFile

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
"""Without an end of a line for so long it is no table: it is passed on as it is."""
HEAD_BYTES = 16384
MIN_COLUMNS = 3
"""Of a table parted by blanks: of two words many a line consists."""

Rewrite = Callable[[bytes], bytes]
"""From whole lines to the same as CSV, a line each."""

_DATE_AND_TIME = re.compile(
    rb'(?:\xef\xbb\xbf)?"?date"?[,;\t] ?"?time(?: ?\(\w{1,5}\))?"?[,;\t]', re.I
)
_CELLS = re.compile(
    rb'(?m)^((?:\xef\xbb\xbf)?)"?([^",;\t\r\n]{4,14})"?[,;\t] ?"?([^",;\t\r\n]{4,20})"?(?=[,;\t])'
)
_TIMES = {*TIME_WORDS, *SINCE_WORDS}
_WORD = re.compile(r"#?[A-Za-z_@%][\w.@%/:()\[\]-]{0,80}")
_BLANKS = re.compile(rb"[ ]+")
_AT_ENDS = re.compile(rb"(?m)^(?:\xef\xbb\xbf)?#?[ ]+|^#|[ ]+(?=\r?$)")
_MOMENT = re.compile(rb"(\d{4}[-/]\d\d[-/]\d\d) +(\d\d:\d\d:\d\d)")


def rewrite_of(head: bytes) -> Rewrite | None:
    """How the lines of a table become those of CSV, by its first ones; None: as they stand."""
    if _DATE_AND_TIME.match(head):
        return _as_one
    return _of_blanks(head)


def _as_one(text: bytes) -> bytes:
    """Lines in which the first two cells are one."""
    return _CELLS.sub(rb"\1\2 \3", text)


def _of_blanks(head: bytes) -> Rewrite | None:
    """Of a header of names that are parted by blanks, above a row with a time where it says."""
    texts = head[:HEAD_BYTES].decode("utf-8", "replace").lstrip("\ufeff").splitlines()
    texts = [text for text in texts if text.strip()][:2]
    if len(texts) < 2 or any(mark in text for text in texts for mark in ",;\t|"):
        return None
    names = texts[0].lstrip("# ").split()
    if len(names) < MIN_COLUMNS or not all(_WORD.fullmatch(name) for name in names):
        return None
    bare = [bare_name(name) for name in names]
    at = next((at for at, name in enumerate(bare) if name in _TIMES), None)
    if at is None:
        return None
    cells = texts[1].split()
    if bare[at : at + 2] == ["date", "time"]:
        is_table = len(cells) == len(names) and _is_time(" ".join(cells[at : at + 2]))
        return (lambda text: _as_one(_parted(text))) if is_table and at == 0 else None
    is_since = bare[at] in SINCE_WORDS and times.elapsed(cells[at]) is not None
    if len(cells) == len(names) and (is_since or _is_time(cells[at])):
        return _parted
    if len(cells) == len(names) + 1 and _is_time(" ".join(cells[at : at + 2])):
        return lambda text: _parted(_MOMENT.sub(rb"\1T\2", text))
    return None


def _is_time(text: str) -> bool:
    return times.parse(text) is not None or times.local_ns(text) is not None


def _parted(text: bytes) -> bytes:
    """Lines in which a comma stands for the blanks between two cells."""
    return _BLANKS.sub(b",", _AT_ENDS.sub(b"", text))


def as_csv(head: bytes) -> bytes:
    """The beginning of a table as CSV; itself where it is one, or none."""
    rewrite = rewrite_of(head)
    return rewrite(head) if rewrite is not None else head


def opened_as_csv(source: SourceFile) -> SourceFile:
    """The source whose stream is CSV; itself where that is so already."""
    rewrite = rewrite_of(files.read_head(source, HEAD_BYTES))
    if rewrite is None:
        return source
    return replace(source, open=partial(_opened, source, rewrite))


def _opened(source: SourceFile, rewrite: Rewrite) -> BinaryIO:
    return _Stream(_Rewritten(source.open(), rewrite), BLOCK_BYTES)


class _Stream(io.BufferedReader):
    @property
    def problem(self) -> str | None:
        """What ended the stored bytes early."""
        return streams.stream_problem(getattr(self.raw, "stream", None))


class _Rewritten(io.RawIOBase):
    def __init__(self, stream: BinaryIO, rewrite: Rewrite) -> None:
        super().__init__()
        self.stream = stream
        self._rewrite = rewrite
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
            self._ready, self._rest = self._rewrite(whole + newline), rest
            if not block:
                break
        given = self._ready[: len(view)]
        view[: len(given)] = given
        self._ready = self._ready[len(given) :]
        return len(given)
