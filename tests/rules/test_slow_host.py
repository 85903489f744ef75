"""slow-host: when it fires, when just not, and what exempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from late_jobs import MS, MakeJob, coverage, late_job

from excess_rules import HOST as EXCESS_HOST
from excess_rules import INPUT, MORE, PAUSED, SLOWER, facts_of
from lateness_rules import GPU, HOST, LATE, uncalled
from tracekit.findings import Severity
from tracekit.rules.base import Facts, RuleOutcome


def test_equal_kernels_and_a_long_own_time_are_a_slow_host(make_job: MakeJob) -> None:
    (finding,) = HOST.run(late_job(make_job, {2: 25}).facts()).findings
    assert finding.scope.ranks == (2,)
    assert "host is slow" in finding.summary
    assert GPU.run(late_job(make_job, {2: 25}).facts()) == RuleOutcome()


@pytest.mark.parametrize(
    ("others", "is_named"),
    [((1.0, 1.01, 0.99), True), ((0.6, 0.9, 1.2), False), ((0.8, 1.2), True)],
    ids=["alike", "each another size", "too few to tell"],
)
def test_a_rank_among_peers_whose_own_times_lie_as_far_apart_is_no_slow_host(
    make_job: MakeJob, others: Sequence[float], is_named: bool
) -> None:
    job = late_job(make_job, {len(others): 45}, ranks_count=len(others) + 1)
    for row, ratio in zip(job.rows["straggler"], (*others, 1.5), strict=True):
        row["peer_ratio"] = ratio
    found = HOST.run(job.facts()).findings
    assert [f.scope.ranks for f in found] == ([(len(others),)] if is_named else [])
    assert [f.scope.ranks for f in LATE.run(job.facts()).findings] == [(len(others),)]


def test_a_host_whose_ranks_are_all_late_is_one_finding(make_job: MakeJob) -> None:
    (finding,) = HOST.run(late_job(make_job, {2: 26, 3: 25}, ranks_count=8).facts()).findings
    assert finding.scope.ranks == (2, 3)
    assert finding.scope.hosts == ("h1",)
    assert "all of h1" in finding.summary


def stages(
    make_job: MakeJob,
    *,
    launch_ns: float = 15_000,
    idle_ms: Sequence[int] = (30, 10),
    waiting_ms: int = 30,
    hosts_count: int = 2,
    input_ms: int = 0,
) -> Facts:
    """Two hosts with two stages of two ranks each. On h0 a launch takes 1.5 times as long, and GPUs
    idle for it 30 and 10 ms of each step; those of h1 stand in communication for 30 ms instead."""
    job = make_job(ranks_count=8).launching(host_wait_ratio=1.0)
    for row in job.rows["launch_stats"]:
        row["launch_p50_ns"] = launch_ns if row["rank"] < 4 else 10_000.0
    for rank in range(8):
        for step in job.steps:
            if rank < 4:
                job.add(rank, step, "idle", idle_ms[rank // 2])
                job.add(rank, step, "exposed_comm", max(0, 30 - idle_ms[rank // 2]))
            else:
                job.add(rank, step, "exposed_comm", waiting_ms)
    if input_ms:
        job.rows["input_stall"] = [
            {"rank": r, "attempt": 1, "capture_id": 0, "step": s, "exposed_ns": input_ms * MS}
            for r in (2, 3)
            for s in job.steps
        ]
    job.rows["match_coverage"] = [coverage()]
    facts: Facts = job.facts(hosts={r: f"h{r // 4 % hosts_count}" for r in range(8)})
    return facts


def test_a_host_with_whole_stages_is_slow_by_its_launches(make_job: MakeJob) -> None:
    facts = stages(make_job)
    (finding,) = HOST.run(facts).findings
    assert (finding.scope.ranks, finding.scope.hosts) == ((0, 1, 2, 3), ("h0",))
    assert "(all of h0) take 1.5x as long as others to launch" in finding.summary
    assert "wait up to 30.0 ms of each 130 ms step" in finding.summary
    assert finding.impact.s_per_step == pytest.approx(0.030)


@pytest.mark.parametrize(
    "kind",
    [
        {"launch_ns": 14_900},
        {"idle_ms": (6, 6)},  # under 5 % of the step: none of its ranks waits for launches
        {"waiting_ms": 6},  # nobody waits for it
        {"hosts_count": 1},  # all hosts are no host
        {"input_ms": 5},  # of the ten for which ranks 2 and 3 idle: the data's; they are busy
    ],
)
def test_just_below_each_limit_a_host_with_whole_stages_is_not_slow(
    make_job: MakeJob, kind: dict[str, Any]
) -> None:
    assert HOST.run(stages(make_job, **kind)) == RuleOutcome()


def test_of_its_ranks_some_may_wait_for_the_one_that_waits_for_launches(
    make_job: MakeJob,
) -> None:
    """As stages before the last do, whose gradients come late."""
    (finding,) = HOST.run(stages(make_job, idle_ms=(30, 2))).findings
    assert finding.scope.ranks == (0, 1, 2, 3)
    assert finding.impact.s_per_step == pytest.approx(0.030)


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


def test_a_traced_rank_that_waits_for_an_absent_one_is_not_the_slowest(make_job: MakeJob) -> None:
    step_ns = uncalled(make_job).facts(world_size=5).steps.step_ns
    assert HOST.run(uncalled(make_job, absent_ns=0.049 * step_ns).facts(world_size=5)).findings
    assert not HOST.run(uncalled(make_job, absent_ns=0.051 * step_ns).facts(world_size=5)).findings
    # Nothing tells whether it waits: no major finding.
    (unknown,) = HOST.run(uncalled(make_job, absent_ns=None).facts(world_size=5)).findings
    (known,) = HOST.run(uncalled(make_job).facts(world_size=5)).findings
    assert (unknown.severity, known.severity) == (Severity.MINOR, Severity.CRITICAL)


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


def test_a_slow_host_says_what_takes_longer(make_job: MakeJob) -> None:
    (found,) = EXCESS_HOST.run(facts_of(make_job, SLOWER)).findings
    assert found.summary.endswith("aten::mm takes 2.0x at as many calls: 50.0 ms in every step, "
                                  "25.0 ms on its peers.")  # fmt: skip


@pytest.mark.parametrize("row", [PAUSED, MORE, INPUT], ids=["pause", "more", "input"])
def test_a_host_that_does_something_else_is_not_slow(
    make_job: MakeJob, row: dict[str, Any]
) -> None:
    assert EXCESS_HOST.run(facts_of(make_job, row)) == RuleOutcome()
