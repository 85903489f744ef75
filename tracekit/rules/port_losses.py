"""What a port's bytes and pauses cost the transfers behind it, as time of a step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from msgspec import Struct
from msgspec.structs import replace

from tracekit.findings import Finding
from tracekit.rules.base import Facts, Row
from tracekit.rules.ports import (
    TRAFFIC,
    PauseThresholds,
    Port,
    TransferThresholds,
    owners,
    ports,
    span_s,
)
from tracekit.rules.transfers import by_group, longest_of_groups, moved_bytes, taken_ns


def usual_speed(facts: Facts) -> float | None:
    """Bytes a second that the job's links run at (median); None where no port says so."""
    named = {(p.node, p.port) for p in ports(facts) if owners(p)}
    speeds = [
        float(r["max_value"]) / 8
        for r in facts.of("port_levels")
        if r["counter"] == "link_speed" and (r["node"], r["port"]) in named and r["max_value"]
    ]
    return median(speeds) if speeds else None


def _own_growth(row: Row, foreign_per_s: float) -> float | None:
    """What a row grew by within the steps without what is not the job's, of which as large a part
    of the whole growth is taken to be there as elsewhere."""
    seconds, growth = span_s(row), float(row["growth"])
    if seconds is None or row["step_growth"] is None:
        return None
    own_ratio = 1 - foreign_per_s * seconds / growth if growth > 0 else 0.0
    return float(row["step_growth"]) * max(0.0, own_ratio)


def slowed_ns(facts: Facts, ports: Sequence[Port], foreign_per_s: float = 0.0) -> float:
    """Time of a step that transfers took beyond what the usual speed of the job's links allows.

    The bytes a second that these ports counted from the first step to the last (less the share of
    ``foreign_per_s``, which are not the job's), at the share of the speed that large transfers
    reach, against the transfers of the ranks behind them (waiting not counted). 0 where no port
    says at what speed it runs.
    """
    needed_ns = _needed_ns(facts, ports, foreign_per_s)
    if needed_ns is None:
        return 0.0
    ranks = {r for p in ports for r in owners(p)}
    took = by_group(facts, ranks, taken_ns)
    # What the quicker ones took is enough, whatever the link's speed says.
    quick = by_group(facts, ranks, lambda row: taken_ns(row, "transfer_p25_ns"))
    moved = by_group(facts, ranks, moved_bytes)
    is_told = all(moved.values())
    lost = [0.0]
    for group, took_ns in took.items():
        # Of the time that the bytes of all groups need, its own part is a group's.
        part_ns = needed_ns * moved[group] / sum(moved.values()) if is_told else needed_ns
        if took_ns > part_ns:
            lost.append(took_ns - min(part_ns, quick[group]))
    return max(lost)


def paused_ns(facts: Facts, ports: Sequence[Port], ratio: float) -> float:
    """Time of a step that transfers through these ports lost, which paused for this share of it:
    all that they lost where pauses are why, else the pauses alone."""
    paused, slowed = ratio * facts.steps.step_ns, slowed_ns(facts, ports)
    is_why = paused >= facts.limits(PauseThresholds).min_pausing_ratio * slowed
    return max(paused, slowed) if is_why else paused


def held_ns(facts: Facts, port: Port, own_per_s: float, usual_per_s: float) -> float:
    """Time of a step that this port's bytes take beyond what they would at the rate of its peers.

    ``own_per_s`` and ``usual_per_s`` in bytes. A collective takes as long as its slowest edge: all
    of its transfer beyond that of a healthy link is lost, for all members, not what one of them
    leaves later than the others. A shaper lets bursts pass, so its rate may say too much: no more
    is lost than communication took beyond what a healthy link needs and beyond the waiting for
    members that were late by their own doing: what passes meanwhile costs nothing. 0
    where the bytes are not known.
    """
    moved = _bytes_per_s(facts, [port], 0.0)
    if moved is None or own_per_s <= 0 or usual_per_s <= own_per_s:
        return 0.0
    moved_bytes = moved * facts.steps.step_ns
    parts = [s for ranks in facts.steps.by_key.values() for s in ranks.values()]
    took_ns = fmean(s.comm_ns for s in parts) if parts else 0.0
    late_ns = sum(float(r["exposed_gap_ns"] or 0) for r in facts.of("straggler"))
    took_ns -= late_ns / max(1, len(facts.steps))
    at_rate_ns = moved_bytes * (1 / own_per_s - 1 / usual_per_s)
    return min(at_rate_ns, max(0.0, took_ns - moved_bytes / usual_per_s))


class OpenPrice(Struct, frozen=True):
    """What transfers lost a step where every call has members without a trace: between the two."""

    short_ns: float
    """Even the short calls, in which the absent ones were hardly waited for, took so much longer
    than their bytes need; 0 where they did not."""
    most_ns: float
    """All calls together, waiting for the absent ones included."""


def open_price(facts: Facts, ports: Sequence[Port], foreign_per_s: float = 0.0) -> OpenPrice:
    """What ``slowed_ns`` would tell, from calls whose last traced member may have waited for one
    without a trace (``absent_waits``). Both 0 where calls have all their members: ask that."""
    needed_ns = _needed_ns(facts, ports, foreign_per_s)
    ranks = {r for p in ports for r in owners(p)}
    if needed_ns is None or longest_of_groups(facts, ranks, lambda row: 1.0):
        return OpenPrice(0.0, 0.0)
    short_ns = most_ns = 0.0
    for row in facts.of("absent_waits"):
        traced = {int(r) for r in row["traced_ranks"]}
        is_between = len({facts.job.hosts.get(r, r) for r in traced}) > 1
        if traced & ranks and is_between:
            called_ns, waited_ns = float(row["call_per_step_ns"]), float(row["wait_per_step_ns"])
            short_ns = max(short_ns, called_ns - waited_ns)
            most_ns = max(most_ns, called_ns)
    return OpenPrice(max(0.0, short_ns - needed_ns), max(0.0, most_ns - needed_ns))


def left_open(facts: Facts, finding: Finding) -> Finding:
    """The finding with the capture that would tell its price: ranks without a trace are in the
    way."""
    return replace(finding, next_capture=(facts.missing_advice,))


def _needed_ns(facts: Facts, near: Sequence[Port], foreign_per_s: float) -> float | None:
    """Time of a step that the bytes of these ports need at the usual speed; None: unknown."""
    speed = usual_speed(facts)
    moved = _bytes_per_s(facts, near, foreign_per_s)
    if not speed or moved is None:
        return None
    return moved * facts.steps.step_ns / (facts.limits(TransferThresholds).reached_ratio * speed)


def _bytes_per_s(facts: Facts, near: Sequence[Port], foreign_per_s: float) -> float | None:
    """Bytes a second of the job that these ports counted while it ran, of the direction with more;
    None: unknown."""
    rates = [
        grown / (float(row["step_covered_ns"]) / 1e9)
        for port in near
        for row in port.of(TRAFFIC)
        if (grown := _own_growth(row, foreign_per_s)) is not None and row["step_covered_ns"]
    ]
    return max(rates, default=None)
