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
    Without traces: in the training log, where the program prints how long a step waited for its
    data beside how long it took (query logged_input); where several ranks do, by which of them
    waits longer than its peers in the same step (query logged_rank_input).

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
    shows no waiting here at all. Profiling Python stacks slows the fetch itself. A log states the
    wait of the rank that prints, and its GPU may have been busy meanwhile: the share is what a
    faster loader saves at most. Logs of several ranks do not show whether the others waited for
    the late one: where it is late in most steps, they may have been busy for as long.

Source
    Diagnosis D8: start-of-step gap of 3 % of the step or more, GPU idle, no collective pending.
"""

from __future__ import annotations

from msgspec.structs import replace

from tracekit.findings import Evidence, Finding, Scope, Severity, severity_of
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
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
from tracekit.wording import ranks_phrase, seconds, share


class DataloaderStallThresholds(StallThresholds, LatenessThresholds, ExcessThresholds):
    """When waiting for input is a stall."""

    min_step_ratio: float = threshold(
        0.03, "a fetch of under 3 % of a step is the price of any loader (D8)"
    )
    min_logged_ratio: float = threshold(
        0.10, "of the step, by the log: a GPU may work off what it was given during less than that"
    )
    min_logged_steps_count: int = threshold(
        20, "steps that a log's waits are of: the first ones wait for any loader to begin"
    )
    min_logged_held_ratio: float = threshold(
        0.5,
        "of what logs of several ranks show as lost: who is late in less of it is late by turns",
    )
    max_logged_hits_ratio: float = threshold(
        0.5, "of the steps: the others show how long one is without such a wait; beyond, a bound"
    )
    min_begins_ratio: float = threshold(
        0.5, "of all waiting: in the first steps of epochs, it is the workers' beginning"
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
LOGGED = "logged_input"
BY_RANK = "logged_rank_input"


KEEP_WORKERS = "keep the workers from epoch to epoch: persistent_workers=True"


def evaluate(facts: Facts, limits: DataloaderStallThresholds) -> RuleOutcome:
    """The ranks whose waiting for input delays the job."""
    outcome = evaluate_stalls(facts, limits, TEXT)
    outcome = replace(outcome, findings=tuple(_at_epochs(facts, f) for f in outcome.findings))
    if not facts.ranks:
        if BY_RANK in facts.unavailable:
            return outcome  # one rank's log would speak for a rank that it does not tell of
        return _by_logs(facts, limits) or _by_log(facts, limits) or outcome
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


def _at_epochs(facts: Facts, found: Finding) -> Finding:
    """The finding, with why it waits where a loader begins anew: in the steps that stall, and in no
    others, one fetch more is recorded, which finds that the epoch has ended."""
    steady = {key.step for key in facts.steps.keys}
    ranks = found.scope.ranks or facts.ranks
    counts: dict[bool, set[int]] = {True: set(), False: set()}
    for row in facts.of(TEXT.query):
        if row["rank"] in ranks and row["step"] in steady:
            has_stall = any(first <= row["step"] <= last for first, last in found.scope.steps)
            counts[has_stall].add(int(row["ranges_count"]))
    stalled, others = counts[True], counts[False]
    if not others or stalled != {max(others) + 1}:
        return found
    return replace(
        found,
        summary=f"{found.summary[:-1]}, as an epoch ends there and it begins again.",
        remedy=(KEEP_WORKERS, *found.remedy[1:]),
    )


def _by_name(
    facts: Facts, limits: DataloaderStallThresholds, late: LateRank, excess: Excess
) -> Finding:
    """A rank that is late for what it does in a range that its name says is for input."""
    cost = price(facts, [late], excess.steps)
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


def _by_logs(facts: Facts, limits: DataloaderStallThresholds) -> RuleOutcome | None:
    """What the logs of several ranks say of who waits; None where nobody does more than others."""
    rows = facts.of(BY_RANK)
    if not rows or max(row["steps_count"] for row in rows) < limits.min_logged_steps_count:
        return None
    job = rows[0]
    lost = job["lost_ns"] / job["step_ns"]
    if lost < limits.min_step_ratio or job["lost_steps_count"] < limits.episodes_count:
        return None
    late = [row for row in rows if row["hit_steps_count"]]
    held = [row for row in late if row["held_ratio"] >= limits.min_logged_held_ratio]
    ranks = sorted(row["rank"] for row in held or late)
    worst = max(held or late, key=lambda row: (row["longest_wait_ns"], -row["rank"]))
    who = ranks_phrase(ranks, (row["rank"] for row in rows))
    waits = "waits" if len(ranks) == 1 else "wait" if held else "wait by turns"
    steps = max(row["steps_count"] for row in rows)
    often = f"in {job['lost_steps_count']:,} of {steps:,} steps"
    at_most = "up to " if job["lost_steps_count"] >= limits.max_logged_hits_ratio * steps else ""
    found = facts.finding(
        Scope(ranks=tuple(ranks) if held else ()),
        f"{who} {waits} for input {often}, by their logs: up to "
        f"{seconds(worst['longest_wait_ns'] / 1e9)}, the median rank "
        f"{seconds(worst['usual_wait_ns'] / 1e9)}. The job loses {at_most}"
        f"{seconds(job['lost_ns'] / 1e9)} of a step of {seconds(job['step_ns'] / 1e9)} by it: "
        f"{at_most}{share(lost)} of its time.",
        (
            Evidence(
                "share of the step that the job loses to ranks that wait longer for input",
                lost,
                "ratio",
                threshold=limits.min_step_ratio,
                query=BY_RANK,
            ),
            Evidence(
                "longest wait for input",
                worst["longest_wait_ns"] / 1e9,
                "s",
                query=BY_RANK,
                rows=facts.places(held or late, unit="line "),
            ),
        ),
        by=["log", "peers"],
        basis="what ranks measure of themselves, in the same steps; whether the others were busy "
        "meanwhile is not known",
        least=severity_of(lost),
        cap=Severity.MAJOR,
        confirm=TEXT.confirm,
        remedy=TEXT.remedy,
        next_capture=(TEXT.capture,),
    )
    return RuleOutcome(findings=(found,))


def _by_log(facts: Facts, limits: DataloaderStallThresholds) -> RuleOutcome | None:
    """What the training log says of it; None where it states no wait that counts."""
    row = next(iter(facts.of(LOGGED)), None)
    if row is None or row["steps_count"] < limits.min_logged_steps_count:
        return None
    waits = row["input_wait_ratio"]
    if waits < limits.min_logged_ratio:
        return None
    begins = row["first_wait_ratio"] or 0.0
    is_at_begin = begins >= limits.min_begins_ratio
    found = facts.finding(
        Scope(),
        f"The rank that prints the log waits {seconds(row['input_wait_ns'] / 1e9)} of a step of "
        f"{seconds(row['step_ns'] / 1e9)} for input: {share(waits)} of its time"
        + (f", {share(begins)} of it in first steps of epochs." if is_at_begin else "."),
        _logged_evidence(facts, limits, row),
        by=["log"],
        basis="what the program measures of itself; other ranks, and what the GPU did meanwhile, "
        "are not known",
        least=severity_of(waits),
        cap=Severity.MAJOR,
        confirm=TEXT.confirm,
        remedy=((KEEP_WORKERS, *TEXT.remedy[1:]) if is_at_begin else TEXT.remedy),
        next_capture=(TEXT.capture,),
    )
    return RuleOutcome(findings=(found,))


def _logged_evidence(
    facts: Facts, limits: DataloaderStallThresholds, row: Row
) -> tuple[Evidence, ...]:
    return (
        Evidence(
            "share of the step that waits for input, by the log",
            row["input_wait_ratio"],
            "ratio",
            threshold=limits.min_logged_ratio,
            query=LOGGED,
        ),
        Evidence(
            "longest wait for input of a line",
            row["longest_wait_ns"] / 1e9,
            "s",
            query=LOGGED,
            rows=facts.places([row], unit="line "),
        ),
    )


RULE = Rule(
    name="dataloader-stall",
    summary="A rank waits for its next batch while its GPU is idle.",
    owner="data",
    thresholds=DataloaderStallThresholds(),
    queries=("step_breakdown", TEXT.query),
    optional={
        **BY_NAME,
        LOGGED: "what the training log says of waiting for input",
        BY_RANK: "which rank waits longer for input than its peers, by their logs",
    },
    evaluate=evaluate,
    judges_windows=True,
    needs=TEXT.needs,
    explains=("waiting", "lateness", "stalled launches", "idle stages"),
    symptom_of=("late input",),
    same="ranks",
)
