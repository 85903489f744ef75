"""
What it means
    The network marks packets as having met congestion, and senders slow down for it.

How it shows
    One packet in twenty marked at a port of the job, or congestion notices that slowed a sender,
    and steps are slower when there is more of it (a cause by correlation). Where half of the job's
    hosts or more meet it, it is the fabric, and no rank is named.

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

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tracekit.findings import Evidence, Finding
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.thresholds import threshold
from tracekit.wording import plural, share

MARKS = (
    "tx_queue_ecn_marked_packets",
    "np_ecn_marked_packets",
    "rx_priority_ecn_marked_packets",
)
NOTICES = ("rp_cnp_handled", "np_cnp_sent")


class EcnCongestionThresholds(at.PortThresholds):
    """When marking is congestion."""

    min_marked_ratio: float = threshold(0.05, "marked of all packets; fewer are control at work")
    min_notices_count: int = threshold(1000, "notices, where no marks are counted")
    min_hosts_ratio: float = threshold(
        0.5, "share of the job's hosts from which it is the fabric, and no link of it"
    )


def evaluate(facts: Facts, limits: EcnCongestionThresholds) -> RuleOutcome:
    """One finding a link whose marks or notices go with slow steps; one for all if most do."""
    missing = at.why_not(facts, {*MARKS, *NOTICES})
    if missing is not None:
        return facts.lacking(missing, at.CAPTURE)
    every = at.ports(facts)
    congested = [c for p in every if (c := _congested(facts, p, limits)) is not None]
    ends = {p.host for p in every if p.host is not None and at.owners(p)}
    met = {c.port.host for c in congested if c.port.host is not None}
    if len(met) > 1 and len(met) >= limits.min_hosts_ratio * len(ends):
        return RuleOutcome((_finding(facts, limits, congested, is_fabric=True),))
    links = at.views(c.port for c in congested)
    by_link = [[c for c in congested if c.port in link] for link in links]
    return RuleOutcome(tuple(_finding(facts, limits, listed) for listed in by_link))


class _Congested(Struct, frozen=True):
    port: at.Port
    ratio: float | None
    """Marked of all packets; None where only notices are counted."""
    notices: float


def _congested(facts: Facts, port: at.Port, limits: EcnCongestionThresholds) -> _Congested | None:
    marked, notices = port.growth(MARKS), port.growth(NOTICES) or 0.0
    packets = port.growth(["tx_packets", "rx_packets", "tx_queue_packets"]) or 0.0
    ratio = marked / packets if marked is not None and packets else None
    test = at.tested(facts, [port], (*MARKS, *NOTICES))
    is_much = (ratio or 0.0) >= limits.min_marked_ratio or (
        ratio is None and notices >= limits.min_notices_count
    )
    is_cause = test is not None and test["verdict"] == "cause"
    return _Congested(port, ratio, notices) if is_much and is_cause else None


def _finding(
    facts: Facts,
    limits: EcnCongestionThresholds,
    congested: Sequence[_Congested],
    *,
    is_fabric: bool = False,
) -> Finding:
    """Of one link, or of the whole fabric: then nobody behind its ports is blamed."""
    worst = max(congested, key=lambda c: (c.ratio or 0.0, c.notices))
    listed = at.proved_first(c.port for c in congested)
    rows = [r for p in listed for r in (*p.of(MARKS), *p.of(NOTICES))]
    is_ratio = bool(worst.ratio)
    said = (
        f"{share(worst.ratio)} of its packets marked"
        if worst.ratio
        else f"{worst.notices:,.0f} congestion notices"
    )
    scope = at.scope_of(facts, listed)
    if is_fabric:
        summary = (
            f"{plural(len(congested), 'port')} of {plural(len(scope.hosts), 'host')} meet "
            f"congestion in slow steps (at worst {said}): the fabric is loaded, not one link."
        )
        scope = replace(scope, ranks=(), hosts=())
    else:
        summary = f"The {at.named(worst.port)} meets congestion in slow steps ({said})."
    evidence = Evidence(
        "packets marked of all packets" if is_ratio else "congestion notices",
        worst.ratio if worst.ratio else worst.notices,
        "ratio" if is_ratio else "count",
        threshold=limits.min_marked_ratio if is_ratio else float(limits.min_notices_count),
        query="port_counters",
        rows=facts.readings(rows),
    )
    return at.finding(
        facts,
        listed,
        summary,
        [evidence],
        rows=rows,
        counters=(*MARKS, *NOTICES),
        basis="marks and slow steps",
        scope=scope,
        place="fabric" if is_fabric else None,
        confirm=("read marks, notices and queue depth of these ports while the job runs",),
        remedy=("spread the flows; tune marking and DCQCN; stagger collectives",),
    )


RULE = at.rule(
    name="ecn-congestion",
    summary="Packets are marked as having met congestion, and steps are slower for it.",
    owner="network",
    thresholds=EcnCongestionThresholds(),
    queries=("step_breakdown", "hidden_kernels", *at.QUERIES),
    evaluate=evaluate,
    explains=("waiting", "lateness"),
)
