"""Causes that took the same time of the log: what each of them cost is not known.

A stretch of the log is lost once. Where two causes begin and end with it, each is priced with all
of it: the most that it can have cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from tracekit.findings import Evidence, Finding, When
from tracekit.report.judgement import ReportThresholds
from tracekit.rules.logged import EPISODES_QUERY, same_time_ratio


def counted_once(findings: Sequence[Finding], limits: ReportThresholds) -> list[Finding]:
    """The findings; those that share their time of the log say with which, and that all of it is
    the most that each cost."""
    return [
        _shared(one, others)
        if (others := [o for o in findings if o is not one and _is_same_time(one, o, limits)])
        else one
        for one in findings
    ]


def _shared(finding: Finding, others: Sequence[Finding]) -> Finding:
    against = Evidence.seconds(
        f"{', '.join(other.id for other in others)} took the same time of the log, which is lost "
        "once: how much each cost is not known",
        (finding.impact.s_per_step or 0.0) * 1e9,
        None,
        EPISODES_QUERY,
    )
    return replace(
        finding,
        counter_evidence=(*finding.counter_evidence, against),
        impact=replace(finding.impact, low_s_per_step=0.0),
    )


def _is_same_time(one: Finding, other: Finding, limits: ReportThresholds) -> bool:
    """Whether both are priced by the log, with the same loss or for the same stretch."""
    first, second = one.impact, other.impact
    if not (first.per == second.per == "job" and first.s_per_step and second.s_per_step):
        return False
    if other.id in one.explained_by or one.id in other.explained_by:
        return False
    if first.s_per_step == second.s_per_step:
        return True
    one_s, other_s = _seconds(one.when), _seconds(other.when)
    if one_s is None or other_s is None:
        return False
    return same_time_ratio(one_s, other_s) >= limits.min_shared_time_ratio


def _seconds(when: When) -> tuple[float, float] | None:
    if when.start_utc is None or when.end_utc is None:
        return None
    start, end = (datetime.fromisoformat(at) for at in (when.start_utc, when.end_utc))
    return start.timestamp(), end.timestamp()
