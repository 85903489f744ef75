"""Pages and figures from the command line."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tracekit
from soaks import soak
from tracekit import catalog
from tracekit.cli.app import main
from tracekit.dashboards import charts, listing, look
from tracekit.errors import QueryError
from traces import write_job

SIGNATURES = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    write_job(folder, stall_ms=30)
    return folder


Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout and stderr of a command."""

    def call(*arguments: str | Path) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        return ended.value.code, *capsys.readouterr()

    return call


def test_a_page_is_written_whole(run: Run, job: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run("diagnose", job, "--format", "html", "-o", page) == (0, "", f"wrote {page}\n")
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert "dataloader-stall/1" in text
    assert 'id="step_times"' in text


def test_every_figure_is_listed_without_a_run(run: Run) -> None:
    code, out, _ = run("plot", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [c.name for c in charts()]


def test_a_figure_is_written_in_each_kind(run: Run, job: Path, tmp_path: Path) -> None:
    with tracekit.open(job) as opened:
        figure = opened.plot("step_times")
    for suffix, signature in SIGNATURES.items():
        assert look.picture(figure, suffix).startswith(signature)
    path = tmp_path / "late.svg"
    assert run("plot", job, "rank_time", "-o", path)[0] == 0
    assert path.read_bytes().startswith(b"<?xml")
    assert b"rank" in path.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("nowhere", "step_tims", "-o", "f.svg"), "no figure 'step_tims'", "step_times"),
        (("nowhere", "step_times", "-o", "f.gif"), "f.gif: no kind of figure", ".svg, .png, .pdf"),
        (("nowhere", "step_times"), "plot needs a run", "tracekit plot --list"),
    ],
)
def test_a_wrong_word_costs_no_reading(
    run: Run, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    code, out, errors = run("plot", *arguments)
    assert (code, out) == (2, "")
    assert message in errors
    assert f"{hint}" in errors.partition("hint: ")[2]
    assert "nowhere" not in errors


def test_a_figure_without_rows_says_what_it_needs(run: Run, job: Path, tmp_path: Path) -> None:
    code, _, errors = run("plot", job, "stage_replicas", "-o", tmp_path / "f.svg")
    assert code == 2
    assert errors.startswith("error: nothing to draw for stage_replicas: it needs operations of")
    assert not (tmp_path / "f.svg").exists()


def _broken(*_: object) -> None:
    raise ValueError("what the file said")


@pytest.mark.parametrize("where", soak(["draw", "svg", "table", "query"], fast=["svg", "query"]))
def test_what_cannot_be_drawn_is_a_note_in_its_place(
    where: str, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRACEKIT_DEBUG", raising=False)
    title, why = "Where a rank's step goes", "a bug of tracekit, please report it: ValueError at"
    if where == "draw":
        others = [replace(c, draw=_broken) if c.name == "rank_time" else c for c in charts()]
        monkeypatch.setattr(listing, "CHARTS", tuple(others))
    elif where == "svg":
        svg = look.inline_svg
        monkeypatch.setattr(
            look, "inline_svg", lambda f, name: _broken() if name == "rank_time" else svg(f, name)
        )
    elif where == "table":
        title = "Kernels and copies"
        (table,) = (t for t in listing.LISTINGS if t.title == title)
        monkeypatch.setattr(listing, "LISTINGS", (replace(table, make=_broken),))
    else:
        title, why = "Modules and named ranges", "query module_summary: no memory left"
        monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))  # no answer is kept there
        asked = catalog.few_rows

        def run_but_one(con: Any, name: str, *rest: Any) -> object:
            if name == "module_summary":
                raise QueryError("no memory left\nat line 3")
            return asked(con, name, *rest)

        monkeypatch.setattr(catalog, "few_rows", run_but_one)
    path = tmp_path / "report.html"
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", str(job), "--format", "html", "-o", str(path)])
    assert ended.value.code == 0
    text = html.unescape(path.read_text())
    assert f'<p class="not-drawn">{title}: not drawn, {why}' in text
    (listed,) = re.findall('<div class="wide" id="not-drawn-list".*?</div>', text, re.DOTALL)
    assert title in listed and why in listed
    assert 'id="step_times"' in text and "dataloader-stall/1" in text
    assert "what the file said" not in text


def test_a_figure_whose_query_fails_says_so(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = catalog.few_rows

    def refused(con: Any, name: str, *rest: Any) -> object:
        if name == "delay_matrix":
            raise QueryError("no memory left")
        return asked(con, name, *rest)

    monkeypatch.setattr(catalog, "few_rows", refused)
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))  # no answer is kept there
    path = str(tmp_path / "f.svg")
    with pytest.raises(SystemExit) as ended:
        main(["plot", str(job), "delay_matrix", "-o", path, "--no-findings"])
    assert ended.value.code == 2
    assert "delay_matrix cannot be drawn: query delay_matrix: no memory left" in (
        capsys.readouterr().err
    )
