"""
What it means
    Many senders reach one receiver at once: the queue of its port fills, and they are held back.

How it shows
    One packet in twenty towards a rank is marked as having met congestion at its port (where the
    switches mark none at all: one in 10,000 is dropped there), ten times as many as at the other
    ports; the switch pauses two or more other ports of the job meanwhile, or the job exchanges all
    to all; and the host itself pauses nobody. It costs what transfers took beyond the time that
    the port's bytes need.

Why it hurts
    The port can send no faster than its link; what comes faster waits, and holds up all who send.

Remedy
    Spread the exchange over time (staggered or pairwise all-to-all, receiver-driven admission) or
    over NICs; balance who gets how much (experts).

When this is wrong
    A host that pauses its switch is slow itself (slow-receiver). A port that runs slower than the
    others fills its queue without any incast (link-degraded). Marks everywhere are a fabric's load
    (ecn-congestion). A long queue alone, without marks or drops, accuses nobody; nor do drops
    where switches mark: a queue that fills is marked long before it drops (packet-loss).

Source
    Diagnosis D18; a queue grows in the switch before the port that drains it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.findings import Evidence, Finding
from tracekit.rules import port_links, port_losses
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.ecn_congestion import MARKS
from tracekit.rules.thresholds import threshold
from tracekit.wording import plural, share

QUEUE_DROPS = ("tx_queue_dropped_packets", "tx_dropped_packets")
MANY_TO_ONE = frozenset({"all_to_all", "all_to_allv", "gather", "reduce"})


class IncastThresholds(port_links.SpeedThresholds):
    """When a port gets too much at once."""

    min_marked_ratio: float = threshold(0.05, "marked of all packets; fewer are control at work")
    min_dropped_ratio: float = threshold(1e-4, "dropped of all packets, where nothing is marked")
    min_ahead_ratio: float = threshold(10.0, "times the other ports' median: one receiver")
    min_paused_ratio: float = threshold(0.01, "share of the time that a sender is held back")
    min_senders_count: int = threshold(2, "senders that are held back: one is no crowd")
    max_host_paused_ratio: float = threshold(
        0.01, "share of the time that the host pauses its switch: above, it is slow itself"
    )


def evaluate(facts: Facts, limits: IncastThresholds) -> RuleOutcome:
    """One finding a receiver at whose port too much meets."""
    missing = at.why_not(facts, {*MARKS, *QUEUE_DROPS})
    if missing is not None:
        return facts.lacking(missing, at.CAPTURE)
    every = at.ports(facts)
    switch = [p for p in every if not p.is_on_host and at.owners(p)]
    if not switch:
        return facts.lacking("counters of switch ports that lead to ranks", at.CAPTURE)
    slow = {f.scope.ranks for f in port_links.slow_links(facts)}
    is_marking = any(p.growth(MARKS, "tx") for p in switch)
    shares = {p.link: _congested(p, limits, is_marking=is_marking) for p in switch}
    findings = []
    for port in switch:
        usual = at.others_median(shares, port.link) or 0.0
        is_one = shares[port.link] >= max(1.0, limits.min_ahead_ratio * usual)
        if not is_one or at.owners(port) in slow or _pauses(facts, port, every, limits):
            continue
        senders = _held(facts, port, switch, limits)
        if len(senders) < limits.min_senders_count and not _is_many_to_one(facts):
            continue
        findings.append(_finding(facts, limits, port, every, senders))
    return RuleOutcome(tuple(findings))


def _ratio(port: at.Port, counters: Sequence[str]) -> float | None:
    packets = port.growth(["tx_queue_packets", "tx_packets", "tx_unicast_packets"], "tx") or 0.0
    count = port.growth(counters, "tx")
    return count / packets if count is not None and packets else None


def _congested(port: at.Port, limits: IncastThresholds, *, is_marking: bool) -> float:
    """How many times what is marked (or dropped, if nobody marks) is above its threshold."""
    marked = _ratio(port, MARKS)
    dropped = None if is_marking else _ratio(port, QUEUE_DROPS)
    return max(
        (marked or 0.0) / limits.min_marked_ratio, (dropped or 0.0) / limits.min_dropped_ratio
    )


def _pauses(
    facts: Facts, port: at.Port, every: Sequence[at.Port], limits: IncastThresholds
) -> bool:
    """Whether the host behind a port pauses its switches: then it is slow, not overwhelmed."""
    of_host = [p for p in every if p.host == port.host]
    pauses = [x for p in of_host if (x := at.paused(facts, p, is_by_host=True)) is not None]
    return any((x.ratio or 0.0) >= limits.max_host_paused_ratio for x in pauses)


def _held(
    facts: Facts, port: at.Port, switch: Sequence[at.Port], limits: IncastThresholds
) -> list[at.Port]:
    """Other ports of the job whose hosts the switch pauses."""
    return [
        p
        for p in switch
        if p.host != port.host
        and (x := at.paused(facts, p, is_by_host=False)) is not None
        and (x.ratio or 0.0) >= limits.min_paused_ratio
    ]


def _is_many_to_one(facts: Facts) -> bool:
    return any(row["op"] in MANY_TO_ONE for row in facts.of("comm_summary"))


def _finding(
    facts: Facts,
    limits: IncastThresholds,
    port: at.Port,
    every: Sequence[at.Port],
    senders: Sequence[at.Port],
) -> Finding:
    marked, dropped = _ratio(port, MARKS) or 0.0, _ratio(port, QUEUE_DROPS) or 0.0
    is_marked = marked >= limits.min_marked_ratio
    counters = MARKS if is_marked else QUEUE_DROPS
    rows = [r for r in port.of(counters, "tx") if r["growth"]]
    link = next(link for link in at.views(every) if port in link)
    said = f"{share(marked)} of its packets are marked" if is_marked else (
        f"{share(dropped)} of its packets are dropped"
    )  # fmt: skip
    held = f", and {plural(len(senders), 'sender')} held back" if senders else ""
    evidence = Evidence.ratio(
        "packets marked of all packets" if is_marked else "packets dropped of all packets",
        marked if is_marked else dropped,
        limits.min_marked_ratio if is_marked else limits.min_dropped_ratio,
        "port_counters",
        facts.readings(rows),
    )
    return at.finding(
        facts,
        [port],
        f"Too much arrives at once at the {at.named(port)}: {said}{held}.",
        [evidence],
        rows=rows,
        counters=counters,
        basis="marks or drops at one port, whose host pauses nobody",
        lost_ns=port_losses.slowed_ns(facts, link),
        confirm=(
            "read marks, drops and queue depth of this port, and pauses of the senders' ports",
        ),
        remedy=("stagger or pair the exchange, or balance who gets how much; more queue pairs",),
    )


RULE = at.rule(
    name="incast",
    summary="Many senders reach one receiver at once.",
    owner="network",
    thresholds=IncastThresholds(),
    queries=("step_breakdown", *at.QUERIES, "port_levels"),
    kernel_queries=(*at.TRANSFER_QUERIES, "comm_summary", "straggler"),
    evaluate=evaluate,
    explains=("waiting", "lateness", "pauses"),
    symptom_of=("bursts",),
)
