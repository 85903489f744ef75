"""Links that their own port says are slower than those of the job's other ports."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high

from msgspec.structs import replace

from tracekit.findings import Evidence, Finding
from tracekit.rules import port_losses
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, Row
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranks_phrase

QUERIES = (*at.QUERIES, "port_levels")
SPEEDS = {
    "link_speed": ("bits/s", "runs at"),
    "link_width": ("lanes", "runs on"),
    "tx_shaper_rate": ("bytes/s", "is held by a shaper to"),
}


class SpeedThresholds(at.TransferThresholds):
    """When a port's own word makes its link slow."""

    min_ports_count: int = threshold(
        3,
        "ports that state it, to say what is usual; of two of one name on two hosts none has to"
        " be: the job is held by the slower",
    )
    min_alike_ratio: float = threshold(
        0.75,
        "of the costliest slow port's cost: with less, mending that one alone gains a quarter of it"
        " or more, and each has its own cost",
    )
    max_speed_ratio: float = threshold(
        0.8, "of the other ports' median: speeds come in steps of two, so below is another speed"
    )


def slow_links(facts: Facts) -> list[Finding]:
    """One finding a port of the job that is slower than the others by its own word."""
    limits = facts.limits(SpeedThresholds)
    by_link = {(p.node, p.port): p for p in at.ports(facts) if at.owners(p)}
    findings: dict[str, Finding] = {}
    for counter in SPEEDS:
        rows = [
            r
            for r in facts.of("port_levels")
            if r["counter"] == counter and (r["node"], r["port"]) in by_link and r["max_value"]
        ]
        for row in rows:
            port = by_link[row["node"], row["port"]]
            peers = {
                (r["node"], r["port"]): float(r["max_value"])
                for r in rows
                if r is not row and by_link[r["node"], r["port"]].is_on_host == port.is_on_host
            }
            if len(peers) + 1 < limits.min_ports_count and not _is_pair(
                port, [by_link[link] for link in peers]
            ):
                continue
            # A speed that some port has: of a slow and a fast one the fast one is usual.
            usual = median_high(peers.values())
            if float(row["max_value"]) <= limits.max_speed_ratio * usual:
                made = _finding(facts, limits, port, row, usual, len(peers))
                findings.setdefault(port.link, made)
    return _together(facts, limits, list(findings.values()))


def _together(facts: Facts, limits: SpeedThresholds, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with one cost for ports of one communicator that hold it up alike: without one
    of them it waits for the other just as long, so that the costs do not add up."""
    groups = [{int(r) for r in row["ranks"] or ()} for row in facts.of("match_coverage")]
    joined = {f.scope.links: f for f in findings}
    left = sorted(findings, key=lambda f: -(f.impact.s_per_step or 0.0))
    while left:
        first, *rest = left
        cost_s = first.impact.s_per_step or 0.0
        alike = [
            f
            for f in rest
            if f.scope.ranks != first.scope.ranks
            and any({*f.scope.ranks} & g and {*first.scope.ranks} & g for g in groups)
            and (f.impact.s_per_step or 0.0) >= limits.min_alike_ratio * cost_s > 0
        ]
        members = [first, *alike]
        left = [f for f in rest if f not in alike]
        total_s = sum(f.impact.s_per_step or 0.0 for f in members)
        ranks = tuple(sorted({r for f in members for r in f.scope.ranks}))
        for f in members if alike else ():
            others = ranks_phrase([r for r in ranks if r not in f.scope.ranks], facts.ranks).lower()
            share = (f.impact.s_per_step or 0.0) / total_s
            joined[f.scope.links] = replace(
                f,
                summary=f"{f.summary} The same holds for {others}: mending one alone gains little.",
                severity=first.severity,
                impact=replace(first.impact, joint_ranks=ranks, own_share_ratio=share),
            )
    return [*joined.values()]


def _is_pair(port: at.Port, peers: Sequence[at.Port]) -> bool:
    """Whether these are the one NIC of one host and that of the other, by their name."""
    if len(peers) != 1 or not port.is_on_host or port.host is None:
        return False
    (peer,) = peers
    return peer.host not in (None, port.host) and peer.port == port.port


def _finding(
    facts: Facts,
    limits: SpeedThresholds,
    port: at.Port,
    row: Row,
    usual: float,
    others_count: int,
) -> Finding:
    unit, verb = SPEEDS[row["counter"]]
    shown = [f"{_shown(v, unit)}" for v in (float(row["max_value"]), usual)]
    others = "other ports" if others_count > 1 else "other port"
    evidence = Evidence(
        str(row["counter"]),
        float(row["max_value"]),
        unit,
        threshold=limits.max_speed_ratio * usual,
        query="port_levels",
    )
    return at.finding(
        facts,
        [port],
        f"The {at.named(port)} {verb} {shown[0]}; the job's {others} {shown[1]}.",
        [evidence],
        rows=[row],
        basis="the port's own word",
        lost_ns=port_losses.slowed_ns(facts, [port]) or _held_ns(facts, port, row, usual),
        confirm=("read speed and width of this port and of a peer; then its cable and optic",),
        remedy=("replace cable or optic, or lift the limit; drain the machine until then",),
    )


def _held_ns(facts: Facts, port: at.Port, row: Row, usual: float) -> float:
    """What the port's bytes take longer than at its peers' rate; of lanes no rate is known."""
    to_bytes = {"bits/s": 0.125, "bytes/s": 1.0}.get(SPEEDS[row["counter"]][0])
    if to_bytes is None:
        return 0.0
    return port_losses.held_ns(facts, port, float(row["max_value"]) * to_bytes, usual * to_bytes)


def _shown(value: float, unit: str) -> str:
    if unit == "lanes":
        return f"{value:.0f} lanes"
    bits = value if unit == "bits/s" else value * 8
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
