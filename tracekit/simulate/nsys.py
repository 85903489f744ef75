"""Writes simulated steps as Nsight Systems exports: one SQLite file a rank, of the 3.25 schema.

As ``srun nsys profile --trace=cuda,nvtx --pytorch=autograd-nvtx`` and ``nsys export --type=sqlite
--include-blobs=true`` would leave them: the rank is in the environment that nsys saw, operators
are NVTX ranges, and NCCL's ranges carry communicator, size and peer.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracekit.simulate import program as p
from tracekit.simulate.job import Plan, StepRecord
from tracekit.simulate.kineto import OPERATORS, HostClock, counts, kernel_name, operation_name
from tracekit.simulate.records import Operation

SESSION_NS = 5 * 10**9
"""From the start of the session to that of the job."""

_OPERATION = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,"
    " contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,"
    " correlationId INTEGER, globalPid INTEGER"
)

_SCHEMA = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": (
        "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT, systemClockNs INTEGER"
    ),
    "ANALYSIS_DETAILS": (
        "globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL,"
        " stopTime INTEGER NOT NULL"
    ),
    "TARGET_INFO_SYSTEM_ENV": (
        "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL,"
        " nameEnum INTEGER NOT NULL, value TEXT NOT NULL"
    ),
    "TARGET_INFO_GPU": (
        "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, uuid TEXT,"
        " smCount INTEGER, totalMemory INTEGER, computeMajor INTEGER, computeMinor INTEGER"
    ),
    "TARGET_INFO_CUDA_DEVICE": (
        "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT,"
        " numMultiprocessors INTEGER"
    ),
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_OPERATION}, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL,"
        " mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER,"
        " registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,"
        " gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,"
        " blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,"
        " dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL,"
        " localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,"
        " sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER,"
        " graphId INTEGER, tensorSizeMinusOneElements INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        f"{_OPERATION}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL,"
        " deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER,"
        " srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,"
        " migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,"
        " globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,"
        " returnValue INTEGER NOT NULL, callchainId INTEGER"
    ),
    "NVTX_EVENTS": (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,"
        " category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,"
        " textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER,"
        " doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL,"
        " jsonTextId INTEGER, jsonText TEXT, binaryData BLOB"
    ),
    "NVTX_PAYLOAD_SCHEMAS": (
        "domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER, flags INTEGER,"
        " numEntries INTEGER, payloadSize INTEGER, alignTo INTEGER"
    ),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": (
        "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL,"
        " flags INTEGER, type INTEGER, name TEXT, description TEXT,"
        " arrayOrUnionDetail INTEGER, offset INTEGER"
    ),
}

_ROWS = {
    "kernel": (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName,"
        " shortName, launchType, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ,"
        " staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId",
    ),
    "copy": (
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind,"
        " srcKind, dstKind",
    ),
    "call": (
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
    ),
    "range": (
        "NVTX_EVENTS",
        "start, end, eventType, text, textId, globalTid, domainId, binaryData",
    ),
}

PUSH_POP, DOMAIN_CREATE = 59, 75
NCCL_DOMAIN = 1
_INT, _UINT64, _SIZE = 5, 18, 22
_COMM = (_UINT64, "NCCL communicator ID")
_MESSAGE = (_SIZE, "Message size [bytes]")
_FIRST_SCHEMA = 1 << 24
_REDUCTION = _FIRST_SCHEMA + 14
_PAYLOADS: dict[str, tuple[int, Sequence[tuple[int, str]]]] = {
    "ncclCommInitRank": (
        0,
        (_COMM, (_INT, "No. of ranks"), (_INT, "Rank"), (_INT, "CUDA device")),
    ),
    "ncclAllGather": (4, (_COMM, _MESSAGE)),
    "ncclAllReduce": (5, (_COMM, _MESSAGE, (_REDUCTION, "Reduction operation"))),
    "ncclBroadcast": (6, (_COMM, _MESSAGE, (_INT, "Root"))),
    "ncclReduceScatter": (7, (_COMM, _MESSAGE, (_REDUCTION, "Reduction operation"))),
    "ncclSend": (9, (_COMM, _MESSAGE, (_INT, "Peer rank"))),
    "ncclRecv": (10, (_COMM, _MESSAGE, (_INT, "Peer rank"))),
}
"""NCCL's schemas since 2.25: number beyond the first, entries in order."""
_CALLS = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
    "send": "ncclSend",
    "recv": "ncclRecv",
}
_SHOWN = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}
"""Where PyTorch names its range of a collective for what it calls."""
_COPIES = {"HtoD": (1, 1, 2), "DtoH": (2, 2, 1), "DtoD": (8, 2, 2)}
"""Kind, and where from and to (1 pinned, 2 device)."""
_VERSIONS = {"cudaLaunchKernel": "_v7000", "cudaLaunchKernelExC": "_v11060"}
_OF_PYTORCH = ("enumerate(", "Optimizer.", "nccl:", "c10d::")


class NsysWriter:
    """One rank's export."""

    def __init__(
        self, path: Path, plan: Plan, rank: int, clock: HostClock, epoch_ns: int, host_name: str
    ) -> None:
        self.path = path
        self.plan = plan
        self.rank = rank
        self.clock = clock
        self.zero_ns = clock.read(-SESSION_NS)
        """What the host's clock, counted from the job's epoch, shows when the session starts."""
        self.pid = 20_000 + rank
        self.process = (1 << 48) | (self.pid << 24)
        self.threads = {
            p.MAIN_THREAD: self.process | self.pid,
            p.AUTOGRAD_THREAD: self.process | (self.pid + 40_000),
        }
        self.device = plan.topology.local(rank)
        self._strings: dict[str, int] = {}
        self._written_strings = 0
        self._communicators: set[int] = set()
        self._hashes: dict[tuple[str, tuple[int, ...]], int] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self._last = 0
        path.unlink(missing_ok=True)
        with closing(self._connect()) as con:
            for name, columns in _SCHEMA.items():
                con.execute(f"CREATE TABLE {name} ({columns})")
            self._describe(con, epoch_ns + self.zero_ns, host_name)
            con.commit()

    def _connect(self) -> sqlite3.Connection:
        # Opened for each step: a job may have more ranks than a process may have open files.
        con = sqlite3.connect(self.path)
        con.execute("PRAGMA journal_mode = OFF")
        con.execute("PRAGMA synchronous = OFF")
        return con

    # --- what the export says of itself --------------------------------------------------------

    def _describe(self, con: sqlite3.Connection, utc_ns: int, host_name: str) -> None:
        top, gpu = self.plan.topology, self.plan.topology.gpu
        began = datetime.fromtimestamp(utc_ns // 10**9, UTC).isoformat(timespec="seconds")
        _insert(con, "TARGET_INFO_SESSION_START_TIME", [(utc_ns, began[:19], began[:19], 0)])
        facts = {
            "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
            "EXPORT_PRODUCT_VERSION": "2026.2.1.210",
            "EXPORT_SCHEMA_VERSION": "3.25.0",
            "EXPORT_PARAM_EXPORT_TYPE": "SQLite",
            "EXPORT_PARAM_INCLUDE_BLOBS": "true",
            "EXPORT_PARAM_TIME_NORMALIZE": "false",
            "EXPORT_PARAM_TIMES_TO_EXPORT": "",
            "EXPORT_CONFIG_TIME_SHIFT": "0",
        }
        _insert(con, "META_DATA_EXPORT", list(facts.items()))
        captured = {
            "START_TRIGGER": "Immediate",
            "STOP_TRIGGER": "Delayed",
            "CUDA_GRAPH_TRACE_OPTIONS:MODE": "Graph",
            "PROCESS_0:COMMAND": "python3",
        }
        _insert(con, "META_DATA_CAPTURE", list(captured.items()))
        environment = {
            "SLURM_PROCID": self.rank,
            "SLURM_LOCALID": self.device,
            "SLURM_NTASKS": self.plan.layout.world_size,
        }
        system = {
            "Hostname": host_name,
            "NvDriverVersion": "580.95.05",
            "DeviceEnvironment": ";".join(f"{k}={v}" for k, v in environment.items()),
        }
        _insert(
            con,
            "TARGET_INFO_SYSTEM_ENV",
            [(1 << 48, "", name, i, value) for i, (name, value) in enumerate(system.items())],
        )
        ids = [_uuid(f"{top.host(self.rank)}/{i}") for i in range(top.gpus_per_host)]
        _insert(
            con,
            "TARGET_INFO_GPU",
            [
                (0, i, gpu.name, f"0000:{i + 16:02x}:00.0", uuid, gpu.sm_count, gpu.memory_bytes,
                 gpu.compute_major, 0)
                for i, uuid in enumerate(ids)
            ],
        )  # fmt: skip
        _insert(
            con,
            "TARGET_INFO_CUDA_DEVICE",
            [(i, i, self.pid, uuid, gpu.sm_count) for i, uuid in enumerate(ids)],
        )
        _insert(con, "PROCESSES", [(self.process, self.pid, "/usr/bin/python3")])
        self._describe_payloads(con)
        self._rows["range"].append((0, None, DOMAIN_CREATE, "NCCL", None, None, NCCL_DOMAIN, None))

    @staticmethod
    def _describe_payloads(con: sqlite3.Connection) -> None:
        for name, (number, entries) in _PAYLOADS.items():
            schema = _FIRST_SCHEMA + number
            size = _layout(entries)[1]
            row = (NCCL_DOMAIN, schema, name, 1, 0, len(entries), size, 8)
            _insert(con, "NVTX_PAYLOAD_SCHEMAS", [row])
            offsets = _layout(entries)[0]
            _insert(
                con,
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                [
                    (NCCL_DOMAIN, schema, i, 0, kind, text, None, None, offset)
                    for i, ((kind, text), offset) in enumerate(zip(entries, offsets, strict=True))
                ],
            )

    # --- events --------------------------------------------------------------------------------

    def add(self, record: StepRecord) -> None:
        """The events of one step."""
        for item in record.host:
            self._host(item)
        for operation in record.operations:
            self._operation(operation)
        self._last = max(self._last, self._at(record.end_ns))
        self._flush()

    def close(self, silent_ns: int = 0) -> None:
        """The end of the session, and of a time in which nothing happened for so long."""
        with closing(self._connect()) as con:
            duration = self._last + SESSION_NS // 10 + silent_ns
            _insert(con, "ANALYSIS_DETAILS", [(1 << 48, duration, 0, duration)])
            con.commit()

    def _flush(self) -> None:
        with closing(self._connect()) as con:
            for kind, rows in self._rows.items():
                table, columns = _ROWS[kind]
                rows.sort(key=lambda row: row[0])
                _insert(con, table, rows, columns)
                rows.clear()
            new = list(self._strings.items())[self._written_strings :]
            _insert(con, "StringIds", [(number, text) for text, number in new])
            self._written_strings = len(self._strings)
            con.commit()

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def _at(self, true_ns: int) -> int:
        """Since the start of the session, by the host's clock."""
        return self.clock.read(true_ns) - self.zero_ns

    def _host(self, item: tuple[Any, ...]) -> None:
        kind, name, start, dur, thread, external, _ = item
        if kind in ("collective", "message"):
            op = operation_name(name)
            self._range(OPERATORS[op], start, start + dur, thread, external)
            part = 2 * (dur // 10)
            shown = f"nccl:{_SHOWN.get(op, op)}"
            self._range(shown, start + part, start + dur - part, thread, external + 2)
        elif kind == "cuda_runtime":
            self._call(name, start, dur, thread, external)
        else:
            is_step = name.startswith("ProfilerStep#")
            text = f"step {name.removeprefix('ProfilerStep#')}" if is_step else name
            is_plain = kind == "user_annotation" and not name.startswith(_OF_PYTORCH)
            self._range(text, start, start + dur, thread, None if is_plain else external)

    def _range(
        self, text: str, start: int, end: int, thread: int, external: int | None = None
    ) -> None:
        shown = text if external is None else f"{text}, op_id = {external}"
        self._rows["range"].append(
            (self._at(start), self._at(end), PUSH_POP, shown, None, self.threads[thread], 0, None)
        )

    def _call(self, name: str, start: int, dur: int, thread: int, correlation: int) -> None:
        number = self._string(name + _VERSIONS.get(name, "_v3020"))
        begin, end = self._at(start), self._at(start + dur)
        self._rows["call"].append((begin, end, 0, self.threads[thread], correlation, number, 0))

    def _operation(self, operation: Operation) -> None:
        spec = operation.spec
        is_transfer = operation.transfer is not None
        is_copy = not is_transfer and spec.kind == "memcpy"
        name = "cudaMemcpyAsync" if is_copy else "cudaLaunchKernel"
        if is_transfer:
            name = "cudaLaunchKernelExC"
            self._nccl(operation)
        self._call(
            name, operation.launch, operation.launch_dur, operation.thread, operation.correlation
        )
        if operation.end < 0:
            return  # it never ended, so the device never reported it
        where = (
            self._at(operation.start), self._at(operation.end), self.device, 1, operation.stream,
            operation.correlation, self.process,
        )  # fmt: skip
        if is_copy:
            kinds = next((k for word, k in _COPIES.items() if word in spec.name), (0, 0, 0))
            self._rows["copy"].append((*where, spec.size_bytes, *kinds))
            return
        if is_transfer:
            shown = kernel_name(spec, operation_name(spec))
            grid, block, registers = (24, 1, 1), (544, 1, 1), 96
        else:
            shown, grid, block, registers = spec.name, spec.grid, spec.block, spec.registers
        short = shown.removeprefix("void ").partition("(")[0].partition("<")[0]
        names = (self._string(shown), self._string(short.rpartition("::")[2] or shown))
        self._rows["kernel"].append(
            (*where, *names, 1, registers, *grid, *block, 0, 0, 0, 0, operation.correlation)
        )

    # --- NCCL's own ranges ---------------------------------------------------------------------

    def _nccl(self, operation: Operation) -> None:
        spec, thread = operation.spec, operation.thread
        members = self.plan.layout.group(self.rank, spec.role)
        comm = self._communicator(spec.role, members, thread, operation.launch)
        op = operation_name(spec)
        start, end = operation.launch - 1_000, operation.launch + operation.launch_dur + 1_000
        rank_in_comm = members.index(self.rank)
        if op == "all_to_all":
            self._exchange(operation, comm, len(members), rank_in_comm, start, end)
            return
        # The count that the call is given: of a reduce-scatter it is what each member receives.
        size = min(counts(spec, op, operation.size_bytes, len(members)))
        size *= p.ELEMENT_BYTES[spec.dtype]
        more = [0] if op in ("all_reduce", "reduce_scatter", "broadcast") else []
        if isinstance(spec, p.Message):
            more = [(rank_in_comm + spec.peer_offset) % len(members)]
        self._said(_CALLS[op], start, end, thread, comm, size, *more)

    def _exchange(
        self,
        operation: Operation,
        comm: int,
        ranks_count: int,
        rank_in_comm: int,
        start: int,
        end: int,
    ) -> None:
        """An all-to-all is a group of sends and receives."""
        thread, size = operation.thread, operation.size_bytes
        shares = operation.routing or (1 / ranks_count,) * ranks_count
        self._said("ncclGroupStart", start, start + 10, thread)
        for peer in range(ranks_count):
            at = start + 20 + 2 * peer
            self._said("ncclSend", at, at + 1, thread, comm, int(size * shares[peer]), peer)
            self._said(
                "ncclRecv", at + 1, at + 2, thread, comm, int(size * shares[rank_in_comm]), peer
            )
        self._said("ncclGroupEnd", start + 30 + 2 * ranks_count, end, thread)

    def _communicator(self, role: str, members: tuple[int, ...], thread: int, launch: int) -> int:
        """Its hash; the first use is written as its creation."""
        key = (role, members)
        comm = self._hashes.get(key)
        if comm is None:
            digest = hashlib.sha256(f"{self.plan.seed}/{role}/{members}".encode()).digest()
            comm = self._hashes[key] = int.from_bytes(digest[:8], "little")
            rank_in_comm = members.index(self.rank)
            self._said(
                "ncclCommInitRank", launch - 1_900, launch - 1_100, thread, comm, len(members),
                rank_in_comm, self.device,
            )  # fmt: skip
        return comm

    def _said(self, name: str, start: int, end: int, thread: int, *values: int) -> None:
        """A range of NCCL's domain, with its payload."""
        blob = None
        if name in _PAYLOADS:
            number, entries = _PAYLOADS[name]
            offsets, size = _layout(entries)
            body = bytearray(size)
            for (kind, _), offset, value in zip(entries, offsets, values, strict=True):
                struct.pack_into("<Q" if kind in (_UINT64, _SIZE) else "<i", body, offset, value)
            blob = struct.pack("<QQQQ", NCCL_DOMAIN, _FIRST_SCHEMA + number, size, 32) + body
        self._rows["range"].append(
            (self._at(start), self._at(end), PUSH_POP, None, self._string(name),
             self.threads[thread], NCCL_DOMAIN, blob)
        )  # fmt: skip


def _layout(entries: Sequence[tuple[int, str]]) -> tuple[list[int], int]:
    """Offsets of a struct's fields, and its size, as a C compiler lays it out."""
    offsets: list[int] = []
    at = 0
    for kind, _ in entries:
        width = 8 if kind in (_UINT64, _SIZE) else 4
        at = (at + width - 1) // width * width
        offsets.append(at)
        at += width
    return offsets, (at + 7) // 8 * 8


def _insert(
    con: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]], columns: str = ""
) -> None:
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        into = f"{table} ({columns})" if columns else table
        con.executemany(f"INSERT INTO {into} VALUES ({marks})", rows)  # noqa: S608  # our names


def _uuid(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
