"""
What it means
    A GPU reports that its memory, its firmware or the GPU itself has failed.

How it shows
    An XID that speaks of hardware while the job ran (48, 62, 63, 64, 79, 92, 94, 95, 119, 120, 140,
    143, 171, 172), uncorrectable memory errors that grew, a memory row that could not be replaced
    or waits for a reset. Of several XIDs on a host within three minutes the first counts.

Why it hurts
    An uncorrectable error ends a program; a GPU that falls off the bus ends the job.

Remedy
    Drain the machine, reset the GPU, run dcgmi diag -r 3; replace it if it comes back.

When this is wrong
    XIDs 13, 31 and 43 are the program's; 45 and 137 follow from another. Corrected errors are
    normal. A row that waits for a reset harms nothing until then: a note. So are uncorrectable
    errors since the driver was loaded, where one reading is all there is: when they came, it does
    not tell. DCGM's XID gauge keeps
    the last XID for ever: only its changes count.

Source
    Diagnosis D4; NVIDIA's catalogue of XIDs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules import gpus
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.thresholds import threshold
from tracekit.wording import listed, plural

FATAL = frozenset({48, 62, 64, 79, 95, 119, 120, 140, 143, 171, 172})
"""XIDs after which the GPU is of no use until it is reset."""
FLAGS = {
    "row_remap_failure": "a memory row could not be replaced",
    "row_remap_pending": "a memory row waits for a reset to be replaced",
    "retired_pages_pending": "memory pages wait for a reset to be retired",
}
GROWN = {
    "ecc_dbe_volatile": "uncorrectable memory errors",
    "ecc_dbe_aggregate": "uncorrectable memory errors",
    "remapped_rows_uncorrectable": "rows replaced after uncorrectable errors",
    "retired_pages_dbe": "pages retired after uncorrectable errors",
}

SINCE_LOADED = "ecc_dbe_volatile"
"""Counts from the loading of the driver on; the aggregate is of the board's whole life."""


class GpuMemoryFaultThresholds(gpus.PricedThresholds):
    """When a GPU has failed."""

    min_errors_count: int = threshold(1, "one uncorrectable error is one too many")


def evaluate(facts: Facts, limits: GpuMemoryFaultThresholds) -> RuleOutcome:
    """One finding a GPU."""
    if not any(facts.of(q) for q in (gpus.EVENTS, gpus.GROWTH, gpus.COUNTERS)):
        return gpus.lacking_counters(facts, "kernel logs with XIDs, or ECC and row-remap counters")
    rows: dict[str, list[Row]] = {}
    for row in gpus.current_events(facts, gpus.MEMORY_XIDS):
        rows.setdefault(str(row["gpu_id"]), []).append(row)
    for row in facts.of(gpus.GROWTH):
        is_alone = row["counter"] == SINCE_LOADED and row["growth"] is None
        errors = row["last_value"] if is_alone else row["growth"]
        if row["counter"] in GROWN and (errors or 0) >= limits.min_errors_count:
            rows.setdefault(str(row["gpu_id"]), []).append(row)
    for row in facts.of(gpus.COUNTERS):
        if row["counter"] in FLAGS and row["max_value"] >= 1:
            rows.setdefault(str(row["gpu_id"]), []).append(row)
    findings = (_finding(facts, limits, of_gpu) for _, of_gpu in sorted(rows.items()))
    return RuleOutcome(tuple(gpus.priced(facts, f) for f in findings))


def _in_time(row: Row) -> tuple[bool, int, int]:
    return (row["time_ns"] is None, row["time_ns"] or 0, row["place"])


def _finding(facts: Facts, limits: GpuMemoryFaultThresholds, rows: Sequence[Row]) -> Finding:
    xids = [r for r in rows if "xid" in r]
    first = min(xids, key=_in_time, default=None)
    grown = [r for r in rows if r.get("growth") is not None]
    standing = [r for r in rows if "growth" in r and r["growth"] is None]
    flags = [r for r in rows if "max_value" in r]
    words = []
    if first is not None:
        others = sorted({int(r["xid"]) for r in xids} - {int(first["xid"])})
        more = f", then {', '.join(map(str, others))}" if others else ""
        words.append(f"XID {first['xid']} ({gpus.XIDS[int(first['xid'])]}){more}")
    words += [
        f"{plural(int(r['growth']), 'of its').split(' ')[0]} {GROWN[r['counter']]}"
        for r in grown[:1]
    ]
    words += [
        f"{plural(int(r['last_value']), 'of its').split(' ')[0]} {GROWN[r['counter']]} since its "
        "driver was loaded"
        for r in standing
    ]
    words += [FLAGS[r["counter"]] for r in flags]
    is_fatal = (
        any(int(r["xid"]) in FATAL for r in xids)
        or bool(grown)
        or any(r["counter"] == "row_remap_failure" for r in flags)
    )
    severity = Severity.CRITICAL if is_fatal else Severity.MINOR if xids else Severity.NOTE
    evidence = [
        Evidence.count(
            f"messages of XID {number}",
            sum(1 for r in xids if r["xid"] == number),
            None,
            gpus.EVENTS,
            facts.readings([r for r in xids if r["xid"] == number][:3]),
        )
        for number in list(dict.fromkeys(r["xid"] for r in xids))[:3]
    ]
    evidence += [
        Evidence.count(
            str(r["counter"]),
            r["growth"],
            limits.min_errors_count,
            gpus.GROWTH,
            facts.readings([r]),
        )
        for r in grown
    ]
    evidence += [
        Evidence.count(
            f"{r['counter']}, one reading",
            r["last_value"],
            limits.min_errors_count,
            gpus.GROWTH,
            facts.readings([r]),
        )
        for r in standing
    ]
    evidence += [
        Evidence.count(str(r["counter"]), r["max_value"], 1.0, gpus.COUNTERS, facts.readings([r]))
        for r in flags
    ]
    has_both = bool(xids) and bool(grown or standing or flags)
    return gpus.finding(
        facts,
        rows,
        f"{gpus.subject(rows[:1])}: {listed(words)}.",
        tuple(evidence),
        by=["log", "counters"] if has_both else ["log"] if xids else ["counters"],
        basis="the GPU's own report" + (", in the kernel log and its counters" if has_both else ""),
        least=severity,
        confirm=("dmesg -T | grep -i xid   and   nvidia-smi -q -d ECC,ROW_REMAPPER   on its host",),
        remedy=(
            "drain the machine, reset the GPU, run dcgmi diag -r 3; replace it if it comes back",
        ),
    )


RULE = gpus.rule(
    name="gpu-memory-fault",
    summary="A GPU reports that its memory, its firmware or itself has failed.",
    owner="hardware",
    thresholds=GpuMemoryFaultThresholds(),
    queries=("step_breakdown", gpus.EVENTS, gpus.GROWTH, gpus.COUNTERS),
    kernel_queries=gpus.TRACE_QUERIES,
    evaluate=evaluate,
    explains=("waiting", "lateness", "a lost member"),
    absorbs=("slow GPU",),
)
