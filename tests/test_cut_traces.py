"""Files that break off accuse nobody new: what is cut takes its peers' comparison with it.

Each trace of each recorded job is cut at some part of its text, as a full disk or a killed profiler
leaves it, and the job is diagnosed again. Whoever is named must have been named of the whole job.
"""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

import pytest
import samples

import tracekit
from soaks import soak
from tracekit.report import Report

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "fixtures" / "recorded"
SHARED = next(
    (p for up in ("..", "../..") if (p := (ROOT / up / "shared" / "data" / "lab")).is_dir()), None
)
JOBS = [p for p in sorted(RECORDED.iterdir()) if p.is_dir()]
JOBS += sorted(p for p in SHARED.iterdir() if p.is_dir()) if SHARED is not None else []
PERCENTS = (20, 50, 80)
FAST = (
    ("ddp-checkpoint", 0, 20),  # the others alone were said to save
    ("ddp-dataloader-stall", 1, 20),  # its peers wait for it, and its stalls are gone
    ("ep-hot-expert", 2, 50),
)


def files_of(job: Path) -> list[Path]:
    """What a user would give: never the truth."""
    files = (p for p in sorted(job.iterdir()) if p.is_file())
    return [p for p in files if p.name not in ("truth.json", "README.md")]


def traces_of(job: Path) -> list[Path]:
    return [p for p in files_of(job) if p.name.endswith("trace.json.gz")]


def culprits(report: Report) -> set[object]:
    """Ranks and hosts in scope of findings that name some and not all."""
    found: set[object] = set()
    ranks, hosts = set(report.document.run.ranks), set(report.document.run.hosts)
    for finding in report.findings:
        if not set(finding.scope.ranks) >= ranks:
            found |= set(finding.scope.ranks)
            found |= set() if set(finding.scope.hosts) >= hosts else set(finding.scope.hosts)
    return found


def diagnosed(paths: list[Path]) -> Report:
    with tracekit.open(paths) as run:
        return run.diagnose()


@functools.cache
def whole(job: Path) -> frozenset[object]:
    return frozenset(culprits(samples.diagnosis(job)))


def cut(job: Path, at: int, percent: int, folder: Path) -> list[Path]:
    """The job's files, of which one breaks off."""
    trace = traces_of(job)[at]
    text = gzip.decompress(trace.read_bytes())
    target = folder / trace.name
    target.write_bytes(gzip.compress(text[: len(text) * percent // 100], 1))
    return [target if p == trace else p for p in files_of(job)]


def check(job: Path, at: int, percent: int, folder: Path) -> None:
    report = diagnosed(cut(job, at, percent, folder))
    new = culprits(report) - whole(job)
    assert not new, [f.summary for f in report.findings]


@pytest.mark.parametrize(("name", "at", "percent"), soak(FAST, fast=1))
def test_a_cut_file_accuses_nobody_new(name: str, at: int, percent: int, tmp_path: Path) -> None:
    check(RECORDED / name, at, percent, tmp_path)


@pytest.mark.slow  # what the jobs without a cut are accused of, test_recorded_jobs.py says too
def test_the_property_can_fail() -> None:
    """The whole jobs have culprits, and not all of their ranks are."""
    assert whole(RECORDED / "ep-hot-expert") == {2}
    assert whole(RECORDED / "ddp-checkpoint") == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda p: p.name)
def test_any_cut_file_of_any_job_accuses_nobody_new(job: Path, tmp_path: Path) -> None:
    """Each trace at one part: over a job's traces, and over jobs, all parts have their turns."""
    for at in range(len(traces_of(job))):
        check(job, at, PERCENTS[(JOBS.index(job) + at) % len(PERCENTS)], tmp_path)
