"""One process of an export into the registry's tables, in an order that needs no second look:
host calls, then ranges, then device work (which needs both), then the ranges' projection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import InputError
from tracekit.ingest.base import Sink, SourceFile, Status
from tracekit.ingest.nsys import meta as m
from tracekit.ingest.nsys import nccl, samples, sniff
from tracekit.ingest.nsys.batch import Batch
from tracekit.ingest.nsys.database import MAX_VALUE_BYTES, OnDisk, Tables
from tracekit.ingest.nsys.device import DeviceRows
from tracekit.ingest.nsys.ranges import PUSH_POP, HostRanges
from tracekit.ingest.nsys.strings import Strings
from tracekit.ingest.traces import names
from tracekit.ingest.traces.columns import constant, int32s, ints, texts
from tracekit.ingest.traces.launches import Launches, Ranges
from tracekit.values import MAX_RANKS

Int64s = npt.NDArray[np.int64]

PLACES = (
    m.KERNEL, m.MEMCPY, m.MEMSET, m.GRAPH, m.RUNTIME, m.SYNC, m.NVTX, *samples.TABLES,
)  # fmt: skip
"""A row's place is the number of its table here times 2**40, plus its rowid there."""
PLACE_SHIFT = 40
TID_MASK = 0xFFFFFF

_API_VERSION = re.compile(r"_v\d{4,5}$")
_DRIVER = re.compile(r"cu[A-Z]")
_API_CLASSES = (0, 1)
"""CUDA runtime and driver: eventClass of the calls themselves (ENUM_NSYS_EVENT_CLASS)."""
_SYNC_KINDS = {1: "event", 2: "stream_wait_event", 3: "stream", 4: "context"}
_NO_EVENT = 2**32 - 1
"""Of events and streams: none."""
_NO_SIZES = (
    "Collectives whose communicator and size are unknown: nsys leaves them out unless asked. "
    f"Export again with {sniff.export_command()}"
)


_LOST = f"none ended, or {m.KERNEL} was not exported"
_NO_KERNELS = (
    "Calls that launched kernels, in an export without any kernel: none ended, or their table was "
    "left out."
)
_NO_NAMES = (
    "Kernels whose names are not in the export, in its table StringIds: nobody knows whether they "
    "compute or communicate."
)


def read(source: SourceFile, sink: Sink) -> None:
    """Read one source; what is wrong with it becomes its status."""
    sink.fact(place_kind="row", time_resolution_ns=1)
    with OnDisk(source, sniff.stored_path(source)) as path, sniff.opened(path) as database:
        if not m.is_export(database):
            if database.missing_bytes or database.damaged:
                raise InputError("it is cut off or damaged before its tables begin")
            sink.fact(
                kind="sqlite",
                status="unrecognised",
                reason="a SQLite database that is no export of Nsight Systems",
            )
            return
        Reader(source, sink, database).run()


class Reader:
    """State of reading one process of an export."""

    def __init__(self, source: SourceFile, sink: Sink, database: Tables) -> None:
        self.source = source
        self.sink = sink
        self.database = database
        self.meta = m.read_meta(database)
        self.process: m.Process | None = None
        self.siblings = 0
        self.strings = Strings(database)
        self.launches = Launches()
        self.steps = Ranges()
        self.window: list[int] = []
        self.rows = 0
        self.collectives = 0
        self.unnamed_kernels = 0
        self.lost_launches = 0
        self.payloads = nccl.Payloads()

    def run(self) -> None:
        """Write all rows and facts."""
        processes = m.processes(self.database)
        self.siblings = len(processes)
        wanted = [p for p in processes if not self.source.part or p.part == self.source.part]
        if self.source.part and not wanted:
            raise InputError("the export no longer holds this process")
        self.process = wanted[0] if len(wanted) == 1 else None
        ranges = HostRanges(self)
        device = DeviceRows(self)
        try:
            self._calls()
            ranges.read()
            self.steps.finish()
            self._payloads()
            device.read()
            ranges.write(device.launched())
        finally:
            ranges.close()
        self._open_calls(device)
        self._syncs()
        samples.read(self)
        self._processes()
        self._groups()
        self._devices(device.used)
        self.collectives = device.collectives
        self.unnamed_kernels = device.unnamed
        # What is captured into a graph is launched and runs as a part of the graph.
        is_told = device.kernels > 0 or self.database.has(m.GRAPH, "start")
        self.lost_launches = 0 if is_told else self._kernel_launches()
        if self.lost_launches:
            self.sink.count("launches_without_kernels", self.lost_launches, doc=_NO_KERNELS)
        if device.unnamed:
            self.sink.count("kernels_without_names", device.unnamed, doc=_NO_NAMES)
        if device.collectives and self.payloads.is_empty:
            self.sink.count(
                "sizes_not_exported", device.collectives, severity="info", doc=_NO_SIZES
            )
        self._facts()

    # --- shared with the readers of ranges and device work -----------------------------------

    def batches(self, table: str, wanted: tuple[str, ...], where: str = "") -> Iterator[Batch]:
        """Rows of this process."""
        return self.database.stream(table, wanted, self._of_process(table, where))

    def _few(self, table: str, wanted: tuple[str, ...], where: str) -> Iterator[Batch]:
        """Rows of this process that a condition makes few, or that are looked at one by one."""
        return self.database.batches(table, wanted, self._of_process(table, where))

    def _of_process(self, table: str, where: str) -> str:
        conditions = [where] if where else []
        if self.process is not None:
            if self.database.has(table, "globalPid"):
                conditions.append(f'"globalPid" = {self.process.global_pid}')
            elif self.database.has(table, "globalTid"):
                conditions.append(f'("globalTid" & -16777216) = {self.process.global_pid}')
        return " AND ".join(conditions)

    def timed(
        self, table: str, batch: Batch, end_default: int | None = None
    ) -> tuple[pa.Array, Int64s, Int64s, npt.NDArray[np.bool_]]:
        """Place, start and duration of a batch on the epoch, and which rows have both times."""
        start, end = batch.ints("start"), batch.ints("end")
        if end_default is not None:
            end = pc.fill_null(end, end_default)
        good = np.asarray(pc.and_(start.is_valid(), end.is_valid()))
        begin = np.asarray(start.fill_null(0))
        dur = np.asarray(end.fill_null(0)) - begin
        backwards = good & (dur < 0)
        far = good & (np.abs(begin) > 2**61)
        self.tell(~good | far, table, "row_without_time", "Rows without usable times, left out.")
        self.tell(backwards, table, "negative_duration", "Negative durations, read as 0.")
        good &= ~far
        begin = np.where(good, begin + self.meta.offset_ns, 0)
        dur = np.where(good, np.maximum(dur, 0), 0)
        if good.any():
            self.window += [int(begin[good].min()), int((begin + dur)[good].max())]
            self.window = [min(self.window), max(self.window)]
        self.rows += int(good.sum())
        return self.places(table, batch), begin, dur, good

    def places(self, table: str, batch: Batch) -> pa.Array:
        """The place of each row of a batch."""
        rowids = np.asarray(batch.rowids, np.int64)
        return pa.array((PLACES.index(table) << PLACE_SHIFT) + rowids)

    @property
    def is_first_of_host(self) -> bool:
        """Whether of several sources of one host this is the one to tell of all its devices."""
        if self.siblings > 1:
            first = m.processes(self.database)[0]
            return self.process is not None and self.process.part == first.part
        return self._local_rank() in (None, 0)

    def tell(self, mask: npt.NDArray[np.bool_], table: str, counter: str, doc: str) -> None:
        """Count the rows of a mask."""
        if mask.any():
            self.sink.count(
                counter, int(mask.sum()), doc=doc, place=PLACES.index(table) << PLACE_SHIFT
            )

    def put(self, table: str, columns: dict[str, Any], good: npt.NDArray[np.bool_]) -> None:
        """Write the rows that are good."""
        rows = pa.table(columns)
        self.sink.write(table, rows if good.all() else rows.filter(pa.array(good)))

    def _payloads(self) -> None:
        """What NCCL attached to its ranges, where blobs were exported."""
        if not self.database.has(m.NVTX, "start", "end", "globalTid", "binaryData"):
            return
        if next(self._few(m.NVTX, ("start",), "binaryData IS NOT NULL"), None) is None:
            return
        self.payloads.load(self.database)
        wanted = ("start", "end", "globalTid", "text", "textId", "binaryData")
        where = f"eventType IN ({PUSH_POP}, 70) AND (binaryData IS NOT NULL OR {self._is_nccl()})"
        for batch in self._few(m.NVTX, wanted, where):
            shown = self.strings.take(ints(batch["textId"])).to_pylist()
            places = self.places(m.NVTX, batch).to_pylist()
            rows = zip(*(batch[c] for c in wanted), shown, places, strict=True)
            for start, end, tid, text, _, blob, registered, place in rows:
                name = registered if registered is not None else text
                if nccl.is_call(name) and isinstance(start, int) and isinstance(end, int):
                    offset = self.meta.offset_ns
                    times = (start + offset, end + offset)
                    self.payloads.add(tid & TID_MASK, *times, name, blob, place)
        self.payloads.finish()
        if self.payloads.unreadable:
            doc = "Payloads of NCCL's ranges that do not have the shape that their schema states."
            self.sink.count("unreadable_payload", self.payloads.unreadable, doc=doc)

    def _is_nccl(self) -> str:
        """Condition on NVTX_EVENTS: ranges whose names begin as NCCL's do."""
        columns = self.database.tables[m.NVTX]
        registered_ids = ", ".join(str(i) for i in self.strings.starting("nccl")[:1000])
        conditions = [f"textId IN ({registered_ids})"] if "textId" in columns else []
        conditions += ["\"text\" LIKE 'nccl%'"] if "text" in columns else []
        return f"({' OR '.join(conditions) or 'FALSE'})"

    def _unnamed_calls(self, device: DeviceRows) -> list[nccl.Call]:
        """The calls without a kernel where no payload tells their communicator."""
        launched = [part for part in device.comm_launches if len(part[0])]
        if not launched or self.payloads.names_communicators:
            return []
        if not self.database.has(m.NVTX, "start", "end", "eventType", "globalTid"):
            return []
        offset = self.meta.offset_ns
        last = max(int(starts.max()) for _, starts in launched) - offset
        where = (
            f'eventType IN ({PUSH_POP}, 70) AND ("end" >= {last} OR "end" IS NULL)'
            f" AND {self._is_nccl()}"
        )
        calls: list[nccl.Call] = []
        wanted = ("start", "end", "globalTid", "text", "textId")
        for batch in self._few(m.NVTX, wanted, where):
            shown = self.strings.take(ints(batch["textId"])).to_pylist()
            places = self.places(m.NVTX, batch).to_pylist()
            rows = zip(*(batch[c] for c in wanted), shown, places, strict=True)
            for start, end, tid, text, _, registered, place in rows:
                name = registered if registered is not None else text
                if nccl.is_call(name) and isinstance(start, int) and isinstance(tid, int):
                    until = end + offset if isinstance(end, int) else 2**62
                    thread = tid & TID_MASK
                    call = nccl.Call(start + offset, until, name, place=place, thread=thread)
                    calls.append(call)
        return nccl.unfinished(calls, launched)

    def _open_calls(self, device: DeviceRows) -> None:
        """What the host asked NCCL for and no kernel shows: where a job hangs, the call it is."""
        calls = self.payloads.open_calls() or self._unnamed_calls(device)
        if not calls:
            return
        known = self.payloads.communicators
        sizes = [known[c.comm].ranks_count if c.comm in known else None for c in calls]
        ops = [nccl.op_of(c.name) for c in calls]
        totals = [
            nccl.asked_bytes(op, c.size_bytes, size)
            for op, c, size in zip(ops, calls, sizes, strict=True)
        ]
        table = pa.table(
            {
                "place": ints([c.place for c in calls]),
                "enqueue_ns": ints([c.start for c in calls]),
                "group_id": texts([nccl.group_id(c.comm) if c.comm else None for c in calls]),
                "group_name": texts([c.comm for c in calls]),
                "group_size": int32s(sizes),
                "op": texts(ops),
                "is_p2p": pa.array([op in names.POINT_TO_POINT for op in ops], pa.bool_()),
                "message_bytes": ints(totals),
            }
        )
        self.sink.write("open_collective", table)

    # --- host calls and synchronisation --------------------------------------------------------

    def _calls(self) -> None:
        wanted = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId")
        clean = _Cleaned(self.strings)
        others: list[pa.Table] = []
        for batch in self.batches(m.RUNTIME, wanted):
            place, start, dur, good = self.timed(m.RUNTIME, batch)
            tids = batch.ints("globalTid")
            name, category = clean.columns(batch.ints("nameId"))
            rows = pa.table(
                {
                    "place": place,
                    "start_ns": pa.array(start),
                    "dur_ns": pa.array(dur),
                    "category": category,
                    "name": name,
                    "pid": pc.bit_wise_and(pc.shift_right(tids, 24), TID_MASK),
                    "thread": pc.bit_wise_and(tids, TID_MASK),
                    "correlation": batch.ints("correlationId"),
                }
            )
            rows = rows if good.all() else rows.filter(pa.array(good))
            classes = np.asarray(batch.ints("eventClass").fill_null(_API_CLASSES[0]))
            is_other = ~np.isin(classes[good], _API_CLASSES)
            if is_other.any():
                others.append(rows.filter(pa.array(is_other)))
                rows = rows.filter(pa.array(~is_other))
            self._write_calls(rows)
        self.launches.finish()
        if others:
            self._write_others(pa.concat_tables(others))

    def _write_calls(self, rows: pa.Table) -> None:
        self.sink.write("host_op", rows)
        linked = rows.filter(rows["correlation"].is_valid())
        start = linked["start_ns"].to_numpy()
        self.launches.add(
            linked["correlation"].to_numpy(),
            start,
            start + linked["dur_ns"].to_numpy(),
            linked["thread"].fill_null(-1).to_numpy(),
            linked["pid"].fill_null(-1).to_numpy(),
        )

    def _write_others(self, rows: pa.Table) -> None:
        """Records of other classes: one that encloses a call with the same correlation on its
        thread is that call again (in nsys, with its backtrace), and is left out."""
        start = rows["start_ns"].to_numpy()
        is_repeated = self.launches.has_inside(
            rows["correlation"].fill_null(-1).to_numpy(),
            rows["thread"].fill_null(-1).to_numpy(),
            start,
            start + rows["dur_ns"].to_numpy(),
        )
        if is_repeated.any():
            place = rows["place"][int(np.argmax(is_repeated))].as_py()
            self.sink.count(
                "call_recorded_twice",
                int(is_repeated.sum()),
                severity="info",
                doc="Calls that are recorded a second time, with their backtrace; counted once.",
                place=place,
            )
        self._write_calls(rows.filter(pa.array(~is_repeated)))
        self.launches.finish()

    def _kernel_launches(self) -> int:
        """Calls that launched kernels, by their names."""
        if not self.database.has(m.RUNTIME, "nameId"):
            return 0
        launching = self.strings.matching(r"^cu(da)?Launch(Cooperative)?Kernel")
        ids = pa.array(launching, pa.int64())
        parts = self.batches(m.RUNTIME, ("nameId",))
        return sum(pc.sum(pc.is_in(b.ints("nameId"), ids)).as_py() or 0 for b in parts)

    def _syncs(self) -> None:
        wanted = (
            "start", "end", "deviceId", "contextId", "streamId", "correlationId", "syncType",
            "eventId", "eventSyncId",
        )  # fmt: skip
        recorded = self._recorded_events()
        for batch in self.batches(m.SYNC, wanted):
            place, start, dur, good = self.timed(m.SYNC, batch)
            kinds = [_SYNC_KINDS.get(k) for k in batch["syncType"]]
            events = [None if e in (None, _NO_EVENT) else e for e in batch["eventId"]]
            records = [
                recorded.get((e, s), (None, None))
                for e, s in zip(events, batch["eventSyncId"], strict=True)
            ]
            waits = [k in ("event", "stream_wait_event") for k in kinds]
            columns = {
                "place": place,
                "start_ns": pa.array(start),
                "dur_ns": pa.array(dur),
                "kind": texts(kinds),
                "name": texts(kinds),
                "device": batch.int32s("deviceId"),
                "context": batch.ints("contextId"),
                "stream": ints([None if s == _NO_EVENT else s for s in batch["streamId"]]),
                "correlation": batch.ints("correlationId"),
                "wait_on_stream": ints(
                    [r[0] if w else None for r, w in zip(records, waits, strict=True)]
                ),
                "wait_on_event": ints(
                    [e if w else None for e, w in zip(events, waits, strict=True)]
                ),
                "recording_correlation": ints(
                    [r[1] if w else None for r, w in zip(records, waits, strict=True)]
                ),
            }
            self.put("sync_op", columns, good)

    def _recorded_events(self) -> dict[tuple[Any, Any], tuple[Any, Any]]:
        """Stream and call that recorded each event; only where the export tells recordings of
        one event apart."""
        if not self.database.has(m.CUDA_EVENT, "eventId", "eventSyncId"):
            return {}
        wanted = ("eventId", "eventSyncId", "streamId", "correlationId")
        events: dict[tuple[Any, Any], tuple[Any, Any]] = {}
        for batch in self.batches(m.CUDA_EVENT, wanted):
            for event, sync, stream, correlation in zip(*(batch[c] for c in wanted), strict=True):
                events[event, sync] = (stream, correlation)
        return events

    # --- small tables and facts ----------------------------------------------------------------

    def _processes(self) -> None:
        if self.process is None:
            return
        where = "globalPid = ?"
        listed = self.database.has("PROCESSES", "globalPid", "name")
        rows = (
            list(self.database.rows("PROCESSES", ("name",), where, [self.process.global_pid]))
            if listed
            else []
        )
        name = next((r[0] for r in rows if isinstance(r[0], str)), None)
        # The environment is that of the program that nsys started: of a launcher, where the
        # export holds several processes, and then its ranks are nobody's.
        env = self.meta.env if self.siblings == 1 else {}
        table = pa.table(
            {
                "pid": pa.array([self.process.pid], pa.int64()),
                "name": texts([names.program(name)]),
                "cuda_visible_devices": texts([env.get("CUDA_VISIBLE_DEVICES")]),
                "local_rank": int32s([self._local_rank()]),
                "env": pa.array(
                    [sorted(f"{k}={v}" for k, v in env.items())], pa.list_(pa.string())
                ),
            }
        )
        self.sink.write("process", table)

    def _groups(self) -> None:
        """Communicators by their hash: equal hashes are equal members, whichever they are."""
        seen = sorted(self.payloads.communicators.items())
        if not seen:
            return
        world = self.world_size
        is_meant = world is not None and world <= MAX_RANKS
        complete = [is_meant and c.ranks_count == world for _, c in seen]
        ranks = [list(range(world)) if ok and world else None for ok in complete]
        n = len(seen)
        table = pa.table(
            {
                "group_id": texts([nccl.group_id(comm) for comm, _ in seen]),
                "group_source": constant("file", n),
                "name": texts([comm for comm, _ in seen]),
                "backend": constant("nccl", n),
                "group_size": int32s([c.ranks_count for _, c in seen]),
                "ranks": pa.array(ranks, pa.list_(pa.int32())),
                "is_ranks_complete": pa.array(complete),
                "comm_hash": texts([comm for comm, _ in seen]),
            }
        )
        self.sink.write("process_group", table)

    @property
    def world_size(self) -> int | None:
        """The environment's word, else the size of the largest communicator."""
        stated = self.meta.number(m.WORLD_KEYS)
        world = self.payloads.world()
        return stated or (world.ranks_count if world else None)

    def _rank(self) -> int | None:
        """Its rank in the communicator of all; else the environment's word, where that is of this
        process and not of a launcher that started several."""
        world = self.payloads.world()
        if world is not None and world.ranks_count == self.world_size:
            return world.rank
        return self.meta.number(m.RANK_KEYS) if self.siblings == 1 else None

    def _local_rank(self) -> int | None:
        return self.meta.number(m.LOCAL_RANK_KEYS) if self.siblings == 1 else None

    def _devices(self, used: set[int]) -> None:
        pid = self.process.pid if self.process else -1
        described = m.gpus(self.database, pid)
        by_ordinal = {g.ordinal: g for g in described if g.ordinal is not None}
        models = {g.model for g in described}
        rows: list[tuple[int, m.Gpu | None]] = [(o, by_ordinal.get(o)) for o in sorted(used)]
        if not rows:
            return
        shared = models.pop() if len(models) == 1 else None
        table = pa.table(
            {
                "ordinal": int32s([o for o, _ in rows]),
                "uuid": texts([g.uuid if g else None for _, g in rows]),
                "pci": texts([g.pci if g else None for _, g in rows]),
                "model": texts([g.model if g else shared for _, g in rows]),
                "sm_count": int32s([g.sm_count if g else None for _, g in rows]),
                "memory_bytes": ints([g.memory_bytes if g else None for _, g in rows]),
                "is_used": pa.array([True] * len(rows)),
            }
        )
        self.sink.write("device", table)

    def _facts(self) -> None:
        meta = self.meta
        is_alone = self.siblings == 1
        status, reason = self._status()
        product = (
            f"NVIDIA Nsight Systems {meta.product}" if meta.product else "NVIDIA Nsight Systems"
        )
        versions = [f"driver={meta.driver}"] if meta.driver else []
        self.sink.fact(
            producer=product,
            schema_version=meta.schema,
            time_basis="none" if not self.window else "epoch" if meta.utc_ns else "relative",
            window_start_ns=self.window[0] if self.window else None,
            window_end_ns=max(self.window[1], meta.session_end_ns or 0) if self.window else None,
            is_truncated_start=True if meta.is_cut else None,
            is_truncated_end=meta.is_cut or bool(self.database.damaged),
            status=status,
            reason=reason,
            file_rank=self._rank(),
            name_rank=names.rank_of_name(self.source.name) if is_alone else None,
            world_size=self.world_size,
            backend="nccl" if self.collectives else None,
            host_name=meta.host,
            versions=versions,
        )

    def _status(self) -> tuple[Status, str]:
        damaged = self.database.damaged
        unreal = sorted(set(self.database.unreal) & {*m.KNOWN_TABLES, *PLACES})
        for table in unreal:
            self.sink.count(
                "table_is_a_view",
                severity="error",
                doc="What has a table's name and is a view or a virtual table is never read.",
                shape=table,
            )
        for table, rows in self.database.too_long.items():
            self.sink.count(
                "value_too_long",
                len(rows),
                severity="error",
                doc=f"Rows with a value longer than {MAX_VALUE_BYTES >> 20} MiB, left out.",
                shape=table,
            )
        for table, why in self.database.read_again.items():
            self.sink.count(
                "table_read_again",
                severity="info",
                doc="Tables that the faster library did not read to their end, and sqlite3 did.",
                shape=f"{table}: {why}",
            )
        for text in damaged:
            table, _, why = text.partition(": ")
            self.sink.count(
                "table_broke_off",
                severity="error",
                doc="Tables that could not be read to their end.",
                shape=f"{table}: {why}",
            )
        if damaged:
            _, _, why = damaged[0].partition(": ")
            if not self.rows:
                return "unreadable", why
            tables = list(dict.fromkeys(t.partition(": ")[0] for t in damaged))
            more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
            return "partial", f"{tables[0]}{more} cannot be read to the end: {why}"
        if unreal:
            return "partial", f"{', '.join(unreal)}: a view or virtual table, which is never read"
        if self.database.too_long:
            count = sum(map(len, self.database.too_long.values()))
            limit = f"a value longer than {MAX_VALUE_BYTES >> 20} MiB"
            return "partial", f"rows with {limit} left out: {count}"
        if self.lost_launches:
            return "partial", f"{self.lost_launches} launches of kernels and no kernel: {_LOST}"
        if self.unnamed_kernels:
            return "partial", f"{self.unnamed_kernels} kernels have no name; export all tables"
        if self.database.missing_bytes:
            missing = f"it is cut off: {self.database.missing_bytes:,} bytes are missing"
            return ("partial" if self.rows else "unreadable"), missing
        if not self.rows:
            return "empty", "the export holds no traced work"
        if self.process is None and self.siblings > 1:
            return "partial", "several processes could not be told apart"
        return "ok", "an export of Nsight Systems"


class _Cleaned:
    """Names of calls without the version of the interface, and whether they are the driver's."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._names: dict[int, tuple[str | None, str]] = {}

    def columns(self, ids: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Name and category of each row."""
        encoded = ids.dictionary_encode()
        named = []
        for name_id in encoded.dictionary.to_pylist():
            if name_id not in self._names:
                text = self._strings.text(name_id)
                name = _API_VERSION.sub("", text) if text else text
                is_driver = bool(name and _DRIVER.match(name))
                self._names[name_id] = (name, "driver" if is_driver else "runtime")
            named.append(self._names[name_id])
        if not named:
            return pa.nulls(len(ids), pa.string()), constant("runtime", len(ids))
        indices = encoded.indices
        shown = pa.array([n for n, _ in named], pa.string()).take(indices)
        return shown, pa.array([c for _, c in named], pa.string()).take(indices)
