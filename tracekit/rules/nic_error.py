"""
What it means
    A NIC or its link damages packets, goes down, or gives up on connections.

How it shows
    While the job ran: damaged frames (checksum, uncorrectable codewords) at one in a million or
    more, ten times as many as at the other ports; a link that went down; connections given up after
    all retries; a NIC that stalled past its timeout. It costs what transfers took beyond the time
    that the port's bytes need at the usual speed of the job's links.

Why it hurts
    A damaged packet is lost and sent again; a link that goes down stops the job for seconds; a
    connection given up ends it.

Remedy
    Clean or replace cable and optic; then the NIC. Read light levels and error counters first.

When this is wrong
    PAM4 links correct codewords all the time: only those that could not be corrected count. A link
    that is down for good was not used. Some firmware counts nothing: silence is no proof.

Source
    Diagnosis D16 and D20; thresholds for links as NVIDIA's NIC monitor has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules import logged, port_losses
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.thresholds import threshold
from tracekit.wording import listed

DAMAGE = {
    "rx_crc_errors": "frames with a wrong checksum",
    "rx_symbol_errors": "symbol errors",
    "rx_frame_errors": "frames with odd bits",
    "fec_uncorrectable_codewords": "codewords that could not be corrected",
    "link_integrity_errors": "bursts of link errors",
    "rdma_icrc_errors": "packets damaged on the way",
}
DOWN = {
    "link_downed": "times that the link went down",
    "tx_pause_storm_errors": "stalls past the NIC's timeout",
    "rdma_retries_exceeded": "connections given up",
}


class NicErrorThresholds(at.TransferThresholds, logged.HistoryThresholds):
    """When a NIC or its link is at fault."""

    min_damage_ratio: float = threshold(
        1e-6, "damaged of all packets; a healthy link stays far below one in 10^9"
    )
    min_damage_count: int = threshold(10, "fewer are chance")
    min_ahead_ratio: float = threshold(10.0, "times the other ports' median: one link")
    min_downs_count: int = threshold(1, "a link that goes down once stops its traffic for seconds")


def evaluate(facts: Facts, limits: NicErrorThresholds) -> RuleOutcome:
    """One finding a link, from all its views."""
    missing = at.why_not(facts, {*DAMAGE, *DOWN})
    if missing is not None:
        return facts.lacking(missing, at.CAPTURE)
    ports = at.ports(facts)
    damage = {p.link: p.growth(DAMAGE) or 0.0 for p in ports}
    bad: dict[str, list[Row]] = {}
    for port in ports:
        rows = [
            r
            for r in port.of(DOWN)
            # Most ports of a switch are not the job's: one that goes down there is not its fault.
            if float(r["growth"]) >= limits.min_downs_count and port.host is not None
        ]
        count, usual = damage[port.link], at.others_median(damage, port.link) or 0.0
        packets = port.growth(["rx_packets", "rx_unicast_packets"]) or 0.0
        ratio = count / packets if packets else None
        if (
            count >= limits.min_damage_count
            and count >= limits.min_ahead_ratio * usual
            and (ratio is None or ratio >= limits.min_damage_ratio)
        ):
            rows += [r for r in port.of(DAMAGE) if r["growth"]]
        if rows:
            bad[port.link] = rows
    links = at.views(p for p in ports if p.link in bad)
    return RuleOutcome(tuple(_finding(facts, limits, link, bad) for link in links))


def _finding(
    facts: Facts,
    limits: NicErrorThresholds,
    link: Sequence[at.Port],
    bad: Mapping[str, Sequence[Row]],
) -> Finding:
    """One finding for all views of a link, worst view first."""
    ports = sorted(
        at.proved_first(link), key=lambda p: -max(float(r["growth"]) for r in bad[p.link])
    )
    rows = [r for p in ports for r in bad[p.link]]
    first = bad[ports[0].link]
    names = [str(r["counter"]) for r in rows]
    words = [f"{r['growth']:,.0f} {({**DAMAGE, **DOWN})[r['counter']]}" for r in first[:3]]
    is_down = any(name in DOWN for name in names) and ports[0].rank is not None
    evidence = [
        Evidence.count(
            str(r["counter"]),
            r["growth"],
            limits.min_downs_count if r["counter"] in DOWN else limits.min_damage_count,
            "port_counters",
            facts.readings([r]),
        )
        for r in rows[:4]
    ]
    finding = at.finding(
        facts,
        ports,
        f"The {at.named(ports[0])} counts {listed(words)} while the job runs.",
        evidence,
        rows=rows,
        counters=names,
        basis="the port's own counters",
        least=Severity.MINOR if is_down else Severity.NOTE,
        lost_ns=port_losses.slowed_ns(facts, ports),
        confirm=("ethtool -S, ethtool -m (light), mlxlink -c   on the host, twice",),
        remedy=("clean or replace cable and optic; then the NIC",),
    )
    return at.in_history(facts, finding, rows, limits)


RULE = at.rule(
    name="nic-error",
    summary="A NIC or its link damages packets, goes down, or gives up on connections.",
    owner="network",
    thresholds=NicErrorThresholds(),
    queries=("step_breakdown", *at.QUERIES, "port_levels"),
    optional=logged.HISTORY,
    kernel_queries=at.TRANSFER_QUERIES,
    evaluate=evaluate,
    explains=("waiting", "lateness"),
    absorbs=("slow link",),
    states="harm",
)
