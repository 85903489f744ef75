"""What rules on the job's history share: the log's steps, and what stands out in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from tracekit.findings import (
    Evidence,
    Finding,
    Impact,
    Owner,
    Scope,
    Severity,
    When,
    confidence_from,
    severity_of,
)
from tracekit.rules.base import Facts, Row, Rule
from tracekit.rules.steps import utc
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, safe, seconds, share, span

NEEDS = "a training log: one line a step, or one for every few"
NO_LOG = (NEEDS, "give the job's own log, or what its tracker keeps, beside the traces")
"""The need of rules that read a training log, and what supplies it."""
log_rule = partial(Rule, topic="the job's history", needs=NEEDS, blames="nobody")
"""A rule over a training log, with what these declare alike: what a job lost and nobody did."""
DAY_NS = 86_400 * 10**9
TIMES_RATIO = 3.0
"""Over what is usual, from which on it is told how many times as long, and no percentage."""
MIN_WHOLE_RATIO = 0.8
"""Of the log's steps that a period must cover for its sentence not to say which."""
SUMMARY_QUERY = "job_step_summary"
EPISODES_QUERY = "slow_episode"
ATTEMPTS_QUERY = "attempt_summary"


class Log(Struct, frozen=True):
    """The job as its training log tells it."""

    summary: Row
    episodes: Sequence[Row]

    @property
    def spent_ns(self) -> float:
        """How long the job took: by the log's clock, else by its steps; 0 where neither says."""
        start, end = self.summary["start_ns"], self.summary["end_ns"]
        by_steps = float((self.summary["mean_ns"] or 0.0) * self.summary["steps_count"])
        by_clock = float(end - start) if None not in (start, end) else 0.0
        return max(by_steps, by_clock) + sum(float(r["lost_ns"]) for r in self.of("silence"))

    def of(self, kind: str) -> list[Row]:
        """What stands out of one kind, in order of the steps."""
        return [row for row in self.episodes if row["kind"] == kind]

    def share(self, lost_ns: float) -> float:
        """Of the job's time; 0 where that is not known."""
        return min(1.0, lost_ns / self.spent_ns) if self.spent_ns else 0.0


def log_of(facts: Facts) -> Log | None:
    """The job's log; None where there is none."""
    summary = next(iter(facts.of(SUMMARY_QUERY)), None)
    return None if summary is None else Log(summary, facts.of(EPISODES_QUERY))


_BETWEEN_STEPS = (
    ("evaluations_count", "an evaluation", "evaluations"),
    ("checkpoints_count", "a saved checkpoint", "saved checkpoints"),
    ("collections_count", "a collection of garbage", "collections of garbage"),
    ("epochs_count", "the turn of an epoch", "turns of epochs"),
)


def beside(row: Row) -> str:
    """What the log has before the slow lines of an episode, as words behind its sentence; empty
    where nothing stands there more than elsewhere."""
    times = row["times_count"]
    told = [
        f"{many} before {row[name]}" if times else single
        for name, single, many in _BETWEEN_STEPS
        if row[name]
    ]
    has = f"; the log has {' and '.join(told)}{' of them' if times else ' there'}" if told else ""
    if not row["inputs_count"]:
        return has
    waits = f"{row['inputs_count']} of them wait" if times else "it waits"
    return f"{has}; {waits} for input half of the time or more, by the log"


def distance(row: Row) -> str:
    """Of a period: ``every 250 steps``; by the clock ``every 60 min, about every 1,175 steps,``."""
    if row["clock_period_ns"] is None:
        return f"every {row['period_count']:,} steps"
    by_clock = span(row["clock_period_ns"] / 1e9)
    return f"every {by_clock}, about every {row['period_count']:,} steps,"


def times(row: Row, summary: Row) -> str:
    """Of a period: ``18 times``, and at which steps where that is not nearly the whole log."""
    told = plural(row["times_count"], "time")
    covered = row["last_step"] - row["first_step"] + row["period_count"]
    if covered >= MIN_WHOLE_RATIO * (summary["last_step"] - summary["first_step"] + 1):
        return told
    return f"{told}, at steps {row['first_step']:,} to {row['last_step']:,}"


_ENDED_FOR = {
    "time limit": "its time limit", "deadline": "its deadline", "cancelled": "its cancellation",
    "preempted": "a preemption", "evicted": "an eviction", "node failure": "a node failure",
    "out of memory": "a want of memory",
}  # fmt: skip


def ended_for(row: Row) -> str | None:
    """Of a restart: what the start before it ended with, by the scheduler's word: ``a node
    failure``."""
    why = row["ended_for"]
    return None if why is None else _ENDED_FOR.get(why, safe(why))


def growth(row: Row) -> str:
    """The sentence of a drift: ``the step grows by 0.21 % a day``; of less than a day of log what
    it grew by, which says nothing of a day."""
    percent = 100 * row["per_day_ratio"]
    if row["start_ns"] is not None and (lasted_ns := row["end_ns"] - row["start_ns"]) < DAY_NS:
        grown = percent * lasted_ns / DAY_NS
        return f"the step grows by {grown:.3g} % in these {span(lasted_ns / 1e9)}"
    return f"the step grows by {percent:.3g} % a day"


def longer(row: Row) -> str:
    """Of a slow stretch: ``took 20 % longer than usual (4.80 s against 4.00 s)``, or ``took 3.1
    times as long as usual``."""
    both = f"{seconds(row['dur_ns'] / 1e9)} against {seconds(row['usual_ns'] / 1e9)}"
    return f"took {more(row)} usual ({both})"


def more(row: Row) -> str:
    """``20 % longer than``, or ``3.1 times as long as``."""
    ratio = row["dur_ns"] / row["usual_ns"]
    return (
        f"{ratio:.3g} times as long as"
        if ratio >= TIMES_RATIO
        else f"{share(ratio - 1)} longer than"
    )


def same_time_ratio(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Of the time from the first of both to the last, how much is in both; below 0 where they lie
    apart, 0 where there is none."""
    (start, end), (other_start, other_end) = one, other
    both = max(end, other_end) - min(start, other_start)
    return (min(end, other_end) - max(start, other_start)) / both if both > 0 else 0.0


def stretch_of(log: Log, first_ns: int, last_ns: int, min_same_ratio: float) -> Row | None:
    """The slow stretch that began and ended with something else: that shares the most with it of
    the time of both, and so much. Two files' times without a zone are taken as of one, and beside
    those of the epoch as UTC: of two zones, nothing would begin and end together."""

    def same(row: Row) -> float:
        return same_time_ratio((row["start_ns"], row["end_ns"]), (first_ns, last_ns))

    rows = [
        row
        for kind in ("slow", "risen")
        for row in log.of(kind)
        if None not in (row["start_ns"], row["end_ns"])
    ]
    best = max(rows, key=same, default=None)
    return best if best is not None and same(best) >= min_same_ratio else None


def price_of(facts: Facts, log: Log, lost_ns: float) -> Impact:
    """What the job lost, as its part where no trace has steps: steps of traces are others than the
    log's."""
    if lost_ns <= 0 or not log.spent_ns or facts.ranks:
        return Impact()
    lost_s = lost_ns / 1e9
    return Impact(
        s_per_step=lost_s, step_ratio=log.share(lost_ns), per="job", method="recorded time",
        low_s_per_step=lost_s, high_s_per_step=lost_s,
    )  # fmt: skip


def price_of_stretch(facts: Facts, row: Row) -> Impact:
    """The same of a slow stretch, whose row says what it lost; nothing without a log's sums."""
    summary = next(iter(facts.of(SUMMARY_QUERY)), None)
    if summary is None:
        return Impact()
    return price_of(facts, Log(summary, ()), float(row["lost_ns"] or 0))


HISTORY = {
    EPISODES_QUERY: "what it cost by the training log, where no trace tells",
    SUMMARY_QUERY: "how long the job took, for that",
}
"""What ``in_history`` asks, as optional queries of a rule."""


class HistoryThresholds(Thresholds):
    """When a slow stretch of the training log is what counters tell of."""

    min_same_time_ratio: float = threshold(
        0.8, "of the time of both that they share: they begin and end together"
    )


def stretch_in(
    facts: Facts, times: Iterable[tuple[int | None, int | None]], limits: HistoryThresholds
) -> Row | None:
    """Without traces: the slow stretch that began and ended with all that lies between these
    times."""
    log = log_of(facts)
    known = [(first, last) for first, last in times if first is not None and last is not None]
    if log is None or facts.ranks or not known:
        return None
    first_ns, last_ns = min(first for first, _ in known), max(last for _, last in known)
    return stretch_of(log, first_ns, last_ns, limits.min_same_time_ratio)


def in_history(
    facts: Facts,
    finding: Finding,
    times: Iterable[tuple[int | None, int | None]],
    limits: HistoryThresholds,
    witness: str,
) -> Finding:
    """Without traces: a finding of counters with the slow stretch of the training log that began
    and ended with what they tell of. That is then what it cost the job.

    ``times``: from when to when they tell of it, ns; ``witness``: whose counters they are.
    """
    log, row = log_of(facts), stretch_in(facts, times, limits)
    if log is None or row is None:
        return finding
    told = Evidence.ratio(
        "step over the usual one while it lasted, by the log",
        row["dur_ns"] / row["usual_ns"],
        None,
        EPISODES_QUERY,
    )
    return with_loss(
        facts,
        log,
        finding,
        float(row["lost_ns"] or 0),
        f"steps {row['first_step']:,} to {row['last_step']:,} of the training log {longer(row)}",
        f"{witness}, and the training log: slow for just that time",
        told,
    )


def with_loss(
    facts: Facts, log: Log, finding: Finding, lost_ns: float, says: str, basis: str, told: Evidence
) -> Finding:
    """A finding with what the log lost just then, which is what it cost the job."""
    impact = price_of(facts, log, lost_ns)
    measured = severity_of(impact.step_ratio)
    return replace(
        finding,
        summary=f"{finding.summary} Just then {says}.",
        severity=max(finding.severity, measured, key=lambda s: s.weight),
        confidence=confidence_from(["counters", "log"], basis),
        impact=impact,
        evidence=(*finding.evidence, told),
    )


def finding(
    facts: Facts,
    log: Log,
    summary: str,
    rows: Sequence[Row],
    evidence: Iterable[Evidence],
    *,
    lost_ns: float,
    basis: str,
    confirm: tuple[str, ...],
    remedy: tuple[str, ...],
    owner: Owner | None = None,
    cap: Severity = Severity.CRITICAL,
) -> Finding:
    """A finding of the whole job. It has no price a step of the traces, which are others than the
    log's; how much it matters follows from its share of the job. Without traces that is its price.
    """
    logged = facts.finding(
        Scope(),
        summary,
        evidence,
        by=["log"],
        basis=basis,
        impact=price_of(facts, log, lost_ns),
        least=severity_of(log.share(lost_ns)),
        cap=cap,
        owner=owner,
        confirm=confirm,
        remedy=remedy,
    )
    starts = [r["start_ns"] for r in rows if r["start_ns"] is not None]
    ends = [r["end_ns"] for r in rows if r["end_ns"] is not None]
    if not log.summary["is_epoch"] or not starts or not ends:
        return replace(logged, when=When())
    return replace(logged, when=When(start_utc=utc(min(starts)), end_utc=utc(max(ends))))
