"""What ``native/`` is to Python, in Python: its functions over memory that is lent the same way.

It takes the plain events that ``native/src/reader.rs`` takes and hands back all others, so what
calls the native reader is asked without one. That the library itself does likewise, only a machine
that has built it can say: ``ingest/test_kineto_native.py``.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tracekit import native
from tracekit.ingest.kineto import stream

DAY_NS = 24 * 3600 * 10**9
TIME = re.compile(r"(\d{1,16})(?:\.(\d{1,3}))?")
INTEGER = re.compile(r"-?\d{1,18}")
ID = re.compile(r'"(?:stream ?)?(\d{1,18})"')
RAW = dict[str, msgspec.Raw]


class OddError(Exception):
    """An event that is Python's."""


@dataclass
class Kind:
    phase: str
    fields: dict[str, tuple[str, int]]
    """Shape and column of an argument."""
    switches: int
    width: int
    names: int
    odd_flags: int
    far_flags: int
    far_tid: int


@dataclass
class Table:
    codes: dict[bytes, int] = field(default_factory=dict)
    flags: dict[int, int] = field(default_factory=dict)

    def code(self, raw: bytes) -> int:
        return self.codes.setdefault(raw, len(self.codes))


def text_of(event: RAW, key: str) -> str:
    """The JSON text of a member; empty where there is none."""
    return bytes(event[key]).decode() if key in event else ""


def integer(text: str) -> int:
    if not INTEGER.fullmatch(text):
        raise OddError
    return int(text)


def nanoseconds(text: str) -> int:
    """Of microseconds with at most three decimals."""
    known = TIME.fullmatch(text)
    if known is None:
        raise OddError
    return int(known[1]) * 1000 + int((known[2] or "").ljust(3, "0"))


def identity(text: str) -> int:
    """A process or thread."""
    known = ID.fullmatch(text)
    return int(known[1]) if known else integer(text)


class StandIn:
    """A library, as ``ctypes`` gives it."""

    def __init__(self, interface: int = native.INTERFACE) -> None:
        self.interface = interface
        self.readers: dict[int, _Reader] = {}
        self.freed: list[int] = []
        """Readers that were freed, in this order."""

    def tk_interface(self) -> int:
        return self.interface

    def __getattr__(self, name: str) -> Any:
        """A function on which ``native`` can write what it takes."""
        if name not in native._SIGNATURES:
            raise AttributeError(name)
        known: dict[str, Callable[..., Any]] = {"tk_new": self._new, "tk_free": self.freed.append}
        own = known.get(name)

        def call(*given: Any) -> Any:
            return own(*given) if own else getattr(self.readers[given[0]], name)(*given[1:])

        return call

    def _new(self) -> int:
        self.readers[len(self.readers) + 1] = _Reader()
        return len(self.readers)


def _is_cut(text: bytes, events: list[bytes], cut: int, every: int) -> bool:
    """Whether a reader that is given the text up to each cut in turn reads whole events."""
    starts, at = [], 1
    for raw in events:
        starts.append(text.index(raw, at))
        at = starts[-1] + len(raw)
    # Behind the last event as well: a part that ends within it, and in which no other begins, is
    # read on for twice as far.
    for end in range(cut, len(text) if starts else 0, every):
        (start, raw) = [(s, r) for s, r in zip(starts, events, strict=True) if s < end][-1]
        if start < end - every or len(stream._BOUNDARY.findall(raw)) >= stream.CANDIDATES:
            return False
    return True


class _Reader:
    def __init__(self) -> None:
        self._kinds: list[Kind] = []
        self._categories: dict[str, tuple[int, int | None]] = {}
        self._slots: list[list[int]] = []
        self._marks: list[int] = []
        self._tables = [Table() for _ in range(3)]
        self._lent: dict[str, Any] = {}
        """Memory that a call has pointed to."""

    def tk_kind(self, phase: int, *facts: int) -> int:
        self._kinds.append(Kind(chr(phase), {}, *facts))
        return len(self._kinds) - 1

    def tk_field(self, kind: int, key: bytes, count: int, shape: int, column: int) -> int:
        word, of = native.SHAPES[shape], self._kinds[kind]
        columns = {"integer": 1, "fragment": 1, "triple": 3}.get(word, 0)
        if column + columns > of.width:
            return -1
        of.fields[key[:count].decode()] = word, column
        return 0

    def tk_category(self, name: bytes, count: int, kind: int) -> int:
        self._slots.append([])
        self._categories[name[:count].decode()] = len(self._slots) - 1, kind if kind >= 0 else None
        return len(self._slots) - 1

    def tk_batch(
        self, address: int, count: int, place: int, limit_ns: int, cut: int, every: int, answer: Any
    ) -> int:
        self._marks = [len(rows) for rows in self._slots]
        try:
            text = ctypes.string_at(address, count).decode()
            events = msgspec.json.decode(text, type=list[msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return 1
        if every and not _is_cut(text.encode(), [bytes(raw) for raw in events], cut, every):
            return 1
        rest: list[tuple[int, bytes]] = []
        has_fraction = False
        for at, raw in enumerate(events, place):
            try:
                has_fraction |= self._take(bytes(raw), at, limit_ns)
            except (OddError, msgspec.DecodeError):
                rest.append((at, bytes(raw)))
        left = b"[" + b",".join(raw for _, raw in rest) + b"]"
        to = answer._obj
        to.events, to.taken, to.has_fraction = len(events), len(events) - len(rest), has_fraction
        to.rest, to.rest_bytes = (
            self._lend("rest", ctypes.create_string_buffer(left, len(left))),
            len(left),
        )
        places = (ctypes.c_int64 * len(rest))(*(at for at, _ in rest))
        to.rest_places, to.rest_count = self._lend("places", places), len(rest)
        for number, table in enumerate(self._tables):
            to.texts[number] = len(table.codes)
        return 0

    def _take(self, raw: bytes, place: int, limit_ns: int) -> bool:
        """Keep an event's row; whether a time of it is no whole microsecond."""
        event = msgspec.json.decode(raw, type=RAW)
        category = self._categories.get(text_of(event, "cat")[1:-1])
        if category is None:
            raise OddError
        slot, number = category
        if number is None:
            return False
        kind = self._kinds[number]
        has_dur, needs_args, is_kept = (bool(kind.switches & bit) for bit in (1, 2, 4))
        name = text_of(event, "name")
        if name[:1] != '"' or "\\u" in name or text_of(event, "ph") != f'"{kind.phase}"':
            raise OddError
        pid, tid = (identity(text_of(event, key)) for key in ("pid", "tid"))
        start = nanoseconds(text_of(event, "ts"))
        dur = nanoseconds(text_of(event, "dur")) if has_dur else 0
        if not 0 < start < limit_ns or dur > DAY_NS or has_dur != ("dur" in event):
            raise OddError
        row = [native.NULL] * kind.width
        arguments = text_of(event, "args")
        if arguments[:1] == "{":
            self._arguments(kind, msgspec.json.decode(arguments, type=RAW), row)
        elif needs_args or arguments not in ("", "null"):
            raise OddError
        table = self._tables[kind.names]
        code = table.code(name[1:-1].encode())
        flags = table.flags.get(code, 0)
        if flags & kind.odd_flags or (flags & kind.far_flags and tid >= kind.far_tid):
            raise OddError
        if is_kept:
            row[: len(native.COMMON)] = place, start, dur, code, pid, tid
            self._slots[slot] += row
        return bool(start % 1000 or dur % 1000)

    def _arguments(self, kind: Kind, given: RAW, row: list[int]) -> None:
        for key in given.keys() & kind.fields.keys():
            text = text_of(given, key)
            shape, column = kind.fields[key]
            if shape == "fragment":
                row[column] = self._tables[native.FRAGMENTS].code(text.encode())
            elif shape == "absent":
                raise OddError
            elif text == "null":
                continue
            elif shape == "integer":
                row[column] = integer(text)
            elif shape == "triple" and text[0] == "[":
                values = [integer(json.dumps(value)) for value in json.loads(text)]
                if len(values) != 3 or any(not -(2**31) <= value < 2**31 for value in values):
                    raise OddError
                row[column : column + 3] = values
            elif shape != "text" or text[0] != '"' or "\\u" in text:
                raise OddError

    def tk_roll_back(self) -> None:
        for rows, mark in zip(self._slots, self._marks, strict=True):
            del rows[mark:]

    def tk_rows(self, slot: int, view: Any) -> None:
        rows = self._slots[slot]
        self._view(view, "rows", (ctypes.c_int64 * len(rows))(*rows))

    def tk_clear(self, slot: int) -> None:
        self._slots[slot].clear()

    def tk_texts(self, table: int, texts: Any, ends: Any) -> None:
        known = list(self._tables[table].codes)
        whole = b"".join(known)
        self._view(texts, "texts", ctypes.create_string_buffer(whole, len(whole)))
        bounds = [sum(map(len, known[: i + 1])) for i in range(len(known))]
        self._view(ends, "ends", (ctypes.c_uint64 * len(bounds))(*bounds))

    def tk_flag(self, table: int, code: int, flags: int) -> None:
        self._tables[table].flags[code] = flags

    def _lend(self, name: str, memory: Any) -> int:
        self._lent[name] = memory
        return ctypes.addressof(memory)

    def _view(self, view: Any, name: str, memory: Any) -> None:
        view._obj.data, view._obj.count = self._lend(name, memory), len(memory)
