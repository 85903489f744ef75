"""
What it means
    The step grows slowly over hours and days.

How it shows
    One slope that all levels of the training log share, of six times its own error (query
    slow_episode), after change points, stalls and restarts are taken out.

Why it hurts
    A growth that nobody sees in a day is a tenth of the job in a month. It is a leak, a
    fragmented allocator or file system, a growing cache, or a room that gets warm.

Remedy
    Restart at the next checkpoint and see whether the step is short again: then it grows with the
    process (memory, caches, fragmentation); if not, with the data or the place.

When this is wrong
    The data may grow by plan (longer sequences, a larger batch), the model too. A slope over less
    than a day may be the day's warmth.

Source
    Llama 3 (2024): 1 to 2 % of throughput by the time of day.
"""

from __future__ import annotations

from tracekit.findings import Evidence, Severity
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.logged import (
    EPISODES_QUERY,
    NO_LOG,
    SUMMARY_QUERY,
    finding,
    growth,
    log_of,
    log_rule,
)
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import seconds, sentence, share, span


class StepDriftThresholds(Thresholds):
    """What growth counts."""

    min_per_day_ratio: float = threshold(
        0.001, "of the step that it must grow by in a day: 3 % in a month"
    )
    min_span_ns: int = threshold(
        86_400_000_000_000, "of log: over less than a day it may be the day's warmth or load"
    )


def evaluate(facts: Facts, limits: StepDriftThresholds) -> RuleOutcome:
    """A slope that the whole log shares."""
    log = log_of(facts)
    if log is None:
        return facts.lacking(*NO_LOG)
    findings = []
    for row in log.of("drift"):
        per_day = row["per_day_ratio"] or 0.0
        if per_day < limits.min_per_day_ratio or log.spent_ns < limits.min_span_ns:
            continue
        findings.append(
            finding(
                facts,
                log,
                f"{sentence(growth(row))}, over {span(log.spent_ns / 1e9)} from "
                f"{seconds(row['usual_ns'] / 1e9)} on: {share(log.share(row['lost_ns'] or 0))} of "
                "the job so far.",
                [row],
                [
                    Evidence.ratio(
                        "growth of the step in a day",
                        per_day,
                        limits.min_per_day_ratio,
                        EPISODES_QUERY,
                    )
                ],
                lost_ns=row["lost_ns"] or 0,
                basis="steps of one log",
                cap=Severity.MAJOR,
                confirm=("is the step short again after a restart? then it is the process",),
                remedy=("look for what grows: host memory, caches, allocator, data, temperature",),
            )
        )
    return RuleOutcome(findings=tuple(findings))


RULE = log_rule(
    name="step-drift",
    summary="The step grows slowly over days.",
    owner="platform",
    thresholds=StepDriftThresholds(),
    queries=(SUMMARY_QUERY, EPISODES_QUERY),
    evaluate=evaluate,
)
