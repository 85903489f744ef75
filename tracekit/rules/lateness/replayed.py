"""What a step would gain by replay if ranks did as their peers, or what was measured instead."""

from __future__ import annotations

from collections.abc import Iterable

from tracekit.findings import HeldUp, Price
from tracekit.rules.base import Facts
from tracekit.rules.lateness.limits import ReplayThresholds
from tracekit.rules.prices import at_most, by_replay, disagreeing

OBSERVED = "the exposed delay that others were seen to wait"


def replayed(
    facts: Facts, ranks: Iterable[int], measured: float, limits: ReplayThresholds
) -> Price:
    """What a step would gain by replay if these ranks did as their peers; else what was measured.

    A replay that sees no gain where ranks were seen to wait has missed what they waited for, or
    others would hold the step up just as long. Where all launches are replayed the two are told
    apart: others do where a step would gain as little if the ranks took no time at all. Else what
    was observed stands, as the most that it can be, with what the replay says against it: a coarse
    replay misses more. Of a rank that something stops, and its transfers with it, the bounds reach
    down to what its own work alone costs.
    """
    ranks = sorted(ranks)
    step_ns = facts.steps.step_ns
    replay = facts.replay
    saved = replay.saved_ns(ranks) if replay is not None else None
    if replay is None:
        return at_most(measured, "twin ranks")
    # What transfers stood still for was no delay that others were seen to wait for.
    work = replay.saved_by_work_ns(ranks)
    if work is not None and not is_credible(facts, work, measured, limits):
        saved, work = work, None
    if not is_credible(facts, saved, measured, limits) and len(ranks) == 1:
        # What a stage is slower by its bubbles take in, or make longer: its operations show it.
        others: list[float] = []
        inside = replay.saved_in_operations_ns(ranks[0], measured)
        if inside is None and saved is None:
            # Where calls are not matched, as where a rank left no trace, replicas still compare. A
            # rank that waits for input between its operations is not late in them.
            least_ns = (1 - limits.max_disagreement_ratio) * measured
            inside, others = replay.saved_beside_replicas_ns(ranks[0], least_ns), [measured]
        elif inside is None and saved is not None and saved > 0:
            # Neighbours before and behind wait for one delay: what they wait may be several times
            # what it costs, and what both replays gain is believed.
            inside, others = replay.saved_beside_replicas_ns(ranks[0], saved), [saved]
            if inside is not None and abs(inside - saved) > limits.max_disagreement_ratio * inside:
                inside = None
        if inside is not None:
            inside = min(max(0.0, inside), step_ns)
            against = disagreeing(inside, OBSERVED, measured, limits, "late_steps")
            others = others if against else []
            return by_replay(inside, replay.operations_error_ratio, step_ns, others, against)
    if saved is None:
        return at_most(measured, "twin ranks")
    if not is_credible(facts, saved, measured, limits):
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
    if work is not None:
        others.append(work)
    return by_replay(saved, replay.error_ratio, step_ns, others, against)


def is_credible(
    facts: Facts, saved_ns: float | None, measured_ns: float, limits: ReplayThresholds
) -> bool:
    """Whether a replay that saves so much can have seen what others were measured to wait for."""
    if facts.replay is None or saved_ns is None:
        return False
    by_streams = facts.replay.is_by_streams
    least = limits.min_streams_ratio if by_streams else limits.min_replayed_ratio
    return saved_ns >= least * measured_ns
