"""Steps that a log is read to have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_files

from tracekit import api

Rows = list[dict[str, Any]]


def steps_of(folder: Path, data: bytes, name: str = "train.log") -> Rows:
    path = folder / name
    path.write_bytes(data)
    run = api.ingest([path], run=folder / "run")
    rows: Rows = run.sql("FROM job_step ORDER BY place, step").to_dicts()
    return rows


def read_steps(text: str) -> Rows:
    """The same without a run, which takes ten times as long to make."""
    rows: Rows = gpu_files.ingest(text, "train.log").rows("job_step")
    return rows
