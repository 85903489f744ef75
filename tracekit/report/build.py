"""From facts to a report: run the rules, tie symptoms to causes, add up the step, judge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime

from msgspec.structs import replace

from tracekit.findings import (
    Finding,
    Impact,
    NotChecked,
    Severity,
    Verdict,
    benched,
    ordered,
    severity_of,
)
from tracekit.report.advice import command, filled, next_step
from tracekit.report.bounds import bounded
from tracekit.report.budget import step_budget
from tracekit.report.config import DiagnoseConfig
from tracekit.report.data_lines import data_lines, identity
from tracekit.report.domains import rolled_up
from tracekit.report.fold import fold
from tracekit.report.links import link_symptoms
from tracekit.report.metrics import metrics, run_info, shares
from tracekit.report.model import SCHEMA_VERSION, Coverage, Document, InputFile, Notes, Report
from tracekit.report.price import priced
from tracekit.report.shared_time import counted_once
from tracekit.report.verdict import judge
from tracekit.report.work import work
from tracekit.rules import Facts, Rule, configured, rule
from tracekit.rules.pipeline import schedule_bubble
from tracekit.rules.unbuilt import not_built
from tracekit.version import __version__
from tracekit.wording import seconds

ROUNDING_RATIO = 1e-9
"""What a sum of the step's parts may miss the step by."""
INFERRED = "its steps are inferred, not marked"
"""Added to the grounds of a finding that stands on inferred steps."""


def build_report(
    facts: Facts,
    inputs: Sequence[InputFile] = (),
    config: DiagnoseConfig | None = None,
    today: date | None = None,
) -> Report:
    """The whole report from facts that were already gathered. Opens nothing.

    ``today`` decides which silences still hold.
    """
    config = config or DiagnoseConfig()
    rules = configured(config.thresholds, config.select, config.ignore)
    fired, not_checked, rules_run = _run(rules, facts)
    linked = link_symptoms(rolled_up(fold(fired), facts, config.report), facts, config.report)
    linked = _on_inferred_steps(linked, facts)
    linked = bounded(linked, facts)
    linked, impossible = _possible(linked, facts.step_ns / 1e9)
    not_checked += impossible
    linked = [priced(f, facts) for f in linked]
    # What is silenced still takes its time: it stays in the budget, under its id.
    bubble = schedule_bubble(facts)
    budget = step_budget(facts.steps, linked, bubble.allowed_ns if bubble else 0.0)
    told, silenced = _silence(linked, config, today or datetime.now(UTC).date())
    is_whole = all(i.status not in ("partial", "unreadable") for i in inputs)
    failed = [i.path for i in inputs if any(j.name == "ingestor_failed" for j in i.issues)]
    judgement = judge(
        facts, told, budget, rules_run, bool(silenced), is_whole, failed, config.report
    )
    told = [_leading(f) if f.id == judgement.verdict.finding else f for f in told]
    told = counted_once(told, config.report)
    findings = [
        replace(f, confidence=benched(f.rule, f.confidence))
        for f in in_order(told, judgement.verdict.finding)
    ]
    if not config.select:
        not_checked += not_built()
    findings = [filled(f, facts) for f in findings]
    not_checked = [replace(n, capture=command(n.capture, facts)) for n in not_checked]
    document = Document(
        schema_version=SCHEMA_VERSION,
        tracekit_version=__version__,
        run=run_info(facts),
        coverage=Coverage(
            ranks_traced=len(facts.ranks),
            ranks_expected=facts.job.world_size,
            steps_common=len(facts.steps.common_keys),
        ),
        inputs=tuple(inputs),
        verdict=_weighed(judgement.verdict, findings),
        step_budget=budget,
        metrics=metrics(facts, bubble),
        findings=tuple(findings),
        not_checked=tuple(not_checked),
    )
    cause = next((f for f in findings if f.id == judgement.verdict.finding), None)
    notes = Notes(
        job_name=facts.job.name,
        data_lines=tuple(
            data_lines(facts, inputs, silenced, config.report, is_named=cause is not None)
        ),
        identity=identity(facts, cause) if cause else None,
        shares=shares(facts),
        work=work(facts),
        rules_run=tuple(rules_run),
        target=facts.job.target,
        shows_ids=bool(config.select or config.ignore),
        next_step=command(next_step(inputs, judgement.next_step), facts),
    )
    return Report(document, notes)


def _leading(finding: Finding) -> Finding:
    """The finding that the verdict states: if it is of the program, which no layout asks for, its
    severity is that of its cost, without the cap of those that blame nobody; major at most where
    it is only possible."""
    if rule(finding.rule).blames != "program":
        return finding
    cap = Severity.MAJOR if finding.confidence.level == "possible" else Severity.CRITICAL
    severity = severity_of(finding.impact.step_ratio, least=finding.severity, cap=cap)
    return replace(finding, severity=severity)


def _weighed(verdict: Verdict, findings: Iterable[Finding]) -> Verdict:
    """The verdict with the severity of the finding that it states."""
    stated = next((f for f in findings if f.id == verdict.finding), None)
    return verdict if stated is None else replace(verdict, severity=stated.severity)


def in_order(findings: Iterable[Finding], verdict_finding: str | None) -> list[Finding]:
    """Hangs that nothing explains first, then the verdict's finding, severity, impact (unknown
    last), id."""
    return sorted(
        ordered(findings, verdict_finding),
        key=lambda f: not rule(f.rule).is_hang or bool(f.explained_by),
    )


def _run(rules: Iterable[Rule], facts: Facts) -> tuple[list[Finding], list[NotChecked], list[str]]:
    findings: list[Finding] = []
    not_checked: list[NotChecked] = []
    rules_run: list[str] = []
    for each in rules:
        outcome = each.run(facts)
        findings += outcome.findings
        not_checked += outcome.not_checked
        if outcome.is_applicable and not outcome.not_checked:
            rules_run.append(each.name)
    return findings, not_checked, rules_run


def _on_inferred_steps(findings: Sequence[Finding], facts: Facts) -> list[Finding]:
    """What costs are stated a step says so where nothing marked the steps."""
    if not facts.steps.inferred_ranks:
        return list(findings)
    return [
        f
        if f.impact.s_per_step is None
        else replace(f, confidence=replace(f.confidence, basis=f"{f.confidence.basis}; {INFERRED}"))
        for f in findings
    ]


def _possible(findings: Sequence[Finding], step_s: float) -> tuple[list[Finding], list[NotChecked]]:
    """The findings, without a price that no step can have: that is an error of ours, and said."""
    possible: list[Finding] = []
    errors: list[NotChecked] = []
    for finding in findings:
        cost_s = finding.impact.s_per_step
        if cost_s is not None and cost_s > step_s * (1 + ROUNDING_RATIO) > 0:
            needs = (
                f"a cost of {finding.id} that fits in a step: {seconds(cost_s)} of "
                f"{seconds(step_s)} is an internal error, please report it"
            )
            errors.append(NotChecked(rule=finding.rule, needs=needs))
            possible.append(replace(finding, impact=Impact(), severity=Severity.NOTE))
        else:
            possible.append(finding)
    return possible, errors


def _silence(
    findings: Sequence[Finding], config: DiagnoseConfig, today: date
) -> tuple[list[Finding], list[str]]:
    """The findings that remain, and a line for each that is silenced.

    A symptom that silenced findings explain goes with them.
    """
    by_id = {f.id: s for f in findings for s in config.silences if s.covers(f, today)}
    told = [
        replace(f, explained_by=tuple(i for i in f.explained_by if i not in by_id))
        for f in findings
        if f.id not in by_id and not (f.explained_by and set(f.explained_by) <= by_id.keys())
    ]
    return told, [f"{name} silenced: {silence.reason}" for name, silence in by_id.items()]
