"""late-rank: when it fires, when just not, and what exempts."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from late_jobs import MS, MakeJob, coverage, late_job, late_step, part
from msgspec.structs import replace

from excess_rules import INPUT, MORE, PAUSED, SLOWER, facts_of, place_of
from excess_rules import LATE as EXCESS_LATE
from lateness_rules import (
    GPU,
    HOST,
    LATE,
    Replayed,
    absent,
    exit_row,
    sibling,
    side_by_side,
    uncalled,
)
from pipeline_rules import Replayed as OperationsReplayed
from tracekit.findings import Candidates, Severity
from tracekit.job import parse_job
from tracekit.report.build import build_report
from tracekit.report.links import link_symptoms
from tracekit.report.text import to_text
from tracekit.rules.base import NOT_APPLICABLE, Facts, RuleOutcome
from tracekit.rules.lateness.search import median_of_others


def test_a_rank_that_delays_every_step_is_named_with_its_cost(make_job: MakeJob) -> None:
    (finding,) = LATE.run(late_job(make_job, {2: 25}).facts()).findings
    assert finding.scope.ranks == (2,)
    assert finding.impact.s_per_step == pytest.approx(0.025)
    assert finding.severity is Severity.CRITICAL
    assert finding.evidence[0].rows[0].source == "r2.json"


def test_two_culprits_are_two_findings_the_worse_first(make_job: MakeJob) -> None:
    found = LATE.run(late_job(make_job, {0: 30, 3: 25}, ranks_count=8).facts()).findings
    assert [f.scope.ranks for f in found] == [(0,), (3,)]


def late_beside(make_job: MakeJob, own_ms: float = 10.0, **options: Any) -> Any:
    """Rank 3 has most of the waiting; a fair share of all of it is more than rank 1 has."""
    return late_job(make_job, {1: own_ms, 3: 60}, **options)


def test_beside_a_rank_far_behind_another_is_asked_for_its_share_of_the_rest(
    make_job: MakeJob,
) -> None:
    found = LATE.run(late_beside(make_job).facts()).findings
    assert [f.scope.ranks for f in found] == [(3,), (1,)]
    assert "(100 % of all such waiting that is not for rank 3)" in found[1].summary
    names = [e.name for e in found[1].evidence]
    assert "share of own inflicted waiting without that for rank 3, rank 1" in names
    assert found[1].impact.s_per_step == pytest.approx(0.010)


def test_just_below_nobody_is_late_beside_a_rank_far_behind(make_job: MakeJob) -> None:
    cheap = late_beside(make_job, 7.0)  # under a twentieth of the step
    like_peers = late_beside(make_job)
    like_peers.rows["straggler"][1]["peer_ratio"] = 1.09
    unknown = late_beside(make_job, peer=None)  # one score only
    for job in (cheap, like_peers, unknown):
        assert [f.scope.ranks for f in LATE.run(job.facts()).findings] == [(3,)]
    against = Replayed({(3,): 60.0}, {1: 1.04, 3: 1.6})
    found = LATE.run(replace(late_beside(make_job).facts(), replay=against)).findings
    assert [f.scope.ranks for f in found] == [(3,)]


def test_of_two_others_neither_is_typical(make_job: MakeJob) -> None:
    found = LATE.run(late_job(make_job, {1: 10.0, 2: 60}, ranks_count=3).facts()).findings
    assert [f.scope.ranks for f in found] == [(2,)]


def test_what_is_left_and_scatters_over_the_others_is_noise(make_job: MakeJob) -> None:
    """Rank 1 has four tenths of the rest, and the others the like."""
    job = late_job(make_job, {0: 15.0, 1: 20.0, 2: 14.0, 3: 80.0})
    assert [f.scope.ranks for f in LATE.run(job.facts()).findings] == [(3,)]


def in_stages(make_job: MakeJob, own_ms: float = 16.0, stage_ms: float = 15.0) -> Any:
    """Three stages of eight ranks each, of which the middle one's are waited for by the schedule;
    rank 17 of the last takes longer than its peers."""
    delays = {r: (1.0, stage_ms, 4.0)[r // 8] for r in range(24)} | {17: own_ms}
    job = late_job(
        make_job, delays, stages={r: r // 8 for r in range(24)}, peer=1.0, ranks_count=24
    )
    job.rows["straggler"][17]["peer_ratio"] = 1.3
    return job


def test_a_rank_that_other_stages_hide_is_named_among_those_of_its_own(make_job: MakeJob) -> None:
    (finding,) = LATE.run(in_stages(make_job).facts()).findings
    assert finding.scope.ranks == (17,)
    assert "by its own doing (36 % of all such waiting in stage 2)" in finding.summary
    assert finding.impact.s_per_step == pytest.approx(0.012), "beyond what its stage's others take"
    assert finding.evidence[1].name == "share of all own inflicted waiting of stage 2, rank 17"


def test_without_stages_it_stays_hidden(make_job: MakeJob) -> None:
    job = in_stages(make_job)
    for row in job.rows["straggler"]:
        row["stage"] = None
    assert not LATE.run(job.facts()).findings


def test_just_below_nobody_is_late_in_its_stage(make_job: MakeJob) -> None:
    (finding,) = LATE.run(in_stages(make_job, 10).facts()).findings
    assert finding.impact.step_ratio == pytest.approx(6 / 115)
    assert not LATE.run(in_stages(make_job, 9).facts()).findings, "5 of 115 ms"


@pytest.mark.parametrize("peer", [1.09, None])
def test_who_is_late_in_its_stage_by_no_time_of_its_own_is_not_named(
    make_job: MakeJob, peer: float | None
) -> None:
    job = in_stages(make_job)
    job.rows["straggler"][17]["peer_ratio"] = peer
    assert not LATE.run(job.facts()).findings


@pytest.mark.parametrize(("slow", "is_named"), [(1.2, True), (1.04, False)])
def test_a_replay_of_its_stage_must_agree(make_job: MakeJob, slow: float, is_named: bool) -> None:
    facts = in_stages(make_job).facts()
    found = LATE.run(replace(facts, replay=Replayed({(17,): 12.0}, {17: slow}))).findings
    assert bool(found) is is_named


def test_a_stage_whose_ranks_are_all_late_has_no_culprit(make_job: MakeJob) -> None:
    """However long the others wait for it by the schedule, or for its greater share of layers."""
    assert not LATE.run(in_stages(make_job, own_ms=4.0, stage_ms=40.0).facts()).findings


def test_of_a_stage_of_seven_ranks_none_is_typical(make_job: MakeJob) -> None:
    """A cut trace of a healthy pipeline of four ranks a stage accused one of them."""
    job = in_stages(make_job)
    for row in job.rows["straggler"]:
        row["stage"] = 2 if row["rank"] > 16 else row["rank"] // 6
    assert not LATE.run(job.facts()).findings


def test_below_a_twentieth_of_the_step_nobody_is_named(make_job: MakeJob) -> None:
    assert len(LATE.run(late_job(make_job, {2: 6}).facts()).findings) == 1
    assert LATE.run(late_job(make_job, {2: 4}).facts()) == RuleOutcome()


def test_one_score_alone_is_no_major_finding(make_job: MakeJob) -> None:
    (finding,) = LATE.run(late_job(make_job, {2: 25}, peer=1.0).facts()).findings
    assert finding.severity is Severity.MINOR
    assert finding.counter_evidence


def test_what_scatters_over_all_ranks_is_noise(make_job: MakeJob) -> None:
    delays = {0: 20.0, 1: 12.0, 2: 14.0, 3: 8.0}
    assert LATE.run(late_job(make_job, delays).facts()) == RuleOutcome()


def test_one_late_step_of_ten_is_an_accident_and_two_are_not(make_job: MakeJob) -> None:
    assert LATE.run(late_job(make_job, {2: 90}, steps=range(4, 5)).facts()) == RuleOutcome()
    twice = late_job(make_job, {2: 90}, steps=range(4, 6))
    assert [f.scope.ranks for f in LATE.run(twice.facts()).findings] == [(2,)]


@pytest.mark.parametrize(
    ("second_ms", "rest_ms", "is_late"),
    [(250, 0, True), (126, 0, True), (124, 0, False), (250, 200, False)],
    ids=["alike", "half", "accidents", "others wait too"],
)
def test_few_late_steps_that_are_alike_and_most_of_the_waiting_have_a_cause(
    make_job: MakeJob, second_ms: float, rest_ms: float, is_late: bool
) -> None:
    """Two steps of twenty are below a fifth of them; ``rest_ms``: of other ranks, by turns."""
    job = late_job(make_job, {2: 250}, steps=range(4, 5), steps_count=20)
    job.rows["late_steps"].append(late_step(2, 12, second_ms))
    job.rows["late_steps"] += [late_step(r, 15 + r, rest_ms / 2) for r in (0, 1) if rest_ms]
    total = 250 + second_ms + rest_ms
    shares = {2: (250 + second_ms) / total, 0: rest_ms / 2 / total, 1: rest_ms / 2 / total}
    for row in job.rows["straggler"]:
        row["lateness_ratio"] = shares.get(row["rank"], 0.0)
    found = LATE.run(job.facts()).findings
    assert [f.scope.ranks for f in found] == ([(2,)] if is_late else [])


@pytest.mark.parametrize(
    ("at", "rest_ms", "is_late"),
    [
        ((4, 10, 16), 500, True),  # 60 % of the waiting, every 6th step
        ((4, 11, 16), 500, False),
        ((4, 10), 333, False),  # two have any distance
        ((4, 10, 16), 760, False),  # half of the waiting is others'
    ],
    ids=["regular", "at any distance", "twice", "others wait as much"],
)
def test_late_steps_that_are_alike_and_return_at_one_distance_have_a_cause(
    make_job: MakeJob, at: tuple[int, ...], rest_ms: float, is_late: bool
) -> None:
    """Of twenty steps a fifth would be four; ``rest_ms`` is of other ranks, by turns."""
    job = late_job(make_job, {2: 250}, steps=range(at[0], at[0] + 1), steps_count=20)
    job.rows["late_steps"] += [late_step(2, step, 250) for step in at[1:]]
    job.rows["late_steps"] += [late_step(r, 18 + r, rest_ms / 2) for r in (0, 1)]
    total = 250 * len(at) + rest_ms
    shares = {2: 250 * len(at) / total, 0: rest_ms / 2 / total, 1: rest_ms / 2 / total}
    for row in job.rows["straggler"]:
        row["lateness_ratio"] = shares.get(row["rank"], 0.0)
    found = LATE.run(job.facts()).findings
    assert [f.scope.ranks for f in found] == ([(2,)] if is_late else [])


@pytest.mark.parametrize(
    ("part_ms", "others", "is_late"),
    [(50, 1, True), (60, 1, False), (20, 3, False)],
    ids=["a tenth", "more", "more, in several"],
)
def test_a_capture_that_begins_in_the_midst_of_a_pause_hides_no_regular_one(
    make_job: MakeJob, part_ms: float, others: int, is_late: bool
) -> None:
    """Of 500 ms in two steps that are alike, and a rest; a fifth of 40 steps would be eight."""
    job = late_job(make_job, {2: 250}, steps=range(8, 9), steps_count=40)
    job.rows["late_steps"].append(late_step(2, 15, 250))
    job.rows["late_steps"] += [late_step(2, 1 + 2 * i, part_ms) for i in range(others)]
    for row in job.rows["straggler"]:
        row["lateness_ratio"] = 1.0 if row["rank"] == 2 else 0.0
    found = LATE.run(job.facts()).findings
    assert [f.scope.ranks for f in found] == ([(2,)] if is_late else [])


def test_in_a_single_step_several_collectives_show_persistence(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 30}, steps_count=1)
    assert len(LATE.run(job.facts()).findings) == 1
    job.rows["straggler"][2]["late_count"] = 2
    assert LATE.run(job.facts()) == RuleOutcome()


def test_hidden_lateness_costs_nothing(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 30})
    for row in job.rows["late_steps"]:
        row["exposed_gap_ns"] = 0
    assert LATE.run(job.facts()) == RuleOutcome()


def test_a_healthy_job_accuses_nobody(make_job: MakeJob) -> None:
    for each in (LATE, HOST):
        assert each.run(late_job(make_job, {}).facts()) == RuleOutcome()


def test_without_matched_calls_it_says_why(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 30})
    job.rows["match_coverage"] = [coverage(is_trusted=False, reason="no other member was traced")]
    outcome = LATE.run(job.facts())
    assert not outcome.findings
    assert "no other member was traced" in outcome.not_checked[0].needs
    assert LATE.run(Facts()).not_checked[0].needs


def test_a_rank_that_is_late_because_it_left_late_is_a_symptom(make_job: MakeJob) -> None:
    job = late_job(make_job, {})
    job.rows["straggler"][1] |= {"inflicted_wait_ns": 600 * MS, "late_count": 9}
    job.rows["exit_lateness"] = [exit_row(r, 20 if r == 1 else -5) for r in range(4)]
    (finding,) = LATE.run(job.facts()).findings
    assert finding.scope.ranks == (1,)
    assert finding.severity is Severity.MINOR
    assert "leaves the one before late" in finding.summary
    assert finding.candidates.ranks == (0, 2, 3)
    # A link of one of these explains it, and one elsewhere does not; nor a rank's own lateness.
    link = replace(finding, rule="link-degraded", id="link-degraded/0", candidates=Candidates())
    for rank, causes in ((0, ("link-degraded/0",)), (7, ())):
        there = replace(link, scope=replace(link.scope, ranks=(rank,)))
        (symptom,) = link_symptoms([finding, there], job.facts())[:1]
        assert symptom.explained_by == causes
    own = replace(finding, candidates=Candidates())
    there = replace(link, scope=replace(link.scope, ranks=(0,)))
    assert not link_symptoms([own, there], job.facts())[0].explained_by


@pytest.mark.parametrize(("step", "is_explained"), [(1, False), (2, True), (3, True), (4, False)])
def test_what_holds_up_the_end_of_a_step_makes_the_rank_late_in_the_next(
    make_job: MakeJob, step: int, is_explained: bool
) -> None:
    """Rank 2 is late in step 3; a save of the same rank lies in one step or another."""
    (late,) = LATE.run(late_job(make_job, {2: 25}).facts()).findings
    late = replace(late, scope=replace(late.scope, steps=((3, 3),)))
    save = replace(late, rule="checkpoint-stall", id="checkpoint-stall/2")
    save = replace(save, scope=replace(save.scope, steps=((step, step),)))
    (symptom,) = link_symptoms([late, save], late_job(make_job, {}).facts())[:1]
    assert bool(symptom.explained_by) is is_explained


def test_where_the_culprit_was_not_captured_no_captured_rank_is_named(make_job: MakeJob) -> None:
    job = late_job(make_job, {})
    job.rows["absent_waits"] = [absent("a", [4, 5, 6], 30), absent("b", [5, 6, 7], 30)]
    (finding,) = LATE.run(job.facts(world_size=8)).findings
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == (4, 5, 6, 7)
    assert finding.next_capture == (
        "profile ranks 4-5 in the same steps: it halves the candidates",
    )


def test_who_the_traced_ranks_wait_for_may_wait_for_others_themselves(make_job: MakeJob) -> None:
    job = late_job(make_job, {})
    job.rows["absent_waits"] = [absent("a", [4, 8], 30)]
    (finding,) = LATE.run(job.facts(world_size=12)).findings
    assert finding.candidates.ranks == tuple(range(4, 12))


def test_groups_at_work_around_the_waiting_clear_their_members(make_job: MakeJob) -> None:
    job = late_job(make_job, {})
    surround = absent("b", [5, 7], 1, (10, 95))
    job.rows["absent_waits"] = [absent("a", [4, 6], 30), surround]
    (finding,) = LATE.run(job.facts(world_size=8)).findings
    assert finding.candidates.ranks == (4, 6)
    # Later than the waiting, everybody is late already; before it, nobody is yet.
    for calls_ms in ((60, 95), (10, 40)):
        job.rows["absent_waits"] = [absent("a", [4, 6], 30), absent("b", [5, 7], 1, calls_ms)]
        (finding,) = LATE.run(job.facts(world_size=8)).findings
        assert finding.candidates.ranks == (4, 5, 6, 7)
    # Whom the traced ranks do wait for is not cleared by another group.
    job.rows["absent_waits"] = [absent("a", [4, 6], 30), absent("b", [4, 7], 1, (10, 95))]
    (finding,) = LATE.run(job.facts(world_size=8)).findings
    assert finding.candidates.ranks == (4, 5, 6)


def test_waiting_that_only_members_can_cause_leaves_nobody_else(make_job: MakeJob) -> None:
    """Threshold: 5 % of the 100 ms step, in calls before any other communicator was used."""
    job = late_job(make_job, {})
    for own_ms, candidates in ((5, (4, 6)), (4.9, (4, 5, 6, 7)), (None, (4, 5, 6, 7))):
        own_ns = own_ms * MS if own_ms is not None else None
        job.rows["absent_waits"] = [
            absent("a", [4, 6], 30) | {"own_wait_per_step_ns": own_ns},
        ]
        (finding,) = LATE.run(job.facts(world_size=8)).findings
        assert finding.candidates.ranks == candidates
        if len(candidates) == 2:
            assert "nobody outside" in (finding.candidates.why or "")
            assert finding.next_capture == (
                "profile rank 4 in the same steps: it halves the candidates",
            )


def test_one_culprit_is_where_several_such_communicators_meet(make_job: MakeJob) -> None:
    job = late_job(make_job, {})
    own = {"own_wait_per_step_ns": 20 * MS}
    job.rows["absent_waits"] = [absent("a", [4, 6], 30) | own, absent("b", [6, 7], 30) | own]
    (finding,) = LATE.run(job.facts(world_size=8)).findings
    assert finding.candidates.ranks == (6,)
    assert finding.next_capture == ("profile rank 6 in the same steps",)
    # Nobody is in both: two culprits, each in one of them.
    job.rows["absent_waits"] = [absent("a", [4], 30) | own, absent("b", [6, 7], 30) | own]
    (finding,) = LATE.run(job.facts(world_size=8)).findings
    assert finding.candidates.ranks == (4, 6, 7)


def test_the_communicator_that_ends_last_by_its_share_of_the_work_holds_the_culprit(
    make_job: MakeJob,
) -> None:
    job = late_job(make_job, {})
    job.rows["absent_waits"] = [sibling(0, -5), sibling(1, 70), sibling(2, 3), sibling(3, -2)]
    (finding,) = LATE.run(job.facts(world_size=12)).findings
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == (5, 9)
    assert "of 4 communicators that are used alike, that of rank 1 ends" in (
        finding.candidates.why or ""
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"last_ratio": 0.79},  # not in nearly every step
        {"excess_ns": 34e3},  # less than half of what the work since then would add
        {"excess_ns": 141e3},  # more than twice that: another cause
        {"clock_error_ns": 80_000},  # the clocks may be that far apart
        {"clock_error_ns": None},
        {"steps_count": 2},
        {"tail_ns": 0},
    ],
)
def test_what_does_not_tell_siblings_apart_leaves_everybody(
    make_job: MakeJob, changes: dict[str, Any]
) -> None:
    job = late_job(make_job, {})
    others = [sibling(0, -5), sibling(2, 3), sibling(3, -2)]
    job.rows["absent_waits"] = [sibling(1, 70, **changes), *others]
    (finding,) = LATE.run(job.facts(world_size=12)).findings
    assert finding.candidates.ranks == tuple(range(4, 12))
    assert "nothing in these traces tells" in (finding.candidates.why or "")


def test_siblings_that_scatter_or_are_missing_leave_everybody(make_job: MakeJob) -> None:
    job = late_job(make_job, {})
    for rows in (
        [sibling(0, -30), sibling(1, 70), sibling(2, 40), sibling(3, 0)],  # 40 is half of 70
        [sibling(0, 0), sibling(1, 70), sibling(2, 3)],  # the fourth does not wait
        [sibling(0, 60), sibling(1, 70), sibling(2, 3), sibling(3, -2)],  # two stand out
    ):
        job.rows["absent_waits"] = rows
        (finding,) = LATE.run(job.facts(world_size=12)).findings
        assert finding.candidates.ranks == tuple(range(4, 12))


def test_hosts_and_rails_of_absent_ranks_come_from_the_job_description(make_job: MakeJob) -> None:
    job = late_job(make_job, {})
    job.rows["absent_waits"] = [sibling(0, -5), sibling(1, 70), sibling(2, 3), sibling(3, -2)]
    facts = job.facts(world_size=12)
    placed = {r: f"h{r // 4}" for r in range(12)}
    facts = replace(
        facts, job=replace(facts.job, placed_hosts=placed, rails={r: r % 4 for r in range(12)})
    )
    (finding,) = LATE.run(facts).findings
    assert (finding.candidates.hosts, finding.candidates.rails) == (("h1", "h2"), (1,))
    assert "2 ranks without a trace (all on rail 1, on h1, h2)" in finding.summary
    assert finding.next_capture == (
        "profile rank 5 (h1) in the same steps: it halves the candidates",
    )


def test_one_rank_cannot_be_late_and_nothing_was_looked_at(make_job: MakeJob) -> None:
    outcome = LATE.run(make_job(ranks_count=1).facts(world_size=1))
    assert outcome == NOT_APPLICABLE
    assert "late-rank" not in build_report(make_job(ranks_count=1).facts()).notes.rules_run
    # An unknown world may have other ranks.
    (missing,) = LATE.run(make_job(ranks_count=1).facts(world_size=None)).not_checked
    assert missing.needs == "collectives in the traces of two or more ranks"


def test_little_waiting_for_absent_members_says_nothing(make_job: MakeJob) -> None:
    job = late_job(make_job, {})
    job.rows["absent_waits"] = [absent("a", [4], 9)]
    assert LATE.run(job.facts(world_size=5)) == RuleOutcome()


@pytest.mark.parametrize(
    ("saved_ms", "work_ms", "cost_ms", "low_ms"),
    [(60.0, 25.0, 60.0, 25.0), (60.0, 13.0, 60.0, 13.0), (60.0, 12.0, 25.0, 12.0)],
    ids=["stopped", "half of what is seen", "less: not what the others wait for"],
)
def test_a_stopped_rank_costs_its_transfers_too(
    make_job: MakeJob, saved_ms: float, work_ms: float, cost_ms: float, low_ms: float
) -> None:
    replay = Replayed({(2,): saved_ms}, work_ms={(2,): work_ms})
    facts = replace(late_job(make_job, {2: 25}).facts(), replay=replay)
    (finding,) = LATE.run(facts).findings
    assert finding.impact.s_per_step == pytest.approx(cost_ms / 1e3)
    assert finding.impact.low_s_per_step == pytest.approx(low_ms / 1e3)


@pytest.mark.parametrize(
    ("saved_ms", "method", "is_disputed"),
    [(2.0, "twin ranks", True), (None, "twin ranks", False), (18.0, "replay", True),
     (21.0, "replay", False)],
    ids=["replay sees nothing", "no replay", "a third apart", "a fifth apart"],
)  # fmt: skip
def test_a_cost_says_how_it_was_got_and_what_another_method_says(
    make_job: MakeJob, saved_ms: float | None, method: str, is_disputed: bool
) -> None:
    """25 ms were observed."""
    replay = Replayed({} if saved_ms is None else {(2,): saved_ms})
    facts = replace(late_job(make_job, {2: 25}).facts(), replay=replay)
    (found,) = LATE.run(facts).findings
    assert found.impact.method == method
    said = [e.name for e in found.counter_evidence if "ms: " in e.name]
    assert bool(said) is is_disputed
    if is_disputed:
        assert found.impact.low_s_per_step == pytest.approx((saved_ms or 0) / 1e3)
        assert found.impact.high_s_per_step == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("saved_ms", "cost_s"),
    [(18.0, 0.018), (40.0, 0.040), (2.0, 0.025), (None, 0.025), (1e6, 0.125)],
)
def test_a_late_rank_costs_what_the_replay_saves(
    make_job: MakeJob, saved_ms: float | None, cost_s: float
) -> None:
    """Not where the replay sees next to nothing or cannot say; never more than the step."""
    replay = Replayed({} if saved_ms is None else {(2,): saved_ms})
    facts = replace(late_job(make_job, {2: 25}).facts(), replay=replay)
    (finding,) = LATE.run(facts).findings
    assert finding.impact.s_per_step == pytest.approx(cost_s)
    assert set(replay.asked) == {(2,)}  # once, and once more with a query failed


@pytest.mark.parametrize("saved_ms", [None, 2.0, 18.0])
def test_a_stage_that_is_late_in_its_operations_costs_what_their_replay_saves(
    make_job: MakeJob, saved_ms: float | None
) -> None:
    """Where calls tell too little: bubbles take a part of the delay in."""
    replay = Replayed({} if saved_ms is None else {(2,): saved_ms}, inside_ms={2: 9.0})
    facts = replace(late_job(make_job, {2: 25}).facts(), replay=replay)
    (finding,) = LATE.run(facts).findings
    assert finding.impact.s_per_step == pytest.approx(0.018 if saved_ms == 18.0 else 0.009)
    assert finding.impact.method == "replay"


@pytest.mark.parametrize(
    ("saved_ms", "longer_ms", "cost_s"),
    [
        (None, 18.75, 0.009), (None, 18.7, 0.025), (None, 0.0, 0.025), (2.0, 18.75, 0.025),
        (7.0, 7.0, 0.009), (6.7, 18.75, 0.025), (7.0, 6.9, 0.025),
    ],
)  # fmt: skip
def test_without_a_replay_of_calls_a_rank_costs_what_its_replicas_show(
    make_job: MakeJob, saved_ms: float | None, longer_ms: float, cost_s: float
) -> None:
    """Not where others waited more than a quarter longer than its operations take: what it did was
    outside of them; nor where calls are replayed, which see more, unless both gain as much."""
    saved: dict[tuple[int, ...], float] = {} if saved_ms is None else {(2,): saved_ms}
    replay = Replayed(saved, beside_ms={2: (9.0, longer_ms)})
    facts = replace(late_job(make_job, {2: 25}).facts(), replay=replay)
    (finding,) = LATE.run(facts).findings
    assert finding.impact.s_per_step == pytest.approx(cost_s)
    assert finding.impact.method == ("replay" if cost_s == 0.009 else "twin ranks")
    is_agreed = saved_ms is not None and cost_s == 0.009
    assert is_agreed or (finding.impact.high_s_per_step or 0) >= 0.025, "what others waited"
    assert bool(finding.counter_evidence) or (cost_s == 0.025 and saved_ms is None)


@pytest.mark.parametrize(("saved_ms", "cost_s"), [(10.0, 0.010), (2.0, 0.025)])
def test_a_replay_of_streams_is_believed_that_most_of_a_delay_hides(
    make_job: MakeJob, saved_ms: float, cost_s: float
) -> None:
    replay = Replayed({(2,): saved_ms}, is_by_streams=True)
    facts = replace(late_job(make_job, {2: 25}).facts(), replay=replay)
    (finding,) = LATE.run(facts).findings
    assert finding.impact.s_per_step == pytest.approx(cost_s)


def test_others_wait_for_what_a_rank_did_at_the_end_of_its_step_before(make_job: MakeJob) -> None:
    """250 ms behind the last call of steps 2, 5 and 8: the others wait in their steps 3, 6 and 9,
    of which the job's begin when the rank is there, and take 100 ms as ever."""
    facts = late_job(make_job, {2: 250}, steps=range(3, 10, 3)).facts()
    keys = facts.steps.keys
    facts.steps.__dict__["_durs_ns"] = {
        key: (350 if key.step % 3 == 2 else 100) * MS for key in keys
    }
    (found,) = LATE.run(facts).findings
    assert facts.steps.step_ns == 175 * MS
    assert found.impact.s_per_step == pytest.approx(0.075)


def test_that_some_steps_are_late_is_no_doubt_of_what_they_cost(make_job: MakeJob) -> None:
    """60 ms in steps 3, 6 and 9 of 10, and steps of 96 to 104 ms: the mean step's two standard
    errors are 18.4 ms, those of both kinds of steps about their own means 2.19."""
    job = late_job(make_job, {2: 60}, steps=range(3, 10, 3))
    for rank in range(4):
        for step, ms in ((1, 4), (3, 4), (5, 4), (6, -4), (8, -4), (10, -4)):
            job.add(rank, step, "compute", ms)
    job.rows["excess"] = [part("range", path="log", ms=18, steps=(3, 6, 9))]
    impact = LATE.run(job.facts()).findings[0].impact
    assert impact.s_per_step == pytest.approx(0.018)
    assert impact.s_per_affected_step == pytest.approx(0.060)
    assert impact.high_s_per_step == pytest.approx(0.018 + 0.00219, abs=1e-5)


@pytest.mark.parametrize(("most_ms", "method"), [(12.0, "replay"), (13.0, "twin ranks")])
def test_where_others_would_be_late_as_well_the_cost_is_what_a_step_could_gain(
    make_job: MakeJob, most_ms: float, method: str
) -> None:
    """25 of 125 ms were observed. The replay gains 1 ms, and 12 if the rank took no time at all:
    so it has not missed what was waited for, others hold the step up as long."""
    replay = Replayed({(2,): 1.0}, is_by_streams=True, most_ms={(2,): most_ms})
    (finding,) = LATE.run(replace(late_job(make_job, {2: 25}).facts(), replay=replay)).findings
    impact = finding.impact
    assert impact.method == method
    if method == "replay":
        assert (impact.s_per_step, impact.at_most_s_per_step) == pytest.approx((0.001, 0.012))
        assert (impact.low_s_per_step, impact.high_s_per_step) == pytest.approx((0.001, 0.012))
        assert finding.severity is Severity.MAJOR  # 12 of 125 ms
        assert any(e.value == 0.025 for e in finding.counter_evidence)
        assert "25.0 ms of each 125 ms step (at most 12.0 ms of it to be gained" in finding.summary
    else:
        assert impact.s_per_step == pytest.approx(0.025)
        assert impact.at_most_s_per_step is None


def test_ranks_that_are_late_by_turns_are_priced_together(make_job: MakeJob) -> None:
    """Without one of them the other holds the step up."""
    single: dict[tuple[int, ...], float] = {(2,): 0.0, (3,): 0.0}
    replay = Replayed({**single, (2, 3): 1.0}, None, True, {**single, (2, 3): 9.0})
    found = LATE.run(replace(late_job(make_job, {2: 25, 3: 20}).facts(), replay=replay)).findings
    assert {f.scope.ranks for f in found} == {(2,), (3,)}
    for finding in found:
        assert finding.impact.s_per_step == pytest.approx(0.001)
        assert finding.impact.at_most_s_per_step == pytest.approx(0.009)
        assert "without ranks 2-3" in finding.summary
    waited = [e.value for f in found for e in f.counter_evidence if "ms: " in e.name]
    assert sorted(waited) == [0.020, 0.025]  # each rank's own


def test_the_replay_is_the_third_score(make_job: MakeJob) -> None:
    """Two of three agree although its own time is like its peers'; one of three is minor."""
    facts = late_job(make_job, {2: 25}, peer=1.0).facts()
    for slowdown, severity in ((1.2, Severity.CRITICAL), (1.04, Severity.MINOR)):
        seen = replace(facts, replay=Replayed({}, {2: slowdown}))
        (finding,) = LATE.run(seen).findings
        assert finding.severity is severity
        assert any("replay" in e.name and e.value == slowdown for e in finding.evidence)
        # whatif and straggler say another number of a pipeline's rank, of its stage and replica.
        seen = replace(facts, replay=Replayed({}, {2: slowdown}, is_by_operations=True))
        (finding,) = LATE.run(seen).findings
        assert finding.severity is severity
        assert slowdown not in [e.value for e in finding.evidence]


@pytest.mark.parametrize(
    ("peer", "varying_ms", "severity"),
    [
        (1.0, 30, Severity.MAJOR),
        (1.0, 60, Severity.MINOR),
        (1.5, 60, Severity.MAJOR),
    ],
    ids=["it costs something", "it may cost nothing", "its own time agrees"],
)
def test_what_may_cost_nothing_and_only_waiting_shows_is_minor(
    make_job: MakeJob, peer: float, varying_ms: int, severity: Severity
) -> None:
    """25 ms, of steps whose mean is known to two standard errors of 20 or 40 ms."""
    job = late_job(make_job, {2: 25}, peer=peer)
    for rank in range(4):
        for step in job.steps:
            job.add(rank, step, "compute", varying_ms * (2 if step % 2 else 0))
    facts = replace(job.facts(), replay=Replayed({(2,): 25.0}, {2: 1.2}))
    (finding,) = LATE.run(facts).findings
    assert finding.severity is severity
    assert (finding.impact.low_s_per_step == 0) == (varying_ms == 60)


@pytest.mark.parametrize(
    ("delays_ms", "peer", "slowdown", "named"),
    [
        ({2: 25, 3: 25}, 1.0, 1.0, 2),
        ({1: 20, 2: 25, 3: 26}, 1.0, 1.0, 0),
        ({1: 20, 2: 25, 3: 26}, 1.5, 1.0, 3),
        ({1: 20, 2: 25, 3: 26}, 1.0, 1.2, 3),
    ],
    ids=["half of all waiting", "a third each", "own time agrees", "the replay agrees"],
)
def test_a_share_of_the_waiting_with_which_nothing_agrees_must_be_half(
    make_job: MakeJob,
    delays_ms: dict[int, float],
    peer: float,
    slowdown: float,
    named: int,
) -> None:
    """The last stage of an interleaved pipeline: each of its ranks ends a part of the waiting."""
    facts = late_job(make_job, delays_ms, peer=peer, ranks_count=8).facts()
    replay = Replayed({}, dict.fromkeys(delays_ms, slowdown))
    found = LATE.run(replace(facts, replay=replay)).findings
    assert len(found) == named


@pytest.mark.parametrize(
    ("ranks_count", "share_ratio", "slowdown", "is_named"),
    [
        (2, 0.8, 1.04, False),
        (2, 0.8, 1.06, True),
        (2, 0.8, None, True),
        (3, 0.66, 1.04, False),
        (3, 0.67, 1.04, True),
        (4, 0.51, 1.04, True),
    ],
)
def test_of_few_ranks_one_has_most_of_the_waiting_by_chance(
    make_job: MakeJob, ranks_count: int, share_ratio: float, slowdown: float | None, is_named: bool
) -> None:
    """Its own time is its peers', and the replay, where there is one, finds little."""
    job = late_job(make_job, {1: 25}, peer=1.0, ranks_count=ranks_count)
    for row in job.rows["straggler"]:
        others = (1 - share_ratio) / (ranks_count - 1)
        row["lateness_ratio"] = share_ratio if row["rank"] == 1 else others
    replay = None if slowdown is None else Replayed({}, {1: slowdown})
    found = LATE.run(replace(job.facts(), replay=replay)).findings
    assert [f.scope.ranks for f in found] == [(1,)] * is_named


@pytest.mark.parametrize(
    ("row", "op", "is_named"),
    [
        ({"method": None, "group_id": None}, "send", False),
        ({"method": "pair", "group_id": "2>3"}, "recv", False),
        ({"method": "pair", "group_id": "0>1", "ranks": [0]}, "send", True),
        ({"method": "pair", "group_id": None}, "send", False),
        ({"method": None, "group_id": None}, "all_reduce", True),
    ],
)
def test_who_has_messages_without_an_other_side_is_not_named_by_one_score(
    make_job: MakeJob, row: dict[str, Any], op: str, is_named: bool
) -> None:
    """Of a pipeline whose last trace broke off or was missing, the stage before it was accused: it
    had waited for messages that nobody was left to have sent."""
    job = late_job(make_job, {2: 25}, peer=None)
    job.rows["comm_summary"] = [{"op": op}]
    unmatched = coverage(is_trusted=False, reason="not matched", **{"ranks": [2], **row})
    job.rows["match_coverage"] = [coverage(), unmatched]
    assert bool(LATE.run(job.facts()).findings) is is_named


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, 0),
        ({"broken": ()}, 3),
        ({"op": "all_reduce"}, 3),
        ({"slowdown": 1.2}, 3),
        ({"delays_ms": {2: 25, 3: 25}}, 2),
    ],
    ids=["a third each", "no trace breaks off", "nobody sends", "a replay agrees", "half of all"],
)
def test_in_a_pipeline_of_which_a_trace_breaks_off_a_share_must_be_half(
    make_job: MakeJob, change: dict[str, Any], named: int
) -> None:
    """Of a healthy job whose last trace broke off, a rank of the first stage was accused: what the
    cut rank and its pipeline had waited for was not told any more."""
    given: dict[str, Any] = {
        "delays_ms": {1: 20, 2: 25, 3: 26},
        "broken": (0,),
        "op": "send",
    } | change
    job = late_job(make_job, given["delays_ms"], peer=1.5, ranks_count=8)
    job.rows["comm_summary"] = [{"op": given["op"]}]
    facts = job.facts()
    facts = replace(facts, job=replace(facts.job, broken_ranks=frozenset(given["broken"])))
    if "slowdown" in given:
        replay = Replayed({}, dict.fromkeys(given["delays_ms"], given["slowdown"]))
        facts = replace(facts, replay=replay)
    assert len(LATE.run(facts).findings) == named


@pytest.mark.parametrize(
    ("op", "operations_error", "named"),
    [("send", 0.02, 0), ("send", None, 1), ("all_reduce", 0.02, 1)],
    ids=["a stage's turn", "no replay of operations", "no pipeline"],
)
def test_a_stage_of_which_only_waiting_speaks_is_not_late(
    make_job: MakeJob, op: str, operations_error: float | None, named: int
) -> None:
    """A healthy 1F1B had rank 1 of four behind two thirds of all waiting: that of its turns."""
    job = late_job(make_job, {2: 25}, peer=None)
    job.rows["comm_summary"] = [{"op": op}]
    replay = OperationsReplayed()
    replay.operations_error_ratio = operations_error
    assert len(LATE.run(replace(job.facts(), replay=replay)).findings) == named


def test_a_stage_that_spends_more_or_whose_operations_take_longer_is_late(
    make_job: MakeJob,
) -> None:
    job = late_job(make_job, {2: 25}, peer=None)
    job.rows["comm_summary"] = [{"op": "send"}]
    facts = replace(job.facts(), replay=OperationsReplayed())
    slower = OperationsReplayed()
    slower.saved_in_operations_ns = lambda rank, delay_ns: delay_ns  # type: ignore[method-assign]
    assert not LATE.run(facts).findings
    assert len(LATE.run(replace(facts, replay=slower)).findings) == 1
    job.rows["excess"] = [PAUSED]
    spends = replace(job.facts(), replay=OperationsReplayed())
    assert len(LATE.run(spends).findings) == 1


def test_a_slow_rank_is_named_by_own_time_and_waiting_where_a_rank_left_no_trace(
    make_job: MakeJob,
) -> None:
    (host,) = HOST.run(uncalled(make_job).facts(world_size=5)).findings
    assert host.scope.ranks == (2,)
    assert host.impact.s_per_step == pytest.approx(0.025)
    assert host.confidence.basis == (
        "own time and peers' waiting agree; 120 of 120 calls matched among those traced (rank 4 "
        "left no trace); a rank without a trace may be slower still"
    )
    slow = uncalled(make_job, compute=1.3, compute_ms={2: 25}).facts(world_size=5)
    (gpu,) = GPU.run(slow).findings
    assert gpu.scope.ranks == (2,)
    assert gpu.impact.s_per_step == pytest.approx(0.025), "as far as the others wait longer"
    assert LATE.run(slow).findings == ()


def test_what_was_not_traced_is_said_beside_what_was_matched(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 25}, compute=1.3, compute_ms={2: 25})
    for kind in (LATE, GPU):
        (whole,) = kind.run(job.facts()).findings
        assert whole.confidence.basis.endswith("120 of 120 calls matched")
        (part,) = kind.run(job.facts(world_size=6)).findings
        assert part.confidence.basis.endswith(
            "120 of 120 calls matched among those traced (ranks 4-5 left no trace)"
        )


def test_ranks_that_are_late_side_by_side_are_found_together(make_job: MakeJob) -> None:
    ranks = (4, 5, 6, 7)
    facts = side_by_side(make_job).facts()
    assert LATE.run(facts) == RuleOutcome(), "without a replay nothing shows what they cost"
    seen = replace(facts, replay=Replayed({ranks: 30.0}, dict.fromkeys(ranks, 1.3)))
    found = LATE.run(seen).findings
    assert [f.scope.ranks for f in found] == [(4,), (5,), (6,), (7,)]
    assert {f.impact.s_per_step for f in found} == {0.030}
    words = "side by side with ranks 5-7 (25 % of all such waiting; all of them 100 %)"
    assert words in found[0].summary
    values = {e.name: e.value for e in found[0].evidence}
    assert values["exposed delay by rank 4, mean of all steady steps"] == pytest.approx(0.003)
    assert values["share of all own inflicted waiting, rank 4"] == 0.25
    assert values["a step without the delays of ranks 4-7 takes less by (replay)"] == 0.030
    # One cost, by the replay of all four: each carries it, and it counts once.
    assert {(f.impact.method, f.impact.joint_ranks) for f in found} == {("replay", ranks)}
    report = build_report(seen)
    told = [p.finding for p in report.document.step_budget if p.part == "finding"]
    assert told == ["late-rank/4"]
    assert "One cost of ranks 4-7 together: it counts once." in " ".join(to_text(report).split())


def test_of_ranks_of_one_cost_that_with_the_greatest_share_leads(make_job: MakeJob) -> None:
    ranks = (4, 5, 6, 7)
    job = side_by_side(make_job)
    for rank, share in zip(ranks, (0.2, 0.22, 0.38, 0.2), strict=True):
        job.rows["straggler"][rank]["lateness_ratio"] = share
    replay = Replayed({ranks: 30.0}, dict.fromkeys(ranks, 1.3))
    document = build_report(replace(job.facts(), replay=replay)).document
    assert document.verdict.finding == "late-rank/6"
    assert document.findings[0].impact.own_share_ratio == 0.38
    assert [p.finding for p in document.step_budget if p.part == "finding"] == ["late-rank/6"]


@pytest.mark.parametrize(
    ("saved_ms", "slow", "options"),
    [
        (4.0, 1.3, {}),  # under a twentieth of the step
        (30.0, 1.04, {}),  # none alone would hold the step up
        (30.0, 1.3, {"peer": 1.09}),  # their own time is their peers'
        (30.0, 1.3, {"steps": range(1, 5)}),  # in less than half of the steps
        (None, 1.3, {}),  # the replay cannot say
    ],
)
def test_just_below_nobody_is_late_side_by_side(
    make_job: MakeJob, saved_ms: float | None, slow: float, options: dict[str, Any]
) -> None:
    ranks = (4, 5, 6, 7)
    saved: dict[tuple[int, ...], float] = {} if saved_ms is None else {ranks: saved_ms}
    facts = side_by_side(make_job, **options).facts()
    seen = replace(facts, replay=Replayed(saved, dict.fromkeys(ranks, slow)))
    assert LATE.run(seen) == RuleOutcome()


def test_more_than_half_are_not_the_slow_ones(make_job: MakeJob) -> None:
    ranks = tuple(range(7))
    facts = side_by_side(make_job, ranks).facts()
    seen = replace(facts, replay=Replayed({ranks: 30.0}, dict.fromkeys(ranks, 1.3)))
    assert LATE.run(seen) == RuleOutcome()


@pytest.mark.parametrize(
    ("fast", "slow", "is_found"),
    [
        (0.92, 1.08, True),  # 1.17 times the others'; the median of all lies between the two halves
        (0.96, 1.04, False),  # 1.08 times
    ],
)
def test_where_half_of_all_are_late_the_other_half_is_what_is_usual(
    make_job: MakeJob, fast: float, slow: float, is_found: bool
) -> None:
    ranks = (4, 5, 6, 7)
    job = late_job(make_job, dict.fromkeys(ranks, 3.0), ranks_count=8)
    for step in job.steps:
        for rank in ranks:
            job.add(rank, step, "idle", 20)
    for row in job.rows["straggler"]:
        row["peer_ratio"] = slow if row["rank"] in ranks else fast
    facts = job.facts(hosts={r: f"h{r // 4}" for r in range(8)})
    seen = replace(facts, replay=Replayed({ranks: 20.0}, dict.fromkeys(ranks, 1.2)))
    assert [f.scope.ranks for f in HOST.run(seen).findings] == ([ranks] if is_found else [])
    assert [f.scope.ranks for f in LATE.run(seen).findings] == (
        [(4,), (5,), (6,), (7,)] if is_found else []
    )
    if is_found:
        (finding,) = HOST.run(seen).findings
        assert "(all of h1) take 1.2x as long as their peers" in finding.summary


def test_who_is_far_behind_is_named_alone(make_job: MakeJob) -> None:
    """Rank 2 is somewhat slow too, but rank 1 accounts for the waiting."""
    job = late_job(make_job, {1: 30, 2: 3}, ranks_count=8)
    slow = {1: 1.3, 2: 1.1}
    alone = Replayed({(1, 2): 32.0, (1,): 30.0}, slow)
    found = LATE.run(replace(job.facts(), replay=alone)).findings
    assert [f.scope.ranks for f in found] == [(1,)]
    both = Replayed({(1, 2): 40.0, (1,): 16.0}, slow)
    found = LATE.run(replace(job.facts(), replay=both)).findings
    assert [f.scope.ranks for f in found] == [(1,), (2,)]


@pytest.mark.parametrize(("alone_ms", "cost_ms"), [(9.9, 40.0), (10.0, 10.0)])
def test_ranks_far_behind_that_are_one_delay_are_priced_together(
    make_job: MakeJob, alone_ms: float, cost_ms: float
) -> None:
    """Both ranks of a replica wait for its input: without one of them the other is as late. Two
    delays of their own add up."""
    job = late_job(make_job, {1: 20, 2: 20}, ranks_count=4)
    for row in job.rows["straggler"]:
        row["peer_ratio"] = 1.3 if row["rank"] in (1, 2) else 0.8
    saved = {(1, 2): 40.0, (1,): alone_ms, (2,): 10.0}
    found = LATE.run(replace(job.facts(), replay=Replayed(saved, {1: 1.2, 2: 1.2}))).findings
    assert [f.scope.ranks for f in found] == [(1,), (2,)]
    joint = {f.impact.joint_ranks for f in found}
    assert joint == ({(1, 2)} if cost_ms == 40.0 else {()})
    assert found[0].impact.s_per_step == pytest.approx(cost_ms / 1000)


def test_a_replay_that_missed_what_was_measured_names_nobody_else(make_job: MakeJob) -> None:
    """Seen on a pipeline: 24.6 ms by replay for the straggler and the rank behind it, where the
    straggler alone was measured to delay by 86.9."""
    job = late_job(make_job, {1: 30, 2: 3}, ranks_count=8)
    replay = Replayed({(1, 2): 20.0, (1,): 9.0}, {1: 1.3, 2: 1.1})
    found = LATE.run(replace(job.facts(), replay=replay)).findings
    assert [f.scope.ranks for f in found] == [(1,)]
    assert found[0].impact.s_per_step == pytest.approx(0.030)


@pytest.mark.parametrize(("joint_ms", "named"), [(30.0, 4), (29.9, 1)])
def test_who_is_a_little_behind_ranks_that_are_as_slow_is_named_with_them(
    make_job: MakeJob, joint_ms: float, named: int
) -> None:
    """All of a host are slow, and rank 6 comes last: without it alone a step gains nothing, and
    without all four what it was seen to delay, or more."""
    ranks = (4, 5, 6, 7)
    job = late_job(make_job, {6: 30, **dict.fromkeys((4, 5, 7), 3.0)}, ranks_count=8)
    replay = Replayed({ranks: joint_ms, (6,): 0.5}, dict.fromkeys(ranks, 1.9))
    found = LATE.run(replace(job.facts(), replay=replay)).findings
    assert len(found) == named


@pytest.mark.parametrize(("op", "named"), [("all_reduce", [(1,), (2,)]), ("send", [(1,)])])
def test_the_rank_behind_a_straggler_of_a_pipeline_is_not_named(
    make_job: MakeJob, op: str, named: list[tuple[int, ...]]
) -> None:
    """Its own share of the waiting is like that of the ranks which are not slow."""
    job = late_job(make_job, {1: 30, 2: 3}, ranks_count=8)
    shares = {0: 0.06, 1: 0.55, 2: 0.05, 3: 0.07, 4: 0.06, 5: 0.08, 6: 0.06, 7: 0.07}
    for row in job.rows["straggler"]:
        row["lateness_ratio"] = shares[row["rank"]]
    job.rows["comm_summary"] = [{"op": op, "rank": 0}]
    replay = Replayed({(1, 2): 40.0, (1,): 16.0}, {1: 1.3, 2: 1.1})
    found = LATE.run(replace(job.facts(), replay=replay)).findings
    assert [f.scope.ranks for f in found] == named


def test_a_healthy_job_is_not_replayed(make_job: MakeJob) -> None:
    replay = Replayed({})
    assert LATE.run(replace(late_job(make_job, {}).facts(), replay=replay)) == RuleOutcome()
    assert replay.asked == []


def test_the_range_the_steps_and_the_peers_are_in_the_sentence(make_job: MakeJob) -> None:
    (found,) = EXCESS_LATE.run(facts_of(make_job, INPUT)).findings
    assert found.summary.endswith(
        ": in `train/dataloader` (input): 83.3 ms in steps 2,6,10 (3 of 10, every 4th), "
        "667 us on its peers."
    )
    assert found.owner == "data"
    whole = next(e for e in found.evidence if e.query == "excess")
    assert [row.source for row in whole.rows] == ["r2.json"]


def evenly(name: str, **given: Any) -> dict[str, Any]:
    """20 calls that take twice as long in every third step, none by much."""
    row = part("operator", name, ms=16, peer_ms=10, steps=(2, 5, 8), longest_ns=MS)
    calls = {"calls_count": 20.0, "peer_calls_count": 20.0}
    return row | calls | {"affected_ns": 20.0 * MS, "affected_peer_ns": 10.0 * MS} | given


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([PAUSED], ": nothing recorded between forward and aten::add: 25.0 ms in every step, none"),
        ([MORE], ": more calls of aten::mm (6 a step, its peers 3): 50.0 ms in every step, 25.0"),
        ([SLOWER], ": aten::mm takes 2.0x at as many calls: 50.0 ms in every step, 25.0 ms on its"),
        (
            [part("operator", f"op{i}", ms=5, steps=(i,)) for i in range(1, 6)],
            ": 5 operators, calls and pauses stretched at random, one by up to 50.0 ms, as where a",
        ),
        (
            [evenly(f"op{i}") for i in range(5)],
            ": op0 and op1 and 3 others take 2.0x at as many calls: 100 ms in steps 2,5,8 (3 of",
        ),
        (  # one call of each has all of it
            [evenly(f"op{i}", longest_ns=17 * MS) for i in range(5)],
            ": 5 operators, calls and pauses stretched at random, one by up to 17.0 ms, as where a",
        ),
        (  # in other steps each
            [evenly(f"op{i}") | {"steps": [2 + i, 5]} for i in range(5)],
            ": 5 operators, calls and pauses stretched at random, one by up to 1.00 ms, as where a",
        ),
        (
            [part("between", ms=13), part("pause", "between a and b", ms=12)],
            ": between operators and nothing recorded between a and b: 25.0 ms in every step",
        ),
    ],
)
def test_what_kind_of_excess_it_is(
    make_job: MakeJob, rows: list[dict[str, Any]], words: str
) -> None:
    (found,) = EXCESS_LATE.run(facts_of(make_job, *rows)).findings
    assert words in found.summary


@pytest.mark.parametrize(
    ("row", "is_asked"),
    [
        (evenly("op"), True),
        (evenly("op", input_ratio=1.0), False),  # recorded: they are as large
        (SLOWER, False),  # in every step
        (PAUSED, False),
    ],
)
def test_where_calls_take_longer_in_some_steps_the_shapes_are_asked_for(
    make_job: MakeJob, row: dict[str, Any], is_asked: bool
) -> None:
    rows = [row | {"name": f"op{i}"} for i in range(5)] if is_asked else [row] * 5
    (found,) = EXCESS_LATE.run(facts_of(make_job, *rows)).findings
    assert ("record_shapes=True" in found.confirm[0]) is is_asked


@pytest.mark.parametrize(
    "row",
    [
        part("pause", "between a and b", ms=12),  # under half of the delay
        part("wait", "cudaStreamSynchronize"),  # for others
        part("range", path="dataloader", spread_ns=8.0 * MS),  # its peers scatter as far
        part("range", path="dataloader", excess_ns=None, spread_ns=None),  # it has no peers
        part("range", path="dataloader", rank=1),
        part("range", path="dataloader", peers="job"),  # beside other stages of a pipeline
    ],
    ids=["half", "wait", "spread", "alone", "another", "stages"],
)
def test_what_is_no_excess_is_not_said(make_job: MakeJob, row: dict[str, Any]) -> None:
    (found,) = EXCESS_LATE.run(facts_of(make_job, row)).findings
    assert "so its host holds it up" in found.summary
    assert not [e for e in found.evidence if e.query == "excess"]


def test_what_lies_on_the_device_comes_before_the_host(make_job: MakeJob) -> None:
    kernel = part("kernel", "gemm", ms=40, peer_ms=20, timeline="device", peer_calls_count=1.0)
    found = place_of(facts_of(make_job, SLOWER, kernel))
    assert found is not None
    assert (found.nature, found.rows[0]["name"]) == ("slower work", "gemm")


def test_the_innermost_range_that_holds_most_is_named(make_job: MakeJob) -> None:
    rows = [part("operator", "aten::stack", "train/fetch/collate", ms=11),
            part("operator", "aten::cat", "train/fetch", ms=9),
            part("operator", "aten::mm", "train", ms=2)]  # fmt: skip
    found = place_of(facts_of(make_job, *rows))
    assert found is not None
    assert (found.path, found.reason) == ("train/fetch", "input")


def test_a_job_description_adds_names(make_job: MakeJob) -> None:
    row = part("range", path="shard prep")
    facts = facts_of(make_job, row)
    assert "in `shard prep`: " in EXCESS_LATE.run(facts).findings[0].summary
    text = b'[[range]]\nname = "shard prep"\nkind = "input"\n'
    told = replace(facts, description=parse_job(text, "job.toml"))
    assert "in `shard prep` (input): " in EXCESS_LATE.run(told).findings[0].summary


@given(st.lists(st.integers(0, 5), min_size=2, max_size=9))
def test_the_median_of_others_is_that_of_all_but_one(values: list[int]) -> None:
    for i, own in enumerate(values):
        others = values[:i] + values[i + 1 :]
        assert median_of_others(sorted(values), own) == median(others)
