"""Recorded jobs and files from the field: read once a session, and diagnosed once.

For what no test writes to, and for tests that ask what a diagnosis says. Whoever asks how files
are read, kept and read again makes a run of their own.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from pathlib import Path

import pytest

from tracekit import api
from tracekit.report import Report
from tracekit.whatif import PipelineMetrics, WhatIf

FOLDER = "TRACEKIT_TEST_SAMPLES"
"""Name of the variable that holds the folder which all workers of a session share."""


def opened(path: Path) -> api.OpenRun:
    """The run of unchanged files, through a cache that every test file and worker shares."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEKIT_CACHE_DIR", f"{os.environ[FOLDER]}/cache")
        return api.open(path.resolve())


@functools.cache
def diagnosis(path: Path) -> Report:
    """What is said of unchanged files, with nothing selected; made by the first worker to ask."""
    path = path.resolve()
    kept = Path(os.environ[FOLDER], hashlib.sha256(os.fsencode(path)).hexdigest()[:24])
    if kept.exists():
        report: Report = pickle.loads(kept.read_bytes())  # noqa: S301  # this session wrote it
        return report
    with opened(path) as run:
        report = run.diagnose()
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_bytes(pickle.dumps(report))
    part.rename(kept)
    return report


def pipe(found: WhatIf) -> PipelineMetrics:
    """What a replay says of a pipeline, which it must be of."""
    assert found.pipeline is not None
    return found.pipeline
