"""The report for a terminal, read at three in the morning: verdict, cost, how sure, what to do.

Everything that came from a foreign file passes ``wording.safe``; colour is added after that, and
nothing depends on it. At most ``MAX_LINES`` lines unless everything is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tracekit.findings import BudgetPart, Evidence, Finding, Impact, NotChecked
from tracekit.report.model import Document, Notes, Report
from tracekit.report.page import MIN_WIDTH, Page
from tracekit.rules import NAMES, rule, topic_of
from tracekit.rules.base import NO_GPU
from tracekit.rules.unbuilt import unbuilt_rules
from tracekit.wording import listed, plural, seconds, share, some, some_ranges

MAX_LINES = 25
SHOWN_FINDINGS = 4
SHOWN_TOPICS = 4
MIN_SCOPE_WIDTH = 12
_COLORS = {"critical": "31;1", "major": "31", "minor": "33", "note": "2"}
_PART_NAMES = {
    "floor": "computing",
    "other_waiting": "communication not hidden",
    "bubble": "bubble",
    "host": "idle",
    "unexplained": "unexplained",
}
_VERDICT_COLORS = {"inherent": "32;1", "hang": "31;1", "culprit": "31;1", "configuration": "31;1"}


def to_text(
    report: Report, *, everything: bool = False, color: bool = False, width: int = 110
) -> str:
    """The report as lines, with a final newline.

    ``everything`` lifts the limit of 25 lines. A job with nothing to fix gets its verdict and
    what was not checked, and no more.
    """
    page = Page(width=max(width, MIN_WIDTH), color=color)
    document, notes = report.document, report.notes
    _head(page, document, notes)
    page.blank()
    page.say(
        "VERDICT",
        document.verdict.sentence + _label_of(document, document.verdict.finding),
        _VERDICT_COLORS.get(document.verdict.kind, "33;1"),
    )
    is_healthy = document.verdict.kind == "inherent"
    if not is_healthy or everything:
        _cause(page, document, notes)
        page.blank()
        _step(page, document, notes)
        _findings(page, document, everything=everything)
    _not_checked(page, report, everything=everything)
    end = page.count
    if document.findings and (not is_healthy or everything):
        _more(page, report)
    return page.text(None if everything else MAX_LINES, end)


def _head(page: Page, document: Document, notes: Notes) -> None:
    page.title(title_words(document, notes))
    page.say("", "   ".join(notes.data_lines))


def title_words(document: Document, notes: Notes) -> str:
    """Which job, which steps, when, and how many ranks and files."""
    run = document.run
    words = [notes.job_name or run.id]
    if run.attempt != 1:
        words.append(f"attempt {run.attempt}")
    if run.step_range:
        words.append(f"steps {','.join(_closed(r) for r in run.step_range)}")
    if run.window.start_utc and run.window.end_utc:
        words.append(_window(run.window.start_utc, run.window.end_utc))
    elif run.window_s is not None:
        words.append(f"{seconds(run.window_s)} window")
    words.append(_who(document))
    return "  ".join(words)


def _closed(span: tuple[int, int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]}-{span[1]}"


def _window(start: str, end: str) -> str:
    """``2026-07-21 02:41:07-02:41:48 UTC``; whole dates where the day changes."""
    (day, since), (last_day, until) = start[:19].split("T"), end[:19].split("T")
    return f"{day} {since}-{until if day == last_day else f'{last_day} {until}'} UTC"


def _who(document: Document) -> str:
    coverage = document.coverage
    if coverage.ranks_expected is None:
        ranks = plural(coverage.ranks_traced, "rank")
    else:
        ranks = f"{coverage.ranks_traced} of {plural(coverage.ranks_expected, 'rank')}"
    kinds: dict[str, int] = {}
    for file in document.inputs:
        if file.status == "unrecognised":
            continue
        kinds[file.kind] = kinds.get(file.kind, 0) + 1
    parts = [ranks] if coverage.ranks_traced or coverage.ranks_expected else []
    if document.run.hosts:
        parts.append(plural(len(document.run.hosts), "host"))
    files = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    return "; ".join(t for t in (", ".join(parts), files) if t) or ranks


def _label_of(document: Document, finding: str | None) -> str:
    label = _labels(document.findings).get(finding or "")
    return f"  [{label}]" if label else ""


def _labels(findings: Iterable[Finding]) -> dict[str, str]:
    return {f.id: f"F{i}" for i, f in enumerate(findings, 1)}


# ---------------------------------------------------------------- the cause


def _cause(page: Page, document: Document, notes: Notes) -> None:
    """Cost, certainty and remedy of the verdict's finding, or the next step without one."""
    cause = next((f for f in document.findings if f.id == document.verdict.finding), None)
    if cause is None:
        if notes.next_step:
            page.say("DO", notes.next_step)
        return
    if notes.identity:
        page.say("", notes.identity)
    page.say("COST", cost_words(document, cause))
    page.say("SURE", sure_words(cause))
    _do(page, cause)


def cost_words(document: Document, cause: Finding) -> str:
    impact = cause.impact
    if rule(cause.rule).is_hang:
        return "the whole job, until a timeout or somebody ends it."
    step_s = sum(p.s_per_step for p in document.step_budget)
    if impact.s_per_step is None or impact.step_ratio is None:
        most_s = impact.at_most_s_per_step
        if most_s is None or step_s <= 0:
            return "unknown"
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
    of = "the {} window" if impact.per == "window" else "every {} step"
    text = (
        f"{seconds(impact.s_per_step)} of {of.format(seconds(step_s))} ({share(impact.step_ratio)})"
    )
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


def between(low_s: float, high_s: float) -> str:
    """``95.2 to 102 ms``; one number where both read alike."""
    low, high = seconds(low_s), seconds(high_s)
    if low == high:
        return low
    if low.split()[-1] == high.split()[-1] or low_s == 0:
        low = low.split()[0]
    return f"{low} to {high}"


def price_words(finding: Finding) -> str:
    """What it costs, or the most that it can."""
    most_s = finding.impact.at_most_s_per_step
    cost_s = finding.impact.s_per_step
    if cost_s is None:
        return "unknown"
    return seconds(cost_s) if most_s is None else f"<{seconds(most_s)}"


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


def _do(page: Page, cause: Finding) -> None:
    lines = [("confirm", text) for text in cause.confirm[:1]]
    lines += [("act", text) for text in cause.remedy[:2]]
    lines += [("capture", text) for text in cause.next_capture[:1]]
    for i, (verb, text) in enumerate(lines):
        page.say("DO" if i == 0 else "", text, lead=f"{verb:<9}")


# ---------------------------------------------------------------- the step


def _step(page: Page, document: Document, notes: Notes) -> None:
    if document.step_budget:
        parts, spread = sum_words(document), _spread(document)
        if page.fits(parts + spread):
            page.say("STEP", parts + spread)
        else:
            page.say("STEP", parts)
            page.say("", spread.strip())
    shares = notes.shares
    if shares is None:
        return
    words = [
        ("compute", shares.compute_ratio),
        ("communication not hidden", shares.exposed_comm_ratio),
        ("copies", shares.memory_ratio),
        ("idle", shares.idle_ratio),
    ]
    told = "   ".join(f"{name} {share(ratio)}" for name, ratio in words if ratio >= 0.0005)
    side = ", seen from the host" if shares.is_host_side else ""
    page.say("A RANK'S", f"{told}   (rank {shares.rank}, median{side})")


def sum_words(document: Document) -> str:
    """``3.10 s = 1.98 computing + 0.84 F1 + 0.28 unexplained``, in one unit, adding up."""
    budget = document.step_budget
    step_s = sum(p.s_per_step for p in budget)
    factor, unit = (1.0, "s") if step_s >= 1 else (1e3, "ms") if step_s >= 1e-3 else (1e6, "us")
    digits = 2 if step_s * factor < 10 else 1 if step_s * factor < 100 else 0
    labels = _labels(document.findings)
    shown = _rounded([p.s_per_step * factor for p in budget], digits)
    total = sum(shown) / 10**digits
    words = [
        f"{value / 10**digits:.{digits}f} {part_words(part, labels)}"
        for part, value in zip(budget, shown, strict=True)
        if value > 0
    ]
    return f"{total:.{digits}f} {unit} = {' + '.join(words)}"


def _rounded(values: Sequence[float], digits: int) -> list[int]:
    """Values in units of the last digit, rounded so that they add up to the rounded sum.

    The largest remainders are rounded up: a sum that is off by one digit costs trust.
    """
    scaled = [v * 10**digits for v in values]
    floors = [int(v) for v in scaled]
    missing = round(sum(scaled)) - sum(floors)
    by_rest = sorted(range(len(scaled)), key=lambda i: (floors[i] - scaled[i], i))
    for i in by_rest[:missing]:
        floors[i] += 1
    return floors


def part_words(part: BudgetPart, labels: Mapping[str, str]) -> str:
    """A part of the step in words: a finding's by its label."""
    if part.finding is not None:
        return labels.get(part.finding, part.finding)
    return _PART_NAMES.get(part.part, part.part)


def _spread(document: Document) -> str:
    times = document.metrics.step_time
    if times is None:
        return ""
    return f"   p50 {seconds(times.p50_s)}  max {seconds(times.max_s)} (n {times.steps_count})"


# ---------------------------------------------------------------- the rest


def _in_order(ids: Sequence[str], labels: Mapping[str, str]) -> str:
    """The labels of findings as the list has them: F2 before F10."""
    return ", ".join(sorted((labels.get(i, i) for i in ids), key=lambda s: (len(s), s)))


def _findings(page: Page, document: Document, *, everything: bool) -> None:
    findings = document.findings
    shown = findings if everything else findings[:SHOWN_FINDINGS]
    labels = _labels(findings)
    rule_width = max((len(f.rule) for f in shown), default=0)
    scope_width = max([MIN_SCOPE_WIDTH, *(len(scope_words(f)) for f in shown)])
    for finding in shown:
        cost = price_words(finding)
        if finding.impact.s_per_step is not None:
            cost += f"/{finding.impact.per}"
        links = ""
        if finding.explained_by:
            links = "explained by " + _in_order(finding.explained_by, labels)
        elif finding.explains:
            links = "explains " + _in_order(finding.explains, labels)
        cells = [
            f"{labels[finding.id]} {finding.severity.value:<8}",
            f"{finding.rule:<{rule_width}}",
            f"{scope_words(finding):<{scope_width}}",
            f"{cost:>13}",
            links,
        ]
        page.row(cells, _COLORS[finding.severity.value])
        if everything:
            _details(page, finding)
    if len(shown) < len(findings):
        page.row([f"{len(findings) - len(shown)} more: --all"])


def scope_words(finding: Finding) -> str:
    if finding.id.endswith("/all"):
        return "all ranks"
    if finding.scope.ranks:
        noun = "rank" if len(finding.scope.ranks) == 1 else "ranks"
        return f"{noun} {some_ranges(finding.scope.ranks, 2)}"
    return finding.id.partition("/")[2]


def _details(page: Page, finding: Finding) -> None:
    page.say("", finding.summary, lead="   ")
    for evidence in finding.evidence:
        page.say("", evidence_words(evidence), lead="   ")
    if finding.confidence.bench:
        page.say("", f"accuracy bench: {bench_words(finding)}", lead="   ")


def evidence_words(evidence: Evidence) -> str:
    value, limit = amount_words(evidence.value, evidence.unit), ""
    if evidence.threshold is not None:
        limit = f" (from {amount_words(evidence.threshold, evidence.unit)})"
    query = f"  [query {evidence.query}]" if evidence.query else ""
    return f"{evidence.name}: {value}{limit}{query}"


def amount_words(value: float, unit: str) -> str:
    if unit == "s":
        return seconds(value)
    if unit == "ratio":
        return share(value)
    if unit in ("bytes", "bytes/s"):
        large = next((u for u in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
                      if abs(value) >= u[0]), (1.0, "B"))  # fmt: skip
        return f"{value / large[0]:.3g} {large[1]}{unit.removeprefix('bytes')}"
    if unit == "count":
        return f"{value:,.10g}"
    return f"{value:g} {unit.removesuffix('s') if value == 1 else unit}"


def _not_checked(page: Page, report: Report, *, everything: bool) -> None:
    """What nobody looked at: one line a kind of need; with everything, one line a need."""
    document = report.document
    entries = document.not_checked
    if not entries:
        return
    if everything:
        _not_checked_in_full(page, entries)
        return
    if document.verdict.kind == "inherent":
        page.say("NOT CHECKED", _counted(entries, report.notes) + ": --all")
        return
    lines = []
    if not document.coverage.ranks_traced:
        unread = [e for e in entries if e.rule in NAMES and rule(e.rule).needs_traces]
        entries = tuple(e for e in entries if e not in unread)
        if unread:
            lines = [f"{plural(len(unread), 'rule')} that read traces: no trace was given"]
    lines += [*_specific_needs(entries), *_absent_records(entries), *_absent_sources(entries)]
    for i, line in enumerate(lines):
        page.say("NOT CHECKED" if i == 0 else "", line, lead="" if i == 0 else "   ")
    unbuilt = [e for e in entries if e.rule in unbuilt_rules() and e.capture is None]
    if unbuilt:
        page.row([f"   and {plural(len(unbuilt), 'rule')} not built yet: --all"])


def _counted(entries: Sequence[NotChecked], notes: Notes) -> str:
    """How many rules lacked something, and of what; with those that looked they are all rules."""
    unbuilt = {e.rule for e in entries if e.rule in unbuilt_rules()}
    lacking = {e.rule for e in entries} - unbuilt
    topics = [*dict.fromkeys(topic_of(e.rule) for e in entries if e.rule in lacking)]
    text = f"{plural(len(lacking), 'rule')} for want of inputs ({some(topics, SHOWN_TOPICS)})"
    idle = len(NAMES) - len(lacking | set(notes.rules_run))
    if idle and not notes.shows_ids:
        text += f"; {idle} {'has' if idle == 1 else 'have'} no meaning for this job"
    if unbuilt:
        text += f"; {len(unbuilt)} {'is' if len(unbuilt) == 1 else 'are'} not built yet"
    return text


def _not_checked_in_full(page: Page, entries: Sequence[NotChecked]) -> None:
    groups: dict[tuple[str, str | None], list[str]] = {}
    for entry in entries:
        groups.setdefault((entry.needs, entry.capture), []).append(entry.rule)
    for i, ((needs, capture), rules) in enumerate(groups.items()):
        text = f"{', '.join(rules)}: needs {needs}" + (f"  ->  {capture}" if capture else "")
        page.say("NOT CHECKED" if i == 0 else "", text, lead="" if i == 0 else "   ")


def _is_usual(entry: NotChecked) -> bool:
    """Whether it lacks just what its rule always needs, which no reader must be told twice."""
    return entry.needs == NO_GPU or (entry.rule in NAMES and rule(entry.rule).needs == entry.needs)


_CAPTURE = "tracekit capture --what "


def _is_capturable(entry: NotChecked) -> bool:
    """Whether one command would collect what it lacks."""
    return (entry.capture or "").startswith(_CAPTURE)


def _specific_needs(entries: Sequence[NotChecked]) -> list[str]:
    rules_by_need: dict[str, list[str]] = {}
    for entry in entries:
        if entry.rule in NAMES and not _is_usual(entry):
            rules_by_need.setdefault(entry.needs, []).append(entry.rule)
    return [f"{', '.join(rules)}: needs {needs}" for needs, rules in rules_by_need.items()]


def _absent_records(entries: Sequence[NotChecked]) -> list[str]:
    """What the traces that there are do not hold, then what no trace holds, by what it takes."""
    usual = [e for e in entries if _is_usual(e) and not _is_capturable(e)]
    rules = [e.rule for e in usual if e.needs == NO_GPU or _RECORDED.search(e.needs)]
    lines = [f"{', '.join(rules)}: these traces do not record it"] if rules else []
    others: dict[str, list[str]] = {}
    for entry in usual:
        if entry.rule not in rules:
            is_described = (entry.capture or "").startswith("tracekit job ")
            what = f"more of a job description  ->  {entry.capture}" if is_described else ""
            others.setdefault(what or entry.needs, []).append(entry.rule)
    return lines + [f"{', '.join(names)}: needs {needs}" for needs, names in others.items()]


_RECORDED = re.compile(r"\btraces?\b|\brecorded\b|\bmatched across\b")
"""Needs that another profile of the job would meet."""


def _absent_sources(entries: Sequence[NotChecked]) -> list[str]:
    """Topics that another capture would open, with one command for all of them."""
    wanted = [
        e for e in entries if _is_capturable(e) and (e.rule in unbuilt_rules() or _is_usual(e))
    ]
    if not wanted:
        return []
    topics = dict.fromkeys(topic_of(e.rule) for e in wanted)
    whats = dict.fromkeys((e.capture or "").removeprefix(_CAPTURE) for e in wanted)
    # What stands in brackets says which files would do; the command collects them.
    needs = listed([*dict.fromkeys(e.needs.partition(" (")[0] for e in wanted)])
    return [f"{'; '.join(topics)}: needs {needs}  ->  {_CAPTURE}{','.join(whats)}"]


def _more(page: Page, report: Report) -> None:
    first = report.findings[0]
    label = first.id if report.notes.shows_ids else "F1"
    page.commands("MORE", [report.target.command("show", label), f"tracekit explain {first.rule}"])
