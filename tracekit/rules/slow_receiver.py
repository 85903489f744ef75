"""
What it means
    A host pauses the switch: it cannot take in what it is sent, and traffic for others waits too.

How it shows
    Pause frames that the host sent while the job ran (the switch receives them, the NIC sends
    them), for 1 % of the time or 1,000 a second, and ten times as many as from the other hosts.
    Where PCIe stalls of the same NIC grew as well, that is where it is slow.

Why it hurts
    A paused port fills the switch behind it; the pause spreads to ports that serve other hosts.

Remedy
    Look inside the host: PCIe width and speed, IOMMU, memory bandwidth, NUMA placement of buffers,
    a NIC that ran out of its cache of connections.

When this is wrong
    If many senders meet at this host, it pauses because too much comes at once: then its traffic
    stands out as well (incast). Pauses that the host receives say nothing of it: they come from
    congestion behind the switch. Bursts of pause in every step are normal below the threshold.

Source
    Diagnosis D17; Microsoft's RDMA at scale: thousands of pause frames a second from one host are
    that host's fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.findings import Evidence, Finding, Severity, confidence_from, severity_of
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, Rule, RuleOutcome, Thresholds, lacking, threshold
from tracekit.wording import share

NAME = "slow-receiver"
STALLS = ("pci_read_stall_events", "pci_write_stall_events", "pci_buffer_overflow")


@dataclass(frozen=True)
class SlowReceiverThresholds(Thresholds):
    """When a host is too slow for what it receives."""

    min_paused_ratio: float = threshold(
        0.01, "share of the time that it paused the switch; a healthy fabric rarely pauses"
    )
    min_frames_count: int = threshold(
        1000, "pause frames a second, where their time is not counted (thousands are a fault)"
    )
    min_ahead_ratio: float = threshold(10.0, "times the other hosts' median: one host")


def evaluate(facts: Facts, limits: SlowReceiverThresholds) -> RuleOutcome:
    """One finding a host that pauses the switch more than the others do."""
    every = [(p, pause) for p in at.ports(facts) if (pause := at.paused(facts, p, is_by_host=True))]
    if not every:
        needs = at.why_not(facts, at.PAUSES) or f"{at.NEEDS} of pause frames"
        return lacking(NAME, needs, at.CAPTURE)
    found = []
    for port, pause in every:
        if port.host is None:
            continue
        ratio, rate = pause.ratio, pause.frames_per_s
        is_much = (
            ratio >= limits.min_paused_ratio
            if ratio is not None
            else (rate or 0.0) >= limits.min_frames_count
        )
        shares = {p.link: other.measure for p, other in every}
        usual = at.others_median(shares, port.link)
        if is_much and pause.measure >= limits.min_ahead_ratio * (usual or 0.0):
            found.append(_finding(facts, limits, port, pause, usual))
    return RuleOutcome(tuple(found))


def _finding(
    facts: Facts,
    limits: SlowReceiverThresholds,
    port: at.Port,
    pause: at.Pause,
    usual: float | None,
) -> Finding:
    scope = at.scope_of(facts, [port])
    test = at.tested(facts, [port], at.PAUSES)
    impact = at.impact(facts, test)
    against = at.unproved(pause.rows)
    stalls = port.growth(STALLS)
    much = (
        f"{share(pause.ratio)} of the time"
        if pause.ratio is not None
        else f"{pause.frames_per_s or 0.0:,.0f} pause frames a second"
    )
    behind = f"; its PCIe stalled {stalls:,.0f} times" if stalls else ""
    return Finding(
        id=f"{NAME}/{at.where(scope)}",
        rule=NAME,
        severity=Severity.NOTE if against else severity_of(impact.step_ratio),
        confidence=confidence_from(
            ["counters", "step times"] if impact.s_per_step is not None else ["counters"],
            "who sent the pauses" + at.tested_words(test),
        ),
        summary=f"{at.host_named(port)} pauses the switch, {much}{behind}.",
        owner="hardware",
        scope=scope,
        when=at.when(facts),
        impact=impact,
        evidence=(
            Evidence(
                name="time paused" if pause.ratio is not None else "pause frames sent",
                value=pause.measure,
                unit="ratio" if pause.ratio is not None else "count/s",
                threshold=max(
                    limits.min_paused_ratio
                    if pause.ratio is not None
                    else float(limits.min_frames_count),
                    limits.min_ahead_ratio * (usual or 0.0),
                ),
                query="port_counters",
                rows=at.places(facts, pause.rows),
            ),
            *at.tested_evidence(test),
        ),
        counter_evidence=against,
        confirm=(
            "ethtool -S on the host: tx pause, outbound PCIe stalls; lspci -vv: width and speed",
        ),
        remedy=("mend the host's PCIe, memory or NUMA placement; drain it if that takes time",),
    )


RULE = Rule(
    name=NAME,
    summary="A host pauses the switch: it cannot take in what it is sent.",
    owner="hardware",
    thresholds=SlowReceiverThresholds(),
    queries=("step_breakdown", *at.QUERIES),
    evaluate=evaluate,
    doc=__doc__,
    needs=at.NEEDS,
    absorbs=("link-degraded",),
)
