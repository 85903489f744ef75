"""restart-loss: when it fires, when just not, and how often to save."""

from __future__ import annotations

import pytest
from logged_rules import SUMMARY, asked, episode, says_what_it_needs

from tracekit.findings import Severity
from tracekit.rules import rule
from tracekit.rules.base import Facts, JobFacts


@pytest.mark.parametrize(("lost_s", "is_told"), [(864, True), (863, False)])
def test_it_counts_by_its_share_of_the_job(lost_s: float, is_told: bool) -> None:
    row = episode("restart", lost_s, repeated_count=100)
    assert bool(asked("restart-loss", row).findings) == is_told


def test_it_tells_the_steps_done_again_from_the_time_between() -> None:
    rows = [episode("restart", 1100, repeated_count=500)] * 2
    (found,) = asked("restart-loss", *rows).findings
    assert found.summary == (
        "2 restarts cost 36.7 min, 2.5 % of the job: 1,000 steps done again (16.7 min), 20 min "
        "without a step."
    )


def test_it_costs_its_part_of_the_job_where_no_trace_has_steps() -> None:
    row = episode("restart", 1728, repeated_count=100)
    (found,) = asked("restart-loss", row).findings
    assert (found.impact.per, found.impact.method) == ("job", "recorded time")
    assert (found.impact.s_per_step, found.impact.step_ratio) == (1728, 0.02)
    facts = Facts(
        rows={"job_step_summary": [SUMMARY], "slow_episode": [row]},
        job=JobFacts(hosts={0: "a", 1: "a"}),
    )
    (beside_traces,) = rule("restart-loss").run(facts).findings
    assert beside_traces.impact.s_per_step is None


def test_young_s_interval_follows_from_save_time_and_failures() -> None:
    saves = episode("periodic", 860, period_count=1000, times_count=86)  # 10 s each
    (found,) = asked("restart-loss", episode("restart", 1100, repeated_count=500), saves).findings
    # sqrt(2 x 10 s x 86,400 s / 1 failure) = 1315 s, of steps of a second
    assert found.remedy[0].startswith("save every 21.9 min (about 1,315 steps)")
    (without,) = asked("restart-loss", episode("restart", 1100, repeated_count=500)).findings
    assert "sqrt" not in without.remedy[0]


def test_it_says_what_schedulers_ended_the_starts_before_for() -> None:
    row = episode("restart", 1000, repeated_count=0)
    (silent,) = asked("restart-loss", row).findings
    (one,) = asked("restart-loss", row | {"ended_for": "node failure"}).findings
    assert one.summary == f"{silent.summary} By the log it came after a node failure."
    why = ("preempted", "time limit", "preempted", None)
    (many,) = asked("restart-loss", *(row | {"ended_for": w} for w in why)).findings
    assert many.summary.endswith(" By the log 2 after a preemption and 1 after its time limit.")


def test_a_healthy_log_is_fine_and_none_is_lacking() -> None:
    healthy = asked("restart-loss")
    assert (healthy.findings, healthy.not_checked) == ((), ())
    says_what_it_needs("restart-loss")


def test_of_two_periods_the_one_with_checkpoints_is_the_save_time() -> None:
    evaluations = episode("periodic", 86, period_count=1000, times_count=86, evaluations_count=86)
    saves = episode("periodic", 860, period_count=3000, times_count=28, checkpoints_count=28)
    restart = episode("restart", 3600, repeated_count=3000)
    of_both, of_saves = (
        asked("restart-loss", restart, *more).findings[0].remedy
        for more in ((evaluations, saves), (saves,))
    )
    assert of_both == of_saves


def _pod(count: int, **more: object) -> dict[str, object]:
    return {
        "task": "pod/w-2", "host": "gpu-4", "replica": "worker-2", "restarts_count": count,
        "ended_for": "out of memory", "back_offs_count": 0, "source_id": 1, "place": 4,
    } | more  # fmt: skip


@pytest.mark.parametrize(("count", "is_told"), [(4, True), (3, False)])
def test_without_a_log_kubernetes_restarts_are_told_and_the_log_is_missed(
    count: int, is_told: bool
) -> None:
    rows = [_pod(count), _pod(count, task="pod/w-3", host=None, ended_for=None)]
    outcome = rule("restart-loss").run(Facts(rows={"pod_restarts": rows}))
    assert "training log" in outcome.not_checked[0].needs
    assert bool(outcome.findings) == is_told
    for found in outcome.findings:
        assert found.summary == (
            "Kubernetes counts 4 restarts of pod w-2 on gpu-4 (last: out of memory), and 1 other "
            "pod; what was done again no training log says."
        )
        assert found.severity is Severity.MINOR


def test_beside_a_log_the_count_stands_in_its_finding_and_makes_none_by_itself() -> None:
    row = episode("restart", 1100, repeated_count=500)
    (found,) = asked("restart-loss", row, pod_restarts=[_pod(9)]).findings
    assert found.summary.endswith(
        "Kubernetes counts 9 restarts of pod w-2 on gpu-4 (last: out of memory)."
    )
    assert not asked("restart-loss", pod_restarts=[_pod(9)]).findings
