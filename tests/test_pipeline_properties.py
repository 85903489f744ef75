"""What must hold from files to report, whatever the job: few examples, small jobs.

Each example is a diagnosis or two, so they are chosen and not drawn.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from soaks import soak
from tracekit import api
from tracekit.report import Report
from traces import BASE_NS, make_trace, write_trace

QUERIES = ("step_breakdown", "overlap", "kernel_summary", "comm_summary", "input_stall")
NUMBERS = itertools.count()
Job = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def make_job(world_size: int = 3, **options: Any) -> Job:
    return [
        make_trace(r, world_size=world_size, steps_count=4, **options) for r in range(world_size)
    ]


def ingested(folder: Path, job: Job) -> api.OpenRun:
    """A run of the traces, each in a file of its rank's name."""
    place = folder / str(next(NUMBERS))
    for document in job:
        rank = document["distributedInfo"]["rank"]
        write_trace(place / "traces" / f"rank{rank}.json", document)
    return api.ingest(place / "traces", run=place / "run")


def diagnosis(folder: Path, job: Job) -> Report:
    with ingested(folder, job) as run:
        return run.diagnose()


def answers(folder: Path, job: Job) -> dict[str, list[str]]:
    """Rows of some queries, but for where in its file a row was found."""
    found = {}
    with ingested(folder, job) as run:
        for name in QUERIES:
            frame = run.query(name)
            rows = frame.drop([c for c in frame.columns if c == "place"]).rows()
            found[name] = sorted(map(repr, rows))
    return found


@functools.cache
def unmoved(folder: Path, stall_ms: int) -> Report:
    """What is said of a job as it is, which every example asks for."""
    return diagnosis(folder, make_job(stall_ms=stall_ms))


@functools.cache
def untouched(folder: Path, stall_ms: int) -> dict[str, list[str]]:
    """Rows of a job as it is."""
    return answers(folder, make_job(2, stall_ms=stall_ms))


@pytest.mark.parametrize(
    ("shift_ns", "stall_ms"),
    soak(
        [(86_400_123_457_000, 40), (-(10**18), 10), (10**18, 0), (-7_000, 40), (1_000, 10)], fast=1
    ),
)
@pytest.mark.slow  # another job through the same lines
def test_shifting_all_clocks_changes_no_duration_and_no_impact(
    folder: Path, shift_ns: int, stall_ms: int
) -> None:
    before = unmoved(folder, stall_ms)
    after = diagnosis(folder, make_job(stall_ms=stall_ms, base_ns=BASE_NS + shift_ns))
    assert after.verdict == before.verdict
    assert after.metrics == before.metrics
    assert after.document.step_budget == before.document.step_budget
    assert [(f.id, f.impact, f.scope) for f in after.findings] == [
        (f.id, f.impact, f.scope) for f in before.findings
    ]


@pytest.mark.parametrize(
    ("seed", "stall_ms"), soak([(1, 25), (2, 0), (3, 25), (4, 25), (5, 0)], fast=1)
)
def test_the_order_of_events_in_a_file_changes_no_answer(
    folder: Path, seed: int, stall_ms: int
) -> None:
    shuffled = make_job(2, stall_ms=stall_ms)
    for document in shuffled:
        random.Random(seed).shuffle(document["traceEvents"])  # noqa: S311  # no cryptography
    assert answers(folder, shuffled) == untouched(folder, stall_ms)


@pytest.mark.parametrize("is_first", [True, False])
def test_keys_before_or_after_the_events_change_no_answer(folder: Path, is_first: bool) -> None:
    job = make_job(2, stall_ms=25)
    turned = []
    for document in job:
        keys = sorted(document, key=lambda key: (key == "traceEvents") != is_first)
        turned.append({key: document[key] for key in keys})
    assert answers(folder, turned) == untouched(folder, 25)


@pytest.mark.parametrize(
    ("gone", "stall_ms"),
    soak([({2}, 30), ({0}, 0), ({0}, 30), ({0, 2}, 30), ({1, 2}, 0), ({0, 1}, 30)], fast=2),
)
def test_a_missing_rank_lowers_the_coverage_and_is_never_accused(
    folder: Path, gone: set[int], stall_ms: int
) -> None:
    job = make_job(stall_ms=stall_ms)
    report = diagnosis(folder, [d for d in job if d["distributedInfo"]["rank"] not in gone])
    document = report.document
    assert document.coverage.ranks_traced == 3 - len(gone)
    assert document.coverage.ranks_expected == 3
    assert not gone & {r for f in report.findings for r in f.scope.ranks}
    assert "no trace of rank" in report.to_text()
    json.loads(report.to_json())
    if stall_ms and 2 in gone:  # the culprit was not captured: no one else may be named for it
        assert report.verdict.kind in ("not_enough_data", "unexplained"), report.verdict
    if not stall_ms:
        assert report.verdict.kind in ("inherent", "not_enough_data"), report.verdict
