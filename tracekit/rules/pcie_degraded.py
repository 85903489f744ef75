"""
What it means
    A GPU's PCIe link runs narrower or slower than it could, or sends packets again and again.

How it shows
    Even at its best while the GPU was busy, width or generation stayed below its maximum and below
    its peers'; or PCIe replays grew by ten and more than ten times as fast as its peers'; or XID
    167.

Why it hurts
    Copies to and from the host take longer, and network traffic through the host bridge too.

Remedy
    Reseat the card or the riser; update firmware; drain the machine if it trains down again.

When this is wrong
    Links save power when idle: a low generation then is normal, so only samples of a busy GPU
    count. A slot may be narrower by design: then its peers' are too.

Source
    Diagnosis D5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from tracekit.findings import Evidence, Finding, Impact, Severity, confidence_from
from tracekit.rules import gpus
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome, Thresholds, threshold

NAME = "pcie-degraded"
LINK = {"pcie_width": "lanes", "pcie_generation": "generation"}


@dataclass(frozen=True)
class PcieDegradedThresholds(Thresholds):
    """When a PCIe link is degraded."""

    min_busy_ratio: float = threshold(
        0.50, "GPU utilisation while it was sampled: an idle link sleeps by design"
    )
    min_replays_count: int = threshold(10, "replays while the job ran; one is chance")
    min_ahead_ratio: float = threshold(10.0, "times the other GPUs' median growth")


def evaluate(facts: Facts, limits: PcieDegradedThresholds) -> RuleOutcome:
    """One finding a GPU whose link is degraded."""
    counters = gpus.by_gpu(facts, gpus.COUNTERS, "counter")
    growth = gpus.by_gpu(facts, gpus.GROWTH, "counter")
    has_link = any(name in c for c in counters.values() for name in LINK)
    has_replays = any("pcie_replays" in g for g in growth.values())
    events = gpus.current_events(facts, gpus.PCIE_XIDS)
    if not has_link and not has_replays and not events:
        return gpus.lacking_counters(
            facts, NAME, "PCIe width, generation or replays (DCGM 202, 235-238)"
        )
    found: dict[str, Finding] = {}
    for gpu, own in sorted(counters.items()):
        for name in LINK:
            if name in own and _is_down(own, name, limits):
                found.setdefault(gpu, _down(facts, own, name))
    replays = {
        gpu: float(own["pcie_replays"]["growth"] or 0.0)
        for gpu, own in growth.items()
        if "pcie_replays" in own
    }
    for gpu, count in sorted(replays.items()):
        others = [c for g, c in replays.items() if g != gpu]
        usual = median(others) if others else 0.0
        if count >= limits.min_replays_count and count >= limits.min_ahead_ratio * usual:
            found.setdefault(gpu, _replays(facts, limits, growth[gpu]["pcie_replays"], usual))
    for row in events:
        found.setdefault(str(row["gpu_id"]), _event(facts, row))
    return RuleOutcome(tuple(found.values()))


def _is_down(own: Mapping[str, Row], name: str, limits: PcieDegradedThresholds) -> bool:
    row, most = own[name], own.get(f"{name}_max")
    busy = own.get("gpu_utilisation")
    is_busy = busy is not None and (busy["p50_value"] or busy["max_value"]) >= limits.min_busy_ratio
    if not is_busy:
        return False
    is_below_own = most is not None and row["max_value"] < most["max_value"]
    peers = row["peer_value"]
    is_below_peers = peers is not None and row["max_value"] < peers
    # Where peers were seen they decide: a slot may be narrower by design, and then all are.
    return is_below_peers if peers is not None else is_below_own


def _made(facts: Facts, row: Row, summary: str, evidence: Evidence, severity: Severity) -> Finding:
    scope = gpus.scope_of(facts, [row])
    return Finding(
        id=f"{NAME}/{gpus.finding_where(scope)}",
        rule=NAME,
        severity=severity,
        confidence=confidence_from(["counters"], "one kind of evidence: the GPU's own counters"),
        summary=summary,
        owner="hardware",
        scope=scope,
        when=facts.when(facts.steps.keys),
        impact=Impact(),
        evidence=(evidence,),
        candidates=gpus.candidates_of([row]),
        confirm=("nvidia-smi -q -d PERFORMANCE; lspci -vv (LnkSta, LnkCap)   on its host, busy",),
        remedy=("reseat the card or riser; drain the machine if the link trains down again",),
    )


def _down(facts: Facts, own: Mapping[str, Row], name: str) -> Finding:
    row, most = own[name], own.get(f"{name}_max")
    could = row["peer_value"] if row["peer_value"] is not None else most and most["max_value"]
    evidence = Evidence(
        name=f"highest {LINK[name]} while busy",
        value=float(row["max_value"]),
        unit="count",
        threshold=float(could or 0.0),
        query=gpus.COUNTERS,
        rows=gpus.places(facts, [row]),
    )
    what = "lanes" if name == "pcie_width" else "PCIe generation"
    who = gpus.subject([row])
    said = f"{who} runs its PCIe link at {row['max_value']:.0f} of {could:.0f} {what}."
    # Half the lanes are half the bandwidth: no traffic of the host escapes that.
    is_half = float(row["max_value"]) <= 0.5 * evidence.threshold if evidence.threshold else False
    return _made(facts, row, said, evidence, Severity.MINOR if is_half else Severity.NOTE)


def _replays(facts: Facts, limits: PcieDegradedThresholds, row: Row, usual: float) -> Finding:
    evidence = Evidence(
        name="PCIe replays while the job ran",
        value=float(row["growth"]),
        unit="count",
        threshold=max(float(limits.min_replays_count), limits.min_ahead_ratio * usual),
        query=gpus.GROWTH,
        rows=gpus.places(facts, [row]),
    )
    said = (
        f"{gpus.subject([row])} sent {row['growth']:,.0f} PCIe packets again while the job ran; "
        f"the others {usual:,.0f} (median)."
    )
    return _made(facts, row, said, evidence, Severity.NOTE)


def _event(facts: Facts, row: Row) -> Finding:
    evidence = Evidence(
        name=f"XID {row['xid']}",
        value=float(row["xid"]),
        unit="XID",
        query=gpus.EVENTS,
        rows=gpus.places(facts, [row]),
    )
    said = f"{gpus.subject([row])}: XID {row['xid']} ({gpus.XIDS[int(row['xid'])]})."
    return _made(facts, row, said, evidence, Severity.CRITICAL)


RULE = Rule(
    name=NAME,
    summary="A GPU's PCIe link runs narrower or slower than it could, or repeats itself.",
    owner="hardware",
    thresholds=PcieDegradedThresholds(),
    queries=("step_breakdown", gpus.COUNTERS, gpus.GROWTH, gpus.EVENTS),
    evaluate=evaluate,
    doc=__doc__,
    needs=gpus.NEEDS,
)
