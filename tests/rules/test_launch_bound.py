"""launch-bound: fires, just does not, and leaves to others what is theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tracekit.findings import Severity
from tracekit.rules import rule
from tracekit.rules.base import RuleOutcome

MakeJob = Callable[..., Any]
RULE = rule("launch-bound")


def test_short_kernels_and_an_empty_queue_are_said_without_blame(make_job: MakeJob) -> None:
    job = make_job(idle_ms=40).launching()
    (finding,) = RULE.run(job.facts()).findings
    assert finding.id == "launch-bound/all"
    assert finding.impact.s_per_step == pytest.approx(0.036)
    assert finding.severity is Severity.MINOR  # 36 % of the step, capped: it names no culprit
    assert not RULE.names_culprit


@pytest.mark.parametrize(
    "kind",
    [
        {"kernel_ns": 20_000},
        {"queue_ns": 50_001},
        {"host_wait_ratio": 0.24},  # 9.6 % of the step
    ],
)
def test_just_below_each_threshold_it_is_silent(kind: dict[str, float], make_job: MakeJob) -> None:
    assert RULE.run(make_job(idle_ms=40).launching(**kind).facts()) == RuleOutcome()


def test_a_small_share_of_much_idle_time_is_another_problem(make_job: MakeJob) -> None:
    job = make_job(idle_ms=80).launching(host_wait_ratio=0.19)
    assert RULE.run(job.facts()) == RuleOutcome()  # 15 % of the step, 19 % of the idle time


def test_a_healthy_job_is_not_launch_bound(make_job: MakeJob) -> None:
    assert RULE.run(make_job().launching(kernel_ns=200_000).facts()) == RuleOutcome()


def test_idle_time_after_synchronising_is_a_sync_stall(make_job: MakeJob) -> None:
    job = make_job(idle_ms=10).launching(host_wait_ratio=1.0)
    job.stall("sync_stall", range(4), range(1, 11), 30)
    assert RULE.run(job.facts()) == RuleOutcome()  # 40 idle, 30 of them explained


def test_a_pause_of_some_steps_is_no_launching(make_job: MakeJob) -> None:
    job = make_job(idle_ms=8).launching(host_wait_ratio=1.0)
    for rank in range(4):
        for step in (3, 7):
            job.add(rank, step, "idle", 400)
    assert RULE.run(job.facts()) == RuleOutcome()  # 88 of the 180 ms of a mean step, 8 of a median


def recorded(make_job: MakeJob, operators: int, calls: int) -> Any:
    """40 of 100 ms idle, 36 of them for launches; so many records a step."""
    job = make_job(idle_ms=40).launching()
    for row in job.rows["launch_stats"]:
        row |= {"operators_count": operators * 10, "calls_count": calls * 10}
    return job


@pytest.mark.parametrize(
    ("operators", "calls", "cost_ms", "level"),
    [(5_000, 900, 30.3, "likely"), (5_000, 1_100, 29.7, "possible")],
)
def test_what_the_profiler_takes_is_no_cost_of_the_job(
    make_job: MakeJob, operators: int, calls: int, cost_ms: float, level: str
) -> None:
    """0.6 us an operator and 3 a call; three times that is half of the waiting, or nearly."""
    (finding,) = RULE.run(recorded(make_job, operators, calls).facts()).findings
    assert finding.impact.s_per_step == pytest.approx(cost_ms / 1e3)
    assert finding.impact.low_s_per_step == 0
    assert finding.confidence.level == level
    assert bool(finding.counter_evidence) is (level == "possible")
    assert ("may not wait at all" in finding.summary) is (level == "possible")


def test_waiting_that_the_profiler_alone_may_make_is_none(make_job: MakeJob) -> None:
    assert RULE.run(recorded(make_job, 5_000, 8_000).facts()) == RuleOutcome()  # 9 ms are left


@pytest.mark.parametrize(
    ("job_ms", "touched", "cost_ms", "says"),
    [
        (90, 20, 26.0, "take 10.0 ms longer than the log's others"),
        (110, 20, 36.0, "launch work; the median kernel takes 8.00 us."),
        (90, 21, 30.0, "own records are 6.00 ms"),  # the log tells of the steps beside them
    ],
)
def test_a_log_says_what_the_profiled_steps_take_longer(
    make_job: MakeJob, job_ms: float, touched: int, cost_ms: float, says: str
) -> None:
    job = recorded(make_job, 0, 2_000)
    job.rows["profiled_window"] = [
        {"p50_ns": 100e6, "job_p50_ns": job_ms * 1e6, "traced_count": 10, "touched_count": touched}
    ]
    (finding,) = RULE.run(job.facts()).findings
    assert finding.impact.s_per_step == pytest.approx(cost_ms / 1e3)
    assert says in finding.summary


def starved(make_job: MakeJob, *, stream_ratio: float = 0.9, blocked_ms: float = 0.0) -> Any:
    """40 of 100 ms are communication that nothing hides, 10 idle; most of both is time in which
    the stream that computes has not been given its next kernel."""
    job = make_job(comm_ms=40, idle_ms=10).launching(host_wait_ratio=0.5)
    for rank in range(job.ranks_count):
        for stream, count, ratio in ((7, 900, stream_ratio), (24, 40, 1.0)):
            job.rows["idle_breakdown"].append(
                {"rank": rank, "stream": stream, "idle_count": count, "idle_ns": 1_000_000,
                 "host_wait_ns": int(ratio * 1_000_000)}
            )  # fmt: skip
    facts = job.facts()
    rows = [
        {**r, "host_blocked_ns": int(blocked_ms * 1_000_000)} for r in facts.of("step_breakdown")
    ]
    return replace(facts, rows={**facts.rows, "step_breakdown": rows})


def test_what_computes_may_starve_while_communication_runs(make_job: MakeJob) -> None:
    (finding,) = RULE.run(starved(make_job)).findings
    assert finding.impact.s_per_step == pytest.approx(0.045)  # of 50 in which nothing computes
    assert "while only communication runs" in finding.summary
    (finding,) = RULE.run(starved(make_job, blocked_ms=30)).findings
    assert finding.impact.s_per_step == pytest.approx(0.015)


@pytest.mark.parametrize(
    "kind", [{"stream_ratio": 0.199}, {"blocked_ms": 35.1}, {"stream_ratio": 0.3, "blocked_ms": 9}]
)
def test_waiting_for_communication_is_no_waiting_for_launches(
    make_job: MakeJob, kind: dict[str, float]
) -> None:
    """The next kernel was launched and waits for its data, or the host itself was blocked."""
    assert RULE.run(starved(make_job, **kind)) == RuleOutcome()


def test_a_few_late_hosts_do_not_make_a_launch_bound_job(make_job: MakeJob) -> None:
    job = make_job().launching()
    for step in job.steps:
        job.add(0, step, "idle", 60)
    assert RULE.run(job.facts()) == RuleOutcome()


def paced(
    make_job: MakeJob,
    *,
    bare_ms: float = 5,
    message_bytes: int | None = 1 << 20,
    queue_ms: float = 9,
    blocked_ms: float = 9,
    stall_ms: int = 0,
    idle_ratio: float = 0.2,
) -> Any:
    """Steps of 100 ms: 35 computing, 60 in ten collectives that nothing hides, 5 idle; rank 0 is
    as the options say, and no host is blocked or far ahead."""
    job = make_job(comm_ms=60, idle_ms=5 - stall_ms)
    job.launching(kernel_ns=100_000, host_wait_ratio=idle_ratio)
    if stall_ms:
        job.stall("input_stall", range(4), range(1, 11), stall_ms)
    job.rows["launch_stats"][0]["queue_delay_p50_ns"] = queue_ms * 1e6
    job.rows["comm_summary"] = [
        {"rank": rank, "op": "all_reduce", "message_bytes": message_bytes, "group_size": 4,
         "timeline": "device", "calls_count": 10, "total_ns": 60_000_000, "mean_ns": 6e6,
         "min_ns": int(bare_ms * 1e5)}
        for rank in range(4)
    ]  # fmt: skip
    facts = job.facts()
    rows = [
        {**r, "host_blocked_ns": int(blocked_ms * 1e6) if r["rank"] == 0 else 0}
        for r in facts.of("step_breakdown")
    ]
    return replace(facts, rows={**facts.rows, "step_breakdown": rows})


def test_hosts_that_work_all_step_long_set_the_pace_of_devices_that_wait_in_collectives(
    make_job: MakeJob,
) -> None:
    facts = paced(make_job)
    assert facts.step_ns == 100e6
    (finding,) = RULE.run(facts).findings
    assert finding.id == "launch-bound/all"
    assert finding.summary.startswith(
        "The hosts set the pace: all of them work for 91.0 to 100 ms of the 100 ms step, and the "
        "GPUs wait 56.0 ms of it for launches"
    )
    # 60 of communication, of which bare transfers take 5, and a fifth of 5 idle.
    assert finding.impact.s_per_step == pytest.approx(0.056)
    assert finding.impact.low_s_per_step == 0


@pytest.mark.parametrize(
    "kind",
    [
        {"blocked_ms": 10.1},  # its host waits: for a peer, for all that is known
        {"queue_ms": 10.1},  # it is ahead, so what its device waits for is not its own host
        {"bare_ms": 11.1},  # the devices wait for less than half of the step
        {"bare_ms": 10.1, "idle_ratio": 0.0},  # idle for other reasons than a launch
        {"message_bytes": None},  # calls may be of different sizes, and all of it transfer
        {"blocked_ms": 8, "stall_ms": 3},  # waiting for input is no launching
    ],
)
def test_one_host_that_waits_or_is_ahead_makes_it_a_peers(
    make_job: MakeJob, kind: dict[str, Any]
) -> None:
    assert RULE.run(paced(make_job, **kind)) == RuleOutcome()


def test_hosts_that_left_no_trace_may_be_what_the_others_wait_for(make_job: MakeJob) -> None:
    facts = paced(make_job)
    some = replace(facts, job=replace(facts.job, world_size=5))
    assert some.missing_ranks and RULE.run(some) == RuleOutcome()


def test_without_a_gpu_or_launches_it_says_so(make_job: MakeJob) -> None:
    on_host = RULE.run(make_job(measured_on="host").launching().facts())
    assert "GPU timeline" in on_host.not_checked[0].needs
    no_launches = RULE.run(make_job(idle_ms=40).facts())
    assert "launches" in no_launches.not_checked[0].needs


def test_a_window_without_steps_is_judged_as_one(make_window: MakeJob) -> None:
    (finding,) = RULE.run(make_window(idle_ms=40).launching().facts()).findings
    assert "waits 72.0 ms of the window (36 %)" in finding.summary
    assert finding.impact.per == "window"
    assert RULE.run(make_window(idle_ms=40).launching(host_wait_ratio=0.24).facts()) == (
        RuleOutcome()
    )


def test_waits_too_long_for_a_launch_count_in_steps_alone(
    make_window: MakeJob, make_job: MakeJob
) -> None:
    paused = {"host_pause_ratio": 0.7}  # 8 % of the window is left
    assert RULE.run(make_window(idle_ms=40).launching(**paused).facts()) == RuleOutcome()
    assert RULE.run(make_job(idle_ms=40).launching(**paused).facts()).findings


def test_a_device_that_idles_in_one_half_of_a_window_begins_or_ends(make_window: MakeJob) -> None:
    job = make_window(idle_ms=5).launching()
    for rank in range(4):
        job.add(rank, 0, "idle", 300)
    assert RULE.run(job.facts()) == RuleOutcome()
