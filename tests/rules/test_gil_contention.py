"""gil-contention: when it fires, when just not, and what exempts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from stall_rules import MakeJob, look
from tracekit import api
from tracekit.rules.base import RuleOutcome

LOCK = Path(__file__).resolve().parents[2] / "fixtures" / "lock"
ENOUGH = {"switches_count": 20, "stretches_count": 28, "names_count": 4}
"""Just as many waits as are asked for, of stretches and before events."""


def job_with_waits(
    make_job: MakeJob,
    ranks: Sequence[int] = (2,),
    ms: int = 30,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> Any:
    job = make_job(steps_count=12).stall("gil_stall", ranks, range(1, 13), ms)
    for row in job.rows["gil_stall"]:
        row.update({**ENOUGH, **counts})
    return job


def test_a_rank_whose_loop_waits_for_the_lock_is_named(make_job: MakeJob) -> None:
    (finding,) = look("gil-contention", job_with_waits(make_job)).findings
    assert finding.id == "gil-contention/2"
    assert finding.impact.s_per_step == pytest.approx(0.030)
    assert finding.summary.startswith("Rank 2 waits 30.0 ms for Python's interpreter lock (GIL) in")
    assert "another thread of its process holds: 20 stretches (71 %)" in finding.summary
    pattern = finding.evidence[-1]
    assert pattern.value == pytest.approx(20 / 28)
    assert pattern.threshold == 0.7


def test_where_all_ranks_wait_for_theirs_nobody_is_named(make_job: MakeJob) -> None:
    (finding,) = look("gil-contention", job_with_waits(make_job, range(4))).findings
    assert finding.id == "gil-contention/all"
    assert finding.summary.startswith("All 4 ranks wait 30.0 ms")
    assert "another thread of each process holds" in finding.summary


@pytest.mark.parametrize(
    "counts",
    [
        {"switches_count": 19, "stretches_count": 19},
        {"stretches_count": 29},
        {"names_count": 3},
    ],
    ids=["few", "other lengths as well", "few places"],
)
def test_stretches_that_may_be_something_else_accuse_nobody(
    counts: dict[str, int], make_job: MakeJob
) -> None:
    assert look("gil-contention", job_with_waits(make_job, counts=counts)) == RuleOutcome()


def test_waits_that_cost_next_to_nothing_are_left(make_job: MakeJob) -> None:
    assert not look("gil-contention", job_with_waits(make_job, ms=0)).findings


def test_a_rank_with_some_such_stretches_is_not_named_beside_one_that_has_the_fault(
    make_job: MakeJob,
) -> None:
    job = job_with_waits(make_job, [1, 2])
    for row in job.rows["gil_stall"]:
        if row["rank"] == 1:
            row["names_count"] = 1
    (finding,) = look("gil-contention", job).findings
    assert finding.scope.ranks == (2,)


def test_whether_the_host_was_recorded_is_known_by_its_launches(make_job: MakeJob) -> None:
    (missing,) = look("gil-contention", make_job()).not_checked
    assert missing.needs.startswith("operators or calls of the host")
    launching = make_job()
    launching.rows["launch_stats"] = [{"rank": 0}]
    assert look("gil-contention", launching) == RuleOutcome()
    assert look("gil-contention", make_job(measured_on="host")) == RuleOutcome()


def test_a_recorded_job_is_told_what_the_thread_costs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """READMEs have the steps of both jobs; its twin has nobody who holds the lock. That the host
    seems slow is the same finding."""
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path))
    took_ms = {}
    for name in ("free", "held"):
        readme = (LOCK / name / "README.md").read_text()
        (mean,) = re.findall(r"steps profiled, ms .* mean (\d+\.\d)", readme)
        took_ms[name] = float(mean)
    with api.open(LOCK / "held") as run:
        findings = {f.rule: f for f in run.diagnose().findings}
    found = findings["gil-contention"]
    assert found.scope.ranks == (1,)
    assert found.impact.s_per_step == pytest.approx(
        (took_ms["held"] - took_ms["free"]) / 1e3, rel=0.05
    )
    assert "slow-host" not in findings and "counters" not in found.confidence.basis
    with api.open(LOCK / "free") as run:
        assert not run.diagnose(select=["gil-contention"]).findings


def test_without_steps_nothing_is_said(make_job: MakeJob) -> None:
    (missing,) = look("gil-contention", make_job(steps_count=0)).not_checked
    assert "step" in missing.needs
