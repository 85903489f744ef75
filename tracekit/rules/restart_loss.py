"""
What it means
    The job was started again: steps since the last checkpoint were done twice, and between the
    last step before and the first one after nothing was trained.

How it shows
    In the training log the number of the step falls, or a log follows another (query
    attempt_summary). Where there is no training log, Kubernetes counts how often it started the
    containers of the job's pods again (kubectl get pods; query pod_restarts).

Why it hurts
    All GPUs pay for the repeated steps and for the time between.

Remedy
    Checkpoint about every sqrt(2 x save time x mean time between failures): rarer repeats more,
    more often saves more. Find what failed (rule first-failure).

When this is wrong
    Restarts by hand, or with another configuration, count as failures here. The save time is that
    of the stalls at one distance, which may be evaluations; of a few failures the mean time
    between them is hardly known. Containers that are started again while the job's pods find each
    other at its beginning lose no step.

Source
    Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974); Daly,
    FGCS 22 (2006): its first term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt

from msgspec.structs import replace

from tracekit.findings import Evidence, Finding, Scope, Severity
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.logged import (
    ATTEMPTS_QUERY,
    EPISODES_QUERY,
    NO_LOG,
    SUMMARY_QUERY,
    Log,
    ended_for,
    finding,
    log_of,
    log_rule,
)
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed, plural, safe, share, span

PODS = "pod_restarts"


class RestartLossThresholds(Thresholds):
    """What loss counts."""

    min_lost_ratio: float = threshold(
        0.01, "of the job that restarts take together: an effect of 1 % is the least reported"
    )
    min_restarts_count: int = threshold(
        4, "of a pod's container: fewer happen while the pods of a job wait for its master"
    )


def evaluate(facts: Facts, limits: RestartLossThresholds) -> RuleOutcome:
    """What all restarts cost, and how often to save for it."""
    log = log_of(facts)
    pods = [r for r in facts.of(PODS) if r["restarts_count"] >= limits.min_restarts_count]
    if log is None:
        lacking = facts.lacking(*NO_LOG)
        return replace(lacking, findings=(_of_pods(facts, limits, pods),)) if pods else lacking
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
    counted = f" Kubernetes counts {_counted(pods[0])}." if pods else ""
    evidence = [
        Evidence.ratio(
            "lost to restarts, of the job", ratio, limits.min_lost_ratio, EPISODES_QUERY
        ),
        Evidence("starts of the training loop", len(rows) + 1, "count", query=ATTEMPTS_QUERY,
                 rows=facts.places(facts.of(ATTEMPTS_QUERY), unit="line ")),
        *([_evidence(facts, limits, pods)] if pods else []),
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
            Evidence.seconds(
                "interval between checkpoints by Young and Daly", best, None, EPISODES_QUERY
            )
        )
    return RuleOutcome(
        findings=(
            finding(
                facts,
                log,
                f"{plural(len(rows), 'restart')} cost {span(lost_ns / 1e9)}, {share(ratio)} of the "
                f"job: {', '.join(told)}.{_ended(rows)}{counted}",
                rows,
                evidence,
                lost_ns=lost_ns,
                basis="steps of one log",
                confirm=("what ended each attempt: the launcher's and the scheduler's logs",),
                remedy=(remedy,),
            ),
        )
    )


def _ended(rows: Sequence[Row]) -> str:
    """What schedulers ended the starts before for, as their lines in the log say."""
    counts = Counter(why for row in rows if (why := ended_for(row)) is not None)
    if not counts:
        return ""
    if len(rows) == 1:
        return f" By the log it came after {next(iter(counts))}."
    each = [f"{count} after {why}" for why, count in counts.most_common()]
    return f" By the log {listed(each)}."


def _of_pods(facts: Facts, limits: RestartLossThresholds, pods: Sequence[Row]) -> Finding:
    """What Kubernetes alone says: how often, and of no cost."""
    others = f", and {plural(len(pods) - 1, 'other pod')}" if len(pods) > 1 else ""
    return facts.finding(
        Scope(),
        f"Kubernetes counts {_counted(pods[0])}{others}; what was done again no training log says.",
        [_evidence(facts, limits, pods)],
        by=["log"],
        basis="Kubernetes' count; no training log",
        least=Severity.MINOR,
        cap=Severity.MINOR,
        confirm=(f"kubectl describe {pods[0]['task']}; kubectl logs --previous {pods[0]['task']}",),
        remedy=("find what ends it (rule first-failure); the training log tells what it costs",),
    )


def _counted(pod: Row) -> str:
    on = f" on {safe(pod['host'])}" if pod["host"] else ""
    why = f" (last: {safe(pod['ended_for'])})" if pod["ended_for"] else ""
    name = safe(pod["task"].removeprefix("pod/"))
    return f"{plural(pod['restarts_count'], 'restart')} of pod {name}{on}{why}"


def _evidence(facts: Facts, limits: RestartLossThresholds, pods: Sequence[Row]) -> Evidence:
    return Evidence("restarts of a pod's container", pods[0]["restarts_count"], "count",
                    threshold=limits.min_restarts_count, query=PODS,
                    rows=facts.places(pods, unit="line "))  # fmt: skip


def _interval_ns(log: Log, restarts: list[Row]) -> float | None:
    """Young's interval, where the stalls at one distance are the saves: those before which the log
    tells of a checkpoint, else the shortest. None without them."""
    stalls = [r for r in log.of("periodic") if r["times_count"] and r["lost_ns"]]
    saves = [r for r in stalls if r["checkpoints_count"]] or stalls
    if not saves or not log.summary["p50_ns"]:
        return None
    save_ns = min(r["lost_ns"] / r["times_count"] for r in saves)
    return sqrt(2 * save_ns * log.spent_ns / len(restarts))


RULE = log_rule(
    name="restart-loss",
    summary="Restarts cost a share of the job.",
    owner="platform",
    thresholds=RestartLossThresholds(),
    queries=(SUMMARY_QUERY, EPISODES_QUERY, PODS),
    optional={ATTEMPTS_QUERY: "where each start stands in its file"},
    evaluate=evaluate,
    symptom_of=("restarts",),
)
