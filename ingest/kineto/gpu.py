"""Operations on devices: rows that wait until the end of the file for their launches and steps.

A kernel's launch, step and metadata may stand anywhere in the file, so its row is kept back:
in memory up to ``SPILL_ROWS``, beyond that in a temporary file, and completed batch by batch.
What stays in memory is the index of launch calls (about 40 bytes each), the steps, and the
metadata of collectives.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.ingest.kineto import collectives, names
from tracekit.ingest.kineto.model import Event, GpuArgs
from tracekit.ingest.kineto.rows import Cache, as_int, constant, int32s, ints, texts

SPILL_ROWS = 1 << 16
"""Rows that wait in memory before they go to a temporary file."""

_NO_ARGS = GpuArgs()
_COMPUTE_COPY = ("void at::native", "at::native")


HostCollective = tuple[int, int, int, int | None, int | None, str, collectives.Meta]
"""place, start, duration, thread, pid, library, metadata."""


def _key(args: GpuArgs) -> tuple[Any, ...]:
    """All that makes the metadata of two calls differ, but for the sequence number."""
    return (
        args.collective, args.dtype, args.in_elements, args.out_elements, args.group_size,
        _hashable(args.in_split), _hashable(args.out_split), args.group_name, args.group_id,
        args.group_description, _hashable(args.group_ranks), args.global_start,
        args.global_stride, args.rank, args.src_rank, args.dst_rank, args.comms_id, args.is_async,
    )  # fmt: skip


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Spill:
    """Batches of rows of one shape, in order; beyond ``SPILL_ROWS`` in a temporary file."""

    def __init__(self, spill_rows: int = SPILL_ROWS) -> None:
        self._limit = spill_rows
        self._tables: list[pa.Table] = []
        self._waiting = 0
        self._file: Any = None
        self._writer: Any = None
        self.rows = 0

    def add(self, table: pa.Table) -> None:
        """Keep a batch."""
        self._tables.append(table)
        self._waiting += table.num_rows
        self.rows += table.num_rows
        if self._waiting >= self._limit:
            self._flush()

    def _flush(self) -> None:
        if not self._tables:
            return
        merged = pa.concat_tables(self._tables).combine_chunks()
        if self._writer is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            self._writer = pa.ipc.new_stream(self._file, merged.schema)
        self._writer.write_table(merged)
        self._tables = []
        self._waiting = 0

    def batches(self) -> Iterator[pa.Table]:
        """All batches, oldest first."""
        if self._writer is not None:
            self._flush()
            self._writer.close()
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])
        elif self._tables:
            yield pa.concat_tables(self._tables).combine_chunks()

    def close(self) -> None:
        """Drop the temporary file."""
        if self._file is not None:
            self._file.close()


class GpuRows:
    """Collects device rows; knows which of them communicate."""

    def __init__(self, spill_rows: int = SPILL_ROWS) -> None:
        self.ops = Spill(spill_rows)
        self.comms = Spill(spill_rows)
        self.metas: list[collectives.Meta | None] = [None]
        self._codes: dict[tuple[Any, ...], int] = {}
        self._classes = Cache(names.classify_kernel)
        self._copies = Cache(names.copy_kind)
        self.devices: set[int] = set()
        self.host: list[HostCollective] = []
        """Collectives that run on host threads (gloo)."""

    def add(self, events: list[Event], places: Any, start: Any, dur: Any, word: str) -> None:
        """Keep rows of one category."""
        args: list[GpuArgs] = [e.args or _NO_ARGS for e in events]
        n = len(events)
        kernel_names = [e.name for e in events]
        device = int32s([a.device if a.device is not None else e.pid for a, e in zip(args, events, strict=True)])
        stream = ints([a.stream if a.stream is not None else e.tid for a, e in zip(args, events, strict=True)])
        self.devices.update(v for v in device.unique().to_pylist() if v is not None)
        if word == "kernel":
            classes = self._classes
            shown = [classes[k] for k in kernel_names]
            is_args = [
                a.collective is not None and not k.startswith(_COMPUTE_COPY)
                for a, k in zip(args, kernel_names, strict=True)
            ]
            klass = ["communication" if f else s.klass for f, s in zip(is_args, shown, strict=True)]
            source = [
                "args" if f else "name" if s.library else "category"
                for f, s in zip(is_args, shown, strict=True)
            ]
            kinds: pa.Array = pa.nulls(n, pa.string())
            class_column, source_column = texts(klass), texts(source)
            comm_rows = [i for i, k in enumerate(klass) if k == "communication"]
        else:
            class_column, source_column = constant("memory", n), constant("category", n)
            class_column, source_column = class_column.cast(pa.string()), source_column.cast(pa.string())
            copies = self._copies
            kinds = texts([copies[k] for k in kernel_names] if word == "memcpy" else [None] * n)
            comm_rows = []
        table = pa.table(
            {
                "place": pa.array(places, pa.int64()),
                "start_ns": pa.array(start),
                "dur_ns": pa.array(dur),
                "category": constant(word, n).cast(pa.string()),
                "class": class_column,
                "class_source": source_column,
                "name": texts(kernel_names),
                "device": device,
                "context": ints([a.context for a in args]),
                "stream": stream,
                "correlation": ints([a.correlation for a in args]),
                "external_id": ints([_external(a) for a in args]),
                "graph_id": ints([a.graph_id or None for a in args]),
                "graph_node_id": ints([a.graph_node_id if a.graph_id else None for a in args]),
                "grid": _triples([a.grid for a in args]),
                "block": _triples([a.block for a in args]),
                "registers_count": int32s([a.registers for a in args]),
                "shared_memory_bytes": ints([a.shared_memory for a in args]),
                "transfer_bytes": ints([a.bytes for a in args]),
                "copy_kind": kinds,
            }
        )
        self.ops.add(table)
        if comm_rows:
            self._add_comms(table.take(pa.array(comm_rows)), [args[i] for i in comm_rows])

    def _add_comms(self, rows: pa.Table, args: list[GpuArgs]) -> None:
        codes: list[int] = []
        for a, name in zip(args, rows["name"].to_pylist(), strict=True):
            shown = self._classes[name]
            codes.append(self._code(a, shown.op) if a.collective is not None else 0)
        keep = ["place", "start_ns", "dur_ns", "name", "device", "stream", "correlation", "external_id", "class_source"]
        table = rows.select(keep)
        table = table.append_column("meta", pa.array(codes, pa.int32()))
        self.comms.add(table.append_column("sequence", ints([a.seq for a in args])))

    def _code(self, args: GpuArgs, name_op: str | None) -> int:
        key = (*_key(args), name_op)
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self.metas)
            self.metas.append(collectives.meta_of_args(args, name_op))
        return code

    def shown(self, name: str) -> names.KernelClass:
        """What a kernel's name shows."""
        result: names.KernelClass = self._classes[name]
        return result

    def close(self) -> None:
        """Drop temporary files."""
        self.ops.close()
        self.comms.close()


def _external(args: GpuArgs) -> int | None:
    if args.external_id is not None:
        return args.external_id
    return args.external_id_2021 or None  # 2021: 0 means none


def _triples(values: list[list[int] | None]) -> pa.Array:
    try:
        return pa.array(values, pa.list_(pa.int32()))
    except (pa.ArrowInvalid, OverflowError):
        return pa.array([None] * len(values), pa.list_(pa.int32()))


__all__ = ["SPILL_ROWS", "GpuRows", "Spill", "as_int", "np"]
