"""incast, ecmp-collision, storage-interference, and what counters charge: links that are shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import JobRows

from tracekit.findings import Finding, Severity
from tracekit.rules import Facts, RuleOutcome, rule

MakeJob = Callable[..., JobRows]
SPAN_S = 19.0
"""The rows' 19 intervals of a second."""
GBIT = 1e9


def port(name: str, counter: str, growth: float, **more: Any) -> dict[str, Any]:
    """A row of port_counters: the leaf's port towards the rank of its number; hosts of two."""
    number = int(name[-1])
    return {
        "node": "leaf",
        "port": name,
        "host": f"h{number // 2}",
        "host_source": "job_toml",
        "rank": number,
        "ranks": [number],
        "is_on_host": False,
        "counter": counter,
        "direction": counter[:2] if counter[:2] in ("rx", "tx") else None,
        "priority": None,
        "queue": None,
        "interval_ns": 1e9,
        "growth": growth,
        "intervals_count": 19,
        "coverage_ratio": 1.0,
        "step_growth": growth,
        "step_covered_ns": SPAN_S * 1e9,
        "is_from_documentation": False,
        "source_id": 0,
        "place": number,
    } | more


def job_of(make_job: MakeJob, rows: list[dict[str, Any]], **more: Any) -> Facts:
    """Four ranks on two hosts; 40 of 100 ms are transfers that nothing hides, in four calls."""
    job = make_job(4, comm_ms=40)
    job.rows["port_counters"] = rows
    job.rows["match_coverage"] = [{"group_id": "g", "ranks": [0, 1, 2, 3], "is_trusted": True}]
    job.rows["group_bandwidth"] = [
        {
            "group_id": "g", "timeline": "device", "transfer_p50_ns": 10e6, "instances_count": 40,
            "steps_count": 10, "stuck_ns": 0.0,
        }
    ]  # fmt: skip
    job.rows["port_levels"] = [
        {"node": "leaf", "port": f"p{i}", "counter": "link_speed", "max_value": 200 * GBIT,
         "is_from_documentation": False}
        for i in range(4)
    ]  # fmt: skip
    for name, listed in more.items():
        job.rows[name] = listed
    return job.facts()


def only(outcome: RuleOutcome) -> Finding:
    assert not outcome.not_checked
    (finding,) = outcome.findings
    return finding


# --- incast ---------------------------------------------------------------------------------------


def crowd(
    marked: float = 0.05, others: float = 0.0, held: float = 0.01, host: float = 0.0,
    senders: int = 2, **more: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Marks towards rank 3; the ports of ranks 0 and 1 are told to pause."""
    rows = []
    for i in range(4):
        share = marked if i == 3 else others
        rows += [
            port(f"p{i}", "tx_packets", 1e6),
            port(f"p{i}", "tx_bytes", 4e9),
            port(f"p{i}", "tx_queue_ecn_marked_packets", share * 1e6, **more),
            port(f"p{i}", "tx_pfc_duration", held * SPAN_S * 1e6 if i < senders else 0.0),
            port(f"p{i}", "rx_pfc_duration", host * SPAN_S * 1e6 if i == 3 else 0.0),
        ]
    return rows


def test_a_crowd_at_one_port_names_its_receiver(make_job: MakeJob) -> None:
    finding = only(rule("incast").run(job_of(make_job, crowd())))
    assert finding.scope.ranks == (3,)
    assert finding.summary == (
        "Too much arrives at once at the port leaf:p3 towards rank 3 (h1): 5.0 % of its packets "
        "are marked, and 2 senders held back."
    )
    # 40 ms of transfers for 1.05 ms' worth of bytes: (4 GB / 19 s) * 0.1 s / (0.8 * 25 GB/s).
    assert finding.impact.s_per_step == pytest.approx(0.040 - 0.00105, abs=1e-5)
    assert finding.confidence.level == "likely"


def test_the_rate_within_the_steps_counts(make_job: MakeJob) -> None:
    """Not that of the window, which may have idle ends, nor of whole intervals that overhang."""
    steps = {"step_growth": 4e9, "step_covered_ns": 1e9}
    rows = [r | (steps if r["counter"] == "tx_bytes" else {}) for r in crowd()]
    finding = only(rule("incast").run(job_of(make_job, rows)))
    # (4 GB / 1 s) * 0.1 s / (0.8 * 25 GB/s) = 20 ms of the 40.
    assert finding.impact.s_per_step == pytest.approx(0.020)
    # No step is known: nothing is charged for what cannot be compared.
    unknown = {"step_growth": None, "step_covered_ns": None}
    rows = [r | (unknown if r["counter"] == "tx_bytes" else {}) for r in crowd()]
    assert only(rule("incast").run(job_of(make_job, rows))).impact.s_per_step is None


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(crowd(marked=0.049), id="just below"),
        pytest.param(crowd(others=0.0051), id="others are marked too"),
        pytest.param(crowd(host=0.01), id="the host pauses: it is slow itself"),
        pytest.param(crowd(senders=1), id="one sender is no crowd"),
        pytest.param(crowd(held=0.009), id="nobody is held back"),
    ],
)
def test_what_is_no_incast(make_job: MakeJob, rows: list[dict[str, Any]]) -> None:
    assert rule("incast").run(job_of(make_job, rows)) == RuleOutcome()


def test_an_exchange_is_a_crowd_by_itself(make_job: MakeJob) -> None:
    exchange = [{"rank": 0, "op": "all_to_all"}]
    facts = job_of(make_job, crowd(senders=0), comm_summary=exchange)
    assert only(rule("incast").run(facts)).scope.ranks == (3,)


def test_drops_at_a_queue_count_as_marks_do(make_job: MakeJob) -> None:
    rows = crowd(marked=0.0)
    for count, fires in ((100.0, True), (99.0, False)):
        # Dropped packets have left no port: 1e6 went out.
        dropped = [port("p3", "tx_queue_dropped_packets", count)]
        assert bool(rule("incast").run(job_of(make_job, rows + dropped)).findings) is fires


def test_drops_where_switches_mark_are_a_loss_and_no_crowd(make_job: MakeJob) -> None:
    rows = [
        *crowd(marked=0.0, others=1e-5),
        port("p3", "tx_queue_dropped_packets", 5000.0),
    ]
    assert rule("incast").run(job_of(make_job, rows)) == RuleOutcome()


def test_a_port_that_is_slower_than_the_others_is_no_incast(make_job: MakeJob) -> None:
    levels = [
        {"node": "leaf", "port": f"p{i}", "counter": "link_speed", "source_id": 0,
         "is_from_documentation": False, "max_value": (50 if i == 3 else 200) * GBIT}
        for i in range(4)
    ]  # fmt: skip
    assert rule("incast").run(job_of(make_job, crowd(), port_levels=levels)) == RuleOutcome()


def test_a_long_queue_alone_accuses_nobody(make_job: MakeJob) -> None:
    """As on a job with a hot expert: a queue that stands long, and not a mark or drop."""
    assert rule("incast").run(job_of(make_job, crowd(marked=0.0))) == RuleOutcome()


def test_marks_of_an_unproved_format_stay_a_note(make_job: MakeJob) -> None:
    finding = only(rule("incast").run(job_of(make_job, crowd(is_from_documentation=True))))
    assert finding.severity is Severity.NOTE


def test_nics_alone_do_not_show_a_queue(make_job: MakeJob) -> None:
    rows = [r | {"is_on_host": True} for r in crowd()]
    (missing,) = rule("incast").run(job_of(make_job, rows)).not_checked
    assert missing.needs == "counters of switch ports that lead to ranks"


# --- ecmp-collision -------------------------------------------------------------------------------


def uplinks(
    *shares: float, entered: float = 1e9, far: str | None = "spine"
) -> list[dict[str, Any]]:
    """A leaf that sends so many bytes up each uplink, and gets so many from the job's ports."""
    nobody = {"host": far, "rank": None, "ranks": None}
    rows = [port(f"u{i}", "tx_bytes", s, **nobody) for i, s in enumerate(shares)]
    rows += [port(f"p{i}", "rx_bytes", entered / 4) for i in range(4)]
    below = {"node": "spine", "host": "leaf", "rank": None, "ranks": None}
    return [*rows, port("d0", "rx_bytes", sum(shares), **below)]


def test_two_flows_on_one_uplink_name_the_switch_and_no_rank(make_job: MakeJob) -> None:
    facts = job_of(make_job, uplinks(2e8, 5e7, 1e8, 1.5e8))
    assert rule("ecmp-collision").run(facts) == RuleOutcome()
    finding = only(rule("ecmp-collision").run(job_of(make_job, uplinks(4e8, 0.0, 2e8, 2e8))))
    assert finding.id == "ecmp-collision/leaf"
    assert finding.scope.switches == ("leaf",)
    assert finding.scope.links == ("leaf:u0", "leaf:u1")
    assert finding.scope.ranks == () and finding.scope.hosts == ()
    assert finding.impact.step_ratio == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize(
    ("shares", "fires"),
    [
        ((300.0, 50.0, 250.0, 200.0), True),  # 1.5 times the mean, a quarter of it
        ((299.0, 50.0, 251.0, 200.0), False),
        ((300.0, 51.0, 249.0, 200.0), False),
    ],
)
def test_skew_and_idleness_both_count(
    make_job: MakeJob, shares: tuple[float, ...], fires: bool
) -> None:
    facts = job_of(make_job, uplinks(*shares, entered=1000.0))
    assert bool(rule("ecmp-collision").run(facts).findings) is fires


def test_background_on_uplinks_is_none(make_job: MakeJob) -> None:
    facts = job_of(make_job, uplinks(40.0, 0.0, 20.0, 20.0, entered=401.0))
    assert rule("ecmp-collision").run(facts) == RuleOutcome()


def test_an_uplink_that_is_down_is_idle_for_another_reason(make_job: MakeJob) -> None:
    levels = [{"node": "leaf", "port": "u1", "counter": "link_up", "max_value": 0.0}]
    facts = job_of(make_job, uplinks(2e8, 0.0, 1.5e8, 1.5e8), port_levels=levels)
    assert rule("ecmp-collision").run(facts) == RuleOutcome()


@pytest.mark.parametrize("far", [None, "elsewhere"])
def test_without_knowing_what_is_an_uplink_it_says_so(make_job: MakeJob, far: str | None) -> None:
    (missing,) = (
        rule("ecmp-collision").run(job_of(make_job, uplinks(4e8, 0.0, far=far))).not_checked
    )
    assert "between switches" in missing.needs


def test_without_traces_a_collision_is_a_note() -> None:
    facts = Facts(rows={"port_counters": uplinks(4e8, 0.0, 2e8, 2e8)})
    assert only(rule("ecmp-collision").run(facts)).severity is Severity.NOTE


# --- storage-interference -------------------------------------------------------------------------


def classes(foreign: dict[int, float], own: float = 1e9, **more: Any) -> list[dict[str, Any]]:
    """Bytes a second of queue 3 (the job's) and queue 0 towards each rank."""
    rows = []
    for i in range(4):
        other = foreign.get(i, 0.0)
        rows += [
            port(f"p{i}", "tx_queue_bytes", own * SPAN_S, queue=3, **more),
            port(f"p{i}", "tx_queue_bytes", other * SPAN_S, queue=0, **more),
            port(f"p{i}", "tx_bytes", (own + other) * SPAN_S),
        ]
    return rows


NAME = "storage-interference"


def test_a_host_whose_links_storage_shares(make_job: MakeJob) -> None:
    finding = only(rule(NAME).run(job_of(make_job, classes({2: 2.5e9, 3: 2.5e9}, 3e9))))
    assert finding.scope.hosts == ("h1",)
    assert finding.scope.ranks == (2, 3)
    assert finding.id == f"{NAME}/h1"
    # A tenth of the link for the whole step, though the transfers lost more.
    assert finding.impact.s_per_step == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("foreign", "own", "fires"),
    [
        ({2: 2.49e9}, 3e9, False),  # under a tenth of 25 GB/s
        ({2: 2.5e9}, 10e9, True),
        ({2: 2.5e9}, 10.1e9, False),  # under a fifth of the port's bytes
        ({2: 2.5e9, 0: 0.26e9}, 3e9, False),  # the other host has a tenth of it too
        ({0: 2.6e9, 1: 2.6e9, 2: 2.6e9, 3: 2.6e9}, 3e9, True),  # all alike
    ],
)
def test_how_much_of_another_class_is_too_much(
    make_job: MakeJob, foreign: dict[int, float], own: float, fires: bool
) -> None:
    rows = [{"group_id": "g", "timeline": "device", "transfer_p50_ns": 25e6, "instances_count": 40,
             "steps_count": 10, "stuck_ns": 0.0}]  # fmt: skip
    facts = job_of(make_job, classes(foreign, own), group_bandwidth=rows)
    assert bool(rule(NAME).run(facts).findings) is fires


def test_a_link_that_is_shared_and_not_full_costs_nothing(make_job: MakeJob) -> None:
    # 4 ms of transfers for 4 ms' worth of bytes: nothing is lost.
    rows = [{"group_id": "g", "timeline": "device", "transfer_p50_ns": 1e6, "instances_count": 50,
             "steps_count": 10, "stuck_ns": 0.0}]  # fmt: skip
    facts = job_of(make_job, classes({2: 2.5e9}, own=1e9), group_bandwidth=rows)
    assert rule(NAME).run(facts) == RuleOutcome()


def test_without_classes_or_speeds_it_says_what_it_needs(make_job: MakeJob) -> None:
    (plain,) = rule(NAME).run(job_of(make_job, [port("p0", "tx_bytes", 1.0)])).not_checked
    assert "of this kind" in plain.needs
    facts = job_of(make_job, classes({2: 2.5e9}), port_levels=[])
    assert "speed of their links" in rule(NAME).run(facts).not_checked[0].needs


# --- ranks without a trace ------------------------------------------------------------------------


def unmatched(
    make_job: MakeJob, rows: list[dict[str, Any]], called_ms: float, waited_ms: float
) -> Facts:
    """The same job beside a rank without a trace: no call has all its members."""
    waits = {
        "traced_ranks": [0, 1, 2, 3], "missing_ranks": [4], "call_per_step_ns": called_ms * 1e6,
        "wait_per_step_ns": waited_ms * 1e6,
    }  # fmt: skip
    facts = job_of(make_job, rows, absent_waits=[waits], group_bandwidth=[])
    return replace(facts, job=replace(facts.job, world_size=5))


COLLIDED = uplinks(4e8, 0.0, 2e8, 2e8, entered=4e9)
"""Of each rank 1 GB in 19 s, which needs 0.26 ms of a step of 100 ms at 0.8 of 25 GB a second."""


@pytest.mark.parametrize(
    ("called_ms", "waited_ms", "is_open"),
    [(40, 0, True), (1.27, 0, True), (1.25, 0, False), (40, 39, False), (40, 38.7, True)],
)
def test_a_collision_is_open_where_even_short_calls_outlast_their_bytes(
    make_job: MakeJob, called_ms: float, waited_ms: float, is_open: bool
) -> None:
    """By a hundredth of the step; long calls alone may be waiting for the rank without a trace."""
    finding = only(rule("ecmp-collision").run(unmatched(make_job, COLLIDED, called_ms, waited_ms)))
    assert finding.severity is Severity.NOTE and finding.impact.s_per_step is None
    assert bool(finding.next_capture) is is_open
    if is_open:
        assert finding.next_capture == ("profile rank 4 in the same steps",)


@pytest.mark.parametrize(("called_ms", "fires"), [(16.1, True), (15.9, False), (0.0, False)])
def test_storage_is_an_open_note_where_calls_outlast_their_bytes(
    make_job: MakeJob, called_ms: float, fires: bool
) -> None:
    """It may come and go, so all calls count: 3 GB a second of the job's own need 15 ms."""
    facts = unmatched(make_job, classes({2: 2.5e9, 3: 2.5e9}, 3e9), called_ms, called_ms)
    found = rule(NAME).run(facts).findings
    assert [f.scope.hosts for f in found] == ([("h1",)] if fires else [])
    for finding in found:
        assert finding.severity is Severity.NOTE and finding.impact.s_per_step is None
        assert finding.next_capture == ("profile rank 4 in the same steps",)


def test_calls_with_all_their_members_leave_no_price_open(make_job: MakeJob) -> None:
    facts = unmatched(make_job, COLLIDED, 40, 0)
    whole = job_of(make_job, COLLIDED).rows["group_bandwidth"]
    facts = replace(facts, rows={**facts.rows, "group_bandwidth": whole})
    finding = only(rule("ecmp-collision").run(facts))
    assert not finding.next_capture
    assert finding.impact.s_per_step is not None


# --- what trouble costs ---------------------------------------------------------------------------


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


def test_pauses_cost_what_nothing_hides_and_never_more(make_job: MakeJob) -> None:
    def paused(share: float) -> Finding:
        rows = [
            port(f"p{i}", "rx_pfc_duration", share * SPAN_S * 1e6 if i == 1 else 0.0)
            for i in range(4)
        ]
        return only(rule("slow-receiver").run(job_of(make_job, rows)))

    assert paused(0.1).impact.s_per_step == pytest.approx(0.010)
    assert paused(0.9).impact.s_per_step == pytest.approx(0.040)


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


def test_ports_told_to_pause_are_victims(make_job: MakeJob) -> None:
    rows = [port(f"p{i}", "tx_pfc_duration", 0.2 * SPAN_S * 1e6) for i in range(4)]
    finding = only(rule("pfc-storm").run(job_of(make_job, rows)))
    assert finding.scope.ranks == () and finding.scope.hosts == ()
    assert len(finding.scope.links) == 4
    stormed = [port("p1", "pfcwd_storms_detected", 1.0)]
    assert only(rule("pfc-storm").run(job_of(make_job, stormed))).scope.ranks == (1,)
