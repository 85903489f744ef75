"""Operations on devices: rows that wait until the end of the file for their launches and steps.

A kernel's launch, step and metadata may stand anywhere in the file, so its row is kept back:
in memory up to ``SPILL_ROWS``, beyond that in a temporary file, and completed batch by batch.
What stays in memory are the steps and the metadata of collectives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit import arrays
from tracekit.ingest.kineto import collectives
from tracekit.ingest.kineto.frequent import Rows, Texts
from tracekit.ingest.kineto.frequent import ints as wide
from tracekit.ingest.kineto.model import Event, GpuArgs
from tracekit.ingest.kineto.rows import HeldRows, Microseconds, Names
from tracekit.ingest.traces import names
from tracekit.ingest.traces.columns import ids, int32s, int_lists, ints, shown_names
from tracekit.ingest.traces.spill import Spill
from tracekit.native import NULL

HELD_ROWS = 1 << 12
"""Rows of a category that are made at once."""

CATEGORY_WORDS = ("kernel", "memcpy", "memset")

Int64s = npt.NDArray[np.int64]

_NO_ARGS = GpuArgs()
_COMPUTE_COPY = ("void at::native", "at::native")


HostCollective = tuple[int, int, int, int | None, int | None, str, collectives.Meta]
"""place, start, duration, thread, pid, library, metadata."""


class GpuNames(Names):
    """Distinct names of device work as numbers, and what each says. One entry a distinct name."""

    def __init__(self) -> None:
        super().__init__()
        self.classes: list[names.KernelClass] = []
        self.is_comm: list[bool] = []
        """By number: whether the name is that of a communication library."""
        self._texts: pa.Array | None = None
        self._copies: list[str | None] = []

    def __missing__(self, name: str) -> int:
        kernel = names.classify_kernel(name)
        self.classes.append(kernel)
        self.is_comm.append(kernel.library is not None)
        return super().__missing__(name)

    def codes(self, shown: list[str]) -> list[int]:
        """The number of each name."""
        return [self[name] for name in shown]

    def copy_kinds(self) -> list[str | None]:
        """By number: HtoD and the like."""
        if len(self._copies) < len(self):
            self._copies = [names.copy_kind(name) for name in self]
        return self._copies

    def texts(self) -> pa.Array:
        """By number: the name."""
        if self._texts is None or len(self._texts) < len(self):
            self._texts = shown_names(list(self))
        return self._texts


class GpuRows:
    """Collects device rows; knows which of them communicate."""

    def __init__(self, note_times: Callable[[Int64s, Int64s], None]) -> None:
        self.ops = Spill()
        self.comms = Spill()
        self.metas: list[collectives.Meta | None] = [None]
        self._note_times = note_times
        """Is told starts and durations of all rows."""
        self._codes: dict[tuple[Any, ...], int] = {}
        self._names = GpuNames()
        self._held: dict[str, HeldRows] = {}
        self._comms: list[tuple[int, GpuArgs, bool]] = []
        """Which of the held kernels communicate: row, arguments, whether those are metadata."""
        self.devices: set[int] = set()
        self.host: list[HostCollective] = []
        """Collectives that run on host threads (gloo)."""

    def add(
        self,
        events: Sequence[Event],
        places: Int64s,
        word: str,
        *,
        us: Microseconds | None = None,
        ns: tuple[Int64s, Int64s] | None = None,
    ) -> None:
        """Keep events of one category; nothing that is text of their batch is read later."""
        held = self._held.setdefault(word, HeldRows())
        args: list[GpuArgs] = [e.args or _NO_ARGS for e in events]
        shown = [e.name for e in events]
        codes = self._names.codes(shown)
        if word == "kernel":
            self._find_comms(held.count, args, shown, codes)
        external = [a.external_id for a in args]
        if None in external:
            external = [_external(a) for a in args]
        columns = [
            codes,
            _or_else([a.device for a in args], events, "pid"),
            [a.context for a in args],
            _or_else([a.stream for a in args], events, "tid"),
            [a.correlation for a in args],
            external,
            [a.graph_id for a in args],
            [a.graph_node_id for a in args],
            [a.grid for a in args],
            [a.block for a in args],
            [a.registers for a in args],
            [a.shared_memory for a in args],
            [a.bytes for a in args],
        ]
        held.add(places, columns, us=us, ns=ns)
        if held.count >= HELD_ROWS:
            self._make(word)

    def _find_comms(
        self, before: int, args: list[GpuArgs], shown: list[str], codes: list[int]
    ) -> None:
        """Kernels that carry a collective's metadata, or whose name is a library's.

        Copies that were launched with a collective carry its metadata too.
        """
        is_comm = self._names.is_comm
        for i, a in enumerate(args):
            is_meta = a.collective is not None and not shown[i].startswith(_COMPUTE_COPY)
            if is_meta or is_comm[codes[i]]:
                self._comms.append((before + i, a, is_meta))

    def flush(self) -> None:
        """Make rows of all events that wait."""
        for word in list(self._held):
            self._make(word)

    def _make(self, word: str) -> None:
        places, start, dur, columns = self._held.pop(word).take()
        comms = self._comms if word == "kernel" else []
        codes, devices, contexts, streams, correlations, external, *rest = columns
        graphs, nodes, grids, blocks, registers, shared_memory, transfers = rest
        graph = [g or None for g in graphs]
        node = [n if g else None for n, g in zip(nodes, graph, strict=True)]
        is_args = np.zeros(len(places), np.bool_)
        is_args[[row for row, _, is_meta in comms if is_meta]] = True
        table = pa.table(
            {
                "place": arrays.column(places),
                "start_ns": arrays.column(start),
                "dur_ns": arrays.column(dur),
                "category": _category(word, len(places)),
                "is_args": arrays.column(is_args),
                "name": int32s(codes),
                "device": int32s(devices),
                "context": ints(contexts),
                "stream": ids(streams),
                "correlation": ints(correlations),
                "external_id": ints(external),
                "graph_id": ints(graph),
                "graph_node_id": ints(node),
                "grid": _triples(grids),
                "block": _triples(blocks),
                "registers_count": int32s(registers),
                "shared_memory_bytes": ints(shared_memory),
                "transfer_bytes": ints(transfers),
            }
        )
        self._add_ops(table, start, dur)
        if comms:
            self._comms = []
            self._add_comms(table, [row for row, _, _ in comms], [args for _, args, _ in comms])

    def _add_ops(self, table: pa.Table, start: Int64s, dur: Int64s) -> None:
        self._note_times(start, dur)
        self.devices.update(arrays.distinct(table["device"]))
        self.ops.add(table)

    def add_rows(self, rows: Rows, shown: Texts) -> None:
        """Rows of the native reader; none of them communicates."""
        start, dur = rows.times()
        codes = np.zeros(len(shown.values), np.int32)
        raw = rows.raw("name")
        for code in np.flatnonzero(np.bincount(raw)).tolist():
            codes[code] = self._names[shown.values[code] or ""]
        graph = rows.raw("graph_id")
        node = rows.raw("graph_node_id")
        is_graph = (graph != NULL) & (graph != 0)
        external = rows.raw("external_id_2021")
        external = np.where(external == 0, NULL, external)  # 2021: 0 means none
        external = np.where(rows.raw("external_id") == NULL, external, rows.raw("external_id"))
        device = rows.raw("device")
        table = pa.table(
            {
                "place": arrays.column(rows.raw("place")),
                "start_ns": arrays.column(start),
                "dur_ns": arrays.column(dur),
                "category": _category(rows.word, len(rows)),
                "is_args": arrays.column(np.zeros(len(rows), np.bool_)),
                "name": arrays.column(codes[raw]),
                "device": arrays.int32s(np.where(device == NULL, rows.raw("pid"), device)),
                "context": rows.ints("context"),
                "stream": rows.ints("stream", "tid"),
                "correlation": rows.ints("correlation"),
                "external_id": wide(external),
                "graph_id": wide(np.where(is_graph, graph, NULL)),
                "graph_node_id": wide(np.where(is_graph, node, NULL)),
                "grid": rows.triples("grid"),
                "block": rows.triples("block"),
                "registers_count": arrays.int32s(rows.raw("registers")),
                "shared_memory_bytes": rows.ints("shared_memory"),
                "transfer_bytes": rows.ints("bytes"),
            }
        )
        self._add_ops(table, start, dur)

    def _add_comms(self, ops: pa.Table, rows: list[int], args: list[GpuArgs]) -> None:
        """Keep what collectives are made of, of the rows that communicate."""
        keep = [
            "place",
            "start_ns",
            "dur_ns",
            "name",
            "device",
            "stream",
            "correlation",
            "external_id",
        ]
        table = pa.table({name: arrays.taken(ops[name], rows) for name in keep})
        codes: list[int] = []
        for a, name in zip(args, table["name"].to_pylist(), strict=True):
            shown = self.shown(name)
            codes.append(self._code(a, shown.op) if a.collective is not None else 0)
        table = table.append_column("meta", pa.array(codes, pa.int32()))
        self.comms.add(table.append_column("sequence", ints([a.seq for a in args])))

    def named(self, rows: pa.Table) -> pa.Table:
        """Rows with what their names and categories say in place of codes."""
        codes = rows["name"].to_numpy()
        category = rows["category"].to_numpy()
        is_args = rows["is_args"].to_numpy(zero_copy_only=False)
        is_comm = np.array(self._names.is_comm, np.bool_)[codes]
        is_kernel = category == 0
        klass = np.where(is_kernel, np.where(is_args | is_comm, 0, 1), 2)
        source = np.where(is_kernel & is_args, 0, np.where(is_kernel & is_comm, 1, 2))
        kinds = self._names.copy_kinds()
        words = sorted({kind for kind in kinds if kind is not None})
        numbers = np.array([-1 if kind is None else words.index(kind) for kind in kinds], np.int32)
        kind_numbers = numbers[codes]
        has_kind = (category == 1) & (kind_numbers >= 0)
        copy_kinds = (
            pa.DictionaryArray.from_arrays(
                arrays.column(kind_numbers, ~has_kind), pa.array(words, pa.string())
            )
            if has_kind.any()
            else pa.nulls(len(codes), arrays.PACKED)
        )
        rows = rows.drop_columns(["name", "category", "is_args"])
        for column, values in (
            ("name", pa.DictionaryArray.from_arrays(arrays.column(codes), self._names.texts())),
            ("category", _coded(category, CATEGORY_WORDS)),
            ("class", _coded(klass, ("communication", "compute", "memory"))),
            ("class_source", _coded(source, ("args", "name", "category"))),
            ("copy_kind", copy_kinds),
        ):
            rows = rows.append_column(column, values)
        return rows

    def _code(self, args: GpuArgs, name_op: str | None) -> int:
        key = (*collectives.key_of_args(args), name_op)
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self.metas)
            self.metas.append(collectives.meta_of_args(args, name_op))
        return code

    def shown(self, code: int) -> names.KernelClass:
        """What a kernel's name shows."""
        return self._names.classes[code]

    def close(self) -> None:
        """Drop temporary files, and whom it tells of times: whoever has this must not stay for it,
        since cycles are not collected while files are read."""
        self.ops.close()
        self.comms.close()
        del self._note_times


def _external(args: GpuArgs) -> int | None:
    if args.external_id is not None:
        return args.external_id
    return args.external_id_2021 or None  # 2021: 0 means none


def _or_else(values: list[Any], events: Sequence[Event], other: str) -> list[Any]:
    """The values, or another attribute of the event where there is none."""
    if None not in values:
        return values
    return [getattr(e, other) if v is None else v for v, e in zip(values, events, strict=True)]


def _category(word: str, n: int) -> pa.Array:
    return arrays.column(np.full(n, CATEGORY_WORDS.index(word), np.int8))


def _coded(codes: Any, words: tuple[str, ...]) -> pa.DictionaryArray:
    shown = pa.array(words, pa.string())
    return pa.DictionaryArray.from_arrays(arrays.column(codes.astype(np.int32)), shown)


def _triples(values: list[list[int] | None]) -> pa.Array:
    if None not in values and set(map(len, values)) == {3}:  # type: ignore[arg-type]
        with contextlib.suppress(pa.ArrowInvalid, OverflowError):
            flat = pa.array(list(chain.from_iterable(values)), pa.int32())  # type: ignore[arg-type]
            offsets = arrays.column(np.arange(0, 3 * len(values) + 1, 3, dtype=np.int32))
            return pa.ListArray.from_arrays(offsets, flat)
    return int_lists(values, pa.int32())  # one that is no grid is no reason to lose the others
