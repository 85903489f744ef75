"""
What it means
    An NVLink of a GPU is down, recovers again and again, or damages what it carries.

How it shows
    Links that are down while its peers' are up; recoveries or failures that grew; replays or
    checksum errors that grew by 100 and ten times as fast as the other GPUs'; an XID of NVLink (74,
    121, 136, 144-150) while the job ran.

Why it hurts
    Collectives within the node go the slow way round, or stop while the link recovers.

Remedy
    Reset GPU and fabric manager; if it comes back, the GPU, its baseboard or the switch.

When this is wrong
    Models differ in how many links they have: only peers of the same model are compared. A few
    corrected flits are normal at these speeds.

Source
    Diagnosis D6; DCGM fields 409-439 and 1206-1213.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules import gpus
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed

RARE = {
    "nvlink_recoveries": "link recoveries",
    "nvlink_link_failures": "links that did not recover",
}
OFTEN = {
    "nvlink_replays": "replays",
    "nvlink_crc_flit_errors": "flits with a wrong checksum",
    "nvlink_crc_data_errors": "data with a wrong checksum",
    "nvlink_link_errors": "damaged packets",
}


class NvlinkFaultThresholds(Thresholds):
    """When an NVLink is at fault."""

    min_recoveries_count: int = threshold(1, "a link that recovers stops meanwhile")
    min_errors_count: int = threshold(100, "corrected errors; a few are normal at these speeds")
    min_ahead_ratio: float = threshold(10.0, "times the other GPUs' median growth")


def evaluate(facts: Facts, limits: NvlinkFaultThresholds) -> RuleOutcome:
    """One finding a GPU."""
    growth = gpus.by_gpu(facts, gpus.GROWTH, "counter")
    counters = gpus.by_gpu(facts, gpus.COUNTERS, "counter")
    events = gpus.current_events(facts, gpus.LINK_XIDS)
    has_any = any(set(g) & {*RARE, *OFTEN} for g in growth.values()) or any(
        "nvlink_links_inactive" in c for c in counters.values()
    )
    if not has_any and not events and not facts.of(gpus.EVENTS):
        return gpus.lacking_counters(facts, "NVLink counters (DCGM 409-439, 1206-1213) or XIDs")
    faults: dict[str, list[tuple[Row, str, float, float]]] = {}
    for name, (words, least) in {
        **{n: (w, limits.min_recoveries_count) for n, w in RARE.items()},
        **{n: (w, limits.min_errors_count) for n, w in OFTEN.items()},
    }.items():
        for row, count, usual in gpus.growth_beside(growth, name):
            if count >= least and count >= limits.min_ahead_ratio * usual:
                limit = max(float(least), limits.min_ahead_ratio * usual)
                said = f"{count:,.0f} {words}"
                faults.setdefault(str(row["gpu_id"]), []).append((row, said, count, limit))
    for gpu, counted in counters.items():
        down = counted.get("nvlink_links_inactive")
        # Peers decide what is usual; a model with unused links shows them on every GPU.
        if down and down["max_value"] > (down["peer_value"] or 0.0) and down["peers_count"]:
            said = f"{down['max_value']:.0f} links are down"
            faults.setdefault(gpu, []).append((down, said, float(down["max_value"]), 1.0))
    told: dict[tuple[str, int], list[Row]] = {}
    for row in events:
        told.setdefault((str(row["gpu_id"]), int(row["xid"])), []).append(row)
    for (gpu, xid), rows in told.items():
        said = f"XID {xid} ({gpus.XIDS[xid]})"
        faults.setdefault(gpu, []).append((rows[0], said, float(len(rows)), 0.0))
    return RuleOutcome(tuple(_finding(facts, counted) for _, counted in sorted(faults.items())))


def _query_of(row: Row) -> str:
    if "xid" in row:
        return gpus.EVENTS
    return gpus.GROWTH if "growth" in row else gpus.COUNTERS


def _finding(facts: Facts, faults: Sequence[tuple[Row, str, float, float]]) -> Finding:
    rows = [row for row, *_ in faults]
    is_event = any("xid" in row for row in rows)
    words = list(dict.fromkeys(said for _, said, *_ in faults))
    is_down = any(row.get("counter") in ("nvlink_links_inactive", *RARE) for row in rows)
    return gpus.finding(
        facts,
        rows,
        f"NVLink of {gpus.subject(rows[:1])}: {listed(words)}.",
        tuple(
            gpus.event_evidence(facts, row, int(value))
            if "xid" in row
            else Evidence(
                str(row["counter"]),
                value,
                "count",
                threshold=limit or None,
                query=_query_of(row),
                rows=facts.readings([row]),
            )
            for row, _, value, limit in faults[:6]
        ),
        by=["log", "counters"] if is_event and len(rows) > 1 else ["counters"],
        basis="the GPU's own counters" + (" and the kernel log" if is_event else ""),
        least=Severity.MAJOR if is_event else Severity.MINOR if is_down else Severity.NOTE,
        confirm=("nvidia-smi nvlink -s; nvidia-smi nvlink -e   on its host",),
        remedy=("reset the GPU and the fabric manager; if it comes back, hand it to hardware",),
    )


RULE = gpus.rule(
    name="nvlink-fault",
    summary="An NVLink of a GPU is down, recovers again and again, or damages data.",
    owner="hardware",
    thresholds=NvlinkFaultThresholds(),
    queries=("step_breakdown", gpus.GROWTH, gpus.COUNTERS, gpus.EVENTS),
    evaluate=evaluate,
    explains=("waiting", "lateness"),
)
