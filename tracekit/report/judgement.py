"""What a verdict is made of, and when something is amiss although no rule found it."""

from __future__ import annotations

from msgspec import Struct

from tracekit.findings import Verdict, VerdictKind, severity_of
from tracekit.rules.standstill import SilenceThresholds
from tracekit.rules.thresholds import KernelThresholds, threshold


class ReportThresholds(KernelThresholds, SilenceThresholds):
    """When something is amiss although no rule found it, and what findings explain."""

    min_waiting_ratio: float = threshold(
        0.10, "waiting for absent ranks, or unequal waiting; as exposed comm (D27)"
    )
    min_less_steps_ratio: float = threshold(
        2 / 3, "of the steps, in which ranks that hold up the others wait less than these"
    )
    min_longer_ratio: float = threshold(
        0.05, "of the step that one thing they do takes longer: half of that waiting"
    )
    min_idle_ratio: float = threshold(0.20, "GPU idle without a finding; less is usual in any job")
    min_host_idle_ratio: float = threshold(
        0.30, "host-side ranks: idle is Python between operators too; healthy: 0.1"
    )
    min_slow_steps_ratio: float = threshold(0.05, "time above the median step; as a major impact")
    min_window_ratio: float = threshold(
        0.5, "of a window without steps that is no computing, to be named: nothing else is more"
    )
    min_periodic_ratio: float = threshold(
        0.01, "of the job that stalls at one distance take together, to be told: a minor impact"
    )
    min_shared_time_ratio: float = threshold(
        0.8, "of the time of two causes that the log prices, that is in both: it is lost once"
    )
    max_mean_ratio: float = threshold(
        2.0,
        "of the median step that the mean may be: beyond it more than half of all time is in "
        "few steps",
    )
    min_mean_ratio: float = threshold(
        1.1, "of the median step, from which on the mean is said beside it"
    )
    max_clock_ratio: float = threshold(
        0.2, "of the mean step, a clock's whole seconds: beyond, its median is the clock's"
    )
    min_uneven_lines_count: int = threshold(
        9, "lines of a log, to say that: of fewer the first steps are many"
    )
    min_unlike_ratio: float = threshold(
        0.02, "of the job's median step by which the profiled ones differ; as a level of the log"
    )
    min_typical_steps_count: int = threshold(3, "steps of which some may be called slow")
    min_steps_count: int = threshold(2, "one step cannot show that the next is like it")
    min_explained_ratio: float = threshold(
        0.5, "of a symptom's price that its causes account for: else it has another"
    )
    min_computed_ratio: float = threshold(
        0.8, "of what slow steps take longer, that the device computes more, to be why"
    )
    min_slowed_ratio: float = threshold(
        1.3, "of a host's computing in slow steps over the others', on each rank: beyond noise"
    )
    min_in_few_ratio: float = threshold(
        0.8, "of all idle time in long steps, for it to be said of these and not of all"
    )
    min_more_calls_ratio: float = threshold(
        0.5, "of the calls of a usual step, in a slow one beyond them: else the same work is slower"
    )
    max_dur_ratio: float = threshold(
        1.25,
        "Inspector's time of a call over the profiler's, either way: beyond it, no rounding",
    )
    max_above_mean_ratio: float = threshold(
        1.2,
        "a benchmark's peak over its mean: beyond it small sizes are in the mean, and both are"
        " told",
    )
    max_fall_ratio: float = threshold(
        0.75,
        "a benchmark's bus bandwidth at a size over that of smaller ones: recorded well ones keep"
        " 0.99, reported collapses 0.6 and less",
    )
    min_leaf_ports_count: int = threshold(
        2, "NICs below a leaf switch hit, beside those of any one host: one more may be chance"
    )
    min_leaf_ratio: float = threshold(
        0.5, "of the NICs below a leaf switch hit: of fewer, each has its own fault"
    )
    max_other_leaves_ratio: float = threshold(
        0.1, "of the NICs below other leaves hit too: with more, leaves do not tell them apart"
    )


LIMITS = ReportThresholds()
"""As they are unless tracekit.toml says otherwise."""


class Judgement(Struct, frozen=True):
    """A verdict, and what to do next where no finding says so."""

    verdict: Verdict
    next_step: str | None = None


def say(
    kind: VerdictKind,
    sentence: str,
    next_step: str | None = None,
    step_ratio: float | None = None,
) -> Judgement:
    """A verdict that no finding states; of something amiss ``step_ratio`` is how much, as a share
    of the step or of the window that takes its place."""
    severity = None if step_ratio is None else severity_of(step_ratio)
    verdict = Verdict(kind=kind, finding=None, sentence=sentence, severity=severity)
    return Judgement(verdict, next_step)


def cannot_tell(sentence: str, next_step: str | None = None) -> Judgement:
    """The verdict where what there is does not say why, or what a step costs."""
    return say("not_enough_data", sentence, next_step)
