"""
What it means
    From the last step before a restart to the first one after it much time passes: noticing the
    failure, a place in the queue, image, imports, loading the checkpoint, compiling, the first
    batch.

How it shows
    The time between the lines of two launches in training logs with a clock, less a usual step;
    the median of all restarts (query attempt_summary).

Why it hurts
    All GPUs that are held meanwhile do nothing, at every restart.

Remedy
    See which part is long, in the launcher's and the program's first lines: the timeout until a
    hang is noticed, the queue, the image, imports from a shared file system, the checkpoint,
    compilation (keep its cache).

When this is wrong
    Whoever started the job again by hand the next morning made the time himself. The very first
    start is not seen: a log begins with its first step.

Source
    The restart times that Llama 3 (2024) and ByteDance's reports give are of minutes.
"""

from __future__ import annotations

from statistics import median

from tracekit.findings import Evidence, Severity
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.logged import (
    ATTEMPTS_QUERY,
    EPISODES_QUERY,
    NO_LOG,
    SUMMARY_QUERY,
    finding,
    log_of,
    log_rule,
)
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, share, span


class SlowStartupThresholds(Thresholds):
    """What is slow."""

    min_gap_ns: int = threshold(
        600_000_000_000, "from step to step over a restart: large jobs need several minutes"
    )
    max_gap_ns: int = threshold(
        14_400_000_000_000, "beyond which somebody was waited for: four hours is no start"
    )
    min_loads_ratio: float = threshold(
        0.5, "of the restarts whose log tells how long the checkpoint takes to load: of fewer it "
        "is not what a restart usually takes"
    )  # fmt: skip


def evaluate(facts: Facts, limits: SlowStartupThresholds) -> RuleOutcome:
    """The time without steps at restarts."""
    log = log_of(facts)
    if log is None:
        return facts.lacking(*NO_LOG)
    # A start behind the job's end is another job's.
    restarted = {r["first_step"] for r in log.of("restart")}
    rows = [
        r for r in facts.of(ATTEMPTS_QUERY)
        if r["gap_ns"] is not None and r["gap_ns"] <= limits.max_gap_ns
        and r["first_step"] in restarted
    ]  # fmt: skip
    usual_ns = log.summary["p50_ns"] or 0.0
    gaps = [max(0.0, r["gap_ns"] - usual_ns) for r in rows]
    if not gaps or median(gaps) < limits.min_gap_ns:
        return RuleOutcome()
    lost_ns = sum(gaps)
    loads = [float(r["load_ns"]) for r in rows if r["load_ns"]]
    load = (
        f" Loading the checkpoint takes {span(median(loads) / 1e9)} of it, by the log."
        if loads and len(loads) >= limits.min_loads_ratio * len(rows)
        else ""
    )
    return RuleOutcome(
        findings=(
            finding(
                facts,
                log,
                "From the last step before a restart to the first one after it "
                f"{span(median(gaps) / 1e9)} pass ({plural(len(gaps), 'restart')}, "
                f"{share(log.share(lost_ns))} of the job).{load}",
                rows,
                [
                    Evidence.seconds(
                        "time without steps at a restart (median)",
                        median(gaps),
                        limits.min_gap_ns,
                        ATTEMPTS_QUERY,
                        facts.places(rows, unit="line "),
                    )
                ],
                lost_ns=lost_ns,
                basis="times of one log's lines",
                cap=Severity.MAJOR,
                confirm=("which part: noticing, queue, image, imports, checkpoint, compiling?",),
                remedy=("shorten it: a lower timeout, a cached image, a kept compile cache",),
            ),
        )
    )


RULE = log_rule(
    name="slow-startup",
    summary="Restarts take long until the first step.",
    owner="platform",
    thresholds=SlowStartupThresholds(),
    queries=(SUMMARY_QUERY, EPISODES_QUERY, ATTEMPTS_QUERY),
    evaluate=evaluate,
)
