"""TensorBoard's event files: the times and steps of scalars, read without its package.

A file is a row of records: length (8 bytes), checksum of the length (4), that many bytes, their
checksum (4), all little endian. The bytes are a protocol buffer ``Event``: field 1 the time in
seconds since the epoch, 2 the step, 5 a summary, whose values (field 1) hold a tag (1), and a
number as ``simple_value`` (2) or in a tensor (8). Names and numbers of the fields are those of
tensorflow/core/util/event.proto and framework/summary.proto. Other fields are skipped unread;
nothing is loaded or run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from tracekit.errors import InputError
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.streams import stream_problem
from tracekit.ingest.trackers.names import Meaning, meaning
from tracekit.ingest.trackers.steps import MAX_STEP, Steps

NAME = "tensorboard"
MAX_RECORD_BYTES = 256 << 20
"""Longest record: graphs and pictures are large, scalars have some 60 bytes."""
MAX_TAGS = 2000
MAX_POINTS = 10_000_000
"""Values of all tags that are kept."""
_ROLES = ("loss", "learning_rate", "grad_norm", "dur", "samples", "tokens", "mfu")
"""Tags by which steps are known, the first first."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by its first record, which names the format's version."""
    del name
    if b"brain.Event:" not in head[12:64] or not _is_length(head[:12]):
        return None
    return Recognition(NAME, "a TensorBoard event file", NAME)


class _Point(NamedTuple):
    step: int
    seconds: float
    value: float


def read(source: SourceFile, sink: Sink) -> None:
    """Write the steps of the scalars; a step's time is that of its first one."""
    tags: dict[str, list[_Point]] = {}
    records = points = 0
    with source.open() as stream:
        records_ = _Records(stream)
        for record in records_:
            records += 1
            for tag, point in _scalars(record):
                kept = tags.get(tag)
                if kept is None:
                    if len(tags) >= MAX_TAGS:
                        continue
                    kept = tags[tag] = []
                if points < MAX_POINTS:
                    kept.append(point)
                    points += 1
        problem = stream_problem(stream) or records_.problem
    if points == MAX_POINTS:
        sink.count(
            "values_beyond_limit", severity="error", place=records,
            doc="More values than are kept: those after this record are missing.",
        )  # fmt: skip
    steps = Steps(sink, NAME)
    told = {tag: known for tag in tags if (known := meaning(tag)) and known.role in _ROLES}
    best = _best(tags, told)
    if best is not None:
        more = {tag: {p.step: p.value for p in tags[tag]} for tag in told if tag != best}
        for place, point in enumerate(tags[best], 1):
            values = {"global_step": point.step, "wall_time": point.seconds}
            if best in told:
                values[best] = point.value
            values |= {tag: of[point.step] for tag, of in more.items() if point.step in of}
            steps.add(place, values)
    steps.finish("record")
    if problem:
        sink.count(
            "record_damaged", severity="error", place=records,
            doc="The file breaks off or is damaged: records after this one are missing.",
        )  # fmt: skip
        sink.fact(status="partial", reason=problem)
    if not records:
        raise InputError("no whole record stands in it")


def _best(tags: dict[str, list[_Point]], told: dict[str, Meaning]) -> str | None:
    """The tag whose points are the training's steps; None where there is none.

    By what tags are; where none is known by name, the one with the most points, but those of
    epochs, evaluations and of another axis (samples) are none.
    """
    if told:
        return min(
            told, key=lambda t: (_ROLES.index(told[t].role), told[t].order, -len(tags[t]), t)
        )
    words = ("epoch", "eval", "val", "test", "samples")
    others = [t for t in tags if not any(word in t.lower() for word in words)]
    return max(others, key=lambda t: (len(tags[t]), t), default=None)


class _Records:
    """The bytes of each whole record, in order; ``problem`` says why they end early."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.problem: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        while True:
            head = self._stream.read(12)
            if not head:
                return
            if len(head) < 12:
                self.problem = "it breaks off within a record"  # a job that still writes
                return
            if not _is_length(head):
                self.problem = "the checksum of a record's length is wrong"
                return
            (length,) = struct.unpack("<Q", head[:8])
            if length > MAX_RECORD_BYTES:
                self.problem = "a record of more than 256 MiB"
                return
            data = self._stream.read(length + 4)
            if len(data) < length + 4:
                self.problem = "it breaks off within a record"
                return
            yield data[:-4]


def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in table]
    return table


_CRC = _table()


def _is_length(head: bytes) -> bool:
    """Whether eight bytes have the masked CRC-32C that follows them (RFC 3720; TFRecord's mask)."""
    crc = 0xFFFFFFFF
    for byte in head[:8]:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return len(head) >= 12 and head[8:12] == masked.to_bytes(4, "little")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message; ends where the bytes make no sense.

    Numbers of 32 and 64 bits come as their bytes.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            if at > len(data):
                return
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            return
        if at + size > len(data):
            return
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends; behind the data where it has no end."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    return 0, len(data) + 1


def _scalars(record: bytes) -> Iterator[tuple[str, _Point]]:
    """The scalars of an event."""
    seconds, step, summary = None, 0, None
    for number, value in _fields(record):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            (seconds,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summary = value
    if seconds is None or summary is None or step > MAX_STEP:
        return
    for number, value in _fields(summary):
        if number == 1 and isinstance(value, bytes):
            tag, scalar = _value(value)
            if tag and scalar is not None:
                yield tag, _Point(step, seconds, scalar)


def _value(data: bytes) -> tuple[str, float | None]:
    """Tag and number of a summary's value; None where it is no scalar."""
    tag, scalar = "", None
    for number, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            tag = value[:200].decode("utf-8", "replace")
        elif number == 2 and len(value) == 4:
            (scalar,) = struct.unpack("<f", value)
        elif number == 8:
            scalar = _tensor(value)
    return tag, scalar


def _tensor(data: bytes) -> float | None:
    """The number of a tensor of one float or double."""
    type_, scalar = 0, None
    for number, value in _fields(data):
        if number == 1 and isinstance(value, int):
            type_ = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            form = {(4, 1): "<f", (4, 2): "<d", (5, 1): "<f", (6, 2): "<d"}.get((number, type_))
            if form and len(value) == struct.calcsize(form):
                (scalar,) = struct.unpack(form, value)
    return scalar
