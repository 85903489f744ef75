"""What a host does in its steps while it launches nothing and its device idles.

Where ranks wait for one of them, lateness tells it; this is what a job of one rank does, or what
all ranks do at once: nobody is late, and every step is longer than it need be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.excess import ADVICE, ExcessThresholds
from tracekit.rules.range_names import class_of
from tracekit.rules.stalls import (
    StallSummary,
    StallText,
    StallThresholds,
    StepDelay,
    evaluate_stalls,
)
from tracekit.rules.steps import StepKey, Steps
from tracekit.rules.thresholds import threshold
from tracekit.wording import listed, ranks_phrase, seconds, short

QUERY = "pause_stall"
MAX_NAMED = 3
"""Places that a sentence names."""
SAVING = "a save, or a move, of the model's state that no range names"
STARVED = (
    "a host that does not get its CPUs (other programs on them, a quota), a lock that another "
    "thread holds, or swapping: the place changes"
)


class IdlePausesThresholds(StallThresholds, ExcessThresholds):
    """When pauses of all hosts are worth a finding."""

    min_step_ratio: float = threshold(
        0.02, "idle time in pauses of a step; what a loop does from step to step takes less"
    )
    min_impact_ratio: float = threshold(
        0.05, "the same, mean of all steady steps; on shared CPUs a thread waits for 1 or 2 %"
    )
    min_copies_ratio: float = threshold(
        0.1, "of the pauses, in copies that these steps have beyond the others: a save of state"
    )
    max_unseen_count: int = threshold(
        2,
        "pauses of a median step of a rank whose peers left no trace: many short ones may be for"
        " messages of these, which no record of its own shows",
    )


def evaluate(facts: Facts, limits: IdlePausesThresholds) -> RuleOutcome:
    """One finding for pauses that all ranks have, by where they lie; none without a device."""
    rows = [row for row in facts.of(QUERY) if StepKey.of(row) in facts.steps.by_key]
    if not rows or not facts.has_gpu or facts.is_window:
        return RuleOutcome()
    exposed = _exposed(rows)
    delays = [
        StepDelay(key, _shared(facts.steps, key, exposed), 0, exposed.get(key, {}))
        for key in facts.steps.keys
    ]
    least_ns = limits.min_step_ratio * facts.steps.step_ns
    stalled = [delay.key for delay in delays if delay.delay_ns >= least_ns]
    if not stalled:
        return RuleOutcome()
    there = [row for row in rows if StepKey.of(row) in set(stalled)]
    is_often = median(int(row["ranges_count"]) for row in there) > limits.max_unseen_count
    if facts.missing_ranks and is_often:
        return RuleOutcome()
    copied = _copied_ns(facts.steps, stalled, limits)
    if sum(copied.values()) >= limits.min_copies_ratio * sum(delay.delay_ns for delay in delays):
        delays = [_with_copies(delay, round(copied.get(delay.key, 0))) for delay in delays]
        text = _saving(facts, fmean(copied.values()) / 1e9)
    else:
        text = _at_one_place(facts, there, limits) or _moving(facts, there)
    return evaluate_stalls(facts, limits, text, delays)


def shared_ns(facts: Facts, keys: Sequence[StepKey]) -> float:
    """What pauses of these steps that all ranks have cost a mean steady step."""
    exposed = _exposed([row for row in facts.of(QUERY) if StepKey.of(row) in facts.steps.by_key])
    return sum(_shared(facts.steps, key, exposed) for key in keys) / len(facts.steps)


def _exposed(rows: Sequence[Row]) -> dict[StepKey, dict[int, int]]:
    exposed: dict[StepKey, dict[int, int]] = {}
    for row in rows:
        exposed.setdefault(StepKey.of(row), {})[int(row["rank"])] = int(row["exposed_ns"])
    return exposed


def _shared(steps: Steps, key: StepKey, exposed: Mapping[StepKey, Mapping[int, int]]) -> int:
    """What all ranks have of it: of what one has beyond that, others' waiting tells."""
    there = exposed.get(key, {})
    return min(min(there.get(r, 0), step.dur_ns) for r, step in steps.by_key[key].items())


def _copied_ns(
    steps: Steps, stalled: Sequence[StepKey], limits: IdlePausesThresholds
) -> dict[StepKey, float]:
    """Copies that nothing hides in steps that pause, beyond those of the others."""
    others = [
        step.memory_ns
        for key, by_rank in steps.by_key.items()
        if key not in stalled
        for step in by_rank.values()
    ]
    if len(others) < limits.min_others_count:
        return dict.fromkeys(stalled, 0.0)
    usual_ns = fmean(others)
    return {
        key: max(0.0, min(step.memory_ns for step in steps.by_key[key].values()) - usual_ns)
        for key in stalled
    }


def _with_copies(delay: StepDelay, copied_ns: int) -> StepDelay:
    stalls_ns = {rank: ns + copied_ns for rank, ns in delay.stalls_ns.items()}
    return StepDelay(delay.key, delay.delay_ns + copied_ns, 0, stalls_ns)


def _text(
    says: str, noun: str, confirm: tuple[str, ...], remedy: tuple[str, ...], facts: Facts
) -> StallText:
    subject = "The host stands" if len(facts.ranks) == 1 else "All hosts stand"
    if facts.missing_ranks:
        subject = (
            f"{ranks_phrase(facts.ranks, ())} {'stands' if len(facts.ranks) == 1 else 'stand'}"
        )

    def said(stall: StallSummary) -> str:
        return f"{subject} still for {stall.lasts} {stall.often}: {says}"

    return StallText(
        query=QUERY,
        says=said,
        noun=noun,
        needs="CUDA calls and operators in a trace",
        capture="profile with activities CPU and CUDA",
        confirm=confirm,
        remedy=remedy,
        needs_gpu=True,
        seen_by="a host on which nothing begins or ends",
    )


def _idle(facts: Facts) -> str:
    return "the GPU idle meanwhile" if len(facts.ranks) == 1 else "the GPUs idle meanwhile"


def _saving(facts: Facts, copied_s: float) -> StallText:
    advice = ADVICE["checkpoint"]
    return _text(
        f"nothing recorded between copies of device memory that take {seconds(copied_s)} of it, "
        f"and {_idle(facts)}. Compatible with {SAVING}.",
        "copying",
        ("put a range around what copies there: torch.profiler.record_function", advice.confirm),
        (advice.remedy, "copy to pinned memory first, then write from another thread"),
        facts,
    )


def _at_one_place(
    facts: Facts, rows: Sequence[Row], limits: IdlePausesThresholds
) -> StallText | None:
    """Where one place of the loop has most of it."""
    places: Counter[tuple[str, str]] = Counter()
    for row in rows:
        places[str(row["kind"]), str(row["name"])] += int(row["part_ns"])
    (kind, name), most_ns = places.most_common(1)[0]
    is_most = most_ns >= limits.min_place_ratio * sum(int(row["exposed_ns"]) for row in rows)
    # Code at some places of a loop has its longest pause at one of them, step for step.
    often = sum((row["kind"], row["name"]) == (kind, name) for row in rows)
    if not is_most and often < limits.min_place_ratio * len(rows):
        return None
    most = "" if is_most else f"{_times(rows)}the longest time "
    if kind == "between":
        where = f"nothing recorded {most}{name}"
        may_be = (
            " Compatible with code there that no range names (a collection, a file, a lock, memory "
            "that is given back)."
        )
    else:
        where, may_be = f"nothing recorded {most}inside `{short(name)}`", ""
    reason = class_of((name,)) if kind == "range" else None
    advice = ADVICE.get(reason) if reason is not None else None
    return _text(
        f"{where}{f' ({reason})' if reason else ''}, and {_idle(facts)}.{may_be}",
        "standstill",
        (
            advice.confirm
            if advice
            else "put ranges around what runs there and record again: "
            "torch.profiler.record_function; or py-spy dump while it runs",
        ),
        (advice.remedy if advice else "move the code out of the step, or beside it",),
        facts,
    )


def _times(rows: Sequence[Row]) -> str:
    """``7 times a step, ``; nothing of one."""
    count = round(fmean(int(row["ranges_count"]) for row in rows))
    return f"{count} times a step, " if count > 1 else ""


def _moving(facts: Facts, rows: Sequence[Row]) -> StallText:
    names = Counter(str(row["name"]) for row in rows)
    told = [
        name if name.startswith("between ") else f"inside `{short(name)}`"
        for name, _ in names.most_common(MAX_NAMED)
    ]
    return _text(
        f"nothing begins or ends there, {_times(rows)}at places that change ({listed(told)}), and "
        f"{_idle(facts)}. Compatible with {STARVED}.",
        "standstill",
        (
            "cat /proc/pressure/cpu on its host, and cpu.stat of its cgroup, while it runs",
            "pidstat -t -w 1 there: a thread that is switched involuntarily lacks a CPU",
        ),
        (
            "give the job CPUs of its own: fewer threads and workers, no other programs, no quota",
            "where its CPUs are idle meanwhile: find the lock (py-spy dump --native)",
        ),
        facts,
    )
