"""
What it means
    The job's own straggler detector reports the same rank as the slowest again and again.

How it shows
    In the training log, by Megatron-LM's StragglerDetector (least throughput), NVRx' or FlagScale's
    scores of GPUs (least score): one rank is the worst in most of the reports, and a tenth and
    more behind the best. Its clock and temperature are told where it has the lowest and highest.

Why it hurts
    A job that works in step runs at the speed of its slowest rank.

Remedy
    Look at that rank's GPU and host; take it out if it is slow again elsewhere.

When this is wrong
    Throughput of Megatron-LM is work over time: a rank with more work by its place, as the last
    stage of a pipeline has, is the least by design, and waiting in communication within the timed
    parts counts as its own. Scores compare the same kernels and do not have that fault. Traces of
    the ranks tell both apart: where there are any, they judge.

Source
    megatron/core/README_STRAGGLER.md; nvidia-resiliency-ext's straggler detection, whose default
    calls a score under 0.7 a straggler; what is a straggler there is long noticed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.findings import Evidence, Finding, Scope, Severity
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed, plural, safe, share

QUERY = "straggler_reports"
NEEDS = "reports of a straggler detector in the training log (Megatron-LM's, NVRx', FlagScale's)"
CAPTURE = "run with --log-straggler (Megatron-LM) or NVRx' straggler detection, and keep the log"
DETECTORS = {"megatron": "Megatron-LM's", "nvrx": "NVRx'", "flagscale": "FlagScale's"}
SPEEDS = {"score": "score", "throughput_tflops": "throughput"}
"""What accuses: more is faster."""


class ReportedStragglerThresholds(Thresholds):
    """When a rank that is reported is a straggler."""

    min_reports_count: int = threshold(3, "reports: of two that name one rank one is chance")
    min_worst_ratio: float = threshold(
        0.67, "of the reports in which it is the worst: of many alike each is now and then"
    )
    min_behind_ratio: float = threshold(
        1.1, "times as fast as it the best one is; healthy GPUs of one model differ by a twentieth"
    )


def evaluate(facts: Facts, limits: ReportedStragglerThresholds) -> RuleOutcome:
    """One finding a rank."""
    rows = facts.of(QUERY)
    if not rows:
        return facts.lacking(NEEDS, CAPTURE)
    if facts.ranks:
        return RuleOutcome()
    named = [r for r in rows if r["what"] in SPEEDS and _is_steady(r, limits)]
    slow = [r for r in named if float(r["behind_ratio"]) >= limits.min_behind_ratio]
    return RuleOutcome(tuple(_finding(facts, limits, row, rows) for row in slow))


def _is_steady(row: Row, limits: ReportedStragglerThresholds) -> bool:
    count = int(row["reports_count"])
    return (
        count >= limits.min_reports_count
        and int(row["worst_count"]) >= limits.min_worst_ratio * count
    )


def _finding(
    facts: Facts, limits: ReportedStragglerThresholds, row: Row, rows: Sequence[Row]
) -> Finding:
    rank, what = int(row["rank"]), SPEEDS[row["what"]]
    on = f" on {safe(row['node'])}" if row["node"] is not None else ""
    supports = [
        r for r in rows if r["rank"] == rank and r["what"] not in SPEEDS and _is_steady(r, limits)
    ]
    also = [_support(r) for r in supports]
    lost = 1 - 1 / float(row["behind_ratio"])
    is_sure = what == "score" or bool(supports)
    says = (
        f"{DETECTORS.get(row['detector'], safe(row['detector']))} straggler detector reports rank "
        f"{rank}{on} as the slowest in {row['worst_count']} of "
        f"{plural(int(row['reports_count']), 'report')}: {what} {row['worst_value']:.4g}, the "
        f"best {row['best_value']:.4g}"
        + (f"; it has {listed(also)}" if also else "")
        + f". If the others wait for it, that is up to {share(lost)} of each step."
    )
    return facts.finding(
        Scope(
            ranks=(rank,),
            hosts=(safe(row["node"]),) if row["node"] is not None else (),
            identity_source="log",
        ),
        says,
        [
            Evidence.ratio(
                f"{what} of the best rank over its own",
                float(row["behind_ratio"]),
                limits.min_behind_ratio,
                QUERY,
                facts.places([row], unit="line "),
            ),
            Evidence.count(
                "reports in which it is the worst",
                row["worst_count"],
                limits.min_worst_ratio * int(row["reports_count"]),
                QUERY,
            ),
        ],
        by=["log"],
        basis="the job's own measurement"
        + ("" if is_sure else "; a rank with more work looks the same"),
        least=Severity.MINOR if is_sure else Severity.NOTE,
        keys=(),
        confirm=("profile that rank and another one in the same steps",),
        remedy=(
            "look at clock, temperature and power of its GPU; drain its host if it stays slow",
        ),
        next_capture=("tracekit capture --what profiler,dcgm",),
    )


def _support(row: Row) -> str:
    if row["what"] == "clock_mhz":
        return (
            f"the lowest clock in {row['worst_count']} of {row['reports_count']} "
            f"({row['worst_value']:.0f} MHz, the highest {row['best_value']:.0f})"
        )
    return (
        f"the highest temperature in {row['worst_count']} of {row['reports_count']} "
        f"({row['worst_value']:.0f} degrees Celsius)"
    )


RULE = Rule(
    name="reported-straggler",
    summary="The job's own straggler detector names one rank again and again.",
    owner="hardware",
    thresholds=ReportedStragglerThresholds(),
    queries=(QUERY,),
    evaluate=evaluate,
    needs=NEEDS,
    topic="the job's history",
)
