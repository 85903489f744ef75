"""What a job in which nobody communicates computes: operators or kernels by their time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tracekit.report.model import Work, WorkPart
from tracekit.rules.base import Facts

NO_OPERATOR = "kernels that no recorded operator launched"


def work(facts: Facts) -> Work | None:
    """Where the ranks' time goes by name; None where ranks communicate, or nothing was recorded.

    By operator and their own device time; by kernel where most device time is of no recorded
    operator (in CUDA graphs, with nsys); by the operators' own time where there is no device.
    """
    if facts.of("comm_summary") or "comm_summary" in facts.unavailable:
        return None
    operators, kernels = facts.of("operator_summary"), facts.of("kernel_summary")
    if kernels:
        parts = _summed(operators, "device_self_ns")
        if not parts or parts[0].name == NO_OPERATOR:
            return _of("kernel", "kernel_summary", _summed(kernels, "total_ns"))
        return _of("operator", "operator_summary", parts)
    return _of("operator", "operator_summary", _summed(operators, "host_self_ns"), is_on_host=True)


def _of(
    kind: str, query: str, parts: tuple[WorkPart, ...], *, is_on_host: bool = False
) -> Work | None:
    return Work(kind=kind, query=query, parts=parts, is_on_host=is_on_host) if parts else None


def _summed(rows: Iterable[Mapping[str, Any]], column: str) -> tuple[WorkPart, ...]:
    """Parts with any time, of all ranks together, the largest first."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        entry = sums.setdefault(row["name"] or NO_OPERATOR, [0, 0])
        entry[0] += int(row[column] or 0)
        entry[1] += int(row["calls_count"] or 0)
    total = sum(ns for ns, _ in sums.values())
    return tuple(
        WorkPart(name=name, total_s=ns / 1e9, share_ratio=ns / total, calls_count=calls or None)
        for name, (ns, calls) in sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
        if ns > 0
    )
