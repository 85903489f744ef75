"""What tests of rules about how a job is made share: descriptions, products, messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tracekit.job import parse_job
from tracekit.rules import rule
from tracekit.rules.base import Facts

MakeJob = Callable[..., Any]


MFU, LATENCY, OFFLOAD = (
    rule(n) for n in ("low-mfu", "latency-bound-communication", "offload-bound")
)


JOB = """
[parallelism]
dp = 4
zero_stage = 0
[schedule]
microbatches = 1
[model]
layers = 10
hidden = 4096
heads = 32
ffn = 16384
sequence = 4096
vocabulary = 32000
dtype = "bfloat16"
[batch]
micro = 1
[hardware]
gpu = "NVIDIA A100-SXM4-80GB"
"""


def with_job(job: Any, text: str = JOB, **known: Any) -> Facts:
    found: Facts = job.facts(**known)
    return replace(found, description=parse_job(text.encode(), "/data/job.toml"))


def peak(mfu: float) -> str:
    """The job on hardware on which it would reach that MFU in 100 ms."""
    from tracekit.expect import expect

    flops = expect(parse_job(JOB.encode(), "j")).utilisation.model_flops_per_step or 0
    return JOB + f"peak_flops_per_s = {flops / 4 / 0.1 / mfu:.6e}\n"


def gemm(ratio: float, peak_flops: float, **more: Any) -> dict[str, Any]:
    flops = 1e12
    return {"rank": 0, "operator": "aten::mm", "dtype": "BFloat16", "total_flops": flops,
            "kernel_ns": flops / (ratio * peak_flops) * 1e9, "kernel_ratio": 0.7,
            "gpu_model": "NVIDIA A100-SXM4-80GB", **more}  # fmt: skip


def sizes(*rows: tuple[float, float, float], kind: str = "tp", **more: Any) -> list[dict[str, Any]]:
    """Message bytes, calls a step and transfer in us, of an all-reduce over 8 ranks."""
    return [
        {"group_id": "g", "kind": kind, "op": "all_reduce", "message_bytes": size,
         "instances_count": calls * 10, "steps_count": 10, "transfer_p50_ns": us * 1e3,
         "bus_bytes_per_s": 1.75 * size / (us * 1e-6), "peer_ratio": None, "timeline": "device",
         **more}
        for size, calls, us in rows
    ]  # fmt: skip


LARGE = (175e6, 1, 1000.0)


"""306 GB/s: what the links can do."""


def latency(job: Any, rows: list[dict[str, Any]], exposed: float = 1.0) -> Facts:
    job.rows["group_bandwidth"] = rows
    job.rows["exposed_comm_by_op"] = [
        {"rank": 0, "op": "all_reduce", "comm_ns": 100, "exposed_comm_ns": 100 * exposed}
    ]
    found: Facts = job.facts()
    return found


def copying(job: Any, ms: int = 20, ranks: int = 4, size: float = 400e6, **more: Any) -> Facts:
    """Ranks copy for some ms of each step, with nothing beside it; the window is ten steps."""
    for rank in range(4):
        for step in job.steps:
            more_ms = (ms if rank < ranks else 0) - 5
            job.add(rank, step, "memory", more_ms)
            job.add(rank, step, "compute", -more_ms)
    job.rows["overlap"] = [{"rank": r, "span_ns": 1_000_000_000} for r in range(4)]
    job.rows["memcpy_summary"] = [
        {"rank": r, "copy_kind": "HtoD", "busy_ns": ms * 10_000_000, "total_bytes": size * 10,
         **more}
        for r in range(4)
    ]  # fmt: skip
    found: Facts = job.facts()
    return found
