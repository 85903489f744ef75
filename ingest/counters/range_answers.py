"""The series of Prometheus' HTTP answers, read as a stream: a day of 64 GPUs is gigabytes of JSON.

A series is ``{"metric": {labels}, "values": [[seconds, "number"], ...]}``. Labels are decoded as
JSON; the pairs, nearly all of the file, are checked against their shape and read as a table, a few
megabytes at a time, so that memory does not grow with the answer. Pairs that do not have that shape
are decoded one by one, and the bad ones counted.

VictoriaMetrics exports a series a line, with numbers and times (in ms) in lists of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from tracekit.ingest.lines import raw_lines

if TYPE_CHECKING:
    import polars as pl

READ_BYTES = 4 << 20
MAX_LABELS_BYTES = 1 << 18
"""Longest labels of a series that are found."""
MAX_LINE_BYTES = 64 << 20
"""Longest series of an export."""
MAX_PAIR_BYTES = 16 << 20
"""Text in which no pair ends, from which on it is none: it would all be held."""

_SERIES = re.compile(
    rb'"metric"\s*+:\s*+(\{(?:[^{}"\\]|"(?:[^"\\]|\\.)*+")*+\})'
    rb'(?:\s*+,\s*+"(values?)"\s*+:\s*+\[)?',
    re.DOTALL,
)
_PAIRS = re.compile(
    rb'(?:\s*+\[\s*+[-+0-9.eE]++\s*+,\s*+(?:"[-+0-9.eEaAiInNfFtTyY]*+"|[-+0-9.eE]++)\s*+\]\s*+,?)++\s*+'
)
_END = re.compile(rb"\]\s*+\]")
_NOT_DIGITS = b'["\t\r\n '


class Part(Struct, frozen=True):
    """Some pairs of one series, in order."""

    place: int
    """Ordinal of the series in the answer, from 1."""
    labels: dict[str, str] | None
    """None where they are no labels, or no samples stand behind them."""
    pairs: pl.DataFrame
    """``seconds`` (Float64) and ``number`` (String, as printed)."""
    bad_count: int
    """Pairs that are none."""


class Answer:
    """Reads one answer. ``parts`` goes through it once; the rest is known afterwards."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._buffer = b""
        self._is_at_end = False
        self.series_count = 0
        self.is_cut = False
        """Whether it ends in the middle of a series."""

    def _more(self) -> bool:
        """Read on; False at the end."""
        block = b"" if self._is_at_end else self._stream.read(READ_BYTES)
        self._is_at_end = not block
        self._buffer += block
        return not self._is_at_end

    def parts(self) -> Iterator[Part]:
        """The series, each in one or more parts of a few megabytes; an empty one in one."""
        while True:
            series = _SERIES.search(self._buffer)
            is_near_end = series is not None and len(self._buffer) - series.end() < 256
            if series is not None and series[2] is None and is_near_end and self._more():
                continue  # its samples may stand behind what is here
            if series is None:
                # The labels may have begun at the end of what is here.
                self._buffer = self._buffer[-MAX_LABELS_BYTES:]
                if self._more():
                    continue
                self.is_cut |= self._buffer.rstrip()[-1:] not in (b"}", b"]", b"")
                return
            self.series_count += 1
            labels = _labels(series[1])
            self._buffer = self._buffer[series.end() :]
            if series[2] is None:  # no samples, or not behind their labels
                yield Part(self.series_count, None, *table(b""))
            elif series[2] == b"value":
                yield self._single(labels)
            else:
                yield from self._many(labels)

    def _single(self, labels: dict[str, str] | None) -> Part:
        end = self._buffer.find(b"]")
        while end < 0 and len(self._buffer) < MAX_LABELS_BYTES and self._more():
            end = self._buffer.find(b"]")
        self.is_cut |= end < 0
        block, self._buffer = self._buffer[: end + 1], self._buffer[end + 1 :]
        return Part(self.series_count, labels, *table(b"[" + block))

    def _many(self, labels: dict[str, str] | None) -> Iterator[Part]:
        given = 0
        while True:
            self._buffer = self._buffer.lstrip(b" \t\r\n,")
            if self._buffer[:1] == b"]":
                break
            if self._buffer and self._buffer[:1] != b"[":
                yield Part(self.series_count, labels, *table(b"", bad_count=1))
                return  # no list of pairs: look for the next series
            end_mark = _END.search(self._buffer)
            end = end_mark.start() + 1 if end_mark else self._buffer.rfind(b"]") + 1
            if end <= 0 and len(self._buffer) >= MAX_PAIR_BYTES:
                yield Part(self.series_count, labels, *table(b"", bad_count=1))
                return
            if end <= 0 or (end_mark is None and len(self._buffer) < READ_BYTES):
                if self._more():
                    continue
                if end <= 0:
                    break
            block, self._buffer = self._buffer[:end], self._buffer[end:]
            part = Part(self.series_count, labels, *table(block))
            given += 1
            yield part
            if end_mark is not None:
                return
        if self._buffer[:1] != b"]":
            self.is_cut = True
        if not given:
            yield Part(self.series_count, labels, *table(b""))


_EXPORT = re.compile(rb'"values"\s*+:\s*+\[\s*+(?:-?\d|"|null)')


def is_export(head: bytes) -> bool:
    """Whether it is an export of VictoriaMetrics: values and their times as two lists."""
    return _EXPORT.search(head) is not None


class Export:
    """Reads ``/api/v1/export``, a series a line; as ``Answer``."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.series_count = 0
        self.is_cut = False

    def parts(self) -> Iterator[Part]:
        """The series, each in one part."""
        import polars as pl

        schema = {"seconds": pl.Float64, "number": pl.String}
        for line in raw_lines(self._stream, MAX_LINE_BYTES):
            if not line.strip():
                continue
            self.series_count += 1
            decoded = _decoded(line)
            said = decoded if isinstance(decoded, dict) else {}
            metric, values, stamps = (said.get(n) for n in ("metric", "values", "timestamps"))
            if (
                not isinstance(metric, dict)
                or not isinstance(values, list)
                or not isinstance(stamps, list)
                or len(values) != len(stamps)
            ):
                self.is_cut = decoded is None and not line.endswith(b"\n")
                yield Part(self.series_count, None, *table(b""))
                continue
            rows = [
                (t / 1000, str(v)) for t, v in zip(stamps, values, strict=True)
                if type(t) in (int, float) and v is not None and type(v) in (int, float, str)
            ]  # fmt: skip
            none_count = sum(v is None for v in values)
            frame = pl.DataFrame(rows, schema=schema, orient="row")
            labels = {str(k): str(v) for k, v in metric.items()}
            yield Part(self.series_count, labels, frame, len(values) - none_count - len(rows))


def _labels(text: bytes) -> dict[str, str] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, ValueError):
        return None


def table(block: bytes, bad_count: int = 0) -> tuple[pl.DataFrame, int]:
    """Pairs ``[1784602867.5,"0.87"],...`` as a table, and how many are none."""
    import polars as pl

    schema = {"seconds": pl.Float64, "number": pl.String}
    if not block.strip():
        return pl.DataFrame(schema=schema), bad_count
    if _PAIRS.fullmatch(block):
        text = block.translate(None, _NOT_DIGITS).replace(b"],", b"\n").rstrip(b"]")
        try:
            frame = pl.read_csv(text + b"\n", has_header=False, schema=schema)
        except pl.exceptions.PolarsError:
            frame = None
        if frame is not None and frame.height == block.count(b"["):
            return frame, bad_count
    good = list(_pairs(block))
    rows = [g for g in good if g is not None]
    return pl.DataFrame(rows, schema=schema, orient="row"), bad_count + len(good) - len(rows)


def _pairs(block: bytes) -> Iterator[tuple[float, str] | None]:
    """Each pair by itself; None for one that is none."""
    text = block.rstrip(b" \t\r\n,")
    try:
        listed: Any = msgspec.json.decode(b"[" + text + b"]")
    except (msgspec.DecodeError, RecursionError, ValueError):
        listed = [_decoded(p + b"]") for p in text.lstrip(b",").split(b"]") if p.strip(b" ,\r\n\t")]
    for pair in listed:
        if isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (int, float):
            seconds, number = pair
            if isinstance(number, str | int | float) and not isinstance(number, bool):
                yield float(seconds), str(number)
                continue
        yield None


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text.lstrip(b" \t\r\n,"))
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
