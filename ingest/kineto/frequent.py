"""Frequent events by way of the native reader: which it takes, and the tables of its rows.

It takes an event only where ``model`` and ``trace`` would make the same row of it whatever stands
around it. Names that mean more than what ran (steps, collectives, input), arguments that no column
of a row keeps, remarkable times and all that is unusual stay with Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Raw

from tracekit import arrays, native
from tracekit.ingest.kineto.collectives import CALLS
from tracekit.ingest.kineto.model import ARGS, CATEGORIES, STREAM_SYNC_TID, FrameArgs, Kind
from tracekit.ingest.kineto.rows import compact_json
from tracekit.ingest.traces import names
from tracekit.ingest.traces.columns import CACHE_LIMIT, constant, shown_names, texts

if TYPE_CHECKING:
    import ctypes

Int64s = npt.NDArray[np.int64]

TEXT_LIMIT_BYTES = 32 << 20
"""Length of all distinct texts after which they are forgotten."""

_ODD, _FAR, _NOT_MEMORY = 1, 2, 4
"""What is said of a name: Python's; Python's on high thread ids; Python's where an instant's."""

_KEPT: dict[Kind, tuple[str, ...]] = {
    Kind.OPERATOR: ("external_id", "sequence", "forward_thread", "dims", "types"),
    Kind.CALL: ("external_id", "correlation", "external_id_2021"),
    Kind.GPU: (
        "external_id", "device", "context", "stream", "correlation", "registers",
        "shared_memory", "grid", "block", "bytes", "graph_id", "graph_node_id",
        "external_id_2021",
    ),
    Kind.FRAME: ("frame_id", "parent_id", "module_id"),
    Kind.INSTANT: (
        "change", "address", "allocated", "reserved", "device", "device_type", "external_id",
    ),
}  # fmt: skip
"""Arguments that become columns, by their names in ``model``."""

_UNREAD = {(Kind.GPU, "kind")}
"""Text that ``model`` checks and no table keeps."""

_ELSEWHERE = {(Kind.OPERATOR, "inputs")}
"""Arguments that are read only of names that are Python's anyway."""


class Texts:
    """Distinct texts of one table by code, as Python reads them."""

    def __init__(
        self, read: Callable[[bytes], str | None], say: Callable[[str | None], int]
    ) -> None:
        self._read = read
        self._say = say
        self.values: list[str | None] = []
        self._bytes = 0

    def add(self, raw: bytes) -> int:
        """One more text; what is to be said of it."""
        value = self._read(raw)
        self.values.append(value)
        self._bytes += len(raw)
        return self._say(value)

    @property
    def is_full(self) -> bool:
        """Whether it holds more than a trace that means well."""
        return len(self.values) > CACHE_LIMIT or self._bytes > TEXT_LIMIT_BYTES

    def column(self, codes: Int64s, made: Callable[[list[str]], pa.Array] = texts) -> pa.Array:
        """The texts of some codes; null for no code and for text that says nothing."""
        is_used = np.zeros(len(self.values) + 1, np.bool_)
        codes = np.where(codes == native.NULL, len(self.values), codes)
        is_used[codes] = True
        is_used[-1] = False
        used = np.flatnonzero(is_used)
        numbers = np.full(len(is_used), -1, np.int32)
        words: list[str] = []
        for code in used.tolist():
            value = self.values[code]
            if value is not None:
                numbers[code] = len(words)
                words.append(value)
        if not words:
            return pa.nulls(len(codes), arrays.PACKED)
        word_numbers = numbers[codes]
        is_null = word_numbers < 0
        return pa.DictionaryArray.from_arrays(arrays.column(word_numbers, is_null), made(words))


class Rows:
    """Rows of one category, by the names of ``native.COMMON`` and of ``model``."""

    def __init__(self, columns: Int64s, at: dict[str, int], word: str) -> None:
        self._columns = columns
        self._at = at
        self.word = word
        """The registry's word for the category."""

    def __len__(self) -> int:
        return int(self._columns.shape[1])

    def raw(self, name: str, offset: int = 0) -> Int64s:
        """Numbers, ``native.NULL`` where there is none."""
        values: Int64s = self._columns[self._at[name] + offset]
        return values

    def ints(self, name: str, *others: str) -> pa.Array:
        """An int64 column; where there is no number, that of the next column."""
        values = self.raw(name)
        for other in others:
            values = np.where(values == native.NULL, self.raw(other), values)
        return ints(values)

    def times(self) -> tuple[Int64s, Int64s]:
        """start_ns and dur_ns."""
        return self.raw("start_ns"), self.raw("dur_ns")

    def triples(self, name: str) -> pa.Array:
        """A column of three numbers each, or null."""
        parts = np.stack([self.raw(name, i) for i in range(3)], axis=1)
        is_known = parts[:, 0] != native.NULL
        return arrays.triples(parts[is_known].astype(np.int32), ~is_known)


def ints(values: Int64s) -> pa.Array:
    """An int64 column of numbers."""
    return arrays.column(values, values == native.NULL)


class FrequentEvents:
    """A native reader that knows what it may take, and the texts that it has met."""

    def __init__(self, library: ctypes.CDLL, *, stacks: bool) -> None:
        self.stacks = stacks
        self._reader = native.Reader(library)
        self.host_names = Texts(_name, _say_host)
        self.device_names = Texts(_name, _say_device)
        self.fragments = Texts(compact_json, _say_nothing)
        self._tables = (self.host_names, self.device_names, self.fragments)
        self._slots: dict[str, int] = {}
        """Of the categories whose rows are kept."""
        self._columns: dict[Kind, dict[str, int]] = {}
        numbers = {kind: self._describe(kind) for kind in _KEPT}
        for category, (kind, _) in CATEGORIES.items():
            if kind is Kind.SKIP:
                self._reader.category(category, None)
            elif kind in numbers:
                slot = self._reader.category(category, numbers[kind])
                if self._is_kept(kind):
                    self._slots[category] = slot

    def _is_kept(self, kind: Kind) -> bool:
        return self.stacks or kind is not Kind.FRAME

    def _describe(self, kind: Kind) -> int:
        is_instant = kind is Kind.INSTANT
        is_kept = self._is_kept(kind)
        struct = ARGS[kind] if kind is not Kind.FRAME or not self.stacks else FrameArgs
        shapes = _shapes(kind, struct)
        at = {name: i for i, name in enumerate(native.COMMON)}
        width = len(at)
        for name in _KEPT[kind] if is_kept else ():
            at[name] = width
            width += 3 if shapes[name][1] == "triple" else 1
        self._columns[kind] = at
        number = self._reader.kind(
            "i" if is_instant else "X",
            width,
            has_dur=not is_instant,
            needs_args=is_instant,
            is_kept=is_kept,
            names=native.DEVICE_NAMES if kind is Kind.GPU else native.HOST_NAMES,
            odd_flags=_NOT_MEMORY if is_instant else 0 if kind is Kind.CALL else _ODD,
            far_flags=_FAR if kind is Kind.GPU else 0,
            far_tid=STREAM_SYNC_TID,
        )
        for name, (key, shape) in shapes.items():
            self._reader.field(number, key, shape, at.get(name, 0))
        return number

    def batch(
        self, document: memoryview, place: int, limit_ns: int, cuts: tuple[int, int] = (0, 0)
    ) -> native.Batch | None:
        """See ``native.Reader.batch``."""
        batch = self._reader.batch(document, place, limit_ns, cuts)
        if batch is not None and self._learn(batch.texts):
            # Something was said of a name that is new: once more, now that it is known.
            self._reader.roll_back()
            batch = self._reader.batch(document, place, limit_ns, cuts)
        return batch

    def _learn(self, counts: Sequence[int]) -> bool:
        """Read texts that are new; whether something was said of one."""
        is_said = False
        for number, (table, count) in enumerate(zip(self._tables, counts, strict=True)):
            begin = len(table.values)
            if count == begin:
                continue
            for code, raw in enumerate(self._reader.texts(number, begin), begin):
                flags = table.add(raw)
                if flags:
                    is_said = True
                    self._reader.flag(number, code, flags)
        return is_said

    def roll_back(self) -> None:
        """Forget the rows of the last batch."""
        self._reader.roll_back()

    def take(self) -> list[tuple[str, Kind, Rows]]:
        """All rows by category; none are kept."""
        taken: list[tuple[str, Kind, Rows]] = []
        for category, slot in self._slots.items():
            kind, word = CATEGORIES[category]
            columns = self._reader.take(slot)
            if columns.shape[1]:
                taken.append((category, kind, Rows(columns, self._columns[kind], word)))
        return taken

    @property
    def is_full(self) -> bool:
        """Whether its texts should be forgotten, and it with them."""
        return any(table.is_full for table in self._tables)

    # --- tables ----------------------------------------------------------------------------

    def operator_table(self, rows: Rows) -> pa.Table:
        """host_op rows of framework operators."""
        return pa.table(
            {
                **self._host(rows),
                "external_id": rows.ints("external_id"),
                "sequence_number": rows.ints("sequence"),
                "forward_thread": rows.ints("forward_thread"),
                "input_dims": self.fragments.column(rows.raw("dims")),
                "input_types": self.fragments.column(rows.raw("types")),
            }
        )

    def call_table(self, rows: Rows) -> pa.Table:
        """host_op rows of runtime and driver calls, and of the profiler's overhead."""
        return pa.table(
            {
                **self._host(rows),
                "external_id": rows.ints("external_id", "external_id_2021"),
                "correlation": rows.ints("correlation"),
            }
        )

    def _host(self, rows: Rows) -> dict[str, pa.Array]:
        start, dur = rows.times()
        return {
            "place": arrays.column(rows.raw("place")),
            "start_ns": arrays.column(start),
            "dur_ns": arrays.column(dur),
            "category": constant(rows.word, len(rows)),
            "name": self.host_names.column(rows.raw("name"), shown_names),
            "pid": rows.ints("pid"),
            "thread": rows.ints("tid"),
        }

    def frame_table(self, rows: Rows) -> pa.Table:
        """python_frame rows."""
        start, dur = rows.times()
        return pa.table(
            {
                "place": arrays.column(rows.raw("place")),
                "start_ns": arrays.column(start),
                "dur_ns": arrays.column(dur),
                "name": self.host_names.column(rows.raw("name"), shown_names),
                "pid": rows.ints("pid"),
                "thread": rows.ints("tid"),
                "frame_id": rows.ints("frame_id"),
                "parent_frame_id": rows.ints("parent_id"),
                "module_id": rows.ints("module_id"),
            }
        )

    def memory_table(self, rows: Rows) -> pa.Table:
        """memory_event rows."""
        address = rows.raw("address")
        is_cpu, is_known = rows.raw("device_type") == 0, rows.raw("device_type") != native.NULL
        return pa.table(
            {
                "place": arrays.column(rows.raw("place")),
                "time_ns": arrays.column(rows.raw("start_ns")),
                "device_type": pa.DictionaryArray.from_arrays(
                    arrays.column(np.where(is_cpu, 0, 1).astype(np.int32), ~is_known),
                    pa.array(["cpu", "gpu"], pa.string()),
                ),
                "device": arrays.int32s(rows.raw("device")),
                "thread": rows.ints("tid"),
                "change_bytes": rows.ints("change"),
                "address": arrays.column(np.maximum(address, 0).astype(np.uint64), address < 0),
                "allocated_bytes": rows.ints("allocated"),
                "reserved_bytes": rows.ints("reserved"),
                "external_id": rows.ints("external_id"),
            }
        )


def _name(raw: bytes) -> str:
    if b"\\" not in raw:
        return raw.decode()
    text: str = msgspec.json.decode(b'"' + raw + b'"')
    return text


def _say_host(name: str | None) -> int:
    text = name or ""
    is_odd = text in CALLS or names.special_domain(text) is not None
    return _ODD * is_odd + _NOT_MEMORY * (text != "[memory]")


def _say_device(name: str | None) -> int:
    text = name or ""
    is_comm = names.classify_kernel(text).library is not None
    return _ODD * is_comm + _FAR * ("sync" in text.lower())


def _say_nothing(_: str | None) -> int:
    return 0


def _shapes(kind: Kind, struct: type[msgspec.Struct]) -> dict[str, tuple[str, str]]:
    """By name: the key in a file, and what its value must be for Python not to be needed."""
    shapes: dict[str, tuple[str, str]] = {}
    for field in msgspec.structs.fields(struct):
        if (kind, field.name) in _ELSEWHERE:
            continue
        shape = "absent" if field.type is Raw else "null"
        if field.name in _KEPT[kind]:
            shape = _SHAPES[field.type]
        elif (kind, field.name) in _UNREAD:
            shape = "text"
        shapes[field.name] = field.encode_name, shape
    return shapes


_SHAPES: dict[Any, str] = {Raw: "fragment", int | None: "integer", list[int] | None: "triple"}
"""What is kept, by the type that ``model`` states."""


# --- one for many files --------------------------------------------------------------------

_KEPT_FOR_LATER: dict[bool, FrequentEvents] = {}
"""By whether stacks are kept: the names of one file are nearly all that the next one has."""


def lend(*, stacks: bool) -> FrequentEvents | None:
    """One that nobody uses; None where Python reads everything."""
    library = native.library()
    if library is None:
        return None
    return _KEPT_FOR_LATER.pop(stacks, None) or FrequentEvents(library, stacks=stacks)


def give_back(frequent: FrequentEvents) -> None:
    """Keep one whose rows were all taken for the next file."""
    if not frequent.is_full:
        _KEPT_FOR_LATER[frequent.stacks] = frequent
