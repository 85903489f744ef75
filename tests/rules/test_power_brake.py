"""power-brake: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest
from logged_rules import SECOND, SUMMARY, episode

from gpu_rules import MHZ, gauge, only, reason, run
from tracekit.findings import Severity
from tracekit.rules import RuleOutcome


@pytest.mark.parametrize(("active", "fires"), [(5, True), (4, False)])
def test_a_brake_is_what_the_hardware_says(active: int, fires: bool) -> None:
    outcome = run("power-brake", gpu_throttle=[reason(3, "hw_power_brake", active)])
    assert bool(outcome.findings) is fires


@pytest.mark.parametrize(("clock", "fires"), [(1881, True), (1882, False)])
def test_one_reading_counts_where_the_clock_is_lost_as_well(clock: float, fires: bool) -> None:
    once = reason(3, "hw_power_brake", 100) | {"samples_count": 1, "active_count": 1}
    rows = [gauge(3, "sm_clock", clock * MHZ, 1980 * MHZ)]
    outcome = run("power-brake", gpu_throttle=[once], gpu_counters=rows)
    assert bool(outcome.findings) is fires
    assert not run("power-brake", gpu_throttle=[once], gpu_counters=[]).findings


def test_gpus_that_brake_together_are_one_finding() -> None:
    rows = [reason(i, "hw_power_brake", 50) for i in range(4)]
    finding = only(run("power-brake", gpu_throttle=rows))
    assert len(finding.scope.devices) == 4
    assert finding.id == "power-brake/h0"
    assert finding.severity is Severity.MINOR


def test_a_brake_while_the_log_is_slow_costs_the_job_what_the_log_lost() -> None:
    times = {"first_ns": 1000 * SECOND, "last_ns": 2000 * SECOND}
    rows = [reason(i, "hw_power_brake", 50) | times for i in range(4)]
    row = episode("risen", 900, start_ns=1000 * SECOND, end_ns=2000 * SECOND, dur_ns=2 * SECOND)
    log = {"job_step_summary": [SUMMARY], "slow_episode": [row]}
    finding = only(run("power-brake", gpu_throttle=rows, **log))
    assert (finding.impact.per, finding.impact.s_per_step) == ("job", 900)
    assert "took 100 % longer than usual (2.00 s against 1.00 s)" in finding.summary


@pytest.mark.parametrize(
    ("clock", "capped", "fires"),
    [(1881, 100, True), (1882, 100, False), (1881, 50, True), (1881, 49, False)],
)
def test_a_power_cap_counts_only_where_the_clock_falls_behind(
    clock: float, capped: int, fires: bool
) -> None:
    rows = [gauge(3, "sm_clock", clock * MHZ, 1980 * MHZ)]
    outcome = run(
        "power-brake", gpu_throttle=[reason(3, "sw_power_cap", capped)], gpu_counters=rows
    )
    assert bool(outcome.findings) is fires


def test_a_capped_gpu_that_is_hot_is_the_other_rules() -> None:
    rows = [gauge(3, "sm_clock", 1000 * MHZ, 1980 * MHZ)]
    reasons = [reason(3, "sw_power_cap", 100), reason(3, "hw_thermal", 1)]
    assert run("power-brake", gpu_throttle=reasons, gpu_counters=rows) == RuleOutcome()


def test_a_lower_limit_is_named() -> None:
    rows = [
        gauge(3, "sm_clock", 1000 * MHZ, 1980 * MHZ),
        gauge(3, "power_limit", 400, 700),
    ]
    finding = only(
        run("power-brake", gpu_throttle=[reason(3, "sw_power_cap", 100)], gpu_counters=rows)
    )
    assert "its limit is 400 W, its peers' 700" in finding.summary


def limited(limit: float = 150, drawn: float = 149, peers: float = 291) -> RuleOutcome:
    """A GPU beside peers of 300 W, as one ``nvidia-smi`` shows it: no clock, no reasons."""
    rows = [gauge(3, "power_limit", limit, 300), gauge(3, "power", drawn, peers)]
    return run("power-brake", gpu_counters=rows)


def test_a_limit_below_the_peers_that_is_drawn_whole_needs_no_reasons() -> None:
    finding = only(limited())
    assert finding.summary == (
        "GPU 3 of h0 draws all of its power limit, 150 W; its peers may draw 300 W and draw 291."
    )
    assert finding.severity is Severity.MINOR


@pytest.mark.parametrize(
    ("given", "fires"),
    [
        ({"limit": 270, "drawn": 270, "peers": 291}, True),
        ({"limit": 271, "drawn": 271, "peers": 291}, False),  # no other limit
        ({"drawn": 142.5}, True),
        ({"drawn": 142.4}, False),  # it is not held by it
        ({"peers": 150}, False),  # nor would it draw more without it
    ],
)
def test_a_lower_limit_counts_where_it_holds_the_gpu(given: dict[str, float], fires: bool) -> None:
    assert bool(limited(**given).findings) is fires


def test_a_capped_gpu_with_a_lower_limit_is_one_finding() -> None:
    rows = [
        gauge(3, "sm_clock", 1000 * MHZ, 1980 * MHZ), gauge(3, "power_limit", 150, 300),
        gauge(3, "power", 149, 291),
    ]  # fmt: skip
    reasons = [reason(3, "sw_power_cap", 100)]
    assert (
        "slower than its peers"
        in only(run("power-brake", gpu_throttle=reasons, gpu_counters=rows)).summary
    )
    assert run("power-brake", gpu_counters=rows[:1]).not_checked
