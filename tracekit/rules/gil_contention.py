"""
What it means
    A rank's training loop waits for Python's interpreter lock (GIL), which another thread of the
    same process holds: a pipeline of batches, a tokenizer, a logger or a monitor in a thread.

How it shows
    Operators and calls give the lock up and take it again. Who wants it back waits for the switch
    interval (5 ms) before CPython takes it from its holder, so stretches in which the loop's thread
    records nothing are a little more than 5 ms long, or twice to four times that, at one place as
    at another. A wait for something else has lengths of its own, and a place of its own. The rank's
    GPU is idle meanwhile, or it has none.

Why it hurts
    The loop stops for 5 ms after one call in a few, however little the other thread has to do each
    time: some hundred calls make a second. In a job of many ranks all wait for the one that is hit.

Remedy
    Move the thread's work into a process (DataLoader workers, multiprocessing), or into code that
    gives the lock up (most of numpy and of torch does; json, pickle and pure Python do not).
    sys.setswitchinterval(0.0005) makes each wait shorter and is no cure.

When this is wrong
    A loop that sleeps for 5 ms at a time where it polls looks so at that place; hence several are
    asked for. Where the holder stays in one long call of C code that keeps the lock, the loop waits
    for its end, and lengths tell nothing: that is a host-pause. A program that sets another switch
    interval is not recognised.

Source
    CPython's Python/ceval_gil.c: the default interval is 5 ms. Recorded with PyTorch 2.13, pairs
    with and without a thread that holds it: of stretches between half an interval and four and a
    half 80 to 99 % were such, before 11 to 31 different events; in 110 recordings of other jobs at
    most 60 % where they lay before more than two.
"""

from __future__ import annotations

from msgspec.structs import replace

from tracekit.findings import Evidence, Finding
from tracekit.rules.base import NO_STEPS, Facts, Row, Rule, RuleOutcome
from tracekit.rules.stalls import (
    StallSummary,
    StallText,
    StallThresholds,
    evaluate_stalls,
    step_delays,
)
from tracekit.rules.thresholds import threshold
from tracekit.wording import share

LAUNCHES = "launch_stats"


class GilContentionThresholds(StallThresholds):
    """When a thread waits for the interpreter lock."""

    min_switches_ratio: float = threshold(
        0.7, "of a rank's stretches that are whole intervals long: by chance a third would be"
    )
    min_switches_count: int = threshold(20, "such stretches; fewer may be so long by chance")
    min_names_count: int = threshold(
        4, "different events before which they lie: a wait that the program makes has its place"
    )


def _says(stall: StallSummary) -> str:
    is_one = stall.subject.startswith("Rank ")
    return (
        f"{stall.subject} {'waits' if is_one else 'wait'} {stall.lasts} for Python's interpreter "
        f"lock (GIL) {stall.often}, which another thread of {'its' if is_one else 'each'} process "
        "holds."
    )


TEXT = StallText(
    query="gil_stall",
    says=_says,
    noun="wait for the interpreter lock",
    needs="operators or calls of the host recorded in a trace",
    capture="profile with activities CPU and CUDA",
    confirm=(
        "py-spy dump --pid PID, three times (--gil in py-spy top): which thread holds the lock?",
    ),
    remedy=(
        "move that thread's work into a process: DataLoader workers, multiprocessing",
        "or into code that gives the lock up while it works (numpy, torch); json and pickle do not",
    ),
    seen_by="stretches of whole switch intervals",
)


def evaluate(facts: Facts, limits: GilContentionThresholds) -> RuleOutcome:
    """The ranks whose waits for the lock delay the job."""
    if not len(facts.steps):
        return facts.lacking(*NO_STEPS)
    rows = [row for row in facts.of(TEXT.query) if _is_contended(row, limits)]
    if not rows:
        is_recorded = facts.of(TEXT.query) or facts.of(LAUNCHES) or not facts.has_gpu
        return RuleOutcome() if is_recorded else facts.lacking(TEXT.needs, TEXT.capture)
    outcome = evaluate_stalls(facts, limits, TEXT, step_delays(facts.steps, rows, limits))
    return replace(
        outcome, findings=tuple(_with_pattern(f, rows, limits) for f in outcome.findings)
    )


def _is_contended(row: Row, limits: GilContentionThresholds) -> bool:
    switches = int(row["switches_count"])
    is_many = switches >= limits.min_switches_count
    is_anywhere = int(row["names_count"]) >= limits.min_names_count
    is_most = switches >= limits.min_switches_ratio * int(row["stretches_count"])
    return is_many and is_anywhere and is_most


def _with_pattern(found: Finding, rows: list[Row], limits: GilContentionThresholds) -> Finding:
    """The finding, with what tells that it is the lock."""
    ranks = found.scope.ranks
    row = max(
        (row for row in rows if not ranks or row["rank"] in ranks),
        key=lambda row: (row["switches_count"], -row["rank"]),
    )
    ratio = row["switches_count"] / row["stretches_count"]
    return replace(
        found,
        summary=f"{found.summary[:-1]}: {row['switches_count']:,} stretches ({share(ratio)}) take "
        f"1 to 4 times its switch interval of 5 ms, before {row['names_count']:,} different "
        "events.",
        evidence=(
            *found.evidence,
            Evidence.ratio(
                f"stretches that are whole intervals long, rank {row['rank']}",
                ratio,
                limits.min_switches_ratio,
                TEXT.query,
            ),
        ),
    )


RULE = Rule(
    name="gil-contention",
    summary="Another thread of the process holds Python's lock, and the training loop waits.",
    owner="framework",
    thresholds=GilContentionThresholds(),
    queries=("step_breakdown", TEXT.query, LAUNCHES),
    evaluate=evaluate,
    needs=TEXT.needs,
    explains=("waiting", "lateness", "stalled launches", "idle stages"),
    absorbs=("slow host",),
)
