"""The end of a trace: rows that waited, the groups, and the facts about the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit import arrays
from tracekit.ingest.base import Severity
from tracekit.ingest.kineto import collectives, header
from tracekit.ingest.kineto.collectives import Meta
from tracekit.ingest.kineto.links import HostComm
from tracekit.ingest.kineto.stream import TraceStream
from tracekit.ingest.traces import names
from tracekit.ingest.traces.columns import CACHE_LIMIT, constant, int32s, int_lists, ints, texts
from tracekit.ingest.traces.launches import Called
from tracekit.values import group_id

if TYPE_CHECKING:
    from tracekit.ingest.kineto.trace import TraceReader

HOST_LIBRARIES = ("gloo:", "mpi:", "ucc:")
"""Ranges of these run the collective on the thread that they stand on."""

OPEN_COLUMNS = frozenset(
    ("op", "group_id", "group_name", "group_size", "is_p2p", "message_bytes", "dtype")
)
"""What is kept of a call that no kernel shows."""
GroupKey = tuple[str | None, str | None, int | None]
"""Name, description and number of the members, as a call states its group."""


GroupOf = tuple[str | None, str | None, int | None]
"""Id, source and own rank of a collective's group."""


class Members(NamedTuple):
    """What the list of a group's ranks says."""

    ranks: tuple[int, ...]
    number: int
    """Equal for equal lists, in this file."""
    group_id: str
    own_rank: int | None


class Finisher:
    """Completes what a reader kept back."""

    def __init__(self, reader: TraceReader, stream: TraceStream, problem: str | None) -> None:
        self.reader = reader
        self.sink = reader.sink
        self.stream = stream
        self.problem = problem
        self.header = header.parse(stream.header, stream.tail)
        self.groups_by_name = {g.name: g for g in self.header.groups if g.name is not None}
        self.seen_groups: dict[GroupKey, Meta] = {}
        self._members: dict[int, Members] = {}
        """By the identity of the list, which stays while its entry does: the calls of a group share
        one, and looking up thousands of numbers for every call took longer than all else."""
        self._numbers: dict[tuple[int, ...], int] = {}
        self._of_metas: dict[int, tuple[Meta, GroupKey, GroupOf]] = {}
        """By the identity of what the calls of a loop share; likewise."""
        self._renamed: dict[tuple[int, str], Meta] = {}
        """By the identity of a call's metadata and another operation."""
        self._named: dict[str, Meta] = {}
        """What a kernel's name alone says, by operation."""
        self.finished: dict[GroupKey, int] = {}
        """By group: when the host had asked for the last call that has a kernel."""
        self._is_rocm = _is_rocm(self.header)

    def run(self) -> None:
        """Write all rows and facts."""
        reader = self.reader
        reader.launches.finish()
        reader.steps.finish()
        reader.params.finish()
        reader.ranges.finish()
        reader.messages.finish()
        for batch in reader.gpu.ops.batches():
            self._write_ops(reader.gpu.named(batch))
        for batch in reader.gpu.comms.batches():
            self._write_comms(batch)
        self._write_open()
        if reader.gpu.host:
            self._write_host_collectives()
        self._write_groups()
        self._write_devices()
        self._write_processes()
        self._facts()

    # --- joins -----------------------------------------------------------------------------

    def _launch(self, rows: pa.Table) -> tuple[Called, dict[str, Any]]:
        """The launch call of each row, and the columns that say its step."""
        steps = self.reader.steps
        start = rows["start_ns"].to_numpy()
        called = self.reader.launches.find(rows["correlation"], start)
        is_known = called.is_found
        by_launch, is_launch = steps.find(called.start)
        by_time, is_time = steps.find(start)
        is_launch &= is_known
        is_time &= ~is_known  # work whose launch lies outside all steps belongs to none of them
        step = np.where(is_launch, by_launch, by_time)
        return called, {
            "step": arrays.column(step, ~(is_launch | is_time)),
            "step_source": _step_source(is_launch, is_time),
        }

    def _write_ops(self, rows: pa.Table) -> None:
        called, steps = self._launch(rows)
        for column, values in (
            ("launch_start_ns", called.start),
            ("launch_end_ns", called.end),
            ("launch_thread", called.thread),
            ("pid", called.pid),
        ):
            rows = rows.append_column(column, arrays.column(values, ~called.is_found))
        for column, told in steps.items():
            rows = rows.append_column(column, told)
        self.sink.write("gpu_op", rows)

    def _write_comms(self, rows: pa.Table) -> None:
        called, steps = self._launch(rows)
        is_known, starts = called.is_found.tolist(), called.start.tolist()
        threads, pids = called.thread.tolist(), called.pid.tolist()
        codes = rows["meta"].to_pylist()
        externals = rows["external_id"].to_pylist()
        kernel_names = rows["name"].to_pylist()
        sequences = rows["sequence"].to_pylist()
        class_sources = ["name"] * rows.num_rows
        metas: list[Meta] = []
        libraries: list[str | None] = []
        reductions: list[str | None] = []
        enqueued: list[int | None] = []
        for i, code in enumerate(codes):
            shown = self.reader.gpu.shown(kernel_names[i])
            where = (pids[i], threads[i], starts[i]) if is_known[i] else None
            meta = self.reader.gpu.metas[code]
            param = self._param(externals[i], where)
            if param is not None:
                key = self._group_key(param.meta)
                self.finished[key] = max(param.end, self.finished.get(key, param.end))
            if meta is not None:
                class_sources[i] = "args"
            elif param is not None:
                meta = param.meta
                class_sources[i] = "args"
            if (
                sequences[i] is None
                and param is not None
                and param.meta.op not in collectives.PSEUDO
            ):
                sequences[i] = param.sequence
            if meta is None or meta.op in collectives.PSEUDO:
                meta, class_sources[i] = self._ranged(externals[i], where, shown, class_sources[i])
            if meta.op == "unknown" and shown.op not in (None, "unknown"):
                meta = self._with_op(meta, shown.op)
            if shown.op in ("dispatch", "combine"):
                meta = self._with_op(meta, shown.op)
            metas.append(meta)
            libraries.append(self._library(shown))
            reductions.append(shown.reduction)
            enqueued.append(
                param.start if param is not None else starts[i] if is_known[i] else None
            )
        columns = {
            "place": rows["place"],
            "start_ns": rows["start_ns"],
            "dur_ns": rows["dur_ns"],
            "enqueue_ns": ints(enqueued),
            "sequence": ints(sequences),
            "sequence_source": texts([None if s is None else "file" for s in sequences]),
            "reduction": texts(reductions),
            "timeline": constant("device", rows.num_rows),
            "gpu_op_place": rows["place"],
            "device": rows["device"],
            "stream": rows["stream"],
            **steps,
            "library": texts(libraries),
            "class_source": texts(class_sources),
            **self._meta_columns(metas),
            **self._cuts(rows["start_ns"].to_numpy(), rows["dur_ns"].to_numpy()),
        }
        self.sink.write("collective", pa.table(columns))

    def _write_open(self) -> None:
        """What the host asked for after the last call of its group that has a kernel.

        A group without any kernel is no group of this device (gloo), or one that was not seen
        working. A call inside another is the same call; so is one with its number.
        """
        open_calls: list[HostComm] = []
        until = dict(self.finished)
        numbers: set[tuple[GroupKey, bool, int]] = set()
        for param in sorted(self.reader.params, key=lambda p: (p.start, -p.end, p.place)):
            key = self._group_key(param.meta)
            if param.meta.op in (*collectives.PSEUDO, "unknown") or key not in until:
                continue
            if param.start < until[key]:
                continue
            if param.sequence is not None:
                number = (key, bool(names.is_point_to_point(param.meta.op)), param.sequence)
                if number in numbers:
                    continue
                numbers.add(number)
            until[key] = param.end
            open_calls.append(param)
        if not open_calls:
            return
        metas = [p.meta for p in open_calls]
        columns = {
            "place": ints([p.place for p in open_calls]),
            "enqueue_ns": ints([p.start for p in open_calls]),
            "sequence": ints([p.sequence for p in open_calls]),
            **{
                name: values
                for name, values in self._meta_columns(metas).items()
                if name in OPEN_COLUMNS
            },
        }
        self.sink.write("open_collective", pa.table(columns))

    def _param(self, external: int | None, where: tuple[int, int, int] | None) -> HostComm | None:
        """record_param_comms of a kernel: around its launch, else by external id."""
        params = self.reader.params
        if not len(params):
            return None
        if where is not None:
            around = params.around(*where)
            if around is not None:
                return around
        linked = params.by_id(external)
        if linked is not None and where is not None:
            # In some builds External id is the correlation, and equal numbers mean nothing.
            return linked if linked.start <= where[2] <= linked.end else None
        return linked

    def _ranged(
        self,
        external: int | None,
        where: tuple[int, int, int] | None,
        shown: names.KernelClass,
        class_source: str,
    ) -> tuple[Meta, str]:
        """Metadata from the range around the launch, else nothing but the kernel's name."""
        around = self.reader.ranges.around(*where) if where is not None else None
        if around is not None and names.may_be(shown.op, around.meta.op):
            return around.meta, "annotation"
        op = shown.op or "unknown"
        named = self._named.setdefault(op, Meta(op))
        return named, "name" if shown.library else class_source

    def _library(self, shown: names.KernelClass) -> str | None:
        if shown.library == "nccl" and self._is_rocm:
            return "rccl"
        return shown.library

    # --- collectives -----------------------------------------------------------------------

    def _meta_columns(self, metas: list[Meta]) -> dict[str, Any]:
        known = [self._group(m) for m in metas]
        return {
            "op": texts([m.op for m in metas]),
            "group_id": texts([k[0] for k in known]),
            "group_source": texts([k[1] for k in known]),
            "group_rank": int32s([k[2] for k in known]),
            "group_name": texts([m.group_name for m in metas]),
            "group_size": int32s([m.group_size for m in metas]),
            "root": int32s([m.root for m in metas]),
            "src_rank": int32s([m.src_rank for m in metas]),
            "dst_rank": int32s([m.dst_rank for m in metas]),
            "peer_group_rank": int32s([m.peer_group_rank for m in metas]),
            "in_elements_count": ints([m.in_elements for m in metas]),
            "out_elements_count": ints([m.out_elements for m in metas]),
            "dtype": texts([m.dtype for m in metas]),
            "in_bytes": ints([m.in_bytes for m in metas]),
            "out_bytes": ints([m.out_bytes for m in metas]),
            "message_bytes": ints([m.message_bytes for m in metas]),
            "in_split_sizes": int_lists([m.in_split for m in metas], pa.int64()),
            "out_split_sizes": int_lists([m.out_split for m in metas], pa.int64()),
            "is_async": pa.array([m.is_async for m in metas], pa.bool_()),
            "is_p2p": pa.array([names.is_point_to_point(m.op) for m in metas], pa.bool_()),
        }

    def _group(self, meta: Meta) -> GroupOf:
        """Id, source and own rank of a collective's group, which is remembered."""
        _, key, group = self._known(meta)
        if meta.group_name is not None or meta.ranks:
            self.seen_groups.setdefault(key, meta)
        return group

    def _group_key(self, meta: Meta) -> GroupKey:
        return self._known(meta)[1]

    def _known(self, meta: Meta) -> tuple[Meta, GroupKey, GroupOf]:
        known = self._of_metas.get(id(meta))
        if known is None:
            number = None if meta.ranks is None else self._of_ranks(meta.ranks).number
            key = meta.group_name, meta.group_description, number
            ranks = meta.ranks if meta.is_ranks_complete else None
            if ranks is None and meta.group_name is not None:
                config = self.groups_by_name.get(meta.group_name)
                if config is not None and config.ranks and len(config.ranks) == config.size:
                    ranks = config.ranks
            if len(self._of_metas) >= CACHE_LIMIT:
                self._of_metas.clear()
                self._renamed.clear()
            members = self._of_ranks(ranks) if ranks else None
            group = (None,) * 3 if members is None else (members.group_id, "file", members.own_rank)
            known = self._of_metas[id(meta)] = meta, key, group
        return known

    def _with_op(self, meta: Meta, op: str) -> Meta:
        """The same with another operation: one for all calls that share it."""
        key = id(meta), op
        renamed = self._renamed.get(key)
        if renamed is None:
            self._known(meta)  # which keeps it, so that no other can have its identity
            renamed = self._renamed[key] = meta._replace(op=op)
        return renamed

    def _of_ranks(self, ranks: tuple[int, ...]) -> Members:
        known = self._members.get(id(ranks))
        if known is None:
            own_rank = self.header.rank
            known = self._members[id(ranks)] = Members(
                ranks,
                self._numbers.setdefault(ranks, len(self._numbers)),
                group_id(ranks),
                ranks.index(own_rank) if own_rank is not None and own_rank in ranks else None,
            )
        return known

    def _cuts(self, start: Any, dur: Any) -> dict[str, Any]:
        """Whether work reaches over the profiler's own span; unknown without one."""
        span = self.reader.span
        n = len(start)
        if not span:
            return {"is_cut_start": pa.nulls(n, pa.bool_()), "is_cut_end": pa.nulls(n, pa.bool_())}
        return {
            "is_cut_start": arrays.column(start < min(span)),
            "is_cut_end": arrays.column(start + dur > max(span)),
        }

    def _write_host_collectives(self) -> None:
        items = sorted(self.reader.gpu.host, key=lambda item: item[0])
        start = np.array([i[1] for i in items], np.int64)
        dur = np.array([i[2] for i in items], np.int64)
        metas: list[Meta] = []
        params: list[HostComm | None] = []
        for _place, begin, _dur, thread, pid, _library, meta in items:
            param = self.reader.params.around(pid, thread, begin)
            if param is not None and param.meta.op == meta.op:
                metas.append(param.meta)
            else:
                metas.append(self._with_peer(meta, pid, thread, begin))
                param = None
            params.append(param)
        step, is_step = self.reader.steps.find(start)
        columns = {
            "place": pa.array([i[0] for i in items], pa.int64()),
            "start_ns": arrays.column(start),
            "dur_ns": arrays.column(dur),
            "sequence": ints([p.sequence if p else None for p in params]),
            "sequence_source": texts(
                ["file" if p and p.sequence is not None else None for p in params]
            ),
            "timeline": constant("host", len(items)),
            "thread": ints([i[3] for i in items]),
            "step": arrays.column(step, ~is_step),
            "step_source": _step_source(np.zeros(len(items), np.bool_), is_step),
            "library": texts([i[5] for i in items]),
            "class_source": texts(["args" if p else "annotation" for p in params]),
            **self._meta_columns(metas),
            **self._cuts(start, dur),
        }
        self.sink.write("collective", pa.table(columns))

    def _with_peer(self, meta: Meta, pid: int | None, thread: int | None, begin: int) -> Meta:
        """A message with its other side, as the operator around its beginning has it: by global
        rank too, where all ranks are the only group."""
        message = self.reader.messages.around(pid, thread, begin)
        if message is None or message.meta.op != meta.op:
            return meta
        peer, everybody = message.meta.peer_group_rank, self.header.only_group
        meta = meta._replace(peer_group_rank=peer)
        if peer is None or everybody is None or peer >= len(everybody):
            return meta
        if meta.op == "send":
            return meta._replace(dst_rank=everybody[peer])
        return meta._replace(src_rank=everybody[peer])

    # --- small tables ----------------------------------------------------------------------

    def _write_groups(self) -> None:
        rows: dict[tuple[str | None, str | None], dict[str, Any]] = {}
        for config in self.header.groups:
            complete = bool(config.ranks) and len(config.ranks or ()) == config.size
            ident = group_id(config.ranks or ()) if complete else None
            rows[ident, config.name] = _group_row(
                ident, config.name, config.description, config.backend, config.size,
                config.ranks, complete, None,
            )  # fmt: skip
        for meta in self.reader.gpu.metas[1:]:
            if meta is not None:
                self._group(meta)
        for param in self.reader.params:
            self._group(param.meta)
        for meta in sorted(self.seen_groups.values(), key=_group_order):
            if meta.op in collectives.PSEUDO or not (meta.ranks or meta.group_size):
                continue
            ident = group_id(meta.ranks) if meta.ranks and meta.is_ranks_complete else None
            row = rows.get((ident, meta.group_name))
            if row is None and ident is None and any(r[1] == meta.group_name for r in rows):
                continue
            if row is None:
                rows[ident, meta.group_name] = _group_row(
                    ident, meta.group_name, meta.group_description, None, meta.group_size,
                    meta.ranks, meta.is_ranks_complete, meta.comms_id,
                )  # fmt: skip
            elif row["comm_hash"] is None:
                row["comm_hash"] = meta.comms_id
        if rows:
            values = list(rows.values())
            words = ("group_id", "name", "description", "backend", "comm_hash", "group_source")
            columns = {k: texts([v[k] for v in values]) for k in words}
            columns["is_ranks_complete"] = pa.array(
                [v["is_ranks_complete"] for v in values], pa.bool_()
            )
            columns["group_size"] = int32s([v["group_size"] for v in values])
            columns["ranks"] = int_lists([v["ranks"] for v in values], pa.int32())
            self.sink.write("process_group", pa.table(columns))

    def _write_devices(self) -> None:
        used = self.reader.gpu.devices
        rows: dict[int, tuple[str | None, int | None, int | None]] = {}
        for device in self.header.devices:
            ordinal = device.get("id")
            if type(ordinal) is not int or not 0 <= ordinal < 2**31:
                continue
            model = device.get("name")
            sms, memory = device.get("numSms"), device.get("totalGlobalMem")
            rows[ordinal] = (
                model[:100] if isinstance(model, str) and model else None,
                sms if type(sms) is int else None,
                memory if type(memory) is int else None,
            )
        for ordinal in used:
            rows.setdefault(ordinal, (None, None, None))
        if rows:
            order = sorted(rows)
            table = pa.table(
                {
                    "ordinal": int32s(order),
                    "model": texts([rows[o][0] for o in order]),
                    "sm_count": int32s([rows[o][1] for o in order]),
                    "memory_bytes": ints([rows[o][2] for o in order]),
                    "is_used": pa.array([o in used for o in order], pa.bool_()),
                }
            )
            self.sink.write("device", table)

    def _write_processes(self) -> None:
        named = self.reader.odd.processes
        order = sorted(self.reader.pids)
        if order:
            table = pa.table({"pid": ints(order), "name": texts([named.get(p) for p in order])})
            self.sink.write("process", table)

    def _facts(self) -> None:
        reader, head = self.reader, self.header
        base_ns = reader.base_ns
        window = [at + base_ns for at in (*reader.span, *reader.window)]
        status, reason = self._status()
        times_ns = reader.window or reader.span
        is_epoch = bool(base_ns) or bool(times_ns and min(times_ns) >= 10**18)
        self.sink.fact(
            producer="PyTorch profiler (Kineto)",
            schema_version=head.schema_version,
            time_basis="epoch" if is_epoch else "relative" if times_ns else "none",
            time_resolution_ns=1 if reader.has_fraction or base_ns else 1000,
            window_start_ns=min(window) if window else None,
            window_end_ns=max(window) if window else None,
            is_truncated_start=None,
            is_truncated_end=self._is_truncated(),
            status=status,
            reason=reason,
            place_kind="event",
            raw_bytes=self.stream.raw_bytes,
            file_rank=head.rank,
            name_rank=names.rank_of_name(self.reader.source.name),
            world_size=head.world_size,
            backend=head.backend,
            host_name=head.host_name,
            trace_id=head.trace_id,
            versions=sorted(set(head.versions)),
        )

    def _is_truncated(self) -> bool:
        """Whether the file breaks off: in the events, in the keys after them, or in its packing."""
        stream = self.stream
        is_open = stream.has_events and not stream.is_closed
        is_tail_open = stream.has_events and not stream.is_bare and not _ends_object(stream.tail)
        return (
            is_open or is_tail_open or self.problem in ("truncated", "damaged", "limit", "io_error")
        )

    def _status(self) -> tuple[str, str]:
        reader, stream = self.reader, self.stream
        if self.problem:
            doc, severity = _PROBLEMS[self.problem]
            self.sink.count(f"stream_{self.problem}", severity=severity, doc=doc)
        count = reader.events_count + reader.odd.events_count
        if not stream.has_events:
            if not stream.header.strip() and self.problem is None:
                return "empty", "it holds no bytes"
            return "unreadable", "it has no traceEvents"
        if self.problem and _PROBLEMS[self.problem][1] == "error":
            return "partial", _PROBLEMS[self.problem][0]
        if stream.has_events and not stream.is_closed:
            return "partial", "it breaks off before the end of traceEvents"
        if self._is_truncated():
            return "partial", "it breaks off after traceEvents"
        lost = reader.losses + reader.odd.lost
        if lost:
            return "partial", "some of its events cannot be read"
        if not count:
            return "empty", "traceEvents holds no events"
        return "ok", "it has traceEvents"


_PROBLEMS: dict[str, tuple[str, Severity]] = {
    "truncated": ("The compressed data break off.", "error"),
    "checksum": ("The checksum of the compressed data is wrong.", "error"),
    "damaged": ("The compressed data are damaged; what comes after is lost.", "error"),
    "trailing_garbage": ("Bytes after the compressed data, not read.", "warning"),
    "limit": ("It unpacks to more than is allowed; the rest was not read.", "error"),
    "growing": ("It grew while it was read: it is still being written.", "error"),
    "io_error": ("Reading it failed half way; the rest was not read.", "error"),
}
"""What may be wrong with a file's packing, and how bad that is."""


def _ends_object(tail: bytes) -> bool:
    return tail.rstrip(b" \t\r\n\0").endswith(b"}")


def _step_source(is_launch: Any, is_time: Any) -> pa.Array:
    """What told the step of each row: its launch, or else its own time; null where nothing did."""
    codes = np.where(is_launch, 0, 1).astype(np.int32)
    words = pa.array(["launch", "time"], pa.string())
    return pa.DictionaryArray.from_arrays(arrays.column(codes, ~(is_launch | is_time)), words)


def _group_row(*values: Any) -> dict[str, Any]:
    keys = (
        "group_id",
        "name",
        "description",
        "backend",
        "group_size",
        "ranks",
        "is_ranks_complete",
        "comm_hash",
    )
    row = dict(zip(keys, values, strict=True))
    row["group_source"] = "file"
    return row


def _group_order(meta: Meta) -> str:
    return str((meta.group_name, meta.group_description, str(meta.ranks)))


def _is_rocm(header: header.Header) -> bool:
    """Whether what wrote the trace drives AMD's devices, whose NCCL is RCCL."""
    is_hip = any(v.startswith(("hip_", "roctracer_")) for v in header.versions)
    return is_hip or any(str(d.get("name", "")).startswith("AMD") for d in header.devices)
