"""latency-bound-communication: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from roll_up_rules import JOB, LARGE, LATENCY, MakeJob, latency, sizes, with_job
from tracekit.findings import Severity
from tracekit.rules.base import Facts, RuleOutcome


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


def on_threads(
    job: Any, *calls: tuple[str, int | None, float], us: float = 500.0, more_us: float = 0.0
) -> Facts:
    """Operation, bytes and calls a step, on threads of the host; the mean is ``more_us`` longer
    than the median. Ranks 0 and 1 of four; the others have one large call a step."""
    job.rows["comm_summary"] = [
        {"rank": rank, "op": op, "message_bytes": size, "timeline": "host",
         "calls_count": each * len(job.steps), "p50_ns": us * 1e3, "mean_ns": (us + more_us) * 1e3}
        for rank in range(job.ranks_count)
        for op, size, each in (*calls, ("all_reduce", 100_000_000, 1))
    ]  # fmt: skip
    found: Facts = job.facts()
    return found


def host_job(make_job: MakeJob) -> Any:
    return make_job(measured_on="host", comm_ms=20)


def test_many_calls_that_carry_nothing_are_told_of_a_job_without_gpus(make_job: MakeJob) -> None:
    """6 ms of 100 where nobody waits, 9 as recorded."""
    calls = (("all_reduce", 4, 8), ("barrier", None, 4))
    (finding,) = LATENCY.run(on_threads(host_job(make_job), *calls, more_us=250)).findings
    assert finding.severity is Severity.MINOR
    assert finding.impact.s_per_step == pytest.approx(0.009)
    assert finding.impact.low_s_per_step == pytest.approx(0.006)
    assert "8 all-reduce of 0.004 kB (500 us each) and 4 barrier (500 us each)" in finding.summary
    assert not finding.scope.ranks


@pytest.mark.parametrize(
    ("call", "us", "is_said"),
    [
        (("all_reduce", 4096, 10), 500, True),
        (("all_reduce", 4097, 10), 500, False),  # not next to nothing
        (("all_reduce", 4, 9), 600, False),  # few
        (("all_reduce", 4, 10), 499, False),  # under a twentieth of the step
        (("all_reduce", None, 10), 500, False),  # of unknown size
        (("barrier", None, 10), 500, True),
    ],
)
def test_just_below_each_limit_small_calls_are_left(
    make_job: MakeJob, call: tuple[str, int | None, float], us: float, is_said: bool
) -> None:
    outcome = LATENCY.run(on_threads(host_job(make_job), call, us=us))
    assert bool(outcome.findings) is is_said
    assert not outcome.not_checked


def test_calls_of_one_rank_alone_are_not_what_the_job_does(make_job: MakeJob) -> None:
    facts = on_threads(host_job(make_job), ("all_reduce", 4, 10))
    alone = [r for r in facts.rows["comm_summary"] if r["rank"] == 0 or r["message_bytes"] > 4]
    assert LATENCY.run(replace(facts, rows={**facts.rows, "comm_summary": alone})) == RuleOutcome()


def test_without_any_size_nothing_is_said_of_threads(make_job: MakeJob) -> None:
    facts = on_threads(host_job(make_job), ("barrier", None, 10))
    unsized = [{**row, "message_bytes": None} for row in facts.rows["comm_summary"]]
    outcome = LATENCY.run(replace(facts, rows={**facts.rows, "comm_summary": unsized}))
    assert outcome.not_checked and not outcome.findings
