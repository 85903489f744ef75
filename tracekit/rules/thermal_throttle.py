"""
What it means
    A GPU is too hot and its clock is held down.

How it shows
    The hardware or the driver says so (the event reasons software thermal, hardware thermal, or
    hardware slowdown of a GPU near its slowdown temperature), for 1 % of the time by a counter or
    in 5 % of the samples; of one or two readings in each, if its clock is below its peers'. Its
    clock beside its peers' says what that costs; where the trace shows
    the same rank computing slowly, both are one finding.

Why it hurts
    A hardware slowdown halves the clock or worse, and every rank waits for the slowest.

Remedy
    Cooling: airflow, fans, dust, a neighbour's exhaust, liquid loop. Drain the machine if it does
    not recover.

When this is wrong
    A software power cap at full load is normal and no heat. An idle GPU's clock is low by design.
    A hardware slowdown without heat is a power brake or a change of state. DCGM samples lag by
    0.3 s and more, and average.

Source
    Diagnosis D2; NVML's clock event reasons.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules import gpus, logged
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.thresholds import threshold

REASONS = ("hw_thermal", "sw_thermal", "thermal")
WORDS = {
    "hw_thermal": "hardware thermal slowdown",
    "sw_thermal": "software thermal slowdown",
    "thermal": "thermal violation",
    "hw_slowdown": "hardware slowdown",
}


class ThermalThrottleThresholds(
    gpus.HeldThresholds, gpus.PricedThresholds, logged.HistoryThresholds
):
    """When heat holds a GPU down."""

    max_clock_ratio: float = threshold(0.95, "clock over its busy peers' that counts as lost (D2)")
    max_margin_celsius: float = threshold(
        3.0, "below the slowdown temperature: a hardware slowdown there is heat"
    )


def evaluate(facts: Facts, limits: ThermalThrottleThresholds) -> RuleOutcome:
    """One finding a GPU that heat holds down."""
    throttle = gpus.by_gpu(facts, gpus.THROTTLE, "event")
    if not throttle:
        return gpus.lacking_counters(facts, "the GPUs' clock event reasons (DCGM 112, 1422, 1423)")
    counters = gpus.by_gpu(facts, gpus.COUNTERS, "counter")
    findings = []
    for gpu, events in sorted(throttle.items()):
        reason = _reason(events, counters.get(gpu, {}), limits)
        if reason is not None:
            finding = _finding(facts, limits, events[reason], counters.get(gpu, {}))
            finding = gpus.priced(facts, finding)
            findings.append(gpus.in_history(facts, finding, [events[reason]], limits))
    return RuleOutcome(tuple(findings))


def _reason(
    events: Mapping[str, Row], counters: Mapping[str, Row], limits: ThermalThrottleThresholds
) -> str | None:
    for reason in REASONS:
        if reason in events and _is_held(events[reason], counters, limits):
            return reason
    slowdown = events.get("hw_slowdown")
    if slowdown is None or not _is_held(slowdown, counters, limits):
        return None
    heat, limit = counters.get("gpu_temperature"), counters.get("gpu_slowdown_temperature")
    if heat is None or limit is None:
        return None
    is_near = heat["max_value"] >= limit["max_value"] - limits.max_margin_celsius
    return "hw_slowdown" if is_near else None


def _is_held(row: Row, counters: Mapping[str, Row], limits: ThermalThrottleThresholds) -> bool:
    return gpus.is_held(row, limits) or gpus.is_always(
        row, counters, limits, limits.max_clock_ratio
    )


def _finding(
    facts: Facts, limits: ThermalThrottleThresholds, row: Row, counters: Mapping[str, Row]
) -> Finding:
    held, evidence = gpus.held_evidence(facts, row, WORDS[row["event"]], limits)
    given = [evidence]
    lost = gpus.clock_lost(counters)
    heat = counters.get("gpu_temperature")
    is_slow = lost is not None and lost[0] <= limits.max_clock_ratio
    words = [f"{WORDS[row['event']]} {held}"]
    if lost is not None:
        given.append(
            gpus.beside_peers(facts, "clock over its", lost[0], limits.max_clock_ratio, lost[1])
        )
    if lost is not None and is_slow:
        mhz = float(lost[1]["p50_value"] or 0.0) / 1e6
        peers = float(lost[1]["peer_value"] or 0.0) / 1e6
        words.append(f"{mhz:.0f} MHz against {peers:.0f}")
    if heat is not None:
        words.append(f"up to {heat['max_value']:.0f} C")
        given.append(
            Evidence(
                "highest temperature",
                float(heat["max_value"]),
                "celsius",
                query=gpus.COUNTERS,
                rows=facts.readings([heat]),
            )
        )
    index = row["gpu_index"] if row["gpu_index"] is not None else row["pci"] or "N"
    return gpus.finding(
        facts,
        [row],
        f"{gpus.subject([row])} is hot and its clock is held down: {', '.join(words)}.",
        given,
        least=Severity.MINOR if is_slow else Severity.NOTE,
        confirm=(f"nvidia-smi -i {index} -q -d PERFORMANCE,TEMPERATURE   on its host",),
        remedy=("look after its cooling; drain the machine if it stays hot",),
    )


RULE = gpus.rule(
    name="thermal-throttle",
    summary="A GPU is too hot and its clock is held down.",
    owner="hardware",
    thresholds=ThermalThrottleThresholds(),
    queries=("step_breakdown", gpus.THROTTLE, gpus.COUNTERS),
    optional=gpus.GIVEN | logged.HISTORY,
    kernel_queries=gpus.TRACE_QUERIES,
    evaluate=evaluate,
    explains=("waiting", "lateness", "odd GPU"),
    absorbs=("slow GPU",),
)
