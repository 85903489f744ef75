"""
What it means
    The profiled steps take longer than the job's others: the profiler's own work is in the trace.

How it shows
    The log's median of the steps that the traces touch, against that of all steps (query
    profiled_window), where the log's clock or numbers place them and no slow stretch of the log
    covers them. Where they touch more than twice as many steps of the log as were profiled, and
    these are no longer than the others, the log cannot tell.

Why it hurts
    What a trace shows of launches and of the host is then partly the profiler; it costs the job
    nothing afterwards.

Remedy
    Fewer activities: no Python stacks, no shapes, no memory; a shorter window; compare with the
    log's usual step before a small finding is believed.

When this is wrong
    A stretch of a few slow steps that the log does not tell apart may have been profiled by
    chance.

Source
    research/diagnosis.md 3.1: report profiler-on overhead.
"""

from __future__ import annotations

from tracekit.findings import Evidence, Severity
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.logged import EPISODES_QUERY, NO_LOG, SUMMARY_QUERY, finding, log_of, log_rule
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import seconds, share

WINDOW_QUERY = "profiled_window"


TOO_COARSE = (
    "a training log with a line a step, and a clock that tells the profiled steps from others",
    "log each step, with fractions of a second",
)


class ProfilerOverheadThresholds(Thresholds):
    """How much longer counts."""

    min_longer_ratio: float = threshold(
        0.05, "of the job's median step: a major finding's share may be the profiler's then"
    )
    max_touched_ratio: float = threshold(
        2.0, "steps touched for each profiled: of more, the median is that of steps beside them"
    )


def evaluate(facts: Facts, limits: ProfilerOverheadThresholds) -> RuleOutcome:
    """Profiled steps that are longer than the others."""
    log = log_of(facts)
    row = next(iter(facts.of(WINDOW_QUERY)), None)
    if log is None:
        return facts.lacking(*NO_LOG)
    if row is None or not row["p50_ns"] or not row["job_p50_ns"]:
        return facts.lacking(
            "traces and a training log that tells of the profiled steps", NO_LOG[1]
        )
    longer = row["p50_ns"] / row["job_p50_ns"] - 1
    is_slow_anyway = any(
        e["first_step"] <= row["last_step"] and row["first_step"] <= e["last_step"]
        for e in (*log.of("slow"), *log.of("stall"))
    )
    if longer < limits.min_longer_ratio or is_slow_anyway:
        traced = row["traced_count"]
        is_coarse = traced and row["touched_count"] > limits.max_touched_ratio * traced
        return facts.lacking(*TOO_COARSE) if is_coarse and not is_slow_anyway else RuleOutcome()
    return RuleOutcome(
        findings=(
            finding(
                facts,
                log,
                f"The profiled steps take {share(longer)} longer than the job's median "
                f"({seconds(row['p50_ns'] / 1e9)} against {seconds(row['job_p50_ns'] / 1e9)}): "
                "the profiler's own work is in the trace.",
                [],
                [
                    Evidence.ratio(
                        "profiled steps over the job's median",
                        longer,
                        limits.min_longer_ratio,
                        WINDOW_QUERY,
                    )
                ],
                lost_ns=0,
                basis="steps of one log",
                cap=Severity.NOTE,
                confirm=("profile again without Python stacks, shapes and memory",),
                remedy=("fewer activities, or a shorter window",),
            ),
        )
    )


RULE = log_rule(
    name="profiler-overhead",
    summary="The profiled steps are longer than the job's others.",
    owner="framework",
    thresholds=ProfilerOverheadThresholds(),
    queries=(SUMMARY_QUERY, EPISODES_QUERY, WINDOW_QUERY),
    evaluate=evaluate,
    cap=Severity.NOTE,
)
