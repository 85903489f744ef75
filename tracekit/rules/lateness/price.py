"""What late ranks cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from tracekit.findings import Price
from tracekit.rules.base import Facts
from tracekit.rules.lateness.late import LateRank
from tracekit.rules.lateness.limits import LatenessThresholds
from tracekit.rules.lateness.replayed import OBSERVED, replayed
from tracekit.rules.lateness.search import Delays, late_ranks, step_delays_ns
from tracekit.rules.lateness.telling import late_in
from tracekit.rules.prices import at_most, disagreeing
from tracekit.rules.steps import StepKey


def price(facts: Facts, members: Sequence[LateRank], lies_in: Sequence[int] = ()) -> Price:
    """What a step would gain without these ranks' delays.

    By replay: delays of several ranks, or in several communicators, may hide each other. Else, of
    ranks that are late in some steps, what these take longer; else the exposed delay of the worst
    of them. Ranks that are late together are late side by side: they have one cost, which the
    finding of each carries. ``lies_in``: the steps in which the cause lies, as for
    ``late_finding``.
    """
    measured = max(late.cost_ns for late in members)
    if not all(late.is_matched for late in members):
        # What is replayed are calls that have all their members.
        return at_most(measured, "twin ranks")
    limits = facts.limits(LatenessThresholds)
    ranks = {r for late in members for r in (late.rank, *late.together)}
    by_replay = replayed(facts, ranks, measured, limits)
    if by_replay.method == "twin ranks":
        keys = late_in(facts, members, lies_in)
        return _joint(_by_steps(facts, keys, by_replay, limits), ranks, members)
    alone = _joint(by_replay, ranks, members)
    if alone.held_up is None:
        return alone
    # Those that are late by turns hold the step up for one another.
    everybody = {late.rank: late for late in late_ranks(facts, limits)}
    everybody |= {late.rank: late for late in members}
    if everybody.keys() <= ranks:
        return alone
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


def no_more_than(facts: Facts, cost: Price, lasts_ns: float, observed_ns: float) -> Price:
    """The cost of what itself takes so much of a mean step: without it a step takes less by no
    more. Several ranks may each be seen to wait for the one delay, as a pipeline's stages do. What
    is a cost of several ranks together, or what others hold up as well, is left as it is.
    ``observed_ns``: the delay that others were seen to wait."""
    if cost.joint_ranks or cost.held_up is not None or lasts_ns >= cost.ns:
        return cost
    against = disagreeing(
        lasts_ns, OBSERVED, observed_ns, facts.limits(LatenessThresholds), "late_steps"
    )
    return replace(cost, ns=lasts_ns, low_ns=min(cost.low_ns, lasts_ns), against=against)


def _by_steps(
    facts: Facts, keys: Sequence[StepKey], observed: Price, limits: LatenessThresholds
) -> Price:
    """What these steps, in which ranks are late, take longer than the others, where that is beyond
    chance and less than was observed: several ranks may each be seen to wait for the one delay."""
    longer_ns = facts.steps.longer_than_others_ns(keys, limits.min_others_count)
    if longer_ns is None or not facts.steps.mean_error_ns(keys) < longer_ns < observed.ns:
        return observed
    against = disagreeing(longer_ns, OBSERVED, observed.ns, limits, "late_steps")
    if not against:
        return replace(observed, low_ns=longer_ns)
    return Price(longer_ns, "twin steps", longer_ns, observed.ns, against=against)


def _joint(cost: Price, ranks: Collection[int], members: Sequence[LateRank]) -> Price:
    """The cost of these ranks' delays, which those of the members are among."""
    if len(ranks) == len(members):
        return cost
    own = sum(float(late.row["lateness_ratio"] or 0.0) for late in members)
    return replace(cost, joint_ranks=tuple(sorted(ranks)), own_share_ratio=own)


def observed_price(facts: Facts, ranks: Sequence[int]) -> Price | None:
    """What a step would gain without the delays of these ranks, whoever they are; None where
    nobody waits for them by as much as a late rank is called late for, or nothing is replayed."""
    limits, steps = LatenessThresholds(), facts.steps
    replay, everybody = facts.replay, [int(r["rank"]) for r in facts.of("straggler")]
    if replay is None or not len(steps) or set(ranks) >= set(everybody):
        return None
    delays = Delays(step_delays_ns(facts), steps.keys, everybody)
    measured = max(delays.beyond_typical(r, limits, facts)[1] for r in ranks)
    if measured < limits.min_cost_ratio * steps.step_ns or replay.saved_ns(ranks) is None:
        return None
    return replayed(facts, ranks, measured, limits)
