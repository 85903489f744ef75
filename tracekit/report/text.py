"""The report for a terminal, read at three in the morning: verdict, cost, how sure, what to do.

Everything that came from a foreign file passes ``wording.safe``; colour is added after that, and
nothing depends on it. At most ``MAX_LINES`` lines unless everything is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tracekit.findings import BudgetPart, Evidence, Finding, Impact, NotChecked
from tracekit.report.budget import beyond_parts
from tracekit.report.model import Document, Notes, Report, Work
from tracekit.report.page import MIN_WIDTH, Page
from tracekit.rules import NAMES, RULES, rule, topic_of
from tracekit.rules.base import NO_GPU
from tracekit.rules.recurrence import how_many
from tracekit.rules.unbuilt import unbuilt_rules
from tracekit.wording import between, cut, plural, seconds, share, some, some_ranges

MAX_LINES = 25
SHOWN_FINDINGS = 4
SHOWN_TOPICS = 4
SHOWN_SOURCES = 2
SHOWN_RULES = 3
SHOWN_BEYOND = 3
MAX_UNCHECKED_LINES = 4
SHOWN_WORK = 3
MAX_WORK = 25
"""Operators or kernels, in a line and with --all: what follows takes next to nothing."""
MAX_WORK_NAME = 48
NO_TRACE = "traces of the job: none was given"
CAPTURE_TRACES = "tracekit capture --what profiler"
MIN_SCOPE_WIDTH = 12
MIN_COST_WIDTH = 13
MIN_NAME_WIDTH = 9
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
    what was not checked, and no more. Where a narrow terminal takes more lines, more and more is
    folded; only then lines are left out.
    """
    for shown in FOLDED:
        page = Page(width=max(width, MIN_WIDTH), color=color)
        end = _draw(page, report, shown, everything=everything)
        if everything or page.count <= MAX_LINES:
            break
    return page.text(None if everything else MAX_LINES, end)


@dataclass(frozen=True)
class Shown:
    """How much of what may be folded is shown."""

    unchecked_lines: int = MAX_UNCHECKED_LINES
    remedies: int = 2
    has_shares: bool = True


FOLDED = (
    Shown(),
    Shown(unchecked_lines=1),
    Shown(unchecked_lines=1, remedies=1),
    Shown(unchecked_lines=1, remedies=1, has_shares=False),
)
"""From what fits most terminals to what fits a narrow one: findings are worth more than these."""


def _draw(page: Page, report: Report, shown: Shown, *, everything: bool) -> int:
    """Draw the report; the line from which on nothing is left out."""
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
        _cause(page, document, notes, shown)
        page.blank()
        _step(page, document, notes if shown.has_shares else replace(notes, shares=None))
    if notes.work is not None and shown.has_shares:
        _work(page, report, notes.work, everything=everything)
    end = page.count
    if not is_healthy or everything:
        _findings(page, document, everything=everything)
    _not_checked(page, report, shown.unchecked_lines, everything=everything)
    if document.findings and (not is_healthy or everything):
        page.commands("MORE", more_commands(report))
    return end


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
        ranks = f"{coverage.ranks_traced:,} of {plural(coverage.ranks_expected, 'rank')}"
    kinds: dict[str, int] = {}
    for file in document.inputs:
        if file.status == "unrecognised":
            continue
        kinds[file.kind] = kinds.get(file.kind, 0) + 1
    parts = [ranks] if coverage.ranks_traced or coverage.ranks_expected else []
    if document.run.hosts:
        parts.append(plural(len(document.run.hosts), "host"))
    files = ", ".join(f"{n:,} {kind}" for kind, n in sorted(kinds.items()))
    return "; ".join(t for t in (", ".join(parts), files) if t) or ranks


def _label_of(document: Document, finding: str | None) -> str:
    label = _labels(document.findings).get(finding or "")
    return f"  [{label}]" if label else ""


def _labels(findings: Iterable[Finding]) -> dict[str, str]:
    return {f.id: f"F{i}" for i, f in enumerate(findings, 1)}


# ---------------------------------------------------------------- the cause


def _cause(page: Page, document: Document, notes: Notes, shown: Shown) -> None:
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
    _do(page, cause, shown.remedies)


def cost_words(document: Document, cause: Finding) -> str:
    """What a finding costs, how that was got, and with whom it shares the cost."""
    ranks = cause.impact.joint_ranks
    text = _cost_alone(document, cause)
    if not ranks:
        return text
    return f"{text} One cost of ranks {some_ranges(ranks)} together: it counts once."


def _cost_alone(document: Document, cause: Finding) -> str:
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


def _do(page: Page, cause: Finding, remedies: int) -> None:
    lines = [("confirm", text) for text in cause.confirm[:1]]
    lines += [("act", text) for text in cause.remedy[:remedies]]
    lines += [("capture", text) for text in cause.next_capture[:1]]
    for i, (verb, text) in enumerate(lines):
        page.say("DO" if i == 0 else "", text, lead=f"{verb:<9}")


# ---------------------------------------------------------------- the step


def _step(page: Page, document: Document, notes: Notes) -> None:
    if document.step_budget:
        parts, spread = sum_words(document), _spread(document)
        page.parts("STEP", parts + spread)
        page.say("", beyond_words(document))
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
    page.parts("A RANK'S", f"{told}   (rank {shares.rank}, median{side})")


def _work(page: Page, report: Report, work: Work, *, everything: bool) -> None:
    """What dominates the work: its first names in a line; with everything a row each."""
    counts = [0] if everything else range(SHOWN_WORK, 0, -1)
    lines = [work_words(work, count) for count in counts]
    page.parts("WORK", next((line for line in lines if page.fits(line)), lines[-1]))
    if not everything:
        return
    cells = [
        [
            share(part.share_ratio),
            seconds(part.total_s),
            "-" if part.calls_count is None else f"{part.calls_count:,}",
            "-" if part.calls_count is None else f"{seconds(part.total_s / part.calls_count)} each",
            part.name,
        ]
        for part in work.parts[:MAX_WORK]
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        numbers = [c.rjust(w) for c, w in zip(row[:-1], widths[:-1], strict=True)]
        page.row(["", *numbers, row[-1]])
    if len(work.parts) > MAX_WORK:
        left = plural(len(work.parts) - MAX_WORK, work.kind)
        page.row(["", f"{left} more: {report.target.command('query', work.query)}"])


def work_words(work: Work, count: int) -> str:
    """The shares of the first names; with none, how many there are and of what time."""
    if not count:
        whose = "the operators' time on the host" if work.is_on_host else "the device's time"
        return f"{plural(len(work.parts), work.kind)} by their share of {whose}"
    told = [f"{cut(p.name, MAX_WORK_NAME)} {share(p.share_ratio)}" for p in work.parts[:count]]
    left = len(work.parts) - len(told)
    return "   ".join([*told, *([f"{plural(left, f'more {work.kind}')}: --all"] if left else [])])


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


def beyond_words(document: Document) -> str:
    """``In other parts: 397 ms of F2's 450 ms.``; empty where each finding that the step is
    divided by has a part as long as its cost."""
    labels = _labels(document.findings)
    told = [
        f"{seconds(beyond_s)} of {labels[finding.id]}'s {seconds(finding.impact.s_per_step or 0.0)}"
        for finding, beyond_s in beyond_parts(document.findings, document.step_budget)
    ]
    return f"In other parts: {some(told, SHOWN_BEYOND)}." if told else ""


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
    rows = [_cells(finding, _labels(findings)) for finding in shown]
    for finding, cells in zip(shown, _fitted(rows, page.room), strict=True):
        page.row(cells, _COLORS[finding.severity.value])
        if everything:
            _details(page, finding)
    if len(shown) < len(findings):
        page.row([f"{len(findings) - len(shown)} more: --all"])


def _cells(finding: Finding, labels: Mapping[str, str]) -> list[str]:
    """Label and severity, rule, scope, cost, and what it explains or is explained by."""
    cost = price_words(finding)
    if finding.impact.s_per_step is not None:
        cost += f"/{finding.impact.per}"
    links = ""
    if finding.explained_by:
        links = "explained by " + _in_order(finding.explained_by, labels)
    elif finding.explains:
        links = "explains " + _in_order(finding.explains, labels)
    return [
        f"{labels[finding.id]} {finding.severity.value:<8}",
        finding.rule,
        scope_words(finding),
        cost,
        links,
    ]


def _fitted(rows: Sequence[Sequence[str]], room: int) -> list[list[str]]:
    """The cells of findings, padded. In a narrow terminal what is explained says it in short or
    not at all, then names are cut; the cost never is."""
    if not rows:
        return []
    least = [0, 0, MIN_SCOPE_WIDTH, MIN_COST_WIDTH, 0]
    widths = [max(n, *(len(r[i]) for r in rows)) for i, n in enumerate(least)]
    gaps = 2 * (len(widths) - 1)
    if sum(widths) + gaps > room:
        rows = [[*r[:4], r[4].replace("explained by", "of")] for r in rows]
        widths = [max(len(r[i]) for r in rows) for i in range(len(widths))]
    if sum(widths) + gaps > room:
        rows = [[*r[:4], "" if r[4].startswith("explains") else r[4]] for r in rows]
        widths[4] = max(len(r[4]) for r in rows)
    if sum(widths) + gaps > room:
        widths[1] = max(MIN_NAME_WIDTH, room - gaps - sum(widths) + widths[1])
    if sum(widths) + gaps > room:
        widths[2] = max(MIN_NAME_WIDTH, room - gaps - sum(widths) + widths[2])
    if sum(widths) + gaps > room:
        rows = [[*r[:4], ""] for r in rows]
    return [
        [
            f"{first:<{widths[0]}}",
            f"{cut(name, widths[1]):<{widths[1]}}",
            f"{cut(scope, widths[2]):<{widths[2]}}",
            f"{cost:>{widths[3]}}",
            links,
        ]
        for first, name, scope, cost, links in rows
    ]


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
        return share(value) if abs(value) >= 0.001 or not value else f"{100 * value:.2g} %"
    if unit in ("bytes", "bytes/s"):
        large = next((u for u in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
                      if abs(value) >= u[0]), (1.0, "B"))  # fmt: skip
        return f"{value / large[0]:.3g} {large[1]}{unit.removeprefix('bytes')}"
    if unit == "count":
        return f"{value:,.10g}"
    # Four digits of what was measured, and no exponent of what is large.
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{number} {unit.removesuffix('s') if value == 1 else unit}"


def _not_checked(page: Page, report: Report, limit: int, *, everything: bool) -> None:
    """What nobody looked at, in so many lines: what one command would collect, then what is
    particular to this job, then what no trace of it holds. With everything, one line a need."""
    document = report.document
    entries = document.not_checked
    first = page.count
    if not entries:
        return
    if everything:
        _not_checked_in_full(page, entries)
        return
    if document.verdict.kind == "inherent" or limit == 1:
        said = [_counted(entries, report.notes, topics) for topics in (SHOWN_TOPICS, 2, 1, 0)]
        for text in (*said, plural(len({e.rule for e in entries}), "rule")):
            page.cut(first)
            _unchecked(page, f"{text}: --all", is_first=True)
            if page.count - first <= limit:
                break
        return
    unread, entries = by_traces(document)
    told = set(unread)
    rules = {e.rule for e in entries} | told
    untold = plural(len(told), "rule") + " that read traces: no trace was given"
    lines = [(untold, told)] if unread else []
    lines += [*_absent_sources(entries), *_specific_needs(entries), *_absent_records(entries)]
    shown: set[str] = set()
    for text, of in lines:
        before = page.count
        _unchecked(page, text, is_first=before == first)
        is_last = not rules - shown - of
        if page.count - first > limit - (not is_last):
            page.cut(before)
        else:
            shown |= of
    if rules - shown:
        left = plural(len(rules - shown), "more rule" if shown else "rule")
        _unchecked(page, f"{left}: --all", is_first=page.count == first)


def by_traces(document: Document) -> tuple[list[str], tuple[NotChecked, ...]]:
    """Where there is no trace, the rules that read traces; and what else was not checked."""
    entries = document.not_checked
    if document.coverage.ranks_traced:
        return [], entries
    unread = [e for e in entries if e.rule in NAMES and rule(e.rule).needs_traces]
    return [*dict.fromkeys(e.rule for e in unread)], tuple(e for e in entries if e not in unread)


def unchecked_by_need(document: Document) -> list[tuple[list[str], str, str]]:
    """Rules that could not look, what they need and what would give it: one row for each need and
    command, and where there is no trace, one for all rules that read traces."""
    unread, entries = by_traces(document)
    groups: dict[tuple[str, str], list[str]] = {}
    if unread:
        groups[NO_TRACE, CAPTURE_TRACES] = unread
    for entry in entries:
        groups.setdefault((entry.needs, entry.capture or ""), []).append(entry.rule)
    return [(rules, needs, capture) for (needs, capture), rules in groups.items()]


def _unchecked(page: Page, text: str, *, is_first: bool) -> None:
    page.say("NOT CHECKED" if is_first else "", text, lead="   ")


def _counted(entries: Sequence[NotChecked], notes: Notes, shown: int) -> str:
    """How many rules lacked something, and of what; with those that looked they are all rules."""
    unbuilt = {e.rule for e in entries if e.rule in unbuilt_rules()}
    lacking = {e.rule for e in entries} - unbuilt
    topics = [*dict.fromkeys(topic_of(e.rule) for e in entries if e.rule in lacking)]
    text = f"{plural(len(lacking), 'rule')} for want of inputs"
    text += f" ({some(topics, shown)})" if shown else ""
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
        _unchecked(page, text, is_first=i == 0)


def _is_usual(entry: NotChecked) -> bool:
    """Whether it lacks just what rules always need, which no reader must be told twice."""
    return entry.needs == NO_GPU or entry.needs in {r.needs for r in RULES}


_CAPTURE = "tracekit capture --what "


def _is_capturable(entry: NotChecked) -> bool:
    """Whether one command would collect what it lacks."""
    return (entry.capture or "").startswith(_CAPTURE)


Line = tuple[str, set[str]]
"""A line of what was not checked, and the rules that it is about."""


def _specific_needs(entries: Sequence[NotChecked]) -> list[Line]:
    rules_by_need: dict[str, list[str]] = {}
    for entry in entries:
        if entry.rule in NAMES and not _is_usual(entry):
            rules_by_need.setdefault(entry.needs, []).append(entry.rule)
    # What stands in brackets is mostly about this job: no manual says it.
    in_order = sorted(rules_by_need.items(), key=lambda item: "(" not in item[0])
    return [_line(rules, f"needs {needs}") for needs, rules in in_order]


def _line(rules: Sequence[str], what: str) -> Line:
    return f"{some(rules, SHOWN_RULES)}: {what}", set(rules)


def _absent_records(entries: Sequence[NotChecked]) -> list[Line]:
    """What the traces that there are do not hold, then what no trace holds, by what it takes."""
    usual = [e for e in entries if _is_usual(e) and not _is_capturable(e)]
    rules = [e.rule for e in usual if e.needs == NO_GPU or _RECORDED.search(e.needs)]
    lines = [_line(rules, "these traces do not record it")] if rules else []
    others: dict[str, list[str]] = {}
    for entry in usual:
        if entry.rule not in rules:
            is_described = (entry.capture or "").startswith("tracekit job ")
            what = f"more of a job description  ->  {entry.capture}" if is_described else ""
            others.setdefault(what or entry.needs, []).append(entry.rule)
    return lines + [_line(names, f"needs {needs}") for needs, names in others.items()]


_RECORDED = re.compile(r"\btraces?\b|\brecorded\b|\bmatched across\b")
"""Needs that another profile of the job would meet."""


def _absent_sources(entries: Sequence[NotChecked]) -> list[Line]:
    """Topics that another capture would open, with one command for all of them."""
    wanted = [
        e for e in entries if _is_capturable(e) and (e.rule in unbuilt_rules() or _is_usual(e))
    ]
    if not wanted:
        return []
    topics = [*dict.fromkeys(topic_of(e.rule) for e in wanted)]
    more = [f"{len(topics) - SHOWN_SOURCES} more"] if len(topics) > SHOWN_SOURCES else []
    told = "; ".join([*topics[:SHOWN_SOURCES], *more])
    whats = dict.fromkeys((e.capture or "").removeprefix(_CAPTURE) for e in wanted)
    return [(f"{told}  ->  {_CAPTURE}{','.join(whats)}", {e.rule for e in wanted})]


def more_commands(report: Report) -> list[str]:
    """What shows the first finding whole, and what its rule means."""
    first = report.findings[0]
    label = first.id if report.notes.shows_ids else "F1"
    return [report.target.command("show", label), f"tracekit explain {first.rule}"]
