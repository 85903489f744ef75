"""What stalls have in common: a rank does something on its host, its device runs dry, all wait.

A stall is measured by its own range (a wait for input, a collection, a save), never inferred
from a long step, so an evaluation or a longer sequence is not mistaken for one. Its query gives
per rank and step how long it was (``stall_ns``) and how much of that nothing hid
(``exposed_ns``: the device idle, or on a rank without one no collective running beside it).

The delay of the job in a step is

    the part that all ranks share (the smallest exposed stall of any rank)
  + the most that one rank stalled beyond that, as far as another rank is seen to wait for it.

The largest rank counts, never the sum over ranks: they stall side by side. The second part is
what exempts a rank that was early anyway: if the others did not wait longer, its stall cost
nothing. Longer than in their steps without a stall, where there are enough of these: a stage of a
pipeline, or whoever waits for a slower rank, waits in every step. Else longer than the rank that
stalled. So of two faults, of which one hides the other, each costs what a step takes less without
it while the other is there; without both a step may take less by more than the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from msgspec import Struct

from tracekit.findings import Evidence, EvidenceRow, Finding, Instrument, Method, Price
from tracekit.rules.base import NO_GPU, Facts, Row, RuleOutcome
from tracekit.rules.prices import PriceThresholds, disagreeing
from tracekit.rules.recurrence import how_often
from tracekit.rules.steps import StepKey, Steps
from tracekit.rules.thresholds import threshold
from tracekit.wording import listed, ranks_phrase, seconds, share


class StallThresholds(PriceThresholds):
    """When a stall is worth a finding. Rules override the first two."""

    min_step_ratio: float = threshold(
        0.01, "a step counts as stalled from this share of a mean step; less is lost in noise"
    )
    min_impact_ratio: float = threshold(
        0.01, "mean delay over all steady steps; under 1 % of the step nobody should be called"
    )
    persistent_steps_count: int = threshold(
        3, "this many stalled steps in a row are no accident (continuity, as in Minder)"
    )
    persistent_ratio: float = threshold(0.20, "or this share of the steady steps")
    episodes_count: int = threshold(
        3, "or this many separate episodes on the same rank: an intermittent fault is a fault"
    )
    min_rank_ratio: float = threshold(
        0.5, "a rank is named in a step if it stalled at least this share of the longest stall"
    )
    min_named_ratio: float = threshold(
        0.25,
        "and named at all where such steps delay the job by so much of what those of the rank that"
        " delays it most do: on shared cores any rank has a long one now and then",
    )
    min_steps_count: int = threshold(2, "steps; one shows no persistence of anything")
    min_agreeing_ratio: float = threshold(
        0.5, "of the delay that waiting peers, or the steps' own times, show: half is no chance"
    )
    max_unseen_ratio: float = threshold(
        0.25, "of the delay: where stalled steps are no longer than that, it speaks against"
    )


class StallText(Struct, frozen=True):
    """The words of a rule about a kind of stall."""

    query: str
    says: Callable[[StallSummary], str]
    noun: str
    needs: str
    capture: str
    confirm: tuple[str, ...]
    remedy: tuple[str, ...]
    needs_gpu: bool = False
    """Only the idle time of a device can show it."""
    seen_by: str | None = None
    """What shows it on the host, where that is no range."""


class StallSummary(Struct, frozen=True):
    """The numbers that a sentence about a stall is made of. Means are over stalled steps."""

    subject: str
    stalled_steps_count: int
    steady_steps_count: int
    mean_stall_s: float
    mean_step_s: float
    cost_s: float
    cost_ratio: float
    often_in_steps: str
    """In which steps, how many these are, and how regular."""
    is_window: bool = False
    """Whether what stands for the steps is a window without any."""
    is_uneven: bool = False
    """Whether the longest stall is twice the shortest or more: the mean is then none of them."""

    @property
    def lasts(self) -> str:
        """For how long a step stalls, in words."""
        return seconds(self.mean_stall_s) + (" on average" if self.is_uneven else "")

    @property
    def often(self) -> str:
        """How often, in words."""
        if self.is_window:
            return f"over the window of {seconds(self.mean_step_s)}"
        return self.often_in_steps


class StepDelay(Struct, frozen=True):
    """What stalls delayed the job by in one step, and on whose account."""

    key: StepKey
    delay_ns: int
    backed_ns: int
    """The part of the delay that another rank is seen to wait for."""
    stalls_ns: dict[int, int]
    """Exposed stall of each rank that had one."""


def step_delays(steps: Steps, rows: Sequence[Row], limits: StallThresholds) -> list[StepDelay]:
    """The delay of every steady step, zero where nothing stalled."""
    exposed: dict[StepKey, dict[int, int]] = {}
    for row in rows:
        key = StepKey.of(row)
        if key in steps.by_key and row["rank"] in steps.by_key[key]:
            exposed.setdefault(key, {})[int(row["rank"])] = int(row["exposed_ns"])
    usual_ns = _usual_waits_ns(steps, exposed, limits)
    return [_delay(steps, key, exposed.get(key, {}), usual_ns, limits) for key in steps.keys]


def _usual_waits_ns(
    steps: Steps, exposed: Mapping[StepKey, Mapping[int, int]], limits: StallThresholds
) -> Mapping[int, float] | None:
    """Exposed communication of each rank in a step where neither this nor the one before stalls;
    None where there are too few such steps."""
    least_ns = limits.min_step_ratio * steps.step_ns
    hit = {key for key, stalls in exposed.items() if max(stalls.values()) >= least_ns}
    hit |= {key.following for key in hit}
    free = [key for key in steps.keys if key not in hit]
    if len(free) < limits.min_others_count:
        return None
    ranks = set.intersection(*(set(steps.by_key[key]) for key in steps.keys))
    return {r: median(steps.by_key[key][r].exposed_comm_ns for key in free) for r in ranks}


def _delay(
    steps: Steps,
    key: StepKey,
    exposed: Mapping[int, int],
    usual_ns: Mapping[int, float] | None,
    limits: StallThresholds,
) -> StepDelay:
    everybody = steps.by_key[key]
    stalls = {r: min(ns, everybody[r].dur_ns) for r, ns in exposed.items() if ns > 0}
    if not stalls:
        return StepDelay(key, 0, 0, stalls)
    shared = min(stalls.get(rank, 0) for rank in everybody)
    if not steps.is_coupled:
        # Where nobody communicates nobody can be seen to wait: the stall is taken as it is.
        return StepDelay(key, max(stalls.values()), 0, stalls)
    waiting: dict[int, float] = {rank: steps.exposed_comm_ns(key, rank) for rank in everybody}
    if usual_ns is not None:
        count = 2 if key.following in steps.by_key else 1
        waiting = {r: max(0.0, ns - count * usual_ns.get(r, ns)) for r, ns in waiting.items()}
    # A rank does not wait longer than itself, so the longest waiting of all will do.
    longest = max(waiting.values())
    backed = max(min(ns - shared, longest - waiting[rank]) for rank, ns in stalls.items())
    return StepDelay(key, shared + int(backed), int(backed), stalls)


def evaluate_stalls(
    facts: Facts,
    limits: StallThresholds,
    text: StallText,
    delays: list[StepDelay] | None = None,
) -> RuleOutcome:
    """The finding about one kind of stall, if there is one.

    ``delays`` are those of ``step_delays`` unless a rule refines them.
    """
    rows = facts.of(text.query)
    steps = facts.steps
    if text.needs_gpu and not facts.has_gpu:
        return facts.lacking(*NO_GPU)
    # Rows are per step: without steps their absence says nothing about what was recorded.
    if len(steps) < limits.min_steps_count and not facts.is_window:
        return facts.lacking(
            f"at least {limits.min_steps_count} steady steps (there are {len(steps)})",
            "profile five or more steps after warm-up",
        )
    if not rows:
        return facts.lacking(text.needs, text.capture)
    if delays is None:
        delays = step_delays(steps, rows, limits)
    stalled = [d for d in delays if d.delay_ns >= limits.min_step_ratio * steps.step_ns > 0]
    cost_ns = fmean(d.delay_ns for d in delays)
    if cost_ns < limits.min_impact_ratio * steps.step_ns:
        return RuleOutcome()
    if cost_ns < limits.min_step_ratio * steps.step_ns and stalled:
        longer_ns = _extra_step_ns(steps, stalled, limits)
        if longer_ns is not None and not _is_as_long(longer_ns, stalled, limits):
            return RuleOutcome()  # a little, in steps that are about as long as the others: noise
    ranks = _named_ranks(stalled, limits)
    # A window has only what both of its halves show.
    if not facts.is_window and not _is_persistent(stalled, ranks, steps, limits):
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, limits, text, stalled, ranks, cost_ns),))


def _contributors(delay: StepDelay, limits: StallThresholds) -> set[int]:
    longest = max(delay.stalls_ns.values(), default=0)
    return {r for r, ns in delay.stalls_ns.items() if ns >= limits.min_rank_ratio * longest}


def _named_ranks(stalled: Sequence[StepDelay], limits: StallThresholds) -> list[int]:
    """Ranks whose own stall was among the longest in steps that account for much of the delay.

    Of a fault that moves about (a collector that strikes another rank each step) all have some.
    """
    delays_ns: dict[int, int] = {}
    for delay in stalled:
        for rank in _contributors(delay, limits):
            delays_ns[rank] = delays_ns.get(rank, 0) + delay.delay_ns
    least_ns = limits.min_named_ratio * max(delays_ns.values(), default=0)
    return sorted(rank for rank, ns in delays_ns.items() if ns >= least_ns)


def _is_persistent(
    stalled: Sequence[StepDelay], ranks: Sequence[int], steps: Steps, limits: StallThresholds
) -> bool:
    if len(stalled) < limits.min_steps_count:
        return False
    if len(stalled) >= limits.persistent_ratio * len(steps):
        return True
    keys = [d.key for d in stalled]
    if max(episode_lengths(keys, steps.keys)) >= limits.persistent_steps_count:
        return True
    for rank in ranks:
        named_in = [d.key for d in stalled if rank in _contributors(d, limits)]
        if len(episode_lengths(named_in, steps.keys)) >= limits.episodes_count:
            return True
    return False


def episode_lengths(keys: Sequence[StepKey], all_keys: Sequence[StepKey]) -> list[int]:
    """Lengths of the maximal runs of neighbouring steady steps; captures are never joined."""
    position = {key: i for i, key in enumerate(all_keys)}
    lengths: list[int] = []
    previous: StepKey | None = None
    for key in sorted(keys):
        is_next = (
            previous is not None
            and position[key] == position[previous] + 1
            and key[:2] == previous[:2]
        )
        if is_next:
            lengths[-1] += 1
        else:
            lengths.append(1)
        previous = key
    return lengths


def _finding(
    facts: Facts,
    limits: StallThresholds,
    text: StallText,
    stalled: Sequence[StepDelay],
    ranks: list[int],
    cost_ns: float,
) -> Finding:
    steps = facts.steps
    keys = [d.key for d in stalled]
    scope = facts.scope(ranks, keys)
    lasted_ns = [max(d.stalls_ns.values()) for d in stalled]
    mean_stall_ns = fmean(lasted_ns)
    summary = StallSummary(
        subject=ranks_phrase(scope.ranks, facts.ranks),
        stalled_steps_count=len(stalled),
        steady_steps_count=len(steps),
        mean_stall_s=mean_stall_ns / 1e9,
        mean_step_s=steps.step_ns / 1e9,
        cost_s=cost_ns / 1e9,
        cost_ratio=cost_ns / steps.step_ns,
        often_in_steps=how_often([key.step for key in keys], len(steps)),
        is_window=facts.is_window,
        is_uneven=max(lasted_ns) >= 2 * min(lasted_ns),
    )
    price = _price(facts, limits, text, stalled, ranks, cost_ns)
    kinds, basis = _instruments(facts, limits, stalled, text)
    return facts.finding(
        scope,
        text.says(summary),
        _evidence(facts, limits, text, stalled, ranks, summary),
        by=kinds,
        basis=basis,
        impact=facts.impact(price, keys),
        keys=keys,
        against=(*_counter_evidence(facts, limits, text, stalled), *price.against),
        confirm=text.confirm,
        remedy=text.remedy,
    )


def _price(
    facts: Facts,
    limits: StallThresholds,
    text: StallText,
    stalled: Sequence[StepDelay],
    ranks: Sequence[int],
    cost_ns: float,
) -> Price:
    """The delay, and between what bounds other methods put it: the steps that did not stall, and
    the job replayed without what these ranks did."""
    steps, others = facts.steps, []
    longer_ns = _extra_step_ns(steps, stalled, limits)
    if longer_ns is not None:
        part = max(0.0, longer_ns) * len(stalled) / len(steps)
        others.append(("what stalled steps take longer than the others", part))
    everybody = {r for by_rank in steps.by_key.values() for r in by_rank}
    if facts.replay is not None and set(ranks) < everybody:
        saved_ns = facts.replay.saved_ns(sorted(ranks))
        if saved_ns is not None:
            others.append(("what a step takes less by replay", max(0.0, saved_ns)))
    against = tuple(
        evidence
        for says, ns in others
        for evidence in disagreeing(cost_ns, says, ns, limits, text.query)
    )
    backed, delay = sum(d.backed_ns for d in stalled), sum(d.delay_ns for d in stalled)
    is_seen = backed >= limits.min_agreeing_ratio * delay > 0
    values = [cost_ns, *(ns for _, ns in others)] if others else [0.0, cost_ns]
    method: Method = "twin ranks" if is_seen else "recorded time"
    return Price(cost_ns, method, min(values), max(values), against=against)


def _instruments(
    facts: Facts, limits: StallThresholds, stalled: Sequence[StepDelay], text: StallText
) -> tuple[list[Instrument], str]:
    """Which independent kinds of evidence agree, and the sentence that says so."""
    steps = facts.steps
    kinds: list[Instrument] = ["host ranges"]
    words = [text.seen_by or f"the rank's own {text.noun} ranges"]
    sides = {steps.by_key[d.key][r].is_host_side for d in stalled for r in d.stalls_ns}
    if sides == {False}:
        kinds.append("GPU timeline")
        words.append("its GPU idle meanwhile")
    backed, delay = sum(d.backed_ns for d in stalled), sum(d.delay_ns for d in stalled)
    if backed >= limits.min_agreeing_ratio * delay > 0:
        kinds.append("peers")
        words.append("other ranks waiting for it")
    longer_ns = _extra_step_ns(steps, stalled, limits)
    if longer_ns is not None and _is_as_long(longer_ns, stalled, limits):
        kinds.append("step times")
        words.append(f"stalled steps {seconds(longer_ns / 1e9)} longer than the others")
    agree = f"{listed(words)} agree" if len(words) > 1 else f"only {words[0]}"
    often = "" if facts.is_window else f", {len(stalled)} of {len(steps)} steps"
    return kinds, f"{agree}{often}"


def _is_as_long(longer_ns: float, stalled: Sequence[StepDelay], limits: StallThresholds) -> bool:
    """Whether what stalled steps take longer agrees with their delay."""
    return longer_ns >= limits.min_agreeing_ratio * fmean(d.delay_ns for d in stalled)


def _extra_step_ns(
    steps: Steps, stalled: Sequence[StepDelay], limits: StallThresholds
) -> float | None:
    """How much longer stalled steps took than the others; None where those are too few."""
    hit = {d.key for d in stalled}
    others = [steps.job_dur_ns(k) for k in steps.keys if k not in hit]
    if len(others) < limits.min_others_count:
        return None
    return fmean(steps.job_dur_ns(k) for k in hit) - fmean(others)


def _evidence(
    facts: Facts,
    limits: StallThresholds,
    text: StallText,
    stalled: Sequence[StepDelay],
    ranks: Sequence[int],
    summary: StallSummary,
) -> tuple[Evidence, ...]:
    places = _places(facts, text.query, {d.key for d in stalled}, set(ranks))
    step_s = summary.mean_step_s
    if facts.is_window:
        return (
            Evidence(
                f"exposed {text.noun} of the window",
                summary.cost_s,
                "s",
                threshold=limits.min_impact_ratio * step_s,
                query=text.query,
                rows=places,
            ),
        )
    return (
        Evidence(
            f"longest exposed {text.noun} of a stalled step, mean",
            summary.mean_stall_s,
            "s",
            threshold=limits.min_step_ratio * step_s,
            query=text.query,
            rows=places,
        ),
        Evidence(
            "delay of the job, mean of all steady steps",
            summary.cost_s,
            "s",
            threshold=limits.min_impact_ratio * step_s,
            query=text.query,
        ),
        Evidence.ratio(
            "stalled steps, share of the steady ones",
            summary.stalled_steps_count / summary.steady_steps_count,
            limits.persistent_ratio,
            text.query,
        ),
    )


MAX_PLACES = 100
"""Places listed in a finding, longest stalls first; its query has the rest."""


def _places(
    facts: Facts, query: str, keys: set[StepKey], ranks: set[int]
) -> tuple[EvidenceRow, ...]:
    """Where the longest stalls are recorded, longest first."""
    rows = [
        row
        for row in facts.of(query)
        if row["rank"] in ranks and StepKey.of(row) in keys and row.get("source_id") is not None
    ]
    rows.sort(key=lambda r: (-int(r["longest_ns"]), int(r["source_id"]), int(r["place"])))
    return facts.places(rows, at_most=MAX_PLACES)


def _counter_evidence(
    facts: Facts, limits: StallThresholds, text: StallText, stalled: Sequence[StepDelay]
) -> tuple[Evidence, ...]:
    """What speaks against: stalled steps that are no longer than the others."""
    longer_ns = _extra_step_ns(facts.steps, stalled, limits)
    mean_delay_ns = fmean(d.delay_ns for d in stalled)
    if longer_ns is None or longer_ns >= limits.max_unseen_ratio * mean_delay_ns:
        return ()
    return (
        Evidence.seconds(
            f"stalled steps longer than the others by only {seconds(max(0, longer_ns) / 1e9)}"
            f" ({share(max(0.0, longer_ns / mean_delay_ns))} of the delay)",
            longer_ns,
            mean_delay_ns,
            text.query,
        ),
    )
