"""packet-loss: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest
from logged_rules import SECOND, SUMMARY, episode
from msgspec.structs import replace

from link_rules import MakeJob, job_of, only, port
from port_rules import fabric, run
from port_rules import only as port_only
from port_rules import port as port_row
from tracekit.findings import Severity
from tracekit.rules import Facts, rule
from tracekit.rules.outcome import UNPROVED


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
             "transfer_mean_ns": 1e6, "transfer_p25_ns": 1e6,
             "steps_count": 10, "stuck_ns": 210e6}  # fmt: skip
    finding = only(rule("packet-loss").run(job_of(make_job, rows, group_bandwidth=[group])))
    assert finding.impact.s_per_step == pytest.approx(0.021)  # 210 ms in 10 steps
    assert finding.severity is Severity.CRITICAL
    calm = job_of(make_job, rows, group_bandwidth=[group | {"stuck_ns": 0.0}])
    assert only(rule("packet-loss").run(calm)).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("name", "first_s", "last_s", "is_proved", "is_told"),
    [
        ("packet-loss", 1000, 2000, True, True),
        ("packet-loss", 1100, 1899, True, False),
        ("packet-loss", 1000, 2000, False, False),  # a format that no real file proved
        ("nic-error", 1000, 2000, True, True),
        ("nic-error", 0, 86_400, True, False),
    ],
)
def test_what_a_port_counts_while_the_log_is_slow_costs_what_the_log_lost(
    name: str, first_s: int, last_s: int, is_proved: bool, is_told: bool
) -> None:
    times = {
        "first_grown_ns": first_s * SECOND, "last_grown_ns": last_s * SECOND,
        "is_from_documentation": not is_proved,
    }  # fmt: skip
    rows = fabric({"p1": 500.0}, **times)
    rows += [port_row(f"p{i}", "rx_crc_errors", 50.0 * (i == 1), **times) for i in range(4)]
    slow = episode(
        "slow", 1730, first_step=1000, last_step=2000, start_ns=1000 * SECOND,
        end_ns=2000 * SECOND, dur_ns=1.2 * SECOND,
    )  # fmt: skip
    given = {"port_counters": rows, "job_step_summary": [SUMMARY], "slow_episode": [slow]}
    found = port_only(rule(name).run(Facts(rows=given)))
    assert ("steps 1,000 to 2,000 of the training log took 20 %" in found.summary) == is_told
    assert (found.impact.per == "job" and found.impact.s_per_step == 1730) == is_told
    assert (found.severity is Severity.MINOR) == is_told


@pytest.mark.parametrize(
    ("dropped", "other", "last_s", "is_proved", "fires"),
    [
        (10.0, 0.0, 2000, True, True),
        (10.0, 0.99, 2000, True, True),
        (10.0, 1.01, 2000, True, False),  # another port lost a tenth as much
        (9.0, 0.0, 2000, True, False),
        (10.0, 0.0, 2251, True, False),  # less than four fifths of both times
        (10.0, 0.0, 2000, False, False),
    ],
)
def test_few_drops_of_many_packets_count_where_just_then_the_log_is_slow(
    dropped: float, other: float, last_s: int, is_proved: bool, fires: bool
) -> None:
    times = {
        "first_grown_ns": 1000 * SECOND, "last_grown_ns": last_s * SECOND,
        "is_from_documentation": not is_proved,
    }  # fmt: skip
    rows = fabric({"p1": dropped, "p2": other}, **times)
    rows = [r | {"growth": 5e8} if r["counter"].endswith("_packets") and "dropped"
            not in r["counter"] else r for r in rows]  # fmt: skip
    slow = episode(
        "slow", 1730, first_step=1000, last_step=2000, start_ns=1000 * SECOND,
        end_ns=2000 * SECOND, dur_ns=1.2 * SECOND,
    )  # fmt: skip
    given = {"port_counters": rows, "job_step_summary": [SUMMARY], "slow_episode": [slow]}
    found = rule("packet-loss").run(Facts(rows=given)).findings
    assert [f.impact.s_per_step for f in found] == ([1730] if fires else [])
    assert not rule("packet-loss").run(Facts(rows={**given, "slow_episode": []})).findings


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
             "transfer_mean_ns": 1e6, "transfer_p25_ns": 1e6,
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
             "transfer_mean_ns": 1e6, "transfer_p25_ns": 1e6,
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


def test_without_counters_or_with_others_it_says_what_it_needs() -> None:
    assert run([]).not_checked[0].needs == rule("packet-loss").needs
    (other,) = run([port_row("p0", "tx_bytes", 5.0)]).not_checked
    assert "of this kind" in other.needs
    (once,) = run([port_row("p0", "tx_dropped_packets", None)]).not_checked
    assert "one reading" in once.needs
    (late,) = run(fabric({"p1": 500}, coverage_ratio=0.4)).not_checked
    assert "from the time of the job" in late.needs


def test_the_port_that_drops_is_named_with_its_rank() -> None:
    finding = port_only(run(fabric({"p1": 5000})))
    assert finding.id == "packet-loss/1"
    assert finding.scope.links == ("sw:p1",)
    assert finding.scope.hosts == ("h1",)
    assert finding.scope.ranks == (1,)
    assert finding.summary == (
        "The port sw:p1 towards rank 1 (h1) drops 4.8 % of its packets (5,000) while the job "
        "runs; the other 3 ports none."
    )
    assert finding.severity is Severity.NOTE  # what it costs only the traces say


@pytest.mark.parametrize(
    ("drops", "packets", "fires"),
    [
        (10, 99_990, True),
        (10, 100_000, False),  # under one in 10,000
        (9, 1_000, False),  # too few to be more than chance
    ],
)
def test_a_little_loss_is_none(drops: float, packets: float, fires: bool) -> None:
    assert bool(run(fabric({"p1": drops}, packets)).findings) is fires


def test_loss_everywhere_accuses_no_port() -> None:
    finding = port_only(run(fabric({f"p{i}": 500 + i for i in range(4)})))
    assert finding.id == "packet-loss/all"
    assert len(finding.scope.links) == 4


def test_an_interface_and_its_queue_count_one_drop_once() -> None:
    rows = fabric({"p1": 50}, 1000)
    rows.append(port_row("p1", "tx_queue_dropped_packets", 50.0))
    finding = port_only(run(rows))
    assert next(e for e in finding.evidence if e.unit == "packets").value == 50


def test_on_a_host_s_nic_what_is_received_comes_towards_it() -> None:
    rows = [r | {"is_on_host": True} for r in fabric({"p1": 5000})]
    assert port_only(run(rows)).summary.startswith("The NIC sw:p1 of rank 1 drops")


def test_a_port_that_leads_nowhere_known_names_no_rank() -> None:
    rows = [r | {"host": None, "rank": None, "ranks": None} for r in fabric({"p1": 5000})]
    finding = port_only(run(rows))
    assert finding.scope.ranks == ()
    assert finding.id == "packet-loss/sw:p1"


def test_a_format_that_no_real_file_proved_says_so() -> None:
    finding = port_only(run(fabric({"p1": 5000}, is_from_documentation=True)))
    assert [e.name for e in finding.counter_evidence] == [UNPROVED]
    assert finding.severity is Severity.NOTE
