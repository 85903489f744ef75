"""The rows of ``run``: what an attempt's files say of it together, and the job description."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tracekit.derive.placement.attempts import Group
from tracekit.derive.placement.sources import Source
from tracekit.schema import REGISTRY_VERSION

if TYPE_CHECKING:
    from tracekit.job import JobDescription

_ENCODED = {"cuda_runtime": (1000, 10), "hip_runtime": (10_000_000, 100_000)}
"""Keys whose runtimes state a version as one number, and what its major and minor count."""

_VERSION_KEYS = {
    "torch": "torch_version",
    "pytorch": "torch_version",
    "cuda": "cuda_version",
    "cuda_runtime": "cuda_version",
    "rocm": "cuda_version",
    "hip": "cuda_version",
    "hip_runtime": "cuda_version",
    "nccl": "nccl_version",
    "rccl": "nccl_version",
    "driver": "driver_version",
    "framework": "framework",
}


def run_row(captures: list[Group], job: JobDescription | None, notes: list[str]) -> dict[str, Any]:
    """The row of an attempt, given its captures."""
    members = sorted((s for c in captures for s in c), key=lambda s: s.order)
    world = {s.world_size for s in members if s.world_size is not None}
    models = {s.gpu_model for s in members}
    start, end = _extent(members)
    row: dict[str, Any] = {
        "attempt": members[0].attempt,
        "job_name": job.name if job else None,
        "job_id": job.id if job else None,
        "start_ns": start,
        "end_ns": end,
        "world_size": min(world, default=None),
        "world_size_source": "file" if world else None,
        "ranks_count": len({s.rank for s in members}),
        "gpu_model": models.pop() if len(models) == 1 else None,
        "registry_version": REGISTRY_VERSION,
        **_versions(members, notes),
    }
    if job is not None and job.world_size is not None:
        if world and job.world_size not in world:
            notes.append(
                f"job description: world_size {job.world_size}, the traces state {min(world)}"
            )
        row |= {"world_size": job.world_size, "world_size_source": "job_toml"}
    if job is not None and job.framework is not None:
        row["framework"] = job.framework
    row["signature"] = _signature(row, job)
    return row


def _extent(members: Iterable[Source]) -> tuple[int | None, int | None]:
    """First start and last end, of windows that share a zero."""
    timed = [s for s in members if s.start_ns is not None and s.end_ns is not None]
    epoch = [s for s in timed if s.time_basis == "epoch"]
    if not epoch and len({s.clock_id for s in timed}) > 1:
        return None, None
    chosen = epoch or timed
    return (
        min((s.start_ns for s in chosen if s.start_ns is not None), default=None),
        max((s.end_ns for s in chosen if s.end_ns is not None), default=None),
    )


def _versions(members: Iterable[Source], notes: list[str]) -> dict[str, str | None]:
    stated: dict[str, set[str]] = defaultdict(set)
    for source in members:
        for item in source.versions:
            key, _, value = item.partition("=")
            key, value = key.strip().lower().removesuffix("_version"), value.strip()
            column = _VERSION_KEYS.get(key)
            if key in _ENCODED and value.isdecimal():
                major, minor = _ENCODED[key]
                value = f"{int(value) // major}.{int(value) % major // minor}"
            if column and value and value.lower() != "unknown":
                stated[column].add(value)
    versions: dict[str, str | None] = {}
    for column, values in sorted(stated.items()):
        versions[column] = next(iter(values)) if len(values) == 1 else None
        if len(values) > 1:
            notes.append(f"the traces disagree on {column}: {', '.join(sorted(values)[:4])}")
    return versions


def _signature(row: dict[str, Any], job: JobDescription | None) -> str:
    """Hash of what makes two runs comparable: layout, model, batch, size, GPU."""
    facts: dict[str, object] = {"world_size": row["world_size"], "gpu": row["gpu_model"]}
    if job is not None:
        for section in (job.parallelism, job.schedule, job.model, job.batch):
            facts[type(section).__name__] = repr(section)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
