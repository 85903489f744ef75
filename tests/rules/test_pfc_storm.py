"""pfc-storm: when it fires, when just not, and what exempts."""

from __future__ import annotations

from link_rules import SPAN_S, MakeJob, job_of, only, port
from tracekit.rules import rule


def test_ports_told_to_pause_are_victims(make_job: MakeJob) -> None:
    rows = [port(f"p{i}", "tx_pfc_duration", 0.2 * SPAN_S * 1e6) for i in range(4)]
    finding = only(rule("pfc-storm").run(job_of(make_job, rows)))
    assert finding.scope.ranks == () and finding.scope.hosts == ()
    assert len(finding.scope.links) == 4
    stormed = [port("p1", "pfcwd_storms_detected", 1.0)]
    assert only(rule("pfc-storm").run(job_of(make_job, stormed))).scope.ranks == (1,)
