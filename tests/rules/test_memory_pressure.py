"""memory-pressure: when it fires, when just not, and what exempts; the rest is cpu-throttled's."""

from __future__ import annotations

from host_rules import MakeJob, in_steps, lacking_job, logged, stretch

from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome

RULE = rule("memory-pressure")


def test_waiting_for_memory_in_the_late_steps_names_the_host(make_job: MakeJob) -> None:
    (found,) = RULE.run(lacking_job(make_job, "memory")).findings
    assert (found.scope.ranks, found.scope.hosts) == ((2,), ("h1",))
    assert "waited for memory for 50 % of the time in 10 steps" in found.summary


def test_it_must_cover_half_of_the_delay_and_be_unlike_other_hosts(make_job: MakeJob) -> None:
    assert RULE.run(lacking_job(make_job, "memory", here=0.1001)).findings
    assert RULE.run(lacking_job(make_job, "memory", here=0.0999)) == RuleOutcome()
    assert RULE.run(lacking_job(make_job, "memory", there=0.5)) == RuleOutcome()


def test_pressure_where_nobody_is_late_or_another_s_is_nothing(make_job: MakeJob) -> None:
    assert RULE.run(lacking_job(make_job, "memory", late_ms=0)) == RuleOutcome()
    assert RULE.run(lacking_job(make_job, "memory", compute=1.2)) == RuleOutcome()
    other = in_steps("h0", "memory", 0.9)
    assert RULE.run(lacking_job(make_job, "memory", steps=other)) == RuleOutcome()


def test_a_want_of_cpu_is_not_its_own(make_job: MakeJob) -> None:
    (missing,) = RULE.run(lacking_job(make_job, "cpu")).not_checked
    assert "waited for memory" in missing.needs


def test_hours_of_reclaim_in_a_slow_stretch() -> None:
    (found,) = RULE.run(logged("memory", stretch("h1", "memory", 0.4))).findings
    assert found.scope.hosts == ("h1",)
    assert RULE.run(logged("memory")) == RuleOutcome()


def test_it_says_what_it_lacks() -> None:
    (missing,) = RULE.run(Facts()).not_checked
    assert (missing.rule, missing.capture) == ("memory-pressure", "tracekit capture --what host")
    assert "host counters" in missing.needs
