"""A finding in words, for every form of the report: its cost, how sure it is, where it lies."""

from __future__ import annotations

from tracekit.findings import Evidence, Finding, Impact, Severity
from tracekit.report.model import Document
from tracekit.rules import rule
from tracekit.rules.recurrence import how_many
from tracekit.wording import between, seconds, share, some_ranges, span


def cost_words(document: Document, cause: Finding) -> str:
    """What a finding costs, how that was got, and with whom it shares the cost."""
    ranks = cause.impact.joint_ranks
    text = _cost_alone(document, cause)
    if not ranks:
        return text
    return f"{text} One cost of ranks {some_ranges(ranks)} together: it counts once."


def _cost_alone(document: Document, cause: Finding) -> str:
    impact = cause.impact
    if rule(cause.rule).is_hang and cause.severity is Severity.CRITICAL:
        return "the whole job, until a timeout or somebody ends it."
    step_s = sum(p.s_per_step for p in document.step_budget)
    if impact.s_per_step is None or impact.step_ratio is None:
        most_s = impact.at_most_s_per_step
        if most_s is None or step_s <= 0:
            return "unknown" if step_s > 0 else "not known of a step: no trace has any."
        what = rule(cause.rule).bound or "communication"
        return (
            f"at most {seconds(most_s)} of every {seconds(step_s)} step "
            f"({share(most_s / step_s)}): all {what} that nothing hides; this finding's share of "
            f"that is unknown."
        )
    if step_s <= 0 and impact.step_ratio > 0:
        step_s = impact.s_per_step / impact.step_ratio  # timers give no steps of their own
    if impact.at_most_s_per_step is not None:
        most_s = impact.at_most_s_per_step
        return (
            f"{between(impact.s_per_step, most_s)} of every {seconds(step_s)} step (at most "
            f"{share(most_s / step_s)}){_how(impact)}: without it, others would be waited for."
        )
    if impact.per == "job":
        most = "at most " if impact.low_s_per_step == 0 else ""
        return (
            f"{most}{span(impact.s_per_step)} of the "
            f"{span(impact.s_per_step / impact.step_ratio)} that the job took "
            f"({share(impact.step_ratio)}), by its log."
        )
    of = "the {} window" if impact.per == "window" else "every {} step"
    text = (
        f"{seconds(impact.s_per_step)} of {of.format(seconds(step_s))} ({share(impact.step_ratio)})"
    )
    if impact.s_per_affected_step is not None:
        text += f", {seconds(impact.s_per_affected_step)} in each that has it"
        of_them = [step for first, last in cause.scope.steps for step in range(first, last + 1)]
        if 2 * len(of_them) <= document.run.steps_count:
            text += f" ({how_many(of_them, document.run.steps_count)})"
    if impact.gpu_hours_per_day is not None:
        text += f": {_hours(impact.gpu_hours_per_day)} a day while it lasts"
    if impact.energy_joules is not None:
        text += f", {impact.energy_joules / 3.6e6:,.0f} kWh"
    if impact.cost.amount is not None:
        text += f", {impact.cost.amount:,.0f} {impact.cost.currency or 'in the prices of job.toml'}"
    low_s, high_s = impact.low_s_per_step, impact.high_s_per_step
    if low_s is None or high_s is None:
        return text + "."
    return f"{text}. {_how(impact).removeprefix(', ').capitalize()}, {between(low_s, high_s)}."


_METHODS = {
    "replay": "by replay",
    "twin ranks": "by comparison with other ranks",
    "twin steps": "by comparison with other steps",
    "counter share": "by counters",
    "recorded time": "by the time recorded",
}


def _how(impact: Impact) -> str:
    """By which method, after a comma; empty where that is not known."""
    if impact.method is None:
        return ""
    missed = share(impact.replay_error_ratio or 0.0)
    if missed != share(0.0):
        return f", by replay (which misses the step by {missed})"
    return f", {_METHODS[impact.method]}"


def price_words(finding: Finding) -> str:
    """What it costs, or the most that it can."""
    most_s = finding.impact.at_most_s_per_step
    cost_s = finding.impact.s_per_step
    if cost_s is None:
        return "unknown"
    if finding.impact.per == "job":
        return f"{'<' if finding.impact.low_s_per_step == 0 else ''}{span(cost_s)}"
    return seconds(cost_s) if most_s is None else f"<{seconds(most_s)}"


def price_per(finding: Finding) -> str:
    """The same, and of what: a step, a window or the job."""
    of = "" if finding.impact.s_per_step is None else f"/{finding.impact.per}"
    return price_words(finding) + of


def _hours(value: float) -> str:
    return f"{value:,.0f} GPU-hours" if value >= 10 else f"{value:.1f} GPU-hours"


def sure_words(cause: Finding) -> str:
    against = "; ".join(e.name for e in cause.counter_evidence) or "nothing found"
    text = f"{cause.confidence.level}: {cause.confidence.basis}. Against: {against}."
    if cause.rules_out:
        text += f" Ruled out: {', '.join(cause.rules_out)}."
    return text


def bench_words(cause: Finding) -> str:
    """How often such findings were right on the accuracy bench; empty where it saw none."""
    parts = [
        f"{c.right_count} of {c.findings_count} such findings on {c.jobs} jobs"
        for c in cause.confidence.bench
    ]
    return f"right in {', '.join(parts)}" if parts else ""


def scope_words(finding: Finding) -> str:
    if finding.id.endswith("/all"):
        return "all ranks"
    if finding.scope.ranks:
        noun = "rank" if len(finding.scope.ranks) == 1 else "ranks"
        return f"{noun} {some_ranges(finding.scope.ranks, 2)}"
    return finding.id.partition("/")[2]


def evidence_words(evidence: Evidence) -> str:
    value, limit = amount_words(evidence.value, evidence.unit), limit_words(evidence)
    limit = f" ({limit})" if limit else ""
    query = f"  [query {evidence.query}]" if evidence.query else ""
    return f"{evidence.name}: {value}{limit}{query}"


def limit_words(evidence: Evidence) -> str:
    """The threshold of a value and on which side of it this lies; empty without one."""
    if evidence.threshold is None or evidence.value >= evidence.threshold == 0:
        return ""  # whatever there is lies above nothing
    side = "from" if evidence.value >= evidence.threshold else "below"
    return f"{side} {amount_words(evidence.threshold, evidence.unit)}"


SYMBOLS = {"celsius": "C", "watts": "W"}
"""Units that sentences name by their symbols."""


def amount_words(value: float, unit: str) -> str:
    if unit == "s":
        return seconds(value)
    if unit == "ratio":
        return share(value) if abs(value) >= 0.001 or not value else f"{100 * value:.2g} %"
    if unit in ("bytes", "bytes/s"):
        large = next((u for u in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
                      if abs(value) >= u[0]), (1.0, "B"))  # fmt: skip
        return f"{value / large[0]:.3g} {large[1]}{unit.removeprefix('bytes')}"
    if unit == "count":
        return f"{value:,.10g}"
    # Four digits of what was measured, and no exponent of what is large.
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    unit = SYMBOLS.get(unit, unit)
    return f"{number} {unit.removesuffix('s') if value == 1 else unit}"
