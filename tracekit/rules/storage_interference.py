"""
What it means
    Traffic of another class, such as reads of a data set, takes the job's links from it.

How it shows
    A port of the job carried a tenth or more of its link's speed, and a fifth of its bytes, in
    another class (priority or queue) than the job's own, ten times as much as the other hosts'
    ports or everywhere alike; and the job's transfers took longer than their bytes need. It costs
    that time, and never more than the foreign bytes need themselves.

Why it hurts
    Links are shared by the byte: what storage takes, collectives wait for.

Remedy
    A network of its own for storage; a share for each class (ETS, QoS); reads spread over hosts and
    over time, prefetched before the step.

When this is wrong
    The class with most bytes over all ports of the job is taken for the job's own: a job that
    trains over TCP in the same class as its storage shows nothing. Without slow transfers there is
    no finding: a link that is shared and not full costs nothing. Where every call has a member
    without a trace, long calls may be waiting for it: then it is a note whose price is open.

Source
    Diagnosis D31.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from tracekit.findings import Evidence, Finding
from tracekit.rules import port_losses
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.thresholds import threshold
from tracekit.wording import safe, share, some

CLASSES = {
    "rx_priority_bytes": "priority",
    "tx_priority_bytes": "priority",
    "tx_queue_bytes": "queue",
    "rx_queue_bytes": "queue",
}
"""Counters of bytes by class, and the column that has the class."""
NEEDS = "bytes by priority or queue of the job's ports, and the speed of their links"


class StorageInterferenceThresholds(at.TransferThresholds):
    """When foreign traffic takes the link."""

    min_link_ratio: float = threshold(0.10, "foreign bytes over what the link could carry")
    min_bytes_ratio: float = threshold(0.20, "foreign bytes over the port's")
    min_ahead_ratio: float = threshold(
        10.0, "times the other hosts' median; else all hosts of the job must be above the rest"
    )
    min_lost_ratio: float = threshold(
        0.01, "of the step that transfers lose: a link that is not full costs nothing"
    )


class _Foreign(Struct, frozen=True):
    port: at.Port
    counter: str
    bytes_per_s: float
    own_per_s: float
    link_ratio: float
    step_ratio: float
    """What it took of the link from the first step to the last; of all readings where that is not
    known."""


def evaluate(facts: Facts, limits: StorageInterferenceThresholds) -> RuleOutcome:
    """One finding a host; one for all where all are alike."""
    ports = [p for p in at.ports(facts) if at.owners(p) and p.host is not None]
    missing = at.why_not(facts, CLASSES)
    speed = port_losses.usual_speed(facts)
    if missing is not None or not speed or not any(p.of(CLASSES) for p in ports):
        return facts.lacking(missing or NEEDS, at.CAPTURE)
    classes = _own_classes(ports)
    every = [f for p in ports for f in _foreign(p, classes, speed)]
    worst: dict[str, float] = {}
    for foreign in every:
        host = str(foreign.port.host)
        worst[host] = max(worst.get(host, 0.0), foreign.link_ratio)
    hosts: dict[str, list[_Foreign]] = defaultdict(list)
    for foreign in every:
        is_much = foreign.link_ratio >= limits.min_link_ratio and (
            foreign.bytes_per_s
            >= limits.min_bytes_ratio * (foreign.bytes_per_s + foreign.own_per_s)
        )
        others = [v for h, v in worst.items() if h != foreign.port.host]
        is_one = not others or foreign.link_ratio >= limits.min_ahead_ratio * median(others)
        is_all = bool(others) and min(worst.values()) >= limits.min_link_ratio
        if is_much and (is_one or is_all):
            hosts[str(foreign.port.host)].append(foreign)
    findings = [f for _, own_ in sorted(hosts.items()) if (f := _finding(facts, limits, own_))]
    return RuleOutcome(tuple(findings))


def _own_classes(ports: Sequence[at.Port]) -> dict[str, int | None]:
    """The class of each counter in which most of the job's bytes are."""
    totals: dict[str, dict[int | None, float]] = defaultdict(lambda: defaultdict(float))
    for port in ports:
        for row in port.of(CLASSES):
            name = str(row["counter"])
            totals[name][row[CLASSES[name]]] += float(row["growth"])
    return {name: max(by, key=lambda c: by[c]) for name, by in totals.items()}


def _foreign(port: at.Port, classes: dict[str, int | None], speed: float) -> list[_Foreign]:
    """Bytes of other classes a second, by counter."""
    rates: dict[str, list[float]] = {}
    in_steps: dict[str, float] = defaultdict(float)
    for row in port.of(CLASSES):
        name, span_s = str(row["counter"]), at.span_s(row)
        if span_s is None:
            continue
        is_own, per_s = row[CLASSES[name]] == classes[name], float(row["growth"]) / span_s
        pair = rates.setdefault(name, [0.0, 0.0])
        pair[is_own] += per_s
        if not is_own:
            covered_s = float(row["step_covered_ns"] or 0) / 1e9
            is_told = row["step_growth"] is not None and covered_s > 0
            in_steps[name] += float(row["step_growth"]) / covered_s if is_told else per_s
    return [
        _Foreign(port, name, other, mine, other / speed, in_steps[name] / speed)
        for name, (other, mine) in rates.items()
    ]


def _finding(
    facts: Facts, limits: StorageInterferenceThresholds, foreign: Sequence[_Foreign]
) -> Finding | None:
    first = max(foreign, key=lambda f: (not at.unproved(f.port.of([f.counter])), f.link_ratio))
    ports = at.proved_first({f.port.link: f.port for f in foreign}.values())
    step_ns = facts.steps.step_ns
    # Its bytes take their time at the speed that transfers reach, as the job's own do.
    held_ns = first.step_ratio * step_ns / limits.reached_ratio
    lost_ns = min(port_losses.slowed_ns(facts, ports, first.bytes_per_s), held_ns)
    most_ns = min(port_losses.open_price(facts, ports, first.bytes_per_s).most_ns, held_ns)
    if not step_ns or max(lost_ns, most_ns) < limits.min_lost_ratio * step_ns:
        return None
    rows = [r for f in foreign for r in f.port.of([f.counter])]
    total = first.bytes_per_s + first.own_per_s
    links = some([safe(p.link) for p in ports])
    evidence = (
        Evidence.ratio(
            "bytes of other classes over what the link could carry",
            first.link_ratio,
            limits.min_link_ratio,
            "port_counters",
            facts.readings(rows),
        ),
        Evidence.ratio(
            "bytes of other classes over the port's",
            first.bytes_per_s / total,
            limits.min_bytes_ratio,
            "port_counters",
        ),
    )
    finding = at.finding(
        facts,
        ports,
        f"{at.host_named(ports)} shares its links with other traffic: "
        f"{first.bytes_per_s / 1e9:.2g} GB/s in another class than the job's, "
        f"{share(first.link_ratio)} of the link ({links}).",
        evidence,
        rows=rows,
        basis="bytes by class, and transfers that take longer than their bytes need",
        lost_ns=lost_ns,
        confirm=(
            "nfsstat, lustre or object-store clients on the host while the job runs; the "
            "port's bytes by class, twice",
        ),
        remedy=("give storage its own network or share; spread and prefetch the reads",),
    )
    return port_losses.left_open(facts, finding) if most_ns else finding


RULE = at.rule(
    name="storage-interference",
    summary="Traffic of another class takes the job's links from it.",
    owner="platform",
    thresholds=StorageInterferenceThresholds(),
    queries=("step_breakdown", *at.QUERIES, "port_levels"),
    kernel_queries=at.SHARED_QUERIES,
    evaluate=evaluate,
    needs=NEEDS,
    explains=("waiting", "lateness"),
    states="shared link",
)
