"""
What it means
    The network marks packets as having met congestion, and senders slow down for it.

How it shows
    One packet in twenty marked at a port of the job, or congestion notices that slowed a sender,
    and steps are slower when there is more of it (a cause by correlation).

Why it hurts
    A sender that slows down sends less than the link could carry.

Remedy
    Tune the marking thresholds and DCQCN, spread the flows (more queue pairs, adaptive routing),
    stagger what starts together.

When this is wrong
    Marks are how congestion control works: without slower steps they are no finding. Where control
    is off by design there are no notices, and none is no fault.

Source
    Diagnosis D18; DCQCN.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.findings import Evidence
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, Rule, RuleOutcome, Thresholds, lacking, threshold
from tracekit.wording import share

NAME = "ecn-congestion"
MARKS = (
    "tx_queue_ecn_marked_packets",
    "np_ecn_marked_packets",
    "rx_priority_ecn_marked_packets",
)
NOTICES = ("rp_cnp_handled", "np_cnp_sent")


@dataclass(frozen=True)
class EcnCongestionThresholds(Thresholds):
    """When marking is congestion."""

    min_marked_ratio: float = threshold(0.05, "marked of all packets; fewer are control at work")
    min_notices_count: int = threshold(1000, "notices, where no marks are counted")


def evaluate(facts: Facts, limits: EcnCongestionThresholds) -> RuleOutcome:
    """One finding a port whose marks or notices go with slow steps."""
    missing = at.why_not(facts, {*MARKS, *NOTICES})
    if missing is not None:
        return lacking(NAME, missing, at.CAPTURE)
    findings = []
    for port in at.ports(facts):
        marked, notices = port.growth(MARKS), port.growth(NOTICES)
        packets = port.growth(["tx_packets", "rx_packets", "tx_queue_packets"]) or 0.0
        ratio = marked / packets if marked is not None and packets else None
        test = at.tested(facts, [port], (*MARKS, *NOTICES))
        is_much = (ratio or 0.0) >= limits.min_marked_ratio or (
            ratio is None and (notices or 0.0) >= limits.min_notices_count
        )
        if not is_much or test is None or test["verdict"] != "cause":
            continue
        rows = [*port.of(MARKS), *port.of(NOTICES)]
        said = f"{share(ratio)} of its packets" if ratio else f"{notices:,.0f} congestion notices"
        evidence = Evidence(
            name="packets marked of all packets" if ratio else "congestion notices",
            value=ratio if ratio is not None else float(notices or 0.0),
            unit="ratio" if ratio is not None else "count",
            threshold=limits.min_marked_ratio
            if ratio is not None
            else float(limits.min_notices_count),
            query="port_counters",
            rows=at.places(facts, rows),
        )
        findings.append(
            at.finding(
                facts,
                NAME,
                [port],
                f"The {at.named(port)} meets congestion ({said} marked) in slow steps.",
                [evidence],
                rows=rows,
                counters=(*MARKS, *NOTICES),
                basis="marks and slow steps",
                confirm="read marks, notices and queue depth of this port while the job runs",
                remedy="spread the flows; tune marking and DCQCN; stagger collectives",
            )
        )
    return RuleOutcome(tuple(findings))


RULE = Rule(
    name=NAME,
    summary="Packets are marked as having met congestion, and steps are slower for it.",
    owner="network",
    thresholds=EcnCongestionThresholds(),
    queries=("step_breakdown", *at.QUERIES),
    evaluate=evaluate,
    doc=__doc__,
    needs=at.NEEDS,
)
