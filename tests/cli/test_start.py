"""Help, lists and what starts at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commands import ROOT, Tracekit
from soaks import soak
from tracekit import catalog, rules
from tracekit.cli.commands import COMMANDS, help_pages
from tracekit.target import COMMAND
from traces import make_trace, write_trace

HEAVY = {"duckdb", "pyarrow", "polars", "numpy", "msgspec", "rich", "matplotlib", "scipy"}
HEAVY |= {"jinja2", "pydantic", "multiprocessing", "socket", "tarfile"}
ENTRY = {"app", "commands", "options", "plain", "state"}
"""Of the command line, what is asked before any command is."""
BELOW = {"errors", "logs", "ranges", "version", "wording"}
NOT_ASKED = ["rules", "report", "derive", "expect", "whatif", "comparison", "dashboards", "fleet"]
NOT_ASKED += ["simulate", "draw", "timeline", "jobs_import", "fetch"]
"""What rows that are kept are told without."""

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_every_command_has_help(tracekit: Tracekit) -> None:
    top = tracekit("--help")
    assert (top.code, top.err) == (0, "")
    assert re.findall(r"^  ([a-z]+)  ", top.out.partition("Commands:")[2], re.M) == list(COMMANDS)
    assert tracekit("--help", "sources").out == top.out
    for name in COMMANDS:
        done = tracekit(name, "--help")
        assert (done.code, done.err) == (0, "")
        assert f"tracekit {name}" in done.out
        assert COMMAND.search(f"then run tracekit {name} RUN"), name  # known inside a sentence


@pytest.mark.parametrize("width", [50, 78])
def test_help_of_all_says_what_each_command_says_of_itself(
    width: int, tracekit: Tracekit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width + 2))
    assert tracekit("--help").out == help_pages(width)[0][1] + "\n"
    whole = help_pages(200)[0][1]
    assert all(
        f"  {name:<8}  {command.line}\n" in f"{whole}\n" for name, command in COMMANDS.items()
    )


def test_lists_name_everything(tracekit: Tracekit) -> None:
    queries = tracekit("query", "--list").out
    assert all(f"{q.name} " in queries for q in catalog.queries())
    listed = tracekit("explain").out
    assert all(r.name in listed for r in rules.RULES)
    for rule in rules.RULES:
        assert tracekit("explain", rule.name).code == 0


@pytest.mark.parametrize(
    "arguments",
    soak(
        [
            ["--version"],
            ["--help"],
            ["diagnose", "--help"],
            ["ingest", "--help"],
            ["sources", "TRACE"],
            ["explain"],
            ["explain", "gc-pause"],
            ["explain", "no-such-rule"],
            ["query", "RUN", "overlap", "--format", "json"],
            ["diagnose", "RUN", "--select", "late-rank"],
        ],
        fast=[
            ["--version"],
            ["sources", "TRACE"],
            ["explain", "gc-pause"],
            ["diagnose", "RUN", "--select", "late-rank"],
        ],
    ),
)
def test_what_should_start_at_once_imports_nothing_heavy(
    arguments: list[str], slow: Path, run: Path, tracekit: Tracekit
) -> None:
    places = {"TRACE": str(slow / "rank0.json"), "RUN": str(run)}
    needed: set[str] = {"typer"} if arguments[0] != "--version" else set()
    if not {"--version", "--help"} & {*arguments}:
        needed.add("msgspec")  # records are made of it, which no help needs
    arguments = [places.get(a, a) for a in arguments]
    if str(run) in arguments:  # asked before
        tracekit(*arguments)
    code, modules = _started(arguments)
    assert code == (2 if "no-such-rule" in arguments else 0)
    assert not (HEAVY | {"typer"}) - needed & modules


def test_help_of_all_imports_no_command() -> None:
    modules = _started(["--help"])[1]
    cli = {f"tracekit.cli.{name}" for name in ENTRY}
    below = {f"tracekit.{name}" for name in BELOW}
    assert {m for m in modules if m.startswith("tracekit")} == {
        "tracekit",
        "tracekit.cli",
        *cli,
        *below,
    }


def test_kept_rows_are_told_without_what_judges_and_draws(run: Path, tracekit: Tracekit) -> None:
    tracekit("query", run, "overlap")
    code, modules = _started(["query", str(run), "overlap"])
    assert code == 0
    assert "tracekit.kept" in modules
    assert not modules & {f"tracekit.{name}" for name in NOT_ASKED}


def test_the_first_answer_of_a_small_run_needs_no_arrow(run: Path) -> None:
    shutil.rmtree(run / "answers", ignore_errors=True)
    code, modules = _started(["query", str(run), "overlap"])
    assert code == 0
    assert "duckdb" in modules
    assert not modules & {"pyarrow", "numpy"}


@pytest.mark.parametrize("reader", ["0", "1"])
def test_a_small_trace_is_queried_without_what_arrow_makes_of_its_functions(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """280 functions with their help, which few traces need: a tenth of such a command."""
    monkeypatch.setenv("TRACEKIT_NATIVE", reader)
    trace = write_trace(tmp_path / "rank0.json", make_trace(0))
    code, modules = _started(["query", str(trace), "overlap"])
    assert code == 0
    assert "pyarrow.parquet" in modules
    assert "pyarrow.compute" not in modules


def _started(arguments: list[str]) -> tuple[int, set[str]]:
    """How a command of its own process ends, and every module that it imports."""
    script = (
        "import atexit, sys; from tracekit.cli import main\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("query", "RUN", "overlap", "--format", "xml"), "'xml' is not one of 'table', 'csv'"),
        (("query", "RUN", "overlap", "--workers", "two"), "'--workers'"),
        (("query", "RUN", "overlap", "--workers", "0"), "greater than or equal to 1"),
        (("compare", "--baseline", "RUN"), "Missing option '--candidate'"),
        (("sources",), "Missing argument 'PATH...'"),
        (("query", "RUN", "overlap", "-o", "FOLDER"), "not a file in a folder"),
    ],
)
def test_what_is_more_than_text_is_still_checked(
    arguments: tuple[str, ...], said: str, run: Path, tracekit: Tracekit
) -> None:
    places = {"RUN": str(run), "FOLDER": str(run.parent)}
    done = tracekit(*(places.get(a, a) for a in arguments))
    assert (done.code, said in done.err) == (2, True), done.err


@pytest.mark.parametrize(("rule", "code"), [("gc-pause", 0), ("no-such-rule", 2)])
def test_a_command_that_ends_early_loses_neither_output_nor_what_was_registered(
    rule: str, code: int
) -> None:
    """It skips taking the modules apart: a module-level object is never told of the end."""
    script = (
        "import atexit, sys, threading, time\n"
        "from tracekit.cli import app, main\n"
        "class Told:\n    def __del__(self): print('taken apart')\n"
        "told, run = Told(), app.main\n"
        "def later(arguments):\n"
        "    atexit.register(print, 'registered')\n"
        "    def slow(): time.sleep(0.3); print('thread ended')\n"
        "    threading.Thread(target=slow).start()\n"
        "    run(arguments)\n"
        "app.main = later\n"
        f"sys.argv = ['tracekit', 'explain', '{rule}']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "thread ended\n" in done.stdout
    assert done.stdout.endswith("registered\n")
    assert ("gc-pause" in done.stdout) == (code == 0)
    assert ("no-such-rule" in done.stderr) == (code == 2)


def test_sources_say_what_each_file_is_and_why(tracekit: Tracekit, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_trace(folder / "rank0.json.gz", make_trace(0))
    (folder / "empty.json").write_bytes(b"")
    (folder / "notes.txt").write_text("hello")
    (folder / "job.toml").write_text('name = "x"\n')
    done = tracekit("sources", folder, "--json")
    found = {Path(r["path"]).name: r for r in map(json.loads, done.out.splitlines())}
    assert {name: (r["kind"], r["status"]) for name, r in found.items()} == {
        "rank0.json.gz": ("kineto", "ok"),
        "empty.json": ("empty", "empty"),
        "notes.txt": ("text", "unrecognised"),
        "job.toml": ("job", "ok"),
    }
    assert all(r["reason"] for r in found.values())
    assert "2 of 4 files" in done.err


def test_the_cache_can_be_seen_and_cleared(
    tracekit: Tracekit, slow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    assert tracekit("cache").out == ""
    tracekit("query", slow, "step_time")
    seen = tracekit("cache")
    assert f"{slow}/rank0.json and 1 more" in seen.out
    assert "1 runs in" in seen.err or "1 run in" in seen.err
    assert tracekit("cache", "--clear", "--older-than-days", "1").code == 0
    assert tracekit("cache").out == seen.out
    assert tracekit("cache", "--clear").code == 0
    assert tracekit("cache").out == ""
