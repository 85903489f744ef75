"""Rows of sources as a run has them, and what derive makes of them; times in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from source_tables import database

from tracekit.derive.run import derive
from tracekit.job import JobDescription, parse_job

MS = 1_000_000
Rows = list[dict[str, Any]]


def trace(
    source_id: int, path: str, window: tuple[int, int] | None = (0, 100), **facts: Any
) -> dict[str, Any]:
    """A usable trace of one rank that covers ``window``, in ms."""
    return {
        "source_id": source_id,
        "path": path,
        "kind": "kineto",
        "status": "ok",
        "time_basis": "epoch",
        "window_start_ns": window[0] * MS if window else None,
        "window_end_ns": window[1] * MS if window else None,
        **facts,
    }


def process(source_id: int, pid: int, **facts: Any) -> dict[str, Any]:
    return {"source_id": source_id, "pid": pid, **facts}


def marker(source_id: int, step: int, start: float, dur: float, **facts: Any) -> dict[str, Any]:
    return {
        "source_id": source_id,
        "place": step,
        "domain": "profiler_step",
        "step": step,
        "start_ns": int(start * MS),
        "dur_ns": int(dur * MS),
        "is_gpu_twin": False,
        **facts,
    }


def kernel(source_id: int, step: int | None, start: float, dur: float) -> dict[str, Any]:
    return {
        "source_id": source_id,
        "place": int(start * 1000),
        "start_ns": int(start * MS),
        "dur_ns": int(dur * MS),
        "step": step,
    }


def job(text: str) -> JobDescription:
    return parse_job(text.encode(), "/data/job.toml")


def run(
    sources: Rows, description: JobDescription | None = None, /, **tables: Rows
) -> dict[str, pa.Table]:
    return derive(database({"source": sources, **tables}), description)


def placed(result: Mapping[str, pa.Table], *columns: str) -> list[tuple[Any, ...]]:
    """Columns of source_context, in order of source_id."""
    rows = result["source_context"].sort_by("source_id").to_pylist()
    return [tuple(row[c] for c in columns) for row in rows]


WHERE = ("rank", "attempt", "capture_id")
