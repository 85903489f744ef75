"""The verdict: what kind of answer this is, and the one sentence that says it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tracekit.findings import BudgetPart, Finding, Severity, Verdict, VerdictKind, ordered
from tracekit.report.judgement import LIMITS, Judgement, ReportThresholds, cannot_tell, say
from tracekit.report.unexplained import idle, slow_steps, unequal_waiting
from tracekit.report.without_steps import larger_rest, largest_of_window, no_steps
from tracekit.rules import RULES, low_mfu, rule
from tracekit.rules.base import Facts
from tracekit.rules.outcome import HIDDEN_CAPTURE
from tracekit.rules.pipeline import schedule_bubble
from tracekit.wording import plural, seconds, share


def judge(
    facts: Facts,
    findings: Sequence[Finding],
    budget: Sequence[BudgetPart],
    rules_run: Sequence[str],
    has_silenced: bool = False,
    is_whole: bool = True,
    failed: Sequence[str] = (),
    limits: ReportThresholds = LIMITS,
) -> Judgement:
    """The verdict over all findings. The first that applies:

    hang; where nothing marks steps, the largest part of the window: what a finding names, unless
    more is unexplained; a major finding that names a cause (culprit if it sits on part of the job,
    else configuration); kernels hidden in CUDA graphs or no step (not_enough_data, unexplained
    where much of the window is no computing, or inherent where hardly any is); waiting that may be
    for ranks without a trace
    (not_enough_data, with the cause that logs state for slow communication, if any: it is there,
    only its share is not known); unequal waiting that no finding explains (unexplained); a program
    that launches too slowly or sends too little at a time (configuration: it blames nobody, but has
    a remedy); idle time or slow steps that no finding explains (unexplained); a major finding that
    blames nobody, as idle time of a pipeline beyond what its layout makes (unexplained); a minor
    finding that names a cause (it would mislead to lead with 1 % while 40 % is unexplained); a
    single step, or files left for want of time (not_enough_data); a port that loses or damages what
    is sent, at a price that nothing tells, beside communication that nothing hides
    (not_enough_data); inherent.
    What a silenced finding may explain is not called unexplained. ``is_whole`` says that every
    input was read to its end; ``failed`` names the inputs on which our own reader failed: what
    they hold is not known, so nothing is inherent. Nor is waiting where a part of the traces is
    missing and calls could not be matched without it.
    """
    hang = next((f for f in findings if _is_hang(f) and not f.explained_by), None)
    if hang is not None:
        return Judgement(Verdict(kind="hang", finding=hang.id, sentence=hang.summary))
    cause = next((f for f in ordered(findings) if _is_cause(f)), None)
    largest = largest_of_window(findings)
    if largest is not None and (cause is None or cause.impact.per == "window"):
        return larger_rest(facts, largest, limits) or Judgement(_named(facts, largest))
    if cause is not None and cause.severity.weight >= Severity.MAJOR.weight:
        return Judgement(_named(facts, cause))
    if facts.hidden_ranks:
        return _hidden(facts)
    if not facts.steps.rank_means:
        # A log alone has no step to weigh a finding against; what it shows is all there is.
        if cause is not None:
            return Judgement(_named(facts, cause))
        judgement = no_steps(facts, rules_run, findings, limits)
        if judgement.verdict.kind == "inherent":
            return _failed(failed) or _unread(facts) or judgement
        return judgement
    is_open = not has_silenced
    return (
        _missing(facts, limits, cause, findings)
        or (unequal_waiting(facts, limits, cause) if is_open else None)
        or _program(facts, findings)
        or (idle(facts, limits, budget) if is_open else None)
        or (slow_steps(facts, limits) if is_open else None)
        or _nobodys(findings)
        or (Judgement(_named(facts, cause)) if cause is not None else None)
        or _too_short(facts, limits)
        or _failed(failed)
        or _unread(facts)
        or _port(facts, limits, findings)
        or _inherent(facts, limits, rules_run, has_silenced, is_whole, findings)
    )


def _is_hang(finding: Finding) -> bool:
    """Whether the job stands still: a rule of hangs may also see what only may become one."""
    return rule(finding.rule).is_hang and finding.severity is Severity.CRITICAL


def _is_cause(finding: Finding) -> bool:
    is_worth_it = finding.severity.weight >= Severity.MINOR.weight
    return rule(finding.rule).names_culprit and not finding.explained_by and is_worth_it


def _named(facts: Facts, finding: Finding) -> Verdict:
    scope = finding.scope
    names_a_part = bool(scope.devices or scope.links or scope.switches or scope.racks)
    # What a broken file does not show may have been lost with it.
    whole = set(facts.ranks) - facts.job.broken_ranks
    all_ranks = whole if len(whole) > 1 else set(facts.ranks)
    # Of a log alone it is not known which ranks there are: who is named is a part.
    names_all_ranks = not scope.ranks or (bool(all_ranks) and set(scope.ranks) >= all_ranks)
    is_program = rule(finding.rule).blames == "program"
    is_whole_job = is_program or (names_all_ranks and not names_a_part)
    kind: VerdictKind = "configuration" if is_whole_job else "culprit"
    if finding.candidates.ranks and not scope.ranks:
        # It is known that somebody is to blame: of a group that is, or that was not captured.
        kind = "culprit" if scope.groups else "not_enough_data"
    return Verdict(kind=kind, finding=finding.id, sentence=finding.summary)


def _hidden(facts: Facts) -> Judgement:
    ranks = facts.hidden_ranks
    most = max(r["hidden_ratio"] for r in facts.of("hidden_kernels") if r["hidden_ratio"])
    return cannot_tell(
        f"Cannot tell what computes and what communicates: on {plural(len(ranks), 'rank')} up to "
        f"{share(most)} of the device time ran in CUDA graphs that were recorded as a whole.",
        f"capture again with {HIDDEN_CAPTURE}",
    )


def _typical_waiting(facts: Facts) -> float:
    """Mean exposed communication of the median rank, in shares of the step."""
    steps = facts.steps
    return median(p.exposed_comm for p in steps.rank_means.values()) / steps.step_ns


def _missing(
    facts: Facts, limits: ReportThresholds, cause: Finding | None, findings: Sequence[Finding]
) -> Judgement | None:
    missing = facts.missing_ranks
    waiting = _typical_waiting(facts)
    if not missing or waiting < limits.min_waiting_ratio:
        return None
    advice = facts.missing_advice
    stated = cause
    if cause is None or rule(cause.rule).states != "cause":
        stated = _unpriced(findings)
    if stated is None:
        is_open = (f for f in findings if rule(f.rule).states == "shared link" and f.next_capture)
        stated = next(is_open, None)
    if stated is not None:
        says = (
            f"{stated.summary} How much of the {share(waiting)} of the step that is communication "
            f"which nothing hides it explains cannot be told: {plural(len(missing), 'rank')} that "
            f"it may be waiting for {_why_absent(facts)}."
        )
        return Judgement(
            Verdict(kind="not_enough_data", finding=stated.id, sentence=says), advice
        )  # fmt: skip
    return cannot_tell(
        f"Cannot tell: {share(waiting)} of the step is communication that nothing hides, and "
        f"{plural(len(missing), 'rank')} that it may be waiting for {_why_absent(facts)}.",
        advice,
    )


def _why_absent(facts: Facts) -> str:
    """Why nothing is known of the missing ranks' devices."""
    lost = facts.job.lost_ranks
    if facts.job.left_out_ranks or not lost:
        return facts.missing_state
    is_all = len(lost) == len(facts.missing_ranks)  # which hold all that are lost
    return "lost kernels in the trace" if is_all else "left no trace or lost kernels in it"


def _program(facts: Facts, findings: Sequence[Finding]) -> Judgement | None:
    programs = (f for f in findings if rule(f.rule).blames == "program" and not f.explained_by)
    finding = next(programs, None)
    return None if finding is None else Judgement(_named(facts, finding))


def _nobodys(findings: Sequence[Finding]) -> Judgement | None:
    """A major finding whose rule names no culprit, where nothing explains it: not inherent."""
    for finding in findings:
        is_major = finding.severity.weight >= Severity.MAJOR.weight
        if is_major and not finding.explained_by and not rule(finding.rule).names_culprit:
            sentence = f"{finding.summary} No rule here found the reason."
            return Judgement(Verdict(kind="unexplained", finding=finding.id, sentence=sentence))
    return None


def _too_short(facts: Facts, limits: ReportThresholds) -> Judgement | None:
    count = len(facts.steps)
    if count >= limits.min_steps_count:
        return None
    return cannot_tell(
        f"Cannot tell from {plural(count, 'steady step')} "
        f"({seconds(facts.steps.step_ns / 1e9)}): nothing stands out in it.",
        "profile five or more steps after warm-up",
    )


def _failed(paths: Sequence[str]) -> Judgement | None:
    if not paths:
        return None
    more = f" and {plural(len(paths) - 1, 'more file')}" if len(paths) > 1 else ""
    return cannot_tell(
        f"Cannot tell: tracekit itself failed on {paths[0]}{more}; "
        "what else was read shows no fault.",
        "report the bug: the place is in the input's issues (--format json)",
    )


def _unread(facts: Facts) -> Judgement | None:
    """What was not read for want of time may hold the fault."""
    paths = facts.job.unread
    if not paths:
        return None
    return cannot_tell(
        f"Cannot tell yet: {plural(len(paths), 'file')} were left for want of time; "
        "what was read shows no fault.",
        "run the same command again: it goes on with the files that are left",
    )


def _port(facts: Facts, limits: ReportThresholds, findings: Sequence[Finding]) -> Judgement | None:
    """A port at fault, at an unknown price, beside communication that it may be the reason for."""
    waiting = _typical_waiting(facts)
    finding = _unpriced(findings)
    if finding is None or waiting < limits.min_waiting_ratio:
        return None
    says = (
        f"{finding.summary} How much of the {share(waiting)} of the step that is communication "
        "which nothing hides comes from it cannot be told."
    )
    return Judgement(
        Verdict(kind="not_enough_data", finding=finding.id, sentence=says),
        "mend the port; what it costs shows where counters and traces are on one clock "
        "([clocks] in job.toml) over 30 steps, slow and normal",
    )


def _unpriced(findings: Sequence[Finding]) -> Finding | None:
    """The first port at fault whose price is open, and against which nothing speaks."""
    return next(
        (
            f
            for f in findings
            if rule(f.rule).states == "harm"
            and f.impact.s_per_step is None
            and not f.explained_by
            and not f.counter_evidence
        ),
        None,
    )


def _inherent(
    facts: Facts,
    limits: ReportThresholds,
    rules_run: Sequence[str],
    has_silenced: bool,
    is_whole: bool,
    findings: Sequence[Finding] = (),
) -> Judgement:
    steps = facts.steps
    exposed = _typical_waiting(facts)
    about = ""
    bubble = schedule_bubble(facts)
    if bubble is not None:
        made = min(bubble.allowed_ns / steps.step_ns, 1.0)
        exposed -= made
        about = (
            f", {share(made)} of it the bubble that {bubble.stages_count} stages with "
            f"{bubble.microbatches_count} microbatches make"
        )
    has_waiting = exposed >= limits.min_waiting_ratio
    if has_waiting:
        more = "" if bubble is None else "other "
        about += f", {share(exposed)} of it {more}communication that nothing hides"
    tells_who = {r.name for r in RULES if "lateness" in r.symptom_of}
    if has_waiting and not is_whole and tells_who.isdisjoint(rules_run):
        return cannot_tell(
            f"Cannot tell: {seconds(steps.step_ns / 1e9)} a step{about}, and with parts of the "
            "traces missing it cannot be said who waits for whom.",
            "give the whole traces again; --all lists the files that break off",
        )
    missing = facts.missing_ranks
    traced = len(set(facts.ranks) - facts.job.lost_ranks)
    seen = "selected" if facts.job.left_out_ranks else "traced"
    where = f" on the {plural(traced, 'rank')} {seen}" if missing else ""
    beyond = " beyond what is silenced" if has_silenced else ""
    beyond += "" if is_whole else " in what could be read"
    network = ""
    low = any(f.rule == low_mfu.RULE.name and f.impact.s_per_step for f in findings)
    used = low_mfu.waterfall(facts) if low else None
    if used is not None:
        about += f", the model's arithmetic {share(used.mfu_ratio)} of the GPUs' peak"
    if has_waiting:
        network = " Whether the network should be faster was not checked."
    return say(
        "inherent",
        f"Nothing to fix{beyond}{where}: {seconds(steps.step_ns / 1e9)} a step{about}; "
        f"{len(rules_run)} of {len(RULES)} rules could look and found no fault.{network}",
    )
