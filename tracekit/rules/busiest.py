"""The GPU that does not wait, as its counters show it where no trace does.

Whoever waits in a collective leaves most of its multiprocessors idle; who is waited for does not.
The busiest GPU may also just have more to do, so it is a suspect only where its own clock, power
or memory gives a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from tracekit.findings import Evidence
from tracekit.rules import gpus
from tracekit.rules.base import Facts, Row
from tracekit.rules.gpu_memory_fault import GROWN
from tracekit.rules.thermal_throttle import WORDS
from tracekit.rules.thresholds import threshold

ACTIVITY = ("sm_active", "graphics_active")
"""How busy a GPU is, best first; not its utilisation, which counts a waiting kernel as work."""
HELD = ("hw_thermal", "sw_thermal", "thermal", "hw_slowdown", "hw_power_brake")
QUERIES = (gpus.COUNTERS, gpus.THROTTLE, gpus.GROWTH, gpus.EVENTS)


class BusiestThresholds(gpus.HeldThresholds):
    """When a GPU is slow by its counters alone."""

    min_activity_ratio: float = threshold(
        1.10, "counters alone: its activity over its peers', as for computing time"
    )
    max_below_ratio: float = threshold(
        0.20, "counters alone: share of moments in which it is less active, as of steps"
    )
    max_clock_ratio: float = threshold(
        0.95, "clock over its busy peers' that is a reason; above it speaks against (D2)"
    )
    max_power_ratio: float = threshold(
        0.90, "counters alone: less power than peers that do less; boards differ by some 5 %"
    )
    max_alone_clock_ratio: float = threshold(
        0.85, "clock over its peers' where all are as much in use and nothing tells who waits; "
        "assumed: healthy boards at their power limit differ too, by less"
    )  # fmt: skip
    min_alone_below_ratio: float = threshold(
        0.80, "share of the moments in which that clock is below its peers', as of steps"
    )
    min_alone_use_ratio: float = threshold(0.95, "utilisation over its peers' there")
    min_hotter_celsius: float = threshold(10.0, "above its peers that is told beside its clock")
    min_use_ratio: float = threshold(
        0.50, "of a slow stretch of the log in which it is in use: the clock of an idle GPU falls"
    )
    min_peers_count: int = threshold(3, "counters alone: GPUs of its group to compare with")
    min_moments_count: int = threshold(10, "counters alone: moments to compare in")


class Busiest(Struct, frozen=True):
    """A GPU that is busier than its peers, and why it may be slow."""

    row: Row
    reasons: tuple[str, ...]
    evidence: tuple[Evidence, ...]


def has_activity(facts: Facts) -> bool:
    """Whether the activity of GPUs can be compared at all."""
    return any(
        row["counter"] in ACTIVITY and row["moments_count"] for row in facts.of(gpus.COUNTERS)
    )


def busiest(facts: Facts, limits: BusiestThresholds) -> list[Busiest]:
    """The GPUs that are busier than their peers and have a reason to be slow."""
    counters = gpus.by_gpu(facts, gpus.COUNTERS, "counter")
    throttle = gpus.by_gpu(facts, gpus.THROTTLE, "event")
    growth = gpus.by_gpu(facts, gpus.GROWTH, "counter")
    failed = {str(r["gpu_id"]): r for r in gpus.current_events(facts, gpus.MEMORY_XIDS)}
    busy = []
    for gpu, counted in sorted(counters.items()):
        row = next((counted[c] for c in ACTIVITY if c in counted), None)
        if (
            row is None
            or row["total_ratio"] is None
            or row["peers_count"] < limits.min_peers_count
            or row["moments_count"] < limits.min_moments_count
            or row["total_ratio"] < limits.min_activity_ratio
            or row["below_ratio"] > limits.max_below_ratio
        ):
            continue
        given = [
            *_clock(facts, counted, limits),
            *_held(facts, throttle.get(gpu, {}), limits),
            *_memory(facts, growth.get(gpu, {}), failed.get(gpu)),
        ]
        if given:
            reasons, evidence = zip(*given, strict=True)
            busy.append(Busiest(row, tuple(reasons), tuple(evidence)))
    return busy


def held_clocks(facts: Facts, limits: BusiestThresholds) -> list[Busiest]:
    """The GPUs whose clock is far below that of peers that are as much in use, where nothing tells
    how active they are: what computes there takes as much longer."""
    found = []
    for _, counted in sorted(gpus.by_gpu(facts, gpus.COUNTERS, "counter").items()):
        use, lost = counted.get("gpu_utilisation"), gpus.clock_lost(counted)
        if use is None or lost is None or (use["peer_ratio"] or 0.0) < limits.min_alone_use_ratio:
            continue
        ratio, row = lost
        below = row["busy_below_ratio"]
        if (
            ratio > limits.max_alone_clock_ratio
            or (row["below_ratio"] if below is None else below) < limits.min_alone_below_ratio
            or row["peers_count"] < limits.min_peers_count
            or row["moments_count"] < limits.min_moments_count
        ):
            continue
        given = [*_clock(facts, counted, limits), *_heat(facts, counted, limits)]
        reasons, evidence = zip(*given, strict=True)
        found.append(Busiest(row, tuple(reasons), tuple(evidence)))
    return found


def _heat(
    facts: Facts, counted: Mapping[str, Row], limits: BusiestThresholds
) -> list[tuple[str, Evidence]]:
    row = counted.get("gpu_temperature")
    if row is None or row["peer_value"] is None or row["p50_value"] is None:
        return []
    own, peers = float(row["p50_value"]), float(row["peer_value"])
    if own - peers < limits.min_hotter_celsius:
        return []
    evidence = Evidence(
        "temperature over its peers'", own - peers, "C", threshold=limits.min_hotter_celsius,
        query=gpus.COUNTERS, rows=facts.readings([row]),
    )  # fmt: skip
    return [(f"it is at {own:.0f} C against {peers:.0f}", evidence)]


def _clock(
    facts: Facts, counted: Mapping[str, Row], limits: BusiestThresholds
) -> list[tuple[str, Evidence]]:
    """A clock below the busy peers', or less power than peers that do less."""
    reasons = []
    lost = gpus.clock_lost(counted)
    if lost is not None and lost[0] <= limits.max_clock_ratio:
        mhz, peers = (float(lost[1][k] or 0.0) / 1e6 for k in ("p50_value", "peer_value"))
        said = f"its clock is {mhz:.0f} MHz against {peers:.0f}"
        reasons.append(
            (
                said,
                gpus.beside_peers(
                    facts, "clock over its", lost[0], limits.max_clock_ratio, lost[1]
                ),
            )
        )
    power = counted.get("power")
    if power is not None and power["peer_ratio"] is not None:
        ratio = float(power["peer_ratio"])
        if ratio <= limits.max_power_ratio:
            said = f"it draws {power['p50_value']:.0f} W against {power['peer_value']:.0f}"
            reasons.append(
                (
                    said,
                    gpus.beside_peers(
                        facts, "power over its", ratio, limits.max_power_ratio, power
                    ),
                )
            )
    return reasons


def _held(
    facts: Facts, events: Mapping[str, Row], limits: BusiestThresholds
) -> list[tuple[str, Evidence]]:
    """What holds its clock down; the software power cap is no reason: it is normal at full load."""
    held = next((events[e] for e in HELD if e in events and gpus.is_held(events[e], limits)), None)
    if held is None:
        return []
    name = WORDS.get(str(held["event"]), "hardware power brake")
    of_time, evidence = gpus.held_evidence(facts, held, name, limits)
    return [(f"{name} {of_time}", evidence)]


def _memory(
    facts: Facts, growth: Mapping[str, Row], event: Row | None
) -> list[tuple[str, Evidence]]:
    """Memory errors that were not corrected; corrected ones are normal."""
    grown = next((growth[c] for c in GROWN if c in growth and growth[c]["growth"]), None)
    if grown is not None:
        name = GROWN[str(grown["counter"])]
        evidence = Evidence.count(
            f"{name} while the job ran", grown["growth"], 1.0, gpus.GROWTH, facts.readings([grown])
        )
        return [(f"it has {name}", evidence)]
    if event is None:
        return []
    evidence = gpus.event_evidence(facts, event)
    return [(f"XID {event['xid']} ({gpus.XIDS[int(event['xid'])]})", evidence)]


def is_counters_alone(evidence: Sequence[Evidence]) -> bool:
    """Whether a finding stands on GPU counters and nothing else."""
    return all(e.query in QUERIES for e in evidence)
