"""slow-receiver: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from link_rules import SPAN_S, MakeJob, job_of, only, port
from tracekit.findings import Finding, Severity
from tracekit.rules import rule


def test_pauses_cost_what_nothing_hides_and_never_more(make_job: MakeJob) -> None:
    def paused(share: float) -> Finding:
        rows = [
            port(f"p{i}", "rx_pfc_duration", share * SPAN_S * 1e6 if i == 1 else 0.0)
            for i in range(4)
        ]
        return only(rule("slow-receiver").run(job_of(make_job, rows)))

    assert paused(0.1).impact.s_per_step == pytest.approx(0.010)
    assert paused(0.9).impact.s_per_step == pytest.approx(0.040)


def test_one_proved_view_is_enough_to_be_more_than_a_note(make_job: MakeJob) -> None:
    rows = [
        port(f"p{i}", "rx_pfc_duration", 0.5 * SPAN_S * 1e6 if i == 1 else 0.0) for i in range(4)
    ]
    nic = {"node": "h0", "is_on_host": True, "port": "eth1", "is_from_documentation": True}
    rows += [port("x1", "tx_pfc_duration", 0.5 * SPAN_S * 1e6, **nic)]
    finding = only(rule("slow-receiver").run(job_of(make_job, rows)))
    assert finding.severity is Severity.CRITICAL and not finding.counter_evidence
    alone = [r for r in rows if r["is_from_documentation"]]
    assert only(rule("slow-receiver").run(job_of(make_job, alone))).severity is Severity.NOTE
