"""A job in words, for every form of the report: which it is, and what step and work consist of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracekit.findings import BudgetPart, Finding
from tracekit.report.budget import beyond_parts
from tracekit.report.model import Document, Notes, Work
from tracekit.wording import cut, plural, seconds, share, some

SHOWN_BEYOND = 3
MAX_WORK_NAME = 48
PART_NAMES = {
    "floor": "computing",
    "other_waiting": "communication not hidden",
    "bubble": "bubble",
    "host": "idle",
    "unexplained": "unexplained",
}
"""Parts of the step that no finding has, as readers meet them."""


def title_words(document: Document, notes: Notes) -> str:
    """The parts of a title in a line of text."""
    return "  ".join(title_parts(document, notes))


def title_parts(document: Document, notes: Notes) -> list[str]:
    """Which job; then which steps, when, and how many ranks and files."""
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
    return words


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


def labels_of(findings: Iterable[Finding]) -> dict[str, str]:
    return {f.id: f"F{i}" for i, f in enumerate(findings, 1)}


def sum_words(document: Document) -> str:
    """``3.10 s = 1.98 computing + 0.84 F1 + 0.28 unexplained``, in one unit, adding up."""
    budget = document.step_budget
    step_s = sum(p.s_per_step for p in budget)
    factor, unit = (1.0, "s") if step_s >= 1 else (1e3, "ms") if step_s >= 1e-3 else (1e6, "us")
    digits = 2 if step_s * factor < 10 else 1 if step_s * factor < 100 else 0
    labels = labels_of(document.findings)
    shown = rounded([p.s_per_step * factor for p in budget], digits)
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
    labels = labels_of(document.findings)
    told = [
        f"{seconds(beyond_s)} of {labels[finding.id]}'s {seconds(finding.impact.s_per_step or 0.0)}"
        for finding, beyond_s in beyond_parts(document.findings, document.step_budget)
    ]
    return f"In other parts: {some(told, SHOWN_BEYOND)}." if told else ""


def rounded(values: Sequence[float], digits: int) -> list[int]:
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
    return PART_NAMES.get(part.part, part.part)


def work_words(work: Work, count: int) -> str:
    """The shares of the first names; with none, how many there are and of what time."""
    if not count:
        whose = "the operators' time on the host" if work.is_on_host else "the device's time"
        return f"{plural(len(work.parts), work.kind)} by their share of {whose}"
    told = [f"{cut(p.name, MAX_WORK_NAME)} {share(p.share_ratio)}" for p in work.parts[:count]]
    left = len(work.parts) - len(told)
    return "   ".join([*told, *([f"{plural(left, f'more {work.kind}')}: --all"] if left else [])])
