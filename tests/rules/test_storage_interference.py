"""storage-interference: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest
from pytest import approx

from link_rules import NAME, MakeJob, classes, job_of, only, port, unmatched
from tracekit.findings import Severity
from tracekit.rules import RuleOutcome, rule


def test_a_host_whose_links_storage_shares(make_job: MakeJob) -> None:
    finding = only(rule(NAME).run(job_of(make_job, classes({2: 2.5e9, 3: 2.5e9}, 3e9))))
    assert finding.scope.hosts == ("h1",)
    assert finding.scope.ranks == (2, 3)
    assert finding.id == f"{NAME}/h1"
    # A tenth of the link for the whole step, at 0.8 of its speed, though the transfers lost more.
    assert finding.impact.s_per_step == pytest.approx(0.0125)


@pytest.mark.parametrize(
    ("in_steps_ratio", "cost_s"),
    [(1.0, 0.0125), (1.5, 0.01875), (0.1, 0.00125), (0.07, None)],
)
def test_what_others_send_beside_the_steps_costs_them_nothing(
    make_job: MakeJob, in_steps_ratio: float, cost_s: float | None
) -> None:
    """Readings go on before and after the steps: 2.5 GB a second over all of them."""
    rows = classes({2: 2.5e9, 3: 2.5e9}, 3e9)
    for row in rows:
        if row["queue"] == 0:
            row["step_growth"] *= in_steps_ratio
    found = rule(NAME).run(job_of(make_job, rows)).findings
    assert [f.impact.s_per_step for f in found] == ([] if cost_s is None else [approx(cost_s)])


@pytest.mark.parametrize(
    ("foreign", "own", "fires"),
    [
        ({2: 2.49e9}, 3e9, False),  # under a tenth of 25 GB/s
        ({2: 2.5e9}, 10e9, True),
        ({2: 2.5e9}, 10.1e9, False),  # under a fifth of the port's bytes
        ({2: 2.5e9, 0: 0.26e9}, 3e9, False),  # the other host has a tenth of it too
        ({0: 2.6e9, 1: 2.6e9, 2: 2.6e9, 3: 2.6e9}, 3e9, True),  # all alike
    ],
)
def test_how_much_of_another_class_is_too_much(
    make_job: MakeJob, foreign: dict[int, float], own: float, fires: bool
) -> None:
    rows = [{"group_id": "g", "timeline": "device", "transfer_p50_ns": 25e6, "instances_count": 40,
             "transfer_mean_ns": 25e6, "transfer_p25_ns": 25e6,
             "steps_count": 10, "stuck_ns": 0.0}]  # fmt: skip
    facts = job_of(make_job, classes(foreign, own), group_bandwidth=rows)
    assert bool(rule(NAME).run(facts).findings) is fires


def test_a_link_that_is_shared_and_not_full_costs_nothing(make_job: MakeJob) -> None:
    # 4 ms of transfers for 4 ms' worth of bytes: nothing is lost.
    rows = [{"group_id": "g", "timeline": "device", "transfer_p50_ns": 1e6, "instances_count": 50,
             "transfer_mean_ns": 1e6, "transfer_p25_ns": 1e6,
             "steps_count": 10, "stuck_ns": 0.0}]  # fmt: skip
    facts = job_of(make_job, classes({2: 2.5e9}, own=1e9), group_bandwidth=rows)
    assert rule(NAME).run(facts) == RuleOutcome()


def test_without_classes_or_speeds_it_says_what_it_needs(make_job: MakeJob) -> None:
    (plain,) = rule(NAME).run(job_of(make_job, [port("p0", "tx_bytes", 1.0)])).not_checked
    assert "of this kind" in plain.needs
    facts = job_of(make_job, classes({2: 2.5e9}), port_levels=[])
    assert "speed of their links" in rule(NAME).run(facts).not_checked[0].needs


@pytest.mark.parametrize(("called_ms", "fires"), [(16.1, True), (15.9, False), (0.0, False)])
def test_storage_is_an_open_note_where_calls_outlast_their_bytes(
    make_job: MakeJob, called_ms: float, fires: bool
) -> None:
    """It may come and go, so all calls count: 3 GB a second of the job's own need 15 ms."""
    facts = unmatched(make_job, classes({2: 2.5e9, 3: 2.5e9}, 3e9), called_ms, called_ms)
    found = rule(NAME).run(facts).findings
    assert [f.scope.hosts for f in found] == ([("h1",)] if fires else [])
    for finding in found:
        assert finding.severity is Severity.NOTE and finding.impact.s_per_step is None
        assert finding.next_capture == ("profile rank 4 in the same steps",)
