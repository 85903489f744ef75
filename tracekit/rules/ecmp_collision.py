"""
What it means
    A switch puts the flows of two uplinks on one, while another stands nearly idle.

How it shows
    Of the ports of one switch that lead to other switches, one sent 1.5 times their mean or more
    while the job ran and another a quarter of it or less; together they carried a fifth or more of
    what the job's ports sent into that switch. It costs what transfers of the ranks behind took
    beyond the time that their bytes need.

Why it hurts
    Flows that share an uplink get half of it each, and a ring is as fast as its slowest member.

Remedy
    More queue pairs for each connection (NCCL_IB_QPS_PER_CONNECTION), adaptive routing or packet
    spraying, or pinned paths.

When this is wrong
    Few flows never spread evenly: without slow transfers it stays a note. An uplink that is down or
    drained is idle for another reason. Uplinks of other speeds are not compared. Which ports lead
    to other switches is known only where LLDP or job.toml says so and those switches count too.
    Where every call has a member without a trace its price is open, and it is a note.

Source
    Diagnosis D19.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tracekit.findings import Evidence, Finding, Scope
from tracekit.rules import port_losses
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.thresholds import threshold
from tracekit.wording import safe, share

NEEDS = (
    "counters of ports between switches, and where they lead (LLDP, or [[port]] in job.toml), of "
    "both switches"
)


class EcmpCollisionThresholds(at.TransferThresholds):
    """When uplinks are used unevenly enough."""

    min_skew_ratio: float = threshold(1.5, "busiest uplink over the mean (D19)")
    max_idle_ratio: float = threshold(0.25, "least used uplink over the mean: it could take half")
    min_traffic_ratio: float = threshold(
        0.2, "what the uplinks carry over what the job sends into the switch: else background"
    )
    min_lost_ratio: float = threshold(
        0.01,
        "of the step that even short calls lost, where every call has a member without a trace:"
        " then the price is open, else uplinks that are not full cost nothing",
    )
    min_uplinks_count: int = threshold(2, "uplinks among which flows are spread")


def evaluate(facts: Facts, limits: EcmpCollisionThresholds) -> RuleOutcome:
    """One finding a switch whose flows collide."""
    every = at.ports(facts)
    nodes = {p.node for p in every if not p.is_on_host and p.node}
    hosts = set(facts.job.hosts.values())
    uplinks: dict[str, list[at.Port]] = {}
    for port in every:
        is_between = port.host in nodes and port.host not in hosts and not at.owners(port)
        if port.node and is_between and not port.is_on_host:
            uplinks.setdefault(port.node, []).append(port)
    below: dict[str, list[at.Port]] = {}
    for port in every:
        if port.node and not port.is_on_host and at.owners(port):
            below.setdefault(port.node, []).append(port)
    judged = {
        node: links
        for node, links in uplinks.items()
        if node in below and len(links) >= limits.min_uplinks_count
    }
    if not judged:
        return facts.lacking(at.why_not(facts) or NEEDS, at.CAPTURE)
    findings = []
    for node, links in sorted(judged.items()):
        collided = _finding(facts, limits, node, _alike(facts, links), below[node])
        if collided is not None:
            findings.append(collided)
    return RuleOutcome(tuple(findings))


def _alike(facts: Facts, uplinks: Sequence[at.Port]) -> list[at.Port]:
    """Uplinks that are up and run at the speed of the fastest, as far as they say."""
    levels = {(r["node"], r["port"], r["counter"]): r for r in facts.of("port_levels")}

    def level(port: at.Port, counter: str) -> float | None:
        row = levels.get((port.node, port.port, counter))
        return None if row is None or row["max_value"] is None else float(row["max_value"])

    up = [p for p in uplinks if level(p, "link_up") != 0.0]
    speeds = {p.link: level(p, "link_speed") for p in up}
    fastest = max((s for s in speeds.values() if s), default=None)
    return [p for p in up if fastest is None or speeds[p.link] in (None, fastest)]


def _finding(
    facts: Facts,
    limits: EcmpCollisionThresholds,
    node: str,
    uplinks: Sequence[at.Port],
    below: Sequence[at.Port],
) -> Finding | None:
    sent = {p.link: p.growth(["tx_bytes"], "tx") for p in uplinks}
    known = {link: bytes_ for link, bytes_ in sent.items() if bytes_ is not None}
    entered = sum(p.growth(["rx_bytes"], "rx") or 0.0 for p in below)
    total = sum(known.values())
    if len(known) < limits.min_uplinks_count or not entered:
        return None
    mean = total / len(known)
    busiest, idlest = max(known, key=lambda k: known[k]), min(known, key=lambda k: known[k])
    skew, idle = known[busiest] / mean if mean else 0.0, known[idlest] / mean if mean else 1.0
    if (
        total < limits.min_traffic_ratio * entered
        or skew < limits.min_skew_ratio
        or idle > limits.max_idle_ratio
    ):
        return None
    shown = [p for p in uplinks if p.link in (busiest, idlest)]
    rows = [r for p in shown for r in p.of(["tx_bytes"], "tx")]
    evidence = (
        Evidence.ratio(
            "bytes of the busiest uplink over the mean",
            skew,
            limits.min_skew_ratio,
            "port_counters",
            facts.readings(rows),
        ),
        Evidence.ratio(
            "bytes of the least used uplink over the mean",
            idle,
            limits.max_idle_ratio,
            "port_counters",
        ),
    )
    short_ns = port_losses.open_price(facts, below).short_ns
    is_open = short_ns > 0 and short_ns >= limits.min_lost_ratio * facts.steps.step_ns
    # The uplink is at fault; the ranks behind it are its victims.
    scope = replace(
        Scope(steps=facts.scope([], facts.steps.keys).steps),
        links=(busiest, idlest),
        switches=(node,),
        identity_source=at.scope_of(facts, shown).identity_source,
    )
    finding = at.finding(
        facts,
        shown,
        f"Switch {safe(node)} puts {skew:.1f} times the mean on uplink {safe(busiest)} and "
        f"{share(idle)} of it on {safe(idlest)}.",
        evidence,
        rows=rows,
        basis="bytes of the switch's own uplinks",
        scope=scope,
        place=node,
        lost_ns=port_losses.slowed_ns(facts, list(below)),
        victims=sorted({r for p in below for r in at.owners(p)}),
        confirm=("read the bytes of these uplinks twice while the job runs; then the ECMP table",),
        remedy=("more queue pairs a connection, adaptive routing, or pinned paths",),
    )
    return port_losses.left_open(facts, finding) if is_open else finding


RULE = at.rule(
    name="ecmp-collision",
    summary="A switch puts the flows of two uplinks on one.",
    owner="network",
    thresholds=EcmpCollisionThresholds(),
    queries=("step_breakdown", *at.QUERIES, "port_levels"),
    kernel_queries=at.SHARED_QUERIES,
    evaluate=evaluate,
    needs=NEEDS,
    explains=("waiting", "lateness"),
    states="shared link",
)
