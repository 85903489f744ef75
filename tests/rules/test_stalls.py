"""Rules about stalls: when they fire, when just not, and each thing that exempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracekit.findings import Severity
from tracekit.rules import rule
from tracekit.rules.base import RuleOutcome

MakeJob = Callable[..., Any]

QUERY_OF = {
    "dataloader-stall": "input_stall",
    "gc-pause": "gc_pause",
    "checkpoint-stall": "checkpoint_stall",
    "sync-stall": "sync_stall",
    "recompile": "compile_stall",
    "allocator-stall": "allocator_stall",
}
ALL = pytest.mark.parametrize("name", QUERY_OF)


def look(name: str, job: Any, **known: Any) -> RuleOutcome:
    return rule(name).run(job.facts(**known))


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


# ---------------------------------------------------------------- dataloader-stall


def test_a_short_fetch_in_every_step_is_no_stall(make_job: MakeJob) -> None:
    below = make_job().stall("input_stall", [1], range(1, 11), 3)
    assert not look("dataloader-stall", below).findings  # 3 of 103 ms is under 3 %
    above = make_job().stall("input_stall", [1], range(1, 11), 4)
    assert look("dataloader-stall", above).findings


def test_the_fetch_after_an_epoch_border_is_no_stall(make_job: MakeJob) -> None:
    once = make_job(steps_count=10).stall("input_stall", range(4), [5], 400)
    assert look("dataloader-stall", once) == RuleOutcome()


def test_two_of_eleven_steps_are_chance_and_three_episodes_are_a_fault(make_job: MakeJob) -> None:
    twice = make_job(steps_count=30).stall("input_stall", [1], [5, 20], 80)
    assert not look("dataloader-stall", twice).findings
    thrice = make_job(steps_count=30).stall("input_stall", [1], [5, 12, 20], 80)
    assert look("dataloader-stall", thrice).findings


def test_three_steps_in_a_row_are_a_fault(make_job: MakeJob) -> None:
    job = make_job(steps_count=30).stall("input_stall", [1], [5, 6, 7], 80)
    (finding,) = look("dataloader-stall", job).findings
    assert finding.scope.steps == ((5, 7),)
    assert finding.when.start_utc == "2026-07-21T03:01:07.400000Z"


def test_episodes_on_ranks_that_change_are_not_one_intermittent_fault(make_job: MakeJob) -> None:
    job = make_job(steps_count=30)
    for rank, step in ((0, 5), (1, 12), (2, 20)):
        job.stall("input_stall", [rank], [step], 80)
    assert not look("dataloader-stall", job).findings


def test_a_rank_that_stalls_a_little_beside_a_long_stall_is_not_named(make_job: MakeJob) -> None:
    job = make_job().stall("input_stall", [1], range(1, 11), 50)
    job.stall("input_stall", [3], range(1, 11), 10, is_waited_for=False)
    (finding,) = look("dataloader-stall", job).findings
    assert finding.scope.ranks == (1,)


def test_a_period_is_said(make_job: MakeJob) -> None:
    job = make_job(steps_count=12).stall("input_stall", [1], [4, 8, 12], 80)
    (finding,) = look("dataloader-stall", job).findings
    assert "every 4 steps" in finding.summary


def test_two_kinds_of_evidence_are_likely_and_one_is_possible(make_job: MakeJob) -> None:
    on_gpu = make_job().stall("input_stall", range(4), range(1, 11), 30)
    assert look("dataloader-stall", on_gpu).findings[0].confidence.level == "likely"
    on_host = make_job(measured_on="host").stall("input_stall", range(4), range(1, 11), 30)
    assert look("dataloader-stall", on_host).findings[0].confidence.level == "possible"
    waited_for = make_job(measured_on="host").stall("input_stall", [1], range(1, 11), 30)
    (finding,) = look("dataloader-stall", waited_for).findings
    assert finding.confidence.level == "likely"
    assert "waiting for it" in finding.confidence.basis


def test_evidence_points_to_the_records(make_job: MakeJob) -> None:
    job = make_job().stall("input_stall", [1], range(1, 11), 30)
    (finding,) = look("dataloader-stall", job).findings
    places = finding.evidence[0].rows
    assert (places[0].source, places[0].place) == ("r1.json", "1")


def test_a_stall_that_does_not_lengthen_its_steps_is_counter_evidence(make_job: MakeJob) -> None:
    job = make_job(ranks_count=1, steps_count=12).stall("input_stall", [0], [3, 6, 9, 12], 30)
    for step in (3, 6, 9, 12):
        job.add(0, step, "compute", -30)
    (finding,) = look("dataloader-stall", job).findings
    assert finding.counter_evidence


# ---------------------------------------------------------------- gc-pause


def test_a_collector_that_strikes_another_rank_each_step_is_one_finding(make_job: MakeJob) -> None:
    job = make_job(ranks_count=4, steps_count=12)
    for step in range(1, 13):
        job.stall("gc_pause", [step % 4], [step], 20)
    (finding,) = look("gc-pause", job).findings
    assert finding.id == "gc-pause/all"
    assert finding.impact.s_per_step == pytest.approx(0.020)


def test_unequal_sequences_are_not_taken_for_collections(make_job: MakeJob) -> None:
    job = make_job(ranks_count=4, steps_count=12)
    for step in range(1, 13):
        # Another rank computes longer each step; its collections are short and hidden.
        job.add(step % 4, step, "compute", 40)
        for rank in range(4):
            if rank != step % 4:
                job.add(rank, step, "exposed_comm", 40)
        job.stall("gc_pause", [step % 4], [step], 2, exposed_ms=0, is_waited_for=False)
    assert look("gc-pause", job) == RuleOutcome()


# ---------------------------------------------------------------- checkpoint-stall


def test_one_checkpoint_is_said_and_not_turned_into_a_cost(make_job: MakeJob) -> None:
    job = make_job(steps_count=12).stall("checkpoint_stall", range(4), [6], 300)
    outcome = look("checkpoint-stall", job)
    assert not outcome.findings
    assert "300 ms in step 6" in outcome.not_checked[0].needs


def test_a_save_in_a_step_no_longer_than_the_others_was_hidden(make_job: MakeJob) -> None:
    job = make_job(steps_count=12).stall("checkpoint_stall", range(4), [4, 8], 30)
    for rank in range(4):
        for step in (4, 8):
            job.add(rank, step, "compute", -30)
    assert not look("checkpoint-stall", job).findings


def test_a_save_within_the_noise_of_steps_is_not_reported(make_job: MakeJob) -> None:
    # Steps scatter by 10 ms, so 45 ms are 4.5 deviations and 60 ms are 6.
    for ms, is_reported in ((45, False), (60, True)):
        job = make_job(steps_count=20)
        for step in job.steps:
            for rank in range(4):
                job.add(rank, step, "compute", 10 if step % 4 in (0, 1) else -10)
        for rank in range(4):
            for step in (6, 14):
                job.add(rank, step, "compute", 10)
        job.stall("checkpoint_stall", range(4), [6, 14], ms)
        assert bool(look("checkpoint-stall", job).findings) == is_reported


def test_periodic_evaluation_is_not_a_checkpoint(make_job: MakeJob) -> None:
    job = make_job(steps_count=12)
    for rank in range(4):
        for step in (4, 8, 12):
            job.add(rank, step, "idle", 200)
    # Saves are recorded, elsewhere and hidden.
    job.stall("checkpoint_stall", [0], [2], 20, exposed_ms=0, is_waited_for=False)
    assert look("checkpoint-stall", job) == RuleOutcome()


# ---------------------------------------------------------------- sync-stall


def test_one_short_synchronisation_a_step_is_usual(make_job: MakeJob) -> None:
    below = make_job().stall("sync_stall", range(4), range(1, 11), 2)
    assert not look("sync-stall", below).findings  # 2 of 102 ms
    above = make_job().stall("sync_stall", range(4), range(1, 11), 3)
    assert look("sync-stall", above).findings


def test_ranks_without_a_gpu_cannot_show_it(make_job: MakeJob) -> None:
    job = make_job(measured_on="host").stall("sync_stall", range(4), range(1, 11), 30)
    outcome = look("sync-stall", job)
    assert not outcome.findings
    assert "GPU timeline" in outcome.not_checked[0].needs


@pytest.mark.parametrize(("calls", "is_uncached"), [(99, False), (292, True)])
def test_hundreds_of_allocations_in_every_step_are_a_cache_that_is_off(
    make_job: MakeJob, calls: int, is_uncached: bool
) -> None:
    """As seen: 1,460 hipMalloc in five steps. Advice against fragmentation would mend nothing."""
    job = make_job().stall("allocator_stall", range(4), range(1, 11), 30)
    for row in job.rows["allocator_stall"]:
        row["ranges_count"] = calls
    (finding,) = look("allocator-stall", job).findings
    assert ("its cache seems to be off" in finding.summary) is is_uncached
    assert any("NO_CUDA_MEMORY_CACHING" in r for r in finding.remedy) is is_uncached
    assert any("expandable_segments" in r for r in finding.remedy) is not is_uncached


def test_where_launches_were_recorded_no_allocation_is_none(make_job: MakeJob) -> None:
    assert look("allocator-stall", make_job().launching()) == RuleOutcome()
