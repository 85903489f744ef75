"""The verdict: what kind of answer this is, and the one sentence that says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean, median

from tracekit.findings import (
    HANG_RULES,
    BudgetPart,
    Finding,
    Severity,
    Verdict,
    VerdictKind,
    ordered,
)
from tracekit.rules.base import Facts
from tracekit.wording import plural, ranges, ranks_phrase, seconds, share


@dataclass(frozen=True)
class VerdictThresholds:
    """When something is amiss although no rule found it."""

    min_waiting_ratio: float = field(
        default=0.10,
        metadata={"reason": "waiting for absent ranks, or unequal waiting; as exposed comm (D27)"},
    )
    min_idle_ratio: float = field(
        default=0.20, metadata={"reason": "GPU idle without a finding; less is usual in any job"}
    )
    min_host_idle_ratio: float = field(
        default=0.60,
        metadata={"reason": "host-side ranks: Python between operators is not told from idling"},
    )
    min_slow_steps_ratio: float = field(
        default=0.05,
        metadata={"reason": "time above the median step, of all; as a major finding's impact"},
    )
    min_steps_count: int = field(
        default=2, metadata={"reason": "one step cannot show that the next is like it"}
    )


LIMITS = VerdictThresholds()
REASONS = {f.name: f.metadata["reason"] for f in fields(VerdictThresholds)}


@dataclass(frozen=True)
class Judgement:
    """A verdict, and what to do next where no finding says so."""

    verdict: Verdict
    next_step: str | None = None


def judge(
    facts: Facts,
    findings: Sequence[Finding],
    budget: Sequence[BudgetPart],
    blames: Mapping[str, bool],
    rules_run: Sequence[str],
) -> Judgement:
    """The verdict over all findings. The first that applies:

    hang; the worst finding that names a cause (culprit if it sits on part of the job, else
    configuration); no step (not_enough_data); waiting for ranks without a trace
    (not_enough_data); unequal waiting, idle time or slow steps that no finding explains
    (unexplained); a single step (not_enough_data); inherent.
    """
    hang = next((f for f in findings if f.rule in HANG_RULES), None)
    if hang is not None:
        return Judgement(Verdict(kind="hang", finding=hang.id, sentence=hang.summary))
    causes = [f for f in findings if _is_cause(f, blames)]
    if causes:
        return Judgement(_named(facts, ordered(causes)[0]))
    if not facts.steps.rank_means:
        return _no_steps(facts)
    return (
        _missing(facts)
        or _unequal_waiting(facts)
        or _idle(facts, budget)
        or _slow_steps(facts)
        or _too_short(facts)
        or _inherent(facts, budget, rules_run)
    )


def _is_cause(finding: Finding, blames: Mapping[str, bool]) -> bool:
    is_worth_it = finding.severity.weight >= Severity.MINOR.weight
    return blames.get(finding.rule, True) and not finding.explained_by and is_worth_it


def _named(facts: Facts, finding: Finding) -> Verdict:
    scope = finding.scope
    is_whole_job = not (scope.devices or scope.links or scope.switches or scope.racks) and (
        not scope.ranks or set(scope.ranks) >= set(facts.ranks)
    )
    kind: VerdictKind = "configuration" if is_whole_job else "culprit"
    if finding.candidates.ranks and not scope.ranks:
        # It is known that somebody is to blame and that it was not captured.
        kind = "not_enough_data"
    return Verdict(kind=kind, finding=finding.id, sentence=finding.summary)


def _say(kind: VerdictKind, sentence: str, next_step: str | None = None) -> Judgement:
    return Judgement(Verdict(kind=kind, finding=None, sentence=sentence), next_step)


def _no_steps(facts: Facts) -> Judgement:
    capture = "profile five or more steps after warm-up, with a schedule that marks steps"
    rows = [r for r in facts.of("overlap") if r["span_ns"]]
    warm = len(facts.steps.warmup_keys)
    if warm or facts.steps.partial_count:
        seen = (
            plural(warm, "warm-up step") + " and " + plural(facts.steps.partial_count, "cut step")
        )
        return _say(
            "not_enough_data", f"Cannot tell: the traces hold {seen} and no steady one.", capture
        )
    if not rows:
        return _say("not_enough_data", "Cannot tell: no file holds a usable trace.", capture)
    span = sum(r["span_ns"] for r in rows)
    shares = ", ".join(
        f"{word} {share(sum(r[column] or 0 for r in rows) / span)}"
        for word, column in (
            ("computing", "compute_ns"),
            ("communication not hidden", "exposed_comm_ns"),
            ("idle", "idle_ns"),
        )
    )
    return _say(
        "not_enough_data",
        f"Cannot tell what a step costs: the traces mark no steps. Over the window of "
        f"{seconds(max(r['span_ns'] for r in rows) / 1e9)}: {shares}.",
        capture,
    )


def _waiting(facts: Facts) -> dict[int, float]:
    """Mean exposed communication of each rank, in shares of the step."""
    steps = facts.steps
    return {rank: p.exposed_comm / steps.step_ns for rank, p in steps.rank_means.items()}


def _missing(facts: Facts) -> Judgement | None:
    missing = facts.missing_ranks
    waiting = median(_waiting(facts).values())
    if not missing or waiting < LIMITS.min_waiting_ratio:
        return None
    return _say(
        "not_enough_data",
        f"Cannot tell: {share(waiting)} of the step is communication that nothing hides, and "
        f"{plural(len(missing), 'rank')} that it may be waiting for left no trace.",
        f"profile ranks {ranges(missing)} in the same steps",
    )


def _unequal_waiting(facts: Facts) -> Judgement | None:
    waiting = _waiting(facts)
    if len(waiting) < 2:
        return None
    most, least = max(waiting.values()), min(waiting.values())
    spread = most - least
    if spread < LIMITS.min_waiting_ratio:
        return None
    # Named only as a place to look: nothing here says why they wait less.
    late = sorted(r for r, w in waiting.items() if w <= least + 0.25 * spread)
    who = ranks_phrase(late, facts.ranks).lower()
    waits = "waits" if len(late) == 1 else "wait"
    return _say(
        "unexplained",
        f"The others wait up to {seconds(spread * facts.steps.step_ns / 1e9)} of each "
        f"{seconds(facts.steps.step_ns / 1e9)} step for communication in which {who} {waits} "
        f"least: look there, but no rule here found the reason.",
        f"compare {who} with its peers: kernels, input, host",
    )


def _idle(facts: Facts, budget: Sequence[BudgetPart]) -> Judgement | None:
    step_s = facts.steps.step_ns / 1e9
    idle_s = sum(p.s_per_step for p in budget if p.part in ("host", "unexplained"))
    limit = LIMITS.min_idle_ratio if facts.has_gpu else LIMITS.min_host_idle_ratio
    if idle_s < limit * step_s:
        return None
    who = "The GPU is" if facts.has_gpu else "The ranks are"
    return _say(
        "unexplained",
        f"{who} idle {share(idle_s / step_s)} of the {seconds(step_s)} step, and no rule here "
        f"found the reason.",
        "profile with Python stacks to see what the host does meanwhile",
    )


def _slow_steps(facts: Facts) -> Judgement | None:
    durs = facts.steps.job_durs_ns
    typical = median(durs)
    above = sum(max(0.0, d - typical) for d in durs) / sum(durs)
    # Half of all steps are above the median; noise alone gives both sides alike.
    below = sum(max(0.0, typical - d) for d in durs) / sum(durs)
    if len(durs) < 3 or above - below < LIMITS.min_slow_steps_ratio:
        return None
    return _say(
        "unexplained",
        f"Some steps take up to {seconds(max(durs) / 1e9)} where {seconds(typical / 1e9)} is "
        f"typical, and no rule here found the reason ({seconds((fmean(durs) - typical) / 1e9)} "
        f"a step on average).",
        "profile a longer window that spans several slow steps",
    )


def _too_short(facts: Facts) -> Judgement | None:
    count = len(facts.steps)
    if count >= LIMITS.min_steps_count:
        return None
    return _say(
        "not_enough_data",
        f"Cannot tell from {plural(count, 'steady step')} "
        f"({seconds(facts.steps.step_ns / 1e9)}): nothing stands out in it.",
        "profile five or more steps after warm-up",
    )


def _inherent(facts: Facts, budget: Sequence[BudgetPart], rules_run: Sequence[str]) -> Judgement:
    steps = facts.steps
    exposed = median(_waiting(facts).values())
    about = ""
    if exposed >= LIMITS.min_waiting_ratio:
        about = f", {share(exposed)} of it communication that nothing hides"
    missing = facts.missing_ranks
    where = f" on the {plural(len(facts.ranks), 'rank')} traced" if missing else ""
    checked = plural(len(rules_run), "rule")
    return _say(
        "inherent",
        f"Nothing to fix{where}: {seconds(steps.step_ns / 1e9)} a step{about}; "
        f"the {checked} that could look found no fault.",
    )
