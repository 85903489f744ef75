"""Work on a device: kernels, copies, sets and whole graphs; and the collectives among kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.ingest.nsys import meta as m
from tracekit.ingest.nsys import nccl
from tracekit.ingest.nsys.batch import Batch
from tracekit.ingest.nsys.sweep import NEVER, Launched
from tracekit.ingest.traces import names
from tracekit.ingest.traces.columns import constant, int32s, ints, texts

if TYPE_CHECKING:
    from tracekit.ingest.nsys.reader import Reader

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_SHARED = ("start", "end", "deviceId", "contextId", "streamId", "correlationId")
_KERNEL = (
    *_SHARED, "globalPid", "demangledName", "shortName", "registersPerThread", "gridX", "gridY",
    "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory",
    "graphNodeId", "graphId",
)  # fmt: skip
_COPY = (*_SHARED, "bytes", "copyKind", "graphNodeId")
_SET = (*_SHARED, "bytes", "graphNodeId")
_GRAPH = (*_SHARED, "graphId")

_COPY_KINDS: dict[int, tuple[str, str | None]] = {
    0: ("Unknown", None),
    1: ("Host-to-Device", "HtoD"),
    2: ("Device-to-Host", "DtoH"),
    3: ("Host-to-Array", "HtoA"),
    4: ("Array-to-Host", "AtoH"),
    5: ("Array-to-Array", "AtoA"),
    6: ("Array-to-Device", "AtoD"),
    7: ("Device-to-Array", "DtoA"),
    8: ("Device-to-Device", "DtoD"),
    9: ("Host-to-Host", "HtoH"),
    10: ("Peer-to-Peer", "PtoP"),
    11: ("Unified Host-to-Device", "HtoD"),
    12: ("Unified Device-to-Host", "DtoH"),
    13: ("Unified Device-to-Device", "DtoD"),
}
"""Number of a copy's kind -> what nsys prints, and the registry's word."""

_DTYPES = {
    "i8": "Char", "int8_t": "Char", "u8": "Byte", "uint8_t": "Byte", "i32": "Int", "int32_t": "Int",
    "u32": "UInt32", "uint32_t": "UInt32", "i64": "Long", "int64_t": "Long", "u64": "UInt64",
    "uint64_t": "UInt64", "f16": "Half", "half": "Half", "f32": "Float", "float": "Float",
    "f64": "Double", "double": "Double", "bf16": "BFloat16", "__nv_bfloat16": "BFloat16",
    "f8e4m3": "Float8_e4m3fn", "f8e5m2": "Float8_e5m2",
}  # fmt: skip
"""A type in the name of NCCL's kernel -> the word of profiler traces."""

_HIDDEN = (
    "CUDA graphs that were recorded as a whole: the kernels in them, collectives included, are "
    "not in the export. Capture again with nsys profile --cuda-graph-trace=node."
)


class DeviceRows:
    """Reads the tables of device work; remembers what each launch call launched."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.used: set[int] = set()
        self.collectives = 0
        self.kernels = 0
        self.unnamed = 0
        self.comm_launches: list[tuple[Int64s, Int64s]] = []
        """Thread and start of the calls that launched kernels of communication."""
        self._first = np.zeros(0, np.int64)
        self._last = np.zeros(0, np.int64)
        self._classes: dict[int | None, names.KernelClass] = {}
        self._kernel_ids = pa.array([], pa.int64())

    def read(self) -> None:
        """Write gpu_op and collective."""
        count = len(self.reader.launches.start)
        self._first = np.full(count, NEVER, np.int64)
        self._last = np.full(count, -NEVER, np.int64)
        for table, wanted, category in (
            (m.KERNEL, _KERNEL, "kernel"),
            (m.MEMCPY, _COPY, "memcpy"),
            (m.MEMSET, _SET, "memset"),
            (m.GRAPH, _GRAPH, "graph"),
        ):
            for batch in self.reader.batches(table, wanted):
                self._add(table, batch, category)

    def launched(self) -> Launched:
        """The launch calls that put work on a device."""
        calls = self.reader.launches
        busy = self._last > -NEVER
        return Launched(
            calls.thread[busy],
            calls.start[busy],
            calls.end[busy],
            self._first[busy],
            self._last[busy],
        )

    def _add(self, table: str, batch: Batch, category: str) -> None:
        reader = self.reader
        place, start, dur, good = reader.timed(table, batch)
        correlation = batch.ints("correlationId")
        device = batch.int32s("deviceId")
        self.used.update(v for v in device.unique().to_pylist() if v is not None)
        columns: dict[str, Any] = {
            "place": place,
            "start_ns": pa.array(start),
            "dur_ns": pa.array(dur),
            "category": constant(category, len(batch)),
            "device": device,
            "context": batch.ints("contextId"),
            "stream": batch.ints("streamId"),
            "correlation": correlation,
            **self._launch(correlation, start, dur, good),
        }
        columns["graph_id"] = _not_zero(batch.ints("graphId"))
        columns["graph_node_id"] = _not_zero(batch.ints("graphNodeId"))
        classes = self._named(batch, category, columns)
        reader.put("gpu_op", columns, good)
        if category == "graph":
            reader.sink.count("kernels_hidden_in_graphs", int(good.sum()), doc=_HIDDEN)
        is_comm = good & classes
        if is_comm.any():
            self.collectives += int(is_comm.sum())
            self._collectives(columns, is_comm)

    def _launch(
        self, correlation: pa.Array, start: Int64s, dur: Int64s, good: Bools
    ) -> dict[str, Any]:
        """Launch columns and the step of each row."""
        reader = self.reader
        calls, steps = reader.launches, reader.steps
        at, is_known = calls.find(pa.chunked_array([correlation]), start)
        rows = at[is_known & good]
        if len(rows):
            np.minimum.at(self._first, rows, start[is_known & good])
            np.maximum.at(self._last, rows, (start + dur)[is_known & good])
        begin = calls.start[at] if len(calls.start) else np.zeros(len(start), np.int64)
        by_launch, is_launch = steps.find(begin)
        by_time, is_time = steps.find(start)
        is_launch = is_launch & is_known
        is_time = is_time & ~is_known  # work whose launch lies outside all steps belongs to none
        source = np.where(is_launch, "launch", np.where(is_time, "time", ""))
        missing = ~is_known

        def of(values: Int64s) -> pa.Array:
            return (
                pa.array(values[at], mask=missing) if len(values) else pa.nulls(len(at), pa.int64())
            )

        pid = reader.process.pid if reader.process else None
        return {
            "pid": pa.array(np.full(len(at), pid, np.int64)) if pid is not None else of(calls.pid),
            "launch_start_ns": of(calls.start),
            "launch_end_ns": of(calls.end),
            "launch_thread": of(calls.thread),
            "step": pa.array(np.where(is_launch, by_launch, by_time), mask=~(is_launch | is_time)),
            "step_source": pa.array(source.tolist(), pa.string(), mask=source == ""),
        }

    def _named(self, batch: Batch, category: str, columns: dict[str, Any]) -> Bools:
        """Add what a row's name and kind say; which rows are communication."""
        n = len(batch)
        if category == "kernel":
            return self._kernels(batch, columns)
        columns["class"] = constant("other" if category == "graph" else "memory", n)
        columns["class_source"] = constant("category", n)
        if category == "graph":
            columns["name"] = texts([f"CUDA graph {g}" for g in batch["graphId"]])
            return np.zeros(n, np.bool_)
        columns["transfer_bytes"] = batch.ints("bytes")
        if category == "memset":
            columns["name"] = constant("[CUDA memset]", n)
        else:
            kinds = [_COPY_KINDS.get(k, ("Unknown", None)) for k in batch["copyKind"]]
            columns["name"] = texts([f"[CUDA memcpy {label}]" for label, _ in kinds])
            columns["copy_kind"] = texts([kind for _, kind in kinds])
        return np.zeros(n, np.bool_)

    def _kernels(self, batch: Batch, columns: dict[str, Any]) -> Bools:
        strings = self.reader.strings
        ids = batch.ints("demangledName")
        if ids.null_count:
            ids = pc.coalesce(ids, batch.ints("shortName"))
        encoded = ids.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        shown = [strings.text(name_id) for name_id in distinct]
        for name_id, text in zip(distinct, shown, strict=True):
            if name_id not in self._classes:
                self._classes[name_id] = names.classify_kernel(text or "")
        is_comm = np.array(
            [self._classes[name_id].library is not None for name_id in distinct], np.bool_
        )
        codes = encoded.indices
        known = np.asarray(codes.is_valid())
        rows = known & (is_comm[np.asarray(codes.fill_null(0))] if len(is_comm) else False)
        name = columns["name"] = pa.array(shown, pa.string()).take(codes)
        self.kernels += len(batch)
        is_named = np.asarray(name.is_valid())
        self.unnamed += int((~is_named).sum())
        kinds = np.where(rows, "communication", np.where(is_named, "compute", "other"))
        columns["class"] = pa.array(kinds)
        columns["class_source"] = constant("name", len(batch))
        self._kernel_ids = ids
        columns["grid"] = _triples(batch, "gridX", "gridY", "gridZ")
        columns["block"] = _triples(batch, "blockX", "blockY", "blockZ")
        columns["registers_count"] = batch.int32s("registersPerThread")
        columns["shared_memory_bytes"] = pc.add(
            batch.ints("staticSharedMemory").fill_null(0),
            batch.ints("dynamicSharedMemory").fill_null(0),
        )
        return rows

    def _heard(self, rows: pa.Table) -> list[nccl.Said]:
        """What NCCL's payloads say of each kernel's call."""
        threads, starts = rows["launch_thread"].to_pylist(), rows["launch_start_ns"].to_pylist()
        payloads = self.reader.payloads
        heard = [
            payloads.of_launch(t, s) if t is not None and s is not None else nccl.Said()
            for t, s in zip(threads, starts, strict=True)
        ]
        for said, start in zip(heard, starts, strict=True):
            if said.comm is not None and start is not None:
                payloads.finished[said.comm] = max(start, payloads.finished.get(said.comm, start))
        return heard

    def _collectives(self, columns: dict[str, Any], is_comm: Bools) -> None:
        mask = pa.array(is_comm)
        rows = pa.table(columns).filter(mask)
        said = [self._classes[name_id] for name_id in self._kernel_ids.filter(mask).to_pylist()]
        n = rows.num_rows
        launched = rows.filter(pc.is_valid(rows["launch_start_ns"]))
        self.comm_launches.append(
            (launched["launch_thread"].to_numpy(), launched["launch_start_ns"].to_numpy())
        )
        heard = self._heard(rows)
        ops = [_agreed(c.op, h.op) for c, h in zip(said, heard, strict=True)]
        known = self.reader.payloads.communicators
        sizes = [known[h.comm].ranks_count if h.comm in known else None for h in heard]
        totals = [
            nccl.message_bytes(op, h.in_bytes, size)
            for op, h, size in zip(ops, heard, sizes, strict=True)
        ]
        # A peer is numbered within its communicator: in that of all ranks, that is its rank.
        world = self.reader.world_size
        peers = [
            h.peer if size and size == world else None for h, size in zip(heard, sizes, strict=True)
        ]
        self.reader.sink.write(
            "collective",
            pa.table(
                {
                    **{
                        c: rows[c]
                        for c in (
                            "place",
                            "start_ns",
                            "dur_ns",
                            "device",
                            "stream",
                            "step",
                            "step_source",
                        )
                    },
                    "enqueue_ns": rows["launch_start_ns"],
                    "op": texts(ops),
                    "reduction": texts([c.reduction for c in said]),
                    "dtype": texts([_dtype(c) for c in said]),
                    "is_p2p": pa.array(
                        [names.is_point_to_point(o) for o in ops],
                        pa.bool_(),
                    ),
                    "group_id": texts([nccl.group_id(h.comm) if h.comm else None for h in heard]),
                    "group_source": texts(["file" if h.comm else None for h in heard]),
                    "group_name": texts([h.comm for h in heard]),
                    "group_size": int32s(sizes),
                    "group_rank": int32s(
                        [known[h.comm].rank if h.comm in known else None for h in heard]
                    ),
                    "root": int32s([h.root for h in heard]),
                    "dst_rank": int32s(
                        [p if o == "send" else None for p, o in zip(peers, ops, strict=True)]
                    ),
                    "src_rank": int32s(
                        [p if o == "recv" else None for p, o in zip(peers, ops, strict=True)]
                    ),
                    "peer_group_rank": int32s(
                        [
                            h.peer if o in names.POINT_TO_POINT else None
                            for h, o in zip(heard, ops, strict=True)
                        ]
                    ),
                    # These calls state what each member gets of it.
                    "in_bytes": ints(
                        [
                            total if op in ("reduce_scatter", "scatter") else h.in_bytes
                            for op, h, total in zip(ops, heard, totals, strict=True)
                        ]
                    ),
                    "out_bytes": ints(
                        [
                            nccl.out_bytes(op, h, size)
                            for op, h, size in zip(ops, heard, sizes, strict=True)
                        ]
                    ),
                    "message_bytes": ints(totals),
                    "timeline": constant("device", n),
                    "gpu_op_place": rows["place"],
                    "library": texts([c.library for c in said]),
                    "class_source": constant("name", n),
                }
            ),
        )


def _agreed(shown: str | None, heard: str | None) -> str:
    """The operation: the payload's word where the kernel's name does not speak against it."""
    if heard is None or heard == "unknown":
        return shown or "unknown"
    return heard if names.may_be(shown, heard) else shown or "unknown"


def _dtype(said: names.KernelClass) -> str | None:
    """Kernels that only move bytes are all named for int8 in old versions."""
    return _DTYPES.get(said.dtype, said.dtype) if said.reduction and said.dtype else None


def _not_zero(values: pa.Array) -> pa.Array:
    """Ids, of which 0 means none."""
    return pc.if_else(pc.equal(values, 0), None, values)


def _triples(batch: Batch, *axes: str) -> pa.Array:
    parts = [batch.int32s(a) for a in axes]
    if any(p.null_count for p in parts):
        rows = zip(*(p.to_pylist() for p in parts), strict=True)
        return pa.array([None if None in r else list(r) for r in rows], pa.list_(pa.int32()))
    flat = np.stack([np.asarray(p) for p in parts], axis=1).ravel()
    offsets = pa.array(np.arange(0, 3 * len(batch) + 1, 3, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(flat))
