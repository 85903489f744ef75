"""dataloader-stall: when it fires, when just not, and what exempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from late_jobs import MS, late_job
from late_jobs import MakeJob as LateMakeJob
from msgspec.structs import replace

from excess_rules import DATA, INPUT, PAUSED, facts_of
from stall_rules import MakeJob, look
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome


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
    assert "in steps 4,8,12 (3 of 12, every 4th)" in finding.summary


@pytest.mark.parametrize(
    ("at_stalls", "elsewhere", "is_told"),
    [
        ({2}, {1}, True),
        ({3}, {1, 2}, True),
        ({1}, {1}, False),
        ({2}, {2}, False),  # two loaders
        ({1, 2}, {1}, False),  # not each stall
        ({9}, {1}, False),  # an evaluation's batches
        ({2}, set(), False),  # nothing to compare with
    ],
)
def test_one_fetch_more_where_it_stalls_is_the_end_of_an_epoch(
    make_job: MakeJob, at_stalls: set[int], elsewhere: set[int], is_told: bool
) -> None:
    job = make_job(steps_count=12).stall("input_stall", [1], [4, 8, 12], 80)
    if elsewhere:
        job.stall("input_stall", [1], [2, 3, 6], 1)
    for row in job.rows["input_stall"]:
        wanted = at_stalls if row["step"] in (4, 8, 12) else elsewhere
        row["ranges_count"] = max(wanted) if row["step"] in (3, 4) else min(wanted)
    (finding,) = look("dataloader-stall", job).findings
    says = "the data loader is too slow, as an epoch ends there and it begins again."
    assert finding.summary.endswith(says) is is_told
    assert ("from epoch to epoch" in finding.remedy[0]) is is_told


@pytest.mark.parametrize(("steps", "each_s"), [([4, 8, 12], 0.08), (range(1, 8), None)])
def test_a_cost_that_comes_and_goes_is_told_both_ways(
    make_job: MakeJob, steps: Sequence[int], each_s: float | None
) -> None:
    """80 ms in three of twelve steps are 20 of a mean one; in most steps the mean says enough."""
    job = make_job(steps_count=12).stall("input_stall", [1], steps, 80)
    (finding,) = look("dataloader-stall", job).findings
    assert finding.impact.s_per_step == pytest.approx(0.08 * len(steps) / 12)
    assert finding.impact.s_per_affected_step == (each_s and pytest.approx(each_s))


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


@pytest.mark.parametrize(("hidden_ms", "count"), [(2, 1), (5, 0)])
def test_a_little_in_steps_that_are_about_as_long_is_noise(
    make_job: MakeJob, hidden_ms: int, count: int
) -> None:
    """8 ms in three of twelve steps are 2 % of all: then the steps' own lengths must show half."""
    job = make_job(ranks_count=1, steps_count=12).stall("input_stall", [0], [3, 6, 9], 8)
    for step in (3, 6, 9):
        job.add(0, step, "compute", -hidden_ms)
    assert len(look("dataloader-stall", job).findings) == count


def test_a_rank_that_is_late_in_a_range_for_input_waits_for_its_data(make_job: LateMakeJob) -> None:
    (found,) = DATA.run(facts_of(make_job, INPUT)).findings
    assert (found.scope.ranks, found.owner) == ((2,), "data")
    assert ": in `train/dataloader` (input): 83.3 ms in steps 2,6,10" in found.summary


@pytest.mark.parametrize(
    "row",
    [INPUT | {"excess_ns": 12e6}, INPUT | {"path": "save_checkpoint"}, PAUSED],
    ids=["half", "checkpoint", "pause"],
)
def test_what_is_no_wait_for_input(make_job: LateMakeJob, row: dict[str, Any]) -> None:
    outcome = DATA.run(facts_of(make_job, row))
    assert not outcome.findings
    assert "waits for input recorded" in outcome.not_checked[0].needs


def test_a_rank_whose_waits_are_recorded_is_judged_by_these(make_job: LateMakeJob) -> None:
    facts = facts_of(make_job, INPUT)
    wait = {"rank": 2, "attempt": 1, "capture_id": 0, "step": 2, "stall_ns": MS, "exposed_ns": 0,
            "ranges_count": 1, "longest_ns": MS, "source_id": 2, "place": 1}  # fmt: skip
    assert DATA.run(replace(facts, rows={**facts.rows, "input_stall": [wait]})) == RuleOutcome()


def test_an_input_range_that_delays_nobody_accuses_nobody(make_job: LateMakeJob) -> None:
    job = late_job(make_job, {2: 4})
    job.rows["excess"] = [INPUT]
    assert not DATA.run(job.facts()).findings


LOGGED: dict[str, Any] = {
    "source_id": 0, "format": "timm", "steps_count": 1000, "lines_count": 20, "step_ns": 10**9,
    "input_wait_ns": 10**8, "input_wait_ratio": 0.1, "first_wait_ratio": 0.1, "place": 7,
    "longest_wait_ns": 3 * 10**9,
}  # fmt: skip


def by_log(**told: Any) -> RuleOutcome:
    return rule("dataloader-stall").run(Facts(rows={"logged_input": [LOGGED | told]}))


def test_a_log_alone_may_state_the_wait() -> None:
    (found,) = by_log().findings
    assert found.summary == (
        "The rank that prints the log waits 100 ms of a step of 1.00 s for input: 10 % of its time."
    )
    assert (found.severity, found.confidence.level) == ("major", "possible")
    assert [e.rows[0].place for e in found.evidence if e.rows] == ["line 7"]


@pytest.mark.parametrize("told", [{"input_wait_ratio": 0.099}, {"steps_count": 19}])
def test_a_short_wait_and_a_short_log_tell_nothing(told: dict[str, Any]) -> None:
    outcome = by_log(**told)
    assert not outcome.findings
    assert "steady steps" in outcome.not_checked[0].needs


@pytest.mark.parametrize(("begins", "is_said"), [(0.49, False), (0.5, True), (None, False)])
def test_waits_in_first_steps_are_the_workers_beginning(
    begins: float | None, is_said: bool
) -> None:
    (found,) = by_log(first_wait_ratio=begins).findings
    assert ("of it in first steps of epochs." in found.summary) == is_said
    assert ("persistent_workers=True" in found.remedy[0]) and (
        found.remedy[0].startswith("keep the workers") == is_said
    )


def test_where_traces_tell_of_the_steps_the_log_is_not_asked(make_job: MakeJob) -> None:
    job = make_job().stall("input_stall", [1], range(1, 11), 3)
    facts = replace(job.facts(), rows={**job.facts().rows, "logged_input": [LOGGED]})
    assert not rule("dataloader-stall").run(facts).findings


def held(rank: int, **told: Any) -> dict[str, Any]:
    """A rank whose log says that it waits, in 6 of 60 steps."""
    return {
        "rank": rank, "ranks_count": 8, "steps_count": 60, "hit_steps_count": 6,
        "input_wait_ns": 2.5e9, "usual_wait_ns": 6e6, "held_ratio": 1.0, "step_ns": 15e9,
        "lost_ns": 2.5e9, "lost_steps_count": 6, "longest_wait_ns": 26 * 10**9, "longest_step": 53,
        "source_id": rank, "place": 53,
    } | told  # fmt: skip


FREE = {"hit_steps_count": 0, "held_ratio": 0.0, "longest_wait_ns": 10**7}


def by_logs(*rows: dict[str, Any]) -> RuleOutcome:
    """What is said of ranks whose logs tell, the others being free."""
    ranks = {row["rank"] for row in rows}
    job = rows[0]
    same = {name: job[name] for name in ("steps_count", "lost_ns", "lost_steps_count")}
    free = (held(rank, **FREE, **same) for rank in range(8) if rank not in ranks)
    logged = {"logged_rank_input": [*rows, *free], "logged_input": [LOGGED]}
    return rule("dataloader-stall").run(Facts(rows=logged))


def test_logs_of_several_ranks_name_the_one_that_waits() -> None:
    (found,) = by_logs(held(5)).findings
    assert found.scope.ranks == (5,)
    assert found.summary == (
        "Rank 5 waits for input in 6 of 60 steps, by their logs: up to 26.0 s, the median rank "
        "6.00 ms. The job loses 2.50 s of a step of 15.0 s by it: 17 % of its time."
    )
    assert [(e.rows[0].source, e.rows[0].place) for e in found.evidence if e.rows] == [
        ("source 5", "line 53")
    ]


def test_ranks_that_wait_together_are_named_together_and_those_by_turns_not_at_all() -> None:
    (found,) = by_logs(held(4), held(5)).findings
    assert found.scope.ranks == (4, 5)
    assert found.summary.startswith("Ranks 4-5 wait for input in")
    (found,) = by_logs(*(held(rank, held_ratio=0.49) for rank in (1, 2, 3))).findings
    assert found.scope.ranks == ()
    assert found.summary.startswith("Ranks 1-3 wait by turns for input in")


def test_where_most_steps_wait_the_loss_is_a_bound() -> None:
    (found,) = by_logs(held(5, hit_steps_count=30, lost_steps_count=30)).findings
    assert found.summary.endswith(
        "loses up to 2.50 s of a step of 15.0 s by it: up to 17 % of its time."
    )


@pytest.mark.parametrize(
    "told",
    [{"lost_ns": 0.44e9}, {"lost_steps_count": 2}, {"steps_count": 19}],
    ids=["a fetch is the price of any loader", "twice is no habit", "a short log"],
)
def test_little_waiting_of_one_rank_is_not_told(told: dict[str, Any]) -> None:
    (found,) = by_logs(held(5, **told)).findings
    assert found.summary.startswith("The rank that prints the log waits")  # what its log says


def test_logs_of_ranks_that_wait_alike_name_nobody() -> None:
    (found,) = by_logs(held(5, **FREE, lost_ns=0.0, lost_steps_count=0)).findings
    assert found.scope.ranks == ()
