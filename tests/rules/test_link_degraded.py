"""link-degraded: when it fires, when just not, and what exempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from late_jobs import MS, MakeJob, coverage
from msgspec.structs import replace

from lateness_rules import LINK, bandwidth, exit_row, link_job
from nccl_rules import BY_RANK, OOB, Build, failed, findings, text
from pipeline_rules import Replayed
from port_rules import held_back, port
from tracekit.findings import Severity
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome


def test_the_host_in_most_failing_pairs_is_named(build: Build) -> None:
    lines = [failed(0, "h0", "3", 12), failed(1, "h1", "3", 12), failed(2, "h2", "3", 12),
             failed(3, "h3", "0", 5)]  # fmt: skip
    (finding,) = findings("link-degraded", build(text(OOB, lines)))
    assert finding.scope.hosts == ("h3",)
    assert "retries exceeded" in finding.summary
    assert finding.severity is Severity.CRITICAL


def test_one_pair_shares_the_blame(build: Build) -> None:
    lines = [failed(0, "h0", "1", 12), failed(1, "h1", "0", 12)]
    (finding,) = findings("link-degraded", build(text(OOB, lines)))
    assert finding.scope.hosts == ("h0", "h1")
    assert finding.scope.devices == ()


def event(host: str, words: str, nic: str = "mlx5_3") -> str:
    return (
        f"{host}:7:1 [0] transport/net_ib.cc:123 NCCL WARN NET/IB : {nic}:1 Got async event : "
        f"{words}"
    )


@pytest.mark.parametrize("words", ["port error", "device fatal"])
def test_a_nic_that_says_its_port_is_gone_is_named(words: str, build: Build) -> None:
    (finding,) = findings("link-degraded", build(text(OOB, event("h2", words))))
    assert finding.summary == f"h2 lost NIC mlx5_3:1 while the job ran: {words}."
    assert (finding.scope.hosts, finding.scope.devices) == (("h2",), ("mlx5_3:1",))
    assert finding.severity is Severity.MAJOR


@pytest.mark.parametrize("words", ["GID table change", "port active", "client reregistration"])
def test_everyday_events_of_a_nic_are_no_loss(words: str, build: Build) -> None:
    assert not findings("link-degraded", build(text(OOB, event("h2", words))))


def test_each_host_that_lost_a_port_has_its_own_finding(build: Build) -> None:
    lines = [event("h1", "port error"), event("h2", "port error")]
    found = findings("link-degraded", build(text(OOB, lines)))
    assert [f.scope.hosts for f in found] == [("h1",), ("h2",)]
    assert len({f.id for f in found}) == len(found)


def test_a_nic_that_nccl_gave_up_is_named(build: Build) -> None:
    line = (
        "h3:7:1 [1] p2p_resiliency.cc:325 NCCL WARN NET/IB: ncclIbResiliencyHandleDeviceFailure: "
        "Device 0 marked as failed. Initiating recovery? Yes"
    )
    (finding,) = findings("link-degraded", build(text(OOB, line)))
    assert finding.summary == "h3 lost a NIC while the job ran: NCCL gave it up."


def test_of_a_pair_that_failed_the_host_whose_nic_says_so_is_named(build: Build) -> None:
    lines = [failed(0, "h0", "1", 12), failed(1, "h1", "0", 12)]
    (finding,) = findings("link-degraded", build(text(OOB, lines, event("h1", "port error"))))
    assert finding.scope.hosts == ("h1",)
    assert finding.summary.startswith("h1 lost a port (NIC mlx5_3:1), and connections of 2")
    both = [*lines, event("h0", "port error"), event("h1", "port error")]
    (shared,) = findings("link-degraded", build(text(OOB, both)))
    assert shared.scope.hosts == ("h0", "h1")


def test_flushed_completions_are_no_cause(build: Build) -> None:
    assert not findings("link-degraded", build(text(OOB, failed(0, "h0", "1", 5))))


@pytest.mark.parametrize(("late", "count"), [(3, 1), (2, 2)])
def test_a_late_member_on_the_host_of_the_errors_is_one_finding(
    late: int, count: int, build: Build, make_job: Callable[..., Any]
) -> None:
    lines = [failed(r, f"h{r}", "3", 12) for r in range(3)]
    job = make_job(comm_ms=60).facts(hosts=BY_RANK)
    leaving = [
        {
            "group_id": "g", "rank": r, "op": "all_reduce", "message_bytes": 64 << 20,
            "calls_count": 40, "exit_p50_ns": 2e7 if r == late else -3e6, "attempt": 1,
            "exit_p10_ns": 1.9e7 if r == late else -4e6, "group_transfer_p50_ns": 8e7,
            "error_ns": 1_000_000,
        }
        for r in range(4)
    ]  # fmt: skip
    facts = build(text(OOB, lines))
    rows = {**job.rows, **facts.rows, "exit_lateness": leaving}
    found = findings("link-degraded", replace(job, rows=rows, sources=facts.sources))
    assert len(found) == count
    assert found[0].summary.startswith("h3 is in most")
    assert ("The traces agree" in found[0].summary) == (count == 1)


def test_a_member_that_always_leaves_late_sits_behind_a_slow_link(make_job: MakeJob) -> None:
    (finding,) = LINK.run(link_job(make_job, 20).facts()).findings
    assert finding.scope.ranks == (1,)
    assert finding.scope.hosts == ("h0",)
    assert finding.severity is Severity.MINOR
    assert finding.confidence.level == "possible"


@pytest.mark.parametrize(
    ("late_ms", "facts"),
    [
        (3.9, {}),  # under 5 % of the transfer
        (20, {"exit_p10_ns": -1.0}),  # now and then
        (20, {"calls_count": 7}),  # too few
        (20, {"error_ns": 30 * MS}),  # within the clocks' error
    ],
)
def test_what_is_small_rare_or_uncertain_is_no_link(
    make_job: MakeJob, late_ms: float, facts: dict[str, Any]
) -> None:
    assert LINK.run(link_job(make_job, late_ms, **facts).facts()) == RuleOutcome()


@pytest.mark.parametrize(
    ("ratio", "facts", "count"),
    [
        (0.7, {}, 1),
        # It loses 1.5 ms of 5: the clocks may make that seem so, or not quite.
        (0.7, {"error_ns": 1_499_000}, 1),
        (0.7, {"error_ns": 1_501_000}, 0),
        (0.8, {}, 0),
        (0.7, {"peers_count": 3}, 0),
        (0.7, {"steps_count": 2}, 0),
        (0.7, {"timeline": "host"}, 0),
        (0.7, {"message_bytes": 4096}, 0),
    ],
)
def test_a_group_is_slow_beside_enough_of_its_kind(
    make_job: MakeJob, ratio: float, facts: dict[str, Any], count: int
) -> None:
    job = link_job(make_job, 0)
    job.rows["group_bandwidth"] = [bandwidth("g", ratio, **facts)]
    job.rows["match_coverage"] = [coverage()]
    assert len(LINK.run(job.facts()).findings) == count


def test_a_slow_group_accuses_none_of_its_members(make_job: MakeJob) -> None:
    """One finding for all its operations: a ring is as slow as its slowest link, wherever it is."""
    job = link_job(make_job, 0)
    job.rows["group_bandwidth"] = [
        bandwidth("g", 0.7),
        bandwidth("g", 0.6, op="all_gather"),
        bandwidth("h", 1.0),
    ]
    job.rows["match_coverage"] = [coverage()]
    (finding,) = LINK.run(job.facts()).findings
    assert finding.id == "link-degraded/g"
    assert finding.scope.ranks == () and finding.scope.hosts == ()
    assert finding.scope.groups == ("g",)
    assert finding.candidates.ranks == (0, 1, 2, 3)
    # 10 calls a step of 5 ms each, of which 0.3 and 0.4 are lost.
    assert finding.impact.s_per_step == pytest.approx(0.035)
    assert finding.severity is Severity.MINOR


def test_a_slow_port_in_a_slow_group_is_one_finding_of_its_rank(make_job: MakeJob) -> None:
    job = link_job(make_job, 0)
    job.rows["group_bandwidth"] = [bandwidth("g", 0.5)]
    job.rows["match_coverage"] = [coverage()]
    job.rows["port_counters"] = [
        {"node": f"h{r}", "port": "mlx5_0", "host": f"h{r}", "host_source": "file", "rank": r,
         "ranks": [r], "is_on_host": True, "counter": "rx_bytes", "direction": "rx",
         "growth": 1e9, "interval_ns": 1e9, "intervals_count": 10, "coverage_ratio": 1.0,
         "step_growth": None, "step_covered_ns": None,
         "source_id": 0, "place": r, "is_from_documentation": False}
        for r in range(4)
    ]  # fmt: skip
    job.rows["port_levels"] = [
        {"node": f"h{r}", "port": "mlx5_0", "counter": "link_speed", "source_id": 0, "place": r,
         "max_value": 1e11 if r == 2 else 2e11, "is_from_documentation": False}
        for r in range(4)
    ]  # fmt: skip
    (finding,) = LINK.run(job.facts()).findings
    assert finding.scope.ranks == (2,)
    assert finding.confidence.level == "likely"
    assert "The traces agree: the dp group of ranks 0-3" in finding.summary


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


def test_of_two_slow_ports_of_three_the_third_says_what_is_usual() -> None:
    rows = [port(f"p{i}", "tx_bytes", 1.0) for i in range(3)]
    levels = [
        {"node": "sw", "port": f"p{i}", "counter": "link_speed", "is_from_documentation": False,
         "max_value": 100e9 if i == 1 else 25e9, "source_id": 0}
        for i in range(3)
    ]  # fmt: skip
    found = rule("link-degraded").run(Facts(rows={"port_counters": rows, "port_levels": levels}))
    assert [f.scope.ranks for f in found.findings] == [(0,), (2,)]
    assert all(f.summary.endswith("other ports 100 Gbit/s.") for f in found.findings)


def test_a_slow_link_costs_what_its_bytes_take_beyond_a_healthy_one(make_job: Any) -> None:
    facts = held_back(make_job, 25e6)
    (found,) = rule("link-degraded").run(facts).findings
    # Every step moves its 1.2 MB at 25 MB/s instead of at 50: 48 ms instead of 24.
    assert facts.step_ns == 100e6
    assert found.impact.s_per_step == pytest.approx(0.024)
    assert found.impact.method == "counter share"
    low_s, high_s = found.impact.low_s_per_step, found.impact.high_s_per_step
    assert low_s is not None and high_s is not None
    assert low_s <= 0.024 <= high_s


@pytest.mark.parametrize(
    ("hand_overs_ms", "cost_s", "method"),
    [(10, 0.010, "replay"), (24, 0.024, "counter share"), (None, 0.024, "counter share")],
)
def test_in_a_pipeline_a_slow_link_costs_no_more_than_all_hand_overs(
    make_job: Any, hand_overs_ms: float | None, cost_s: float, method: str
) -> None:
    """24 ms are lost in transfers: what stages wait for their turn meanwhile hides the rest."""
    facts = replace(held_back(make_job, 25e6), replay=Replayed(hand_overs_ms))
    (found,) = rule("link-degraded").run(facts).findings
    assert found.impact.s_per_step == pytest.approx(cost_s)
    assert found.impact.method == method
    low_s, high_s = found.impact.low_s_per_step, found.impact.high_s_per_step
    assert low_s is not None and high_s is not None
    assert low_s <= cost_s <= 0.024 <= high_s + 1e-9


@pytest.mark.parametrize(("late_ms", "cost_ms"), [(0, 36.0), (10, 26.0), (40, 0.0)])
def test_what_passes_while_others_are_late_by_their_own_doing_is_not_lost(
    make_job: Any, late_ms: float, cost_ms: float
) -> None:
    """Of 60 ms in communication a healthy link needs 24, and so much is waiting for rank 3."""
    facts = held_back(make_job, 5e6)
    late = [{"rank": 3, "exposed_gap_ns": late_ms * 1e6 * len(facts.steps), "peer_ratio": 1.0}]
    facts = replace(facts, rows={**facts.rows, "straggler": late})
    found = rule("link-degraded").run(facts).findings
    costs = [f.impact.s_per_step for f in found]
    assert costs == [pytest.approx(cost_ms / 1000) if cost_ms else None]


@pytest.mark.parametrize("messages_ms", [4, 16])
def test_in_a_pipeline_a_slow_link_costs_what_its_messages_take_longer_than_others(
    make_job: Any, messages_ms: float
) -> None:
    """However long all hand-overs take."""
    replay = Replayed(10, messages_ms=messages_ms)
    facts = replace(held_back(make_job, 25e6), replay=replay)
    (found,) = rule("link-degraded").run(facts).findings
    assert found.impact.s_per_step == pytest.approx(messages_ms / 1000)
    assert found.impact.method == "replay"


def test_no_more_is_lost_than_communication_takes_beyond_what_a_healthy_link_needs(
    make_job: Any,
) -> None:
    """At 5 MB/s the 1.2 MB would take 240 ms: bursts pass a shaper, and they took 60, not 24."""
    (found,) = rule("link-degraded").run(held_back(make_job, 5e6)).findings
    assert found.impact.s_per_step == pytest.approx(0.060 - 0.024)


def two_ports(make_job: Any, rates: Sequence[float], **of_second: Any) -> Facts:
    """Two hosts of two ranks each and a NIC, which state their shapers' rates."""
    job = make_job(ranks_count=4, comm_ms=60)
    job.rows["port_counters"] = [
        port("eth0", "tx_bytes", 19 * 12e6, node=f"h{n}", host=f"h{n}", rank=None,
             ranks=[2 * n, 2 * n + 1], is_on_host=True) | (of_second if n else {})
        for n in range(2)
    ]  # fmt: skip
    job.rows["port_levels"] = [
        {"node": row["node"], "port": row["port"], "counter": "tx_shaper_rate", "max_value": rate,
         "attempt": 1, "min_value": rate, "is_from_documentation": False, "source_id": 0,
         "place": 1}
        for row, rate in zip(job.rows["port_counters"], rates, strict=True)
    ]  # fmt: skip
    facts: Facts = job.facts(hosts={0: "h0", 1: "h0", 2: "h1", 3: "h1"})
    return facts


@pytest.mark.parametrize(
    ("rates", "of_second", "fires"),
    [
        ((50e6, 10e6), {}, True),
        ((50e6, 41e6), {}, False),
        # Two of one host, or of two names, need not be there for the same.
        ((50e6, 10e6), {"node": "h0", "host": "h0", "port": "eth1"}, False),
        ((50e6, 10e6), {"port": "eth1"}, False),
        ((50e6, 10e6), {"is_on_host": False}, False),
    ],
)
def test_of_two_hosts_the_slower_nic_holds_the_job(
    make_job: Any, rates: Sequence[float], of_second: dict[str, Any], fires: bool
) -> None:
    found = rule("link-degraded").run(two_ports(make_job, rates, **of_second)).findings
    assert bool(found) is fires
    if fires:
        assert found[0].scope.hosts == ("h1",)
        assert found[0].summary.endswith("shaper to 80 Mbit/s; the job's other port 400 Mbit/s.")


@pytest.mark.parametrize(
    ("late_ms", "groups", "ids"),
    [
        (2, [[0, 1, 2, 3]], ["link-degraded/3"]),
        # It costs more than the link does: it has a slow link of its own.
        (20, [[0, 1, 2, 3]], ["link-degraded/3", "link-degraded/1"]),
        # They never meet in a communicator.
        (2, [[0, 1], [2, 3]], ["link-degraded/3", "link-degraded/1"]),
    ],
)
def test_who_leaves_late_behind_a_slow_link_is_its_victim(
    make_job: Any, late_ms: float, groups: list[list[int]], ids: list[str]
) -> None:
    facts = held_back(make_job, 25e6)
    levels = [dict(row) for row in facts.of("port_levels")]
    for row in levels:
        row["max_value"] = 25e6 if row["port"] == "p3" else 50e6
    leaving = [
        exit_row(r, late_ms if r == 1 else -3, calls_count=20, group_transfer_p50_ns=5 * MS)
        for r in range(4)
    ]
    covered = [coverage(group_id=f"g{n}", ranks=ranks) for n, ranks in enumerate(groups)]
    rows = {**facts.rows, "port_levels": levels, "exit_lateness": leaving,
            "match_coverage": covered}  # fmt: skip
    found = rule("link-degraded").run(replace(facts, rows=rows)).findings
    assert [f.id for f in found] == ids
    if len(ids) == 1:
        names = [e.name for e in found[0].evidence]
        assert "rank 1 behind it leaves its operations late, a step" in names


def test_a_link_that_is_hardly_slower_is_none(make_job: Any) -> None:
    assert not rule("link-degraded").run(held_back(make_job, 41e6)).findings


def test_what_computation_hides_costs_nothing(make_job: Any) -> None:
    (found,) = rule("link-degraded").run(held_back(make_job, 25e6, comm_ms=0)).findings
    assert found.impact.s_per_step is None


# ---------------------------------------------------------------- the fabric's map


def cable(host: str | None = "h1", **told: Any) -> dict[str, Any]:
    """A cable with half of the lanes that its map says are possible."""
    return {
        "node": host or "leaf1", "node_kind": "host" if host else "switch", "port": "mlx5_0/1",
        "peer": "leaf2", "peer_port": "7", "ranks": None, "lanes_count": 2,
        "possible_lanes_count": 4, "speed_bits_s": 100e9, "possible_speed_bits_s": 200e9,
        "hosts_count": None, "source_id": 0, "place": 12,
    } | told  # fmt: skip


def by_map(*rows: dict[str, Any]) -> RuleOutcome:
    return rule("link-degraded").run(Facts(rows={"reduced_cables": list(rows)}))


def test_a_cable_that_could_be_wider_is_told_by_the_map_alone() -> None:
    (finding,) = by_map(cable()).findings
    assert finding.summary == (
        "The cable from h1 mlx5_0/1 to leaf2 port 7 runs at 2 of 4 lanes, 100 of 200 Gbit/s."
    )
    assert finding.severity is Severity.MINOR
    assert finding.scope.hosts == ("h1",)
    assert finding.scope.links == ("h1:mlx5_0/1",)
    assert "whether the job uses it is not known" in finding.confidence.basis
    assert finding.evidence[0].rows[0].place == "line 12"


def test_a_nic_slower_than_most_hosts_of_that_name_is_told() -> None:
    usual: dict[str, Any] = {"possible_lanes_count": None, "hosts_count": 3}
    (finding,) = by_map(cable(**usual)).findings
    assert finding.summary.endswith("runs at 100 Gbit/s, where most of 4 hosts have 200.")
    assert not by_map(cable(**usual | {"hosts_count": 2})).findings  # nobody says what is usual
    assert by_map(cable(**usual | {"speed_bits_s": 160e9})).findings
    assert not by_map(cable(**usual | {"speed_bits_s": 161e9})).findings


def test_cables_of_a_host_are_one_finding_and_those_of_switches_another() -> None:
    ports = [cable(port=f"mlx5_{i}/1") for i in range(5)]
    host, switches = by_map(*ports, cable(None), cable(None, port="9")).findings
    assert host.summary.startswith("The cables from h1 mlx5_0/1 to leaf2 port 7, from h1 mlx5_1/1")
    assert "and 2 more run at 2 of 4 lanes, 100 of 200 Gbit/s." in host.summary
    assert switches.id == "link-degraded/switches"
    assert switches.scope.hosts == ()


def test_of_a_job_only_its_own_hosts_cables_are_told(make_job: MakeJob) -> None:
    job = make_job(comm_ms=60)
    job.rows["reduced_cables"] = [cable("other"), cable("h1", ranks=[1])]
    facts = job.facts(hosts=BY_RANK)
    found = findings("link-degraded", facts)
    assert [f.scope.hosts for f in found] == [("h1",)]
    assert "not known" not in found[0].confidence.basis


def test_a_map_without_slow_cables_and_none_at_all_tell_nothing() -> None:
    assert not by_map(cable(lanes_count=4, speed_bits_s=200e9)).findings
    outcome = rule("link-degraded").run(Facts(rows={}))
    assert not outcome.findings
    assert outcome.not_checked


def three_ports(make_job: Any, rates: Sequence[float], groups: Sequence[Sequence[int]]) -> Facts:
    """Three ranks with a NIC each, which state their shapers' rates."""
    job = make_job(ranks_count=3, comm_ms=60)
    job.rows["port_counters"] = [
        port("eth0", "tx_bytes", 19 * 12e6, node=f"h{n}", host=f"h{n}", rank=n, is_on_host=True)
        for n in range(3)
    ]
    job.rows["port_levels"] = [
        {"node": f"h{n}", "port": "eth0", "counter": "tx_shaper_rate", "max_value": rate,
         "attempt": 1, "min_value": rate, "is_from_documentation": False, "source_id": 0,
         "place": 1}
        for n, rate in enumerate(rates)
    ]  # fmt: skip
    job.rows["match_coverage"] = [
        {"group_id": f"g{i}", "ranks": list(ranks), "is_trusted": True}
        for i, ranks in enumerate(groups)
    ]
    facts: Facts = job.facts(hosts={0: "h0", 1: "h1", 2: "h2"})
    return facts


@pytest.mark.parametrize(
    ("rates", "groups", "joint"),
    [
        ((25e6, 100e6, 25e6), [[0, 1, 2]], (0, 2)),
        ((25e6, 100e6, 27e6), [[0, 1, 2]], (0, 2)),
        ((25e6, 100e6, 35e6), [[0, 1, 2]], ()),  # mended alone, the first gains much
        ((25e6, 100e6, 25e6), [[0, 1], [1, 2]], ()),  # nobody waits for both
        ((100e6, 100e6, 25e6), [[0, 1, 2]], ()),
    ],
    ids=["alike", "nearly", "one much slower", "of two communicators", "one alone"],
)
def test_ports_that_hold_a_communicator_up_alike_have_one_cost(
    make_job: Any,
    rates: Sequence[float],
    groups: Sequence[Sequence[int]],
    joint: tuple[int, ...],
) -> None:
    found = rule("link-degraded").run(three_ports(make_job, rates, groups)).findings
    slow = [(n,) for n, rate in enumerate(rates) if rate < 100e6]
    assert [f.scope.ranks for f in found] == slow
    costs = {f.impact.s_per_step for f in found}
    if joint:
        assert [f.impact.joint_ranks for f in found] == [joint] * 2
        # 1.2 MB at 25 MB/s beside 12 ms at a healthy rate, once.
        assert [f.impact.s_per_step for f in found] == [pytest.approx(0.036)] * 2
        assert sum(f.impact.own_share_ratio or 0 for f in found) == pytest.approx(1)
        assert "The same holds for rank 2: mending one" in found[0].summary
    else:
        assert not any(f.impact.joint_ranks for f in found)
        assert None not in costs
