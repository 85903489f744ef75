"""Rules about stalls: when they fire, when just not, and each thing that exempts."""

from __future__ import annotations

import pytest

from stall_rules import ALL, QUERY_OF, MakeJob, look
from tracekit.findings import Severity
from tracekit.rules import rule
from tracekit.rules.base import RuleOutcome


@ALL
def test_a_stall_of_one_rank_names_that_rank_and_what_the_job_loses(
    name: str, make_job: MakeJob
) -> None:
    # Every third step, so that a checkpoint has ordinary steps to stand out from.
    job = make_job(steps_count=12).stall(QUERY_OF[name], [2], [3, 6, 9, 12], 30)
    (finding,) = look(name, job).findings
    assert finding.id == f"{name}/2"
    assert finding.scope.ranks == (2,)
    assert finding.scope.hosts == ("h1",)
    # 4 of 12 steps lose 30 ms: 10 ms of a mean step of 110 ms.
    assert finding.impact.s_per_step == pytest.approx(0.010)
    assert finding.impact.step_ratio == pytest.approx(10 / 110)
    assert finding.severity is Severity.MAJOR
    assert finding.impact.gpu_hours_per_day == pytest.approx(10 / 110 * 4 * 24)


@ALL
def test_a_stall_in_step_on_all_ranks_costs_its_length_once(name: str, make_job: MakeJob) -> None:
    job = make_job(steps_count=12).stall(QUERY_OF[name], range(4), [3, 6, 9, 12], 30)
    (finding,) = look(name, job).findings
    assert finding.id == f"{name}/all"
    assert finding.impact.s_per_step == pytest.approx(0.010)


@ALL
@pytest.mark.parametrize(("longer_ms", "is_uneven"), [(60, True), (59, False)])
def test_of_stalls_that_differ_twofold_the_mean_is_called_one(
    name: str, longer_ms: int, is_uneven: bool, make_job: MakeJob
) -> None:
    job = make_job(steps_count=12).stall(QUERY_OF[name], [2], [3, 9], 30)
    (finding,) = look(name, job.stall(QUERY_OF[name], [2], [6, 12], longer_ms)).findings
    assert ("on average" in finding.summary) == is_uneven


@ALL
def test_a_job_that_never_stalls_has_no_finding(name: str, make_job: MakeJob) -> None:
    job = make_job().stall(QUERY_OF[name], range(4), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0)
    assert look(name, job) == RuleOutcome()


@ALL
def test_without_its_ranges_a_rule_says_that_it_could_not_check(
    name: str, make_job: MakeJob
) -> None:
    outcome = look(name, make_job())
    assert not outcome.findings
    (missing,) = outcome.not_checked
    assert missing.rule == name
    assert missing.needs
    assert missing.capture


@ALL
def test_without_steady_steps_a_rule_says_that_it_could_not_check(
    name: str, make_job: MakeJob
) -> None:
    job = make_job(steps_count=2).stall(QUERY_OF[name], [0], [2], 50)
    job.marks = {1: "is_warmup"}
    outcome = look(name, job)
    assert not outcome.findings
    assert "steady steps" in outcome.not_checked[0].needs


@ALL
def test_a_query_that_could_not_be_run_is_named(name: str, make_job: MakeJob) -> None:
    facts = make_job().facts()
    broken = type(facts)(
        job=facts.job, rows=facts.rows, unavailable={QUERY_OF[name]: "out of memory"}
    )
    (missing,) = rule(name).run(broken).not_checked
    assert "out of memory" in missing.needs


@ALL
def test_warmup_and_cut_steps_do_not_count(name: str, make_job: MakeJob) -> None:
    job = make_job(steps_count=12).stall(QUERY_OF[name], [2], [1, 2, 11, 12], 50)
    job.marks = {1: "is_warmup", 2: "is_warmup", 11: "is_partial", 12: "is_partial"}
    assert not look(name, job).findings


@ALL
def test_a_hidden_stall_costs_nothing(name: str, make_job: MakeJob) -> None:
    job = make_job(steps_count=12).stall(QUERY_OF[name], [2], [3, 6, 9, 12], 30, exposed_ms=0)
    assert look(name, job) == RuleOutcome()


@ALL
def test_a_rank_that_would_have_waited_anyway_costs_nothing(name: str, make_job: MakeJob) -> None:
    job = make_job(steps_count=12, comm_ms=5)
    for step in job.steps:
        # Rank 2 is early: it waits 40 ms for the others, which compute for longer.
        job.add(2, step, "exposed_comm", 40)
        job.add(2, step, "compute", -40)
    for step in (3, 6, 9, 12):
        job.add(2, step, "exposed_comm", -30)
    job.stall(QUERY_OF[name], [2], [3, 6, 9, 12], 30, is_waited_for=False)
    assert look(name, job) == RuleOutcome()


@ALL
def test_steps_of_two_captures_are_not_neighbours(name: str, make_job: MakeJob) -> None:
    job = make_job(steps_count=30).stall(QUERY_OF[name], [2], [14, 15], 30)
    facts = job.facts()
    for rows in facts.rows.values():
        for row in rows:
            row["capture_id"] = 0 if row["step"] <= 14 else 1
    found = rule(name).run(facts).findings
    # Two separate stalled steps of 30 persist for nobody; two checkpoints are what they are.
    assert bool(found) == (name == "checkpoint-stall")


@ALL
def test_who_waits_in_every_step_is_waited_for_all_the_same(name: str, make_job: MakeJob) -> None:
    # Rank 2 waits 25 ms longer than the others in every step, as a pipeline's first stage does.
    job = make_job(steps_count=12).stall(QUERY_OF[name], [2], [3, 6, 9, 12], 20)
    for step in job.steps:
        job.add(2, step, "exposed_comm", 25)
        job.add(2, step, "compute", -25)
    (finding,) = look(name, job).findings
    # 4 of 12 steps lose 20 ms: the others wait for as much longer than in their other steps.
    assert finding.impact.s_per_step == pytest.approx(0.020 / 3)


@ALL
def test_a_stall_within_what_its_rank_waits_for_another_costs_nothing(
    name: str, make_job: MakeJob
) -> None:
    # Ranks 1 and 2 wait 30 ms for rank 0 in every step; where rank 2 stalls it waits less by that,
    # and rank 1 as long as ever.
    job = make_job(steps_count=12).stall(
        QUERY_OF[name], [2], [3, 6, 9, 12], 20, is_waited_for=False
    )
    for step in job.steps:
        for rank in (1, 2):
            stalls = rank == 2 and step % 3 == 0
            job.add(rank, step, "exposed_comm", 10 if stalls else 30)
            job.add(rank, step, "compute", -30)
    assert not look(name, job).findings


@ALL
def test_a_stall_that_comes_last_counts_beyond_whom_it_hides(name: str, make_job: MakeJob) -> None:
    # All wait 30 ms for rank 0 in every step. Where rank 2 stalls for 60 it does not, and the
    # others wait for it: by 30 longer than elsewhere, which is what a step takes less without.
    job = make_job(steps_count=12).stall(
        QUERY_OF[name], [2], [3, 6, 9, 12], 60, is_waited_for=False
    )
    for step in job.steps:
        is_stalled = step % 3 == 0
        for rank in (1, 2, 3):
            waits_ms = (0 if rank == 2 else 60) if is_stalled else 30
            job.add(rank, step, "exposed_comm", waits_ms)
            job.add(rank, step, "compute", -30)
        if is_stalled:
            job.add(0, step, "exposed_comm", 30)
    (finding,) = look(name, job).findings
    assert finding.impact.s_per_step == pytest.approx(0.030 / 3)
