"""Events as the profiler writes them, and what the reader makes of a file of them."""

from __future__ import annotations

import json
from typing import Any

from memory_sink import MemorySink, source_of

from tracekit.ingest import IngestOptions
from tracekit.ingest.kineto import reader

Event = dict[str, Any]


def x(cat: str, name: str, ts: Any, dur: Any, *, pid: Any = 1, tid: Any = 1, **args: Any) -> Event:
    """A complete event; keyword names stand for argument names (``External_id``)."""
    shown = {k.replace("_", " ") if k[0].isupper() else k: v for k, v in args.items()}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": shown,
    }


def kernel(name: str, ts: Any, dur: Any, correlation: Any = None, **args: Any) -> Event:
    known = {"device": 0, "context": 1, "stream": 7, **args}
    if correlation is not None:
        known["correlation"] = correlation
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": known,
    }


def launch(
    correlation: int, ts: Any, dur: Any = 5, name: Any = "cudaLaunchKernel", **more: Any
) -> Event:
    return x("cuda_runtime", name, ts, dur, correlation=correlation, **more)


def step(number: int, ts: Any, dur: Any) -> Event:
    return x("user_annotation", f"ProfilerStep#{number}", ts, dur)


def trace(events: list[Event], *, tail: dict[str, Any] | None = None, **keys: Any) -> bytes:
    keys = {"schemaVersion": 1, **keys}
    return json.dumps({**keys, "traceEvents": events, **(tail or {})}).encode()


def read(
    data: bytes, name: str = "trace.json", *, stacks: bool = False, chunk: int = 1 << 16
) -> MemorySink:
    sink = MemorySink()
    reader.read(source_of(data, name), sink, IngestOptions(stacks=stacks), chunk_bytes=chunk)
    return sink


NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def comm(**args: Any) -> dict[str, Any]:
    return {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "Group size": 2,
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": "5",
        "Process Group Description": "mesh_tp",
        "Process Group Ranks": "[4, 6]",
        **args,
    }
