"""offload-bound: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest

from roll_up_rules import OFFLOAD, MakeJob, copying
from tracekit.findings import Severity
from tracekit.rules.base import RuleOutcome


def test_copies_that_nothing_hides_are_said_with_their_speed(make_job: MakeJob) -> None:
    (finding,) = OFFLOAD.run(copying(make_job())).findings
    assert finding.id == "offload-bound/all"
    assert finding.impact.s_per_step == pytest.approx(0.020)
    assert finding.severity is Severity.MAJOR
    assert "0.40 GB a rank and step at 20.0 GB/s" in finding.summary


@pytest.mark.parametrize(
    ("changed", "is_said"),
    [
        ({"ms": 5}, True),
        ({"ms": 4}, False),
        ({"size": 100e6}, True),
        ({"size": 99e6}, False),
        ({"ranks": 2}, True),
        ({"ranks": 1}, False),
        ({"copy_kind": "DtoD"}, False),
    ],
)
def test_each_condition_is_needed(
    make_job: MakeJob, changed: dict[str, Any], is_said: bool
) -> None:
    assert bool(OFFLOAD.run(copying(make_job(), **changed)).findings) is is_said


def test_a_checkpoint_now_and_then_is_no_offload(make_job: MakeJob) -> None:
    job = make_job()
    for rank in range(4):
        for step in (3, 6, 9):
            job.add(rank, step, "memory", 200)
    facts = copying(job, ms=4)
    assert OFFLOAD.run(facts) == RuleOutcome()


def test_a_job_that_copies_nothing_lacks_copies(make_job: MakeJob) -> None:
    assert "copies" in OFFLOAD.run(make_job().facts()).not_checked[0].needs
    host = OFFLOAD.run(make_job(measured_on="host").facts())
    assert "GPU timeline" in host.not_checked[0].needs


def test_a_window_without_steps_is_judged_as_one(make_window: MakeJob) -> None:
    (finding,) = OFFLOAD.run(copying(make_window())).findings
    assert "waits 40.0 ms of the window (20 %)" in finding.summary
    assert "4.00 GB a rank at 20.0 GB/s" in finding.summary
    assert "again and again" in finding.remedy[0]
    assert OFFLOAD.run(copying(make_window(), ms=4)) == RuleOutcome()


def test_copies_in_one_half_of_a_window_load_or_save(make_window: MakeJob) -> None:
    job = make_window()
    for rank in range(4):
        job.add(rank, 0, "memory", 100)
    assert OFFLOAD.run(copying(job, ms=4)) == RuleOutcome()


@pytest.mark.parametrize(("pageable", "is_pageable"), [(None, False), (0.49, False), (0.5, True)])
def test_copies_that_only_go_to_the_device_are_inputs(
    make_job: MakeJob, pageable: float | None, *, is_pageable: bool
) -> None:
    (finding,) = OFFLOAD.run(copying(make_job(), pageable_ratio=pageable)).findings
    memory = "pageable host memory" if is_pageable else "host memory"
    assert f"for copies from {memory}: 0.40 GB" in finding.summary
    assert "as inputs are" in finding.summary
    assert ("pin_memory=True" in finding.remedy[0]) is is_pageable
    assert not any("recomputation" in r for r in finding.remedy)


@pytest.mark.parametrize(("back", "is_input"), [(44e6, True), (45e6, False)])
def test_what_sends_back_more_than_a_tenth_is_offloaded(
    make_job: MakeJob, back: float, *, is_input: bool
) -> None:
    facts = copying(make_job(), size=400e6)
    rows = facts.of("memcpy_summary")
    more = [{**row, "copy_kind": "DtoH", "busy_ns": 1, "total_bytes": back * 10} for row in rows]
    job = make_job()
    again = copying(job)
    job.rows["memcpy_summary"] = [*again.of("memcpy_summary"), *more]
    (finding,) = OFFLOAD.run(job.facts()).findings
    assert ("as inputs are" in finding.summary) is is_input
    assert any("recomputation" in r for r in finding.remedy) is not is_input
