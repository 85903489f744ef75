"""
What it means
    At one distance in steps the job stands still: a checkpoint, an evaluation, the end of an
    epoch, a collection of garbage.

How it shows
    Lines of the training log that took much longer than their neighbours, at least five times,
    four of five at one distance in steps (query slow_episode). Where the log itself tells of an
    evaluation, a checkpoint or a collection before them, and hardly ever before other lines, the
    finding says in how many.

Why it hurts
    Every rank waits meanwhile, and nothing that is profiled between two stalls shows it.

Remedy
    Find what has that period. Checkpoints: save asynchronously, sharded, to local disks first,
    and as often as the failure rate asks for (rule restart-loss). Evaluations: fewer or smaller.
    Epochs: keep the loader's workers (persistent_workers).

When this is wrong
    Where the log does not say what it does between steps, checkpoint, evaluation and collection
    look alike by their period. Where lines state means over several steps the length of one stall
    is what remains of the mean.

Source
    research/diagnosis.md D30: gaps at a period, named by events.
"""

from __future__ import annotations

from tracekit.findings import Evidence
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.logged import (
    EPISODES_QUERY,
    NO_LOG,
    SUMMARY_QUERY,
    beside,
    distance,
    finding,
    log_of,
    log_rule,
    times,
)
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import seconds, sentence, share, span


class PeriodicStallThresholds(Thresholds):
    """What is worth a sentence."""

    min_lost_ratio: float = threshold(
        0.01, "of the job that the stalls take together: less is what checkpoints cost anyway"
    )
    min_named_ratio: float = threshold(
        0.8, "of the stalls that must have a phase before them: then the advice is on that alone"
    )
    epoch_tolerance_ratio: float = threshold(
        0.01, "of an epoch by which a period may differ from it and still be its: lines have steps"
    )


_WHAT = {
    "evaluations_count": "an evaluation",
    "checkpoints_count": "a saved checkpoint",
    "collections_count": "a collection of garbage",
    "inputs_count": "a wait for input",
    "epochs_count": "the turn of an epoch",
}
_EPOCH_ACT = "keep the loader's workers and their cache over epochs (persistent_workers=True)"
_ACTS = {
    "evaluations_count": "evaluate less often, on fewer batches, or elsewhere from a checkpoint",
    "checkpoints_count": "save checkpoints asynchronously, sharded, to a local disk first",
    "collections_count": "collect garbage less often, on all ranks in the same step",
    "inputs_count": "the loader cannot keep up: more workers, a deeper prefetch, faster storage",
    "epochs_count": _EPOCH_ACT,
}
_BY_CLOCK = (
    "what runs at these times on the hosts and the storage: systemctl list-timers, crontab -l, "
    "backups, scrubs, snapshots"
)
_CLOCK_ACT = "move it to other hosts or hours, or give it less of the disk and the CPUs"
_UNKNOWN_ACT = "checkpoints: asynchronous, sharded, to a local disk first; evaluations: fewer"


def evaluate(facts: Facts, limits: PeriodicStallThresholds) -> RuleOutcome:
    """Stalls at one distance, where they take a share of the job."""
    log = log_of(facts)
    if log is None:
        return facts.lacking(*NO_LOG)
    findings = []
    for row in log.of("periodic"):
        lost_ns, ratio = row["lost_ns"] or 0, log.share(row["lost_ns"] or 0)
        if ratio < limits.min_lost_ratio:
            continue
        period, epoch = row["period_count"], log.summary["epoch_steps_count"]
        by_clock = row["clock_period_ns"] is not None
        is_epoch = epoch and abs(period - epoch) <= limits.epoch_tolerance_ratio * epoch
        what = " at the end of each epoch" if is_epoch else ""
        each_s = lost_ns / row["times_count"] / 1e9
        acts = [
            act
            for name, act in _ACTS.items()
            if (row[name] or 0) >= limits.min_named_ratio * row["times_count"]
        ]
        findings.append(
            finding(
                facts,
                log,
                f"{sentence(distance(row))}{what} one takes {seconds(each_s)} longer "
                f"({times(row, log.summary)}, {span(lost_ns / 1e9)} in all, "
                f"{share(ratio)} of the job){beside(row)}.",
                [row],
                [
                    Evidence.ratio(
                        "lost in stalls at one distance, of the job",
                        ratio,
                        limits.min_lost_ratio,
                        EPISODES_QUERY,
                    ),
                    Evidence("their distance", period, "steps", query=EPISODES_QUERY),
                    *(
                        Evidence(
                            f"with {what} {'in' if name == 'inputs_count' else 'before'} them",
                            row[name],
                            "stalls",
                            query=EPISODES_QUERY,
                        )
                        for name, what in _WHAT.items()
                        if row[name]
                    ),
                ],
                lost_ns=lost_ns,
                basis="steps of one log",
                confirm=(_confirm(row, bool(acts)),),
                remedy=tuple(acts)
                or (_EPOCH_ACT if is_epoch else _CLOCK_ACT if by_clock else _UNKNOWN_ACT,),
            )
        )
    return RuleOutcome(findings=tuple(findings))


def _confirm(row: Row, is_named: bool) -> str:
    if is_named:
        return f"profile one of these steps, such as the one after {row['last_step']:,}"
    if row["clock_period_ns"] is not None:
        return _BY_CLOCK
    return f"what runs every {row['period_count']:,} steps: checkpoint, evaluation, logging, epoch?"


RULE = log_rule(
    name="periodic-stall",
    summary="The job stands still at one distance in steps.",
    owner="framework",
    thresholds=PeriodicStallThresholds(),
    queries=(SUMMARY_QUERY, EPISODES_QUERY),
    evaluate=evaluate,
)
