"""Which findings explain which: by what rules say that they make and see."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tracekit.findings import Finding, Severity, confidence_from, ordered, severity_of
from tracekit.report.judgement import LIMITS, ReportThresholds
from tracekit.rules import rule
from tracekit.rules.base import Facts
from tracekit.rules.pipeline import schedule_bubble


def link_symptoms(
    findings: Sequence[Finding], facts: Facts, limits: ReportThresholds = LIMITS
) -> list[Finding]:
    """Symptoms point to the findings that explain them, and those back.

    A finding is explained if findings that make what its rule sees, near enough to it, account for
    enough of it; of exposed communication without what the pipeline's schedule makes a stage wait,
    which no fault does.
    """
    bubble = schedule_bubble(facts)
    causes_of: dict[str, list[str]] = {}
    for symptom in findings:
        if not rule(symptom.rule).symptom_of:
            continue
        causes = [f for f in findings if _can_cause(f, symptom, facts)]
        cost = sum(f.impact.s_per_step or 0.0 for f in causes)
        seen = symptom.impact.s_per_step or 0.0
        if bubble is not None and rule(symptom.rule).budget == "communication":
            seen -= bubble.allowed_ns / 1e9
        if causes and (
            _is_stated(causes, symptom)
            or any(_is_bounded_by(symptom, cause) for cause in causes)
            or cost >= limits.min_explained_ratio * seen
        ):
            causes_of[symptom.id] = [f.id for f in ordered(causes)]
    linked = [
        replace(
            f,
            explains=tuple(s for s, causes in causes_of.items() if f.id in causes),
            explained_by=tuple(causes_of.get(f.id, ())),
        )
        for f in findings
    ]
    by_id = {f.id: f for f in linked}
    return [_priced(f, [by_id[s] for s in f.explains]) for f in linked]


def _is_stated(causes: Sequence[Finding], symptom: Finding) -> bool:
    """Whether the causes are stated without a price, which is then the symptom's."""
    lends = rule(symptom.rule).lends
    if lends is None or not lends.is_to_one:
        return lends is not None
    (first, *others) = causes
    return not others and first.impact.s_per_step is None and not first.counter_evidence


def _is_bounded_by(symptom: Finding, cause: Finding) -> bool:
    """Whether a grave cause names the very ranks of a symptom whose cost is no more than a bound,
    and lies within it: before and behind a stage of a pipeline neighbours wait for one delay, which
    together is more than the step loses."""
    low_s, cost_s = symptom.impact.low_s_per_step, cause.impact.s_per_step
    return (
        "lateness" in {*rule(cause.rule).explains} & {*rule(symptom.rule).symptom_of}
        and bool(symptom.scope.ranks)
        and set(symptom.scope.ranks) == set(cause.scope.ranks)
        and cause.severity.weight >= max(symptom.severity.weight, Severity.MAJOR.weight)
        and None not in (low_s, cost_s)
        and (low_s or 0.0) <= (cost_s or 0.0)
    )


def _priced(cause: Finding, symptoms: Sequence[Finding]) -> Finding:
    """What is stated without a price, with what the traces measured where it says so.

    The groups of a host are slow at the same time, so the costliest counts, not the sum.
    """
    slow = [
        (s, lends)
        for s in symptoms
        if s.impact.s_per_step is not None
        and (lends := rule(s.rule).lends) is not None
        and (not lends.is_to_one or s.explained_by == (cause.id,))
    ]
    if cause.impact.s_per_step is not None or not slow:
        return cause
    worst, lends = max(slow, key=lambda pair: pair[0].impact.s_per_step or 0.0)
    measured = severity_of(worst.impact.step_ratio)
    return replace(
        cause,
        impact=worst.impact,
        severity=max(cause.severity, measured, key=lambda s: s.weight),
        confidence=confidence_from(
            [lends.instrument, "peers"],
            f"{cause.confidence.basis}; the traces show {lends.shown}",
        ),
        evidence=cause.evidence + worst.evidence[:1],
    )


def _can_cause(cause: Finding, symptom: Finding, facts: Facts) -> bool:
    made, seen = rule(cause.rule), rule(symptom.rule)
    effects = {*made.explains, *made.absorbs} & {*seen.symptom_of}
    if not effects:
        return False
    ranks, theirs = set(symptom.scope.ranks), set(cause.scope.ranks)
    match seen.same:
        case "job":
            return True
        case "some ranks":
            return theirs < set(facts.steps.ranks)
        case "ranks":
            return ranks <= theirs
        case "named ranks":
            suspected = set(symptom.candidates.ranks)
            is_as_grave = cause.severity.weight >= symptom.severity.weight
            if not theirs:  # a process or a GPU of which a log says its host alone
                # Who is named for a guess may be that process, unless it is known to run elsewhere.
                hosts = {*symptom.scope.hosts, *symptom.candidates.hosts}
                may_be_it = symptom.confidence.level == "possible" and hosts <= {*cause.scope.hosts}
                nobody_is_named = not ranks and not suspected
                is_placed = bool(cause.scope.hosts or cause.scope.devices)
                return is_placed and is_as_grave and (nobody_is_named or may_be_it)
            is_there = ranks <= theirs and (not suspected or bool(theirs & suspected))
            return is_as_grave and is_there
        case "ranks and steps":
            if "lateness of its group" in effects:
                theirs = theirs or set(cause.candidates.ranks)
                if theirs & set(symptom.candidates.ranks):
                    return _is_same_time(cause, symptom)
            return bool(ranks) and ranks <= theirs and _is_same_time(cause, symptom)
        case "devices":
            return bool(set(symptom.scope.devices) & set(cause.scope.devices))
        case "hosts":
            return f"slow transfers {_where(symptom)}" in effects and _is_there(
                cause, symptom, facts
            )


def _where(symptom: Finding) -> str:
    """Whether its transfers stay within a host: what is wrong between machines slows none that
    do."""
    hosts = symptom.scope.hosts or symptom.candidates.hosts
    is_inside = len(set(hosts)) == 1 and len(symptom.scope.ranks or symptom.candidates.ranks) > 1
    return "within hosts" if is_inside else "between hosts"


def _is_there(cause: Finding, symptom: Finding, facts: Facts) -> bool:
    """Whether what a log states of some hosts can be why transfers are slow there, and only there.

    What all hosts have in common makes no group slower than its peers.
    """
    if any(e.query == "nccl_signals" for e in symptom.evidence):
        return False  # NCCL's own errors are a cause, not what a setting makes slow
    theirs = set(cause.scope.hosts)
    hosts = set(symptom.scope.hosts or symptom.candidates.hosts)
    everywhere = set(facts.job.hosts.values())
    return bool(hosts) and hosts <= theirs and not (theirs >= everywhere and len(everywhere) > 1)


def _is_same_time(cause: Finding, symptom: Finding) -> bool:
    """Whether one strikes in steps of the other, or in the step before: what holds a rank up at the
    end of a step, such as a save, makes it late in the next."""
    return any(a <= d and c <= b + 1 for a, b in cause.scope.steps for c, d in symptom.scope.steps)
