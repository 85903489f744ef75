"""Pages and figures from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tracekit.dashboards import charts
from traces import write_job

SIGNATURES = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    write_job(folder, stall_ms=30)
    return folder


def run(*arguments: str | Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", *map(str, arguments)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_page_is_written_whole(job: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run("diagnose", job, "--format", "html", "-o", page) == (0, "", f"wrote {page}\n")
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert "dataloader-stall/1" in text
    assert 'id="step_times"' in text


def test_every_figure_is_listed_without_a_run() -> None:
    code, out, _ = run("plot", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [c.name for c in charts()]


def test_a_figure_is_written_in_each_kind(job: Path, tmp_path: Path) -> None:
    with tracekit.open(job) as opened:
        figure = opened.plot("step_times")
    from tracekit.dashboards import look

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
def test_a_wrong_word_costs_no_reading(arguments: tuple[str, ...], message: str, hint: str) -> None:
    code, out, errors = run("plot", *arguments)
    assert (code, out) == (2, "")
    assert message in errors
    assert f"{hint}" in errors.partition("hint: ")[2]
    assert "nowhere" not in errors


def test_a_figure_without_rows_says_what_it_needs(job: Path, tmp_path: Path) -> None:
    code, _, errors = run("plot", job, "stage_replicas", "-o", tmp_path / "f.svg")
    assert code == 2
    assert errors.startswith("error: nothing to draw for stage_replicas: it needs operations of")
    assert not (tmp_path / "f.svg").exists()
