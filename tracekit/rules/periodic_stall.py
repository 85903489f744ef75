"""
What it means
    At one distance in steps the job stands still: a checkpoint, an evaluation, the end of an
    epoch, a collection of garbage.

How it shows
    Lines of the training log that took much longer than their neighbours, at least five times,
    four of five at one distance in steps (query slow_episode).

Why it hurts
    Every rank waits meanwhile, and nothing that is profiled between two stalls shows it.

Remedy
    Find what has that period. Checkpoints: save asynchronously, sharded, to local disks first,
    and as often as the failure rate asks for (rule restart-loss). Evaluations: fewer or smaller.
    Epochs: keep the loader's workers (persistent_workers).

When this is wrong
    What stalls is not in the log's steps: checkpoint, evaluation and collection look alike by
    their period. Where lines state means over several steps the length of one stall is what
    remains of the mean.

Source
    research/diagnosis.md D30: gaps at a period, named by events.
"""

from __future__ import annotations

from tracekit.findings import Evidence
from tracekit.rules.base import Facts, Rule, RuleOutcome
from tracekit.rules.logged import EPISODES_QUERY, NEEDS, SUMMARY_QUERY, finding, log_of
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, seconds, share, span


class PeriodicStallThresholds(Thresholds):
    """What is worth a sentence."""

    min_lost_ratio: float = threshold(
        0.01, "of the job that the stalls take together: less is what checkpoints cost anyway"
    )
    epoch_tolerance_ratio: float = threshold(
        0.01, "of an epoch by which a period may differ from it and still be its: lines have steps"
    )


def evaluate(facts: Facts, limits: PeriodicStallThresholds) -> RuleOutcome:
    """Stalls at one distance, where they take a share of the job."""
    log = log_of(facts)
    if log is None:
        return facts.lacking(NEEDS)
    found = []
    for row in log.of("periodic"):
        lost_ns, ratio = row["lost_ns"] or 0, log.share(row["lost_ns"] or 0)
        if ratio < limits.min_lost_ratio:
            continue
        period, epoch = row["period_count"], log.summary["epoch_steps_count"]
        is_epoch = epoch and abs(period - epoch) <= limits.epoch_tolerance_ratio * epoch
        what = " at the end of each epoch" if is_epoch else ""
        each_s = lost_ns / row["times_count"] / 1e9
        act = (
            "keep the loader's workers and their cache over epochs (persistent_workers=True)"
            if is_epoch
            else "checkpoints: asynchronous, sharded, to a local disk first; evaluations: fewer"
        )
        found.append(
            finding(
                facts,
                log,
                f"Every {period:,} steps{what} one takes {seconds(each_s)} longer "
                f"({plural(row['times_count'], 'time')}, {span(lost_ns / 1e9)} in all, "
                f"{share(ratio)} of the job).",
                [row],
                [
                    Evidence(
                        "lost in stalls at one distance, of the job",
                        ratio,
                        "ratio",
                        threshold=limits.min_lost_ratio,
                        query=EPISODES_QUERY,
                    ),
                    Evidence("their distance", period, "steps", query=EPISODES_QUERY),
                ],
                lost_ns=lost_ns,
                basis="steps of one log",
                confirm=(
                    f"what runs every {period:,} steps: checkpoint, evaluation, logging, epoch?",
                ),
                remedy=(act,),
            )
        )
    return RuleOutcome(findings=tuple(found))


RULE = Rule(
    name="periodic-stall",
    summary="The job stands still at one distance in steps.",
    owner="framework",
    thresholds=PeriodicStallThresholds(),
    queries=(SUMMARY_QUERY, EPISODES_QUERY),
    evaluate=evaluate,
    doc=__doc__,
    needs=NEEDS,
    blames="nobody",
    topic="the job's history",
)
