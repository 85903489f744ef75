"""Windows without steps, as rules see them: one step, of what both of its halves show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracekit.findings import Severity
from tracekit.rules import RULES, rule
from tracekit.rules.base import RuleOutcome
from tracekit.rules.windows import NOT_MARKED

MakeJob = Callable[..., Any]
BOTH = (0, 1)
STALLS = {
    "sync_stall": ("sync-stall", "its GPU idles 40.0 ms until"),
    "allocator_stall": ("allocator-stall", "stops for 40.0 ms"),
    "gc_pause": ("gc-pause", "stops for 40.0 ms"),
    "input_stall": ("dataloader-stall", "waits 40.0 ms for input"),
}


def test_the_smaller_share_of_the_two_halves_counts_for_the_whole(make_window: MakeJob) -> None:
    job = make_window(ranks_count=1)
    job.add(0, 0, "idle", 100)  # 110 of 200 ms in the first half, 10 of 100 in the second
    windows = job.facts().over_windows
    assert windows is not None
    (key,) = windows.steps.keys
    step = windows.steps.by_key[key][0]
    assert (step.dur_ns, step.idle_ns, step.memory_ns) == (300_000_000, 30_000_000, 7_500_000)
    assert step.compute_ns + step.exposed_comm_ns + step.memory_ns + step.idle_ns == step.dur_ns
    assert windows.step_ns == 300_000_000


def test_a_half_without_time_or_none_is_no_window(make_window: MakeJob, make_job: MakeJob) -> None:
    job = make_window(ranks_count=1)
    job.parts[0, 1] = dict.fromkeys(job.parts[0, 1], 0)
    assert job.facts().over_windows is None
    assert make_job().facts().over_windows is None


@pytest.mark.parametrize("query", STALLS)
def test_a_stall_in_both_halves_is_found_and_costs_its_share(
    query: str, make_window: MakeJob
) -> None:
    name, words = STALLS[query]
    job = make_window(ranks_count=1).stall(query, [0], BOTH, 20)
    (finding,) = rule(name).run(job.facts()).findings
    assert words in finding.summary
    assert "over the window of 240 ms" in finding.summary
    assert "step" not in finding.summary
    assert finding.impact.per == "window"
    assert finding.impact.s_per_step == pytest.approx(0.040)
    assert finding.severity is Severity.MAJOR
    assert NOT_MARKED in finding.confidence.basis
    assert finding.scope.steps == ()
    assert finding.when.start_utc is not None
    assert all(e.params == {"over": "windows"} for e in finding.evidence)
    assert finding.evidence[0].rows


@pytest.mark.parametrize("half", BOTH)
@pytest.mark.parametrize("query", STALLS)
def test_a_stall_in_one_half_is_the_beginning_or_the_end(
    query: str, half: int, make_window: MakeJob
) -> None:
    job = make_window(ranks_count=1).stall(query, [0], [half], 90)
    assert rule(STALLS[query][0]).run(job.facts()) == RuleOutcome()


def test_a_short_stall_is_no_finding(make_window: MakeJob) -> None:
    job = make_window(ranks_count=1).stall("gc_pause", [0], BOTH, 1, exposed_ms=0)
    assert rule("gc-pause").run(job.facts()) == RuleOutcome()


def test_a_rank_that_nobody_waits_for_costs_nothing(make_window: MakeJob) -> None:
    job = make_window().stall("gc_pause", [1], BOTH, 20, is_waited_for=False)
    assert rule("gc-pause").run(job.facts()) == RuleOutcome()
    job = make_window().stall("gc_pause", [1], BOTH, 20)
    (finding,) = rule("gc-pause").run(job.facts()).findings
    assert finding.scope.ranks == (1,)


@pytest.mark.parametrize("each", [r for r in RULES if not r.judges_windows], ids=lambda r: r.name)
def test_a_rule_whose_question_is_to_steps_does_not_see_windows(
    each: Any, make_window: MakeJob
) -> None:
    job = make_window(comm_ms=30, idle_ms=30)
    job.stall("compile_stall", [0], BOTH, 20).stall("checkpoint_stall", [0], BOTH, 20)
    assert not each.run(job.facts()).findings


def test_a_healthy_window_has_no_finding_at_all(make_window: MakeJob) -> None:
    job = make_window().launching(kernel_ns=200_000)
    for each in RULES:
        assert not each.run(job.facts()).findings, each.name
