"""What late ranks cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tracekit.findings import Price
from tracekit.rules.base import Facts
from tracekit.rules.lateness.late import LateRank
from tracekit.rules.lateness.limits import LatenessThresholds
from tracekit.rules.lateness.replayed import OBSERVED, replayed
from tracekit.rules.lateness.search import Delays, late_ranks, step_delays_ns
from tracekit.rules.prices import at_most, disagreeing


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
    alone = _joint(replayed(facts, ranks, measured, limits), ranks, members)
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
