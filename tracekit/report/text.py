"""The report for a terminal, read at three in the morning: verdict, cost, how sure, what to do.

Everything that came from a foreign file passes ``wording.safe``; colour is added after that, and
nothing depends on it. At most ``MAX_LINES`` lines unless everything is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tracekit.findings import Finding
from tracekit.report.finding_words import (
    bench_words,
    cost_words,
    evidence_words,
    price_per,
    scope_words,
    sure_words,
)
from tracekit.report.job_words import beyond_words, labels_of, sum_words, title_words, work_words
from tracekit.report.model import Document, Notes, Report, Work
from tracekit.report.page import MIN_WIDTH, Page
from tracekit.report.unchecked import draw_unchecked
from tracekit.wording import cut, plural, seconds, share

MAX_LINES = 25
SHOWN_FINDINGS = 4
MAX_UNCHECKED_LINES = 4
SHOWN_WORK = 3
MAX_WORK = 25
"""Operators or kernels, in a line and with --all: what follows takes next to nothing."""
MIN_SCOPE_WIDTH = 12
MIN_COST_WIDTH = 13
MIN_NAME_WIDTH = 9
_COLORS = {"critical": "31;1", "major": "31", "minor": "33", "note": "2"}
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


class Shown(Struct, frozen=True):
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
    draw_unchecked(page, report, shown.unchecked_lines, everything=everything)
    if document.findings and (not is_healthy or everything):
        page.commands("MORE", more_commands(report))
    return end


def _head(page: Page, document: Document, notes: Notes) -> None:
    page.title(title_words(document, notes))
    page.say("", "   ".join(notes.data_lines))


def _label_of(document: Document, finding: str | None) -> str:
    label = labels_of(document.findings).get(finding or "")
    return f"  [{label}]" if label else ""


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


def _do(page: Page, cause: Finding, remedies: int) -> None:
    lines = [("confirm", text) for text in cause.confirm[:1]]
    lines += [("act", text) for text in cause.remedy[:remedies]]
    lines += [("capture", text) for text in cause.next_capture[:1]]
    for i, (verb, text) in enumerate(lines):
        page.say("DO" if i == 0 else "", text, lead=f"{verb:<9}")


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


def _spread(document: Document) -> str:
    times = document.metrics.step_time
    if times is None:
        return ""
    return f"   p50 {seconds(times.p50_s)}  max {seconds(times.max_s)} (n {times.steps_count})"


def _in_order(ids: Sequence[str], labels: Mapping[str, str]) -> str:
    """The labels of findings as the list has them: F2 before F10."""
    return ", ".join(sorted((labels.get(i, i) for i in ids), key=lambda s: (len(s), s)))


def _findings(page: Page, document: Document, *, everything: bool) -> None:
    findings = document.findings
    shown = findings if everything else findings[:SHOWN_FINDINGS]
    rows = [_cells(finding, labels_of(findings)) for finding in shown]
    for finding, cells in zip(shown, _fitted(rows, page.room), strict=True):
        page.row(cells, _COLORS[finding.severity.value])
        if everything:
            _details(page, finding)
    if len(shown) < len(findings):
        page.row([f"{len(findings) - len(shown)} more: --all"])


def _cells(finding: Finding, labels: Mapping[str, str]) -> list[str]:
    """Label and severity, rule, scope, cost, and what it explains or is explained by."""
    links = ""
    if finding.explained_by:
        links = "explained by " + _in_order(finding.explained_by, labels)
    elif finding.explains:
        links = "explains " + _in_order(finding.explains, labels)
    return [
        f"{labels[finding.id]} {finding.severity.value:<8}",
        finding.rule,
        scope_words(finding),
        price_per(finding),
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


def _details(page: Page, finding: Finding) -> None:
    page.say("", finding.summary, lead="   ")
    for evidence in finding.evidence:
        page.say("", evidence_words(evidence), lead="   ")
    if finding.confidence.bench:
        page.say("", f"accuracy bench: {bench_words(finding)}", lead="   ")


def more_commands(report: Report) -> list[str]:
    """What shows the first finding whole, and what its rule means."""
    first = report.findings[0]
    label = first.id if report.notes.shows_ids else "F1"
    return [report.target.command("show", label), f"tracekit explain {first.rule}"]
