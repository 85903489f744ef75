"""What was not checked, by what was lacking: for a terminal in few lines, and as rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracekit.findings import NotChecked
from tracekit.report.model import Document, Notes, Report
from tracekit.report.page import Page
from tracekit.rules import NAMES, RULES, rule, topic_of
from tracekit.rules.base import NO_GPU
from tracekit.rules.unbuilt import unbuilt_rules
from tracekit.wording import plural, some

SHOWN_TOPICS = 4
SHOWN_SOURCES = 2
SHOWN_RULES = 3
NO_TRACE = "traces of the job: none was given"
CAPTURE_TRACES = "tracekit capture --what profiler"


def draw_unchecked(page: Page, report: Report, limit: int, *, everything: bool) -> None:
    """What nobody looked at, in so many lines: what one command would collect, then what is
    particular to this job, then what no trace of it holds. With everything, one line a need."""
    document = report.document
    entries = document.not_checked
    first = page.count
    if not entries:
        return
    if everything:
        _draw_in_full(page, entries)
        return
    if document.verdict.kind == "inherent" or limit == 1:
        said = [_counted(entries, report.notes, topics) for topics in (SHOWN_TOPICS, 2, 1, 0)]
        for text in (*said, plural(len({e.rule for e in entries}), "rule")):
            page.cut(first)
            _say(page, f"{text}: --all", is_first=True)
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
        _say(page, text, is_first=before == first)
        is_last = not rules - shown - of
        if page.count - first > limit - (not is_last):
            page.cut(before)
        else:
            shown |= of
    if rules - shown:
        left = plural(len(rules - shown), "more rule" if shown else "rule")
        _say(page, f"{left}: --all", is_first=page.count == first)


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


def _say(page: Page, text: str, *, is_first: bool) -> None:
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


def _draw_in_full(page: Page, entries: Sequence[NotChecked]) -> None:
    groups: dict[tuple[str, str | None], list[str]] = {}
    for entry in entries:
        groups.setdefault((entry.needs, entry.capture), []).append(entry.rule)
    for i, ((needs, capture), rules) in enumerate(groups.items()):
        text = f"{', '.join(rules)}: needs {needs}" + (f"  ->  {capture}" if capture else "")
        _say(page, text, is_first=i == 0)


def _is_usual(entry: NotChecked) -> bool:
    """Whether it lacks just what rules always need, which no reader must be told twice."""
    return entry.needs == NO_GPU[0] or entry.needs in {r.needs for r in RULES}


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
    rules = [e.rule for e in usual if e.needs == NO_GPU[0] or _RECORDED.search(e.needs)]
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
