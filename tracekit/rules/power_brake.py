"""
What it means
    Power, not heat, holds a GPU's clock down: an external brake, or a power limit below its peers'.

How it shows
    The hardware says power brake for 1 % of the time by a counter or in 5 % of the samples; or the
    software power cap holds in half of the samples while the GPU's clock is 5 % below its busy
    peers'; or, whatever its reasons and its clock, its power limit is a tenth below its peers', it
    draws all of it, and they draw more.

Why it hurts
    A brake halves the clock or worse; a lower limit makes one GPU the slowest of all.

Remedy
    A brake: power supplies, rack power, its monitoring cable. A limit: set the same one everywhere.

When this is wrong
    A software power cap at full load is normal: a healthy GPU under full load shows it in every
    sample, and so do its peers. Only a clock below theirs makes it a finding.

Source
    Diagnosis D3; NVML's clock event reasons; a healthy 8-GPU run with the cap in every sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules import gpus, logged
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.thresholds import threshold


class PowerBrakeThresholds(gpus.HeldThresholds, gpus.PricedThresholds, logged.HistoryThresholds):
    """When power holds a GPU down."""

    min_capped_ratio: float = threshold(0.50, "share of the samples at the software power cap")
    max_clock_ratio: float = threshold(0.95, "clock over its busy peers' that is lost (D3)")
    min_below_ratio: float = threshold(0.50, "share of the busy moments with such a clock")
    max_limit_ratio: float = threshold(0.90, "power limit over its peers' that is another one")
    min_drawn_ratio: float = threshold(
        0.95, "of its limit that a GPU draws, in the median moment: the limit is what it is held by"
    )


def evaluate(facts: Facts, limits: PowerBrakeThresholds) -> RuleOutcome:
    """One finding for all braked GPUs (they share a supply), one for each that is capped lower."""
    throttle = gpus.by_gpu(facts, gpus.THROTTLE, "event")
    counters = gpus.by_gpu(facts, gpus.COUNTERS, "counter")
    limited = {gpu for gpu, given in counters.items() if _is_limited(given, limits)}
    if not throttle and not limited:
        return gpus.lacking_counters(facts, "the GPUs' clock event reasons (DCGM field 112, 1424)")
    braked = [
        row
        for gpu, events in sorted(throttle.items())
        if (row := events.get("hw_power_brake")) is not None
        and (
            gpus.is_held(row, limits)
            or gpus.is_always(row, counters.get(gpu, {}), limits, limits.max_clock_ratio)
        )
    ]
    findings = []
    if braked:
        brake = _brake(facts, limits, braked, counters)
        findings.append(gpus.in_history(facts, brake, braked, limits))
    named = {row["gpu_id"] for row in braked}
    for gpu, events in sorted(throttle.items()):
        clock = counters.get(gpu, {}).get("sm_clock")
        if gpu not in named and clock is not None and _is_capped(events, clock, limits):
            findings.append(_cap(facts, limits, events["sw_power_cap"], counters[gpu]))
            named.add(gpu)
    findings += [_limit(facts, limits, counters[gpu]) for gpu in sorted(limited - named)]
    return RuleOutcome(tuple(gpus.priced(facts, f) for f in findings))


def _is_limited(counters: Mapping[str, Row], limits: PowerBrakeThresholds) -> bool:
    limit, power = counters.get("power_limit"), counters.get("power")
    if limit is None or power is None or None in (limit["peer_ratio"], power["peer_value"]):
        return False
    return bool(
        limit["peer_ratio"] <= limits.max_limit_ratio
        and power["p50_value"] >= limits.min_drawn_ratio * limit["p50_value"]
        and power["peer_value"] > limit["p50_value"]
    )


def _limit(facts: Facts, limits: PowerBrakeThresholds, counters: Mapping[str, Row]) -> Finding:
    limit, power = counters["power_limit"], counters["power"]
    return gpus.finding(
        facts,
        [limit],
        f"{gpus.subject([limit])} draws all of its power limit, {limit['p50_value']:.0f} W; its "
        f"peers may draw {limit['peer_value']:.0f} W and draw {power['peer_value']:.0f}.",
        (
            gpus.beside_peers(
                facts, "power limit over its", float(limit["peer_ratio"]), limits.max_limit_ratio,
                limit,
            ),
        ),
        least=Severity.MINOR,
        confirm=("nvidia-smi -q -d POWER   on its host, beside a peer",),
        remedy=("give it the limit of its peers (nvidia-smi -pl), if its supply allows",),
    )  # fmt: skip


def _is_capped(events: Mapping[str, Row], clock: Row, limits: PowerBrakeThresholds) -> bool:
    cap = events.get("sw_power_cap")
    if cap is None or clock["busy_peer_ratio"] is None:
        return False
    held = cap["held_ratio"] if cap["held_ratio"] is not None else cap["active_ratio"]
    thermal = (events.get(name) for name in ("hw_thermal", "sw_thermal"))
    is_hot = any(row is not None and (row["active_count"] or row["held_ns"]) for row in thermal)
    return bool(
        held is not None
        and held >= limits.min_capped_ratio
        and clock["busy_peer_ratio"] <= limits.max_clock_ratio
        and clock["busy_below_ratio"] >= limits.min_below_ratio
        and not is_hot
    )


def _brake(
    facts: Facts,
    limits: PowerBrakeThresholds,
    rows: Sequence[Row],
    counters: Mapping[str, Mapping[str, Row]],
) -> Finding:
    worst = max(rows, key=lambda r: (r["held_ratio"] or 0.0, r["active_ratio"] or 0.0))
    held, evidence = gpus.held_evidence(facts, worst, "hardware power brake", limits, rows)
    clock = counters.get(str(worst["gpu_id"]), {}).get("sm_clock")
    ratio = clock["busy_peer_ratio"] if clock is not None else None
    is_slow = len(rows) > 1 or (ratio is not None and ratio <= limits.max_clock_ratio)
    return gpus.finding(
        facts,
        rows,
        f"{gpus.subject(rows)} {'are' if len(rows) > 1 else 'is'} held down by an external "
        f"power brake, {held}.",
        (evidence,),
        least=Severity.MINOR if is_slow else Severity.NOTE,
        confirm=("read the power supplies and the rack's power of these hosts (BMC, PDU)",),
        remedy=("restore the power; the brake ends by itself",),
    )


def _cap(
    facts: Facts, limits: PowerBrakeThresholds, row: Row, counters: Mapping[str, Row]
) -> Finding:
    clock = counters["sm_clock"]
    power, limit = counters.get("power"), counters.get("power_limit")
    words = f"{float(clock['p50_value']) / 1e6:.0f} MHz against {clock['peer_value'] / 1e6:.0f}"
    if limit is not None and limit["peer_value"] and limit["p50_value"] < limit["peer_value"]:
        words += f"; its limit is {limit['p50_value']:.0f} W, its peers' {limit['peer_value']:.0f}"
    elif power is not None:
        words += f", at {power['p50_value']:.0f} W"
    held = row["held_ratio"] if row["held_ratio"] is not None else row["active_ratio"]
    return gpus.finding(
        facts,
        [row],
        f"{gpus.subject([row])} is at its power limit and slower than its peers: {words}.",
        (
            gpus.beside_peers(
                facts,
                "clock over its busy",
                float(clock["busy_peer_ratio"]),
                limits.max_clock_ratio,
                clock,
            ),
            Evidence.ratio(
                "software power cap, share",
                float(held),
                limits.min_capped_ratio,
                gpus.THROTTLE,
                facts.readings([row]),
            ),
        ),
        least=Severity.MINOR,
        confirm=("nvidia-smi -q -d POWER,CLOCK,PERFORMANCE   on its host, beside a peer",),
        remedy=("set the same power limit everywhere; else hand the GPU to hardware",),
    )


RULE = gpus.rule(
    name="power-brake",
    summary="Power holds a GPU's clock down: a brake, or a limit below its peers'.",
    owner="hardware",
    thresholds=PowerBrakeThresholds(),
    queries=("step_breakdown", gpus.THROTTLE, gpus.COUNTERS),
    optional=gpus.GIVEN | logged.HISTORY,
    kernel_queries=gpus.TRACE_QUERIES,
    evaluate=evaluate,
    explains=("waiting", "lateness", "odd GPU"),
    absorbs=("slow GPU",),
)
