"""
What it means
    A host pauses the switch: it cannot take in what it is sent, and traffic for others waits too.

How it shows
    Pause frames that the host sent while the job ran (the switch receives them, the NIC sends
    them), for 1 % of the time or 1,000 a second, and ten times as many as from the other hosts.
    Where PCIe stalls of the same NIC grew as well, that is where it is slow. It costs the time that
    its worst port stood paused, as far as no computation hides communication.

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

from collections.abc import Mapping, Sequence
from statistics import median

from tracekit.findings import Evidence, Finding
from tracekit.rules import port_losses
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.thresholds import threshold
from tracekit.wording import share

STALLS = ("pci_read_stall_events", "pci_write_stall_events", "pci_buffer_overflow")


class SlowReceiverThresholds(at.PauseThresholds):
    """When a host is too slow for what it receives."""

    min_paused_ratio: float = threshold(
        0.01, "share of the time that it paused the switch; a healthy fabric rarely pauses"
    )
    min_frames_count: int = threshold(
        1000, "pause frames a second, where their time is not counted (thousands are a fault)"
    )
    min_ahead_ratio: float = threshold(10.0, "times the other hosts' median: one host")


def evaluate(facts: Facts, limits: SlowReceiverThresholds) -> RuleOutcome:
    """One finding a host whose ports pause their switches more than the others' do."""
    every = [(p, pause) for p in at.ports(facts) if (pause := at.paused(facts, p, is_by_host=True))]
    if not every:
        needs = at.why_not(facts, at.PAUSES) or f"{at.NEEDS} of pause frames"
        return facts.lacking(needs, at.CAPTURE)
    hosts: dict[str, list[tuple[at.Port, at.Pause]]] = {}
    for port, pause in every:
        if port.host is not None:
            hosts.setdefault(port.host, []).append((port, pause))
    findings = []
    for host, pauses in sorted(hosts.items()):
        much = [
            (p, x) for p, x in pauses if _is_much(x, limits) and _is_ahead(x, host, hosts, limits)
        ]
        if much:
            findings.append(_finding(facts, limits, much, pauses))
    return RuleOutcome(tuple(findings))


def _is_much(pause: at.Pause, limits: SlowReceiverThresholds) -> bool:
    if pause.ratio is not None:
        return pause.ratio >= limits.min_paused_ratio
    return (pause.frames_per_s or 0.0) >= limits.min_frames_count


def _is_ahead(
    pause: at.Pause,
    host: str,
    hosts: Mapping[str, Sequence[tuple[at.Port, at.Pause]]],
    limits: SlowReceiverThresholds,
) -> bool:
    """Ten times what the other hosts pause, each by its worst port, in the same unit."""
    others = []
    for name, pauses in hosts.items():
        alike = [x.measure for _, x in pauses if (x.ratio is None) == (pause.ratio is None)]
        if name != host and alike:
            others.append(max(alike))
    return not others or pause.measure >= limits.min_ahead_ratio * median(others)


def _finding(
    facts: Facts,
    limits: SlowReceiverThresholds,
    much: Sequence[tuple[at.Port, at.Pause]],
    pauses: Sequence[tuple[at.Port, at.Pause]],
) -> Finding:
    """One finding for all ports of a host, seen from the switch and from the host."""
    timed = [(p, x) for p, x in much if x.ratio is not None] or list(much)
    worst = max(timed, key=lambda m: (not at.unproved(m[1].rows), m[1].measure))[1]
    ports = at.proved_first(p for p, _ in much)
    stalls = max((p.growth(STALLS) or 0.0 for p, _ in pauses), default=0.0)
    is_timed = worst.ratio is not None
    said = (
        f"{share(worst.ratio)} of the time"
        if worst.ratio is not None
        else f"{worst.frames_per_s or 0.0:,.0f} pause frames a second"
    )
    behind = f"; its PCIe stalled {stalls:,.0f} times" if stalls else ""
    rows = [r for _, x in much for r in x.rows]
    least = limits.min_paused_ratio if is_timed else float(limits.min_frames_count)
    evidence = Evidence(
        "time paused, worst port" if is_timed else "pause frames sent, worst port",
        worst.measure,
        "ratio" if is_timed else "count/s",
        threshold=least,
        query="port_counters",
        rows=facts.readings(worst.rows),
    )
    return at.finding(
        facts,
        ports,
        f"{at.host_named(ports)} pauses the switch, {said}{behind}.",
        [evidence],
        rows=rows,
        counters=at.PAUSES,
        basis="who sent the pauses",
        lost_ns=port_losses.paused_ns(facts, ports, worst.ratio or 0.0),
        confirm=(
            "ethtool -S on the host: tx pause, outbound PCIe stalls; lspci -vv: width and speed",
        ),
        remedy=("mend the host's PCIe, memory or NUMA placement; drain it if that takes time",),
    )


RULE = at.rule(
    name="slow-receiver",
    summary="A host pauses the switch: it cannot take in what it is sent.",
    owner="hardware",
    thresholds=SlowReceiverThresholds(),
    queries=("step_breakdown", *at.QUERIES, "port_levels"),
    kernel_queries=at.TRANSFER_QUERIES,
    evaluate=evaluate,
    explains=("waiting", "lateness", "pauses"),
    absorbs=("slow link",),
)
