"""slow-gpu: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest
from late_jobs import MakeJob, late_job, part
from logged_rules import SECOND, SUMMARY

from excess_rules import GPU as EXCESS_GPU
from excess_rules import WORK, facts_of
from gpu_rules import MHZ, SLOW, active, gauge, growth, named, only, reason, run, xid
from lateness_rules import GPU, HOST, slow_gpu_job
from tracekit.findings import Severity
from tracekit.rules import configured
from tracekit.rules.base import RuleOutcome


def test_the_busiest_beside_a_lost_clock_is_a_suspect() -> None:
    found = only(run("slow-gpu", gpu_counters=[*active(), SLOW]))
    assert found.severity is Severity.MINOR
    assert found.confidence.level == "possible"
    assert found.impact.s_per_step is None
    assert found.scope.devices == ("h0 GPU 3",) and not found.scope.ranks
    assert found.candidates.ranks == (0, 1)
    assert found.summary == (
        "GPU 3 of h0 does not wait for its peers (1.40x as active as they are), and its clock is "
        "1500 MHz against 1980."
    )


@pytest.mark.parametrize(
    "evidence",
    [
        {"gpu_counters": [gauge(3, "power", 540, 600)]},
        {"gpu_throttle": [reason(3, "hw_power_brake", 50)]},
        {"gpu_throttle": [reason(3, "sw_thermal", 0, held=0.05)]},
        {"gpu_growth": [growth(3, "remapped_rows_uncorrectable", 1.0)]},
        {"gpu_events": [xid(3, 63)]},
    ],
)
def test_power_heat_and_memory_are_reasons_too(evidence: dict[str, Any]) -> None:
    given = {**evidence, "gpu_counters": [*active(), *evidence.get("gpu_counters", ())]}
    assert only(run("slow-gpu", **given)).scope.devices == ("h0 GPU 3",)


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"gpu_counters": [gauge(3, "sm_clock", 1900 * MHZ, 1980 * MHZ)]},
        {"gpu_counters": [gauge(3, "power", 560, 600)]},
        {"gpu_counters": [gauge(2, "sm_clock", 1500 * MHZ, 1980 * MHZ)]},  # another's reason
        {"gpu_throttle": [reason(3, "sw_power_cap", 100)]},  # normal at full load
        {"gpu_throttle": [reason(3, "hw_thermal", 4)]},
        {"gpu_growth": [growth(3, "ecc_sbe_volatile", 500.0)]},  # corrected: normal
        {"gpu_events": [xid(3, 13)]},  # the program's
        {"gpu_events": [xid(3, 63, is_in_window=False)]},
    ],
)
def test_the_busiest_without_a_reason_is_nobody_s_fault(evidence: dict[str, Any]) -> None:
    given = {**evidence, "gpu_counters": [*active(), *evidence.get("gpu_counters", ())]}
    outcome = run("slow-gpu", **given)
    assert not outcome.findings and not outcome.not_checked


@pytest.mark.parametrize(
    "compared",
    [
        active(ratio=1.09),
        active(below=0.21),
        active(moments_count=9),
        active(peers_count=2),
        active(total_ratio=None),
        [gauge(i, "sm_active", 0.6, 0.6) for i in range(4)],  # healthy twin
    ],
)
def test_just_below_the_busiest_is_silent(compared: list[dict[str, Any]]) -> None:
    assert not run("slow-gpu", gpu_counters=[*compared, SLOW]).findings


def in_stretch(index: int, mhz: float, **more: Any) -> dict[str, Any]:
    """A GPU's clock in a slow stretch of the log, 1980 MHz at other times."""
    return named(index) | {
        "first_step": 1000, "last_step": 2000, "start_ns": 0, "end_ns": 1000 * SECOND,
        "lost_ns": 1730 * SECOND, "usual_ns": SECOND, "dur_ns": 1.25 * SECOND, "alike": "A",
        "samples_count": 10, "mean_hz": mhz * MHZ, "usual_samples_count": 90,
        "usual_mean_hz": 1980 * MHZ, "use_ratio": 0.98,
    } | more  # fmt: skip


PEERS = [in_stretch(i, 1980) for i in range(3)]


def beside_a_log(*rows: dict[str, Any]) -> RuleOutcome:
    counters = [gauge(i, "sm_clock", 1980 * MHZ, 1980 * MHZ) for i in range(4)]
    log = {"job_step_summary": [SUMMARY], "episode_clocks": list(rows)}
    return run("slow-gpu", gpu_counters=counters, **log)


def test_a_clock_that_fell_in_a_slow_stretch_of_the_log_alone_is_why() -> None:
    found = only(beside_a_log(*PEERS, in_stretch(3, 1200)))
    assert found.summary == (
        "GPU 3 of h0 ran at 1200 MHz in steps 1,000 to 2,000 of the training log, at 1980 "
        "otherwise, and its peers kept 100 % of theirs; those steps took 25 % longer than usual "
        "(1.25 s against 1.00 s)."
    )
    assert (found.impact.per, found.impact.s_per_step) == ("job", 1730)
    assert (found.severity, found.confidence.level) == (Severity.MINOR, "likely")


@pytest.mark.parametrize(
    ("rows", "fires"),
    [
        ([*PEERS, in_stretch(3, 1683)], True),  # 0.85 of its own
        ([*PEERS, in_stretch(3, 1684)], False),
        ([*PEERS, in_stretch(3, 1200, use_ratio=0.5)], True),
        ([*PEERS, in_stretch(3, 1200, use_ratio=0.49)], False),  # it idles
        ([*PEERS, in_stretch(3, 1200, use_ratio=None)], True),
        ([*PEERS, in_stretch(3, 1200, samples_count=9)], False),
        ([*PEERS, in_stretch(3, 1200, usual_mean_hz=None)], False),
        ([*PEERS[1:], in_stretch(3, 1200)], False),  # two peers
        ([*PEERS, in_stretch(3, 1200, alike="B")], False),  # none of its kind
        ([in_stretch(i, 1200) for i in range(4)], False),  # all of them
        (PEERS, False),  # healthy twin
        ([], False),
    ],
)
def test_which_clock_in_a_slow_stretch_is_held(rows: list[dict[str, Any]], fires: bool) -> None:
    outcome = beside_a_log(*rows)
    assert bool(outcome.findings) == fires
    assert bool(outcome.not_checked) != fires  # nothing tells of its activity


IN_USE = gauge(3, "gpu_utilisation", 0.95, 1.0)
HELD = gauge(3, "sm_clock", 1683 * MHZ, 1980 * MHZ)


def test_a_clock_far_below_that_of_peers_as_much_in_use_is_slow() -> None:
    hot = gauge(3, "gpu_temperature", 87, 60)
    found = only(run("slow-gpu", gpu_counters=[IN_USE, HELD, hot]))
    assert found.severity is Severity.MAJOR
    assert found.confidence.level == "possible"
    assert found.scope.devices == ("h0 GPU 3",)
    assert found.summary == (
        "GPU 3 of h0 is as much in use as its peers, and its clock is 1683 MHz against 1980 and it "
        "is at 87 C against 60."
    )
    assert [e.value for e in found.evidence] == [pytest.approx(0.85), 27]
    warm = gauge(3, "gpu_temperature", 69, 60)
    assert len(only(run("slow-gpu", gpu_counters=[IN_USE, HELD, warm])).evidence) == 1


@pytest.mark.parametrize(
    "rows",
    [
        [gauge(3, "gpu_utilisation", 1, 0.5)],  # utilisation alone proves nothing
        [HELD],  # whether it has as much to do is not known
        [gauge(3, "gpu_utilisation", 0.94, 1.0), HELD],
        [IN_USE, gauge(3, "sm_clock", 1684 * MHZ, 1980 * MHZ)],
        [IN_USE, HELD | {"busy_below_ratio": 0.79}],
        [IN_USE, HELD | {"busy_below_ratio": None, "below_ratio": 0.79}],
        [IN_USE, HELD | {"peers_count": 2}],
        [IN_USE, HELD | {"moments_count": 9}],
        [gauge(2, "gpu_utilisation", 1.0, 1.0), HELD],  # another's
        [gauge(i, "sm_clock", 1980 * MHZ, 1980 * MHZ) for i in range(4)],  # healthy twin
    ],
)
def test_without_activity_anything_less_than_that_is_not_judged(rows: list[dict[str, Any]]) -> None:
    outcome = run("slow-gpu", gpu_counters=rows)
    (lack,) = outcome.not_checked
    assert lack.needs == "a GPU timeline, or the SM activity of GPUs (DCGM 1002)"
    assert not outcome.findings


def test_where_activity_is_known_a_clock_alone_is_no_reason() -> None:
    rows = [IN_USE, HELD, gauge(3, "sm_active", 0.6, 0.6)]
    assert not run("slow-gpu", gpu_counters=rows).findings


def test_without_counters_it_needs_a_timeline() -> None:
    (lack,) = run("slow-gpu").not_checked
    assert lack.needs == "a GPU timeline (these ranks show none)"


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


@pytest.mark.parametrize(("times", "is_slow"), [(1.5, False), (1.4, True)])
def test_larger_kernels_are_more_work(make_job: MakeJob, times: float, is_slow: bool) -> None:
    """20 ms more in as many kernels: of 1.5 times the threads half of it is theirs."""
    kernel = part("kernel", "gemm", ms=40, peer_ms=20, timeline="device", input_ratio=times)
    facts = facts_of(make_job, kernel, compute=1.25, compute_ms={2: 20})
    assert bool(EXCESS_GPU.run(facts).findings) is is_slow
    more = WORK.run(facts).findings
    assert [f.scope.ranks for f in more] == ([] if is_slow else [(2,)])
    assert is_slow or "larger calls of gemm (1.5x those of its peers)" in more[0].summary


def test_experts_make_work_uneven(make_job: MakeJob) -> None:
    job = slow_gpu_job(make_job)
    job.rows["comm_summary"] = [{"rank": 0, "op": "all_to_all"}]
    assert "experts" in GPU.run(job.facts()).not_checked[0].needs


def test_without_a_gpu_timeline_no_gpu_is_slow(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 25}, compute=1.3, measured_on="host")
    assert "GPU timeline" in GPU.run(job.facts()).not_checked[0].needs


def test_a_slow_gpu_says_which_kernels_take_longer(make_job: MakeJob) -> None:
    kernel = part("kernel", "gemm", ms=40, peer_ms=20, timeline="device", calls_count=1.0)
    slow = dict.fromkeys([2], 20)
    (found,) = EXCESS_GPU.run(facts_of(make_job, kernel, compute=1.25, compute_ms=slow)).findings
    assert ": gemm takes 2.0x at as many calls: 40.0 ms in every step, 20.0" in found.summary


def in_stages(make_job: MakeJob) -> Any:
    """Three stages of eight ranks. Rank 17 takes 20 ms more than its stage, which the waiting for
    the second stage hides, and as long as the ranks of the others, which have more to compute."""
    delays = {r: (1.0, 15.0, 4.0)[r // 8] for r in range(24)} | {17: 16.0}
    job = late_job(
        make_job, delays, stages={r: r // 8 for r in range(24)}, peer=1.0, compute=1.0,
        compute_ms={17: 20}, ranks_count=24,
    )  # fmt: skip
    job.rows["straggler"][17] |= {"peer_ratio": 1.3, "compute_ratio": 1.3}
    for rank in range(16):
        for step in job.steps:
            job.add(rank, step, "compute", 20)
    return job


def test_a_gpu_that_other_stages_hide_is_set_against_its_own(make_job: MakeJob) -> None:
    job = in_stages(make_job)
    (finding,) = GPU.run(job.facts()).findings
    assert finding.scope.ranks == (17,)
    for row in job.rows["straggler"]:
        row["stage"] = None
    assert not GPU.run(job.facts()).findings


def test_more_kernels_than_those_of_its_stage_are_more_work(make_job: MakeJob) -> None:
    job = in_stages(make_job)
    job.rows["kernel_summary"] = [
        {"rank": r, "class": "compute", "calls_count": 120 if r == 17 or r < 16 else 100}
        for r in range(24)
    ]
    assert GPU.run(job.facts()) == RuleOutcome()
