"""ecmp-collision: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from link_rules import COLLIDED, MakeJob, job_of, only, unmatched, uplinks
from tracekit.findings import Severity
from tracekit.rules import Facts, RuleOutcome, rule


def test_two_flows_on_one_uplink_name_the_switch_and_no_rank(make_job: MakeJob) -> None:
    facts = job_of(make_job, uplinks(2e8, 5e7, 1e8, 1.5e8))
    assert rule("ecmp-collision").run(facts) == RuleOutcome()
    finding = only(rule("ecmp-collision").run(job_of(make_job, uplinks(4e8, 0.0, 2e8, 2e8))))
    assert finding.id == "ecmp-collision/leaf"
    assert finding.scope.switches == ("leaf",)
    assert finding.scope.links == ("leaf:u0", "leaf:u1")
    assert finding.scope.ranks == () and finding.scope.hosts == ()
    assert finding.impact.step_ratio == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize(
    ("shares", "fires"),
    [
        ((300.0, 50.0, 250.0, 200.0), True),  # 1.5 times the mean, a quarter of it
        ((299.0, 50.0, 251.0, 200.0), False),
        ((300.0, 51.0, 249.0, 200.0), False),
    ],
)
def test_skew_and_idleness_both_count(
    make_job: MakeJob, shares: tuple[float, ...], fires: bool
) -> None:
    facts = job_of(make_job, uplinks(*shares, entered=1000.0))
    assert bool(rule("ecmp-collision").run(facts).findings) is fires


def test_background_on_uplinks_is_none(make_job: MakeJob) -> None:
    facts = job_of(make_job, uplinks(40.0, 0.0, 20.0, 20.0, entered=401.0))
    assert rule("ecmp-collision").run(facts) == RuleOutcome()


def test_an_uplink_that_is_down_is_idle_for_another_reason(make_job: MakeJob) -> None:
    levels = [{"node": "leaf", "port": "u1", "counter": "link_up", "max_value": 0.0}]
    facts = job_of(make_job, uplinks(2e8, 0.0, 1.5e8, 1.5e8), port_levels=levels)
    assert rule("ecmp-collision").run(facts) == RuleOutcome()


@pytest.mark.parametrize("far", [None, "elsewhere"])
def test_without_knowing_what_is_an_uplink_it_says_so(make_job: MakeJob, far: str | None) -> None:
    (missing,) = (
        rule("ecmp-collision").run(job_of(make_job, uplinks(4e8, 0.0, far=far))).not_checked
    )
    assert "between switches" in missing.needs


def test_without_traces_a_collision_is_a_note() -> None:
    facts = Facts(rows={"port_counters": uplinks(4e8, 0.0, 2e8, 2e8)})
    assert only(rule("ecmp-collision").run(facts)).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("called_ms", "waited_ms", "is_open"),
    [(40, 0, True), (1.27, 0, True), (1.25, 0, False), (40, 39, False), (40, 38.7, True)],
)
def test_a_collision_is_open_where_even_short_calls_outlast_their_bytes(
    make_job: MakeJob, called_ms: float, waited_ms: float, is_open: bool
) -> None:
    """By a hundredth of the step; long calls alone may be waiting for the rank without a trace."""
    finding = only(rule("ecmp-collision").run(unmatched(make_job, COLLIDED, called_ms, waited_ms)))
    assert finding.severity is Severity.NOTE and finding.impact.s_per_step is None
    assert bool(finding.next_capture) is is_open
    if is_open:
        assert finding.next_capture == ("profile rank 4 in the same steps",)


def test_calls_with_all_their_members_leave_no_price_open(make_job: MakeJob) -> None:
    facts = unmatched(make_job, COLLIDED, 40, 0)
    whole = job_of(make_job, COLLIDED).rows["group_bandwidth"]
    facts = replace(facts, rows={**facts.rows, "group_bandwidth": whole})
    finding = only(rule("ecmp-collision").run(facts))
    assert not finding.next_capture
    assert finding.impact.s_per_step is not None
