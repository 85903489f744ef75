"""The native reader of Kineto traces (``native/``): whether it is here, and how it is called.

It is optional. Where its library is absent, cannot be loaded or has another interface, or where
``TRACEKIT_NATIVE=0`` asks for it, Python reads everything; the rows are the same. What the numbers
of a row mean, and which events are taken, ``tracekit.ingest.kineto.frequent`` says.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

LIBRARY = Path(__file__).with_name("libtracekit_kineto.so")
INTERFACE = 2
"""The interface that ``native/src/boundary.rs`` has."""

NULL = -(2**63)
"""What stands in a row for a number that is absent."""
COMMON = ("place", "start_ns", "dur_ns", "name", "pid", "tid")
"""Columns that every row begins with; ``name`` is a code."""
HOST_NAMES, DEVICE_NAMES, FRAGMENTS = range(3)
"""Tables of texts. A fragment is the JSON text of a nested argument."""

SHAPES = ("integer", "fragment", "triple", "text", "null", "absent")
"""What an argument may be said to be, by number: see ``Shape`` in ``native/src/reader.rs``."""

_U8, _U64, _I64, _P = ctypes.c_uint8, ctypes.c_uint64, ctypes.c_int64, ctypes.c_void_p


class _Answer(ctypes.Structure):
    _fields_ = (
        ("events", _U64), ("taken", _U64), ("has_fraction", _U64), ("rest", _P),
        ("rest_bytes", _U64), ("rest_places", _P), ("rest_count", _U64), ("texts", _U64 * 3),
    )  # fmt: skip


class _View(ctypes.Structure):
    _fields_ = (("data", _P), ("count", _U64))


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tk_new": (_P, ()),
    "tk_free": (None, (_P,)),
    "tk_kind": (_I64, (_P, _U8, _U8, _U64, _U64, _U8, _U8, _I64)),
    "tk_field": (ctypes.c_int32, (_P, _U64, ctypes.c_char_p, _U64, _U8, _U64)),
    "tk_category": (_I64, (_P, ctypes.c_char_p, _U64, _I64)),
    "tk_batch": (ctypes.c_int32, (_P, _P, _U64, _I64, _I64, _U64, _U64, _P)),
    "tk_roll_back": (None, (_P,)),
    "tk_rows": (None, (_P, _U64, _P)),
    "tk_clear": (None, (_P, _U64)),
    "tk_texts": (None, (_P, _U64, _P, _P)),
    "tk_flag": (None, (_P, _U64, ctypes.c_uint32, _U8)),
}


def library() -> ctypes.CDLL | None:
    """The library; None where Python reads everything."""
    return None if os.environ.get("TRACEKIT_NATIVE") == "0" else _loaded()


@cache
def _loaded() -> ctypes.CDLL | None:
    try:
        opened = ctypes.CDLL(str(LIBRARY))
        if opened.tk_interface() != INTERFACE:
            return None
        for name, (answer, arguments) in _SIGNATURES.items():
            function = getattr(opened, name)
            function.restype, function.argtypes = answer, arguments
    except (OSError, AttributeError):  # absent, of another machine, or of another version
        return None
    return opened


class Batch(NamedTuple):
    """What a batch held that was read."""

    events: int
    """Events of the batch."""
    taken: int
    """Those that were taken."""
    has_fraction: bool
    """Whether one of their times is no whole microsecond."""
    rest: bytes
    """The others, as a JSON list."""
    rest_places: Any
    """Their ordinals in the file, as an array of int64."""
    texts: tuple[int, ...]
    """How many distinct texts each table has by now."""


class Reader:
    """One native reader. Rows wait in it by slot; it is used by one thread at a time."""

    def __init__(self, native: ctypes.CDLL) -> None:
        self._lib = native
        self._answer = _Answer()
        self._widths: dict[int, int] = {}
        self._of_slot: dict[int, int] = {}
        self._handle: int | None = native.tk_new()
        if not self._handle:
            raise MemoryError

    def kind(
        self,
        phase: str,
        width: int,
        *,
        has_dur: bool,
        needs_args: bool,
        is_kept: bool,
        names: int,
        odd_flags: int,
        far_flags: int,
        far_tid: int,
    ) -> int:
        """Describe events: their phase and columns, and which names make one odd; its number.

        Events of a name with one of ``odd_flags`` are not taken, nor those of a name with one of
        ``far_flags`` on a thread whose id is at least ``far_tid``.
        """
        switches = has_dur + 2 * needs_args + 4 * is_kept
        number: int = self._lib.tk_kind(
            self._handle, ord(phase), switches, width, names, odd_flags, far_flags, far_tid
        )
        self._widths[number] = width
        return number

    def field(self, kind: int, key: str, shape: str, column: int) -> None:
        """Describe an argument, and the column where it is kept, if it is.

        ValueError where it has no room.
        """
        raw = key.encode()
        if self._lib.tk_field(self._handle, kind, raw, len(raw), SHAPES.index(shape), column):
            raise ValueError(f"the native reader has no room for {key}")

    def category(self, name: str, kind: int | None) -> int:
        """A category of a kind, or of none where its events are only counted; its slot."""
        raw = name.encode()
        number = -1 if kind is None else kind
        slot: int = self._lib.tk_category(self._handle, raw, len(raw), number)
        if kind is not None:
            self._of_slot[slot] = kind
        return slot

    def batch(
        self, document: memoryview, place: int, limit_ns: int, cuts: tuple[int, int] = (0, 0)
    ) -> Batch | None:
        """Read a JSON list of events, the first of which is the ``place``-th of its file.

        None where it is refused; then nothing of it is kept. Events are taken whose time is above
        0 and below ``limit_ns``. With ``cuts``, the first and how many bytes lie between two, a
        list is refused as well where Python, given its text up to each cut in turn, would not read
        up to the last event that begins before it.
        """
        import numpy as np

        answer = self._answer
        lent = (ctypes.c_char * len(document)).from_buffer(document)
        if self._lib.tk_batch(
            self._handle, ctypes.addressof(lent), len(document), place, limit_ns, *cuts,
            ctypes.byref(answer),
        ):  # fmt: skip
            return None
        count = answer.rest_count
        return Batch(
            answer.events,
            answer.taken,
            bool(answer.has_fraction),
            ctypes.string_at(answer.rest, answer.rest_bytes) if count else b"[]",
            np.frombuffer(ctypes.string_at(answer.rest_places, 8 * count), np.int64)
            if count
            else np.zeros(0, np.int64),
            tuple(answer.texts),
        )

    def roll_back(self) -> None:
        """Forget the rows of the last batch."""
        self._lib.tk_roll_back(self._handle)

    def texts(self, table: int, begin: int) -> list[bytes]:
        """The texts of a table from one on, as the file has them."""
        texts, ends = _View(), _View()
        self._lib.tk_texts(self._handle, table, ctypes.byref(texts), ctypes.byref(ends))
        if begin >= ends.count:
            return []
        bounds = (_U64 * ends.count).from_address(ends.data)
        starts = [bounds[begin - 1] if begin else 0, *bounds[begin : ends.count - 1]]
        return [
            ctypes.string_at(texts.data + start, end - start) if end > start else b""
            for start, end in zip(starts, bounds[begin:], strict=True)
        ]

    def flag(self, table: int, code: int, flags: int) -> None:
        """Say something of a text: see ``kind``."""
        self._lib.tk_flag(self._handle, table, code, flags)

    def take(self, slot: int) -> Any:
        """All rows of a slot, as an array of int64 of shape (columns, rows); none are kept."""
        import numpy as np

        view = _View()
        self._lib.tk_rows(self._handle, slot, ctypes.byref(view))
        width = self._widths[self._of_slot[slot]]
        if not view.count:
            return np.zeros((width, 0), np.int64)
        numbers = np.frombuffer((_I64 * view.count).from_address(view.data), np.int64)
        columns = numbers.reshape(-1, width).T.copy(order="C")
        self._lib.tk_clear(self._handle, slot)
        return columns

    def close(self) -> None:
        """Free it."""
        handle, self._handle = self._handle, None
        if handle:
            self._lib.tk_free(handle)

    def __del__(self) -> None:
        self.close()
