"""host-pause of all ranks at once: what a host does while it launches nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from late_jobs import MS, late_job

from stall_rules import MakeJob, look
from tracekit.rules.base import RuleOutcome

EVERY = range(1, 11)


def pausing(
    make_job: MakeJob,
    ms: int = 30,
    *,
    ranks: int = 1,
    hit: Iterable[int] = EVERY,
    kind: str = "range",
    names: tuple[str, ...] = ("metrics",),
    part: float = 1.0,
    copies_ms: int = 0,
    who: Iterable[int] | None = None,
    count: int = 1,
    world_size: int | None = None,
    **job_of: Any,
) -> Any:
    """Steps of 100 ms that each rank lengthens by a pause in which its device idles."""
    if ranks > 1:
        job = late_job(make_job, {}, ranks_count=ranks)
    else:
        job = make_job(ranks_count=1, **job_of)
    job.world_size = world_size
    paused = [*(range(ranks) if who is None else who)]
    job.rows["slow_steps"] = []
    job.stall("pause_stall", paused, hit, ms, is_waited_for=False)
    for number, row in enumerate(job.rows["pause_stall"]):
        row["ranges_count"] = count
        row["kind"], row["name"] = kind, names[number % len(names)]
        row["part_ns"] = int(row["exposed_ns"] * part)
        job.add(row["rank"], row["step"], "memory", copies_ms)
    return job


def found(job: Any) -> Any:
    (finding,) = look("host-pause", job).findings
    return finding


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_range_in_which_every_step_stands_still_is_named(make_job: MakeJob, ranks: int) -> None:
    finding = found(pausing(make_job, ranks=ranks))
    hosts = "The host stands" if ranks == 1 else "All hosts stand"
    assert f"{hosts} still for 30.0 ms in every step: nothing recorded inside `metrics`" in (
        finding.summary
    )
    assert finding.impact.s_per_step == pytest.approx(0.030)
    assert finding.impact.low_s_per_step == 0  # nothing but its own time was measured
    assert finding.confidence.level == "likely"


def test_what_a_range_is_for_says_what_helps(make_job: MakeJob) -> None:
    finding = found(pausing(make_job, names=("evaluate",)))
    assert "inside `evaluate` (evaluation)" in finding.summary
    assert "without evaluation" in finding.confirm[0]


def test_a_place_without_a_range_is_told_by_what_it_lies_between(make_job: MakeJob) -> None:
    finding = found(pausing(make_job, kind="between", names=("between backward and optimizer",)))
    assert "nothing recorded between backward and optimizer, and the GPU idle" in finding.summary
    assert "that no range names" in finding.summary


def test_places_that_change_are_a_host_that_lacks_its_cpus(make_job: MakeJob) -> None:
    names = ("aten::mm", "aten::to", "aten::copy_", "aten::add")
    finding = found(pausing(make_job, kind="operator", names=names))
    assert "at places that change (inside `aten::mm`, inside `aten::to` and inside" in (
        finding.summary
    )
    assert "does not get its CPUs" in finding.summary
    assert "/proc/pressure/cpu" in finding.confirm[0]


def test_code_at_some_places_has_its_longest_pause_at_one_of_them(make_job: MakeJob) -> None:
    finding = found(pausing(make_job, kind="operator", part=0.3, count=5))
    assert "nothing recorded 5 times a step, the longest time inside `metrics`" in finding.summary
    half = pausing(make_job, names=tuple("aaabcde"), part=0.3)  # in five of ten steps
    assert "the longest time inside `a`" in found(half).summary
    fewer = pausing(make_job, names=tuple("aabcd"), part=0.3)  # in four
    assert "places that change" in found(fewer).summary


def test_copies_beside_the_pauses_of_some_steps_are_a_save_and_cost_too(make_job: MakeJob) -> None:
    job = pausing(make_job, 300, hit=(4, 8), kind="between", part=0.4, copies_ms=100)
    finding = found(job)
    assert "stands still for 400 ms in steps 4,8" in finding.summary
    assert "copies of device memory that take 100 ms of it" in finding.summary
    assert "a save, or a move, of the model's state" in finding.summary
    assert finding.impact.s_per_step == pytest.approx(0.080)


def test_few_copies_are_no_save(make_job: MakeJob) -> None:
    assert "copies" not in found(pausing(make_job, 300, hit=(4, 8), copies_ms=29)).summary


@pytest.mark.parametrize(
    ("kind", "is_said"),
    [
        ({"ms": 6}, True),
        ({"ms": 5}, False),  # of 105 ms, 4.8 %
        ({"hit": (4, 8)}, True),
        ({"hit": (4,)}, False),  # once
        ({"ranks": 2, "who": [0]}, False),  # of one rank alone its peers' waiting tells
        ({"measured_on": "host"}, False),
    ],
)
def test_what_is_too_little(make_job: MakeJob, kind: dict[str, Any], *, is_said: bool) -> None:
    assert bool(look("host-pause", pausing(make_job, **kind)).findings) is is_said


@pytest.mark.parametrize(("count", "is_said"), [(2, True), (3, False)])
def test_many_pauses_beside_peers_without_traces_may_be_for_these(
    make_job: MakeJob, count: int, *, is_said: bool
) -> None:
    outcome = look("host-pause", pausing(make_job, count=count, world_size=8))
    assert [f.summary[:19] for f in outcome.findings] == ["Rank 0 stands still"] * is_said
    assert found(pausing(make_job, count=count)).summary.startswith("The host stands still")


def test_a_healthy_job_stands_nowhere(make_job: MakeJob) -> None:
    job = make_job(ranks_count=1)
    job.rows["slow_steps"] = []
    assert look("host-pause", job) == RuleOutcome()


def test_a_pause_costs_no_more_than_its_device_idles(make_job: MakeJob) -> None:
    """A device that still has work for the first 40 of 100 ms loses 60."""
    job = pausing(make_job, 60, hit=(4, 8))
    for step in (4, 8):
        job.add(0, step, "compute", 40)
        job.rows["slow_steps"].append(
            {"attempt": 1, "capture_id": 0, "step": step, "rank": 0, "timeline": "host",
             "kind": "pause", "path": "", "name": "between a and b", "part_ns": 100.0 * MS,
             "over_ns": 100.0 * MS, "source_id": 0, "place": step}
        )  # fmt: skip
    finding = found(job)
    assert finding.impact.method == "twin steps"
    assert finding.impact.s_per_step == pytest.approx(0.012)
