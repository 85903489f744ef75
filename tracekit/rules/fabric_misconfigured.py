"""
What it means
    Ports of the job are set up differently: packet size, or who obeys congestion control.

How it shows
    The longest packet (MTU) differs between ports that lead to ranks; or a NIC ignores congestion
    notices while others of the job obey them; or a NIC sees marked packets and sends no notice
    while others do.

Why it hurts
    Packets too long for one port are lost or cut up; a sender that does not slow down pushes the
    others aside.

Remedy
    Set all ports alike, from one template.

When this is wrong
    Where congestion control is off everywhere by design, no notices are no fault: only a difference
    within the job is. Management ports may well have another MTU: only ports that lead to ranks
    count.

Source
    Diagnosis D17 and D18: pauses and congestion notices need both ends set alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.thresholds import threshold


class FabricMisconfiguredThresholds(at.PortThresholds):
    """When a difference is a mistake."""

    min_ignored_count: int = threshold(100, "notices ignored, or marks without a notice")
    min_ports_count: int = threshold(3, "ports of the job, to say which is the odd one")


def evaluate(facts: Facts, limits: FabricMisconfiguredThresholds) -> RuleOutcome:
    """One finding a kind of difference."""
    ports = [p for p in at.ports(facts) if at.owners(p)]
    by_link = {(p.node, p.port): p for p in ports}
    sizes = [
        (by_link[r["node"], r["port"]], r)
        for r in facts.of("port_levels")
        if r["counter"] == "mtu"
        and r["last_value"] is not None  # read while the job ran
        and (r["node"], r["port"]) in by_link
    ]
    notices = any(p.of(["rp_cnp_handled", "rp_cnp_ignored", "np_cnp_sent"]) for p in ports)
    if not sizes and not notices:
        needs = at.why_not(facts) or f"{at.NEEDS} of ports that lead to ranks, with their MTU"
        return facts.lacking(needs, at.CAPTURE)
    findings = [*_sizes(facts, limits, sizes), *_notices(facts, limits, ports)]
    return RuleOutcome(tuple(findings))


def _sizes(
    facts: Facts,
    limits: FabricMisconfiguredThresholds,
    sizes: Sequence[tuple[at.Port, Row]],
) -> list[Finding]:
    usual = Counter(float(r["last_value"]) for _, r in sizes).most_common(1)
    if len(sizes) < limits.min_ports_count or not usual or usual[0][1] * 2 <= len(sizes):
        return []
    odd = [(p, r) for p, r in sizes if float(r["last_value"]) != usual[0][0]]
    if not odd:
        return []
    port, row = odd[0]
    said = (
        f"The {at.named(port)} takes packets of {row['last_value']:.0f} bytes, the others of the "
        f"job {usual[0][0]:.0f}."
    )
    evidence = Evidence(
        "longest packet",
        float(row["last_value"]),
        "bytes",
        threshold=usual[0][0],
        query="port_levels",
    )
    return [_finding(facts, [p for p, _ in odd], said, evidence, [r for _, r in odd])]


def _notices(
    facts: Facts, limits: FabricMisconfiguredThresholds, ports: Sequence[at.Port]
) -> list[Finding]:
    obeying = [p for p in ports if p.growth(["rp_cnp_handled"])]
    telling = [p for p in ports if p.growth(["np_cnp_sent"])]
    findings = []
    for port in ports:
        ignored = port.growth(["rp_cnp_ignored"]) or 0.0
        marked = port.growth(["np_ecn_marked_packets"]) or 0.0
        sent = port.growth(["np_cnp_sent"])
        others_obey = [p for p in obeying if p.link != port.link]
        others_tell = [p for p in telling if p.link != port.link]
        if ignored >= limits.min_ignored_count and others_obey and port not in obeying:
            said = f"The {at.named(port)} ignores congestion notices that other NICs obey."
            value, name = ignored, "rp_cnp_ignored"
        elif marked >= limits.min_ignored_count and sent == 0 and others_tell:
            said = f"The {at.named(port)} sees marked packets and sends no notice; others do."
            value, name = marked, "np_ecn_marked_packets"
        else:
            continue
        rows = port.of([name])
        evidence = Evidence(
            name,
            value,
            "count",
            threshold=float(limits.min_ignored_count),
            query="port_counters",
            rows=facts.readings(rows),
        )
        findings.append(_finding(facts, [port], said, evidence, rows))
    return findings


def _finding(
    facts: Facts,
    ports: Sequence[at.Port],
    said: str,
    evidence: Evidence,
    rows: Sequence[Row],
) -> Finding:
    return at.finding(
        facts,
        ports,
        said,
        [evidence],
        rows=rows,
        basis="ports of the same job differ",
        confirm=("compare the configuration of these ports with that of the others",),
        remedy=("set all ports of the job alike",),
    )


RULE = at.rule(
    name="fabric-misconfigured",
    summary="Ports of the job are set up differently.",
    owner="network",
    thresholds=FabricMisconfiguredThresholds(),
    queries=("step_breakdown", *at.QUERIES, "port_levels"),
    evaluate=evaluate,
    cap=Severity.NOTE,
)
