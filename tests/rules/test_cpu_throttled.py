"""cpu-throttled: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest
from host_rules import SECOND, MakeJob, in_steps, lacking_job, logged, pressure, stretch
from late_jobs import MS, part
from logged_rules import SUMMARY
from msgspec.structs import replace

from tracekit.findings import Severity, When
from tracekit.rules import JobFacts, rule
from tracekit.rules.base import Facts, RuleOutcome

RULE = rule("cpu-throttled")


def test_a_quota_that_runs_out_in_the_late_steps_names_the_host(make_job: MakeJob) -> None:
    (found,) = RULE.run(lacking_job(make_job, "quota", cgroup="/job")).findings
    assert found.id == "cpu-throttled/2"
    assert (found.scope.ranks, found.scope.hosts) == ((2,), ("h1",))
    assert (
        "h1, control group /job, ran out of their CPU quota for 50 % of its periods in 10 steps"
        in found.summary
    )
    assert found.confidence.level == "likely"
    assert found.impact.s_per_step == pytest.approx(0.025)


@pytest.mark.parametrize("resource", ["cpu", "steal"])
def test_a_wait_for_cpus_and_stolen_time_do_too(make_job: MakeJob, resource: str) -> None:
    (found,) = RULE.run(lacking_job(make_job, resource)).findings
    assert found.scope.hosts == ("h1",)


def test_half_of_the_delay_must_be_covered(make_job: MakeJob) -> None:
    """25 of 125 ms are 20 % of a step, and half of that is 10 %."""
    assert RULE.run(lacking_job(make_job, "quota", here=0.1001)).findings
    assert not RULE.run(lacking_job(make_job, "quota", here=0.0999)).findings


def test_what_other_hosts_wait_as_well_explains_nothing(make_job: MakeJob) -> None:
    assert RULE.run(lacking_job(make_job, "cpu", here=0.5, there=0.399)).findings
    assert RULE.run(lacking_job(make_job, "cpu", here=0.5, there=0.401)) == RuleOutcome()


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"late_ms": 0}, id="nobody is late"),
        pytest.param({"compute": 1.05}, id="its GPU computes longer"),
        pytest.param(
            {
                "excess": [
                    part(
                        "operator",
                        "aten::mm",
                        ms=50,
                        peer_ms=25,
                        calls_count=6.0,
                        peer_calls_count=3.0,
                    )
                ]
            },
            id="it does more",
        ),
        pytest.param(
            {
                "checkpoint_stall": [
                    {"rank": 2, "attempt": 1, "capture_id": 0, "step": s, "exposed_ns": 13 * MS}
                    for s in range(1, 11)
                ]
            },
            id="a checkpoint explains half of it",
        ),
        pytest.param({"steps": in_steps("h0", "quota", 0.5)}, id="the other host waited"),
        pytest.param({"steps": in_steps("h9", "quota", 0.9)}, id="a host without ranks"),
        pytest.param(
            {"steps": in_steps("h1", "quota", 0.9, range(1, 5))}, id="most steps are not covered"
        ),
        pytest.param({"steps": in_steps("h1", "quota", 0.9, covered=0.49)}, id="half covered"),
        pytest.param({"steps": in_steps("h1", "memory", 0.9)}, id="it lacked another thing"),
    ],
)
def test_what_is_no_want_of_cpu(make_job: MakeJob, given: dict[str, Any]) -> None:
    assert RULE.run(lacking_job(make_job, "quota", **given)) == RuleOutcome()


def test_waiting_in_the_steps_in_which_nobody_was_late_is_not_the_reason(
    make_job: MakeJob,
) -> None:
    late = range(3, 7)
    other = [*in_steps("h1", "cpu", 0.3, late), *in_steps("h1", "cpu", 0.6, (1, 2, 7, 8, 9, 10))]
    same = [*in_steps("h1", "cpu", 0.6, late), *in_steps("h1", "cpu", 0.0, (1, 2, 7, 8, 9, 10))]
    given: dict[str, Any] = {"late_ms": 60, "late_steps": late, "there": 0.0}
    assert not RULE.run(lacking_job(make_job, "cpu", steps=other, **given)).findings
    (found,) = RULE.run(lacking_job(make_job, "cpu", steps=same, **given)).findings
    assert found.scope.steps == ((3, 6),)


def test_groups_side_by_side_may_be_others_and_nested_ones_are_the_job_s(
    make_job: MakeJob,
) -> None:
    tenant = lacking_job(make_job, "quota", cgroup="/a", more=[pressure("h1", "quota", 0.0, "/ab")])
    assert RULE.run(tenant) == RuleOutcome()
    nested = lacking_job(
        make_job, "quota", cgroup="/a", more=[pressure("h1", "quota", 0.0, "/a/b")]
    )
    assert RULE.run(nested).findings


def test_without_other_hosts_counters_only_what_no_task_can_make_itself_counts(
    make_job: MakeJob,
) -> None:
    assert RULE.run(lacking_job(make_job, "quota", there=None)).findings
    assert RULE.run(lacking_job(make_job, "cpu", there=None)) == RuleOutcome()
    one = dict.fromkeys(range(4), "h1")
    assert RULE.run(lacking_job(make_job, "quota", there=None, hosts=one)) == RuleOutcome()


def test_a_stretch_of_the_log_in_which_one_host_waited() -> None:
    rows = (stretch("h1", "cpu", 0.6), stretch("h0", "cpu", 0.05))
    (found,) = RULE.run(logged("cpu", *rows)).findings
    assert (found.id, found.scope.hosts, found.scope.ranks) == ("cpu-throttled/h1", ("h1",), ())
    assert "In steps 1,000 to 3,880 of the log the job loses 12 min" in found.summary
    assert found.when.start_utc == "1970-01-01T00:16:40.000000Z"
    assert found.severity is Severity.NOTE  # 720 s of a day
    assert (found.impact.per, found.impact.s_per_step) == ("job", 720)
    (local,) = RULE.run(logged("cpu", *rows, is_epoch=False)).findings
    assert local == replace(found, when=When())  # of which zone its times are nobody says
    of_traces = replace(logged("cpu", *rows), job=JobFacts(hosts={0: "h0", 1: "h1"}))
    (beside_traces,) = RULE.run(of_traces).findings
    assert beside_traces.impact.s_per_step is None


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([stretch("h1", "cpu", 0.099)], id="under half of what is lost"),
        pytest.param([stretch("h1", "cpu", 0.6, usual_worst_ratio=0.51)], id="so at other times"),
        pytest.param([stretch("h1", "cpu", 0.6), stretch("h0", "cpu", 0.6)], id="so on others"),
        pytest.param([stretch("h1", "cpu", 0.6, covered_ratio=0.49)], id="half covered"),
        pytest.param(
            [stretch("h1", "cpu", 0.6, usual_covered_ns=3599 * SECOND)], id="little else is known"
        ),
        pytest.param(
            [stretch("h1", "cpu", 0.6, usual_worst_ratio=None)], id="nothing else is known"
        ),
        pytest.param([stretch("h1", "memory", 0.6)], id="another thing"),
        pytest.param([stretch(None, "cpu", 0.6)], id="nobody knows whose it is"),
        pytest.param([], id="a healthy log"),
    ],
)
def test_what_a_log_does_not_show(rows: list[dict[str, Any]]) -> None:
    assert RULE.run(logged("cpu", *rows)) == RuleOutcome()


def test_just_over_those_limits() -> None:
    assert RULE.run(logged("cpu", stretch("h1", "cpu", 0.101))).findings
    assert RULE.run(logged("cpu", stretch("h1", "cpu", 0.6, usual_worst_ratio=0.49))).findings


def test_a_machine_that_nobody_named_is_its_file() -> None:
    unnamed = {"host": None, "own_source_id": 9}
    facts = Facts(
        rows={
            "job_step_summary": [SUMMARY],
            "host_pressure": [pressure("h1", "quota", 0.1) | unnamed],
            "episode_pressure": [stretch(None, "quota", 0.6, own_source_id=9)],
        },
        sources={9: "job/cpu.stat"},
    )
    (finding,) = RULE.run(facts).findings
    assert "tasks of the machine of job/cpu.stat ran out of their CPU quota" in finding.summary
    assert finding.scope.hosts == ()
    # Of a job whose hosts are known it may be none of them.
    known = replace(facts, job=JobFacts(hosts={0: "h0"}))
    assert not RULE.run(known).findings


def test_it_says_what_it_lacks(make_job: MakeJob) -> None:
    assert "how long tasks" in RULE.run(lacking_job(make_job, "memory")).not_checked[0].needs
    bare = Facts(rows={"host_pressure": [pressure("h1", "cpu", 0.5)]})
    assert "training log" in RULE.run(bare).not_checked[0].needs
