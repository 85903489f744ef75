"""The command line: what goes where, exit codes, hints, selections, formats."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from soaks import soak
from tracekit import api, catalog, rules
from tracekit.cli import main
from tracekit.cli.commands import COMMANDS
from tracekit.rules.unbuilt import unbuilt_rules
from tracekit.target import COMMAND
from traces import BASE_NS, make_trace, write_job, write_trace

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"duckdb", "pyarrow", "polars", "numpy", "msgspec", "rich", "matplotlib", "scipy"}
HEAVY |= {"jinja2", "pydantic", "multiprocessing", "socket", "tarfile"}
START_S = BASE_NS // 10**9
ONE_RULE = ("--select", "dataloader-stall")
"""Where any report will do: it takes half as long as that of all rules."""


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


Tracekit = Callable[..., Done]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder as cwd; the cache is that of the file, so traces of several tests are read
    once."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("TRACEKIT_DEBUG", raising=False)


@pytest.fixture
def tracekit(capsys: pytest.CaptureFixture[str]) -> Tracekit:
    """Run a command in this process."""

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return call


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two ranks; rank 1 waits 30 ms for input in each of steps 5 to 10."""
    folder = tmp_path_factory.mktemp("slow")
    write_job(folder, stall_ms=30)
    return folder


@pytest.fixture(scope="module")
def run(slow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a run."""
    folder = tmp_path_factory.mktemp("runs") / "slow"
    api.ingest(slow, run=folder).close()
    return folder


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    write_job(folder)
    return folder


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """The command as a real process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    command = [sys.executable, "-m", "tracekit", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, env=env, text=True, **pipes)


def assert_refused(done: Done, *words: str, hint: str | None = None) -> None:
    """Exit 2, nothing on stdout, one error line, and a hint on a line of its own."""
    assert (done.code, done.out) == (2, ""), done
    assert done.err.lower().startswith(("error: ", "usage: ")), done.err
    for word in words:
        assert word in done.err, done.err
    if hint is not None:
        hints = [line for line in done.err.splitlines() if line.startswith("hint: ")]
        assert len(hints) == 1, done.err
        assert hint in hints[0]


# ---------------------------------------------------------------- the session of a reader


def test_a_session_from_files_to_an_explanation(
    tracekit: Tracekit, slow: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = tracekit("sources", slow)
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["kineto", "kineto"]
    done = tracekit("ingest", slow, "--run", run)
    assert (done.code, done.out) == (0, "")
    assert "ok: 2 files" in done.err
    assert f"run: {run} (generation 1)" in done.err
    done = tracekit("query", run, "step_time", "--format", "jsonl")
    assert (done.code, len(done.out.splitlines()), done.err) == (0, 12, "")
    done = tracekit("sql", run, "SELECT count(*) AS n FROM gpu_op", "--format", "csv")
    assert (done.code, done.out) == (0, "n\n24\n")
    done = tracekit("diagnose", run)
    assert done.code == 0
    assert "VERDICT   Rank 1 waits 30.0 ms for input" in done.out
    assert len(done.out.splitlines()) <= 25
    shown = tracekit("show", run, "F1")
    assert shown.code == 0
    assert shown.out.startswith("dataloader-stall/1")
    assert f"{slow}/rank1.json" in shown.out
    assert tracekit("show", run, "dataloader-stall/1").out == shown.out
    done = tracekit("explain", "dataloader-stall")
    assert done.code == 0
    assert "min_impact_ratio" in done.out


def test_the_commands_that_a_report_suggests_work(tracekit: Tracekit, run: Path) -> None:
    text = tracekit("diagnose", run).out
    suggested = [line for line in text.splitlines() if line.startswith("MORE")]
    for command in suggested[0].removeprefix("MORE").split("    "):
        words = shlex.split(command)
        if words:
            assert words[0] == "tracekit"
            assert tracekit(*words[1:]).code == 0, command


NAMES = ("a b", "-y", "it's; touch owned", "$(touch owned)\n\x1b[2J", "~", "*")
"""Names of files that a shell, a terminal or an option's parser would take for something else."""


def commands_in(*texts: str) -> list[str]:
    """Commands of tracekit inside sentences."""
    found = [match[0].strip() for text in texts for match in COMMAND.finditer(text)]
    return [one for one in found if one.startswith("tracekit ")]


def words_of(command: str) -> list[str]:
    """A command's words as bash reads them, which knows more than shlex."""
    script = f"printf '%s\\0' {command}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def printed(text: str) -> set[str]:
    """Commands that stand by themselves in lines of a report."""
    parts = [part for line in text.splitlines() for part in line.split("    ")]
    return {c for part in parts for c in commands_in(part.removeprefix("MORE").strip())}


@pytest.mark.parametrize(
    ("given", "is_job_given"),
    soak(
        [
            (["./" + NAMES[3], NAMES[2]], True),
            (["./-y", "a b"], True),
            (["~", "./*"], False),
            (["./" + NAMES[3], NAMES[2]], False),
        ],
        fast=[(["./" + NAMES[3], NAMES[2]], True)],
    ),
)
def test_every_command_that_a_report_prints_runs_as_printed(
    tracekit: Tracekit, slow: Path, given: list[str], is_job_given: bool
) -> None:
    """Whatever the files are called, however many were given, and of whatever part it speaks."""
    traces = sorted(slow.glob("*.json"))
    for name, path in zip(NAMES, [*traces[:2]] * 3, strict=True):
        Path(name).mkdir()
        (Path(name) / path.name).write_bytes(path.read_bytes())
    Path("my job.toml").write_text("[parallelism]\ndp = 2\n[model]\nlayers = 2\n")
    options = ["--job", "my job.toml"] if is_job_given else ["--steps", "5-10", "--ranks", "0,1"]
    whole = tracekit("diagnose", *given, *options, "--all").out
    document = json.loads(tracekit("diagnose", *given, *options, "--format", "json").out)
    told = [entry["capture"] or "" for entry in document["not_checked"]]
    for finding in document["findings"]:
        told += [*finding["confirm"], *finding["remedy"], *finding["next_capture"]]
    shown = tracekit("show", *given, "F1", *options).out
    commands = {*commands_in(*told), *printed(whole), *printed(shown)}
    verbs = {command.split()[1] for command in commands}
    assert {"show", "query", "explain", "job", "capture"} <= verbs
    for command in sorted(commands):
        assert command.isprintable()
        words = words_of(command)
        assert not {"RUN", "PATH"} & set(words), command
        done = tracekit(*words[1:])
        assert done.code == 0, (command, done.err)
        Path("job.toml").unlink(missing_ok=True)
        if words[1] == "show":
            assert done.out == shown
    assert not Path("owned").exists()


def test_a_finding_is_named_by_its_id_where_rules_were_left_out(
    tracekit: Tracekit, run: Path
) -> None:
    text = tracekit("diagnose", run, "--ignore", "exposed-communication").out
    assert f"tracekit show {run} dataloader-stall/1" in text


def test_many_paths_are_named_by_the_folder_that_holds_what_was_read(
    tracekit: Tracekit, slow: Path
) -> None:
    for number, path in enumerate([*sorted(slow.glob("*.json"))[:2]] * 2):
        Path(f"part{number}").mkdir()
        target = Path(f"part{number}") / path.name
        target.write_bytes(path.read_bytes() if number < 2 else b"nothing")
    parts = [f"part{n}" for n in range(4)]
    document = json.loads(tracekit("diagnose", *parts, *ONE_RULE, "--format", "json").out)
    assert document["run"]["id"] == "part0 part1 part2 and 1 more"
    text = tracekit("diagnose", *parts, *ONE_RULE).out
    (command,) = (c for c in printed(text) if c.startswith("tracekit show "))
    words = words_of(command)
    assert len(words) == 4
    assert tracekit(*words[1:]).code == 0


def test_raw_paths_give_the_same_diagnosis_as_a_run(
    tracekit: Tracekit, run: Path, slow: Path
) -> None:
    """But for the name of what was given, which the report's commands repeat."""
    of_run, of_paths = (tracekit("diagnose", t, "--format", "json").out for t in (run, slow))
    assert f"tracekit job {run} " in of_run
    ours, theirs = json.loads(of_run.replace(str(run), str(slow))), json.loads(of_paths)
    ours.pop("run")
    theirs.pop("run")
    assert ours == theirs


def test_a_healthy_job_has_nothing_to_fix(tracekit: Tracekit, healthy: Path) -> None:
    done = tracekit("diagnose", healthy)
    assert done.code == 0
    assert "othing to fix: 100 ms a step" in done.out


def test_the_inferred_job_description_can_be_given_back(
    tracekit: Tracekit, slow: Path, tmp_path: Path
) -> None:
    target = tmp_path / "job.toml"
    done = tracekit("job", slow, "-o", target)
    assert (done.code, done.out) == (0, "")
    assert tracekit("job", slow).out == target.read_text()
    with api.open(slow, job=[target]) as opened:
        assert opened.job is not None
        assert opened.job.world_size == 2
    done = tracekit("diagnose", slow, "--job", target)
    assert done.code == 0
    assert "Rank 1 waits 30.0 ms" in done.out
    again = tracekit("diagnose", slow, target).out
    # The lines above hold paths, and wrap where those are long.
    found, expected = (text.partition("VERDICT")[2].splitlines()[:5] for text in (again, done.out))
    assert found == expected


# ---------------------------------------------------------------- exit codes


def test_fail_on_a_severity_that_is_reached_is_1(tracekit: Tracekit, run: Path) -> None:
    for severity in ("note", "critical"):
        done = tracekit("diagnose", run, *ONE_RULE, "--fail-on", severity)
        assert done.code == 1
        assert "VERDICT" in done.out
    assert tracekit("diagnose", run, *ONE_RULE).code == 0


def test_fail_on_a_severity_that_is_not_reached_is_0(tracekit: Tracekit, healthy: Path) -> None:
    assert tracekit("diagnose", healthy, "--fail-on", "major").code == 0


def test_fail_on_passes_where_there_is_nothing_to_fix(tracekit: Tracekit, healthy: Path) -> None:
    """Whatever minor findings and notes stand beside that verdict."""
    done = tracekit("diagnose", healthy, "--fail-on", "note", "--format", "json")
    assert json.loads(done.out)["verdict"]["kind"] == "inherent"
    assert json.loads(done.out)["verdict"]["severity"] is None
    assert done.code == 0


@pytest.mark.parametrize("world_size", [2, 1])
def test_fail_on_where_nothing_could_be_checked_is_3(
    tracekit: Tracekit, tmp_path: Path, world_size: int
) -> None:
    document = make_trace(0, world_size=world_size)
    document["traceEvents"] = [e for e in document["traceEvents"] if e["cat"] == "cpu_op"]
    trace = write_trace(tmp_path / "rank0.json", document)
    done = tracekit("diagnose", trace, "--fail-on", "critical")
    assert done.code == 3
    assert "error: --fail-on" in done.err
    assert tracekit("-q", "diagnose", trace, "--fail-on", "critical").err == done.err
    assert tracekit("diagnose", trace).code == 0


def test_strict_makes_a_partial_input_2(tracekit: Tracekit, slow: Path, tmp_path: Path) -> None:
    for path in slow.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / "rank1.json").read_text()
    (tmp_path / "rank1.json").write_text(text[:-500])
    files = [tmp_path / "rank0.json", tmp_path / "rank1.json"]
    assert tracekit("diagnose", *files, *ONE_RULE).code == 0
    done = tracekit("-q", "diagnose", *files, *ONE_RULE, "--strict")
    assert done.code == 2
    assert "error: --strict" in done.err
    assert tracekit("ingest", *files, "--run", tmp_path / "a").code == 0
    done = tracekit("ingest", *files, "--run", tmp_path / "b", "--strict")
    assert done.code == 2
    assert "partial: 1 file" in done.err
    assert tracekit("diagnose", slow, *ONE_RULE, "--strict").code == 0


def test_a_bug_of_ours_is_70_and_shows_no_traceback(
    tracekit: Tracekit, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("what the file said")

    monkeypatch.setattr(catalog, "run", fail)
    shutil.rmtree(run / "answers", ignore_errors=True)  # another test may have asked before
    done = tracekit("query", run, "step_time")
    assert (done.code, done.out) == (70, "")
    assert done.err.splitlines()[0].startswith("error: internal error")
    assert done.err.splitlines()[1].startswith("hint: ")
    assert "what the file said" not in done.err
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "query", str(run), "step_time"])


def test_interruption_is_130(
    tracekit: Tracekit, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "open", interrupt)
    done = tracekit("diagnose", run)
    assert (done.code, done.out) == (130, "")


def test_ctrl_c_ends_a_real_ingest_and_leaves_no_half_run(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank0.json", make_trace(0, world_size=1))
    script = (
        "import sys, time; from tracekit.cli import main; from tracekit.runs import execute\n"
        "execute._ingest_source = lambda *_: (print('go', flush=True), time.sleep(60))\n"
        "main(sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "ingest", str(trace), "--run", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    assert process.returncode == 130, errors
    assert not (tmp_path / "run" / "manifests").exists()


def test_a_reader_that_leaves_early_is_no_error(run: Path) -> None:
    text = shlex.quote("SELECT * FROM range(100000)")
    command = (
        f"{shlex.quote(sys.executable)} -m tracekit sql {run} {text} --format csv | head -1; "
        'exit "${PIPESTATUS[0]}"'
    )
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "range\n", "")


# ---------------------------------------------------------------- what cannot be meant


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        (["query", "RUN", "step_tme"], ["step_tme"], "step_time"),
        (["query", "RUN", "step_time", "--param", "rounding=hta"], ["rounding"], ""),
        (["query", "RUN", "overlap", "--param", "roundin=hta"], ["roundin"], "rounding"),
        (["query", "RUN", "overlap", "--param", "rounding=up"], ["rounding"], None),
        (["query", "RUN", "overlap", "--param", "rounding"], ["--param"], "--param"),
        (["query", "RUN"], ["needs a run and a name"], "--list"),
        (["query", "nowhere", "step_time"], ["nowhere", "no such file"], None),
        (["show", "RUN", "F9"], ["no finding 'F9'"], "dataloader-stall/1"),
        (["explain", "gc-pauze"], ["gc-pauze"], "gc-pause"),
        (["explain", "UNBUILT"], ["not built yet"], "docs/rules.md"),
        (["diagnose", "RUN", "--select", "gc-pauze"], ["gc-pauze"], "gc-pause"),
        (["diagnose", "RUN", "--ignore", "nonsense"], ["nonsense"], "rules: "),
        (["diagnose", "RUN", "--config", "none.toml"], ["none.toml"], None),
        (["diagnose", "RUN", "--job", "job.toml"], ["keeps the job description"], "ingest"),
        (["diagnose", "SLOW", "--job", "job.toml"], ["job.toml"], None),
        (["diagnose", "RUN", "SLOW"], ["cannot be mixed"], "ingest"),
        (["diagnose", "RUN", "--ranks", "a"], ["--ranks: cannot read 'a'"], "--ranks 0-7"),
        (["diagnose", "RUN", "--ranks", "5-2"], ["runs backwards"], "2-5"),
        (["diagnose", "RUN", "--steps", "1,,2"], ["--steps"], "--steps"),
        (["diagnose", "RUN", "--since", "yesterday"], ["--since"], "2026"),
        (["diagnose", "RUN", "--memory", "lots"], ["--memory"], "2GB"),
        (["diagnose", "RUN", "--memory", "0"], ["--memory"], "2GB"),
        (["diagnose", "RUN", "--budget", "soon"], ["--budget"], "60s"),
        (["diagnose", "RUN", "--budget", "0s"], ["--budget"], "60s"),
        (["diagnose", "RUN", "--attempt", "0"], ["--attempt"], None),
        (["diagnose", "RUN", "--window", "-1"], ["--window"], None),
        (["diagnose", "RUN", "--workers", "0"], ["--workers"], None),
        (["diagnose", "RUN", "--format", "xml"], ["--format"], None),
        (["diagnose", "RUN", "--fail-on", "bad"], ["--fail-on"], None),
        (["diagnose"], ["PATH"], None),
        (["sql", "RUN"], ["one statement"], "-f FILE"),
        (["sql", "RUN", "SELECT 1", "-f", "x.sql"], ["one statement"], "-f FILE"),
        (["sql", "RUN", "-f", "none.sql"], ["none.sql"], None),
        (["sql", "RUN", "SELECT nonsense FROM step"], ["nonsense"], None),
        (["sql", "RUN", "SELECT CAST(name AS INTEGER) FROM gpu_op"], ["INT32"], None),
        (["sql", "RUN", "COPY (SELECT 1) TO 'x.csv'"], ["only SELECT"], "--format"),
        (["sql", "RUN", "SELECT 1; SELECT 2"], ["found 2"], "one at a time"),
        (["sql", "RUN", "SELECT * FROM 'x.csv'"], [], None),
        (["sources", "nowhere"], ["nowhere"], None),
        (["ingest", "nowhere", "--run", "r"], ["nowhere"], None),
        (["ingest", "SLOW"], ["--run"], None),
        (["ingest", "SLOW", "--run", "SLOW"], ["is not a run"], "new folder"),
        (["frobnicate"], ["frobnicate"], None),
        (["diagnose", "RUN", "--frobnicate"], ["--frobnicate"], None),
        (["query", "RUN", "step_time", "-o", "no/such/x.csv"], ["no/such/x.csv"], "-o"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str],
    words: list[str],
    hint: str | None,
    tracekit: Tracekit,
    run: Path,
    slow: Path,
) -> None:
    places = {"RUN": str(run), "SLOW": str(slow), "UNBUILT": unbuilt_rules()[0]}
    assert_refused(tracekit(*(places.get(a, a) for a in arguments)), *words, hint=hint)
    assert not list(Path().iterdir())


def test_wrong_names_cost_no_ingest(
    tracekit: Tracekit, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("files were read")

    monkeypatch.setattr(api, "open", refuse)
    Path("bad.toml").write_text("[rules.gc-pause]\nmin_impact = 1\n")
    Path("there.json").write_text("")
    for arguments in (
        ["query", slow, "step_tme"],
        ["diagnose", slow, "--select", "gc-pauze"],
        ["diagnose", slow, "--config", "bad.toml"],
        ["show", slow, "F1", "--config", "bad.toml"],
        ["diagnose", slow, "--ranks", "x"],
        ["diagnose", slow, "-o", "there.json"],
        ["sql", slow],
    ):
        assert tracekit(*arguments).code == 2, arguments


def test_files_of_two_jobs_are_named_as_candidates(
    tracekit: Tracekit, slow: Path, tmp_path: Path
) -> None:
    other = write_trace(tmp_path / "other.json", make_trace(3, world_size=16))
    files = [*sorted(slow.iterdir()), other]
    done = tracekit("diagnose", *files)
    assert_refused(done, "--attempt 1", "--attempt 2", str(other), hint="--attempt")
    assert_refused(tracekit("ingest", *files, "--run", tmp_path / "r"), "--attempt 2")
    sizes = set()
    for attempt in (1, 2):
        asked = ("--attempt", attempt, *ONE_RULE, "--format", "json")
        done = tracekit("diagnose", *files, *asked)
        assert done.code == 0
        sizes.add(json.loads(done.out)["run"]["world_size"])
        run = tmp_path / f"run{attempt}"
        assert tracekit("ingest", *files, "--run", run, "--attempt", attempt).code == 0
    assert sizes == {2, 16}


# ---------------------------------------------------------------- selections


@pytest.mark.parametrize(
    ("arguments", "rows"),
    soak(
        [
            ([], 12),
            (["--ranks", "1"], 6),
            (["--ranks", "0-1"], 12),
            (["--ranks", "0, 7-9"], 6),
            (["--hosts", "node0"], 12),
            (["--steps", "5-6"], 4),
            (["--steps", "5,10"], 4),
            (["--attempt", "1"], 12),
            (["--window", "0"], 12),
            (["--since", "2026-07-21T03:01:07.300Z"], 8),  # steps last 130 ms: 7 ends at 390 ms
            (["--until", "2026-07-21 03:01:07.300"], 6),
            (["--ranks", "1", "--steps", "5-6", "--window", "0"], 2),
        ],
        fast=[
            (["--hosts", "node0"], 12),
            (["--steps", "5,10"], 4),
            (["--until", "2026-07-21 03:01:07.300"], 6),
            (["--ranks", "1", "--steps", "5-6", "--window", "0"], 2),
        ],
    ),
)
def test_a_selection_leaves_out_the_rest(
    arguments: list[str], rows: int, tracekit: Tracekit, run: Path
) -> None:
    done = tracekit("query", run, "step_time", "--format", "jsonl", *arguments)
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == rows
    counted = tracekit("sql", run, "SELECT count(*) FROM step", "--format", "csv", *arguments)
    assert counted.out.splitlines()[1] == str(rows)


@pytest.mark.parametrize(
    ("arguments", "there"),
    soak(
        [
            (["--ranks", "9"], "there are ranks 0-1"),
            (["--ranks", f"5-{10**30}"], "there are ranks 0-1"),
            (["--hosts", "node7, node8"], "there is host node0"),
            (["--hosts", "it's"], "there is host node0"),
            (["--steps", "900-910"], "there are steps 5-10"),
            (["--attempt", "2"], "there is attempt 1"),
            (["--window", "1"], "there is capture window 0"),
            (["--since", str(START_S + 10)], "the files cover 2026-07-21T03:01:07"),
            (["--until", "0"], "the files cover 2026-07-21T03:01:07"),
            (["--since", "2", "--until", "1"], "run backwards"),
            (["--ranks", ""], "--ranks: nothing is given"),
            (["--hosts", " , "], "--hosts: nothing is given"),
        ],
        fast=6,
    ),
)
def test_a_selection_of_nothing_says_what_there_is(
    arguments: list[str], there: str, tracekit: Tracekit, run: Path
) -> None:
    for command in (["diagnose", run], ["query", run, "step_time"], ["sql", run, "SELECT 1"]):
        done = tracekit(*command, *arguments)
        assert (done.code, done.out) == (2, "")
        assert there in done.err
        assert "\nhint: " in done.err


def test_a_diagnosis_of_a_part_ends_well(tracekit: Tracekit, run: Path) -> None:
    done = tracekit("diagnose", run, "--steps", "6", "--format", "json")
    assert done.code == 0
    verdict = json.loads(done.out)["verdict"]
    assert verdict["kind"] in ("not_enough_data", "unexplained")
    assert verdict["finding"] is None


# ---------------------------------------------------------------- formats and outputs

SQL = """SELECT * FROM (VALUES
    (1, 'a,b', 0.5, true, [1, 2]), (NULL, '=1+1', 'nan'::DOUBLE, false, NULL)
) AS t(n, s, x, b, l) ORDER BY n"""


def test_rows_as_a_table(tracekit: Tracekit, run: Path) -> None:
    assert tracekit("sql", run, SQL).out.splitlines() == [
        "n  s       x  b    l",
        "-  ----  ---  ---  ------",
        "1  a,b   0.5  yes  [1, 2]",
        "-  =1+1  nan  no   -",
        "(2 rows)",
    ]


def test_rows_as_csv_cannot_be_formulas(tracekit: Tracekit, run: Path) -> None:
    out = tracekit("sql", run, SQL, "--format", "csv").out
    assert list(csv.reader(io.StringIO(out))) == [
        ["n", "s", "x", "b", "l"],
        ["1", "a,b", "0.5", "true", "[1, 2]"],
        ["", "'=1+1", "nan", "false", ""],
    ]


@pytest.mark.parametrize("format_", ["json", "jsonl"])
def test_rows_as_json_hold_no_nan(format_: str, tracekit: Tracekit, run: Path) -> None:
    out = tracekit("sql", run, SQL, "--format", format_).out
    rows = json.loads(out) if format_ == "json" else [json.loads(x) for x in out.splitlines()]
    assert rows == [
        {"n": 1, "s": "a,b", "x": 0.5, "b": True, "l": [1, 2]},
        {"n": None, "s": "=1+1", "x": None, "b": False, "l": None},
    ]


STRANGE = """SELECT make_timestamp_ns(1) AS t, 'infinity'::DATE AS d, ['-infinity'::TIMESTAMP] AS l,
    {'a': 'nan'::DOUBLE, 'b': ['inf'::DOUBLE, 1.5]} AS s, '10000-01-01'::TIMESTAMP AS far,
    [make_timestamp_ns(1500000000000000001)] AS n, NULL::DATE AS nothing, 1 AS x, 2 AS x"""


@pytest.mark.parametrize("format_", ["json", "jsonl"])
def test_what_python_or_json_cannot_hold_is_text_or_null(
    format_: str, tracekit: Tracekit, run: Path
) -> None:
    done = tracekit("sql", run, STRANGE, "--format", format_)
    assert done.code == 0, done.err
    found = json.loads(done.out, parse_constant=pytest.fail)
    assert (found[0] if format_ == "json" else found) == {
        "t": "1970-01-01 00:00:00.000000001",
        "d": "infinity",
        "l": ["-infinity"],
        "s": {"a": None, "b": [None, 1.5]},
        "far": "253402300800000000 us since 1970",
        "n": ["2017-07-14 02:40:00.000000001"],
        "nothing": None,
        "x": 1,
        "x_1": 2,
    }


@pytest.mark.parametrize("format_", ["table", "csv", "parquet"])
def test_every_format_takes_strange_times(format_: str, tracekit: Tracekit, run: Path) -> None:
    done = tracekit("sql", run, STRANGE, "--format", format_, "-o", "x.out")
    assert done.code == 0, done.err
    if format_ != "parquet":
        assert "infinity" in Path("x.out").read_text()


@pytest.mark.parametrize("format_", soak(["table", "csv", "json", "jsonl"], fast=["table"]))
def test_no_control_character_reaches_a_terminal(
    format_: str, tracekit: Tracekit, run: Path
) -> None:
    red = "\x1b[31m"
    statements = (
        f"""SELECT 'a{red}\u009b\u202e' AS "n{red}", ['{red}'] AS l""",
        f"SELECT error('{red}')",
        f'SELECT * FROM "{red}"',
        f"SELECT '{red}",
        f"SELECT '{red}'::INTEGER",
    )
    for statement in statements:
        done = tracekit("sql", run, statement, "--format", format_)
        assert done.code == (0 if statement is statements[0] else 2)
        assert (done.out or done.err).strip()
        assert all(c.isprintable() or c == "\n" for c in done.out + done.err)
        assert "Traceback" not in done.err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process has")
def test_one_value_cannot_pass_the_memory_limit(tracekit: Tracekit, run: Path) -> None:
    done = tracekit("sql", run, "SELECT length(repeat('x', 3000000000))", "--memory", "256MB")
    assert (done.code, done.out) == (2, "")
    assert "Out of Memory" in done.err
    assert "hint: --memory" in done.err
    assert tracekit("sql", run, "SELECT length(repeat('x', 3000000))").code == 0


def test_what_a_killed_query_spilled_is_swept_later(tracekit: Tracekit, run: Path) -> None:
    many = "SELECT hash(range) AS h FROM range(300000000) ORDER BY h"
    killed = start("sql", run, many, "--memory", "100MB")
    left: list[Path] = []
    for _ in range(300):
        left = [p for p in (run / "tmp").rglob("*") if p.is_file()]
        if left or killed.poll() is not None:
            break
        time.sleep(0.1)
    killed.kill()
    killed.communicate(timeout=60)
    assert any(p.exists() for p in left)
    users_own = run / "tmp" / "spill"
    users_own.mkdir()
    assert tracekit("sql", run, "SELECT 1").code == 0
    assert list((run / "tmp").rglob("*")) == [users_own]


def test_rows_as_parquet_go_to_a_file_or_a_pipe(tracekit: Tracekit, run: Path) -> None:
    done = tracekit("sql", run, SQL, "--format", "parquet", "-o", "x.parquet")
    assert (done.code, done.out, done.err) == (0, "", "wrote x.parquet\n")
    assert pq.read_table("x.parquet").num_rows == 2
    with open("piped.parquet", "wb") as stream:  # noqa: PTH123  # a file as a process's stdout
        piped = start("sql", run, SQL, "--format", "parquet", stdout=stream)
        assert piped.wait(timeout=60) == 0
    assert Path("piped.parquet").read_bytes() == Path("x.parquet").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    soak(
        [
            ["query", "RUN", "step_time", "--format", "csv"],
            ["sql", "RUN", "SELECT 1", "--format", "json"],
            ["sql", "RUN", "SELECT 1", "--format", "parquet"],
            ["diagnose", "RUN", *ONE_RULE],
            ["diagnose", "RUN", *ONE_RULE, "--format", "json"],
            ["job", "RUN"],
        ],
        fast=[
            ["sql", "RUN", "SELECT 1", "--format", "parquet"],
            ["diagnose", "RUN", *ONE_RULE, "--format", "json"],
        ],
    ),
)
def test_an_output_is_overwritten_only_by_force(
    arguments: list[str], tracekit: Tracekit, run: Path
) -> None:
    arguments = [str(run) if a == "RUN" else a for a in arguments]
    out = Path("out")
    done = tracekit(*arguments, "-o", out)
    assert (done.code, done.out) == (0, "")
    whole = out.read_bytes()
    out.write_text("mine")
    assert_refused(tracekit(*arguments, "-o", out), "out: exists", hint="--force")
    assert out.read_text() == "mine"
    assert tracekit(*arguments, "-o", out, "--force").code == 0
    assert out.read_bytes() == whole
    assert_refused(tracekit(*arguments, "-o", Path().absolute(), "--force"), "not a file")


@pytest.mark.parametrize(
    "arguments",
    [["diagnose", "SLOW", "--job"], ["diagnose", "SLOW", "--config"], ["sql", "RUN", "-f"]],
)
@pytest.mark.parametrize("given", ["pipe", "/dev/zero"])
def test_a_pipe_that_nobody_writes_to_and_a_device_end_at_once(
    tracekit: Tracekit, run: Path, slow: Path, tmp_path: Path, arguments: list[str], given: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    at = str(tmp_path / "pipe") if given == "pipe" else given
    names = {"RUN": str(run), "SLOW": str(slow)}
    done = tracekit(*(names.get(a, a) for a in arguments), at)
    assert done.code == (0 if (given, arguments[-1]) == ("pipe", "--config") else 2)
    assert given == "pipe" or "/dev/zero" in done.err


def test_sql_comes_from_an_argument_a_file_or_stdin(
    tracekit: Tracekit, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("q.sql").write_text("SELECT 7 AS n -- a comment\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 7 AS n"))
    for arguments in (["SELECT 7 AS n;"], ["-f", "q.sql"], ["-"]):
        assert tracekit("sql", run, *arguments, "--format", "csv").out == "n\n7\n", arguments


def test_names_from_files_cannot_steer_the_terminal(tracekit: Tracekit, tmp_path: Path) -> None:
    document = make_trace(0, world_size=1)
    document["traceEvents"][5]["name"] = "\x1b[2J\x1b]0;owned\x07\u202eevil"
    trace = write_trace(tmp_path / "rank\x1b[31m\x07\u202e0.json", document)
    damaged = trace.with_name("\x1b[31m\x07\u202e1.json")
    damaged.write_bytes(b'{"schemaVersion": 1, "traceEvents": [\x00')
    archive = tmp_path / "\x07.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(damaged, "\x1b[31m\x07\u202e/2.json")
    for arguments in (
        ["sources", trace],
        ["sources", trace, "--json"],
        ["ingest", trace, "--run", tmp_path / "run"],
        ["diagnose", trace, "--all"],
        ["diagnose", trace, "--format", "json"],
        ["sql", trace, "SELECT name FROM host_op"],
        ["sql", trace, "SELECT name FROM host_op", "--format", "json"],
        ["sql", trace, "SELECT no_such FROM source"],
        ["query", trace, "kernel_summary"],
        ["cache"],
        ["diagnose", tmp_path / "none\x1b[31m\x07\u202e\nhint: x.json"],
        ["ingest", archive, "--run", tmp_path / "\x07run"],
        ["diagnose", damaged, trace, *ONE_RULE],
        ["sql", trace, "SELECT \x07\u202e FROM source"],
        ["sql", trace, "SELECT 1", "-o", "no\x07\u202e/folder"],
        ["explain", "no\x07\u202e"],
        ["capture", "un\x07\u202e", "--what"],
        ["\x07\u202e"],
    ):
        done = tracekit(*arguments)
        said = done.out + done.err
        # What typer writes loses the colours of a stranger off a terminal, and nothing else.
        assert not {"\x1b", "\x07", "\u202e"} & set(said), arguments
        assert "\nhint: x.json" not in said


# ---------------------------------------------------------------- stderr, quiet, colour


def test_quiet_leaves_only_data_and_errors(tracekit: Tracekit, slow: Path, run: Path) -> None:
    level = logging.getLogger("tracekit").level
    done = tracekit("-q", "ingest", slow, "--run", "r")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert tracekit("-q", "query", run, "step_time").err == ""
    assert tracekit("-q", "query", run, "nonsense").err.startswith("error: ")
    assert logging.getLogger("tracekit").level == level  # of that command, not of the process


def test_colour_only_on_a_terminal_that_wants_it(run: Path) -> None:
    def on_terminal(**env: str) -> str:
        ours, theirs = pty.openpty()
        process = start(
            "diagnose",
            run,
            "--select",
            "dataloader-stall",
            stdout=theirs,
            env={"TERM": "xterm", **env},
        )
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # how a terminal on Linux says that the other side is closed
                break
            if not part:
                break
            parts.append(part)
        os.close(ours)
        assert process.wait(timeout=60) == 0
        return b"".join(parts).decode()

    assert "\x1b[" in on_terminal()
    assert "\x1b[" not in on_terminal(NO_COLOR="1")
    assert "\x1b[" not in on_terminal(TERM="dumb")


# ---------------------------------------------------------------- configuration


def test_thresholds_and_silences_come_from_a_file(tracekit: Tracekit, run: Path) -> None:
    strict = Path("strict.toml")
    strict.write_text("[rules.dataloader-stall]\nmin_impact_ratio = 0.5\n")
    done = tracekit("diagnose", run, *ONE_RULE, "--config", strict, "--format", "json")
    assert "dataloader-stall" not in {f["rule"] for f in json.loads(done.out)["findings"]}
    silence = Path("tracekit.toml")
    silence.write_text(
        '[[silence]]\nrule = "dataloader-stall"\nranks = [1]\nreason = "new disks on Monday"\n'
        "until = 2999-12-31\n"
    )
    done = tracekit("diagnose", run, *ONE_RULE)
    assert "using tracekit.toml" in done.err
    assert "silenced: new disks on Monday" in done.out
    assert "waits 30.0 ms for input" not in done.out
    silence.write_text(silence.read_text().replace("2999", "2020"))
    assert "waits 30.0 ms for input" in tracekit("diagnose", run, *ONE_RULE).out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[rulez.gc-pause]\nmin_impact_ratio = 0.5\n", ["rulez"]),
        ("[rules.gc-pauze]\nmin_impact_ratio = 0.5\n", ["gc-pauze"]),
        ("[rules.gc-pause]\nmin_impct_ratio = 0.5\n", ["min_impct_ratio", "min_impact_ratio"]),
        ("[rules.gc-pause]\nmin_impact_ratio = 'much'\n", ["min_impact_ratio", "number"]),
        ("rules = 3\n", ["rules"]),
        ("[[silence]]\nrule = 'gc-pause'\n", ["reason"]),
        ("[[silence]]\nrule = 'gc-pause'\nreason = 'x'\nfor = 'ever'\n", ["silence"]),
        ("[[silence]]\nrule = 'gc-pause'\nreason = 'x'\nuntil = 'soon'\n", ["until"]),
        ("[[silence]]\nrule = 'gc-pauze'\nreason = 'x'\n", ["gc-pauze"]),
        ("silence = 'all'\n", ["silence"]),
        ("this is no TOML", ["c.toml", "cannot be read"]),
        ("\x00", ["c.toml"]),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(
    text: str, words: list[str], tracekit: Tracekit, run: Path
) -> None:
    Path("c.toml").write_text(text)
    assert_refused(tracekit("diagnose", run, "--config", "c.toml"), *words)


# ---------------------------------------------------------------- help, lists, and a quick start


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
    script = (
        "import atexit, sys; from tracekit.cli import main\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main(sys.argv[1:])"
    )
    places = {"TRACE": str(slow / "rank0.json"), "RUN": str(run)}
    needed: set[str] = {"typer"} if arguments[0] != "--version" else set()
    arguments = [places.get(a, a) for a in arguments]
    if str(run) in arguments:  # asked before; what is kept is read as JSON
        tracekit(*arguments)
        needed.add("msgspec")
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (2 if "no-such-rule" in arguments else 0)
    assert not (HEAVY | {"typer"}) - needed & set(done.stderr.split())


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
