"""
What it means
    A rank makes the others wait while nothing at all is recorded on the thread of its training
    loop: the process stood still, or ran code that no range names.

How it shows
    The rank enters collectives last by its own doing (as for late-rank), and half or more of
    that delay are stretches without operator, call or range, a hundredth of a step or longer,
    that its peers do not have in the same steps. The finding says between which events they
    lie, how long they are and in which steps. A stage of a pipeline that is one rank has no
    peers: it is named where no other rank has such stretches, which then stands in for peers
    and replay; one that does so now and then is held against its own usual delay, which its
    place makes. Or no rank is later than the others over the whole window, but in many steps
    one or another stands still so: then all of these are named together. Or a rank stands still
    at one place, about as long each time, in some steps or in all, as its peers do not or
    hardly (a stage of one rank: as no other stage does), and delays the others then, by no more
    in all than chance has them wait for one another where ranks share cores; the replay must
    put that above nothing, or, where it cannot say, it delays them in half of the steps or
    more. Or all ranks stand still at once, or the job has one rank: then steps that have the
    stretch are held against those without it, which are shorter by half of it or more, and a
    device must be idle meanwhile for as much. Where most steps have such stretches, or a step
    has many, what counts is how long the device idles in them until what then begins was
    launched: in one range or between the same two events (code there), beside copies that other
    steps lack (a save of the state), or at places that change (no CPU, a lock). A rank whose
    peers left no trace is told only of one or two a step. Of ranks without a GPU nothing is
    said of what all have in every step: a program that waits where a device would compute has
    it, too, so the verdict alone names it.

Why it hurts
    All ranks wait until it goes on.

Remedy
    A pause that always lies between the same two events is code there: put a range around it
    (torch.profiler.record_function), or record with stacks (with_stack=True) and keep them
    (tracekit ingest --stacks): the finding then names the Python function. One that moves about
    comes from outside that code: Python's collector (gc.freeze() after warm-up, collection on all
    ranks in the same step), swapping, a process that is stopped, a page cache that is written back.
    Ranks that stand still by turns cost their sum; a collector that runs on all of them in the same
    step costs one pause.

When this is wrong
    A profiler that does not record a kind of event (CUDA calls, Python ranges) leaves the same gap;
    its peers, recorded alike, then show it too and it is no excess. A wait inside a library that
    records nothing looks like a pause. Which cause it was, no trace tells; the finding says what it
    is compatible with.

Source
    Diagnosis 3.11: the same two ranks were late with nothing recorded while a collector ran. In
    every step: pairs recorded on an H200 (fixtures/cuda/h200), a metric, a sleep, a save, a host
    whose CPUs others had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean, median

from msgspec import Struct

from tracekit.findings import Evidence, Finding, Instrument, Price
from tracekit.rules import idle_pauses
from tracekit.rules.base import NO_STEPS, Facts, Row, Rule, RuleOutcome
from tracekit.rules.excess import (
    FRAMES,
    Beyond,
    Excess,
    Peers,
    function_words,
    is_in_training,
    lone_pauses,
    passing_pauses,
    python_function,
    where_it_lies,
)
from tracekit.rules.excess import QUERY as EXCESS
from tracekit.rules.lateness.late import LateRank, delay_ns
from tracekit.rules.lateness.limits import QUERIES, LatenessThresholds
from tracekit.rules.lateness.price import no_more_than, price
from tracekit.rules.lateness.replayed import replayed
from tracekit.rules.lateness.search import Delays, late_ranks, step_delays_ns
from tracekit.rules.lateness.telling import (
    late_finding,
    matched_note,
    score_evidence,
    waiting,
    why_unmatched,
)
from tracekit.rules.recurrence import how_often
from tracekit.rules.steps import StepKey
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranks_phrase, seconds

SLOW = "slow_steps"

FIXED = "code there that no range names (a collection, a file, a lock)"
MOVING = "Python's collector, swapping, or the process being stopped: the place changes"
STACKS = "record with_stack=True and keep the frames (tracekit ingest --stacks): which function?"
BY_TURNS = "Python's collector, which each rank runs at a time of its own, or code that takes turns"


class HostPauseThresholds(LatenessThresholds, idle_pauses.IdlePausesThresholds):
    """When a rank stands still."""

    min_pause_ratio: float = threshold(
        0.5, "share of the rank's delay without anything recorded; less, and most is elsewhere"
    )


def evaluate(facts: Facts, limits: HostPauseThresholds) -> RuleOutcome:
    """One finding for each late rank of which nothing is recorded meanwhile."""
    if len(facts.ranks) == 1 and len(facts.steps):
        return _of_all(facts, limits)
    if matched_note(facts) is None:
        return facts.lacking(why_unmatched(facts), "profile all ranks in the same steps")
    if not len(facts.steps):
        return facts.lacking(*NO_STEPS)
    slow = late_ranks(facts, limits, lambda rank, ns: _stands_still(facts, rank, ns, limits))
    if not slow:
        found = _by_turns(facts, limits) or _at_one_place(facts, limits)
        return RuleOutcome(findings=found) if found else _of_all(facts, limits)
    findings = []
    for late in slow:
        excess = _pause(facts, late.rank, delay_ns(late), limits, "stage")
        if excess is None and late.peer_ratio is None:
            excess = _pause(facts, late.rank, delay_ns(late), limits, "job")
        if excess is not None:
            findings.append(_finding(facts, limits, late, excess, _pauses(facts, excess)))
    # A rank that is late for another reason does not keep all from standing still at once.
    return RuleOutcome(findings=tuple(findings)) if findings else _of_all(facts, limits)


def _of_all(facts: Facts, limits: HostPauseThresholds) -> RuleOutcome:
    """What all ranks do at once: in some steps and not in others, else in most."""
    at_once = _at_once(facts, limits)
    return RuleOutcome(findings=at_once) if at_once else idle_pauses.evaluate(facts, limits)


def _pause(
    facts: Facts, rank: int, delay_ns: float, limits: HostPauseThresholds, peers: Peers
) -> Excess | None:
    """What a rank spends beyond its peers, where most of its delay is nothing recorded."""
    kinds = ("pause",) if peers == "job" else None  # what a stage computes more is its layout
    excess = where_it_lies(facts, rank, delay_ns, peers, kinds)
    if excess is None or excess.nature != "pause" or excess.is_beside_training:
        return None
    is_most = _total_ns(_pauses(facts, excess)) >= limits.min_pause_ratio * delay_ns
    return excess if is_most else None


def _pauses(facts: Facts, excess: Excess) -> list[Row]:
    """Those of the training: what lies in a fetch or a save is that, and its rules tell of it."""
    return [row for row in excess.rows if row["kind"] == "pause" and is_in_training(facts, row)]


def _stands_still(facts: Facts, rank: int, delay_ns: float, limits: HostPauseThresholds) -> bool:
    """Whether a rank that is a pipeline's stage by itself pauses as no other stage does."""
    return _pause(facts, rank, delay_ns, limits, "job") is not None


def _delays(facts: Facts) -> tuple[dict[StepKey, dict[int, int]], Delays]:
    """What each rank delays in each step, in ns; and set against all others each time."""
    delays = step_delays_ns(facts)
    everybody = [int(row["rank"]) for row in facts.of("straggler")]
    return delays, Delays(delays, facts.steps.keys, everybody)


def _by_turns(facts: Facts, limits: HostPauseThresholds) -> tuple[Finding, ...]:
    """One finding for ranks of which now one and now another stands still; none else."""
    steps, (delays, beside) = facts.steps, _delays(facts)
    stood: dict[int, list[Row]] = {}
    turns: dict[StepKey, int] = defaultdict(int)
    paused: dict[StepKey, float] = defaultdict(float)
    for rank, rows in passing_pauses(facts).items():
        late, _ = beside.beyond_typical(rank, limits, facts)
        for key in late:
            here = [row for row in rows if key.step in row["steps"]]
            still_ns = sum(row["affected_ns"] - row["affected_peer_ns"] for row in here)
            # What else makes the rank late in this step, its batch say, is no standing still.
            if still_ns >= limits.min_pause_ratio * delays[key][rank]:
                known = stood.setdefault(rank, [])
                known.extend(row for row in here if row not in known)
                turns[key] = max(turns[key], delays[key][rank])
                paused[key] = max(paused[key], still_ns)
    measured_ns = sum(turns.values()) / len(steps)
    paused_ns = sum(paused.values()) / len(steps)
    least = max(limits.min_late_steps_count, limits.persistent_ratio * len(steps))
    is_much = measured_ns >= limits.min_cost_ratio * steps.step_ns
    if not (len(stood) > 1 and len(turns) >= least and is_much):
        return ()
    ranks, keys = sorted(stood), sorted(turns)
    rows = sorted((r for some in stood.values() for r in some), key=lambda r: -r["longest_ns"])
    longest_s = int(rows[0]["longest_ns"]) / 1e9
    cost = replayed(facts, ranks, measured_ns, limits)
    often = how_often([key.step for key in keys], len(steps))
    return (
        facts.finding(
            facts.scope(ranks, keys),
            f"{ranks_phrase(ranks, facts.ranks)} stand still by turns, for up to "
            f"{seconds(longest_s)} at a time, and the others wait {waiting(facts, cost)}: nothing "
            f"recorded {rows[0]['name']} on one rank or another {often}. Compatible with "
            f"{BY_TURNS}.",
            (
                Evidence(
                    "delay by ranks that stood still, mean of all steady steps",
                    measured_ns / 1e9,
                    "s",
                    threshold=limits.min_cost_ratio * steps.step_ns / 1e9,
                    query="late_steps",
                ),
                Evidence(
                    "pauses beyond their peers' and their own other steps, mean step",
                    paused_ns / 1e9,
                    "s",
                    threshold=limits.min_pause_ratio * measured_ns / 1e9,
                    query=EXCESS,
                    rows=facts.places(rows),
                ),
                Evidence("ranks that stood still", len(ranks), "count", query=EXCESS),
            ),
            by=("host ranges", "peers"),
            basis=f"nothing recorded on the ranks that others wait for; {matched_note(facts)}",
            impact=facts.impact(cost, keys),
            keys=keys,
            against=cost.against,
            confirm=("gc.disable() on all ranks for 50 steps: are the pauses gone?",),
            remedy=("gc.freeze() after warm-up and collect on all ranks in the same step",),
        ),
    )


def _at_one_place(facts: Facts, limits: HostPauseThresholds) -> tuple[Finding, ...]:
    """One finding for each rank that stands still at one place as its peers do not, about as long
    each time, and delays the others then, at a cost that the replay puts above nothing; where it
    cannot say, in half of the steps or more. Where all wait for one another by chance as well, as
    where ranks share cores, such a rank may have no more of all waiting than the others."""
    steps, (delays, beside) = facts.steps, _delays(facts)
    least_count = max(limits.min_late_steps_count, limits.persistent_ratio * len(steps))
    findings = []
    for rank, rows in lone_pauses(facts).items():
        late, _ = beside.beyond_typical(rank, limits, facts)
        # The largest of which it can be said: one that is in all steps may hide no other.
        for row in sorted(rows, key=lambda r: -float(r["excess_ns"])):
            if float(row["affected_ns"]) < limits.min_alike_ratio * float(row["longest_ns"]):
                continue
            still_ns = float(row["affected_ns"] - row["affected_peer_ns"])
            delayed = [
                key
                for key in late
                if {key.step, key.step - 1} & {*row["steps"]}  # behind a step's last call: the next
                and still_ns >= limits.min_pause_ratio * delays[key][rank]
            ]
            measured_ns = sum(delays[key][rank] for key in delayed) / len(steps)
            if len(delayed) < least_count or measured_ns < limits.min_cost_ratio * steps.step_ns:
                continue
            found = _lone(facts, limits, rank, row, measured_ns)
            is_steady = len(delayed) >= limits.min_together_ratio * len(steps)
            if found.impact.low_s_per_step or (is_steady and not _is_replayed(facts, rank)):
                findings.append(found)  # beyond chance
                break
    return tuple(findings)


def _is_replayed(facts: Facts, rank: int) -> bool:
    return facts.replay is not None and facts.replay.saved_ns([rank]) is not None


def _lone(
    facts: Facts, limits: HostPauseThresholds, rank: int, row: Row, measured_ns: float
) -> Finding:
    keys = [key for key in facts.steps.keys if key.step in row["steps"]]
    lasts_ns = float(row["excess_ns"])
    cost = no_more_than(facts, replayed(facts, [rank], measured_ns, limits), lasts_ns, measured_ns)
    why = _why(facts, limits, True, rank, lasts_ns, "excess_ns")
    often = how_often([key.step for key in keys], len(facts.steps))
    alone = "" if row["affected_peer_ns"] else ", none on its peers"
    return facts.finding(
        facts.scope([rank], keys),
        f"{ranks_phrase([rank], facts.ranks)} stands still for up to "
        f"{seconds(int(row['longest_ns']) / 1e9)}, and the others wait {waiting(facts, cost)}: "
        f"nothing recorded {row['name']} {often}{alone}. {why.says}",
        (
            *why.evidence,
            Evidence(
                f"the pause of rank {rank} beyond its peers', mean step",
                lasts_ns / 1e9,
                "s",
                threshold=limits.min_pause_ratio * measured_ns / 1e9,
                query=EXCESS,
                rows=facts.places([row]),
            ),
            Evidence(
                f"delay by rank {rank} where it stood still, mean of all steady steps",
                measured_ns / 1e9,
                "s",
                threshold=limits.min_cost_ratio * facts.step_ns / 1e9,
                query="late_steps",
            ),
        ),
        by=("host ranges", "peers"),
        basis=f"nothing recorded on the rank while the others wait for it; {matched_note(facts)}",
        impact=facts.impact(cost, keys),
        keys=keys,
        against=cost.against,
        confirm=why.confirm,
        remedy=("move the code out of the step, or beside it",),
    )


def _at_once(facts: Facts, limits: HostPauseThresholds) -> tuple[Finding, ...]:
    """One finding where steps are longer by a stretch in which no rank has anything recorded."""
    steps, usual_ns = facts.steps, _usual_idle_ns(facts)
    found = {
        key: row
        for row in facts.of(SLOW)
        if row["kind"] == "pause"
        and (row["rank"] is None or len(facts.ranks) == 1)
        and is_in_training(facts, row)
        and (key := StepKey.of(row)) in steps.by_key
        and _is_idle_for(facts, key, usual_ns, limits.min_pause_ratio * float(row["part_ns"]))
    }
    others = [steps.job_dur_ns(key) for key in steps.keys if key not in found]
    if len(found) < limits.min_late_steps_count or len(others) < limits.min_others_count:
        return ()
    keys, rows = sorted(found), [found[key] for key in sorted(found)]
    often = len(keys) / len(steps)
    paused_ns = often * fmean(float(row["part_ns"]) for row in rows)
    longer_ns = often * (fmean(steps.job_dur_ns(key) for key in keys) - fmean(others))
    # A device that still has work for a part of the pause loses that much less.
    idle_ns = idle_pauses.shared_ns(facts, keys) if facts.has_gpu else paused_ns
    cost_ns = min(paused_ns, longer_ns, idle_ns or paused_ns)
    if cost_ns < limits.min_cost_ratio * steps.step_ns or longer_ns < (
        limits.min_pause_ratio * paused_ns
    ):
        return ()
    longest = max(rows, key=lambda row: float(row["part_ns"]))
    names = {str(row["name"]) for row in rows}
    where = f" {longest['name']}" if len(names) == 1 else ""
    alone = len(facts.ranks) == 1
    # Of a rank whose peers left no trace it is not known what they did.
    named = facts.ranks if alone and facts.missing_ranks else ()
    subject = "The host stands" if alone else "All hosts stand"
    if named:
        subject = f"Rank {named[0]} stands"
    by: list[Instrument] = ["host ranges", "step times"]
    rank = facts.ranks[0]  # all stand still then
    why = _why(facts, limits, len(names) == 1, rank, paused_ns, "over_usual_ns")
    idle = ""
    if facts.has_gpu:
        by.append("GPU timeline")
        idle = ", and the GPU idle meanwhile" if alone else ", and the GPUs idle meanwhile"
    return (
        facts.finding(
            facts.scope(named, keys),
            f"{subject} still for "
            f"{seconds(fmean(float(row['part_ns']) for row in rows) / 1e9)} "
            f"{how_often([key.step for key in keys], len(steps))}: nothing recorded{where}"
            f"{idle}. {why.says}",
            (
                *why.evidence,
                Evidence(
                    "pauses beyond the other steps', mean step",
                    paused_ns / 1e9,
                    "s",
                    threshold=limits.min_cost_ratio * steps.step_ns / 1e9,
                    query=SLOW,
                    rows=facts.places(rows),
                ),
                Evidence(
                    "what these steps take longer than the others, mean step",
                    longer_ns / 1e9,
                    "s",
                    threshold=limits.min_pause_ratio * paused_ns / 1e9,
                    query="step_breakdown",
                ),
            ),
            by=by,
            basis=f"nothing recorded{idle}; the steps without it are shorter by as much",
            impact=facts.impact(
                Price(cost_ns, "twin steps", cost_ns, max(paused_ns, longer_ns)), keys
            ),
            keys=keys,
            confirm=why.confirm,
            remedy=(
                "move the code out of the step, or beside it"
                if why.is_code
                else "gc.freeze() after warm-up; no swap",
            ),
        ),
    )


def _is_idle_for(
    facts: Facts, key: StepKey, usual_ns: Mapping[int, float], least_ns: float
) -> bool:
    """Whether the ranks are idle in a step for so much longer than in their median one: a device
    that works through a pause of its host loses nothing."""
    return all(
        row.idle_ns - usual_ns[rank] >= least_ns for rank, row in facts.steps.by_key[key].items()
    )


def _usual_idle_ns(facts: Facts) -> dict[int, float]:
    """How long each rank is idle in its median step."""
    by_key = facts.steps.by_key.values()
    return {
        rank: median(ranks[rank].idle_ns for ranks in by_key if rank in ranks)
        for rank in facts.steps.ranks
    }


def _total_ns(rows: list[Row]) -> float:
    return sum(float(row["excess_ns"]) for row in rows)


class _Why(Struct, frozen=True):
    """What is known of why a rank stands still."""

    says: str
    is_code: bool
    confirm: tuple[str, ...]
    evidence: tuple[Evidence, ...] = ()


def _why(
    facts: Facts,
    limits: HostPauseThresholds,
    is_fixed: bool,
    rank: int,
    lasts_ns: float,
    beyond: Beyond,
) -> _Why:
    """Why, by the Python function that the rank is in then, beyond its peers or its own other
    steps; where no frames are stored, by whether the place is always the same."""
    function = python_function(facts, rank, lasts_ns, beyond)
    if function is not None:
        than = "its peers'" if beyond == "excess_ns" else "other steps'"
        evidence = Evidence.seconds(
            f"time of rank {rank} in that function beyond {than}, mean step",
            function[beyond],
            limits.min_inside_ratio * lasts_ns,
            FRAMES,
            facts.places([function]),
        )
        return _Why(
            f"It is in the Python function {function_words(function)} then.",
            True,
            ("leave the function out of the step: is the pause gone?",),
            (evidence,),
        )
    if is_fixed:
        ask = "put a range around what runs there and record again: torch.profiler.record_function"
        return _Why(f"Compatible with {FIXED}.", True, (ask, STACKS))
    ask = "gc.disable() for 50 steps: is the pause gone?"
    return _Why(f"Compatible with {MOVING}.", False, (ask, STACKS))


def _finding(
    facts: Facts, limits: HostPauseThresholds, late: LateRank, excess: Excess, pauses: list[Row]
) -> Finding:
    whole = price(facts, [late], excess.steps)
    cost = no_more_than(facts, whole, _total_ns(pauses), late.cost_ns)
    longest = max(pauses, key=lambda row: int(row["longest_ns"]))
    is_fixed = float(pauses[0]["excess_ns"]) >= limits.min_inside_ratio * _total_ns(pauses)
    why = _why(facts, limits, is_fixed, late.rank, _total_ns(pauses), "excess_ns")
    return late_finding(
        facts,
        late,
        cost,
        f"{ranks_phrase([late.rank], facts.ranks)} stands still for up to "
        f"{seconds(int(longest['longest_ns']) / 1e9)}, and the others wait "
        f"{waiting(facts, cost)}: {excess.sentence}. {why.says}",
        (
            *why.evidence,
            Evidence(
                f"pauses of rank {late.rank} beyond its peers', mean step",
                _total_ns(pauses) / 1e9,
                "s",
                threshold=limits.min_pause_ratio * delay_ns(late) / 1e9,
                query=EXCESS,
                rows=facts.places(pauses),
            ),
            Evidence("the longest", int(longest["longest_ns"]) / 1e9, "s", query=EXCESS),
            *score_evidence(facts, late, limits),
        ),
        lies_in=excess.steps,
        by=("host ranges", "peers"),
        basis=f"nothing recorded on the rank while the others wait for it; {matched_note(facts)}",
        confirm=(
            *why.confirm,
            "pidstat -r -w 1 on its host: major faults, involuntary switches; /proc/PID/status: T",
        ),
        remedy=(
            "move the code out of the step, or beside it"
            if why.is_code
            else "gc.freeze() after warm-up and collect on all ranks in one step; no swap",
        ),
    )


RULE = Rule(
    name="host-pause",
    summary="A rank, one and then another, or all at once stand still with nothing recorded.",
    owner="platform",
    thresholds=HostPauseThresholds(),
    queries=(*QUERIES, EXCESS, SLOW, idle_pauses.QUERY),
    optional={FRAMES: "in which Python function a rank stands still"},
    needs_kernels=True,
    evaluate=evaluate,
    explains=("waiting", "lateness", "latency", "stalled launches"),
    sees="slow host",
)
