"""The pipeline stage that the others wait for: which one, what it costs, and whether its work is
theirs.

Where each stage is one rank it has no peer at its own stage. Whether it has more to do or does the
same more slowly is then told by its calls: as many, on inputs as large, are the same work.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, median_low

from msgspec import Struct

from tracekit.findings import Evidence, Price
from tracekit.rules import pipeline
from tracekit.rules.base import Facts
from tracekit.rules.excess import QUERY as EXCESS
from tracekit.rules.excess import Excess, ExcessThresholds, longer_calls, where_it_lies
from tracekit.rules.facts import SUMMARY_QUERY
from tracekit.rules.prices import PriceThresholds, at_most, by_replay, disagreeing
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranks_phrase, seconds, share

QUERIES = ("step_breakdown", SUMMARY_QUERY, "stage_balance", "bubble", "comm_summary", EXCESS)


class HeavyStageThresholds(ExcessThresholds, PriceThresholds):
    """When a stage holds up the others."""

    min_stage_ratio: float = threshold(
        1.10, "its compute over the median other stage's; healthy pipelines stay within 1.03"
    )
    min_steps_ratio: float = threshold(0.80, "a layout is uneven in every step; noise is not")
    min_kernels_ratio: float = threshold(
        0.5, "of the operations' longer time, in kernels: else the launches are late, not the work"
    )
    min_impact_ratio: float = threshold(0.01, "under 1 % of the step nobody should be called")
    min_same_ratio: float = threshold(
        0.5, "of its longer time, in as many calls on inputs as large: then it has no more to do"
    )


class HeavyStage(Struct, frozen=True):
    """A stage that the others wait for."""

    stages: Sequence[pipeline.Stage]
    stage: pipeline.Stage
    cost: Price
    """What a step takes less if it computes as long as the median other one."""
    excess: Excess | None
    """What its first rank spends more than the other stages' do."""
    is_same_work: bool
    """Whether that is the same work, done more slowly."""

    @property
    def is_one_rank(self) -> bool:
        """Whether no other rank has the same layers."""
        return len(self.stage.ranks) == 1

    @property
    def name(self) -> str:
        """Its number, its place in the pipeline and its ranks."""
        order = sorted(s.stage for s in self.stages)
        where = {order[0]: "the first; ", order[-1]: "the last; "}.get(self.stage.stage, "")
        return f"stage {self.stage.stage} ({where}{ranks_phrase(self.stage.ranks, ()).lower()})"

    @property
    def others_name(self) -> str:
        return "the other stage" if len(self.stages) == 2 else "the median other stage"

    def loses(self, facts: Facts) -> str:
        """How much longer it computes, what the others lose by it, and in what it lies."""
        waiting = "it waits" if len(self.stages) == 2 else "the others wait"
        return (
            f"computes {self.stage.compute_ratio:.2f}x as long as {self.others_name}: {waiting} "
            f"{seconds(self.cost.ns / 1e9)} a step ({share(self.cost.ns / facts.step_ns)})"
            f"{'' if self.excess is None else f': {self.excess.sentence}'}."
        )

    def evidence(self, facts: Facts, limits: HeavyStageThresholds) -> tuple[Evidence, ...]:
        """What was measured of it and of the others."""
        heavy, others_name = self.stage, self.others_name
        evidence = [
            Evidence.ratio(
                f"compute of stage {heavy.stage} over {others_name}",
                heavy.compute_ratio,
                limits.min_stage_ratio,
                "stage_balance",
            ),
            *(
                Evidence.ratio(
                    f"{kind} of stage {heavy.stage} over {others_name}",
                    value,
                    None,
                    "stage_balance",
                )
                for kind, value in (
                    ("forward", heavy.forward_ratio),
                    ("backward", heavy.backward_ratio),
                )
            ),
            Evidence.ratio(
                "share of steps in which it was that slow",
                heavy.slow_steps_count / heavy.steps_count,
                limits.min_steps_ratio,
                "stage_balance",
            ),
        ]
        in_kernels = kernels_ratio(facts, self.stages, heavy)
        if in_kernels is not None:
            evidence.append(
                Evidence.ratio(
                    "of the time that its operations take longer, in kernels",
                    in_kernels,
                    limits.min_kernels_ratio,
                    "step_breakdown",
                )
            )
        idle = pipeline.mean_bubble_by_stage(pipeline.steady_bubbles(facts))
        others = [ratio for stage, ratio in idle.items() if stage != heavy.stage]
        if others:
            own = idle[heavy.stage]
            evidence += [
                Evidence.ratio(f"idle share of stage {heavy.stage}", own, None, "bubble"),
                Evidence.ratio("idle share of the other stages", fmean(others), None, "bubble"),
            ]
        return (*evidence, *(() if self.excess is None else self.excess.evidence(facts)))


def heaviest(facts: Facts, limits: HeavyStageThresholds) -> HeavyStage | None:
    """The heaviest of several stages, if it is heavy in most steps and costs something."""
    stages = pipeline.stages(facts)
    if len(stages) < 2 or facts.step_ns <= 0:
        return None
    heavy = max(stages, key=lambda s: (s.compute_ratio, -s.stage))
    if heavy.compute_ratio < limits.min_stage_ratio:
        return None
    if heavy.slow_steps_count < limits.min_steps_ratio * heavy.steps_count:
        return None
    in_kernels = kernels_ratio(facts, stages, heavy)
    if in_kernels is not None and in_kernels < limits.min_kernels_ratio:
        return None
    idle = pipeline.mean_bubble_by_stage(pipeline.steady_bubbles(facts))
    if heavy.stage in idle and idle[heavy.stage] > min(idle.values()):
        return None  # another stage is busier: this one does not hold the others up
    cost = _price(facts, stages, heavy)
    if cost.ns < limits.min_impact_ratio * facts.step_ns:
        return None
    excess = where_it_lies(facts, heavy.ranks[0], cost.ns, peers="job")
    longer_ns = _longer_ns(stages, heavy)
    is_same_work = _same_work_ns(facts, heavy) >= limits.min_same_ratio * longer_ns > 0
    return HeavyStage(stages, heavy, cost, excess, is_same_work)


def slow_alone(facts: Facts, limits: HeavyStageThresholds) -> HeavyStage | None:
    """The one rank of a stage that does the other stages' work more slowly than they do, beyond
    what they differ by among each other; None where there is none."""
    heavy = heaviest(facts, limits)
    is_slow = heavy is not None and heavy.is_one_rank and heavy.is_same_work
    return heavy if is_slow and heavy is not None and heavy.excess is not None else None


def dealt_out_evenly(facts: Facts, heavy: HeavyStage, limits: HeavyStageThresholds) -> Price:
    """The cost, where the work is not to be had for less, only given to the others: at least what
    a step takes less if it were dealt out evenly over the stages."""
    cost, replay = heavy.cost, facts.replay
    even_ns = replay.saved_by_even_stages_ns() if replay is not None else None
    if replay is None or even_ns is None or cost.method != "replay":
        return cost
    least_ns = min(cost.ns, max(0.0, even_ns))
    says = "the same work dealt out evenly over the stages, by replay of its operations"
    against = disagreeing(cost.ns, says, least_ns, limits, "stage_balance")
    error = replay.operations_error_ratio
    return by_replay(cost.ns, error, facts.step_ns, [least_ns], against)


def _price(facts: Facts, stages: Sequence[pipeline.Stage], heavy: pipeline.Stage) -> Price:
    replay = facts.replay
    saved_ns = replay.saved_by_stage_ns(heavy.stage) if replay is not None else None
    if replay is None or saved_ns is None or replay.saved_by_even_stages_ns() is None:
        return at_most(excess_ns(stages), "twin ranks")
    saved_ns = min(max(0.0, saved_ns), facts.step_ns)
    return by_replay(saved_ns, replay.operations_error_ratio, facts.step_ns)


def excess_ns(stages: Sequence[pipeline.Stage]) -> float:
    """What a step loses against the same work spread evenly over the stages."""
    times = [s.compute_ns for s in stages]
    microbatches = max(s.microbatches_count for s in stages)
    longest, everything = max(times), sum(times)
    uneven = microbatches * longest + everything - longest
    even = (microbatches + len(times) - 1) * everything / len(times)
    return max(0.0, uneven - even)


def kernels_ratio(
    facts: Facts, stages: Sequence[pipeline.Stage], heavy: pipeline.Stage
) -> float | None:
    """Of the time that the heavy stage's operations take longer than the median stage's, how much
    its kernels do; None without a GPU timeline of every stage."""
    if not facts.has_gpu:
        return None
    means = facts.steps.rank_means
    kernels = [[means[r].compute for r in s.ranks if r in means] for s in stages]
    if not all(kernels):
        return None
    # Of two ranks the faster one counts, as for the operations.
    by_stage = {s.stage: median_low(ns) for s, ns in zip(stages, kernels, strict=True)}
    longer_ns = _longer_ns(stages, heavy)
    return (by_stage[heavy.stage] - median(by_stage.values())) / longer_ns if longer_ns else None


def _longer_ns(stages: Sequence[pipeline.Stage], heavy: pipeline.Stage) -> float:
    """How much longer the operations of a step take at a stage than at the median one."""
    spans = {s.stage: s.compute_ns * s.microbatches_count for s in stages}
    return spans[heavy.stage] - median(spans.values())


def _same_work_ns(facts: Facts, heavy: pipeline.Stage) -> float:
    """What calls take longer at the stage that are as many as the other stages', on inputs that
    were recorded and are as large: of its ranks the least. None where tokens are exchanged: how
    many an expert gets, calls need not tell."""
    if any(row["op"] == "all_to_all" for row in facts.of("comm_summary")):
        return 0.0
    return min(longer_calls(facts, rank, "job") for rank in heavy.ranks)
