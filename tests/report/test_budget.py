"""The step budget: its parts add up to the step, whatever the findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tracekit.findings import (
    Confidence,
    Finding,
    Impact,
    Scope,
    Severity,
    When,
)
from tracekit.report import build_report
from tracekit.report.budget import beyond_parts, step_budget
from tracekit.rules.steps import Steps

MakeJob = Callable[..., Any]


def parts(job: Any) -> dict[str, float]:
    budget = build_report(job.facts()).document.step_budget
    return {p.finding or p.part: round(p.s_per_step * 1e3, 6) for p in budget}


def test_a_healthy_step_is_computing_waiting_and_idle(make_job: MakeJob) -> None:
    assert parts(make_job()) == {"floor": 85, "other_waiting": 5, "host": 10, "unexplained": 0}


def test_a_culprit_comes_out_of_the_waiting_of_its_peers(make_job: MakeJob) -> None:
    found = parts(make_job().stall("input_stall", [1], range(1, 11), 50))
    assert found == {
        "dataloader-stall/1": 50,
        "floor": 85,
        "other_waiting": 5,
        "host": 10,
        "unexplained": 0,
    }


def test_a_stall_of_all_comes_out_of_idle_time(make_job: MakeJob) -> None:
    found = parts(make_job().stall("input_stall", range(4), range(1, 11), 50))
    assert found["dataloader-stall/all"] == 50
    assert found["host"] == 10


def test_a_symptom_that_is_explained_gets_no_part(make_job: MakeJob) -> None:
    found = parts(make_job(comm_ms=10).stall("input_stall", [1], range(1, 11), 50))
    assert "exposed-communication/all" not in found
    assert found["other_waiting"] == 10


def test_a_symptom_that_stands_alone_is_a_part(make_job: MakeJob) -> None:
    found = parts(make_job(comm_ms=40))
    assert found["exposed-communication/all"] == 40
    assert "other_waiting" not in found


def test_fetching_on_the_host_is_work_of_operators_too(make_job: MakeJob) -> None:
    job = make_job(measured_on="host").stall("input_stall", range(4), range(1, 11), 50)
    for rank in range(4):
        for step in job.steps:
            # Collating runs operators, so the breakdown calls it computing.
            job.add(rank, step, "idle", -50)
            job.add(rank, step, "compute", 50)
    found = parts(job)
    assert found["dataloader-stall/all"] == 50
    assert found["floor"] + found.get("host", 0.0) == 95


def finding(rule: str, rank: int, s_per_step: float | None) -> Finding:
    return Finding(
        id=f"{rule}/{rank}",
        rule=rule,
        severity=Severity.MINOR,
        confidence=Confidence(level="possible", basis=""),
        summary="",
        owner="model",
        scope=Scope(ranks=(rank,)),
        when=When(),
        impact=Impact(s_per_step=s_per_step),
        evidence=(),
    )


NS = st.integers(0, 2_000_000_000)


@given(
    rows=st.lists(st.tuples(NS, NS, NS, NS, NS), min_size=1, max_size=12),
    costs=st.lists(
        st.tuples(
            st.sampled_from(["dataloader-stall", "exposed-communication", "launch-bound"]),
            st.integers(0, 3),
            st.none() | st.floats(0, 5),
        ),
        max_size=5,
    ),
    is_host=st.booleans(),
)
def test_the_parts_always_sum_to_the_step_and_none_is_negative(
    rows: list[tuple[int, int, int, int, int]],
    costs: list[tuple[str, int, float | None]],
    is_host: bool,
) -> None:
    # Durations are unrelated to the parts on purpose: rows may contradict each other.
    breakdown = [
        {
            "rank": i % 3,
            "attempt": 1,
            "capture_id": 0,
            "step": i // 3,
            "dur_ns": dur,
            "compute_ns": compute,
            "comm_ns": comm,
            "exposed_comm_ns": comm,
            "memory_ns": memory,
            "idle_ns": idle,
            "is_warmup": False,
            "is_partial": False,
            "measured_on": "host" if is_host else "gpu",
        }
        for i, (dur, compute, comm, memory, idle) in enumerate(rows)
    ]
    steps = Steps.from_rows(breakdown, [])
    findings = [finding(*cost) for cost in costs]
    budget = step_budget(steps, findings)
    if steps.median_rank is None:
        assert budget == ()
        return
    assert sum(p.s_per_step for p in budget) == pytest.approx(steps.step_ns / 1e9, abs=2e-9)
    assert all(p.s_per_step >= 0 for p in budget)
    assert budget[-1].part == "unexplained"


def test_one_cost_that_several_findings_carry_counts_once(make_job: MakeJob) -> None:
    facts = make_job(comm_ms=60).facts()
    alone = [finding("late-rank", rank, 0.02) for rank in (1, 2)]
    joint = [
        replace(f, impact=replace(f.impact, joint_ranks=(1, 2))) for f in alone
    ] + [finding("late-rank", 3, 0.01)]  # fmt: skip

    def told(findings: list[Finding]) -> dict[str | None, int]:
        budget = step_budget(facts.steps, findings)
        return {p.finding: round(p.s_per_step * 1e3) for p in budget if p.part == "finding"}

    assert told(alone) == {"late-rank/1": 20, "late-rank/2": 20}
    assert told(joint) == {"late-rank/1": 20, "late-rank/3": 10}


def test_the_schedules_bubble_comes_out_of_waiting_then_idle(make_job: MakeJob) -> None:
    """Before findings that blame nobody, after culprits; the parts still sum to the step."""
    facts = make_job().facts()
    found = step_budget(facts.steps, [], 8e6)
    by_part = {p.part: round(p.s_per_step * 1e3) for p in found}
    assert by_part == {"bubble": 8, "floor": 85, "host": 7, "unexplained": 0}
    assert sum(p.s_per_step for p in found) == pytest.approx(0.1)
    everything = step_budget(facts.steps, [], 8e9)
    by_part = {p.part: round(p.s_per_step * 1e3) for p in everything}
    assert by_part == {"bubble": 15, "floor": 85, "unexplained": 0}


def with_costs(job: Any, costs: dict[str, float]) -> tuple[dict[str, int], dict[str, int]]:
    """Parts of the step in ms, and what of each finding's cost stands in other parts."""
    found = [finding(rule, 0, s) for rule, s in costs.items()]
    budget = step_budget(job.facts().steps, found)
    own = {p.finding or p.part: round(p.s_per_step * 1e3) for p in budget}
    beyond = {f.rule: round(s * 1e3) for f, s in beyond_parts(found, budget)}
    return {name.partition("/")[0]: ms for name, ms in own.items() if ms}, beyond


def test_communication_in_which_launches_are_waited_for_is_the_launches_part(
    make_job: MakeJob,
) -> None:
    """Which of the two costs more does not decide whose the time is."""
    job = make_job(comm_ms=60)  # of 100 ms: 30 computing, 60 communication, 10 idle
    found = with_costs(job, {"exposed-communication": 0.060, "launch-bound": 0.050})
    assert found == (
        {"launch-bound": 50, "exposed-communication": 20, "floor": 30},
        {"exposed-communication": 40},
    )


def test_launches_leave_what_is_not_theirs(make_job: MakeJob) -> None:
    """Idle time has enough for them: communication keeps all of its own."""
    found = with_costs(make_job(comm_ms=60), {"exposed-communication": 0.060, "launch-bound": 0.01})
    assert found == ({"launch-bound": 10, "exposed-communication": 60, "floor": 30}, {})


def test_a_culprit_comes_before_what_the_program_does(make_job: MakeJob) -> None:
    found = with_costs(make_job(comm_ms=60), {"launch-bound": 0.065, "dataloader-stall": 0.040})
    assert found == (
        {"dataloader-stall": 40, "launch-bound": 30, "floor": 30},
        {"launch-bound": 35},
    )


def test_what_is_missing_of_a_cost_is_told_from_a_hundredth_of_the_step(make_job: MakeJob) -> None:
    job = make_job(comm_ms=60)
    assert with_costs(job, {"exposed-communication": 0.0609})[1] == {}
    assert with_costs(job, {"exposed-communication": 0.0611})[1] == {"exposed-communication": 1}


def test_a_sum_of_other_parts_is_not_said_to_lack_one(make_job: MakeJob) -> None:
    assert with_costs(make_job(), {"low-mfu": 0.05})[1] == {}


def test_what_is_explained_is_not_said_to_lack_a_part(make_job: MakeJob) -> None:
    steps = make_job(comm_ms=60).facts().steps
    cause = finding("dataloader-stall", 0, 0.060)
    symptom = replace(finding("exposed-communication", 0, 0.060), explained_by=(cause.id,))
    assert beyond_parts([cause, symptom], step_budget(steps, [cause, symptom])) == ()
