"""
What it means
    A GPU's PCIe link runs narrower or slower than it could, or sends packets again and again.

How it shows
    Even at its best while the GPU was busy, width or generation stayed below its maximum and below
    its peers'; or it has half of its peers' lanes while all of them rest; or PCIe replays grew by
    ten and more than ten times as fast as its peers'; or XID 167.

Why it hurts
    Copies to and from the host take longer, and all that the GPU sends to or gets from its NIC.

What it costs
    Copies: those of its ranks that nothing hides, beyond their peers', as far as the peers wait.
    Else traffic: what its groups' transfers take beyond what the bytes that crossed the link
    (DCGM 1009, 1010) need on a whole one, where the NIC's speed is known, where the clocks of the
    hosts let transfers be timed, and where the narrow link explains at least half of them. Else it
    is bounded: no more than the communication and copies that nothing hides.

Remedy
    Reseat the card or the riser; update firmware; drain the machine if it trains down again.

When this is wrong
    Links save power when idle: a low generation then is normal, so only samples of a busy GPU
    count. A slot may be narrower by design: then its peers' are too.

Source
    Diagnosis D5. Lane rates: the PCI Express base specification, after its line code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from tracekit.findings import Evidence, Finding, Impact, Severity, confidence_from, severity_of
from tracekit.rules import gpus
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.prices import at_most
from tracekit.rules.thresholds import Thresholds, threshold

LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second, lane and direction, by generation."""
LINK = {"pcie_width": "lanes", "pcie_generation": "generation"}


class PcieDegradedThresholds(Thresholds):
    """When a PCIe link is degraded."""

    min_busy_ratio: float = threshold(
        0.50, "GPU utilisation while it was sampled: an idle link sleeps by design"
    )
    min_replays_count: int = threshold(10, "replays while the job ran; one is chance")
    min_ahead_ratio: float = threshold(10.0, "times the other GPUs' median growth")
    min_copies_ratio: float = threshold(
        1.5, "exposed copies over its peers': half the lanes double them; less is chance"
    )
    max_error_ratio: float = threshold(
        0.2, "clocks' error over a transfer: beyond it a transfer cannot be timed"
    )
    min_explained_ratio: float = threshold(
        0.5, "of the transfers that the bytes need on the narrow link: else it is not why"
    )
    min_cost_ratio: float = threshold(0.01, "of the step: less is no price worth a name")
    reached_ratio: float = threshold(
        0.85, "of a link's rate that large transfers reach: headers and replies take the rest"
    )
    max_halved_ratio: float = threshold(
        0.5, "of the lanes: half of them are half the bandwidth, which no traffic escapes"
    )


def evaluate(facts: Facts, limits: PcieDegradedThresholds) -> RuleOutcome:
    """One finding a GPU whose link is degraded."""
    counters = gpus.by_gpu(facts, gpus.COUNTERS, "counter")
    growth = gpus.by_gpu(facts, gpus.GROWTH, "counter")
    has_link = any(name in c for c in counters.values() for name in LINK)
    has_replays = any("pcie_replays" in g for g in growth.values())
    events = gpus.current_events(facts, gpus.PCIE_XIDS)
    if not has_link and not has_replays and not events:
        return gpus.lacking_counters(facts, "PCIe width, generation or replays (DCGM 202, 235-238)")
    findings: dict[str, Finding] = {}
    for gpu, gauges in sorted(counters.items()):
        for name in LINK:
            if name in gauges and _is_down(gauges, name, limits):
                findings.setdefault(
                    gpu, _priced(facts, limits, gauges, _down(facts, limits, gauges, name))
                )
    for row, count, usual in gpus.growth_beside(growth, "pcie_replays"):
        if count >= max(limits.min_replays_count, limits.min_ahead_ratio * usual):
            findings.setdefault(str(row["gpu_id"]), _replays(facts, limits, row, usual))
    for row in events:
        findings.setdefault(str(row["gpu_id"]), _event(facts, row))
    return RuleOutcome(tuple(findings.values()))


def _is_down(gauges: Mapping[str, Row], name: str, limits: PcieDegradedThresholds) -> bool:
    row, most = gauges[name], gauges.get(f"{name}_max")
    busy = gauges.get("gpu_utilisation")
    is_busy = busy is not None and (busy["p50_value"] or busy["max_value"]) >= limits.min_busy_ratio
    if not is_busy:
        return _is_narrow_at_rest(row, busy, limits)
    is_below_own = most is not None and row["max_value"] < most["max_value"]
    peers = row["peer_value"]
    is_below_peers = peers is not None and row["max_value"] < peers
    # Where peers were seen they decide: a slot may be narrower by design, and then all are.
    return is_below_peers if peers is not None else is_below_own


def _is_narrow_at_rest(row: Row, busy: Row | None, limits: PcieDegradedThresholds) -> bool:
    """Whether a GPU has at most half of its peers' lanes while all of them rest: a link that saves
    power lowers its generation, and its peers would save as much."""
    at_rest = busy is not None and busy["peer_value"] is not None
    return bool(
        at_rest
        and row["counter"] == "pcie_width"
        and row["peer_value"] is not None
        and busy is not None
        and max(busy["max_value"], busy["peer_value"]) < limits.min_busy_ratio
        and row["max_value"] <= limits.max_halved_ratio * row["peer_value"]
    )


def _made(facts: Facts, row: Row, summary: str, evidence: Evidence, severity: Severity) -> Finding:
    return gpus.finding(
        facts,
        [row],
        summary,
        (evidence,),
        least=severity,
        confirm=("nvidia-smi -q -d PERFORMANCE; lspci -vv (LnkSta, LnkCap)   on its host, busy",),
        remedy=("reseat the card or riser; drain the machine if the link trains down again",),
    )


def _down(
    facts: Facts, limits: PcieDegradedThresholds, gauges: Mapping[str, Row], name: str
) -> Finding:
    row, most = gauges[name], gauges.get(f"{name}_max")
    could = row["peer_value"] if row["peer_value"] is not None else most and most["max_value"]
    evidence = Evidence.count(
        f"highest {LINK[name]}",
        row["max_value"],
        could or 0.0,
        gpus.COUNTERS,
        facts.readings([row]),
    )
    what = "lanes" if name == "pcie_width" else "PCIe generation"
    who = gpus.subject([row])
    said = f"{who} runs its PCIe link at {row['max_value']:.0f} of {could:.0f} {what}."
    is_half = float(row["max_value"]) <= limits.max_halved_ratio * float(could or 0.0)
    return _made(facts, row, said, evidence, Severity.MINOR if is_half else Severity.NOTE)


def _priced(
    facts: Facts, limits: PcieDegradedThresholds, gauges: Mapping[str, Row], made: Finding
) -> Finding:
    """The finding with what the narrow link costs, or the most that it can, and why no more."""
    steps, ranks = facts.steps, made.scope.ranks
    mine = [m for r, m in steps.rank_means.items() if r in ranks]
    if not mine or not facts.has_gpu or facts.hidden_ranks:
        why = "no step of its rank on a GPU's timeline was traced"
        return _said(made, f"not priced: {why}")
    price = _copies(facts, limits, ranks)
    why = ""
    if price is None:
        by_traffic = _traffic(facts, limits, gauges, ranks)
        price, why = (None, by_traffic) if isinstance(by_traffic, str) else (by_traffic, "")
    if price is not None:
        cost_ns, evidence = price
        impact = facts.impact(at_most(cost_ns, "twin ranks"))
        return replace(
            made,
            severity=max(made.severity, severity_of(impact.step_ratio), key=lambda s: s.weight),
            confidence=confidence_from(
                ["counters", "GPU timeline"],
                "the GPU's own counters, and the traces: what crosses the link takes longer",
            ),
            impact=impact,
            evidence=(*made.evidence, evidence),
        )
    most_ns = max(m.exposed_comm + m.memory for m in mine)
    bounded = replace(made, impact=Impact(at_most_s_per_step=most_ns / 1e9))
    return _said(bounded, f"not priced: {why}")


def _said(made: Finding, words: str) -> Finding:
    basis = f"{made.confidence.basis}; {words}"
    return replace(made, confidence=replace(made.confidence, basis=basis))


def _copies(
    facts: Facts, limits: PcieDegradedThresholds, ranks: Sequence[int]
) -> tuple[float, Evidence] | None:
    """What its ranks copy longer than the others, as far as the others wait for that."""
    means = facts.steps.rank_means
    mine = [m for r, m in means.items() if r in ranks]
    others = [m for r, m in means.items() if r not in ranks]
    if not others:
        return None
    usual = median(m.memory for m in others)
    most = max(m.memory for m in mine)
    waited = median(m.exposed_comm for m in others) - min(m.exposed_comm for m in mine)
    cost_ns = min(most - usual, waited)
    if (
        most < limits.min_copies_ratio * usual
        or cost_ns < limits.min_cost_ratio * facts.steps.step_ns
    ):
        return None
    evidence = Evidence.seconds(
        "copies of a step that nothing hides",
        most,
        limits.min_copies_ratio * usual,
        "step_breakdown",
    )
    return cost_ns, evidence


def _traffic(
    facts: Facts, limits: PcieDegradedThresholds, gauges: Mapping[str, Row], ranks: Sequence[int]
) -> tuple[float, Evidence] | str:
    """What transfers take beyond what a whole link would need; words where that cannot be said."""
    speeds = _speeds(facts, gauges)
    if isinstance(speeds, str):
        return speeds
    narrow, whole = speeds
    step_ns = facts.steps.step_ns
    rates = [
        gauges[n]
        for n in ("pcie_tx", "pcie_rx")
        if n in gauges and gauges[n]["p50_value"] is not None
    ]
    if not rates:
        return "nobody counted the bytes on its link (DCGM 1009, 1010)"
    if any((r["interval_ns"] or 0) < step_ns for r in rates):
        return "its link was read more than once a step, so that a median is no mean"
    moved = max(float(r["p50_value"]) for r in rates) * step_ns / 1e9
    taken = _transfers(facts, limits, ranks)
    if taken is None:
        return "transfers between the hosts were not seen, or their clocks are too far apart"
    needed_ns = moved / (limits.reached_ratio * whole) * 1e9
    if moved / (limits.reached_ratio * narrow) * 1e9 < limits.min_explained_ratio * taken:
        return "its transfers take longer than even the narrow link explains"
    exposed = min(m.exposed_comm for r, m in facts.steps.rank_means.items() if r in ranks)
    cost_ns = min(taken - needed_ns, exposed)
    if cost_ns < limits.min_cost_ratio * step_ns:
        return "its transfers take no longer than a whole link would need"
    evidence = Evidence.seconds(
        "transfers of a step, which a whole link needs the threshold for",
        taken,
        needed_ns,
        "group_bandwidth",
    )
    return cost_ns, evidence


def _speeds(facts: Facts, gauges: Mapping[str, Row]) -> tuple[float, float] | str:
    """Bytes a second that its link carries, and that a whole one and the NIC would; or words."""
    said = facts.description.hardware.nic_bytes_per_s if facts.description is not None else None
    width, most = gauges.get("pcie_width"), gauges.get("pcie_width_max")
    gen, best = gauges.get("pcie_generation"), gauges.get("pcie_generation_max")
    if said is None:
        return "nobody says how fast its NIC is (job.toml: hardware.nic_bytes_per_s)"
    if width is None or gen is None:
        return "nobody says the width and the generation of its link (DCGM 235 to 238)"
    lanes = LANE_BYTES_PER_S.get(int(gen["max_value"]))
    could = LANE_BYTES_PER_S.get(int((best or gen)["max_value"]))
    widest = (most or width)["max_value"]
    widest = width["peer_value"] if width["peer_value"] is not None else widest
    if lanes is None or could is None:
        return "its generation of PCIe is not known here"
    return lanes * float(width["max_value"]), min(could * float(widest), float(said))


def _transfers(facts: Facts, limits: PcieDegradedThresholds, ranks: Sequence[int]) -> float | None:
    """Transfer a step of the group of these ranks that spans hosts and transfers longest."""
    members = {r["group_id"]: set(r["ranks"] or ()) for r in facts.of("match_coverage")}
    totals: dict[str, float] = {}
    for row in facts.of("group_bandwidth"):
        group = members.get(row["group_id"], set())
        hosts = {facts.job.hosts.get(r, r) for r in group}
        if row["timeline"] != "device" or not group & set(ranks) or len(hosts) < 2:
            continue
        each = float(row["transfer_p50_ns"])
        if int(row["error_ns"] or 0) > limits.max_error_ratio * each:
            return None
        a_step = each * int(row["instances_count"]) / max(1, int(row["steps_count"]))
        totals[row["group_id"]] = totals.get(row["group_id"], 0.0) + a_step
    return max(totals.values(), default=None)


def _replays(facts: Facts, limits: PcieDegradedThresholds, row: Row, usual: float) -> Finding:
    evidence = Evidence.count(
        "PCIe replays while the job ran",
        row["growth"],
        max(float(limits.min_replays_count), limits.min_ahead_ratio * usual),
        gpus.GROWTH,
        facts.readings([row]),
    )
    said = (
        f"{gpus.subject([row])} sent {row['growth']:,.0f} PCIe packets again while the job ran; "
        f"the others {usual:,.0f} (median)."
    )
    return _made(facts, row, said, evidence, Severity.NOTE)


def _event(facts: Facts, row: Row) -> Finding:
    evidence = gpus.event_evidence(facts, row)
    said = f"{gpus.subject([row])}: XID {row['xid']} ({gpus.XIDS[int(row['xid'])]})."
    return _made(facts, row, said, evidence, Severity.CRITICAL)


RULE = gpus.rule(
    name="pcie-degraded",
    summary="A GPU's PCIe link runs narrower or slower than it could, or repeats itself.",
    owner="hardware",
    thresholds=PcieDegradedThresholds(),
    queries=("step_breakdown", gpus.COUNTERS, gpus.GROWTH, gpus.EVENTS),
    kernel_queries=("group_bandwidth", "match_coverage"),
    evaluate=evaluate,
    explains=("waiting", "lateness"),
    bound="communication and copies",
    states="cause",
)
