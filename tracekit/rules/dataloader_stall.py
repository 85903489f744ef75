"""
What it means
    A rank's training loop waits for its next batch while its GPU has nothing left to do. The
    input pipeline delivers more slowly than the model consumes.

How it shows
    A range of waiting for input (``enumerate(DataLoader)#...__next__`` or an annotated fetch) on
    the thread that runs the steps, with no operation of the rank's GPU running meanwhile and no
    collective of the rank pending. On a rank without a GPU: with no collective running beside it.
    Where no such range is recorded: a rank that is late by its own doing (as for late-rank) and
    spends half of that or more in a range that is for input by its name, beyond its peers.

Why it hurts
    Every other rank waits for the batch in its next collective. The waiting shows there as
    communication, which is why the network is blamed for it so often.

Remedy
    More or persistent workers and a deeper prefetch first; then pinned memory, a cache of what is
    read again, decoding and packing offline; then faster storage.

When this is wrong
    The first batch, and the one after an epoch boundary, start the workers: a single long wait is
    no stall and is not reported. A rank that fetches slowly but had to wait in the next
    collective anyway costs nothing and is not reported. A loop that fetches on another thread
    shows no waiting here at all. Profiling Python stacks slows the fetch itself.

Source
    Diagnosis D8: start-of-step gap of 3 % of the step or more, GPU idle, no collective pending.
"""

from __future__ import annotations

from tracekit.findings import Finding
from tracekit.rules.base import Facts, Rule, RuleOutcome
from tracekit.rules.excess import QUERY as EXCESS
from tracekit.rules.excess import Excess, ExcessThresholds, where_it_lies
from tracekit.rules.facts import HIDDEN_QUERY, LOST_QUERY
from tracekit.rules.lateness.late import LateRank, delay_ns
from tracekit.rules.lateness.limits import QUERIES, LatenessThresholds
from tracekit.rules.lateness.price import price
from tracekit.rules.lateness.search import late_ranks
from tracekit.rules.lateness.telling import late_finding, matched_note, score_evidence, waiting
from tracekit.rules.stalls import StallSummary, StallText, StallThresholds, evaluate_stalls
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranks_phrase


class DataloaderStallThresholds(StallThresholds, LatenessThresholds, ExcessThresholds):
    """When waiting for input is a stall."""

    min_step_ratio: float = threshold(
        0.03, "a fetch of under 3 % of a step is the price of any loader (D8)"
    )


def _says(stall: StallSummary) -> str:
    verb = "waits" if stall.subject.startswith("Rank ") else "wait"
    return (
        f"{stall.subject} {verb} {stall.lasts} for input {stall.often}, "
        "with nothing else running: the data loader is too slow."
    )


TEXT = StallText(
    query="input_stall",
    says=_says,
    noun="input wait",
    needs="waits for input recorded in a trace (DataLoader, or an annotated fetch)",
    capture="tracekit capture --what profiler",
    confirm=("train 50 steps on one batch kept in memory: is the stall gone?",),
    remedy=(
        "raise num_workers and prefetch_factor; persistent_workers=True, pin_memory=True",
        "cache or pre-decode what is read every epoch; pack sequences offline",
        "check the storage that these ranks read from, and the CPU cores they may use",
    ),
)


BY_NAME = dict.fromkeys(
    (*QUERIES, EXCESS, HIDDEN_QUERY, LOST_QUERY), "which rank is late in a range for input"
)


def evaluate(facts: Facts, limits: DataloaderStallThresholds) -> RuleOutcome:
    """The ranks whose waiting for input delays the job."""
    outcome = evaluate_stalls(facts, limits, TEXT)
    if outcome.findings or facts.hidden_ranks or facts.job.lost_ranks:
        return outcome
    if facts.is_window or not facts.unavailable.keys().isdisjoint(BY_NAME):
        return outcome  # with a part of these a rank that others hold up could seem late
    findings = []
    measured = {int(row["rank"]) for row in facts.of(TEXT.query)}
    for late in late_ranks(facts, limits):
        if late.rank in measured:
            continue  # its waits for input are recorded, and judged above
        excess = where_it_lies(facts, late.rank, delay_ns(late))
        if excess is not None and excess.reason == "input":
            findings.append(_by_name(facts, limits, late, excess))
    return RuleOutcome(findings=tuple(findings)) if findings else outcome


def _by_name(
    facts: Facts, limits: DataloaderStallThresholds, late: LateRank, excess: Excess
) -> Finding:
    """A rank that is late for what it does in a range that its name says is for input."""
    cost = price(facts, [late])
    return late_finding(
        facts,
        late,
        cost,
        f"{ranks_phrase([late.rank], facts.ranks)} is late for its input, and the others wait "
        f"{waiting(facts, cost)}: {excess.sentence}.",
        (*excess.evidence(facts), *score_evidence(facts, late, limits)),
        lies_in=excess.steps,
        by=("host ranges", "peers"),
        basis=f"time in its input range, and the others wait for it; {matched_note(facts)}",
        confirm=TEXT.confirm,
        remedy=TEXT.remedy,
    )


RULE = Rule(
    name="dataloader-stall",
    summary="A rank waits for its next batch while its GPU is idle.",
    owner="data",
    thresholds=DataloaderStallThresholds(),
    queries=("step_breakdown", TEXT.query),
    optional=BY_NAME,
    evaluate=evaluate,
    judges_windows=True,
    needs=TEXT.needs,
    explains=("waiting", "lateness", "stalled launches", "idle stages"),
    symptom_of=("late input",),
    same="ranks",
)
