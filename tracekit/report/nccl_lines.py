"""What logs, dumps and records of communication hold, a line each."""

from __future__ import annotations

import math

from tracekit.report import signals
from tracekit.report.benchmarks import fall_of
from tracekit.report.judgement import ReportThresholds
from tracekit.rules.base import Facts
from tracekit.wording import plural, safe

_RECORDS = {
    "flight_recorder": ("Flight Recorder", "dump", "call"),
    "nccl_inspector": ("Inspector", "file", "record"),
    "nccl_ras": ("RAS", "file", "member"),
}


def nccl_lines(facts: Facts, limits: ReportThresholds) -> list[str]:
    """What NCCL's logs hold: communicators, ranks, hosts, version, network, benchmarks."""
    lines: list[str] = []
    members = facts.of("nccl_comms")
    if members:
        comms = {str(m["comm"]) for m in members}
        largest = max(members, key=lambda m: int(m["group_size"]))
        hosts = {m["node"] for m in members if m["node"] is not None}
        seen = {m["group_rank"] for m in members if m["comm"] == largest["comm"]}
        versions = {str(m["nccl_version"]) for m in members if m["nccl_version"]} or {
            str(f).partition("=")[2]
            for r in facts.of("nccl_signals") if r["code"] == "version"
            for f in r["fields"] or () if str(f).startswith("nccl=")
        }  # fmt: skip
        words = [
            plural(len(comms), "communicator"),
            f"the largest of {plural(int(largest['group_size']), 'rank')} ({len(seen)} seen)",
            plural(len(hosts), "host"),
            *(f"NCCL {safe(v)}" for v in sorted(versions)[:2]),
            *_networks(facts),
        ]
        lines.append("NCCL logs: " + ", ".join(words))
    lines += _records(facts, limits)
    for row in facts.of("nccl_bench")[:4]:
        fall = fall_of(row, limits)
        fall = f"; its {fall}" if fall else ""
        name = safe(str(row["benchmark"] or "nccl-tests (which, is not said)"))
        if row["benchmark_source"] == "behaviour":
            name += " (not named; only it fits busbw / algbw)"
        bus = row["average_bus_bytes_per_s"]
        if row["is_complete"] and bus:
            way = f" with {row['algorithm']}" if row["algorithm"] else ""
            peak = float(row["peak_bus_bytes_per_s"] or 0)
            is_above = peak > limits.max_above_mean_ratio * bus
            more = f", {peak / 1e9:.1f} at most" if is_above else ""
            lines.append(f"{name}{way} {bus / 1e9:.1f} GB/s on average{more}{fall}")
        elif row["is_complete"] and not row["rows_count"]:
            lines.append(f"{name} ran to its end and measured nothing: it ran on one GPU")
        elif row["is_complete"]:
            peak = float(row["peak_bus_bytes_per_s"] or 0)
            sizes = plural(int(row["rows_count"]), "size")
            lines.append(f"{name}, a table alone: {sizes}, {peak / 1e9:.1f} GB/s at most{fall}")
        else:
            of = row["expected_rows_count"]
            lines.append(
                f"{name} incomplete: {row['rows_count']}{f' of {of}' if of else ''} sizes measured"
                f"{fall}"
            )
        if not row["is_complete"]:
            errors = signals.errors_of(facts, row)
            lines += [f"{name}, errors in its log: {'; '.join(errors)}"] if errors else []
    return lines


def _records(facts: Facts, limits: ReportThresholds) -> list[str]:
    """What dumps, records and snapshots hold, one line a kind."""
    lines = []
    for kind, (name, file, item) in _RECORDS.items():
        rows = [r for r in facts.of("comm_records") if r["kind"] == kind]
        if not rows:
            continue
        count = sum(int(r["calls_count"]) + int(r["members_count"]) for r in rows)
        if kind == "nccl_ras":  # files of one job show the same members again
            count = max(int(r["members_count"]) for r in rows)
        if kind == "flight_recorder":
            count = sum(int(r["calls_count"]) for r in rows)
        words = [plural(len(rows), file), plural(count, item)]
        unfinished = sum(int(r["unfinished_count"]) for r in rows)
        behind = any(r["behind_count"] for r in rows)
        fastest = max((float(r["bus_bytes_per_s"] or 0) for r in rows), default=0.0)
        words += [f"{unfinished:,} unfinished"] if unfinished else []
        words += [f"up to {fastest / 1e9:.1f} GB/s"] if fastest else []
        stated = sorted({safe(str(t)) for r in rows for t in r["statuses"] or ()} - {"OK"})
        if kind == "nccl_ras" and stated:
            words.append(f"states {', '.join(stated[:3])}")
        if behind or "MISMATCH" in stated:
            words.append("unequal counts, which are normal in one snapshot")
        words += _inspected(facts, limits) if kind == "nccl_inspector" else []
        lines.append(f"{name}: " + ", ".join(words))
    return lines


def _inspected(facts: Facts, limits: ReportThresholds) -> list[str]:
    """How Inspector's records stand beside the trace's calls."""
    rows = facts.of("inspector_calls")
    if not rows:
        return ["no communicator of theirs is known in the traces"] if facts.ranks else []
    matched = sum(int(r["matched_count"]) for r in rows)
    if not matched:
        why = next((str(r["reason"]) for r in rows if r["reason"]), "no call is in both")
        words = [f"none matched with a call of the traces: {why}"]
    else:
        words = [f"{matched:,} matched with calls of the traces"]
    known = [r for r in rows if r["dur_ratio"] is not None]
    apart = [r for r in known if _is_apart(float(r["dur_ratio"]), limits)]
    if apart:
        worst = max(apart, key=lambda r: abs(math.log(float(r["dur_ratio"]))))
        words.append(
            f"whose times disagree with the traces' kernels (up to {float(worst['dur_ratio']):.2f}x"
            f" for {worst['op']} of {int(worst['message_bytes']) / 1e6:,.0f} MB)"
        )
    elif matched:
        words.append("and their times agree")
    return words


def _is_apart(ratio: float, limits: ReportThresholds) -> bool:
    return ratio <= 0 or not 1 / limits.max_dur_ratio <= ratio <= limits.max_dur_ratio


def _networks(facts: Facts) -> list[str]:
    used = {
        str(r["detail"]).split("/", 1)[0] + (" with" if r["is_gpudirect"] else " without")
        for r in facts.of("nccl_topology")
        if r["transport"] == "NET" and r["detail"]
    }
    return [f"{safe(u)} GPUDirect" for u in sorted(used)[:3]]
