"""packet-loss: when it fires, when just not, and what exempts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from link_rules import MakeJob, job_of, only, port
from tracekit.findings import Severity
from tracekit.rules import rule


def test_loss_costs_the_transfers_that_are_stuck(make_job: MakeJob) -> None:
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "tx_dropped_packets", 500.0 if i == 1 else 0.0),
            port(f"p{i}", "tx_packets", 1e5),
        )
    ]
    group = {"group_id": "g", "timeline": "device", "transfer_p50_ns": 1e6, "instances_count": 40,
             "steps_count": 10, "stuck_ns": 210e6}  # fmt: skip
    finding = only(rule("packet-loss").run(job_of(make_job, rows, group_bandwidth=[group])))
    assert finding.impact.s_per_step == pytest.approx(0.021)  # 210 ms in 10 steps
    assert finding.severity is Severity.CRITICAL
    calm = job_of(make_job, rows, group_bandwidth=[group | {"stuck_ns": 0.0}])
    assert only(rule("packet-loss").run(calm)).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("dropped", "others", "stuck_ms", "fires"),
    [
        (150.0, 0.0, 210, True),
        (150.0, 0.0, 10, True),
        (150.0, 0.0, 9.9, False),  # under 1 ms a step: the floor of TCP's own search holds
        (9.0, 0.0, 210, False),
        (150.0, 14.9, 210, True),
        (150.0, 15.1, 210, False),  # another port lost a tenth as much
    ],
)
def test_few_drops_of_many_packets_count_where_transfers_were_stuck(
    make_job: MakeJob, dropped: float, others: float, stuck_ms: float, fires: bool
) -> None:
    """3 of 100,000 packets: only a timer notices their loss, and that takes as long as ever."""
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "tx_dropped_packets", {1: dropped, 2: others}.get(i, 0.0)),
            port(f"p{i}", "tx_packets", 5e6),
        )
    ]
    group = {"group_id": "g", "timeline": "device", "transfer_p50_ns": 1e6, "instances_count": 40,
             "steps_count": 10, "stuck_ns": stuck_ms * 1e6}  # fmt: skip
    found = rule("packet-loss").run(job_of(make_job, rows, group_bandwidth=[group])).findings
    assert [f.scope.ranks for f in found] == ([(1,)] if fires else [])
    nobodys = [r | {"rank": None, "ranks": None, "host": None} for r in rows]
    outcome = rule("packet-loss").run(job_of(make_job, nobodys, group_bandwidth=[group]))
    assert not outcome.findings


@pytest.mark.parametrize(
    ("stuck_ms", "cost_ms"),
    [(60, 6.0), (40, 4.0), (200, 10.0)],
    ids=["the slow step is longer by so much", "never more than was stuck", "half of it exposed"],
)
def test_what_is_stuck_costs_at_least_what_slow_steps_show(
    make_job: MakeJob, stuck_ms: float, cost_ms: float
) -> None:
    """Half of all communication is hidden; one step of ten takes 60 ms longer."""
    rows = [
        port("p1", "tx_dropped_packets", 500.0), port("p1", "tx_packets", 1e5),
        port("p2", "tx_dropped_packets", 0.0), port("p2", "tx_packets", 1e5),
    ]  # fmt: skip
    group = {"group_id": "g", "timeline": "device", "transfer_p50_ns": 1e6, "instances_count": 40,
             "steps_count": 10, "stuck_ns": stuck_ms * 1e6}  # fmt: skip
    facts = job_of(make_job, rows, group_bandwidth=[group])
    breakdown = []
    for row in facts.of("step_breakdown"):
        more = 60_000_000 if row["step"] == 3 else 0
        exposed = row["exposed_comm_ns"] + more
        times = {"exposed_comm_ns": exposed, "comm_ns": 2 * exposed, "dur_ns": row["dur_ns"] + more}
        breakdown.append({**row, **times})
    facts = replace(facts, rows={**facts.rows, "step_breakdown": breakdown})
    finding = only(rule("packet-loss").run(facts))
    assert finding.impact.s_per_step == pytest.approx(cost_ms / 1e3)
