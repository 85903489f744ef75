"""Handmade profiler traces: a job small enough to check by hand, whole enough for all of tracekit.

Every rank's step takes 100 ms: a kernel of 77, an all-reduce of 20 that nothing hides, 3 idle.
``stall_ms`` lets the last rank wait that long for input at the start of each step; the others
then wait for it in the all-reduce, so that the step takes as much longer.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Document = dict[str, Any]

BASE_NS = 1_784_602_867_000_000_000  # 2026-07-21 03:01:07 UTC
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
STEP_US = 100_000
KERNEL_US = 77_000
ALL_REDUCE_US = 20_000


def make_trace(
    rank: int,
    *,
    world_size: int = 2,
    steps_count: int = 6,
    stall_ms: int = 0,
    base_ns: int = BASE_NS,
    first_step: int = 5,
) -> Document:
    """The trace of one rank, as PyTorch writes it."""
    pid = 1000 + rank
    stall_us = stall_ms * 1000
    is_late = stall_us > 0 and rank == world_size - 1
    events: list[Document] = []
    for index in range(steps_count):
        start = index * (STEP_US + stall_us)
        number = first_step + index
        correlation = 10 * number

        def host(category: str, name: str, at: int, dur: int, args: Document | None = None) -> None:
            events.append(
                {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": pid}
                | {"ts": at, "dur": dur, "args": args or {}}
            )

        host("user_annotation", f"ProfilerStep#{number}", start, STEP_US + stall_us)
        host("user_annotation", LOADER, start + 10, stall_us if is_late else 100)
        begin = start + 200 + (stall_us if is_late else 0)
        host("cpu_op", "aten::mm", begin, 100, {"External id": correlation})
        host("cuda_runtime", "cudaLaunchKernel", begin + 10, 20, {"correlation": correlation})
        host("user_annotation", "nccl:all_reduce", begin + 200, 100)
        launched = {"correlation": correlation + 1}
        host("cuda_runtime", "cudaLaunchKernelExC", begin + 210, 20, launched)
        kernel = begin + 100
        end = start + 200 + stall_us + 100 + KERNEL_US + ALL_REDUCE_US
        where = {"device": rank, "stream": 7, "context": 1}
        for name, at, dur, args in (
            ("gemm", kernel, KERNEL_US, where | {"correlation": correlation}),
            (
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                kernel + KERNEL_US,
                end - kernel - KERNEL_US,
                where
                | {"stream": 20, "correlation": correlation + 1}
                | {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024}
                | {"Out msg nelems": 1024, "Group size": world_size, "Process Group Name": "0"},
            ),
        ):
            events.append(
                {"ph": "X", "cat": "kernel", "name": name, "pid": rank, "tid": args["stream"]}
                | {"ts": at, "dur": dur, "args": args}
            )
    config = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": world_size,
            "pg_config": [{**config, "pg_size": world_size, "ranks": list(range(world_size))}],
        },
        "host_name": "node0",
        "baseTimeNanoseconds": base_ns,
        "traceEvents": events,
    }


def write_trace(path: Path, document: Document) -> Path:
    """Write a trace, packed where the name ends in .gz; the same content gives the same bytes."""
    data = json.dumps(document).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_job(folder: Path, *, world_size: int = 2, **options: Any) -> list[Path]:
    """The traces of all ranks of a job, ``rank0.json`` and so on."""
    return [
        write_trace(folder / f"rank{rank}.json", make_trace(rank, world_size=world_size, **options))
        for rank in range(world_size)
    ]
