"""What a notebook shows: short, escaped, and the same of a stranger's names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

import tracekit
from tracekit.report import InputFile, Report, build_report
from tracekit.report.frames import shown
from tracekit.report.markdown import MAX_ROWS, to_markdown
from tracekit.report.show import show_finding
from tracekit.target import Target
from tracekit.wording import safe, shell_word

MakeJob = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "example.ipynb"
HOSTILE = (
    "</td><script>alert(1)</script><img src=x onerror=alert(2)>\"'&lt;",
    "a|b`c`\n# heading\n| x | y |\n|---|---|",
    "@everyone #1 http://evil.example www.evil.example [a](http://b) ![i](x) <b>",
    "\x1b[2J\x1b]0;title\x07\u202egnp.exe\u2066\x9b31m",
)


class Tags(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def named(make_job: MakeJob, name: str) -> Report:
    """A report in which job, hosts, layout, files and what a finding says bear a name."""
    job = make_job(comm_ms=10).stall("input_stall", [1], range(1, 11), 50)
    file = InputFile(path=name, kind=name, status="partial", rows=1, reason=name)
    hosts = dict.fromkeys(range(4), name)
    report = build_report(job.facts(name=name, hosts=hosts, layout=name), [file])
    told = [
        replace(f, summary=name, remedy=(name,), confirm=(name,), id=f"{f.rule}/{name}")
        for f in report.findings
    ]
    verdict = replace(report.verdict, sentence=name, finding=told[0].id)
    document = replace(report.document, findings=tuple(told), verdict=verdict)
    return replace(report, document=document)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_in_a_notebook(make_job: MakeJob, name: str) -> None:
    report = named(make_job, name)
    for page in (report._repr_html_(), report.findings[0]._repr_html_()):
        read = Tags(page)
        assert read.tags <= {"p", "b", "table", "tr", "th", "td"}
        assert read.attributes <= {"style"}
        assert all(c.isprintable() or c == "\n" for c in page)
    for plain in (repr(report), repr(report.findings[0])):
        assert plain.isprintable()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_in_a_terminal(make_job: MakeJob, name: str) -> None:
    report = named(make_job, name)
    usual = named(make_job, "job")
    for everything in (False, True):
        text = report.to_text(everything=everything, width=400)
        assert all(c.isprintable() or c == "\n" for c in text)
        lines = [t.to_text(everything=everything, width=4000).count("\n") for t in (report, usual)]
        assert lines[0] == lines[1]  # no name makes a line of its own
    shown = show_finding(report, report.findings[0])
    assert all(c.isprintable() or c == "\n" for c in shown)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_in_a_ticket(make_job: MakeJob, name: str) -> None:
    text = to_markdown(named(make_job, name))
    usual = to_markdown(named(make_job, "job"))
    assert text.count("\n") == usual.count("\n")
    assert all(c.isprintable() or c in "\n\u2060" for c in text)
    bare = re.sub(r"</?(?:details|summary)>|`tracekit [\w ,./-]+`", "", text)
    for mark in ("<", "`", "](", "!["):
        assert bare.count(mark) == bare.count("\\" + mark), mark
    for line, like in zip(text.splitlines(), usual.splitlines(), strict=True):
        cells = [part.replace("\\|", "").count("|") for part in (line, like)]
        assert cells[0] == cells[1], line
    for call in ("@everyone", "#1 ", "http://", "www.evil"):
        assert call not in text


@pytest.mark.parametrize("name", [*HOSTILE, "tracekit show <b>`c``|;   <script>|[a](b)"])
def test_a_ticket_with_hostile_names_has_the_parts_of_another(make_job: MakeJob, name: str) -> None:
    """As a renderer of Markdown sees it; names stand in commands too, which are code."""
    shapes = []
    for word in (name, "tracekit show `job`;   and more"):
        report = named(make_job, word)
        notes = replace(report.notes, target=Target((word,)), next_step=word)
        text = to_markdown(replace(report, notes=notes))
        tokens = MarkdownIt("commonmark").enable("table").parse(text)
        inner = [child for token in tokens for child in token.children or ()]
        kinds = {t.type for t in inner} - {"text_special"}
        assert kinds <= {"text", "softbreak", "strong_open", "strong_close", "code_inline"}
        codes = [t.content for t in inner if t.type == "code_inline"]
        shown = "tracekit show " + shell_word(word) + " F1"
        assert safe(shown) in codes or "\n" in word
        shapes.append(([t.type for t in tokens], len(codes)))
    assert shapes[0][0] == shapes[1][0]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_in_a_frame(name: str) -> None:
    plain = pl.DataFrame(
        {name: [name, None], "in_list": [[name], None], "in_struct": [{"x": name}, None]}
    )
    frame = shown(plain)
    with pl.Config(fmt_str_lengths=500, tbl_width_chars=2000):
        looks = (frame._repr_html_(), str(frame), repr(frame))
    assert all(c.isprintable() or c == "\n" for text in looks for c in text)
    assert "<script" not in looks[0]
    assert frame.equals(plain)  # the values are what they were
    assert frame.columns == plain.columns


def test_a_frame_of_usual_names_looks_as_polars_shows_it() -> None:
    plain = pl.DataFrame({"rank": [0, 1], "name": ["a b", None], "hosts": [["x"], ["y", "é"]]})
    assert str(shown(plain)) == str(plain)
    assert shown(plain)._repr_html_() == plain._repr_html_()
    assert str(shown(pl.DataFrame())) == str(pl.DataFrame())


def test_reprs_are_short(make_job: MakeJob) -> None:
    """A report of many findings was 39 kB in one line."""
    report = named(make_job, "x" * 20_000)
    many = replace(report, document=replace(report.document, findings=report.findings * 50))
    assert len(repr(many)) < 400
    assert len(repr(many.findings[0])) < 400
    assert len(many._repr_html_()) < 20_000
    assert f"{len(many.findings) - 10} more findings" in many._repr_html_()


def test_a_long_table_is_folded_in_a_ticket(make_job: MakeJob) -> None:
    text = to_markdown(build_report(make_job().facts()))
    count = len(build_report(make_job().facts()).document.not_checked)
    assert count > MAX_ROWS
    assert f"<details><summary>{count} rules</summary>\n\n| rules | needs | capture |" in text
    assert text.rstrip().endswith("</details>")


def test_dir_shows_what_there_is() -> None:
    assert dir(tracekit) == ["__version__", "api", "compare", "ingest", "open"]
    assert all(hasattr(tracekit, name) for name in dir(tracekit))


def test_the_example_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells, in order and in one namespace, as a notebook runs them; the last value of each
    has something to show."""
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path))
    names: dict[str, object] = {}
    shown = []
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        *before, last = "".join(cell["source"]).rstrip().split("\n")
        exec("\n".join(before), names)  # noqa: S102  # the notebook of this repository
        if last.startswith(("import ", "from ")) or "=" in last.partition("(")[0]:
            exec(last, names)  # noqa: S102
            continue
        value = eval(last, names)  # noqa: S307
        if value is None:
            continue
        shown.append(type(value).__name__)
        if hasattr(value, "_repr_html_"):
            assert len(value._repr_html_() or "") < 20_000
        if hasattr(value, "_repr_png_"):
            assert value._repr_png_().startswith(b"\x89PNG")
    assert shown == ["OpenRun", "Report", "Finding", "ShownFrame", "ShownFrame", "NotebookFigure"]


@pytest.mark.slow  # the test before runs the same cells without a kernel
def test_the_example_notebook_runs_in_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Jupyter runs it, with what a reader then sees."""
    nbclient = pytest.importorskip("nbclient", reason="no nbclient here: make env installs it")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        book, timeout=120, kernel_name="python3", resources={"metadata": {"path": NOTEBOOK.parent}}
    ).execute()
    outputs = [o for cell in book.cells if cell.cell_type == "code" for o in cell.outputs]
    assert [o for o in outputs if o.output_type in ("error", "stream")] == []
    seen = [o.data for o in outputs]
    pages = [data["text/html"] for data in seen if "text/html" in data]
    assert len(pages) == 5  # a run, a report, a finding and two frames
    assert max(map(len, pages)) < 20_000
    assert "dataloader-stall" in pages[1] + pages[2]
    assert sum("image/png" in data for data in seen) == 1
