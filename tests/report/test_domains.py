"""Failure domains: ranks that fail together are one finding, where nobody else fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from port_rules import port
from tracekit.findings import Confidence, Evidence, Finding, Scope, Severity, impact_of
from tracekit.job import JobDescription
from tracekit.report.domains import domains, rolled_up, with_topology
from tracekit.rules import rule
from tracekit.rules.base import Facts, JobFacts

MakeJob = Callable[..., Any]


def finding(rank: int, rule: str = "slow-gpu", cost_s: float = 0.01, **scope: Any) -> Finding:
    return Finding(
        id=f"{rule}/{rank}",
        rule=rule,
        severity=Severity.MAJOR,
        confidence=Confidence(level="possible", basis="peers"),
        summary=f"Rank {rank} is slow.",
        owner="hardware",
        scope=Scope(ranks=(rank,), steps=((1, 5),), **scope),
        when=Any,  # type: ignore[arg-type]  # not looked at
        impact=impact_of(cost_s, 0.1, 8),
        evidence=(Evidence(name=f"of {rank}", value=1.0, unit="s"),),
        confirm=("measure it",),
    )


def test_all_ranks_of_a_host_and_no_other_are_one_finding(make_job: MakeJob) -> None:
    facts = make_job(ranks_count=6).facts()  # hosts h0, h1, h2 of two ranks
    other = finding(4, "gc-pause")
    (one, kept) = rolled_up([finding(2), finding(3, cost_s=0.02), other], facts)
    assert kept == other
    assert (one.id, one.scope.ranks) == ("slow-gpu/2-3", (2, 3))
    assert one.summary == (
        "All 2 traced ranks of host h1 are hit and no other; the worst: Rank 3 is slow."
    )
    assert one.impact.s_per_step == 0.02
    assert [e.name for e in one.evidence] == ["of 2", "of 3"]
    assert one.confirm[0].startswith("look at what the ranks of host h1 share")
    assert one.confirm.count("measure it") == 1


@pytest.mark.parametrize("ranks", [(2,), (2, 4), (2, 3, 4), (0, 1, 2, 3, 4, 5)])
def test_a_part_of_a_domain_or_more_than_one_stays_as_it_is(
    make_job: MakeJob, ranks: tuple[int, ...]
) -> None:
    found = [finding(rank) for rank in ranks]
    assert rolled_up(found, make_job(ranks_count=6).facts()) == found


def test_nothing_is_rolled_up_where_the_place_of_a_rank_is_unknown(make_job: MakeJob) -> None:
    found = [finding(2), finding(3)]
    facts = make_job(ranks_count=6).facts(hosts={2: "h1", 3: "h1", 4: "h2", 5: "h2"})
    assert rolled_up(found, facts) == found
    assert rolled_up(found, make_job(ranks_count=6).facts(hosts={})) == found


def test_the_smallest_domain_is_named(make_job: MakeJob) -> None:
    leaves = {r: "leaf-a" if r < 4 else "leaf-b" for r in range(8)}
    facts = make_job(ranks_count=8).facts(leaves=leaves, rails={r: r % 2 for r in range(8)})
    (one,) = rolled_up([finding(r) for r in range(4)], facts)
    assert one.scope.switches == ("leaf-a",)
    assert "leaf switch leaf-a" in one.summary
    (one,) = rolled_up([finding(r) for r in (1, 3, 5, 7)], facts)
    assert (one.scope.rails, one.scope.switches) == ((1,), ())
    (one,) = rolled_up([finding(r) for r in (4, 5)], facts)
    assert "host h2" in one.summary
    assert [d.kind for d in domains(facts)] == ["host"] * 4 + ["rail"] * 2 + ["leaf switch"] * 2


def test_ranks_that_a_finding_already_joins_count_each(make_job: MakeJob) -> None:
    leaves = {r: "leaf-a" if r < 4 else "leaf-b" for r in range(8)}
    facts = make_job(ranks_count=8).facts(leaves=leaves)
    hosts = [
        replace(
            finding(low), id=f"slow-gpu/{low}", scope=Scope(ranks=(low, low + 1), hosts=(name,))
        )
        for low, name in ((0, "h0"), (2, "h1"))
    ]
    (one,) = rolled_up(hosts, facts)
    assert one.scope.ranks == (0, 1, 2, 3)
    assert one.scope.hosts == ("h0", "h1")


def at_port(host: str, name: str, cost_s: float, ranks: tuple[int, ...] = ()) -> Finding:
    scope = Scope(ranks=ranks, hosts=(host,), links=(f"{host}:{name}",))
    return replace(
        finding(0, "nic-error", cost_s), id=f"nic-error/{host}:{name}", scope=scope,
        summary=f"The NIC {host}:{name} is bad.",
    )  # fmt: skip


def with_nics(make_job: MakeJob, side: bool = True, counts: tuple[int, ...] = (4, 4)) -> Any:
    rows = [
        {
            "node": f"h{h}", "port": f"mlx{n}", "host": f"h{h}", "is_on_host": side,
            "rank": None, "ranks": None, "counter": "rx_crc_errors", "growth": 0.0,
        }
        for h, count in enumerate(counts)
        for n in range(count)
    ]  # fmt: skip
    job = make_job(ranks_count=8)
    job.rows["port_counters"] = rows
    return job.facts(hosts={r: f"h{r // 4}" for r in range(8)})


@pytest.mark.parametrize(("side", "ranks"), [(True, ()), (False, ()), (True, (4, 5, 6, 7))])
def test_all_nics_of_a_host_are_one_finding_that_costs_once(
    make_job: MakeJob, side: bool, ranks: tuple[int, ...]
) -> None:
    found = [at_port("h1", f"mlx{n}", 0.01 + n / 100, ranks) for n in range(4)]
    (one,) = rolled_up(found, with_nics(make_job, side))
    assert one.scope.hosts == ("h1",)
    assert one.scope.links == ("h1:mlx0", "h1:mlx1", "h1:mlx2", "h1:mlx3")
    assert one.summary == (
        "All 4 NICs of host h1 are hit and no other; the worst: The NIC h1:mlx3 is bad."
    )
    assert one.impact.s_per_step == pytest.approx(0.04)
    assert len(one.evidence) == 4
    assert one.id == ("nic-error/4-7" if ranks else "nic-error/h1")


@pytest.mark.parametrize(
    ("hit", "counts"),
    [
        ({"h1": 3}, (4, 4)),  # three of four: each for itself
        ({"h1": 1}, (1, 1)),  # one NIC is its own place
        ({"h0": 4, "h1": 4}, (4, 4)),  # all hosts alike share more than a host
    ],
)
def test_some_nics_of_a_host_or_those_of_all_stay_as_they_are(
    make_job: MakeJob, hit: dict[str, int], counts: tuple[int, ...]
) -> None:
    found = [at_port(host, f"mlx{n}", 0.01) for host, count in hit.items() for n in range(count)]
    assert rolled_up(found, with_nics(make_job, counts=counts)) == found


CRC = "rx_crc_errors"


def below_leaves(
    hit: dict[str, int],
    counts: tuple[int, ...] = (6, 6),
    per_host: int = 1,
    counter: str = CRC,
    healthy_counter: str = CRC,
    **more: Any,
) -> tuple[list[Finding], Facts]:
    """Ports of leaf switches, each towards a NIC of the job, and a finding at the first of some."""
    rows, found = [], []
    for number, count in enumerate(counts):
        leaf = f"leaf{number}"
        for n in range(count):
            host = f"h{number}{n // per_host}"
            rank = number * 100 + n
            is_hit = n < hit.get(leaf, 0)
            rows.append({
                "node": leaf, "port": f"p{n}", "host": host, "is_on_host": False, "rank": rank,
                "ranks": [rank], "counter": counter if is_hit else healthy_counter,
                "growth": 50.0 if is_hit else 0.0,
            } | more)  # fmt: skip
            if is_hit:
                found.append(at_leaf(leaf, n, host, rank))
    return found, Facts(rows={"port_counters": rows})


def at_leaf(leaf: str, number: int, host: str, rank: int) -> Finding:
    link = f"{leaf}:p{number}"
    return replace(
        finding(rank, "nic-error", 0.01 + number / 100),
        id=f"nic-error/{link}",
        scope=Scope(ranks=(rank,), hosts=(host,), links=(link,), switches=(leaf,)),
        evidence=(Evidence(name=CRC, value=50.0, unit="count", query="port_counters"),),
        summary=f"The port {link} is bad.",
    )


def test_most_nics_below_one_leaf_are_the_leafs_fault_and_cost_once() -> None:
    found, facts = below_leaves({"leaf0": 4})
    (one,) = rolled_up(found, facts)
    assert one.scope.switches == ("leaf0",)
    assert one.scope.links == ("leaf0:p0", "leaf0:p1", "leaf0:p2", "leaf0:p3")
    assert one.scope.hosts == ("h00", "h01", "h02", "h03")
    assert "4 of the 6 NICs below leaf switch leaf0" in one.summary
    assert "0 of 6 below others" in one.summary
    assert one.summary.endswith("The port leaf0:p3 is bad.")
    assert one.impact.s_per_step == pytest.approx(0.04)
    assert len(one.evidence) == 4
    assert "leaf switch leaf0" in one.confirm[0]


@pytest.mark.parametrize(
    ("hit", "more"),
    [
        pytest.param({"leaf0": 1}, {"counts": (32, 32)}, id="one bad port of 32"),
        pytest.param({"leaf0": 3}, {}, id="without one of its hosts, 2 of 5 are fewer than half"),
        pytest.param({"leaf0": 2}, {"counts": (2, 6)}, id="two may be chance"),
        pytest.param({"leaf0": 4}, {"counts": (6,)}, id="no other leaf to compare with"),
        pytest.param({"leaf0": 6, "leaf1": 6}, {}, id="all leaves alike"),
        pytest.param({"leaf0": 4, "leaf1": 1}, {"counts": (6, 9)}, id="a ninth of another leaf"),
        pytest.param({"leaf0": 5}, {"per_host": 4}, id="a whole host and one more NIC"),
        pytest.param(
            {"leaf0": 4}, {"healthy_counter": "rx_bytes"}, id="the others do not count it"
        ),
    ],
)
def test_ports_that_a_leaf_does_not_explain_stay_as_they_are(
    hit: dict[str, int], more: dict[str, Any]
) -> None:
    found, facts = below_leaves(hit, **more)
    result = rolled_up(found, facts)
    assert not any("leaf switch" in f.summary for f in result)
    assert {link for f in result for link in f.scope.links} == {f.scope.links[0] for f in found}


def test_a_bad_cable_elsewhere_stays_apart_from_a_bad_leaf() -> None:
    found, facts = below_leaves({"leaf0": 4, "leaf1": 1}, (6, 10))
    one, other = rolled_up(found, facts)
    assert one.scope.switches == ("leaf0",)
    assert "1 of 10 below others" in one.summary
    assert other == found[4]


def test_all_nics_of_two_hosts_below_one_leaf_are_the_leafs() -> None:
    found, facts = below_leaves({"leaf0": 8}, (8, 8), per_host=4)
    (one,) = rolled_up(found, facts)
    assert one.scope.switches == ("leaf0",)
    assert one.scope.hosts == ("h00", "h01")


def test_a_nic_is_below_the_switch_whose_port_leads_to_its_rank() -> None:
    """What the NIC counts, and the switch's port too, are views of one link."""
    found, facts = below_leaves({"leaf0": 4})
    own = [
        dict(row) | {"node": row["host"], "port": "mlx5_0", "is_on_host": True}
        for row in facts.rows["port_counters"]
    ]
    facts = Facts(rows={"port_counters": [*facts.rows["port_counters"], *own]})
    at_nic = [
        replace(f, scope=replace(f.scope, links=(f"{f.scope.hosts[0]}:mlx5_0",), switches=()))
        for f in found
    ]
    (one,) = rolled_up(at_nic, facts)
    assert one.scope.switches == ("leaf0",)
    assert "4 of the 6 NICs" in one.summary
    # Without the switch's counters job.toml may say whose leaf it is; else nobody does.
    alone = Facts(rows={"port_counters": own})
    assert rolled_up(at_nic, alone) == at_nic
    leaves = {row["rank"]: f"leaf{row['rank'] // 100}" for row in own}
    told = replace(alone, job=replace(alone.job, leaves=leaves))
    assert rolled_up(at_nic, told)[0].scope.switches == ("leaf0",)


def cable(host: str, nic_port: str | None, leaf: str) -> dict[str, Any]:
    return {"host": host, "nic_port": nic_port, "leaf": leaf}


def test_the_fabrics_map_says_below_which_leaf_a_nic_is() -> None:
    """Two NICs a host, each on a leaf of its own; only what NICs count is at hand."""
    rows = [
        {"node": f"h{n}", "port": f"mlx5_{nic}", "host": f"h{n}", "is_on_host": True, "rank": None,
         "ranks": [n], "counter": CRC, "growth": 50.0 if nic and n < 5 else 0.0}
        for n in range(6) for nic in range(2)
    ]  # fmt: skip
    cables = [cable(f"H{n}", f"mlx5_{nic}/1", f"leaf{nic}") for n in range(6) for nic in range(2)]
    found = [
        replace(at_leaf("x", 0, f"h{n}", n), id=f"nic-error/{n}",
                scope=Scope(hosts=(f"h{n}",), links=(f"h{n}:mlx5_1",)))
        for n in range(5)
    ]  # fmt: skip
    facts = Facts(rows={"port_counters": rows, "fabric_leaves": cables})
    (one,) = rolled_up(found, facts)
    assert one.scope.switches == ("leaf1",)
    assert "5 of the 6 NICs below leaf switch leaf1" in one.summary
    assert rolled_up(found, Facts(rows={"port_counters": rows})) == found
    # Two cables of one NIC to two switches: nobody knows which of them it is.
    unclear = [
        *cables,
        *(cable(f"h{n}", f"mlx5_{nic}", "leaf9") for n in range(6) for nic in (0, 1)),
    ]
    facts = Facts(rows={"port_counters": rows, "fabric_leaves": unclear})
    assert not any("leaf1" in f.summary for f in rolled_up(found, facts))


def test_ranks_below_one_leaf_of_the_map_are_one_domain(make_job: MakeJob) -> None:
    """Hosts h0 and h1 of two ranks on one leaf, h2 and h3 on the other; job.toml goes before."""
    facts = make_job(ranks_count=8).facts()
    cables = [cable(f"h{n}", f"mlx5_{nic}", f"leaf{n // 2}") for n in range(4) for nic in range(2)]
    mapped = replace(facts, rows={**facts.rows, "fabric_leaves": cables})
    (one,) = rolled_up([finding(rank) for rank in range(4)], mapped)
    assert one.scope.switches == ("leaf0",)
    both = [*cables, cable("h0", "mlx5_2", "leaf7")]
    unknown = replace(facts, rows={**facts.rows, "fabric_leaves": both})
    assert len(rolled_up([finding(rank) for rank in range(4)], unknown)) == 4
    said = dict.fromkeys(range(4), "other-name") | dict.fromkeys(range(4, 8), "second")
    told = replace(mapped, job=replace(mapped.job, leaves=said))
    (one,) = rolled_up([finding(rank) for rank in range(4)], told)
    assert one.scope.switches == ("other-name",)


def test_ports_between_switches_are_below_no_leaf() -> None:
    found, facts = below_leaves({"leaf0": 4}, rank=None, ranks=None)
    assert rolled_up(found, facts) == found


@pytest.mark.parametrize(("bad_count", "is_leaf"), [(5, True), (1, False)])
def test_what_nic_error_finds_at_ports_of_a_leaf_is_told_of_the_leaf(
    bad_count: int, is_leaf: bool
) -> None:
    rows = [
        port(f"p{n}", counter, growth, node=f"leaf{leaf}", host=f"h{leaf}{n}", rank=leaf * 6 + n)
        for leaf in range(2)
        for n in range(6)
        for counter, growth in (
            (CRC, 50.0 if leaf == 1 and n < bad_count else 0.0),
            ("rx_packets", 1e6),
        )
    ]
    facts = Facts(rows={"port_counters": rows})
    found = rule("nic-error").run(facts).findings
    assert len(found) == bad_count
    (one,) = rolled_up(found, facts)
    assert ("leaf switch leaf1" in one.summary) is is_leaf
    assert len(one.scope.links) == bad_count


def rail_fabric(
    hit: dict[tuple[int, int], int],
    hosts_count: int = 8,
    rails_count: int = 4,
    names: str = "mlx5_{}",
    shared_leaf: bool = False,
    counted: str = CRC,
) -> tuple[list[Finding], Facts]:
    """Hosts in two pods, a leaf for each rail of each; findings at the first NICs of a leaf."""
    rows, cables, found = [], [], []
    half = hosts_count // 2
    for h in range(hosts_count):
        for rail in range(rails_count):
            pod, name = h // half, names.format(rail)
            is_hit = h % half < hit.get((pod, rail), 0)
            rows.append({
                "node": f"h{h}", "port": name, "host": f"h{h}", "is_on_host": True, "rank": None,
                "ranks": [h], "counter": CRC if is_hit else counted,
                "growth": 50.0 if is_hit else 0.0,
            })  # fmt: skip
            leaf = f"leaf{pod}" if shared_leaf else f"leaf{pod}{rail}"
            cables.append(cable(f"h{h}", f"{name}/1", leaf) | {"leaf_port": str(h)})
            if is_hit:
                found.append(
                    replace(at_leaf("x", 0, f"h{h}", h), id=f"nic-error/h{h}:{name}",
                            scope=Scope(hosts=(f"h{h}",), links=(f"h{h}:{name}",)))
                )  # fmt: skip
    return found, Facts(rows={"port_counters": rows, "fabric_leaves": cables})


def test_a_rail_that_errs_below_all_its_leaves_is_one_finding() -> None:
    """Rail 2 has a leaf in each pod of four hosts: of either half of its NICs is hit or more."""
    found, facts = rail_fabric({(0, 2): 3, (1, 2): 2})
    (one,) = rolled_up(found, facts)
    assert (one.scope.rails, one.scope.switches) == ((2,), ("leaf02", "leaf12"))
    assert one.id == "nic-error/rail-2"
    assert "5 of the 8 NICs of rail 2 are hit, and 0 of 24 of others" in one.summary
    assert one.confirm[0].startswith("look at what the ranks of rail 2 share")
    assert len(one.scope.links) == 5


@pytest.mark.parametrize(
    ("hit", "more"),
    [
        pytest.param({(0, 2): 3, (1, 2): 1}, {}, id="below one of its leaves a quarter"),
        pytest.param({(0, n): 1 for n in range(4)}, {}, id="spread over the rails"),
        pytest.param({(p, 2): 4 for p in (0, 1)} | {(0, 1): 3}, {}, id="an eighth of the others"),
        pytest.param({(0, 2): 2, (1, 2): 2}, {"shared_leaf": True}, id="a leaf of all rails"),
        pytest.param({(0, 2): 2, (1, 2): 2}, {"names": "ens{}np0"}, id="numbers in the middle"),
        pytest.param({(0, 2): 2, (1, 2): 2}, {"counted": "rx_bytes"}, id="others do not count it"),
    ],
)
def test_nics_that_no_rail_explains_stay_as_they_are(
    hit: dict[tuple[int, int], int], more: dict[str, Any]
) -> None:
    found, facts = rail_fabric(hit, **more)
    assert not any(f.scope.rails for f in rolled_up(found, facts))


def test_one_leaf_of_a_rail_is_told_as_the_leaf() -> None:
    found, facts = rail_fabric({(0, 2): 4})
    (one,) = rolled_up(found, facts)
    assert (one.scope.rails, one.scope.switches) == ((), ("leaf02",))


def between_switches(
    hit: set[tuple[int, int]],
    leaves_count: int = 4,
    spines_count: int = 4,
    ends: tuple[str, ...] = ("upper",),
    healthy_counter: str = CRC,
) -> tuple[list[Finding], Facts]:
    """A cable from each leaf to each spine; findings at those ends of the hit ones (leaf, spine)
    that count."""
    rows, cables, found = [], [], []
    for leaf in range(leaves_count):
        for spine in range(spines_count):
            is_hit = (leaf, spine) in hit
            cables.append({
                "lower": f"leaf{leaf}", "lower_port": f"u{spine}", "lower_tier": 1,
                "upper": f"spine{spine}", "upper_port": f"d{leaf}",
            })  # fmt: skip
            for end in ends:
                node, name = (
                    (f"Leaf{leaf}.dc", f"u{spine}") if end == "lower" else
                    (f"Spine{spine}.dc", f"d{leaf}")
                )  # fmt: skip
                rows.append({
                    "node": node, "port": name, "host": None, "is_on_host": None, "rank": None,
                    "ranks": None, "counter": CRC if is_hit else healthy_counter,
                    "growth": 50.0 if is_hit else 0.0,
                })  # fmt: skip
                if is_hit:
                    scope = Scope(links=(f"{node}:{name}",), switches=(node,))
                    at = f"nic-error/{node}:{name}"
                    found.append(replace(at_leaf("x", 0, "h", 0), id=at, scope=scope))
    return found, Facts(rows={"port_counters": rows, "fabric_uplinks": cables})


@pytest.mark.parametrize("ends", [("upper",), ("lower",), ("lower", "upper")])
def test_a_spine_all_of_whose_cables_err_is_one_finding(ends: tuple[str, ...]) -> None:
    found, facts = between_switches({(leaf, 1) for leaf in range(4)}, ends=ends)
    (one,) = rolled_up(found, facts)
    assert (one.scope.switches, one.scope.hosts, one.scope.rails) == (("spine1",), (), ())
    assert one.id == "nic-error/spine1"
    assert one.summary.startswith(
        "4 of the 4 cables to spine switch spine1 are hit, and 0 of 12 to others; the worst: "
    )
    assert one.confirm[0].startswith("look at what the cables of spine switch spine1 share: its")
    assert len(one.scope.links) == 4 * len(ends)
    assert rolled_up(found, replace(facts, rows={**facts.rows, "fabric_uplinks": []})) == found


def test_a_leaf_all_of_whose_uplinks_err_is_one_finding() -> None:
    found, facts = between_switches({(2, spine) for spine in range(4)})
    (one,) = rolled_up(found, facts)
    assert (one.id, one.scope.switches) == ("nic-error/uplinks-of-leaf2", ("leaf2",))
    assert "4 of the 4 uplinks of leaf switch leaf2 are hit" in one.summary


@pytest.mark.parametrize(
    ("hit", "more"),
    [
        pytest.param({(n, n) for n in range(4)}, {}, id="spread evenly over spines and leaves"),
        pytest.param({(0, 1), (1, 1)}, {}, id="without one of its leaves, 1 of 3"),
        pytest.param(
            {(leaf, 1) for leaf in range(4)} | {(0, 0), (2, 2)}, {}, id="a sixth of the others"
        ),
        pytest.param(
            {(leaf, spine) for leaf in range(4) for spine in range(4)}, {}, id="all alike"
        ),
        pytest.param({(leaf, 0) for leaf in range(4)}, {"spines_count": 1}, id="no other spine"),
        pytest.param(
            {(leaf, 1) for leaf in range(4)}, {"healthy_counter": "rx_bytes"},
            id="the others do not count it",
        ),
    ],
)  # fmt: skip
def test_cables_that_no_switch_explains_stay_as_they_are(
    hit: set[tuple[int, int]], more: dict[str, Any]
) -> None:
    found, facts = between_switches(hit, **more)
    assert rolled_up(found, facts) == found


def test_leaf_and_rail_come_from_the_job_description() -> None:
    job = msgspec.convert(
        {
            "hardware": {"gpus_per_node": 2, "nics_per_node": 2},
            "port": [
                {"node": "leaf-a", "port": "1", "host": "h0"},
                {"node": "leaf-a", "port": "2", "host": "h0"},
                {"node": "leaf-a", "port": "3", "host": "h1"},
                {"node": "leaf-b", "port": "3", "host": "h1"},
                {"node": "leaf-b", "port": "4", "rank": 3},
                {"node": "h0", "port": "mlx5_0", "host": "h0"},
            ],
        },
        JobDescription,
    )
    known = JobFacts(
        hosts={0: "h0", 1: "h0", 2: "h1", 3: "h1"}, rank_sources=dict.fromkeys(range(4), "file")
    )
    facts = with_topology(known, job)
    # Rank 2 may be behind either switch.
    assert facts.leaves == {0: "leaf-a", 1: "leaf-a", 3: "leaf-b"}
    assert facts.rails == {0: 0, 1: 1, 2: 0, 3: 1}
    assert with_topology(known, None) == known


def test_ranks_without_a_trace_are_placed_and_racks_are_domains(make_job: MakeJob) -> None:
    job = msgspec.convert(
        {
            "hardware": {"gpus_per_node": 2, "rails": 2},
            "rank": [{"rank": r, "host": f"H{r // 2}.example"} for r in range(2, 6)],
            "host": [
                {"host": "h0", "rack": "r1", "leaf": "leaf-a"},
                {"host": "h1", "rack": "r1", "leaf": "leaf-a"},
                {"host": "h2.example", "rack": "r2"},
            ],
        },
        JobDescription,
    )
    known = JobFacts(
        world_size=6, hosts={0: "h0", 1: "h0"}, rank_sources=dict.fromkeys(range(2), "file")
    )
    facts = with_topology(known, job)
    assert facts.placed_hosts == {0: "h0", 1: "h0", 2: "h1", 3: "h1", 4: "h2", 5: "h2"}
    assert facts.racks == {0: "r1", 1: "r1", 2: "r1", 3: "r1", 4: "r2", 5: "r2"}
    assert facts.leaves == dict.fromkeys(range(4), "leaf-a")
    assert facts.rails == {r: r % 2 for r in range(6)}
    assert facts.hosts == known.hosts


def test_all_traced_ranks_of_a_rack_are_one_finding(make_job: MakeJob) -> None:
    facts = make_job(ranks_count=8).facts(racks={r: "r1" if r < 4 else "r2" for r in range(8)})
    (one,) = rolled_up([finding(r) for r in range(4)], facts)
    assert (one.scope.racks, one.scope.switches) == (("r1",), ())
    assert "All 4 traced ranks of rack r1 are hit and no other" in one.summary
    assert "top-of-rack" in one.confirm[0]
    # A host is smaller than its rack.
    (one,) = rolled_up([finding(r) for r in (4, 5)], facts)
    assert (one.scope.racks, "host h2" in one.summary) == ((), True)
