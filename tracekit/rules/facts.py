"""What a rule is given: rows of queries and the job description, and how it makes findings of them.

No file, no database: what a rule looks at was asked before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack, cast

from msgspec import Struct, field
from msgspec.structs import replace

from tracekit.findings import (
    Candidates,
    Evidence,
    EvidenceRow,
    Finding,
    Impact,
    Instrument,
    Owner,
    Price,
    Scope,
    Severity,
    When,
    confidence_from,
    finding_id,
    severity_of,
)
from tracekit.ranges import Ranges
from tracekit.rules.outcome import RuleOutcome, lacking
from tracekit.rules.steps import StepKey, Steps, utc
from tracekit.rules.thresholds import KernelThresholds, Thresholds
from tracekit.rules.windows import (
    NOT_MARKED,
    OVER,
    WINDOWS,
    breakdown_of_windows,
    spans_of_windows,
    stalls_of_windows,
)
from tracekit.target import Target
from tracekit.wording import runs, some_ranges

if TYPE_CHECKING:
    from tracekit.job import JobDescription, Prices
    from tracekit.rules.declared import Rule

Row = Mapping[str, Any]
STEPS_QUERY = "step_breakdown"
SUMMARY_QUERY = "step_time_summary"
HIDDEN_QUERY = "hidden_kernels"
LOST_QUERY = "lost_kernels"
MAX_PLACES = 10
MAX_READINGS = 3
"""Places of evidence from counters: one reading is like the next."""
MAX_CANDIDATES = 1 << 16
"""Ranks without a trace that a finding lists: more tell a reader nothing."""
L = TypeVar("L", bound=Thresholds)
M = TypeVar("M")


class JobFacts(Struct, frozen=True):
    """What is known of the job beyond query rows; null or empty means unknown, never zero."""

    name: str | None = None
    run_id: str | None = None
    target: Target | None = None
    """What the user named, for the next commands."""
    attempt: int = 1
    world_size: int | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Rank to canonical host, as far as known."""
    leaves: Mapping[int, str] = field(default_factory=dict)
    """Rank to leaf switch, as far as job.toml says."""
    rails: Mapping[int, int] = field(default_factory=dict)
    """Rank to rail, as far as job.toml says; ranks without a trace too."""
    racks: Mapping[int, str] = field(default_factory=dict)
    """Rank to rack, as far as job.toml says."""
    placed_hosts: Mapping[int, str] = field(default_factory=dict)
    """Rank to host, with the ranks that only job.toml places: they have no trace."""
    rank_sources: Mapping[int, str] = field(default_factory=dict)
    """Rank to where its number came from (IDENTITY_SOURCES)."""
    rank_files: Mapping[int, str] = field(default_factory=dict)
    """Rank to its first file: a guessed rank is never printed without it."""
    layout: str | None = None
    """The parallel layout in words, such as ``tp8 x fsdp8 (inferred)``."""
    is_epoch: bool = True
    """Whether times count from the epoch; no UTC is printed otherwise."""
    start_ns: int | None = None
    end_ns: int | None = None
    prices: Prices | None = None
    """What job.toml says time costs."""
    notes: tuple[str, ...] = ()
    """What the making of the run had to assume, in words."""
    broken_ranks: frozenset[int] = frozenset()
    """Ranks whose files break off or are damaged: what they did not do may have been lost."""
    lost_ranks: frozenset[int] = frozenset()
    """Ranks whose kernels the profiler lost: what their devices did is not known."""
    left_out_files: int = 0
    """Files of no rank that the selection leaves out."""
    left_out_ranks: frozenset[int] = frozenset()
    """Ranks that the run has and the selection leaves out: nothing is known of them here."""
    unread: tuple[str, ...] = ()
    """Paths of files that a time budget left for another time."""


class Replay(Protocol):
    """What a step would take without the delays of some ranks; None where it cannot be said."""

    def saved_ns(self, ranks: Sequence[int]) -> float | None:
        """ns a step that would be saved if these ranks did what their peers do."""

    def saved_by_work_ns(self, ranks: Sequence[int]) -> float | None:
        """The same with all transfers as they were, where something stops one of these ranks and
        its transfers with it; None elsewhere."""

    def saved_at_most_ns(self, ranks: Sequence[int]) -> float | None:
        """The same if they took no time of their own at all; None too where only calls are
        replayed, which do not show what a delay hides behind."""

    def saved_at_speed_ns(self, ranks: Sequence[int], factor: float) -> float | None:
        """The same if the longest of their transfers between hosts were cut so that all of a kind
        take this share of their time; None too where the replay does not show what hides one."""

    def saved_evenly_ns(self) -> float | None:
        """ns a step that would be saved if the work between all-to-alls were dealt out evenly."""

    def saved_by_operations_ns(self, rank: int) -> float | None:
        """The same for one rank of a pipeline, by its operations."""

    def saved_by_even_stages_ns(self) -> float | None:
        """The same if the stages of a pipeline computed equally long, and no less in all."""

    def saved_by_even_lengths_ns(self) -> float | None:
        """The same if the microbatches of each step were of equal length, and no shorter in all."""

    def saved_by_stage_ns(self, stage: int) -> float | None:
        """The same if this stage computed as the median other one does: less, and no other more."""

    @property
    def operations_error_ratio(self) -> float | None:
        """By how much the replay of a pipeline's operations misses the measured step."""

    def idle_beyond_hand_overs_ns(self) -> float | None:
        """ns a step that a pipeline takes beyond its order of operations and fast hand-overs."""

    def hand_overs_ns(self) -> float | None:
        """The same of a job that is one pipeline; None of others."""

    def saved_by_messages_ns(self, ranks: Sequence[int]) -> float | None:
        """ns a step that would be saved if the messages that these ranks of one pipeline send and
        receive took what others' do; None of other jobs, and where such messages were not seen."""

    def saved_in_operations_ns(self, rank: int, delay_ns: float) -> float | None:
        """The same if this rank of one pipeline computed as the median other stage does; None where
        its operations do not take so much longer that ``delay_ns`` can be theirs."""

    def saved_beside_replicas_ns(self, rank: int, least_ns: float) -> float | None:
        """The same if this rank's stage computed in its replica of the pipeline as in the median
        other one; None where its operations do not take ``least_ns`` longer there."""

    def slowdown(self, rank: int) -> float | None:
        """The ideal step with only this rank's delays, over the ideal step, by calls."""

    @property
    def is_by_operations(self) -> bool:
        """Whether ``tracekit whatif`` and ``slowdown_ratio`` say another slowdown of a rank: by the
        operations of a pipeline, of its stage and replica."""

    @property
    def error_ratio(self) -> float | None:
        """By how much the replay misses the measured step."""

    @property
    def is_by_streams(self) -> bool:
        """Whether launches and streams are replayed, which shows what a delay hides behind."""


class Advice(TypedDict, total=False):
    """What a finding tells the reader to do, and what it cannot be."""

    confirm: tuple[str, ...]
    remedy: tuple[str, ...]
    next_capture: tuple[str, ...]
    rules_out: tuple[str, ...]


class UndeclaredQueryError(LookupError):
    """A rule read a query that it does not declare: were it to fail, nobody would be told."""


class Facts(Struct, frozen=True, dict=True):
    """Everything that a rule may look at."""

    job: JobFacts = field(default_factory=JobFacts)
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """Rows by query name."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Queries that could not be run, and why."""
    sources: Mapping[int, str] = field(default_factory=dict)
    """Path by source_id, for the places that evidence points to."""

    description: JobDescription | None = None
    """What the user says of the job; nothing in it was inferred from the traces."""
    replay: Replay | None = None
    """Asked for prices only: it costs time, so a rule asks once it has something to price."""
    kernel_limits: KernelThresholds = field(default_factory=KernelThresholds)
    halves: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """Where nothing marks steps: rows of queries over the halves of windows (``rules.windows``)."""
    is_window: bool = False
    """Whether what stands for the steps here are whole windows."""
    readable: frozenset[str] | None = None
    """Queries whose rows may be read; None: all. Which ranks there are, and whether they have a
    GPU, is known of the run itself and always open."""
    rule: Rule | None = None
    """The rule that is asked, of whose findings it is the maker."""
    whole: Facts | None = None
    """Without that limit: what is made of rows is made once."""

    def of(self, query: str) -> Sequence[Row]:
        """Rows of a query; none when it was not run or found nothing. UndeclaredQueryError for
        one that may not be read."""
        self._check(query)
        return self.rows.get(query, ())

    def once(self, query: str, make: Callable[[Sequence[Row]], M]) -> M:
        """What a function makes of a query's rows: made once for all rules that read them."""
        rows, made = self.of(query), (self.whole or self)._made
        known = made.get((query, make))
        if known is None or known[0] is not rows:
            known = made[query, make] = (rows, make(rows))
        return cast("M", known[1])

    @cached_property
    def _made(self) -> dict[tuple[str, Callable[..., Any]], tuple[Sequence[Row], Any]]:
        """With the rows that it was made of: a rule may be given others of the same query."""
        return {}

    def _check(self, query: str) -> None:
        if self.readable is not None and query not in self.readable:
            raise UndeclaredQueryError(query)

    def limited(self, queries: Collection[str], rule: Rule | None = None) -> Facts:
        """The same, of which only rows of these queries can be read, to make this rule's
        findings."""
        whole = self.whole or self
        return replace(self, readable=frozenset(queries), rule=rule, whole=whole)

    def without_lost(self, device_queries: Collection[str]) -> Facts:
        """The same without what lost kernels make of their ranks: a device that seems to idle.
        ``device_queries`` are those that say what devices did."""
        most = self.kernel_limits.max_hidden_ratio
        lost = frozenset(
            int(row["rank"])
            for row in self.of(LOST_QUERY)
            if row["lost_ratio"] is not None and row["lost_ratio"] > most
        )
        if not lost:
            return self
        kept = {
            query: [r for r in rows if r.get("rank") not in lost]
            for query, rows in self.rows.items()
            if query in device_queries
        }
        halves = {q: [r for r in rows if r["rank"] not in lost] for q, rows in self.halves.items()}
        job = replace(self.job, lost_ranks=lost)
        return replace(self, rows={**self.rows, **kept}, halves=halves, job=job)

    def without(self, queries: Collection[str]) -> Facts:
        """The same, as if these queries had found nothing."""
        return replace(self, rows={q: r for q, r in self.rows.items() if q not in queries})

    @cached_property
    def over_windows(self) -> Facts | None:
        """The same with windows for steps; None where steps are marked, or no device worked."""
        halves = self.halves.get(STEPS_QUERY, ())
        breakdown = breakdown_of_windows(halves)
        if not breakdown:
            return None
        stalls = {
            query: stalls_of_windows(rows, halves)
            for query, rows in self.halves.items()
            if query != STEPS_QUERY
        }
        times = spans_of_windows(halves)
        rows = {**self.rows, **stalls, STEPS_QUERY: breakdown, "step_time": times}
        return replace(self, rows=rows, is_window=True, whole=None)

    @property
    def each(self) -> str:
        """What a cost is a part of, in words that follow it."""
        return "of the window" if self.is_window else "of each step"

    @property
    def steps(self) -> Steps:
        """The steady steps of the job."""
        self._check(STEPS_QUERY)
        return (self.whole or self)._steps

    @cached_property
    def _steps(self) -> Steps:
        return Steps.from_rows(self.of(STEPS_QUERY), self.of("step_time"))

    @property
    def step_ns(self) -> float:
        """The job's mean step (see ``Steps``); of a job with timers of its operations and no steps,
        that of the operations; 0 where neither is there."""
        return self.steps.step_ns or (self.whole or self)._timed_step_ns

    @cached_property
    def _timed_step_ns(self) -> float:
        rows = [r for r in self.of(SUMMARY_QUERY) if r["rank"] is None]
        return float(rows[0]["mean_ns"] or 0.0) if rows else 0.0

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that have a step or a busy interval, steady or not."""
        return (self.whole or self)._ranks

    @cached_property
    def _ranks(self) -> tuple[int, ...]:
        seen = {int(r["rank"]) for q in (STEPS_QUERY, "overlap") for r in self.of(q)}
        return tuple(sorted(seen | set(self.job.hosts) | set(self.job.rank_sources)))

    @cached_property
    def missing_ranks(self) -> Ranges:
        """Ranks that the job has and nothing here covers: no file does (as far as the world size is
        known), their kernels were lost, or the selection leaves them out.

        As ranges: how many there are is what a header claims, and need not fit in memory.
        """
        lost = self.job.lost_ranks
        if self.job.world_size is None:
            return Ranges(runs((self.job.left_out_ranks - set(self.ranks)) | lost))
        return Ranges.without(self.job.world_size, set(self.ranks) - lost)

    @cached_property
    def untraced_ranks(self) -> Ranges:
        """Of the missing ranks, those that no file covers."""
        if self.job.world_size is None:
            return Ranges()
        return Ranges.without(self.job.world_size, {*self.ranks, *self.job.left_out_ranks})

    @property
    def missing_advice(self) -> str:
        """What shows the missing ranks: to profile them, or to look at more of what there is."""
        if self.job.left_out_ranks:
            return "diagnose the whole job: the selection leaves out ranks that have files"
        ranks = "rank" if len(self.missing_ranks) == 1 else "ranks"
        return f"profile {ranks} {some_ranges(self.missing_ranks)} in the same steps"

    @property
    def missing_state(self) -> str:
        """What became of the missing ranks, for a sentence that counts them."""
        return "left no trace" + (" in what is selected" if self.job.left_out_ranks else "")

    @property
    def has_gpu(self) -> bool:
        """Whether any rank was measured on a GPU's timeline."""
        return (self.whole or self)._has_gpu

    @cached_property
    def _has_gpu(self) -> bool:
        measured = (*self.of(STEPS_QUERY), *self.of("overlap"))
        return any(row.get("measured_on") == "gpu" for row in measured)

    @property
    def hidden_ranks(self) -> tuple[int, ...]:
        """Ranks that spent device time in CUDA graphs whose kernels were not recorded."""
        self._check(HIDDEN_QUERY)
        return (self.whole or self)._hidden_ranks

    @cached_property
    def _hidden_ranks(self) -> tuple[int, ...]:
        hidden = (r for r in self.of(HIDDEN_QUERY) if r["hidden_ratio"] is not None)
        most = self.kernel_limits.max_hidden_ratio
        return tuple(sorted(int(r["rank"]) for r in hidden if r["hidden_ratio"] > most))

    @property
    def gpus_count(self) -> int | None:
        """GPUs that wait when the job waits; None for a job without."""
        if not self.has_gpu:
            return None
        return self.job.world_size or len(self.ranks) or None

    def scope(self, ranks: Sequence[int], steps: Sequence[StepKey]) -> Scope:
        """Scope of ranks, with their hosts and where their numbers came from.

        Where all ranks are named whose files are whole, it is all ranks: what a broken file does
        not show may have been lost with it.
        """
        whole = set(self.ranks) - self.job.broken_ranks - self.job.lost_ranks
        if 1 < len(whole) < len(self.ranks) and set(ranks) >= whole:
            ranks = self.ranks
        sources = sorted({self.job.rank_sources[r] for r in ranks if r in self.job.rank_sources})
        return Scope(
            ranks=tuple(sorted(ranks)),
            hosts=self.hosts_of(ranks),
            steps=() if self.is_window else runs(key.step for key in steps),
            identity_source=", ".join(sources) or None,
        )

    def hosts_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """The hosts of ranks, as far as known."""
        return tuple(sorted({self.job.hosts[r] for r in ranks if r in self.job.hosts}))

    @property
    def asked(self) -> Rule:
        """The rule that these facts are given to."""
        assert self.rule is not None  # noqa: S101  # Rule.run gives every rule its own facts
        return self.rule

    def limits(self, kind: type[L]) -> L:
        """The thresholds of the rule that is asked, as far as rules of a kind share them."""
        limits = self.asked.thresholds
        assert isinstance(limits, kind)  # noqa: S101  # the rule is of that kind
        return limits

    def places(
        self, rows: Iterable[Row], *, at_most: int = MAX_PLACES, unit: str = ""
    ) -> tuple[EvidenceRow, ...]:
        """Where rows (``source_id``, ``place``) stand in their files, each place once. ``unit`` is
        said before the place."""
        known = (
            (int(row["source_id"]), row["place"])
            for row in rows
            if row["source_id"] is not None and row["place"] is not None
        )
        return tuple(
            EvidenceRow(source=self.sources.get(source, f"source {source}"), place=f"{unit}{place}")
            for source, place in islice(dict.fromkeys(known), at_most)
        )

    def readings(self, rows: Iterable[Row]) -> tuple[EvidenceRow, ...]:
        """Where rows of counters stand: three will do."""
        return self.places(rows, at_most=MAX_READINGS)

    def impact(self, cost: Price, keys: Collection[StepKey] = ()) -> Impact:
        """What a delay of the mean step costs, by which method and between what bounds; ``keys``:
        the steps that it lies in, where it comes and goes."""
        if self.step_ns <= 0:
            return Impact()
        impact = cost.wider(self.steps.mean_error_ns(set(keys))).impact(
            self.step_ns, self.gpus_count
        )
        return replace(impact, per="window") if self.is_window else impact

    def finding(
        self,
        scope: Scope,
        summary: str,
        evidence: Iterable[Evidence],
        *,
        by: Iterable[Instrument],
        basis: str,
        impact: Impact | None = None,
        least: Severity = Severity.NOTE,
        cap: Severity = Severity.CRITICAL,
        against: Iterable[Evidence] = (),
        candidates: Candidates | None = None,
        keys: Sequence[StepKey] | None = None,
        place: str | None = None,
        is_counted: bool = False,
        owner: Owner | None = None,
        **advice: Unpack[Advice],
    ) -> Finding:
        """A finding of the rule that is asked: its owner, id and highest severity are the rule's.

        ``by`` and ``basis``: the kinds of evidence that agree, and the sentence that says so.
        ``least`` is the severity whatever it costs, ``cap`` the highest of this one. ``keys``: the
        steps that it was seen in; all steady ones, where the rule reads steps. ``place`` and
        ``owner`` only where they are not the scope's and the rule's; ``is_counted``: of what
        counters measure, whose id is their place.
        """
        rule = self.asked
        impact = impact or Impact()
        if keys is not None:
            impact = self._both_ways(impact, keys)
        ratio, most_s = impact.step_ratio, impact.at_most_s_per_step
        if ratio is not None and most_s is not None:
            ratio = max(ratio, most_s * 1e9 / self.step_ns)
        if keys is None:
            keys = self.steps.keys if STEPS_QUERY in rule.reads else ()
        if self.is_window:
            evidence = [self._over_windows(e) for e in evidence]
            basis = f"{basis}; {NOT_MARKED}"
        return Finding(
            id=f"{rule.name}/{place}"
            if place
            else finding_id(rule.name, scope, self.ranks, is_counted=is_counted),
            rule=rule.name,
            severity=severity_of(
                ratio, cap=min(cap, rule.cap, key=lambda s: s.weight), least=least
            ),
            confidence=confidence_from(by, basis),
            summary=summary,
            owner=owner or rule.owner,
            scope=scope,
            when=self.when(keys),
            impact=impact,
            evidence=tuple(evidence),
            counter_evidence=tuple(against),
            candidates=candidates or Candidates(),
            **advice,
        )

    def _both_ways(self, impact: Impact, keys: Sequence[StepKey]) -> Impact:
        """The cost of a fault that comes and goes, with what it is in a step that has it: all of
        it lies there. Never more than these steps take."""
        often = len(set(keys))
        if self.is_window or impact.s_per_step is None or not often:
            return impact  # a rule without a price need not read steps
        steps = self.steps
        if 2 * often > len(steps):
            return impact
        longest_s = fmean(steps.job_dur_ns(key) for key in set(keys)) / 1e9
        each_s = min(impact.s_per_step * len(steps) / often, longest_s)
        return replace(impact, s_per_affected_step=each_s)

    def _over_windows(self, evidence: Evidence) -> Evidence:
        """The same, with what its query has to be asked for to show it."""
        if evidence.query not in self.halves:
            return evidence
        return replace(evidence, params={**evidence.params, OVER: WINDOWS})

    def lacking(self, needs: str, capture: str | None = None) -> RuleOutcome:
        """The outcome of the rule that is asked where it lacks its inputs."""
        return lacking(self.asked.name, needs, capture)

    def when(self, steps: Sequence[StepKey]) -> When:
        """First start and last end of the steps, where the clock has a known zero."""
        spans = [s for key in steps if (s := self.steps.span_ns(key)) is not None]
        if not spans or not self.job.is_epoch:
            return When()
        return When(
            start_utc=utc(min(start for start, _ in spans)),
            end_utc=utc(max(end for _, end in spans)),
        )
