"""sync-stall: when it fires, when just not, and what exempts."""

from __future__ import annotations

from stall_rules import MakeJob, look


def test_one_short_synchronisation_a_step_is_usual(make_job: MakeJob) -> None:
    below = make_job().stall("sync_stall", range(4), range(1, 11), 2)
    assert not look("sync-stall", below).findings  # 2 of 102 ms
    above = make_job().stall("sync_stall", range(4), range(1, 11), 3)
    assert look("sync-stall", above).findings


def test_ranks_without_a_gpu_cannot_show_it(make_job: MakeJob) -> None:
    job = make_job(measured_on="host").stall("sync_stall", range(4), range(1, 11), 30)
    outcome = look("sync-stall", job)
    assert not outcome.findings
    assert "GPU timeline" in outcome.not_checked[0].needs
