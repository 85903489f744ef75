"""
What it means
    A port throws packets away while the job runs; what was in them is sent again, late.

How it shows
    Drops of one port while the job ran, one packet in 10,000 or more, and at most a tenth of that
    on the other ports; or fewer, where transfers of its ranks took three times the usual and no
    other port of the job lost a tenth as much. It costs what goes with slow steps, or the time of
    those transfers, as far as no computation hides it, and no less of it than slow steps take
    beyond the typical one. Where the trace shows that the rank behind the port always gets its
    data late, both are one finding.

Why it hurts
    A lost packet costs a retransmission: milliseconds on TCP, up to half a second where only a
    timer notices. A ring waits for its slowest member each time.

Remedy
    Find out what is full: a queue or buffer that is too small, a port slower than its neighbours,
    a policer; on a lossless fabric, flow control that is off for this priority.

When this is wrong
    TCP needs some loss to find its rate: that is what the floor is for. It holds where nothing is
    stuck; a packet whose loss only a timer notices costs as much among many. Drops outside the
    job's window are another job's. Trimmed packets (cut to their header) are not lost. A long
    queue without drops accuses no link.

Source
    Diagnosis D20; recorded with a port shaped to 60 Mbit/s and a 96 kB queue: 4 % lost on one port.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tracekit.findings import Evidence, Finding
from tracekit.rules import logged, transfers
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.thresholds import threshold
from tracekit.wording import plural, share

PACKET_BYTES = 1500.0
"""Where packets are not counted: bytes over this are at least so many."""


class PacketLossThresholds(at.PortThresholds, logged.HistoryThresholds):
    """When drops are worth a finding."""

    min_loss_ratio: float = threshold(
        1e-4, "dropped of all packets; TCP's own search for its rate stays below on a healthy path"
    )
    min_drops_count: int = threshold(10, "fewer drops are chance, whatever their share")
    min_ahead_ratio: float = threshold(
        10.0, "times the other ports' median share: one port, not the whole fabric"
    )


class _Loss(Struct, frozen=True):
    port: at.Port
    direction: str
    dropped: float
    ratio: float


def evaluate(facts: Facts, limits: PacketLossThresholds) -> RuleOutcome:
    """One finding for the ports that drop and stand out, or one for all of them."""
    missing = at.why_not(facts, at.DROPPED)
    if missing is not None:
        return facts.lacking(missing, at.CAPTURE)
    every = [loss for port in at.ports(facts) for loss in _losses(port)]
    bad = [
        loss
        for loss in every
        if loss.dropped >= limits.min_drops_count
        and (
            loss.ratio >= limits.min_loss_ratio
            or _is_costly(facts, loss, every, limits)
            or _is_of_stretch(facts, loss, every, limits)
        )
    ]
    if not bad:
        return RuleOutcome()
    worst: dict[str, float] = {}
    for loss in every:
        worst[loss.port.link] = max(loss.ratio, worst.get(loss.port.link, 0.0))
    singled = [loss for loss in bad if _stands_out(loss, worst, limits)]
    if singled:
        # The switch's port and the NIC may both count the same drops: one link, one finding.
        links = at.views({loss.port.link: loss.port for loss in singled}.values())
        by_link = [[loss for loss in singled if loss.port in link] for link in links]
        return RuleOutcome(tuple(_finding(facts, limits, losses, worst) for losses in by_link))
    return RuleOutcome((_finding(facts, limits, bad, worst),))


def _losses(port: at.Port) -> list[_Loss]:
    losses = []
    for direction in ("rx", "tx"):
        dropped = port.growth(at.DROPPED, direction)
        if dropped is None:
            continue
        passed = port.growth([f"{direction}_packets", f"{direction}_queue_packets"], direction)
        moved = port.growth([f"{direction}_bytes", f"{direction}_queue_bytes"], direction)
        packets = passed if passed is not None else (moved or 0.0) / PACKET_BYTES
        whole = packets + dropped
        losses.append(_Loss(port, direction, dropped, dropped / whole if whole else 0.0))
    return losses


def _is_costly(
    facts: Facts, loss: _Loss, every: Sequence[_Loss], limits: PacketLossThresholds
) -> bool:
    """Few of all packets, and yet transfers of these ranks were stuck, and no other port of the
    job lost as much: what a loss costs that only a timer notices does not depend on its share."""
    here = (loss.port.host, at.owners(loss.port))
    others = [o.ratio for o in every if (who := at.owners(o.port)) and (o.port.host, who) != here]
    if not at.owners(loss.port) or loss.ratio < limits.min_ahead_ratio * max(others, default=0.0):
        return False
    least_ns = limits.min_witness_ratio * facts.steps.step_ns
    return least_ns > 0 and transfers.stuck_ns(facts, at.owners(loss.port)) >= least_ns


def _is_of_stretch(
    facts: Facts, loss: _Loss, every: Sequence[_Loss], limits: PacketLossThresholds
) -> bool:
    """Few of all packets of days, but in just the stretch in which the training log is slow, and
    no other port lost as much: of that stretch's packets nobody knows the number."""
    others = [other.ratio for other in every if other.port.link != loss.port.link]
    if loss.ratio < limits.min_ahead_ratio * max(others, default=0.0):
        return False
    rows = [r for r in loss.port.of(at.DROPPED, loss.direction) if r["growth"]]
    return at.stretch_of(facts, rows, limits) is not None


def _stands_out(loss: _Loss, worst: dict[str, float], limits: PacketLossThresholds) -> bool:
    usual = at.others_median(worst, loss.port.link)
    return usual is not None and loss.ratio >= limits.min_ahead_ratio * usual


def _finding(
    facts: Facts, limits: PacketLossThresholds, losses: Sequence[_Loss], worst: dict[str, float]
) -> Finding:
    ports = [loss.port for loss in losses]
    scope = at.scope_of(facts, list({p.link: p for p in ports}.values()))
    rows = [r for loss in losses for r in loss.port.of(at.DROPPED, loss.direction) if r["growth"]]
    first = max(losses, key=lambda loss: loss.ratio)
    usual = at.others_median(worst, first.port.link)
    dropped = max(loss.dropped for loss in losses)
    if len(at.views(ports)) == 1:
        who = f"The {at.named(first.port, first.direction)} drops"
        rest = _contrast(worst, first)
        said = (
            f"{who} {share(first.ratio)} of its packets ({dropped:,.0f}) while the job runs{rest}."
        )
        where = scope.links[0]
    else:
        dropped = sum(loss.dropped for loss in losses)
        said = (
            f"{plural(len(scope.links), 'port')} drop packets while the job runs "
            f"({dropped:,.0f}; up to {share(first.ratio)}): {at.links_phrase(ports)}."
        )
        where = "all" if set(scope.links) == set(worst) else scope.links[0]
    evidence = (
        Evidence.ratio(
            "packets dropped of all packets",
            first.ratio,
            max(limits.min_loss_ratio, limits.min_ahead_ratio * (usual or 0.0)),
            "port_counters",
            facts.readings(rows),
        ),
        Evidence(
            "packets dropped while the job ran",
            dropped,
            "packets",
            threshold=float(limits.min_drops_count),
            query="port_counters",
        ),
    )
    finding = at.finding(
        facts,
        ports,
        said,
        evidence,
        rows=rows,
        counters=at.DROPPED,
        basis="the port's own counters",
        scope=scope,
        place=str(scope.ranks[0]) if len(scope.ranks) == 1 else where,
        # A transfer whose lost packet only a timer notices takes many times as long as the others.
        lost_ns=transfers.stuck_ns(facts, scope.ranks),
        # And outlasts what could hide it: then the step is longer.
        shown_ns=at.slow_steps_ns(facts),
        confirm=(
            "read the port's drops and queue twice, a minute apart, while the job runs: "
            "tc -s qdisc, ethtool -S or the switch's queue counters say which queue is full",
        ),
        remedy=("give the queue room or the port its speed back; on RoCE, check PFC and ECN",),
    )
    return at.in_history(facts, finding, rows, limits)


def _contrast(worst: dict[str, float], loss: _Loss) -> str:
    others = [v for name, v in worst.items() if name != loss.port.link]
    if not others:
        return ", with no other port to compare"
    if not any(others):
        return f"; the other {plural(len(others), 'port')} none"
    return f"; the others {share(at.others_median(worst, loss.port.link) or 0.0)}"


RULE = at.rule(
    name="packet-loss",
    summary="A port throws packets away while the job runs.",
    owner="network",
    thresholds=PacketLossThresholds(),
    queries=("step_breakdown", *at.QUERIES),
    optional=logged.HISTORY,
    kernel_queries=at.TRANSFER_QUERIES,
    evaluate=evaluate,
    explains=("waiting", "lateness"),
    absorbs=("slow link",),
    states="harm",
)
