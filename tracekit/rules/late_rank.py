"""
What it means
    One rank (or a few) enters the collectives last, by its own doing, and all others wait for it.

How it shows
    Matched collectives: the waiting of every member until the last has entered is booked to that
    one, less what it inherited (it left the collective before late, waited for another rank
    meanwhile, or stood in slow transfers of another communicator while the others ran ahead). The
    rank causes a fifth or more of all such waiting, and the delay that the others could not fill
    with computing is 5 % of the step or more, beyond what the typical rank causes. Beside a rank
    that has most of the waiting, the others are asked for their share of the rest: then its own
    time, and the replay where there is one, must agree. So they must where a rank is asked among
    those of its pipeline stage: all stages wait for one another by the schedule, and hide it.

Why it hurts
    A synchronous job is as slow as its slowest rank, and every rank looks equally slow.

Remedy
    Find what the rank does differently: its kernels (slow-gpu), its host (slow-host), its input,
    its collector, its share of the work. The findings that explain this one say which.

When this is wrong
    How often a rank is last is shown and never tested: noise makes somebody last every time.
    Lateness below the clocks' error is not counted. Work that is unequal by nature (the last
    pipeline stage, a hot expert) makes a rank late that nothing is wrong with. Where a member
    left no trace it may be the one that is late: then nobody that was captured is named. Where
    neither its own time nor the replay speaks against a rank, only half of all waiting does, and
    where both clear it twice an even share, so that of two ranks neither is named: the ranks of a
    pipeline's last stage end the others' waiting by their place. A rank of a pipeline
    that is late among those of its stage only is named where its own time agrees, and the replay
    where there is one: a stage whose ranks are alike is slow as a stage (stage-imbalance). A rank
    with messages whose other side is not recorded is not named by its share of the waiting alone,
    nor is a pipeline's stage of which nothing else speaks: no operation and no pause takes longer.

Source
    Diagnosis D29 and 3.11.
"""

from __future__ import annotations

from statistics import fmean

from tracekit.findings import Candidates, Evidence, Finding, Instrument, Severity
from tracekit.rules.absent import AbsentThresholds, as_candidates, next_captures, suspects, where
from tracekit.rules.base import NO_STEPS, NOT_APPLICABLE, Facts, Row, Rule, RuleOutcome
from tracekit.rules.excess import QUERY as EXCESS
from tracekit.rules.excess import ExcessThresholds, where_it_lies
from tracekit.rules.lateness.late import LateRank, delay_ns
from tracekit.rules.lateness.limits import QUERIES, LatenessThresholds
from tracekit.rules.lateness.price import price
from tracekit.rules.lateness.search import is_piped, late_ranks
from tracekit.rules.lateness.telling import (
    late_finding,
    matched_note,
    score_evidence,
    waiting,
    why_unmatched,
)
from tracekit.rules.prices import at_most
from tracekit.rules.thresholds import threshold
from tracekit.wording import plural, ranks_phrase, seconds, share, some_ranges

CAPTURE = "profile all ranks in the same steps, with a PyTorch that records collective metadata"


class LateRankThresholds(AbsentThresholds, LatenessThresholds, ExcessThresholds):
    """When a rank is late, and when absent ranks may be."""

    min_inherited_ratio: float = threshold(
        0.5, "share of all waiting that one rank is last in without being its cause"
    )
    max_own_ratio: float = threshold(0.5, "of that waiting its own doing: from half on it is late")


def evaluate(facts: Facts, limits: LateRankThresholds) -> RuleOutcome:
    """One finding for each late rank, or one for the ranks that nobody captured."""
    if not facts.of("match_coverage"):
        if facts.job.world_size == 1:
            return NOT_APPLICABLE
        return facts.lacking("collectives in the traces of two or more ranks", CAPTURE)
    if not len(facts.steps):
        return facts.lacking(*NO_STEPS)
    absent = _absent(facts, limits)
    if matched_note(facts) is None or (absent is not None and not facts.of("straggler")):
        if absent is not None:
            return RuleOutcome(findings=(absent,))
        return facts.lacking(why_unmatched(facts), CAPTURE)
    late_ones = [r for r in late_ranks(facts, limits) if not _is_a_stages_turn(facts, r)]
    findings = [_finding(facts, limits, late) for late in late_ones]
    if absent is not None:
        findings.append(absent)
    findings += _inherited(facts, limits, {late.rank for late in late_ones})
    return RuleOutcome(findings=tuple(findings))


def _is_a_stages_turn(facts: Facts, late: LateRank) -> bool:
    """Whether nothing but waiting speaks against a rank of a pipeline, whose stages wait for one
    another by design: it has no peers, spends nothing more, and its operations take no longer."""
    if late.scores_count > 1 or late.peer_ratio is not None or not is_piped(facts):
        return False
    replay = facts.replay
    if replay is None or replay.operations_error_ratio is None:
        return False
    if replay.saved_in_operations_ns(late.rank, delay_ns(late)) is not None:
        return False
    return where_it_lies(facts, late.rank, delay_ns(late)) is None


def _finding(facts: Facts, limits: LateRankThresholds, late: LateRank) -> Finding:
    excess = where_it_lies(facts, late.rank, delay_ns(late))
    lies_in = () if excess is None else excess.steps
    cost = price(facts, [late], lies_in)
    advice = None if excess is None else excess.advice
    work = "kernels" if facts.has_gpu else "operators"
    confirm = f"compare rank {late.rank} with a peer in the same step: {work}, host, input"
    remedy = "fix what makes the rank late; see the findings that explain this one"
    confirms = [confirm if advice is None else advice.confirm]
    if excess is not None and excess.may_be_larger_inputs:
        confirms.insert(
            0, "record shapes (record_shapes=True): are its inputs larger in these steps?"
        )
    kinds: list[Instrument] = ["peers"]
    if (late.peer_ratio or 0.0) >= limits.min_peer_ratio:
        kinds.append("host ranges" if not facts.has_gpu else "GPU timeline")
    return late_finding(
        facts,
        late,
        cost,
        f"{ranks_phrase([late.rank], facts.ranks)} makes the others wait "
        f"{waiting(facts, cost)} {_whose(late)}"
        f"{_nature(late, limits) if excess is None else f': {excess.sentence}'}.",
        (*score_evidence(facts, late, limits), *(excess.evidence(facts) if excess else ())),
        lies_in=lies_in,
        by=kinds,
        basis=f"{late.scores_count} of {late.available_count} straggler scores agree; "
        f"{matched_note(facts)}",
        against=_counter(late, limits),
        owner=None if advice is None else advice.owner,
        confirm=tuple(confirms),
        remedy=(remedy if advice is None else advice.remedy,),
    )


def _whose(late: LateRank) -> str:
    """By whose doing, with the rank's own share of the waiting and that of those beside it."""
    its_share = f"{share(late.share_ratio)} of all such waiting"
    if late.stage is not None:
        its_share += f" in stage {late.stage}"
    if late.aside:
        its_share += f" that is not for rank{'' if len(late.aside) == 1 else 's'} "
        its_share += some_ranges(late.aside)
    if late.joint_share_ratio is None:
        return f"by its own doing ({its_share})"
    return (
        f"side by side with rank{'' if len(late.together) == 1 else 's'} "
        f"{some_ranges(late.together)} ({its_share}; all of them {share(late.joint_share_ratio)})"
    )


def _nature(late: LateRank, limits: LateRankThresholds) -> str:
    if late.peer_ratio is None or late.compute_ratio is None:
        return ""
    if late.peer_ratio < limits.min_peer_ratio:
        return ""
    if late.compute_ratio < limits.min_peer_ratio:
        return (
            f": its kernels take {late.compute_ratio:.2f}x the time of its peers', "
            f"the time between them {late.peer_ratio:.1f}x, so its host holds it up"
        )
    return f": it computes {late.compute_ratio:.1f}x as long as its peers"


def _counter(late: LateRank, limits: LateRankThresholds) -> tuple[Evidence, ...]:
    if late.peer_ratio is None or late.peer_ratio >= limits.min_peer_ratio:
        return ()
    return (
        Evidence(
            "its own time is like its peers'",
            late.peer_ratio,
            "ratio",
            threshold=limits.min_peer_ratio,
            query="straggler",
        ),
    )


# --- late, and not by its own doing --------------------------------------------------------------


def _inherited(facts: Facts, limits: LateRankThresholds, named: set[int]) -> list[Finding]:
    """A rank that is last because it leaves the operation before late, every time."""
    rows = list(facts.of("straggler"))
    total = sum(int(r["inflicted_wait_ns"]) for r in rows)
    leaves_ns = _always_leaves_late(facts)
    findings = []
    for row in rows:
        rank, inflicted = int(row["rank"]), int(row["inflicted_wait_ns"])
        if rank in named or rank not in leaves_ns or total <= 0:
            continue
        is_inherited = int(row["own_inflicted_wait_ns"]) < limits.max_own_ratio * inflicted
        if is_inherited and inflicted >= limits.min_inherited_ratio * total:
            findings.append(
                _inherited_finding(facts, limits, row, inflicted / total, leaves_ns[rank])
            )
    return [f for f in findings if (f.impact.step_ratio or 0) >= limits.min_cost_ratio]


def _always_leaves_late(facts: Facts) -> dict[int, float]:
    """Ranks that leave nine operations of ten later than the others' median: by how much a step."""
    steps_count = len(facts.steps) + len(facts.steps.warmup_keys)
    leaves_ns: dict[int, float] = {}
    for row in facts.of("exit_lateness"):
        if float(row["exit_p10_ns"]) > max(0, int(row["error_ns"])):
            late_ns = float(row["exit_p50_ns"]) * int(row["calls_count"]) / max(1, steps_count)
            leaves_ns[int(row["rank"])] = leaves_ns.get(int(row["rank"]), 0.0) + late_ns
    return leaves_ns


def _inherited_finding(
    facts: Facts, limits: LateRankThresholds, row: Row, ratio: float, leaves_ns: float
) -> Finding:
    rank = int(row["rank"])
    scope = facts.scope([rank], facts.steps.keys)
    steps_count = len(facts.steps) + len(facts.steps.warmup_keys)
    waiting_ns = int(row["inflicted_wait_ns"]) / steps_count / max(1, len(facts.ranks) - 1)
    impact = facts.impact(at_most(min(leaves_ns, waiting_ns), "twin ranks"))
    own_ns = int(row["own_inflicted_wait_ns"])
    return facts.finding(
        scope,
        f"{ranks_phrase([rank], facts.ranks)} is last in {int(row['late_count'])} of "
        f"{int(row['matched_count'])} collectives ({share(ratio)} of all waiting), because it "
        f"leaves the one before late: {seconds(own_ns / 1e9)} of "
        f"{seconds(int(row['inflicted_wait_ns']) / 1e9)} is its own doing.",
        (
            Evidence(
                "share of all waiting that it is last in",
                ratio,
                "ratio",
                threshold=limits.min_inherited_ratio,
                query="straggler",
            ),
            Evidence(
                "part of that waiting that is its own doing", own_ns / 1e9, "s", query="straggler"
            ),
            Evidence(
                "its ends less the members' median ends, a step",
                leaves_ns / 1e9,
                "s",
                query="exit_lateness",
            ),
        ),
        by=["peers"],
        basis=f"the lateness is inherited; {matched_note(facts)}",
        impact=impact,
        cap=Severity.MINOR,
        owner="network",
        candidates=_behind_whom(facts, rank),
        confirm=(f"look at the transfer towards rank {rank}, not at its work",),
        remedy=("fix what makes it leave late; see the findings that explain this one",),
    )


def _behind_whom(facts: Facts, rank: int) -> Candidates:
    """The others of its communicators, any of whose links may be why it leaves late."""
    groups = [{int(r) for r in row["ranks"] or ()} for row in facts.of("match_coverage")]
    others = sorted(set().union(*(group for group in groups if rank in group)) - {rank})
    return Candidates(
        ranks=tuple(others), why="a slow link of one passes its delay on through its communicators"
    )


# --- members that nobody captured ---------------------------------------------------------------


def _absent(facts: Facts, limits: LateRankThresholds) -> Finding | None:
    """The finding where the traced ranks wait for members without a trace.

    Not of a part of the job: they may wait for a rank that the selection leaves out.
    """
    if facts.job.left_out_ranks:
        return None
    rows = [
        r
        for r in facts.of("absent_waits")
        if r["wait_per_step_ns"] is not None and r["missing_ranks"]
    ]
    step_ns = facts.steps.step_ns
    heavy = [
        r for r in rows if float(r["wait_per_step_ns"]) >= limits.min_estimated_ratio * step_ns
    ]
    if not heavy:
        return None
    suspected = suspects(facts, heavy, [r for r in rows if r not in heavy], limits)
    cost_ns = fmean(float(r["wait_per_step_ns"]) for r in heavy)
    traced = sorted({int(rank) for r in heavy for rank in r["traced_ranks"]})
    scope = facts.scope([], facts.steps.keys)
    step_s = step_ns / 1e9
    impact = facts.impact(at_most(cost_ns, "twin ranks"))
    return facts.finding(
        scope,
        f"{ranks_phrase(traced, facts.ranks)} wait{'s' if len(traced) == 1 else ''} about "
        f"{seconds(cost_ns / 1e9)} of each "
        f"{seconds(step_s)} step for members that were not captured: the culprit is among "
        f"{plural(len(suspected.ranks), 'rank')} without a trace{where(facts, suspected.ranks)}.",
        (
            Evidence(
                "waiting of a traced member for absent ones, a step (estimate)",
                cost_ns / 1e9,
                "s",
                threshold=limits.min_estimated_ratio * step_s,
                query="absent_waits",
            ),
        ),
        by=["peers"],
        basis="estimated from the traced members' durations",
        impact=impact,
        cap=Severity.MINOR,
        place="not-captured",
        candidates=as_candidates(facts, suspected),
        next_capture=next_captures(facts, suspected.ranks),
    )


RULE = Rule(
    name="late-rank",
    summary="A rank enters the collectives last by its own doing, and the others wait.",
    owner="platform",
    thresholds=LateRankThresholds(),
    queries=(*QUERIES, EXCESS, "absent_waits", "exit_lateness"),
    needs_kernels=True,
    evaluate=evaluate,
    explains=("waiting", "latency"),
    symptom_of=("lateness", "lateness of its group"),
    same="ranks and steps",
)
