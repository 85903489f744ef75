"""nic-error: when it fires, when just not, and what exempts."""

from __future__ import annotations

from link_rules import MakeJob, job_of, only, port
from tracekit.rules import rule


def test_three_views_of_one_link_are_one_finding(make_job: MakeJob) -> None:
    nic = {"node": "h0", "is_on_host": True, "port": "mlx5_1/1"}
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "rx_crc_errors", 50.0 if i == 1 else 0.0),
            port(f"p{i}", "rx_packets", 1e6),
        )
    ]
    rows += [port("x1", "rdma_icrc_errors", 60.0, **nic), port("x1", "rx_packets", 1e6, **nic)]
    finding = only(rule("nic-error").run(job_of(make_job, rows)))
    assert finding.scope.links == ("h0:mlx5_1/1", "leaf:p1")
    assert finding.scope.ranks == (1,)
