"""Rules over port counters: fires, silent just below, exemptions, healthy twins, missing input."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.findings import Finding, Severity
from tracekit.rules import Facts, RuleOutcome, rule
from tracekit.rules.base import UNPROVED


def port(name: str, counter: str, growth: float | None, **more: Any) -> dict[str, Any]:
    """A row of port_counters: a switch's port that leads to the host of its number."""
    number = int(name[-1])
    row = {
        "node": "sw",
        "port": name,
        "host": f"h{number}",
        "host_source": "job_toml",
        "rank": number,
        "ranks": [number],
        "is_on_host": False,
        "counter": counter,
        "direction": counter[:2],
        "priority": None,
        "queue": None,
        "lane": None,
        "unit": "packets",
        "samples_count": 20,
        "interval_ns": 1e9,
        "growth": growth,
        "total_growth": growth,
        "grown_count": 5,
        "intervals_count": 19,
        "coverage_ratio": 1.0,
        "step_growth": growth,
        "step_covered_ns": 19e9,
        "resets_count": 0,
        "last_value": growth,
        "is_from_documentation": False,
        "source_id": 0,
        "place": number,
        "attempt": 1,
    }
    return row | more


def fabric(drops: dict[str, float], packets: float = 100_000, **more: Any) -> list[dict[str, Any]]:
    """Four ports that each sent so many packets, and what they dropped."""
    return [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "tx_dropped_packets", drops.get(f"p{i}", 0.0), **more),
            port(f"p{i}", "tx_packets", packets, **more),
        )
    ]


def run(rows: list[dict[str, Any]], name: str = "packet-loss") -> RuleOutcome:
    return rule(name).run(Facts(rows={"port_counters": rows}))


def only(outcome: RuleOutcome) -> Finding:
    assert not outcome.not_checked
    (finding,) = outcome.findings
    return finding


def test_without_counters_or_with_others_it_says_what_it_needs() -> None:
    assert run([]).not_checked[0].needs == rule("packet-loss").needs
    (other,) = run([port("p0", "tx_bytes", 5.0)]).not_checked
    assert "of this kind" in other.needs
    (once,) = run([port("p0", "tx_dropped_packets", None)]).not_checked
    assert "one reading" in once.needs
    (late,) = run(fabric({"p1": 500}, coverage_ratio=0.4)).not_checked
    assert "from the time of the job" in late.needs


def test_the_port_that_drops_is_named_with_its_rank() -> None:
    finding = only(run(fabric({"p1": 5000})))
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
    finding = only(run(fabric({f"p{i}": 500 + i for i in range(4)})))
    assert finding.id == "packet-loss/all"
    assert len(finding.scope.links) == 4


def test_an_interface_and_its_queue_count_one_drop_once() -> None:
    rows = fabric({"p1": 50}, 1000)
    rows.append(port("p1", "tx_queue_dropped_packets", 50.0))
    finding = only(run(rows))
    assert next(e for e in finding.evidence if e.unit == "packets").value == 50


def test_on_a_host_s_nic_what_is_received_comes_towards_it() -> None:
    rows = [r | {"is_on_host": True} for r in fabric({"p1": 5000})]
    assert only(run(rows)).summary.startswith("The NIC sw:p1 of rank 1 drops")


def test_a_port_that_leads_nowhere_known_names_no_rank() -> None:
    rows = [r | {"host": None, "rank": None, "ranks": None} for r in fabric({"p1": 5000})]
    finding = only(run(rows))
    assert finding.scope.ranks == ()
    assert finding.id == "packet-loss/sw:p1"


def test_a_format_that_no_real_file_proved_says_so() -> None:
    finding = only(run(fabric({"p1": 5000}, is_from_documentation=True)))
    assert [e.name for e in finding.counter_evidence] == [UNPROVED]
    assert finding.severity is Severity.NOTE


# --- pauses ---------------------------------------------------------------------------------------

SPAN_US = 19 * 1e6
"""The rows' 19 intervals of a second, in microseconds."""


def pausing(
    name: str, share: dict[str, float], *, is_on_host: bool = False
) -> list[dict[str, Any]]:
    """Four ports that paused for these shares of the time, as a counter of durations has it."""
    return [
        port(f"p{i}", name, share.get(f"p{i}", 0.0) * SPAN_US, is_on_host=is_on_host, unit="us")
        for i in range(4)
    ]


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
    rows = [port("p0", "rx_pfc_packets", 0.0), port("p1", "rx_pfc_packets", rate * 19.0)]
    assert bool(run(rows, "slow-receiver").findings) is fires


@pytest.mark.parametrize(("share", "fires"), [(0.1001, True), (0.0999, False)])
def test_ports_that_stand_paused_are_a_storm(share: float, fires: bool) -> None:
    rows = pausing("tx_pfc_duration", {"p1": share})
    assert bool(run(rows, "pfc-storm").findings) is fires


def test_a_watchdog_s_storm_is_one_without_any_pause_counter() -> None:
    rows = [port("p1", "pfcwd_storms_detected", 2.0, direction=None)]
    finding = only(run(rows, "pfc-storm"))
    assert finding.severity is Severity.MAJOR
    assert finding.summary == "A watchdog found 2 pause storms: sw:p1."
    assert run([port("p1", "pfcwd_storms_detected", 0.0)], "pfc-storm") == RuleOutcome()


@pytest.mark.parametrize(
    "name",
    ["slow-receiver", "pfc-storm", "nic-error", "ecn-congestion", "fabric-misconfigured"],
)
def test_each_says_what_it_needs(name: str) -> None:
    assert run([], name).not_checked[0].needs == rule(name).needs
    (other,) = run([port("p0", "rx_unknown", 5.0)], name).not_checked
    assert other.needs != rule(name).needs


# --- nic-error ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "others", "packets", "fires"),
    [
        (10, 0, 1e7, True),
        (9, 0, 1e6, False),
        (10, 0, 1.1e7, False),  # less than one in a million
        (100, 11, 1e6, False),  # the others are much the same
    ],
)
def test_damaged_frames_count_when_they_stand_out(
    own: float, others: float, packets: float, fires: bool
) -> None:
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "rx_crc_errors", own if i == 1 else others),
            port(f"p{i}", "rx_packets", packets),
        )
    ]
    assert bool(run(rows, "nic-error").findings) is fires


def test_a_link_that_went_down_counts_only_where_it_leads_to_a_host() -> None:
    rows = [port("p1", "link_downed", 1.0, direction=None)]
    assert only(run(rows, "nic-error")).severity is Severity.MINOR
    nowhere = [r | {"host": None, "rank": None, "ranks": None} for r in rows]
    assert run(nowhere, "nic-error") == RuleOutcome()


# --- ecn-congestion and fabric-misconfigured ------------------------------------------------------


def marked(ratio: float, verdict: str) -> Facts:
    rows = [
        port("p1", "tx_queue_ecn_marked_packets", ratio * 1000),
        port("p1", "tx_packets", 1000.0),
    ]
    test = {
        "node": "sw", "port": "p1", "counter": "tx_queue_ecn_marked_packets", "verdict": verdict,
        "rho": 0.6, "q_value": 0.01, "cost_ratio": 0.2, "reason": "load controlled for",
    }  # fmt: skip
    return Facts(rows={"port_counters": rows, "network_correlation": [test]})


@pytest.mark.parametrize(
    ("ratio", "verdict", "fires"),
    [
        (0.05, "cause", True),
        (0.049, "cause", False),
        (0.5, "none", False),  # marks are how congestion control works
        (0.5, "symptom", False),
        (0.5, "not_testable", False),
    ],
)
def test_marks_are_congestion_only_where_steps_are_slower(
    ratio: float, verdict: str, fires: bool
) -> None:
    outcome = rule("ecn-congestion").run(marked(ratio, verdict))
    assert bool(outcome.findings) is fires
    if fires:
        assert outcome.findings[0].confidence.level == "likely"


@pytest.mark.parametrize(("met", "is_fabric"), [(1, False), (2, True), (4, True)])
def test_marks_at_most_hosts_are_the_fabric_and_blame_no_rank(met: int, is_fabric: bool) -> None:
    rows, tests = [], []
    for i in range(4):
        one = marked(0.3 if i < met else 0.0, "cause").rows
        rows += [{**r, "port": f"p{i}", "host": f"h{i}", "rank": i, "ranks": [i]}
                 for r in one["port_counters"]]  # fmt: skip
        tests += [{**t, "port": f"p{i}"} for t in one["network_correlation"]]
    facts = Facts(rows={"port_counters": rows, "network_correlation": tests})
    finding = only(rule("ecn-congestion").run(facts))
    assert finding.id == ("ecn-congestion/fabric" if is_fabric else "ecn-congestion/0")
    assert finding.scope.ranks == (() if is_fabric else (0,))
    assert len(finding.scope.links) == met


def test_no_notices_where_control_is_off_everywhere_accuse_nobody() -> None:
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "np_ecn_marked_packets", 5000.0, direction=None),
            port(f"p{i}", "np_cnp_sent", 0.0, direction=None),
        )
    ]
    assert run(rows, "fabric-misconfigured") == RuleOutcome()
    rows[1] |= {"growth": 5000.0}
    found = run(rows, "fabric-misconfigured").findings
    assert [f.scope.ranks for f in found] == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("sizes", "odd"), [([9000, 1500, 9000], (1,)), ([9000, 9000, 9000], None), ([9000, 1500], None)]
)
def test_the_port_with_another_mtu_is_named(sizes: list[int], odd: tuple[int, ...] | None) -> None:
    rows = [port(f"p{i}", "tx_bytes", 1.0) for i in range(len(sizes))]
    levels = [
        {"node": "sw", "port": f"p{i}", "counter": "mtu", "last_value": float(size)}
        for i, size in enumerate(sizes)
    ]
    facts = Facts(rows={"port_counters": rows, "port_levels": levels})
    outcome = rule("fabric-misconfigured").run(facts)
    assert [f.scope.ranks for f in outcome.findings] == ([odd] if odd else [])


# --- link-degraded: the port's own word -----------------------------------------------------------


@pytest.mark.parametrize(
    ("speed", "ports", "fires"),
    [(80e9, 4, True), (81e9, 4, False), (25e9, 2, False), (100e9, 4, False)],
)
def test_a_port_that_runs_slower_than_the_job_s_others_is_named(
    speed: float, ports: int, fires: bool
) -> None:
    rows = [port(f"p{i}", "tx_bytes", 1.0) for i in range(ports)]
    levels = [
        {"node": "sw", "port": f"p{i}", "counter": "link_speed", "is_from_documentation": False,
         "max_value": speed if i == 1 else 100e9, "source_id": 0}
        for i in range(ports)
    ]  # fmt: skip
    facts = Facts(rows={"port_counters": rows, "port_levels": levels})
    outcome = rule("link-degraded").run(facts)
    assert bool(outcome.findings) is fires
    if fires:
        assert outcome.findings[0].summary == (
            "The port sw:p1 towards rank 1 (h1) runs at 80 Gbit/s; the job's other ports 100 "
            "Gbit/s."
        )


# --- what a slow link costs -----------------------------------------------------------------------


def held_back(make_job: Any, shaper: float, comm_ms: int = 60) -> Facts:
    """Four NICs of 50 MB/s, one behind a shaper, each sending 25 MB/s in steps of 160 ms."""
    job = make_job(ranks_count=4, comm_ms=comm_ms)
    rates = {"p0": shaper, "p1": 50e6, "p2": 50e6, "p3": 50e6}
    job.rows["port_counters"] = [port(name, "tx_bytes", 19 * 25e6) for name in rates]
    job.rows["port_levels"] = [
        {"node": "sw", "port": name, "counter": "tx_shaper_rate", "max_value": rate, "attempt": 1,
         "min_value": rate, "is_from_documentation": False, "source_id": 0, "place": 1}
        for name, rate in rates.items()
    ]  # fmt: skip
    facts: Facts = job.facts()
    return facts


def test_a_slow_link_costs_what_its_bytes_take_beyond_a_healthy_one(make_job: Any) -> None:
    facts = held_back(make_job, 25e6)
    (found,) = rule("link-degraded").run(facts).findings
    # Every step moves its 25 MB/s x step at 25 MB/s instead of at 50: half of it.
    step_s = facts.step_ns / 1e9
    hidden_none_s = min(step_s / 2, 0.060)
    assert found.impact.s_per_step == pytest.approx(hidden_none_s)
    assert found.impact.method == "counter share"
    low_s, high_s = found.impact.low_s_per_step, found.impact.high_s_per_step
    assert low_s is not None and high_s is not None
    assert low_s <= hidden_none_s <= high_s


def test_a_link_that_is_hardly_slower_is_none(make_job: Any) -> None:
    assert not rule("link-degraded").run(held_back(make_job, 41e6)).findings


def test_what_computation_hides_costs_nothing(make_job: Any) -> None:
    (found,) = rule("link-degraded").run(held_back(make_job, 25e6, comm_ms=0)).findings
    assert found.impact.s_per_step is None
