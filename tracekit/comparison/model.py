"""A comparison as data: what ``compare`` found, before any rendering.

``Comparison`` is the public JSON contract: its field names are the keys, in this order, and
docs/compare.schema.json is generated from it. Additions only. Differences are the candidate's less
the baseline's: more time is more than 0.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SCHEMA_VERSION = 1

Change = Literal["slower", "faster", "no significant change", "not comparable"]
Cause = Literal[
    "compute",
    "copies",
    "transfer",
    "communication",
    "idle",
    "input",
    "checkpoint",
    "evaluation",
    "logging",
    "collection",
    "compilation",
    "stage",
    "step",
    "between",
    "unexplained",
]
"""What a part of the step is: the device (or, without one, the host's operators) computes; it
copies; a call transfers once everybody is there; communication of which nobody can say who was
waited for; nothing runs, and what the training loop did meanwhile, as its ranges call it; the
operations of a pipeline that only timers saw; of runs with training logs alone the steps themselves
and what lies between them; and what is left."""
Edit = Literal["added", "removed", "renamed", "replaced", "fused", "split", "moved", "changed"]
"""What became of calls: renamed is one for one with as many calls within, replaced with others;
fused is several for fewer, split the other way; changed the same call that takes another time in
every step."""
EditedKind = Literal["operator", "range", "kernel", "communication"]


class Interval(Struct, frozen=True, kw_only=True):
    """A difference of means and where it may lie, with 95 % confidence; null bounds: too few
    steps to say."""

    difference_s: float
    low_s: float | None
    high_s: float | None


class ComparedRun(Struct, frozen=True, kw_only=True):
    """One run of a side."""

    id: str
    ranks_count: int
    world_size: int | None
    steps_count: int
    mean_s: float | None


class Side(Struct, frozen=True, kw_only=True):
    """One side: its runs, and the step over all of them.

    ``mean_s`` is the mean of the runs' mean steps; p50 and max are of all steps together.
    ``warmup_count`` steps were left out.
    """

    runs: tuple[ComparedRun, ...]
    steps_count: int
    warmup_count: int
    mean_s: float | None
    p50_s: float | None
    max_s: float | None


def are_single(*sides: Side) -> bool:
    """Whether no side has several runs, which alone would show what runs of one job differ by."""
    return all(len(side.runs) == 1 for side in sides)


class StepChange(Struct, frozen=True, kw_only=True):
    """The difference of the mean step. ``low_ratio`` and ``high_ratio`` bound ``ratio``, which is
    over the baseline's step; ``method`` says how the bounds were got."""

    difference_s: float
    low_s: float | None
    high_s: float | None
    ratio: float
    low_ratio: float | None
    high_ratio: float | None
    is_significant: bool
    confidence_ratio: float
    method: str


class Contribution(Struct, frozen=True, kw_only=True):
    """A part of the step's difference. All of a comparison add up to it.

    ``ranks`` is empty for what all ranks have alike. ``detail`` is the operator, kernel or range
    whose time changed most within it, ``detail_s`` by how much on a mean step of those ranks.
    ``affected_steps_count`` counts the steps of the side that has more of it. ``findings`` are of
    the side that has more.
    """

    cause: Cause
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    stage: int | None
    operation: str | None
    baseline_s: float
    candidate_s: float
    difference: Interval
    is_significant: bool
    detail: str | None
    detail_s: float | None
    affected_steps_count: int | None
    findings: tuple[str, ...]


class Moved(Struct, frozen=True, kw_only=True):
    """A figure of both sides; null where a side has none."""

    name: str
    unit: str
    baseline: float | None
    candidate: float | None


class MovedPart(Struct, frozen=True, kw_only=True):
    """An operator, range or kernel: a mean rank's time of a mean step, and its calls."""

    kind: str
    path: str
    name: str
    baseline_s: float
    candidate_s: float
    baseline_calls_count: float
    candidate_calls_count: float


class Edited(Struct, frozen=True, kw_only=True):
    """Calls of a step that one side has otherwise, matched by what launched them and by position.

    ``path`` has the nearest calls around them that both sides have. ``count`` is how often a step
    has this; seconds are of all of them, on a mean step of those that were matched: of operators
    and ranges the host's in operators, of kernels and communication the device's.
    """

    edit: Edit
    kind: EditedKind
    stage: int | None
    path: str
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    count: int
    baseline_s: float
    candidate_s: float


class MatchedCalls(Struct, frozen=True, kw_only=True):
    """What was matched of a kind of calls: ``operator`` (with ranges) or ``kernel`` (with copies).

    Of a typical step of one rank a side (``ranks``), whose times are means of ``steps_counts``
    steps; sums of durations, so that what runs at the same time counts twice. Of ``same_count``
    calls both sides have the same; ``same_*_s`` is all but what ``calls`` tells, so that the edits
    of the kind and it add up to the difference.
    """

    kind: Literal["operator", "kernel"]
    stage: int | None
    ranks: tuple[int, int]
    steps_counts: tuple[int, int]
    calls_counts: tuple[int, int]
    same_count: int
    baseline_s: float
    candidate_s: float
    same_baseline_s: float
    same_candidate_s: float


class ConfigurationChange(Struct, frozen=True, kw_only=True):
    """A choice that differs; null where a side does not say."""

    name: str
    baseline: str | None
    candidate: str | None


class FindingChange(Struct, frozen=True, kw_only=True):
    """A finding that one side has, or both with another cost."""

    id: str
    rule: str
    change: Literal["new", "gone", "changed"]
    severity: str
    summary: str
    baseline_s: float | None
    candidate_s: float | None
    is_explained: bool


class NotCompared(Struct, frozen=True, kw_only=True):
    """What could not be compared, and why."""

    what: str
    why: str


class Verdict(Struct, frozen=True, kw_only=True):
    """The sentence that the comparison leads with."""

    change: Change
    sentence: str


class Comparison(Struct, frozen=True, kw_only=True):
    """What ``tracekit compare --format json`` prints."""

    schema_version: int
    tracekit_version: str
    verdict: Verdict
    baseline: Side
    candidate: Side
    step: StepChange | None
    attribution: tuple[Contribution, ...]
    classes: tuple[Moved, ...]
    ranks: tuple[Moved, ...]
    stages: tuple[Moved, ...]
    operators: tuple[MovedPart, ...]
    kernels: tuple[MovedPart, ...]
    collectives: tuple[Moved, ...]
    groups: tuple[Moved, ...]
    counters: tuple[Moved, ...]
    calls: tuple[Edited, ...]
    matched: tuple[MatchedCalls, ...]
    configuration: tuple[ConfigurationChange, ...]
    findings: tuple[FindingChange, ...]
    not_compared: tuple[NotCompared, ...]

    def exceeds(self, ratio: float) -> bool:
        """Whether the candidate is slower by more than this share of the step, significantly.

        Where each side is one run, the whole interval must lie above it: how much runs differ is
        assumed there and not measured, so what was measured alone proves too little.
        """
        step, sure = self.step, self.sure_ratio
        if step is None or not step.is_significant or sure is None:
            return False
        is_measured = not are_single(self.baseline, self.candidate)
        return (step.ratio if is_measured else sure) > ratio

    @property
    def sure_ratio(self) -> float | None:
        """By how much of the baseline's step the candidate is slower at least, with 95 %
        confidence; None where that cannot be said.

        Of training logs the steps themselves may say so where a few long saves leave the mean open.
        """
        if self.step is None or self.step.low_ratio is None:
            return None
        steps_s = [
            part.difference.low_s
            for part in self.attribution
            if part.cause == "step" and part.is_significant and part.difference.low_s is not None
        ]
        base_s = self.baseline.mean_s or 0.0
        return max(self.step.low_ratio, *(s / base_s for s in steps_s if base_s > 0), -1.0)

    def to_json(self) -> str:
        """The public JSON document."""
        from tracekit.comparison.render import to_json

        return to_json(self)

    def to_text(self, *, everything: bool = False, color: bool = False, width: int = 110) -> str:
        """The comparison for a terminal."""
        from tracekit.comparison.text import to_text

        return to_text(self, everything=everything, color=color, width=width)

    def to_markdown(self) -> str:
        """The comparison as Markdown."""
        from tracekit.comparison.markdown import to_markdown

        return to_markdown(self)

    def to_html(self) -> str:
        """The comparison as a page that needs no network."""
        from tracekit.comparison.page import to_html

        return to_html(self)
