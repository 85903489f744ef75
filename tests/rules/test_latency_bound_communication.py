"""latency-bound-communication: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest

from roll_up_rules import JOB, LARGE, LATENCY, MakeJob, latency, sizes, with_job
from tracekit.findings import Severity
from tracekit.rules.base import RuleOutcome


def test_many_small_messages_take_their_latency(make_job: MakeJob) -> None:
    facts = latency(make_job(comm_ms=20), sizes(LARGE, (100e3, 400, 30.0)))
    (finding,) = LATENCY.run(facts).findings
    # Their bytes would take 0.57 us each at the best bandwidth: 29.4 of 30 are latency.
    assert finding.impact.s_per_step == pytest.approx(400 * 29.43e-6, rel=1e-3)
    assert finding.severity is Severity.MINOR
    assert "400 tp all-reduce of 100 kB (30.0 us each)" in finding.summary


@pytest.mark.parametrize(("calls", "is_said"), [(171, True), (169, False)])
def test_from_a_twentieth_of_the_step(make_job: MakeJob, calls: int, is_said: bool) -> None:
    facts = latency(make_job(comm_ms=20), sizes(LARGE, (100e3, calls, 30.0)))
    assert bool(LATENCY.run(facts).findings) is is_said


@pytest.mark.parametrize(
    "rows",
    [
        sizes((100e3, 400, 30.0)),  # one size only: nothing to compare with
        sizes(LARGE, (4.1e6, 400, 100.0)),  # too large
        sizes(LARGE, (3e6, 400, 33.0)),  # its bytes take half of it
        sizes(LARGE) + sizes((100e3, 400, 30.0), peer_ratio=0.7),  # a slow link
        sizes(LARGE) + sizes((100e3, 400, 30.0), kind="dp"),  # another family's links
    ],
    ids=["one-size", "large", "bandwidth", "slow-link", "other-family"],
)
def test_what_is_not_latency(make_job: MakeJob, rows: list[dict[str, Any]]) -> None:
    assert LATENCY.run(latency(make_job(comm_ms=20), rows)) == RuleOutcome()


def test_hidden_latency_costs_nothing(make_job: MakeJob) -> None:
    rows = sizes(LARGE, (100e3, 400, 30.0))
    assert LATENCY.run(latency(make_job(comm_ms=20), rows, exposed=0.1)) == RuleOutcome()


def test_no_more_than_is_exposed_is_claimed(make_job: MakeJob) -> None:
    rows = sizes(LARGE, (100e3, 4000, 30.0))
    (finding,) = LATENCY.run(latency(make_job(comm_ms=20), rows)).findings
    assert finding.impact.s_per_step == pytest.approx(0.020)


def test_the_link_s_speed_will_do_where_the_description_gives_it(make_job: MakeJob) -> None:
    job = make_job(comm_ms=20)
    job.rows["traffic"] = [{"group_kind": "tp", "expected_domain": "nvlink"}]
    text = JOB.replace("[hardware]", "[hardware]\nnvlink_bytes_per_s = 300e9")
    latency(job, sizes((100e3, 400, 30.0)))
    assert LATENCY.run(with_job(job, text)).findings


def test_threads_of_the_host_are_no_links(make_job: MakeJob) -> None:
    facts = latency(make_job(), sizes(LARGE, (100e3, 400, 30.0), timeline="host"))
    assert LATENCY.run(facts).not_checked
    assert LATENCY.run(make_job().facts()).not_checked
