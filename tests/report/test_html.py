"""The report as a page: whole, escaped, and asking for nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from tracekit.dashboards import charts, drawn
from tracekit.findings import BudgetPart
from tracekit.report import InputFile, InputIssue, Report, build_report
from tracekit.report.html import to_html
from tracekit.target import Target

MakeJob = Callable[..., Any]
HOSTILE = '</title><script>alert(1)</script><img src=x onerror=alert(2)>"\u202e\x1b[2J'
VOID = {"meta", "input", "link", "br", "img"}


class Page(HTMLParser):
    """Elements of a page, and what of them is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.text))


def stalled(make_job: MakeJob, **known: Any) -> tuple[Report, Any]:
    job = make_job(comm_ms=10, steps_count=4).stall("input_stall", [1], range(1, 5), 50)
    facts = job.facts(**known)
    return build_report(facts), facts


def paged(report: Report, facts: Any) -> Page:
    rows = {q: facts.rows.get(q, []) for c in charts() for q in c.queries}
    return Page(to_html(report, [(c, drawn(c, rows, report.findings)) for c in charts()]))


def test_a_page_says_what_the_report_says(make_job: MakeJob) -> None:
    report, facts = stalled(make_job)
    page = paged(report, facts)
    assert not page.open
    for text in (
        report.verdict.sentence,
        "50.0 ms of every 150 ms step (33 %)",
        "raise num_workers and prefetch_factor",
        "longest exposed input wait of a stalled step, mean",
        "r1.json at 1",
        "150 ms = ",
    ):
        assert text in page.words, text
    for finding in report.findings:
        assert finding.id in page.words
    for entry in report.document.not_checked:
        assert entry.needs in page.words
    assert {a["id"] for a in page.all("figure")} == {"step_times", "rank_time"}


def test_style_and_script_run_by_their_hash_alone(make_job: MakeJob) -> None:
    report, facts = stalled(make_job)
    rows = {q: facts.rows.get(q, []) for c in charts() for q in c.queries}
    text = to_html(report, [(c, drawn(c, rows)) for c in charts()])
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    policy = policy.replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy and "http" not in policy
    for kind in ("style", "script"):
        ((body),) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert len(re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[0]) < 1500


def test_a_page_asks_for_nothing(make_job: MakeJob) -> None:
    page = paged(*stalled(make_job))
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "form", "base"}
        assert "style" not in attributes, (tag, attributes)
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in {"href", "src", "action", "xlink:href"}:
                assert value.startswith("#"), (tag, name, value)


def test_every_link_leads_to_something_and_no_id_stands_twice(make_job: MakeJob) -> None:
    page = paged(*stalled(make_job))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        if attributes.get("href"):
            assert attributes["href"][1:] in ids
        for name in ("aria-labelledby", "data-of"):
            if name in attributes:
                assert attributes[name] in ids


def test_headings_are_in_order_and_figures_have_words(make_job: MakeJob) -> None:
    page = paged(*stalled(make_job))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    sheets = [a for a in page.all("div") if a.get("role") == "img"]
    assert len(sheets) == 2
    assert all(len(a["aria-label"]) > 30 for a in sheets)
    assert len(page.all("main")) == len(page.all("header")) == len(page.all("footer")) == 1
    assert page.all("html")[0]["lang"] == "en"


def test_hostile_names_stay_text(make_job: MakeJob) -> None:
    report, facts = stalled(make_job)
    document = report.document
    issue = InputIssue(name=HOSTILE, severity="error", count=1, place=HOSTILE)
    file = InputFile(path=HOSTILE, kind=HOSTILE, status="ok", rows=1, issues=(issue,))
    findings = tuple(
        replace(
            f, id=f"{f.rule}/{HOSTILE}", summary=f"`{HOSTILE} is late", remedy=(HOSTILE,),
            evidence=tuple(replace(e, name=HOSTILE, query=HOSTILE) for e in f.evidence),
        )
        for f in document.findings
    )  # fmt: skip
    hostile = Report(
        replace(
            document, inputs=(file,), findings=findings,
            verdict=replace(document.verdict, sentence=f"{HOSTILE} `{HOSTILE}`", finding=None),
        ),
        replace(
            report.notes, job_name=HOSTILE, data_lines=(HOSTILE,), identity=HOSTILE,
            next_step=HOSTILE, target=Target((HOSTILE,)),
        ),
    )  # fmt: skip
    page, plain = paged(hostile, facts), paged(report, facts)
    assert not page.open
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert "<script>alert(1)</script>" in page.words
    assert "\\u202e\\x1b[2J" in page.words
    whole = "".join(page.text) + str(page.elements)
    assert "\u202e" not in whole and "\x1b" not in whole
    kinds = {tag for tag, _ in page.elements}
    assert kinds <= {tag for tag, _ in plain.elements} | {"code"}


def test_files_of_which_something_is_lost_come_first(make_job: MakeJob) -> None:
    report, facts = stalled(make_job)

    def file(path: str, *severities: Any, status: Any = "ok") -> InputFile:
        issues = tuple(InputIssue(name="n", severity=s, count=1, place=None) for s in severities)
        return InputFile(path=path, kind="nccl", status=status, rows=1, issues=issues)

    inputs = (
        file("a-whole"), file("b-counted", "info"), file("c-repaired", "info", "warning"),
        file("d-partial", status="partial"),
    )  # fmt: skip
    page = paged(replace(report, document=replace(report.document, inputs=inputs)), facts)
    listed = page.words.partition("Inputs and their quality")[2]
    names = ("c-repaired", "d-partial", "b-counted", "a-whole")
    assert sorted(names, key=listed.index) == list(names)


def test_a_hundred_findings_are_one_table_that_can_be_searched(make_job: MakeJob) -> None:
    report, facts = stalled(make_job)
    first = report.findings[0]
    many = tuple(replace(first, id=f"{first.rule}/{n}") for n in range(100))
    page = paged(replace(report, document=replace(report.document, findings=many)), facts)
    assert sum(1 for a in page.all("details") if "open" in a) == 1
    assert len(page.all("details")) == 101  # and the figures without data
    assert any(a.get("data-of") == "finding-list" for a in page.all("input"))
    assert page.all("a", "section")  # and the page is whole
    assert not page.open


def test_a_page_without_steps_or_findings_is_whole(make_job: MakeJob) -> None:
    report, facts = stalled(make_job)
    bare = replace(
        report.document, findings=(), step_budget=(), not_checked=(), inputs=(),
        metrics=replace(report.document.metrics, step_time=None),
        verdict=replace(report.verdict, finding=None),
    )  # fmt: skip
    page = Page(to_html(Report(bare, replace(report.notes, next_step="capture ranks 0-7"))))
    assert not page.open
    assert "capture ranks 0-7" in page.words
    assert not page.all("figure")
    del facts


@pytest.mark.parametrize(("left_ns", "is_told"), [(1, False), (10_000, False), (200_000, True)])
def test_what_rounding_left_of_a_step_is_no_part_of_the_bar(
    make_job: MakeJob, left_ns: int, is_told: bool
) -> None:
    report, _ = stalled(make_job)
    budget = tuple(p for p in report.document.step_budget if p.part != "unexplained")
    left = BudgetPart(part="unexplained", s_per_step=left_ns / 1e9)
    page = to_html(replace(report, document=replace(report.document, step_budget=(*budget, left))))
    bar = page.partition('<div class="budget">')[2].partition("</div>")[0]
    assert ("unexplained" in bar) is is_told
    assert "dataloader-stall" in bar
