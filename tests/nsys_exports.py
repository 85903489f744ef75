"""Handmade Nsight Systems exports: SQLite files of the schema of nsys 2026.2 (3.25).

``Export`` writes row by row; ``export_of`` turns handmade profiler traces (traces.py) into the
export that nsys would have made of the same job; ``big_export`` is for speed and memory.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

START_NS = 1_784_602_867_000_000_000  # 2026-07-21 03:01:07 UTC
VM = 1 << 48

TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL,"
    " nameEnum INTEGER NOT NULL, value TEXT NOT NULL",
    "TARGET_INFO_GPU": "id INTEGER NOT NULL, name TEXT, busLocation TEXT, uuid TEXT,"
    " smCount INTEGER, totalMemory INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL,"
    " deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,"
    " streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,"
    " demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,"
    " registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,"
    " gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,"
    " blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,"
    " dynamicSharedMemory INTEGER NOT NULL, graphNodeId INTEGER, graphId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL,"
    " deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,"
    " correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,"
    " copyKind INTEGER NOT NULL, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER NOT NULL, end INTEGER NOT NULL,"
    " deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,"
    " correlationId INTEGER, globalPid INTEGER, graphId INTEGER NOT NULL,"
    " graphExecId INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL,"
    " eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,"
    " nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INTEGER NOT NULL, end INTEGER NOT NULL,"
    " deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,"
    " correlationId INTEGER, globalPid INTEGER, syncType INTEGER NOT NULL,"
    " eventId INTEGER NOT NULL, eventSyncId INTEGER",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,"
    " streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,"
    " eventId INTEGER NOT NULL, eventSyncId INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,"
    " rangeId INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,"
    " domainId INTEGER, jsonText TEXT, binaryData BLOB",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL,"
    " idx INTEGER NOT NULL, type INTEGER, name TEXT, offset INTEGER",
}

INIT_SCHEMA, ALL_REDUCE_SCHEMA, SEND_SCHEMA = 16777216, 16777221, 16777225
NCCL_SCHEMAS: Mapping[int, Sequence[tuple[int, str, int]]] = {
    INIT_SCHEMA: (
        (18, "NCCL communicator ID", 0),
        (5, "No. of ranks", 8),
        (5, "Rank", 12),
        (5, "CUDA device", 16),
    ),
    ALL_REDUCE_SCHEMA: (
        (18, "NCCL communicator ID", 0),
        (22, "Message size [bytes]", 8),
        (16777230, "Reduction operation", 16),
    ),
    SEND_SCHEMA: (
        (18, "NCCL communicator ID", 0),
        (22, "Message size [bytes]", 8),
        (5, "Peer rank", 16),
    ),
}


def global_id(pid: int, tid: int = 0) -> int:
    """globalTid of a thread; globalPid without one."""
    return VM | pid << 24 | tid


def payload(schema: int, layout: str, *values: int) -> bytes:
    """A blob as nsys exports it: header, then the struct."""
    body = struct.pack(f"<{layout}", *values)
    return struct.pack("<QQQQ", 1, schema, len(body), 32) + body


class Export:
    """An export that is being written."""

    def __init__(
        self,
        path: Path,
        *,
        tables: Sequence[str] = tuple(TABLES),
        host: str = "node0",
        environment: str = "",
        utc_ns: int = START_NS,
        shift_ns: int = 0,
    ) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.con = sqlite3.connect(path)
        self._strings: dict[str, int] = {}
        self.correlation = 100
        for name in tables:
            self.con.execute(f"CREATE TABLE {name} ({TABLES[name]})")
        self.meta("EXPORT_PRODUCT_VERSION", "2026.2.1.210")
        self.meta("EXPORT_SCHEMA_VERSION", "3.25.0")
        self.meta("EXPORT_CONFIG_TIME_SHIFT", str(shift_ns))
        self.put("TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_ns)
        for number, (name, value) in enumerate(
            (
                ("Hostname", host),
                ("NvDriverVersion", "580.95.05"),
                ("DeviceEnvironment", environment),
            )
        ):
            self.put(
                "TARGET_INFO_SYSTEM_ENV", devStateName="", name=name, nameEnum=number, value=value
            )

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.con.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(i, s) for s, i in self._strings.items()]
        )
        self.con.commit()
        self.con.close()

    def string(self, text: str) -> int:
        """Id of a string."""
        return self._strings.setdefault(text, len(self._strings) + 1)

    def put(self, table: str, **values: Any) -> None:
        """One row."""
        columns = ", ".join(f'"{c}"' for c in values)
        marks = ", ".join("?" * len(values))
        self.con.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", [*values.values()])

    def meta(self, name: str, value: str) -> None:
        """A fact about the export."""
        self.put("META_DATA_EXPORT", name=name, value=value)

    def gpu(self, gpu: int, pid: int, ordinal: int | None = None) -> None:
        """A device, and the process that uses it."""
        self.put(
            "TARGET_INFO_GPU", id=gpu, name="NVIDIA H100 80GB HBM3", smCount=132,
            busLocation=f"0000:{gpu + 16:02x}:00.0", totalMemory=80 << 30,
            uuid=f"00000000-0000-0000-0000-{gpu:012d}",
        )  # fmt: skip
        cuda = gpu if ordinal is None else ordinal
        self.put("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=cuda, pid=pid)

    def call(
        self,
        name: str,
        start: int,
        dur: int,
        *,
        pid: int = 7,
        tid: int = 7,
        correlation: int | None = None,
        kind: int = 0,
    ) -> int:
        """A runtime (or of another class) call; its correlation id."""
        self.correlation += 1
        number = self.correlation if correlation is None else correlation
        self.put(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=start + dur, eventClass=kind,
            globalTid=global_id(pid, tid), correlationId=number, nameId=self.string(name),
            returnValue=0,
        )  # fmt: skip
        return number

    def kernel(
        self, name: str, start: int, dur: int, correlation: int | None = None, *,
        pid: int = 7, device: int = 0, stream: int = 7, **more: Any,
    ) -> None:  # fmt: skip
        """A kernel."""
        self.put(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=start + dur, deviceId=device,
            contextId=1, streamId=stream, correlationId=correlation, globalPid=global_id(pid),
            demangledName=self.string(name), shortName=self.string(name.split("(")[0]),
            registersPerThread=32, gridX=2, gridY=1, gridZ=1, blockX=128, blockY=1, blockZ=1,
            staticSharedMemory=1024, dynamicSharedMemory=2048, **more,
        )  # fmt: skip

    def launch(
        self, name: str, at: int, start: int, dur: int, *, pid: int = 7, tid: int = 7, **where: int
    ) -> None:
        """A kernel with the call that launched it (10 ns)."""
        number = self.call("cudaLaunchKernel_v7000", at, 10, pid=pid, tid=tid)
        self.kernel(name, start, dur, number, pid=pid, **where)

    def range(
        self, name: str, start: int, end: int | None, *, pid: int = 7, tid: int = 7,
        kind: int = 59, domain: int = 0, is_registered: bool = False, **more: Any,
    ) -> None:  # fmt: skip
        """An NVTX event."""
        text = {"textId": self.string(name)} if is_registered else {"text": name}
        self.put(
            "NVTX_EVENTS", start=start, end=end, eventType=kind, domainId=domain,
            globalTid=global_id(pid, tid), **text, **more,
        )  # fmt: skip

    def nccl_schemas(self, times: int = 1) -> None:
        """NCCL's payload schemas; rows repeat once a process in real exports."""
        for _ in range(times):
            for schema, entries in NCCL_SCHEMAS.items():
                for index, (kind, name, offset) in enumerate(entries):
                    self.put(
                        "NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=1, schemaId=schema, idx=index,
                        type=kind, name=name, offset=offset,
                    )  # fmt: skip


def export_of(documents: Sequence[Mapping[str, Any]], path: Path, **options: Any) -> Path:
    """The export of a job whose ranks are these traces: one process each, all in one file."""
    with Export(path, **options) as export:
        for document in documents:
            _add_trace(export, document)
    return path


def _add_trace(export: Export, document: Mapping[str, Any]) -> None:
    events = document["traceEvents"]
    pid = next(e["pid"] for e in events if e["cat"] == "cuda_runtime")
    base = document["baseTimeNanoseconds"] - START_NS
    export.put("PROCESSES", globalPid=global_id(pid), pid=pid, name="/usr/bin/python3")
    export.gpu(document["deviceProperties"][0]["id"], pid)
    for event in events:
        start, dur = base + event["ts"] * 1000, event["dur"] * 1000
        match event["cat"]:
            case "kernel":
                args = event["args"]
                where = {"device": args["device"], "stream": args["stream"]}
                export.kernel(event["name"], start, dur, args["correlation"], pid=pid, **where)
            case "cuda_runtime":
                number = event["args"]["correlation"]
                name = f"{event['name']}_v7000"
                export.call(name, start, dur, pid=pid, tid=event["tid"], correlation=number)
            case _:
                export.range(event["name"], start, start + dur, pid=pid, tid=event["tid"])


def big_export(
    path: Path, *, ranges: int = 2_000_000, launches: int = 400_000, kernels: int = 1_000_000
) -> Path:
    """A large export of one process: nested ranges on five threads, several kernels a launch."""
    threads, depth = 5, 10
    step = 1_000_000
    tids = [global_id(7, 7 + t) for t in range(threads)]
    with Export(path) as export:
        names = [export.string(f"kernel_{i}(float*)") for i in range(200)]
        comm = export.string(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        )
        api = export.string("cudaLaunchKernel_v7000")
        groups = ranges // depth
        calls_a_group = max(1, launches // groups)

        def nested() -> Iterator[tuple[Any, ...]]:
            for i in range(ranges):
                group, level = divmod(i, depth)
                begin = group // threads * step + level * 1000
                end = (group // threads + 1) * step - 1000 * (level + 1)
                text = f"layer_{level}, op_id = {i}"
                yield (begin, end, 59, text, tids[group % threads], 0)

        def calls() -> Iterator[tuple[Any, ...]]:
            for i in range(launches):
                group, index = divmod(i, calls_a_group)
                begin = group // threads * step + 100_000 + index * 1000
                yield (begin, begin + 500, 0, tids[group % threads], i + 1, api, 0)

        def work() -> Iterator[tuple[Any, ...]]:
            for i in range(kernels):
                call = i * launches // kernels
                group, index = divmod(call, calls_a_group)
                begin = group // threads * step + 110_000 + index * 1000 + i % 7
                name = comm if i % 50 == 0 else names[i % 200]
                yield (
                    begin, begin + 700, 0, 1, 7 + i % 4, call + 1, global_id(7), name, name, 32,
                    2, 1, 1, 128, 1, 1, 0, 0,
                )  # fmt: skip

        export.con.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            nested(),
        )
        export.con.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid,"
            " correlationId, nameId, returnValue) VALUES (?, ?, ?, ?, ?, ?, ?)",
            calls(),
        )
        export.con.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId,"
            " correlationId, globalPid, demangledName, shortName, registersPerThread, gridX, gridY,"
            " gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory) VALUES ("
            + ", ".join("?" * 18)
            + ")",
            work(),
        )
    return path
