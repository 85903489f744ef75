"""late-rank, slow-gpu, slow-host: the culprit by its own doing, never a victim, never noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from late_jobs import MS, MakeJob, coverage, late_job

from tracekit.findings import Severity
from tracekit.report.build import build_report
from tracekit.rules import configured, rule
from tracekit.rules.base import NOT_APPLICABLE, Facts, RuleOutcome

LATE, GPU, HOST = rule("late-rank"), rule("slow-gpu"), rule("slow-host")


# --- late-rank ----------------------------------------------------------------------------------


def test_a_rank_that_delays_every_step_is_named_with_its_cost(make_job: MakeJob) -> None:
    (finding,) = LATE.run(late_job(make_job, {2: 25}).facts()).findings
    assert finding.scope.ranks == (2,)
    assert finding.impact.s_per_step == pytest.approx(0.025)
    assert finding.severity is Severity.CRITICAL
    assert finding.evidence[0].rows[0].source == "r2.json"


def test_two_culprits_are_two_findings_the_worse_first(make_job: MakeJob) -> None:
    found = LATE.run(late_job(make_job, {0: 30, 3: 25}, ranks_count=8).facts()).findings
    assert [f.scope.ranks for f in found] == [(0,), (3,)]


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


# --- members without a trace --------------------------------------------------------------------


def absent(
    group: str, missing: list[int], wait_ms: float, calls_ms: tuple[float, float] = (50, 90)
) -> dict[str, Any]:
    return {
        "group_id": group,
        "traced_ranks": [0, 1],
        "missing_ranks": missing,
        "wait_per_step_ns": wait_ms * MS,
        "first_after_ns": calls_ms[0] * MS,
        "last_after_ns": calls_ms[1] * MS,
        "wait_after_ns": calls_ms[0] * MS,
        "attempt": 1,
    }


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


def sibling(rank: int, excess_us: float, **changes: Any) -> dict[str, Any]:
    """One of four communicators of a tensor rank each; 70 us more in 100 of work, as in all."""
    row = absent(f"d{rank}", [rank + 4, rank + 8], 30)
    return row | {
        "members_count": 3,
        "traced_ranks": [rank],
        "steps_count": 8,
        "own_wait_per_step_ns": 0,
        "siblings_count": 4,
        "excess_ns": excess_us * 1e3,
        "last_ratio": 1.0 if excess_us > 50 else 0.0,
        "tail_ns": 100e3,
        "work_ns": 10 * MS,
        "longest_ns": 7 * MS,
        "clock_error_ns": 0,
        **changes,
    }


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


# --- slow-gpu and slow-host ---------------------------------------------------------------------


def slow_gpu_job(make_job: MakeJob, extra_ms: int = 20, ratio: float = 1.25) -> Any:
    return late_job(make_job, {2: 25}, peer=1.3, compute=ratio, compute_ms={2: extra_ms}, comm_ms=5)


def test_a_gpu_that_computes_longer_in_every_step_is_slow(make_job: MakeJob) -> None:
    (finding,) = GPU.run(slow_gpu_job(make_job).facts()).findings
    assert finding.scope.ranks == (2,)
    assert finding.owner == "hardware"
    assert HOST.run(slow_gpu_job(make_job).facts()) == RuleOutcome()


@pytest.mark.parametrize(("ratio", "is_for"), [(0.95, True), (0.96, False)])
def test_a_lost_clock_speaks_for_it_and_one_like_its_peers_against(
    make_job: MakeJob, ratio: float, is_for: bool
) -> None:
    job = slow_gpu_job(make_job)
    clock = {"counter": "sm_clock", "rank": 2, "peer_ratio": ratio, "busy_peer_ratio": None}
    job.rows["gpu_counters"] = [{**clock, "source_id": 0, "place": 1}]
    name = "clock over its peers', median moment"
    for limit, expected in ((0.95, is_for), (0.97, True), (0.9, False)):
        (set_so,) = configured({"slow-gpu": {"max_clock_ratio": limit}}, select=["slow-gpu"])
        (finding,) = set_so.run(job.facts()).findings
        (found,) = (e for e in (*finding.evidence, *finding.counter_evidence) if e.name == name)
        assert found.threshold == limit
        assert (found in finding.evidence) is expected


def test_just_under_a_tenth_is_not_slow(make_job: MakeJob) -> None:
    assert GPU.run(slow_gpu_job(make_job, 7, 1.09).facts()) == RuleOutcome()


def test_more_kernels_are_more_work(make_job: MakeJob) -> None:
    job = slow_gpu_job(make_job)
    job.rows["kernel_summary"] = [
        {"rank": r, "class": "compute", "calls_count": 120 if r == 2 else 100} for r in range(4)
    ]
    assert GPU.run(job.facts()) == RuleOutcome()


def test_experts_make_work_uneven(make_job: MakeJob) -> None:
    job = slow_gpu_job(make_job)
    job.rows["comm_summary"] = [{"rank": 0, "op": "all_to_all"}]
    assert "experts" in GPU.run(job.facts()).not_checked[0].needs


def test_without_a_gpu_timeline_no_gpu_is_slow(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 25}, compute=1.3, measured_on="host")
    assert "GPU timeline" in GPU.run(job.facts()).not_checked[0].needs


def test_equal_kernels_and_a_long_own_time_are_a_slow_host(make_job: MakeJob) -> None:
    (finding,) = HOST.run(late_job(make_job, {2: 25}).facts()).findings
    assert finding.scope.ranks == (2,)
    assert "host is slow" in finding.summary
    assert GPU.run(late_job(make_job, {2: 25}).facts()) == RuleOutcome()


def test_a_host_whose_ranks_are_all_late_is_one_finding(make_job: MakeJob) -> None:
    (finding,) = HOST.run(late_job(make_job, {2: 26, 3: 25}, ranks_count=8).facts()).findings
    assert finding.scope.ranks == (2, 3)
    assert finding.scope.hosts == ("h1",)
    assert "all of h1" in finding.summary


def test_a_named_stall_is_not_a_slow_host(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 25})
    job.rows["input_stall"] = [
        {"rank": 2, "attempt": 1, "capture_id": 0, "step": s, "exposed_ns": 20 * MS}
        for s in job.steps
    ]
    assert HOST.run(job.facts()) == RuleOutcome()


def test_slow_now_and_then_is_no_slow_host(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 60}, steps=range(3, 7))
    assert len(LATE.run(job.facts()).findings) == 1
    assert HOST.run(job.facts()) == RuleOutcome()


# --- link-degraded ------------------------------------------------------------------------------

LINK = rule("link-degraded")


def exit_row(rank: int, late_ms: float, **facts: Any) -> dict[str, Any]:
    row = {
        "group_id": "g",
        "op": "all_reduce",
        "message_bytes": None,
        "rank": rank,
        "calls_count": 10,
        "exit_p10_ns": late_ms * 0.9 * MS if late_ms > 0 else late_ms * MS,
        "exit_p50_ns": late_ms * MS,
        "exit_p90_ns": late_ms * 1.1 * MS,
        "transfer_p50_ns": (80 + late_ms) * MS,
        "group_transfer_p50_ns": 80.0 * MS,
        "error_ns": 0,
        "attempt": 1,
    }
    return row | facts


def link_job(make_job: MakeJob, late_ms: float, **facts: Any) -> Any:
    job = make_job(comm_ms=60)
    job.rows["exit_lateness"] = [exit_row(r, late_ms if r == 1 else -3, **facts) for r in range(4)]
    return job


def test_a_member_that_always_leaves_late_sits_behind_a_slow_link(make_job: MakeJob) -> None:
    (finding,) = LINK.run(link_job(make_job, 20).facts()).findings
    assert finding.scope.ranks == (1,)
    assert finding.scope.hosts == ("h0",)
    assert finding.severity is Severity.MINOR
    assert finding.confidence.level == "possible"


@pytest.mark.parametrize(
    ("late_ms", "facts"),
    [
        (3.9, {}),  # under 5 % of the transfer
        (20, {"exit_p10_ns": -1.0}),  # now and then
        (20, {"calls_count": 7}),  # too few
        (20, {"error_ns": 30 * MS}),  # within the clocks' error
    ],
)
def test_what_is_small_rare_or_uncertain_is_no_link(
    make_job: MakeJob, late_ms: float, facts: dict[str, Any]
) -> None:
    assert LINK.run(link_job(make_job, late_ms, **facts).facts()) == RuleOutcome()


def bandwidth(group: str, ratio: float, **facts: Any) -> dict[str, Any]:
    row = {
        "group_id": group,
        "kind": "dp",
        "op": "all_reduce",
        "message_bytes": 64 << 20,
        "instances_count": 40,
        "steps_count": 4,
        "transfer_p50_ns": 5.0 * MS,
        "bus_bytes_per_s": 1e11 * ratio,
        "peer_ratio": ratio,
        "peers_count": 8,
        "timeline": "device",
        "attempt": 1,
        "error_ns": 0,
    }
    return row | facts


@pytest.mark.parametrize(
    ("ratio", "facts", "count"),
    [
        (0.7, {}, 1),
        # It loses 1.5 ms of 5: the clocks may make that seem so, or not quite.
        (0.7, {"error_ns": 1_499_000}, 1),
        (0.7, {"error_ns": 1_501_000}, 0),
        (0.8, {}, 0),
        (0.7, {"peers_count": 3}, 0),
        (0.7, {"steps_count": 2}, 0),
        (0.7, {"timeline": "host"}, 0),
        (0.7, {"message_bytes": 4096}, 0),
    ],
)
def test_a_group_is_slow_beside_enough_of_its_kind(
    make_job: MakeJob, ratio: float, facts: dict[str, Any], count: int
) -> None:
    job = link_job(make_job, 0)
    job.rows["group_bandwidth"] = [bandwidth("g", ratio, **facts)]
    job.rows["match_coverage"] = [coverage()]
    assert len(LINK.run(job.facts()).findings) == count


def test_a_slow_group_accuses_none_of_its_members(make_job: MakeJob) -> None:
    """One finding for all its operations: a ring is as slow as its slowest link, wherever it is."""
    job = link_job(make_job, 0)
    job.rows["group_bandwidth"] = [
        bandwidth("g", 0.7),
        bandwidth("g", 0.6, op="all_gather"),
        bandwidth("h", 1.0),
    ]
    job.rows["match_coverage"] = [coverage()]
    (finding,) = LINK.run(job.facts()).findings
    assert finding.id == "link-degraded/g"
    assert finding.scope.ranks == () and finding.scope.hosts == ()
    assert finding.scope.groups == ("g",)
    assert finding.candidates.ranks == (0, 1, 2, 3)
    # 10 calls a step of 5 ms each, of which 0.3 and 0.4 are lost.
    assert finding.impact.s_per_step == pytest.approx(0.035)
    assert finding.severity is Severity.MINOR


def test_a_slow_port_in_a_slow_group_is_one_finding_of_its_rank(make_job: MakeJob) -> None:
    job = link_job(make_job, 0)
    job.rows["group_bandwidth"] = [bandwidth("g", 0.5)]
    job.rows["match_coverage"] = [coverage()]
    job.rows["port_counters"] = [
        {"node": f"h{r}", "port": "mlx5_0", "host": f"h{r}", "host_source": "file", "rank": r,
         "ranks": [r], "is_on_host": True, "counter": "rx_bytes", "direction": "rx",
         "growth": 1e9, "interval_ns": 1e9, "intervals_count": 10, "coverage_ratio": 1.0,
         "step_growth": None, "step_covered_ns": None,
         "source_id": 0, "place": r, "is_from_documentation": False}
        for r in range(4)
    ]  # fmt: skip
    job.rows["port_levels"] = [
        {"node": f"h{r}", "port": "mlx5_0", "counter": "link_speed", "source_id": 0, "place": r,
         "max_value": 1e11 if r == 2 else 2e11, "is_from_documentation": False}
        for r in range(4)
    ]  # fmt: skip
    (finding,) = LINK.run(job.facts()).findings
    assert finding.scope.ranks == (2,)
    assert finding.confidence.level == "likely"
    assert "The traces agree: the dp group of ranks 0-3" in finding.summary


# --- collective-mismatch and collective-hang ----------------------------------------------------

MISMATCH, HANG = rule("collective-mismatch"), rule("collective-hang")


def test_members_that_call_different_sizes_are_a_mismatch(make_job: MakeJob) -> None:
    job = make_job()
    job.rows["match_coverage"] = [
        coverage(method="sequence"),
        coverage(method="sequence", is_trusted=False, reason="sizes differ", calls_count=4),
    ]
    (finding,) = MISMATCH.run(job.facts()).findings
    assert finding.severity is Severity.MINOR
    job.rows["match_coverage"].pop()
    assert MISMATCH.run(job.facts()) == RuleOutcome()


def test_by_order_most_calls_must_agree(make_job: MakeJob) -> None:
    job = make_job()
    job.rows["match_coverage"] = [
        coverage(),
        coverage(is_trusted=False, reason="sizes differ", calls_count=13),
    ]
    assert len(MISMATCH.run(job.facts()).findings) == 1
    job.rows["match_coverage"][1]["calls_count"] = 14
    assert MISMATCH.run(job.facts()) == RuleOutcome()


def last_call(rank: int, call: int, silence_s: float, **facts: Any) -> dict[str, Any]:
    row = {
        "group_id": "g",
        "rank": rank,
        "capture_id": 0,
        "op": "all_reduce",
        "last_call": call,
        "last_dur_ns": MS,
        "usual_dur_ns": float(MS),
        "silence_ns": int(silence_s * 1e9),
        "longest_gap_ns": 10 * MS,
        "source_id": rank,
        "place": call,
        "attempt": 1,
    }
    return row | facts


def test_the_member_that_never_entered_is_the_culprit_of_a_hang(make_job: MakeJob) -> None:
    job = make_job()
    job.rows["last_calls"] = [last_call(r, 8 if r == 3 else 9, 60) for r in range(4)]
    (finding,) = HANG.run(job.facts()).findings
    assert finding.scope.ranks == (3,)
    assert finding.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    "rows",
    [
        [last_call(r, 8 if r == 3 else 9, 29) for r in range(4)],  # too short
        [last_call(r, 9, 60) for r in range(4)],  # all stopped at the same call
        [last_call(r, 8 if r == 3 else 9, 0 if r == 3 else 60) for r in range(4)],  # cut trace
        [last_call(r, 8 + r % 2, 60, longest_gap_ns=10_000 * MS) for r in range(4)],  # had paused
    ],
)
def test_other_silences_are_no_hang(make_job: MakeJob, rows: list[dict[str, Any]]) -> None:
    job = make_job()
    job.rows["last_calls"] = rows
    assert HANG.run(job.facts()) == RuleOutcome()


def test_guessed_members_that_stopped_apart_are_not_named(make_job: MakeJob) -> None:
    """Two groups that matching took for one stop at different calls when another group hangs."""
    job = make_job()
    rows = [last_call(r, 8 if r % 2 else 9, 60, is_told=False) for r in range(4)]
    job.rows["last_calls"] = rows
    assert HANG.run(job.facts()) == RuleOutcome()
    job.rows["last_calls"] = [row | {"is_told": True} for row in rows]
    assert HANG.run(job.facts()).findings[0].scope.ranks == (1, 3)


def stood(rank: int, **facts: Any) -> dict[str, Any]:
    row = {
        "rank": rank,
        "capture_id": 0,
        "launches_count": 0,
        "calls_count": 3,
        "op": "all_reduce",
        "standing_ns": 60 * 10**9,
        "longest_gap_ns": 10 * MS,
        "is_told": False,
        "is_cut": False,
        "source_id": rank,
        "place": rank,
        "attempt": 1,
    }
    return row | facts


NOTHING = {"calls_count": 0, "op": None}


@pytest.mark.parametrize(
    ("special", "candidates", "words"),
    [
        (NOTHING, (3,), "ranks 0-2 asked for an all_reduce that has not ended for 60.0 s, in"),
        ({}, (), "all 4 ranks asked for an all_reduce that has not ended"),
        ({"op": "all_gather"}, (), "asked for a collective that has not ended"),
        ({"calls_count": 0, "launches_count": 2}, (), "asked for work on the device that"),
    ],
)
def test_ranks_that_stand_still_with_work_asked_for_are_a_hang_without_a_culprit(
    make_job: MakeJob, special: dict[str, Any], candidates: tuple[int, ...], words: str
) -> None:
    job = make_job()
    job.rows["standing"] = [stood(r, **(special if r == 3 else {})) for r in range(4)]
    (finding,) = HANG.run(job.facts()).findings
    assert words in finding.summary[0].lower() + finding.summary[1:]
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == candidates
    assert finding.confidence.level == "possible"
    assert "--include-blobs=true" in finding.next_capture[0]
    report = build_report(job.facts(), [])
    assert report.document.verdict.kind == "hang"


@pytest.mark.parametrize(
    "special",
    [
        {"standing_ns": 29 * 10**9},  # too short
        {"standing_ns": 0},  # the capture was stopped while work went on
        {"longest_gap_ns": 7 * 10**9},  # paused before as well
        {"is_cut": True},
        {"standing_ns": None},
    ],
)
def test_work_in_flight_is_no_hang(make_job: MakeJob, special: dict[str, Any]) -> None:
    job = make_job()
    job.rows["last_calls"] = [last_call(r, 9, 60) for r in range(4)]
    job.rows["standing"] = [stood(r, **(special if r == 3 else {})) for r in range(4)]
    assert HANG.run(job.facts()) == RuleOutcome()


@pytest.mark.parametrize("special", [NOTHING, {"is_told": True}, {"is_told": None}])
def test_a_job_that_ended_and_traces_that_tell_are_left_to_others(
    make_job: MakeJob, special: dict[str, Any]
) -> None:
    job = make_job()
    job.rows["last_calls"] = [last_call(r, 9, 60) for r in range(4)]
    job.rows["standing"] = [stood(r, **special) for r in range(4)]
    assert HANG.run(job.facts()) == RuleOutcome()


# --- prices by replay ---------------------------------------------------------------------------


class Replayed:
    """A replay that answers as it is told; keys are the ranks that go."""

    def __init__(
        self,
        saved_ms: Mapping[tuple[int, ...], float],
        slow: Mapping[int, float] | None = None,
        is_by_streams: bool = False,
    ) -> None:
        self.saved_ms, self.slow = saved_ms, slow or {}
        self.is_by_streams = is_by_streams
        self.error_ratio = 0.0
        self.asked: list[tuple[int, ...]] = []

    def saved_ns(self, ranks: Sequence[int]) -> float | None:
        self.asked.append(tuple(ranks))
        saved = self.saved_ms.get(tuple(ranks))
        return None if saved is None else saved * MS

    def saved_evenly_ns(self) -> float | None:
        return None

    def saved_by_operations_ns(self, rank: int) -> float | None:
        return None

    def idle_beyond_hand_overs_ns(self) -> float | None:
        return None

    def slowdown(self, rank: int) -> float | None:
        return self.slow.get(rank)


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


@pytest.mark.parametrize(("saved_ms", "cost_s"), [(10.0, 0.010), (2.0, 0.025)])
def test_a_replay_of_streams_is_believed_that_most_of_a_delay_hides(
    make_job: MakeJob, saved_ms: float, cost_s: float
) -> None:
    replay = Replayed({(2,): saved_ms}, is_by_streams=True)
    facts = replace(late_job(make_job, {2: 25}).facts(), replay=replay)
    (finding,) = LATE.run(facts).findings
    assert finding.impact.s_per_step == pytest.approx(cost_s)


def test_the_replay_is_the_third_score(make_job: MakeJob) -> None:
    """Two of three agree although its own time is like its peers'; one of three is minor."""
    facts = late_job(make_job, {2: 25}, peer=1.0).facts()
    for slowdown, severity in ((1.2, Severity.CRITICAL), (1.04, Severity.MINOR)):
        seen = replace(facts, replay=Replayed({}, {2: slowdown}))
        (finding,) = LATE.run(seen).findings
        assert finding.severity is severity
        assert any("replay" in e.name and e.value == slowdown for e in finding.evidence)


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


# --- ranks without a trace in every call -------------------------------------------------------


def uncalled(
    make_job: MakeJob,
    *,
    own_ms: float = 25,
    other_ms: float | None = None,
    absent_ns: float | None = 1e6,
    **options: Any,
) -> Any:
    """A job whose calls all miss a member: own time and waiting are known, who came last is not."""
    late = {2: own_ms} if other_ms is None else {2: own_ms, 1: other_ms}
    job = late_job(make_job, late, peer=1.3, **options)
    job.rows.pop("late_steps")
    job.rows["absent_waits"] = [{"missing_ranks": [4], "wait_per_step_ns": absent_ns}]
    for row in job.rows["straggler"]:
        nothing = ("matched_count", "inflicted_wait_ns", "own_inflicted_wait_ns", "late_count")
        row.update(dict.fromkeys(nothing, 0), lateness_ratio=None)
    return job


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


def test_a_traced_rank_that_waits_for_an_absent_one_is_not_the_slowest(make_job: MakeJob) -> None:
    step_ns = uncalled(make_job).facts(world_size=5).steps.step_ns
    assert HOST.run(uncalled(make_job, absent_ns=0.049 * step_ns).facts(world_size=5)).findings
    assert not HOST.run(uncalled(make_job, absent_ns=0.051 * step_ns).facts(world_size=5)).findings
    # Nothing tells whether it waits: no major finding.
    (unknown,) = HOST.run(uncalled(make_job, absent_ns=None).facts(world_size=5)).findings
    (known,) = HOST.run(uncalled(make_job).facts(world_size=5)).findings
    assert (unknown.severity, known.severity) == (Severity.MINOR, Severity.CRITICAL)


def test_what_was_not_traced_is_said_beside_what_was_matched(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 25}, compute=1.3, compute_ms={2: 25})
    for kind in (LATE, GPU):
        (whole,) = kind.run(job.facts()).findings
        assert whole.confidence.basis.endswith("120 of 120 calls matched")
        (part,) = kind.run(job.facts(world_size=6)).findings
        assert part.confidence.basis.endswith(
            "120 of 120 calls matched among those traced (ranks 4-5 left no trace)"
        )


@pytest.mark.parametrize(("own_ms", "other_ms"), [(60, 30), (26, 13)])
def test_a_delay_that_a_longer_one_may_cover_names_nobody(
    make_job: MakeJob, own_ms: int, other_ms: int
) -> None:
    """From half of the worst on both are named, whatever the worst is."""
    for ms, named in ((other_ms, {1, 2}), (other_ms - 1, {2})):
        job = uncalled(make_job, own_ms=own_ms, other_ms=ms)
        found = HOST.run(job.facts(world_size=5)).findings
        assert {r for f in found for r in f.scope.ranks} == named
        # What each of several costs alone is not known.
        severity = Severity.CRITICAL if len(named) == 1 else Severity.MINOR
        assert {f.severity for f in found} == {severity}
    strict = HOST.configured({"min_of_worst_ratio": 0.6})
    both = uncalled(make_job, own_ms=own_ms, other_ms=other_ms).facts(world_size=5)
    assert [f.scope.ranks for f in strict.run(both).findings] == [(2,)]


def test_own_time_alone_names_nobody_where_a_rank_left_no_trace(make_job: MakeJob) -> None:
    # Nobody is missing: then the calls are not matched for another reason.
    assert not HOST.run(uncalled(make_job).facts(world_size=4)).findings
    # Under a twentieth of the step.
    assert not HOST.run(uncalled(make_job, own_ms=4).facts(world_size=5)).findings
    # The others do not wait for longer than it does.
    even = uncalled(make_job)
    for step in even.steps:
        even.add(2, step, "exposed_comm", 25)
    assert not HOST.run(even.facts(world_size=5)).findings
    # Stages of a pipeline wait for one another.
    piped = uncalled(make_job)
    piped.rows["comm_summary"] = [{"op": "send", "rank": 0}]
    assert not HOST.run(piped.facts(world_size=5)).findings
    # Some calls have all their members: then those tell who is late.
    whole = uncalled(make_job)
    whole.rows["straggler"][0]["matched_count"] = 30
    assert not HOST.run(whole.facts(world_size=5)).findings


# --- late side by side -------------------------------------------------------------------------


def side_by_side(make_job: MakeJob, ranks: Sequence[int] = (4, 5, 6, 7), **options: Any) -> Any:
    """Ranks that are equally late: each a hair behind the last, so that no gap shows."""
    own = dict.fromkeys(ranks, 3.0)
    return late_job(make_job, own, ranks_count=12, **options)


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


def test_a_replay_that_missed_what_was_measured_names_nobody_else(make_job: MakeJob) -> None:
    """Seen on a pipeline: 24.6 ms by replay for the straggler and the rank behind it, where the
    straggler alone was measured to delay by 86.9."""
    job = late_job(make_job, {1: 30, 2: 3}, ranks_count=8)
    replay = Replayed({(1, 2): 20.0, (1,): 9.0}, {1: 1.3, 2: 1.1})
    found = LATE.run(replace(job.facts(), replay=replay)).findings
    assert [f.scope.ranks for f in found] == [(1,)]
    assert found[0].impact.s_per_step == pytest.approx(0.030)


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
