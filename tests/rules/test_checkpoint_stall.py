"""checkpoint-stall: when it fires, when just not, and what exempts."""

from __future__ import annotations

from stall_rules import MakeJob, look
from tracekit.rules.base import RuleOutcome


def test_one_checkpoint_is_said_and_not_turned_into_a_cost(make_job: MakeJob) -> None:
    job = make_job(steps_count=12).stall("checkpoint_stall", range(4), [6], 300)
    outcome = look("checkpoint-stall", job)
    assert not outcome.findings
    assert "300 ms in step 6" in outcome.not_checked[0].needs


def test_a_save_in_a_step_no_longer_than_the_others_was_hidden(make_job: MakeJob) -> None:
    job = make_job(steps_count=12).stall("checkpoint_stall", range(4), [4, 8], 30)
    for rank in range(4):
        for step in (4, 8):
            job.add(rank, step, "compute", -30)
    assert not look("checkpoint-stall", job).findings


def test_a_save_within_the_noise_of_steps_is_not_reported(make_job: MakeJob) -> None:
    # Steps scatter by 10 ms, so 45 ms are 4.5 deviations and 60 ms are 6.
    for ms, is_reported in ((45, False), (60, True)):
        job = make_job(steps_count=20)
        for step in job.steps:
            for rank in range(4):
                job.add(rank, step, "compute", 10 if step % 4 in (0, 1) else -10)
        for rank in range(4):
            for step in (6, 14):
                job.add(rank, step, "compute", 10)
        job.stall("checkpoint_stall", range(4), [6, 14], ms)
        assert bool(look("checkpoint-stall", job).findings) == is_reported


def test_periodic_evaluation_is_not_a_checkpoint(make_job: MakeJob) -> None:
    job = make_job(steps_count=12)
    for rank in range(4):
        for step in (4, 8, 12):
            job.add(rank, step, "idle", 200)
    # Saves are recorded, elsewhere and hidden.
    job.stall("checkpoint_stall", [0], [2], 20, exposed_ms=0, is_waited_for=False)
    assert look("checkpoint-stall", job) == RuleOutcome()
