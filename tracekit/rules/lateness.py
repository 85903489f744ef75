"""What late ranks have in common: who delayed whom, by how much, how sure.

Noise makes every rank late now and then. So a rank is held to what it adds beyond the typical
rank (the median of all), in time that the waiting rank could not use, and three scores are
looked at: its share of all own inflicted waiting, its own time over its peers', and (where replay
exists) the step without it. Two of those available must agree before a finding is worth more
than minor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from tracekit.findings import Evidence, EvidenceRow, Finding, HeldUp, Price, Severity
from tracekit.rules.base import Facts, Row
from tracekit.rules.prices import PriceThresholds, at_most, by_replay, disagreeing
from tracekit.rules.stalls import episode_lengths
from tracekit.rules.steps import StepKey
from tracekit.rules.thresholds import threshold
from tracekit.wording import seconds, some_ranges

QUERIES = ("step_breakdown", "straggler", "late_steps", "match_coverage", "comm_summary")
ABSENT_WAITS = "absent_waits"
OBSERVED = "the exposed delay that others were seen to wait"


class ReplayThresholds(PriceThresholds):
    """When a replay can have seen what was measured."""

    min_replayed_ratio: float = threshold(
        0.5,
        "of the measured delay that a replay must find: else it has missed what was waited for",
    )
    min_streams_ratio: float = threshold(
        0.1, "the same where launches and streams are replayed, which shows what hides a delay"
    )


class LatenessThresholds(ReplayThresholds):
    """When a rank is late by its own doing."""

    min_cost_ratio: float = threshold(
        0.05, "exposed delay over the step, beyond the typical rank's; noise adds 1 to 3 % (D29)"
    )
    min_share_ratio: float = threshold(
        0.20, "share of all own inflicted waiting (D29); several ranks may qualify"
    )
    min_times_fair_ratio: float = threshold(
        1.5, "times an even share: of two ranks each has half of the noise"
    )
    min_lone_share_ratio: float = threshold(
        0.5,
        "the same where no other score is available or agrees: each rank of a pipeline's last stage"
        " ends the others' waiting, by its place in the schedule",
    )
    min_peer_ratio: float = threshold(1.10, "own time over its peers' median; as a slow GPU's (D1)")
    late_step_ratio: float = threshold(
        0.02, "a step counts as late from this share of a mean step, beyond the typical rank's"
    )
    persistent_steps_count: int = threshold(
        3, "this many late steps in a row are no accident (continuity, as in Minder)"
    )
    persistent_ratio: float = threshold(0.20, "or this share of the steady steps")
    min_late_steps_count: int = threshold(2, "and so many: one step shows no persistence")
    min_outlier_mads: float = threshold(
        3.5,
        "scaled median absolute deviations beyond the other ranks' delays: ranks that share"
        " cores scatter widely (3.2)",
    )
    min_together_ratio: float = threshold(
        0.5,
        "share of the steady steps in which ranks that are late together caused the waiting: chance"
        " does not choose the same ones each time",
    )
    max_named_ratio: float = threshold(
        0.5, "share of the cost of ranks that are late together which single ones account for"
    )
    max_asked_ratio: float = threshold(
        0.75, "share of all own inflicted waiting that is enough, however few ranks there are"
    )
    min_scores_count: int = threshold(
        2, "of the available scores that must agree, for a finding to be worth more than minor"
    )
    min_rest_count: int = threshold(
        3, "ranks beside those that are late already: fewer are nobody's typical rank"
    )
    min_late_count: int = threshold(
        3, "collectives that waited for it; where one step is all there is, this shows persistence"
    )


class SlowerThresholds(LatenessThresholds):
    """When a rank is late where every call has a member without a trace."""

    min_of_worst_ratio: float = threshold(
        0.5,
        "its delay over the worst rank's. To mend the worst gains the difference where both fall"
        " together, else all of its own, and no call tells which: below half, either is more than"
        " this one's",
    )
    min_compared_count: int = threshold(3, "ranks with peers: most of them say what is usual")
    max_uneven_ratio: float = threshold(
        0.1, "received tokens beside the mean's; more is a reason to compute longer, or shorter"
    )


@dataclass(frozen=True)
class LateRank:
    """A rank that is late by its own doing, and how it shows."""

    rank: int
    cost_ns: float
    """Exposed delay of a mean steady step beyond the typical rank's; of all that are late side by
    side with it, what a step would take less without their delays."""
    share_ratio: float
    """Its own share of all own inflicted waiting, less what ranks ``aside`` inflicted."""
    peer_ratio: float | None
    compute_ratio: float | None
    late_count: int
    late_keys: tuple[StepKey, ...]
    scores_count: int
    """Scores that call it a straggler, of ``available_count``."""
    available_count: int
    is_sure: bool
    """Whether enough of the available scores agree."""
    slowdown_ratio: float | None
    """The ideal step with only its delays, over the ideal step, by replay."""
    row: Row
    together: tuple[int, ...] = ()
    """Other ranks that are late side by side with it."""
    joint_share_ratio: float | None = None
    """Their share of all own inflicted waiting together with its own; None where it is alone."""
    own_cost_ns: float | None = None
    """Its own exposed delay, where ``cost_ns`` is of all of them."""
    is_matched: bool = True
    """False where who entered last is not known: share and late_count say nothing then."""
    aside: tuple[int, ...] = ()
    """Ranks that are late beside it and have most of the waiting."""

    @classmethod
    def of(
        cls,
        row: Row,
        scores: Sequence[bool | None],
        limits: LatenessThresholds,
        *,
        cost_ns: float,
        late_keys: Sequence[StepKey],
        others: Sequence[Row] | None = None,
        members: Sequence[int] = (),
        share_ratio: float = 0.0,
        joint_share_ratio: float | None = None,
        own_cost_ns: float | None = None,
        slowdown_ratio: float | None = None,
        is_matched: bool = True,
        aside: Sequence[int] = (),
    ) -> LateRank:
        """From its row of straggler. A score of None is not available; ``others`` are rows of the
        ranks that are not late beside the ``members`` (None: the row's ratios are to such ones)."""
        rank = int(row["rank"])
        scores_count = sum(score is True for score in scores)
        return cls(
            rank=rank,
            cost_ns=cost_ns,
            share_ratio=share_ratio,
            joint_share_ratio=joint_share_ratio,
            own_cost_ns=own_cost_ns,
            peer_ratio=_ratio(row, "peer_ratio", others),
            compute_ratio=_ratio(row, "compute_ratio", others),
            late_count=int(row["late_count"]) if is_matched else 0,
            late_keys=tuple(late_keys),
            scores_count=scores_count,
            available_count=sum(score is not None for score in scores),
            is_sure=scores_count >= limits.min_scores_count,
            slowdown_ratio=slowdown_ratio,
            row=row,
            together=tuple(r for r in members if r != rank),
            is_matched=is_matched,
            aside=tuple(aside),
        )


def late_ranks(facts: Facts, limits: LatenessThresholds) -> list[LateRank]:
    """Ranks that are late by their own doing, persistently and at a cost; the worst first.

    Each has a share of all waiting that noise does not give. Where a rank is far behind, even in
    few steps, it has most of the waiting and leaves the others little: so those that are found are
    set aside, and the others are asked for their share of the rest.
    """
    steps = facts.steps
    rows = {int(r["rank"]): r for r in facts.of("straggler")}
    if len(rows) < 2 or not len(steps) or steps.step_ns <= 0:
        return []
    alone_late = _late_alone(facts, limits, rows, ())
    found = alone_late
    while found and len(rows) - len(alone_late) >= limits.min_rest_count:
        found = _late_alone(facts, limits, rows, [late.rank for late in alone_late])
        alone_late = alone_late + found
    together = _late_together(facts, limits, rows, alone_late)
    alone = [late for late in alone_late if late.rank not in {t.rank for t in together}]
    return sorted(alone + together, key=lambda r: (-r.cost_ns, r.rank))


def _late_alone(
    facts: Facts, limits: LatenessThresholds, rows: Mapping[int, Row], aside: Sequence[int]
) -> list[LateRank]:
    """Ranks that are far behind the others, leaving ``aside`` those that are found already.

    What a few ranks share of the rest may be little and chance: beside others that are late, no
    score may speak against a rank.
    """
    steps, delays = facts.steps, step_delays_ns(facts)
    rest = [r for r in sorted(rows) if r not in aside]
    shares = {r: float(row["lateness_ratio"] or 0.0) for r, row in rows.items()}
    rest_share = 1 - sum(shares[r] for r in aside)
    if rest_share <= 0:
        return []
    found = []
    for rank in rest:
        row, its_share = rows[rank], shares[rank] / rest_share
        late, cost_ns = beyond_typical(delays, rank, steps.keys, rest, limits, facts)
        cost_ratio = cost_ns / steps.step_ns
        is_late = cost_ratio >= limits.min_cost_ratio and its_share >= _enough(
            1 / len(rest), limits
        )
        is_late = is_late and _is_outlier(delays, rank, steps.keys, rest, limits)
        if not is_late or not _is_persistent(late, row, facts, limits):
            continue
        peer = row["peer_ratio"]
        what_if = facts.replay.slowdown(rank) if facts.replay is not None else None
        scores = (
            True,
            None if peer is None else float(peer) >= limits.min_peer_ratio,
            None if what_if is None else what_if >= 1 + limits.min_cost_ratio,
        )
        agreed = sum(score is True for score in scores)
        if agreed == 1 and its_share < limits.min_lone_share_ratio:
            continue
        if aside and (False in scores or agreed < limits.min_scores_count):
            continue
        found.append(
            LateRank.of(
                row,
                scores,
                limits,
                cost_ns=cost_ns,
                late_keys=late,
                aside=aside,
                share_ratio=its_share,
                slowdown_ratio=what_if,
            )
        )
    return found


def _enough(fair: float, limits: LatenessThresholds) -> float:
    """Share of all waiting that ranks must be behind whose even share is ``fair``."""
    asked = max(limits.min_share_ratio, limits.min_times_fair_ratio * fair)
    return min(limits.max_asked_ratio, asked)


def _late_together(
    facts: Facts, limits: LatenessThresholds, rows: Mapping[int, Row], named: Sequence[LateRank]
) -> list[LateRank]:
    """Ranks that are equally late, as all of a host are: each comes just before or after another,
    so that none is far behind, and each by itself seems to delay nobody. Their peers are the ranks
    that are not late with them.

    Together they must be late by the same limits, and each in its own time and by replay. Nothing
    is said where calls cannot be replayed: no other measure sees them together; nor where the
    replay misses most of the delay of ranks that are ``named`` alone. Where ranks send to one
    another, one that is late has a receiver of its own, which waits for it whoever else is late:
    there each must have a share of the waiting beyond what noise gives the ranks that are not
    slow, or it is late because of the one before it.
    """
    replay, steps = facts.replay, facts.steps
    if replay is None:
        return []
    slow = _beyond_usual(rows, limits)
    # Of more than half it cannot be said that they are slow, and not the others fast.
    if not 1 < len(slow) <= len(rows) / 2:
        return []
    slowdowns = {r: replay.slowdown(r) or 0.0 for r in slow}
    members = sorted(r for r in slow if slowdowns[r] >= 1 + limits.min_cost_ratio)
    shares = {r: float(row["lateness_ratio"] or 0.0) for r, row in rows.items()}
    if is_piped(facts):
        noise = [share for r, share in shares.items() if r not in members]
        most = median(noise) + limits.min_outlier_mads * scatter(noise)
        members = [r for r in members if shares[r] > most]
    joint = sum(shares[r] for r in members)
    least = _enough(len(members) / len(rows), limits)
    if len(members) < 2 or joint < least:
        return []
    saved_ns = replay.saved_ns(members)
    if saved_ns is None or saved_ns < limits.min_cost_ratio * steps.step_ns:
        return []
    if named:
        ranks = sorted(late.rank for late in named)
        alone_ns = replay.saved_ns(ranks)
        # Where those that are far behind account for most of it, the others are late beside them.
        if (alone_ns or 0.0) >= limits.max_named_ratio * saved_ns:
            return []
        if not _is_credible(facts, alone_ns, max(late.cost_ns for late in named), limits):
            return []
    late, delays = _keys_together(facts, members, least), step_delays_ns(facts)
    others = [row for r, row in rows.items() if r not in members]
    if len(late) < limits.min_together_ratio * len(steps):
        return []
    return [
        LateRank.of(
            rows[rank],
            (True, True, True),
            limits,
            cost_ns=min(saved_ns, steps.step_ns),
            late_keys=late,
            others=others,
            members=members,
            share_ratio=shares[rank],
            joint_share_ratio=joint,
            own_cost_ns=fmean(delays.get(key, {}).get(rank, 0) for key in steps.keys),
            slowdown_ratio=slowdowns[rank],
        )
        for rank in members
    ]


def is_piped(facts: Facts) -> bool:
    """Whether ranks send to one another: stages of a pipeline wait for those before and behind."""
    return any(r["op"] in ("send", "recv", "send_recv") for r in facts.of("comm_summary"))


def _beyond_usual(rows: Mapping[int, Row], limits: LatenessThresholds) -> list[int]:
    """Ranks whose own time over their peers' is beyond what is usual.

    Where half of all are slow, the median of all is half slow too: the faster half says what is
    usual.
    """
    ratios = {r: float(x) for r, row in rows.items() if (x := row["peer_ratio"]) is not None}
    if not ratios:
        return []
    usual = median(sorted(ratios.values())[: (len(ratios) + 1) // 2])
    return [r for r, ratio in ratios.items() if ratio >= limits.min_peer_ratio * usual]


def slower_ranks(facts: Facts, limits: SlowerThresholds) -> list[LateRank]:
    """Ranks that take longer than their peers, which stand in communication for longer meanwhile.

    For jobs in which no call has all its members, because some left no trace: who enters last is
    not known there. The cost is the lesser of both differences. Where the traced rank that comes
    last waits for the absent ones (absent_waits), they are slower still: to mend a traced one would
    gain nothing, and nobody is named. Where that cannot be estimated, it is no major finding. Not
    told in a pipeline, whose stages wait for one another.
    """
    steps = facts.steps
    rows = {int(r["rank"]): r for r in facts.of("straggler")}
    has_whole_calls = any(int(r["matched_count"]) for r in rows.values())
    compared = [r for r, row in rows.items() if row["peer_ratio"] is not None]
    if facts.job.left_out_ranks:
        return []  # all may wait for a rank that the selection leaves out
    is_few = len(compared) < limits.min_compared_count
    if not facts.missing_ranks or has_whole_calls or is_piped(facts) or is_few:
        return []
    absent = [r["wait_per_step_ns"] for r in facts.of(ABSENT_WAITS) if r["missing_ranks"]]
    known = [float(ns) for ns in absent if ns is not None]
    if max(known, default=0.0) >= limits.min_cost_ratio * steps.step_ns:
        return []
    means = steps.rank_means
    slow = [r for r in _beyond_usual(rows, limits) if r in means]
    others = [r for r in compared if r not in slow and r in means]
    if not slow or len(slow) > len(compared) / 2 or not others or steps.step_ns <= 0:
        return []
    own_ns = {r: p.dur - p.exposed_comm for r, p in means.items()}
    others_own = median(own_ns[r] for r in others)
    others_wait = median(means[r].exposed_comm for r in others)
    costs = {r: min(own_ns[r] - others_own, others_wait - means[r].exposed_comm) for r in slow}
    least = max(
        limits.min_cost_ratio * steps.step_ns, limits.min_of_worst_ratio * max(costs.values())
    )
    members = [r for r in slow if costs[r] >= least]
    # Several that take turns share the waiting, and nothing tells in what parts: each cost is then
    # an upper bound (megatron-tp8 without a file: 223 ms for 153), and not major.
    is_major = len(members) == 1 and len(known) == len(absent) > 0
    return [
        LateRank.of(
            rows[rank],
            (True, is_major),
            limits,
            cost_ns=costs[rank],
            late_keys=steps.keys,
            others=[rows[r] for r in others],
            members=members,
            is_matched=False,
        )
        for rank in sorted(members, key=lambda r: (-costs[r], r))
    ]


def _keys_together(facts: Facts, members: Sequence[int], least: float) -> list[StepKey]:
    """Steady steps in which the members together caused at least that share of all own waiting."""
    ours: dict[StepKey, int] = defaultdict(int)
    total: dict[StepKey, int] = defaultdict(int)
    for row in facts.of("late_steps"):
        key = StepKey(int(row["attempt"]), int(row["capture_id"]), int(row["step"]))
        waited = int(row["own_wait_ns"] or 0)
        total[key] += waited
        ours[key] += waited if int(row["rank"]) in members else 0
    return [key for key in facts.steps.keys if total[key] and ours[key] >= least * total[key]]


def _of_waiting(late: LateRank) -> str:
    """The waiting that its share is a share of."""
    if not late.aside:
        return "all own inflicted waiting"
    ranks = "rank" if len(late.aside) == 1 else "ranks"
    return f"own inflicted waiting without that for {ranks} {some_ranges(late.aside)}"


def beside(late: LateRank) -> str:
    """The ranks that are late side by side with it, to go into a sentence; empty where alone."""
    if not late.together:
        return ""
    return f" and {'ranks' if len(late.together) > 1 else 'rank'} {some_ranges(late.together)}"


def _ratio(row: Row, name: str, others: Sequence[Row] | None) -> float | None:
    """A rank's ratio to its peers, or to those that are not late with it: all are ratios to one
    median."""
    if others is None:
        return None if row[name] is None else float(row[name])
    known = [float(o[name]) for o in others if o[name] is not None]
    if row[name] is None or not known or median(known) <= 0:
        return None
    return float(row[name]) / median(known)


def delay_ns(late: LateRank) -> float:
    """What a late rank itself delays a mean step by, also where it is late side by side."""
    return late.cost_ns if late.own_cost_ns is None else late.own_cost_ns


def price(facts: Facts, members: Sequence[LateRank]) -> Price:
    """What a step would gain without these ranks' delays.

    By replay: delays of several ranks, or in several communicators, may hide each other. Else the
    exposed delay of the worst of them. Ranks that are late together are late side by side: they
    have one cost, which the finding of each carries.
    """
    measured = max(late.cost_ns for late in members)
    if not all(late.is_matched for late in members):
        # What is replayed are calls that have all their members.
        return at_most(measured, "twin ranks")
    limits = facts.limits(LatenessThresholds)
    ranks = {r for late in members for r in (late.rank, *late.together)}
    found = _joint(replayed(facts, ranks, measured, limits), ranks, members)
    if found.held_up is None:
        return found
    # Those that are late by turns hold the step up for one another.
    everybody = {late.rank: late for late in late_ranks(facts, limits)}
    everybody |= {late.rank: late for late in members}
    if everybody.keys() <= ranks:
        return found
    most = max(late.cost_ns for late in everybody.values())
    together = _joint(
        replayed(facts, everybody.keys() | ranks, most, limits), everybody.keys() | ranks, members
    )
    if together.held_up is None:
        return together
    return replace(
        together,
        held_up=replace(together.held_up, waited_ns=measured),
        against=disagreeing(together.ns, OBSERVED, measured, limits, "late_steps"),
    )


def _joint(cost: Price, ranks: Collection[int], members: Sequence[LateRank]) -> Price:
    """The cost of these ranks' delays, which those of the members are among."""
    is_whole = len(ranks) == len(members)
    return cost if is_whole else replace(cost, joint_ranks=tuple(sorted(ranks)))


def observed_price(facts: Facts, ranks: Sequence[int]) -> Price | None:
    """What a step would gain without the delays of these ranks, whoever they are; None where
    nobody waits for them by as much as a late rank is called late for, or nothing is replayed."""
    limits, steps = LatenessThresholds(), facts.steps
    replay, everybody = facts.replay, [int(r["rank"]) for r in facts.of("straggler")]
    if replay is None or not len(steps) or set(ranks) >= set(everybody):
        return None
    delays = step_delays_ns(facts)
    measured = max(
        beyond_typical(delays, r, steps.keys, everybody, limits, facts)[1] for r in ranks
    )
    if measured < limits.min_cost_ratio * steps.step_ns or replay.saved_ns(ranks) is None:
        return None
    return replayed(facts, ranks, measured, limits)


def waiting(facts: Facts, cost: Price) -> str:
    """How long others wait of each step, and of that what can be gained where it is less."""
    step = f"of each {seconds(facts.step_ns / 1e9)} step"
    if cost.held_up is None:
        return f"{seconds(cost.ns / 1e9)} {step}"
    ranks = cost.held_up.ranks
    together = f" without ranks {some_ranges(ranks)}" if len(ranks) > 1 else ""
    return (
        f"{seconds(cost.held_up.waited_ns / 1e9)} {step} (at most {seconds(cost.high_ns / 1e9)} of "
        f"it to be gained{together}: others would be late as well)"
    )


def late_finding(
    facts: Facts,
    late: LateRank,
    cost: Price,
    summary: str,
    evidence: Sequence[Evidence],
    *,
    against: Sequence[Evidence] = (),
    **said: Any,
) -> Finding:
    """A rule's finding that one rank is late: where, when, what it costs, and how sure that is.

    ``said``: what else ``Facts.finding`` takes.
    """
    keys = late.late_keys or facts.steps.keys
    return facts.finding(
        facts.scope([late.rank], keys),
        summary,
        tuple(evidence),
        impact=facts.impact(cost),
        cap=Severity.CRITICAL if late.is_sure else Severity.MINOR,
        keys=keys,
        against=(*against, *cost.against),
        **said,
    )


def replayed(
    facts: Facts, ranks: Iterable[int], measured: float, limits: ReplayThresholds
) -> Price:
    """What a step would gain by replay if these ranks did as their peers; else what was measured.

    A replay that sees no gain where ranks were seen to wait has missed what they waited for, or
    others would hold the step up just as long. Where all launches are replayed the two are told
    apart: others do where a step would gain as little if the ranks took no time at all. Else what
    was observed stands, as the most that it can be, with what the replay says against it: a coarse
    replay misses more.
    """
    ranks = sorted(ranks)
    step_ns = facts.steps.step_ns
    replay = facts.replay
    saved = replay.saved_ns(ranks) if replay is not None else None
    if replay is None or saved is None:
        return at_most(measured, "twin ranks")
    if not _is_credible(facts, saved, measured, limits):
        most = replay.saved_at_most_ns(ranks)
        if most is not None and most < limits.min_replayed_ratio * measured:
            cost_ns = min(max(0.0, saved), max(0.0, most))
            against = disagreeing(cost_ns, OBSERVED, measured, limits, "late_steps")
            held_up = HeldUp(measured, tuple(ranks))
            return by_replay(cost_ns, replay.error_ratio, step_ns, [most], against, held_up)
        low_ns = min(max(0.0, saved), measured)
        says = "what a step without it takes less by replay, of others that are late as well"
        against = disagreeing(measured, says, low_ns, limits, "late_steps")
        return Price(measured, "twin ranks", low_ns, measured, against=against)
    saved = min(saved, step_ns)
    against = disagreeing(saved, OBSERVED, measured, limits, "late_steps")
    others = [measured] if against else []
    return by_replay(saved, replay.error_ratio, step_ns, others, against)


def _is_credible(
    facts: Facts, saved_ns: float | None, measured_ns: float, limits: ReplayThresholds
) -> bool:
    """Whether a replay that saves so much can have seen what others were measured to wait for."""
    if facts.replay is None or saved_ns is None:
        return False
    by_streams = facts.replay.is_by_streams
    least = limits.min_streams_ratio if by_streams else limits.min_replayed_ratio
    return saved_ns >= least * measured_ns


def step_delays_ns(facts: Facts) -> dict[StepKey, dict[int, int]]:
    """Exposed delay that each rank caused itself, by step."""
    delays: dict[StepKey, dict[int, int]] = {}
    for row in facts.of("late_steps"):
        key = StepKey(int(row["attempt"]), int(row["capture_id"]), int(row["step"]))
        delays.setdefault(key, {})[int(row["rank"])] = int(row["exposed_gap_ns"] or 0)
    return delays


def beyond_typical(
    delays: Mapping[StepKey, Mapping[int, int]],
    rank: int,
    keys: Sequence[StepKey],
    everybody: Sequence[int],
    limits: LatenessThresholds,
    facts: Facts,
) -> tuple[list[StepKey], float]:
    """Steps in which the rank delays more than the typical other one, and its mean excess."""
    late: list[StepKey] = []
    total = 0.0
    for key in keys:
        here = delays.get(key, {})
        others = [here.get(r, 0) for r in everybody if r != rank]
        excess = min(here.get(rank, 0) - median(others), facts.steps.job_dur_ns(key))
        total += max(0.0, excess)
        is_late = excess >= limits.late_step_ratio * facts.steps.step_ns
        if is_late and excess > limits.min_outlier_mads * scatter(others):
            late.append(key)
    return late, total / len(keys)


def _is_outlier(
    delays: Mapping[StepKey, Mapping[int, int]],
    rank: int,
    keys: Sequence[StepKey],
    everybody: Sequence[int],
    limits: LatenessThresholds,
) -> bool:
    """Whether the rank delays more than the scatter of the other ranks would."""
    totals = {r: sum(delays.get(key, {}).get(r, 0) for key in keys) for r in everybody}
    others = [ns for r, ns in totals.items() if r != rank]
    return totals[rank] - median(others) > limits.min_outlier_mads * scatter(others)


def scatter(values: Sequence[float]) -> float:
    """Scaled median absolute deviation."""
    middle = median(values)
    return 1.4826 * median(abs(v - middle) for v in values)


def _is_persistent(
    late: Sequence[StepKey], row: Row, facts: Facts, limits: LatenessThresholds
) -> bool:
    if not late:
        return False
    if len(facts.steps) == 1:
        return int(row["late_count"]) >= limits.min_late_count
    if len(late) >= max(limits.min_late_steps_count, limits.persistent_ratio * len(facts.steps)):
        return True
    return max(episode_lengths(late, facts.steps.keys)) >= limits.persistent_steps_count


def step_ratios_of(facts: Facts, late: LateRank, part: str) -> list[float]:
    """As step_ratios, of one late rank to those that are not late with it."""
    if not late.together:
        return step_ratios(facts, [late.rank], part)[late.rank]
    peers = [r for r in facts.ranks if r not in late.together]
    return step_ratios(facts, [late.rank], part, peers)[late.rank]


def step_ratios(
    facts: Facts, ranks: Sequence[int], part: str, peers: Sequence[int] | None = None
) -> dict[int, list[float]]:
    """Each rank's ``compute`` or ``own`` time over its peers' median, one value a steady step."""
    ratios: dict[int, list[float]] = {rank: [] for rank in ranks}
    for by_rank in facts.steps.by_key.values():
        values = {
            r: s.compute_ns if part == "compute" else s.dur_ns - s.exposed_comm_ns
            for r, s in by_rank.items()
            if peers is None or r in peers
        }
        for rank in ranks:
            others = [v for r, v in values.items() if r != rank]
            if rank in values and others and median(others) > 0:
                ratios[rank].append(values[rank] / median(others))
    return ratios


def places(facts: Facts, ranks: Sequence[int]) -> tuple[EvidenceRow, ...]:
    """Where the longest waits for these ranks are recorded, longest first."""
    rows = [r for r in facts.of("late_steps") if r["rank"] in ranks and r["source_id"] is not None]
    rows.sort(key=lambda r: (-int(r["longest_ns"]), int(r["source_id"]), int(r["place"])))
    return facts.places(rows)


def score_evidence(
    facts: Facts, late: LateRank, limits: LatenessThresholds
) -> tuple[Evidence, ...]:
    """The numbers behind a late rank."""
    name = f"rank {late.rank}"
    evidence = (
        [
            Evidence(
                f"own time of {name} beyond its peers', as far as they wait longer, mean step",
                late.cost_ns / 1e9,
                "s",
                threshold=limits.min_cost_ratio * facts.steps.step_ns / 1e9,
                query="step_breakdown",
            )
        ]
        if not late.is_matched
        else [
            Evidence(
                f"exposed delay by {name}, mean of all steady steps",
                delay_ns(late) / 1e9,
                "s",
                threshold=limits.min_cost_ratio * facts.steps.step_ns / 1e9,
                query="late_steps",
                rows=places(facts, [late.rank]),
            ),
            Evidence(
                f"share of {_of_waiting(late)}, {name}",
                late.share_ratio,
                "ratio",
                threshold=limits.min_share_ratio,
                query="straggler",
            ),
            Evidence(
                f"waiting inflicted on peers by {name}, whole window",
                int(late.row["inflicted_wait_ns"]) / 1e9,
                "s",
                query="straggler",
            ),
            Evidence(
                f"collectives that waited for {name}", late.late_count, "count", query="straggler"
            ),
        ]
    )
    if late.own_cost_ns is not None:
        evidence.append(
            Evidence(
                "a step without the delays of ranks "
                f"{some_ranges((late.rank, *late.together))} takes less by (replay)",
                late.cost_ns / 1e9,
                "s",
                threshold=limits.min_cost_ratio * facts.steps.step_ns / 1e9,
                query="straggler",
            )
        )
    if late.slowdown_ratio is not None:
        evidence.append(
            Evidence(
                f"ideal step with only the delays of {name}, over the ideal step (replay)",
                late.slowdown_ratio,
                "ratio",
                threshold=1 + limits.min_cost_ratio,
                query="straggler",
            )
        )
    if late.peer_ratio is not None:
        evidence.append(
            Evidence(
                f"own time of {name} over its peers' median",
                late.peer_ratio,
                "ratio",
                threshold=limits.min_peer_ratio,
                query="straggler",
            )
        )
    if late.compute_ratio is not None:
        evidence.append(
            Evidence(
                f"computing time of {name} over its peers' median",
                late.compute_ratio,
                "ratio",
                query="straggler",
            )
        )
    return tuple(evidence)


def absent_note(late: LateRank) -> str:
    """What may be wrong where ranks without a trace belong to every call."""
    return "" if late.is_matched else "; a rank without a trace may be slower still"


def matched_note(facts: Facts) -> str | None:
    """What could be matched at all; None where no trusted instance exists."""
    counts = {True: 0, False: 0}
    for row in facts.of("match_coverage"):
        counts[bool(row["is_trusted"])] += int(row["calls_count"])
    if not counts[True]:
        return None
    matched = f"{counts[True]} of {sum(counts.values())} calls matched"
    missing = facts.missing_ranks
    if missing:
        # A call is counted where it was traced: what absent members did is in neither number.
        ranks = "rank" if len(missing) == 1 else "ranks"
        matched += f" among those traced ({ranks} {some_ranges(missing)} {facts.missing_state})"
    return matched


def why_unmatched(facts: Facts) -> str:
    """The commonest reason why calls could not be matched, in words."""
    rows = [r for r in facts.of("match_coverage") if not r["is_trusted"]]
    if not rows:
        return "collectives in the traces of two or more ranks"
    worst = max(rows, key=lambda r: (int(r["calls_count"]), str(r["reason"])))
    return f"collectives matched across ranks ({worst['reason']})"
