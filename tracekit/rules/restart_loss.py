"""
What it means
    The job was started again: steps since the last checkpoint were done twice, and between the
    last step before and the first one after nothing was trained.

How it shows
    In the training log the number of the step falls, or a log follows another (query
    attempt_summary).

Why it hurts
    All GPUs pay for the repeated steps and for the time between.

Remedy
    Checkpoint about every sqrt(2 x save time x mean time between failures): rarer repeats more,
    more often saves more. Find what failed (rule first-failure).

When this is wrong
    Restarts by hand, or with another configuration, count as failures here. The save time is that
    of the stalls at one distance, which may be evaluations; of a few failures the mean time
    between them is hardly known.

Source
    Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974); Daly,
    FGCS 22 (2006): its first term.
"""

from __future__ import annotations

from math import sqrt

from tracekit.findings import Evidence
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.logged import EPISODES_QUERY, NEEDS, NO_LOG, SUMMARY_QUERY, Log, finding, log_of
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, share, span


class RestartLossThresholds(Thresholds):
    """What loss counts."""

    min_lost_ratio: float = threshold(
        0.01, "of the job that restarts take together: an effect of 1 % is the least reported"
    )


def evaluate(facts: Facts, limits: RestartLossThresholds) -> RuleOutcome:
    """What all restarts cost, and how often to save for it."""
    log = log_of(facts)
    if log is None:
        return facts.lacking(*NO_LOG)
    rows = log.of("restart")
    lost_ns = sum(r["lost_ns"] or 0 for r in rows)
    ratio = log.share(lost_ns)
    if not rows or ratio < limits.min_lost_ratio:
        return RuleOutcome()
    repeated = sum(r["repeated_count"] or 0 for r in rows)
    again_ns = sum((r["repeated_count"] or 0) * (r["usual_ns"] or 0) for r in rows)
    told = [f"{repeated:,} steps done again ({span(again_ns / 1e9)})"] if repeated else []
    waited_ns = max(0, lost_ns - again_ns)
    told += [f"{span(waited_ns / 1e9)} without a step"] if waited_ns else []
    evidence = [
        Evidence(
            "lost to restarts, of the job",
            ratio,
            "ratio",
            threshold=limits.min_lost_ratio,
            query=EPISODES_QUERY,
        ),
        Evidence("starts of the training loop", len(rows) + 1, "count", query="attempt_summary",
                 rows=facts.places(facts.of("attempt_summary"), unit="line ")),
    ]  # fmt: skip
    best = _interval_ns(log, rows)
    remedy = "save more often than the steps done again say, and restart faster"
    if best is not None:
        usual_ns = log.summary["p50_ns"]
        remedy = (
            f"save every {span(best / 1e9)} (about {max(1, round(best / usual_ns)):,} steps): "
            "sqrt(2 x save time x mean time between failures)"
        )
        evidence.append(
            Evidence("interval between checkpoints by Young and Daly", best / 1e9, "s",
                     query=EPISODES_QUERY)
        )  # fmt: skip
    return RuleOutcome(
        findings=(
            finding(
                facts,
                log,
                f"{plural(len(rows), 'restart')} cost {span(lost_ns / 1e9)}, {share(ratio)} of the "
                f"job: {', '.join(told)}.",
                rows,
                evidence,
                lost_ns=lost_ns,
                basis="steps of one log",
                confirm=("what ended each attempt: the launcher's and the scheduler's logs",),
                remedy=(remedy,),
            ),
        )
    )


def _interval_ns(log: Log, restarts: list[Row]) -> float | None:
    """Young's interval, where the stalls at one distance are the saves: those before which the log
    tells of a checkpoint, else the shortest. None without them."""
    stalls = [r for r in log.of("periodic") if r["times_count"] and r["lost_ns"]]
    saves = [r for r in stalls if r["checkpoints_count"]] or stalls
    if not saves or not log.summary["p50_ns"]:
        return None
    save_ns = min(r["lost_ns"] / r["times_count"] for r in saves)
    return sqrt(2 * save_ns * log.spent_ns / len(restarts))


RULE = Rule(
    name="restart-loss",
    summary="Restarts cost a share of the job.",
    owner="platform",
    thresholds=RestartLossThresholds(),
    queries=(SUMMARY_QUERY, EPISODES_QUERY),
    optional={"attempt_summary": "where each start stands in its file"},
    evaluate=evaluate,
    needs=NEEDS,
    blames="nobody",
    topic="the job's history",
)
