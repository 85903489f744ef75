"""stage-imbalance, excess-bubble and sequence-imbalance, on made-up rows."""

from __future__ import annotations

from pipeline_rules import BUBBLE, SEQUENCE, STAGES, MakeJob


def test_without_microbatches_nothing_is_checked(make_job: MakeJob) -> None:
    for each in (STAGES, BUBBLE, SEQUENCE):
        outcome = each.run(make_job().facts())
        assert not outcome.findings
        assert outcome.not_checked[0].rule == each.name
        assert "pipeline" in outcome.not_checked[0].needs
