"""What a diagnosis is made of: findings, their evidence, impact, severity and confidence.

The records here are the wire format too: field names are the keys of the JSON that
``diagnose`` prints, so renaming one breaks a public contract.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from tracekit.reliability import KINDS, counted, precision
from tracekit.wording import cut, escaped, pairs, ranges, safe, seconds

Owner = Literal["network", "hardware", "framework", "model", "platform", "data"]
Level = Literal["certain", "likely", "possible"]
VerdictKind = Literal[
    "culprit", "configuration", "inherent", "unexplained", "not_enough_data", "hang"
]
Part = Literal["floor", "finding", "other_waiting", "bubble", "host", "unexplained"]
Method = Literal["replay", "twin ranks", "twin steps", "counter share", "recorded time"]
"""How a cost was got: the steps replayed without the fault; the observed difference to ranks
without it, or to steps without it; what counters say that transfers or clocks lost; the time that
was recorded of it, all of it, which is the most that a step can gain."""
Instrument = Literal["host ranges", "GPU timeline", "step times", "counters", "log", "peers"]
"""A kind of evidence. Two rows from one instrument are one kind: they err together."""

SHOWN_CHARACTERS = 100
"""Of a text, where a finding is shown in one line."""
NOTE_RATIO = 0.01
MAJOR_RATIO = 0.05
CRITICAL_RATIO = 0.20


class Severity(StrEnum):
    """How much it matters, by share of the step; lowest first."""

    NOTE = "note"
    MINOR = "minor"
    MAJOR = "major"
    CRITICAL = "critical"

    @property
    def weight(self) -> int:
        """0 (note) to 3 (critical), to compare and sort by."""
        return list(Severity).index(self)


def severity_of(
    step_ratio: float | None,
    *,
    cap: Severity = Severity.CRITICAL,
    least: Severity = Severity.NOTE,
) -> Severity:
    """Severity by impact: note under 1 % of the step, minor to 5 %, major to 20 %, critical.

    ``least``: what it is whatever it costs (the job stopped, or hardware reports an error). An
    unknown impact is a note: nothing may alarm that cannot say what it costs.
    """
    if step_ratio is None or step_ratio < NOTE_RATIO:
        severity = Severity.NOTE
    elif step_ratio < MAJOR_RATIO:
        severity = Severity.MINOR
    elif step_ratio < CRITICAL_RATIO:
        severity = Severity.MAJOR
    else:
        severity = Severity.CRITICAL
    return min(max(severity, least, key=lambda s: s.weight), cap, key=lambda s: s.weight)


class BenchCount(Struct, frozen=True, kw_only=True):
    """Findings of this rule at this level that the accuracy bench saw, and how many were right."""

    jobs: Literal["simulated", "recorded"]
    right_count: int
    findings_count: int


class Confidence(Struct, frozen=True, kw_only=True):
    """How sure, and on what grounds.

    ``bench_precision`` is the share of this rule's findings at this level of evidence that were
    right on the accuracy bench's simulated jobs; null where it made too few to say. ``bench`` has
    the counts, of simulated and of recorded jobs apart.
    """

    level: Level
    basis: str
    bench_precision: float | None = None
    bench: tuple[BenchCount, ...] = ()


def confidence_from(instruments: Iterable[Instrument], basis: str) -> Confidence:
    """Likely for two independent kinds of evidence, else possible.

    Never certain: simulated jobs cannot earn that level, and recorded ones are too few.
    """
    level: Level = "likely" if len(set(instruments)) >= 2 else "possible"
    return Confidence(level=level, basis=basis)


def benched(rule: str, confidence: Confidence) -> Confidence:
    """The confidence with what the accuracy bench saw of the rule at its level."""
    counts = []
    for jobs in KINDS:
        seen = counted(rule, confidence.level, jobs)
        if seen.findings_count:
            counts.append(
                BenchCount(
                    jobs=jobs, right_count=seen.right_count, findings_count=seen.findings_count
                )
            )
    return replace(
        confidence, bench_precision=precision(rule, confidence.level), bench=tuple(counts)
    )


class Scope(Struct, frozen=True, kw_only=True):
    """Where it happened: only what the fault itself sits on, never its victims.

    ``steps`` are closed ranges of job-level step numbers.
    """

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    rails: tuple[int, ...] = ()
    switches: tuple[str, ...] = ()
    racks: tuple[str, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    identity_source: str | None = None


class When(Struct, frozen=True, kw_only=True):
    """First and last moment, ISO 8601 UTC; null where the clock has no known zero."""

    start_utc: str | None = None
    end_utc: str | None = None


class Cost(Struct, frozen=True, kw_only=True):
    """Money a day, where prices are known."""

    amount: float | None = None
    currency: str | None = None


class Impact(Struct, frozen=True, kw_only=True):
    """What it costs the job: the mean over all steady steps, affected or not.

    ``gpu_hours_per_day`` is step_ratio x world size x 24 h: the whole job waits.
    ``at_most_s_per_step`` is a bound where the cost itself is unknown, or where a replay finds that
    others would hold the step up nearly as long: severity is then that of the bound. ``method``:
    how the cost was got; ``low_s_per_step`` and ``high_s_per_step``: where it may lie by that and,
    where they disagree, by other methods; ``replay_error_ratio``: by how much the replay that gave
    it misses the measured step. ``joint_ranks``: ranks whose delays cost this together, so that the
    finding of each carries the whole of it; it counts once. ``own_share_ratio``: what this
    finding's ranks have of all own inflicted waiting; of one cost the greatest share leads.
    ``per``: what it is a part of; where nothing marks steps the ``s_per_step`` are of the whole
    window, ``step_ratio`` its share; where there are logs and no trace, of the whole job.
    ``s_per_affected_step``: the same cost where it comes and goes, as a mean of the steps of the
    finding's scope alone; null where these are more than half of all.
    ``energy_joules`` and ``cost`` are a day's too, where power and prices are known.
    """

    s_per_step: float | None = None
    step_ratio: float | None = None
    gpu_hours_per_day: float | None = None
    energy_joules: float | None = None
    cost: Cost = field(default_factory=Cost)
    at_most_s_per_step: float | None = None
    method: Method | None = None
    low_s_per_step: float | None = None
    high_s_per_step: float | None = None
    replay_error_ratio: float | None = None
    joint_ranks: tuple[int, ...] = ()
    own_share_ratio: float | None = None
    per: Literal["step", "window", "job"] = "step"
    s_per_affected_step: float | None = None


def impact_of(s_per_step: float, step_s: float, gpus_count: int | None) -> Impact:
    """Impact from the delay of a mean step. ``gpus_count`` is None where the job has no GPUs."""
    ratio = s_per_step / step_s if step_s > 0 else None
    hours = ratio * gpus_count * 24 if ratio is not None and gpus_count is not None else None
    return Impact(s_per_step=s_per_step, step_ratio=ratio, gpu_hours_per_day=hours)


class HeldUp(Struct, frozen=True):
    """Why ranks that others wait for cost less than that: the others would be late as well."""

    waited_ns: float
    """What others were seen to wait for them in a mean step."""
    ranks: tuple[int, ...]
    """Those that were taken out together."""


class Price(Struct, frozen=True):
    """What a step would take less, by which method, and between what bounds; in ns."""

    ns: float
    method: Method
    low_ns: float
    high_ns: float
    error_ratio: float | None = None
    """Of a replay: by how much it misses the measured step."""
    against: tuple[Evidence, ...] = ()
    """What another method says that disagrees by more than a quarter."""
    held_up: HeldUp | None = None
    """Where others would hold the step up nearly as long; then ``high_ns`` is a bound."""
    joint_ranks: tuple[int, ...] = ()
    """All ranks whose delays cost this together, where the finding names only some of them."""
    own_share_ratio: float | None = None
    """The share of all own inflicted waiting that those which the finding names have."""

    def __post_init__(self) -> None:
        if (self.method == "replay") != (self.error_ratio is not None):
            raise ValueError("a cost by replay, and no other, carries the replay's error")

    def wider(self, error_ns: float) -> Price:
        """The same, whose bounds are known no better than this."""
        return replace(self, low_ns=self.low_ns - error_ns, high_ns=self.high_ns + error_ns)

    def impact(self, step_ns: float, gpus_count: int | None) -> Impact:
        """As the impact on a mean step of this length, which no bound exceeds."""
        return replace(
            impact_of(self.ns / 1e9, step_ns / 1e9, gpus_count),
            method=self.method,
            low_s_per_step=min(max(0.0, self.low_ns), step_ns) / 1e9,
            high_s_per_step=min(max(0.0, self.high_ns), step_ns) / 1e9,
            replay_error_ratio=self.error_ratio,
            joint_ranks=self.joint_ranks,
            own_share_ratio=self.own_share_ratio,
            at_most_s_per_step=None if self.held_up is None else min(self.high_ns, step_ns) / 1e9,
        )


class EvidenceRow(Struct, frozen=True, kw_only=True):
    """A raw record that the evidence rests on: its file and its place in the file."""

    source: str
    place: str


class _Number(Struct, frozen=True):
    """What stands first in evidence, and may be given by position."""

    name: str
    value: float
    unit: str


class Evidence(_Number, frozen=True, kw_only=True):
    """One number, the threshold it was held against (null: none), and the query it came from."""

    threshold: float | None = None
    query: str | None = None
    params: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    rows: tuple[EvidenceRow, ...] = ()

    @classmethod
    def ratio(
        cls,
        name: str,
        value: float,
        threshold: float | None,
        query: str,
        rows: tuple[EvidenceRow, ...] = (),
    ) -> Evidence:
        """A share or a multiple, and the one from which, or up to which, it counts."""
        return cls(name, value, "ratio", threshold=threshold, query=query, rows=rows)

    @classmethod
    def count(
        cls,
        name: str,
        value: float,
        threshold: float | None,
        query: str,
        rows: tuple[EvidenceRow, ...] = (),
    ) -> Evidence:
        """So many of something."""
        least = None if threshold is None else float(threshold)
        return cls(name, float(value), "count", threshold=least, query=query, rows=rows)

    @classmethod
    def seconds(
        cls,
        name: str,
        ns: float,
        threshold_ns: float | None,
        query: str,
        rows: tuple[EvidenceRow, ...] = (),
    ) -> Evidence:
        """A time; both are given in ns, as queries and thresholds have them."""
        least = None if threshold_ns is None else float(threshold_ns) / 1e9
        return cls(name, float(ns) / 1e9, "s", threshold=least, query=query, rows=rows)


class Candidates(Struct, frozen=True, kw_only=True):
    """Where the culprit may sit when it was not captured: the smallest set that the data allow."""

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    rails: tuple[int, ...] = ()
    """Where job.toml says that each GPU of a host has a NIC of its own."""
    why: str | None = None


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, whose it is, what it costs and what to do."""

    id: str
    rule: str
    severity: Severity
    confidence: Confidence
    summary: str
    owner: Owner
    scope: Scope
    when: When
    impact: Impact
    evidence: tuple[Evidence, ...]
    counter_evidence: tuple[Evidence, ...] = ()
    candidates: Candidates = field(default_factory=Candidates)
    explains: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()
    confirm: tuple[str, ...] = ()
    remedy: tuple[str, ...] = ()
    next_capture: tuple[str, ...] = ()
    rules_out: tuple[str, ...] = ()

    def __repr__(self) -> str:
        told = safe(cut(self.summary, SHOWN_CHARACTERS))
        return f"<Finding {safe(cut(self.id, SHOWN_CHARACTERS))} {self.severity}: {told}>"

    def _repr_html_(self) -> str:
        cost_s, confidence = self.impact.s_per_step, self.confidence
        rows = [
            (str(self.severity), self.summary),
            ("cost", "unknown" if cost_s is None else f"{seconds(cost_s)} a {self.impact.per}"),
            ("sure", f"{confidence.level}: {confidence.basis}"),
            *(("evidence", f"{e.name}: {e.value:g} {e.unit}") for e in self.evidence[:10]),
            *(("against", e.name) for e in self.counter_evidence[:10]),
            *(("confirm", text) for text in self.confirm),
            *(("act", text) for text in self.remedy),
        ]
        return f"<p><b>{escaped(self.id)}</b></p>\n{pairs(rows)}"


def finding_id(
    rule: str, scope: Scope, everybody: Iterable[int], *, is_counted: bool = False
) -> str:
    """``rule/scope``: the same fault in the same place has the same id in every run.

    The scope is ``all`` for the whole job, else the ranks, else the most telling name; of what
    counters measure (``is_counted``) the only rank, device, link or host, because they measure a
    place, and which ranks are behind it is often not known.
    """
    if is_counted:
        devices = tuple(d.replace(" ", "-") for d in scope.devices)
        places = (tuple(map(str, scope.ranks)), devices, scope.links, scope.hosts)
        where = next((names[0] for names in places if len(names) == 1), "several")
    elif scope.ranks:
        where = "all" if set(scope.ranks) == set(everybody) else _ranks_name(scope.ranks)
    else:
        named = (scope.devices, scope.links, scope.groups, scope.switches, scope.racks, scope.hosts)
        where = next((",".join(names) for names in named if names), "all")
    return f"{rule}/{where}"


def _ranks_name(ranks: tuple[int, ...]) -> str:
    """The ranks as ranges; where that is long, the first, how many more, and a digest."""
    name = ranges(ranks)
    if len(name) <= 40:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{min(ranks)}+{len(ranks) - 1}-{digest}"


class NotChecked(Struct, frozen=True, kw_only=True):
    """A rule that could not say anything, what it lacks, and what would supply it."""

    rule: str
    needs: str
    capture: str | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """The one sentence that the report leads with; ``finding`` is the id that carries it.

    ``severity`` is that of what the sentence says, by its share of the step or of the window: what
    ``--fail-on`` asks. Null: nothing to fix, or what it costs is not known.
    """

    kind: VerdictKind
    finding: str | None
    sentence: str
    severity: Severity | None = None


class BudgetPart(Struct, frozen=True, kw_only=True):
    """A part of the mean step. All parts of a report add up to the step."""

    part: Part
    s_per_step: float
    finding: str | None = None


def ordered(findings: Iterable[Finding], verdict_finding: str | None = None) -> list[Finding]:
    """The verdict's finding first, then by severity, impact (unknown last), share of it, id."""

    def key(finding: Finding) -> tuple[bool, int, bool, float, float, str]:
        cost = finding.impact.s_per_step
        return (
            finding.id != verdict_finding,
            -finding.severity.weight,
            cost is None,
            -(cost or 0.0),
            -(finding.impact.own_share_ratio or 0.0),
            finding.id,
        )

    return sorted(findings, key=key)
