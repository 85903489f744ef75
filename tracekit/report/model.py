"""A report as data: what ``diagnose`` found, before any rendering.

``Document`` is the public JSON contract: its field names are the keys, in this order, and
docs/diagnose.schema.json is generated from it. Additions only. ``Report`` is the document plus
the few words that only people read.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from tracekit.findings import BudgetPart, Finding, NotChecked, Severity, Verdict
from tracekit.target import Target
from tracekit.wording import cut, plural, safe

SCHEMA_VERSION = 1
SHOWN_CHARACTERS = 200
"""Of the verdict, where a report is shown in one line."""
InputStatus = Literal["ok", "partial", "empty", "unreadable", "unrecognised"]


class Window(Struct, frozen=True, kw_only=True):
    """First and last moment, ISO 8601 UTC; null where no clock has a known zero."""

    start_utc: str | None
    end_utc: str | None


class RunInfo(Struct, frozen=True, kw_only=True):
    """Which run and which part of it this is about.

    ``step_range`` are closed ranges of steady steps; ``steps_count`` counts them.
    """

    id: str
    attempt: int
    window: Window
    step_range: tuple[tuple[int, int], ...]
    ranks: tuple[int, ...]
    world_size: int | None
    hosts: tuple[str, ...]
    steps_count: int
    window_s: float | None


class Coverage(Struct, frozen=True, kw_only=True):
    """How much of the job was seen; ``steps_common`` are steady on every traced rank."""

    ranks_traced: int
    ranks_expected: int | None
    steps_common: int


class InputIssue(Struct, frozen=True, kw_only=True):
    """Something skipped, repaired or remarkable in an input, counted by name."""

    name: str
    severity: Literal["info", "warning", "error"]
    count: int
    place: str | None


class InputFile(Struct, frozen=True, kw_only=True):
    """A file that was given, readable or not."""

    path: str
    kind: str
    status: InputStatus
    rows: int
    issues: tuple[InputIssue, ...] = ()
    reason: str | None = None
    """Why it was not read whole, or not at all."""


class StepTime(Struct, frozen=True, kw_only=True):
    """Durations of the job's steady steps. p99 needs 20 steps, the spread two, outliers eight."""

    steps_count: int
    mean_s: float
    std_s: float | None
    cv_ratio: float | None
    p50_s: float
    p95_s: float | None
    p99_s: float | None
    max_s: float
    outliers_count: int | None


class Overlap(Struct, frozen=True, kw_only=True):
    """Communication against computation, summed over ranks; the ratio is one of sums."""

    compute_s: float
    comm_s: float
    overlap_s: float
    exposed_comm_s: float
    overlap_ratio: float | None
    measured_on: str


class Traffic(Struct, frozen=True, kw_only=True):
    """What a rank sends in a steady step, by kind of group and operation, beside what the job
    description implies; as the query ``traffic`` has it.

    Null is unknown: bytes that the trace does not state, or what no description implies. A row
    with 0 calls is expected and was not seen.
    """

    group_kind: str | None
    op: str
    calls_per_step: float
    bytes_per_step: float | None
    expected_calls: float | None
    expected_bytes: float | None
    observed_ratio: float | None
    group_size: int | None
    ranks_count: int
    largest_bytes: int | None
    dtype: str | None
    hosts_count: int | None
    expected_most_bytes: float | None
    expected_domain: str | None
    basis: str | None


class Metrics(Struct, frozen=True, kw_only=True):
    """Figures of the run, null where their inputs are absent."""

    step_time: StepTime | None
    overlap: Overlap | None
    bubble: dict[str, Any] | None = None
    mfu: dict[str, Any] | None = None
    traffic: tuple[Traffic, ...] = ()
    clock: dict[str, Any] | None = None


class Document(Struct, frozen=True, kw_only=True):
    """What ``tracekit diagnose --format json`` prints."""

    schema_version: int
    tracekit_version: str
    run: RunInfo
    coverage: Coverage
    inputs: tuple[InputFile, ...]
    verdict: Verdict
    step_budget: tuple[BudgetPart, ...]
    metrics: Metrics
    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]


class RankShares(Struct, frozen=True, kw_only=True):
    """How the median rank's mean step divides: shares that add up to 1."""

    rank: int
    compute_ratio: float
    exposed_comm_ratio: float
    memory_ratio: float
    idle_ratio: float
    is_host_side: bool


class WorkPart(Struct, frozen=True, kw_only=True):
    """What the ranks ran under one name, over all that was captured; its share of all such time.
    ``calls_count`` is null where it is no call."""

    name: str
    total_s: float
    share_ratio: float
    calls_count: int | None


class Work(Struct, frozen=True, kw_only=True):
    """Operators or kernels (``kind``) by their own time, the largest first, and the query that
    has them."""

    kind: str
    query: str
    parts: tuple[WorkPart, ...]
    is_on_host: bool


class Notes(Struct, frozen=True, kw_only=True):
    """What only the text report says; nothing here is a finding."""

    job_name: str | None = None
    data_lines: tuple[str, ...] = ()
    """Warm-up steps left out, missing ranks, truncated files, silenced findings."""
    identity: str | None = None
    """Where the culprit's host and rank number are known from."""
    shares: RankShares | None = None
    work: Work | None = None
    """What dominates where nobody communicates."""
    rules_run: tuple[str, ...] = ()
    """Rules that looked and could answer."""
    target: Target | None = None
    """What the user named; None: the run by its id."""
    shows_ids: bool = False
    """Whether labels (F1) hold in this report alone, because rules were left out."""
    next_step: str | None = None
    """What to do where the verdict names no finding."""


class Report(Struct, frozen=True):
    """A diagnosis: the document, and its notes for people."""

    document: Document
    notes: Notes = field(default_factory=Notes)

    def __repr__(self) -> str:
        verdict = self.verdict
        count = plural(len(self.findings), "finding")
        sentence = safe(cut(verdict.sentence, SHOWN_CHARACTERS))
        return f"<Report {verdict.kind}: {sentence} ({count})>"

    def _repr_html_(self) -> str:
        from tracekit.report.notebook import report_html

        return report_html(self)

    @property
    def target(self) -> Target:
        """What the next commands are about."""
        return self.notes.target or Target((self.document.run.id,))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings in the order of the report."""
        return self.document.findings

    @property
    def metrics(self) -> Metrics:
        """Figures of the run."""
        return self.document.metrics

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        return self.document.verdict

    def finding(self, name: str) -> Finding | None:
        """The finding of that id, or of that label (F1 is the first); None if there is none."""
        if name[:1] in "Ff" and name[1:].isdigit():
            index = int(name[1:]) - 1
            return self.findings[index] if 0 <= index < len(self.findings) else None
        return next((f for f in self.findings if f.id == name), None)

    def worst(self) -> Severity | None:
        """The highest severity of the verdict and of any finding, as ``--fail-on`` judges: None
        where there is nothing to fix, whatever notes and minor findings stand beside that."""
        if self.verdict.kind == "inherent":
            return None
        said = [f.severity for f in self.findings]
        said += [self.verdict.severity] if self.verdict.severity is not None else []
        return max(said, key=lambda s: s.weight, default=None)

    def to_json(self) -> str:
        """The public JSON document."""
        from tracekit.report.json import to_json

        return to_json(self)

    def to_text(self, *, everything: bool = False, color: bool = False, width: int = 110) -> str:
        """The report for a terminal."""
        from tracekit.report.text import to_text

        return to_text(self, everything=everything, color=color, width=width)
