"""Logs without a zone beside files on the epoch: when they are taken as UTC."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import fields

from tracekit.derive.placement.sources import Source
from tracekit.derive.placement.timebase import assume_utc, time_notes

HOUR_NS = 3600 * 10**9
BEGIN_NS = 1_770_000_000 * 10**9


def source(path: str, kind: str, basis: str, first_h: float, last_h: float) -> Source:
    given: dict[str, Any] = {f.name: None for f in fields(Source) if f.required}
    given |= {
        "source_id": 0, "path": path, "kind": kind, "time_basis": basis, "status": "ok",
        "start_ns": BEGIN_NS + round(first_h * HOUR_NS),
        "end_ns": BEGIN_NS + round(last_h * HOUR_NS),
    }  # fmt: skip
    return Source(**given)


LOG = ("train.log", "job_log", "local", 0, 10)
HOSTS = ("node.prom", "pressure", "epoch", -1, 11)


@pytest.mark.parametrize(
    ("others", "is_utc"),
    [
        ([HOSTS], True),
        ([("a.log", "job_log", "epoch", 0, 10), HOSTS], True),
        ([("sacct.txt", "slurm_jobs", "local", -1, 10), HOSTS], True),
        ([("rank1.log", "nccl", "local", 0, 10), HOSTS], True),
        # Four fifths of the shorter one: of the log, and of counters of an hour of it.
        ([("node.prom", "pressure", "epoch", 2, 12)], True),
        ([("node.prom", "pressure", "epoch", 2.1, 12.1)], False),
        ([("node.prom", "pressure", "epoch", 9.2, 10.2)], True),
        ([("node.prom", "pressure", "epoch", 9.3, 10.3)], False),
        ([("node.prom", "pressure", "epoch", -8, -7)], False),
        # A rank's own trace would be put at a wrong step.
        ([HOSTS, ("rank0.json", "kineto", "epoch", 5, 5.01)], False),
        # What is local as well shares the log's zone, and must then fall among the others, too.
        ([HOSTS, ("sar.json", "sadf", "local", 0, 10)], True),
        ([HOSTS, ("sar.json", "sadf", "local", 4, 14)], False),
        ([HOSTS, ("sar.json", "sadf", "local", 24, 34)], False),
        ([], False),
    ],
)
def test_a_log_is_taken_as_utc_where_its_times_then_fall_among_the_others(
    others: list[tuple[str, str, str, float, float]], *, is_utc: bool
) -> None:
    sources = [source(*LOG), *(source(*other) for other in others)]
    notes = assume_utc(sources)
    logs = [s for s in sources if s.kind in ("job_log", "nccl", "slurm_jobs")]
    assert {s.time_basis == "epoch" for s in logs if s.path != "a.log"} == {is_utc}
    sar = [s.time_basis for s in sources if s.path == "sar.json"]
    assert sar in ([], ["epoch" if is_utc else "local"])
    assert len(notes) == is_utc
    told = time_notes(sources)
    is_due = any(s.time_basis == "local" for s in sources) and len(sources) > 1
    assert [n for n in told if "without a zone" in n] == told[:is_due]
    assert bool(told) is is_due
    assert all("taken as UTC" in note and "job.toml" in note for note in notes)
