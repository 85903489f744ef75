"""Which ranks are late by their own doing: alone, side by side, or slower than twins."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from statistics import fmean, median

from tracekit.rules.base import Facts, Row
from tracekit.rules.lateness.late import LateRank
from tracekit.rules.lateness.limits import ABSENT_WAITS, LatenessThresholds, SlowerThresholds
from tracekit.rules.lateness.replayed import is_credible
from tracekit.rules.recurrence import period
from tracekit.rules.stalls import episode_lengths
from tracekit.rules.steps import StepKey

Standing = Callable[[int, float], bool]
"""Whether a rank that delays a mean step by so many ns stands still by itself for most of it."""


def late_ranks(
    facts: Facts, limits: LatenessThresholds, standing: Standing | None = None
) -> list[LateRank]:
    """Ranks that are late by their own doing, persistently and at a cost; the worst first.

    Each has a share of all waiting that noise does not give. Where a rank is far behind, even in
    few steps, it has most of the waiting and leaves the others little: so those that are found are
    set aside, and the others are asked for their share of the rest. Stages of a pipeline wait for
    one another by the schedule, each for as long as its place asks; so a rank that all stages
    together hide is asked among those of its own.

    ``standing`` is asked of a rank that has neither peers nor a replay, as where each stage of a
    pipeline is one rank: that it stands still where no other does is a score as good as theirs.
    Stages delay by their places, and so differ; one that stands still now and then is far behind
    the others in what each delays beyond its own usual.
    """
    steps = facts.steps
    rows = {int(r["rank"]): r for r in facts.of("straggler")}
    if len(rows) < 2 or not len(steps) or steps.step_ns <= 0:
        return []
    alone_late = _late_alone(facts, limits, rows, (), standing=standing)
    late_beside = alone_late
    while late_beside and len(rows) - len(alone_late) >= limits.min_rest_count:
        found = [late.rank for late in alone_late]
        late_beside = _late_alone(facts, limits, rows, found, standing=standing)
        alone_late = alone_late + late_beside
    for stage in sorted({row["stage"] for row in rows.values()} - {None}):
        found = [late.rank for late in alone_late]
        peers = [r for r, row in rows.items() if row["stage"] == stage and r not in found]
        if len(peers) >= limits.min_stage_count:
            alone_late = alone_late + _late_alone(facts, limits, rows, found, stage)
    together = _late_together(facts, limits, rows, alone_late)
    alone = [late for late in alone_late if late.rank not in {t.rank for t in together}]
    return sorted(alone + together, key=lambda r: (-r.cost_ns, r.rank))


def _late_alone(
    facts: Facts,
    limits: LatenessThresholds,
    rows: Mapping[int, Row],
    aside: Sequence[int],
    stage: int | None = None,
    standing: Standing | None = None,
) -> list[LateRank]:
    """Ranks that are far behind the others, leaving ``aside`` those that are found already; with
    ``stage`` ranks of that stage that are far behind its others.

    What a few ranks share of the rest may be little and chance: beside others that are late, or
    among those of a stage, no score may speak against a rank.
    """
    steps, delays = facts.steps, step_delays_ns(facts)
    is_asked = {r: stage is None or row["stage"] == stage for r, row in rows.items()}
    rest = [r for r in sorted(rows) if r not in aside and is_asked[r]]
    shares = {r: float(row["lateness_ratio"] or 0.0) for r, row in rows.items()}
    rest_share = sum(shares[r] for r in rest)
    if rest_share <= 0:
        return []
    late_alone = []
    halved = _ranks_of_half_messages(facts)
    beside = Delays(delays, steps.keys, rest)
    asked = [(beside, {r: shares[r] / rest_share for r in rest})]
    if standing is not None:
        beyond = beside.beyond_usual()
        asked.append((beyond, beyond.shares()))
    for rank in rest:
        row = rows[rank]
        for among, its_shares in asked:
            its_share = its_shares[rank]
            late, cost_ns = among.beyond_typical(rank, limits, facts)
            is_late = cost_ns / steps.step_ns >= limits.min_cost_ratio
            is_late = is_late and its_share >= _enough(1 / len(rest), limits)
            if is_late := is_late and among.is_outlier(rank, limits):
                break
        # What returns at one distance is no accident either.
        asked_share = (
            limits.max_asked_ratio
            if period([key.step for key in late]) is None
            else limits.min_lone_share_ratio
        )
        is_alike = its_share >= asked_share and _is_alike(delays, rank, late, limits)
        if not is_late or not (is_alike or _is_persistent(late, row, facts, limits)):
            continue
        peer = row["peer_ratio"]
        what_if = facts.replay.slowdown(rank) if facts.replay is not None else None
        scores = (
            True,
            None if peer is None else float(peer) >= limits.min_peer_ratio,
            None if what_if is None else what_if >= 1 + limits.min_cost_ratio,
        )
        if scores == (True, None, None) and standing is not None:
            scores = (True, standing(rank, cost_ns) or None, None)
        agreed = sum(score is True for score in scores)
        is_weak = agreed == 1 or (what_if is None and _is_half_told(facts))
        least_share = limits.min_lone_share_ratio
        if scores == (True, False, False):
            least_share = max(least_share, limits.min_lone_times_fair_ratio / len(rest))
        if is_weak and (its_share < least_share or rank in halved):
            continue
        if (aside or stage is not None) and (False in scores or agreed < limits.min_scores_count):
            continue
        late_alone.append(
            LateRank.of(
                row,
                scores,
                limits,
                cost_ns=cost_ns,
                late_keys=late,
                aside=[r for r in aside if is_asked[r]],
                stage=stage,
                share_ratio=its_share,
                slowdown_ratio=what_if,
                is_now_and_then=among is not beside,
            )
        )
    return late_alone


def _ranks_of_half_messages(facts: Facts) -> set[int]:
    """Ranks of a job that sends messages with some whose other side is not recorded or not known,
    as where a neighbour's trace is missing or breaks off: whom they waited for is not told."""
    if not is_piped(facts):
        return set()
    return {
        int(rank)
        for row in facts.of("match_coverage")
        if not row["is_trusted"] and row["method"] in (None, "pair")
        for rank in row["ranks"] or ()
    }


def _is_half_told(facts: Facts) -> bool:
    """Whether stages send to each other and a trace breaks off: what the ranks share of the waiting
    is then what is left of it, and where no replay can be asked no score sees the rest."""
    return bool(facts.job.broken_ranks) and is_piped(facts)


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
    replay misses most of the delay of ranks that are ``named`` alone, though it takes out all that
    are late with them. Where ranks send to one
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
        named_ns = replay.saved_ns(ranks)
        # Where those that are far behind account for most of it, the others are late beside them.
        # Where all are far behind, it is one delay if one by one they account for little of it.
        accounted_ns = (
            sum(replay.saved_ns([r]) or 0.0 for r in members)
            if set(members) <= set(ranks)
            else named_ns or 0.0
        )
        if accounted_ns >= limits.max_named_ratio * saved_ns:
            return []
        # A replay that finds little without them misses what they were waited for; or others are
        # as late, and it finds all that was measured where these are taken out with them.
        measured_ns = max(late.cost_ns for late in named)
        is_joint = set(ranks) <= set(members) and saved_ns >= measured_ns
        if not is_joint and not is_credible(facts, named_ns, measured_ns, limits):
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
        key = StepKey.of(row)
        waited = int(row["own_wait_ns"] or 0)
        total[key] += waited
        ours[key] += waited if int(row["rank"]) in members else 0
    return [key for key in facts.steps.keys if total[key] and ours[key] >= least * total[key]]


def step_delays_ns(facts: Facts) -> dict[StepKey, dict[int, int]]:
    """Exposed delay that each rank caused itself, by step."""
    delays: dict[StepKey, dict[int, int]] = {}
    for row in facts.of("late_steps"):
        key = StepKey.of(row)
        delays.setdefault(key, {})[int(row["rank"])] = int(row["exposed_gap_ns"] or 0)
    return delays


class Delays:
    """What each of some ranks delays in each of some steps, set against the others each time."""

    def __init__(
        self,
        delays: Mapping[StepKey, Mapping[int, int]],
        keys: Sequence[StepKey],
        ranks: Sequence[int],
    ) -> None:
        self._delays = delays
        self._by_key = {k: {r: delays.get(k, {}).get(r, 0) for r in ranks} for k in keys}
        self._ordered = {k: sorted(here.values()) for k, here in self._by_key.items()}

    def beyond_typical(
        self, rank: int, limits: LatenessThresholds, facts: Facts
    ) -> tuple[list[StepKey], float]:
        """Steps in which the rank delays more than the typical other one, and its mean excess."""
        late: list[StepKey] = []
        total = 0.0
        for key, here in self._by_key.items():
            own, ordered = self._delays.get(key, {}).get(rank, 0), self._ordered[key]
            usual = median_of_others(ordered, own) if rank in here else median(ordered)
            # Others wait in their step for what the rank did behind the last call of its own step
            # before: that may be longer than what the job takes for the step.
            excess = min(own - usual, facts.steps.longest_ns[key])
            total += max(0.0, excess)
            is_late = excess >= limits.late_step_ratio * facts.steps.step_ns
            if is_late and excess > limits.min_outlier_mads * scatter(
                [ns for r, ns in here.items() if r != rank]
            ):
                late.append(key)
        return late, min(total / len(self._by_key), facts.steps.step_ns)

    def shares(self) -> dict[int, float]:
        """What each rank has of all that they delay; zero where nobody does."""
        everything = sum(self._totals.values()) or 1
        return {rank: total / everything for rank, total in self._totals.items()}

    def is_outlier(self, rank: int, limits: LatenessThresholds) -> bool:
        """Whether the rank delays more than the scatter of the other ranks would."""
        others = [ns for r, ns in self._totals.items() if r != rank]
        beyond = self._totals[rank] - median(others)
        return beyond > limits.min_outlier_mads * scatter(others)

    def beyond_usual(self) -> Delays:
        """What each rank delays beyond its own usual: the schedule makes stages delay by their
        places, in every step alike."""
        usual = {r: int(median(ns)) for r, ns in self._by_rank.items()}
        beyond = {
            k: {r: max(0, ns - usual[r]) for r, ns in here.items()}
            for k, here in self._by_key.items()
        }
        return Delays(beyond, list(self._by_key), list(usual))

    @cached_property
    def _by_rank(self) -> dict[int, list[int]]:
        by_rank: dict[int, list[int]] = defaultdict(list)
        for here in self._by_key.values():
            for rank, ns in here.items():
                by_rank[rank].append(ns)
        return by_rank

    @cached_property
    def _totals(self) -> dict[int, int]:
        return {rank: sum(delays) for rank, delays in self._by_rank.items()}


def median_of_others(ordered: Sequence[int], own: int) -> float:
    """The median of what is left of sorted values without one of them."""
    out = bisect_left(ordered, own)
    half, is_odd = divmod(len(ordered) - 1, 2)

    def left(place: int) -> int:
        return ordered[place + (place >= out)]

    return left(half) if is_odd else (left(half - 1) + left(half)) / 2


def scatter(values: Sequence[float]) -> float:
    """Scaled median absolute deviation."""
    middle = median(values)
    return 1.4826 * median(abs(v - middle) for v in values)


def _is_alike(
    delays: Mapping[StepKey, Mapping[int, int]],
    rank: int,
    late: Sequence[StepKey],
    limits: LatenessThresholds,
) -> bool:
    """Whether nearly all of its delay lies in several steps that are late by about as much."""
    lengths = [delays[key][rank] for key in late]
    alike = [ns for ns in lengths if ns >= limits.min_alike_ratio * max(lengths)]
    return len(alike) >= limits.min_late_steps_count and sum(
        alike
    ) >= limits.min_alike_share_ratio * sum(lengths)


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
