"""slow-receiver: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from link_rules import SPAN_S, MakeJob, job_of, only, port
from port_rules import pausing, run
from port_rules import port as port_row
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


@pytest.mark.parametrize(("paused_share", "cost_s"), [(0.10, 0.020), (0.099, 0.0099)])
def test_where_pauses_are_why_all_that_transfers_lost_is_theirs(
    make_job: MakeJob, paused_share: float, cost_s: float
) -> None:
    """20 of 40 ms are lost (400 MB need 20 at 0.8 of 25 GB/s): pausing half of that is why."""
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "rx_pfc_duration", paused_share * SPAN_S * 1e6 if i == 1 else 0.0),
            port(f"p{i}", "rx_bytes", 4e9 * SPAN_S),
        )
    ]
    found = only(rule("slow-receiver").run(job_of(make_job, rows)))
    assert found.impact.s_per_step == pytest.approx(cost_s)


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


@pytest.mark.parametrize(
    ("counter", "is_on_host", "fires"),
    [
        ("rx_pfc_duration", False, True),  # the switch receives what the host sends
        ("tx_pfc_duration", True, True),  # the NIC sends it
        ("tx_pfc_duration", False, False),  # the switch pauses the host: congestion behind it
        ("rx_pfc_duration", True, False),
    ],
)
def test_who_sent_the_pauses_decides_who_is_slow(
    counter: str, is_on_host: bool, fires: bool
) -> None:
    outcome = run(pausing(counter, {"p1": 0.05}, is_on_host=is_on_host), "slow-receiver")
    assert bool(outcome.findings) is fires
    if fires:
        finding = outcome.findings[0]
        assert finding.scope.ranks == (1,)
        assert finding.summary == "Host h1 (rank 1) pauses the switch, 5.0 % of the time."


@pytest.mark.parametrize(
    ("own", "others", "fires"), [(0.01, 0.0, True), (0.0099, 0.0, False), (0.05, 0.006, False)]
)
def test_a_receiver_is_slow_beside_the_others(own: float, others: float, fires: bool) -> None:
    rows = pausing("rx_pfc_duration", {"p0": others, "p1": own, "p2": others, "p3": others})
    assert bool(run(rows, "slow-receiver").findings) is fires


@pytest.mark.parametrize(("rate", "fires"), [(1000, True), (999, False)])
def test_where_only_frames_are_counted_their_rate_decides(rate: float, fires: bool) -> None:
    rows = [port_row("p0", "rx_pfc_packets", 0.0), port_row("p1", "rx_pfc_packets", rate * 19.0)]
    assert bool(run(rows, "slow-receiver").findings) is fires
